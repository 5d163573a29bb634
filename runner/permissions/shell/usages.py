"""The arguments of programs that name files, as data. ``files`` interprets it.

Collected from the programs' manuals. An entry is a list of roles, each ``what:where``:

- ``reads`` and ``changes`` concern deny and ask rules only; for ``writes`` a rule must allow the file.
  ``may`` changes a file if that is named literally, ``packs`` also the one without the name's last
  suffix, ``trees`` all that is below a folder. ``copies``, ``moves`` and ``links`` take sources and a
  target, at the end or by the option after ``into``. ``unpacks`` changes anything below the folder after
  the option, or below the current one. ``gathers`` reads all that is below
  folders, ``offered`` takes texts with ``@file`` in them, ``merges`` those that end in a file behind a
  blank. ``lists`` reads files that name others to read; without an option the input does. ``finds`` reads
  a file that no argument names. What is read is also looked for ``within`` a folder. ``values`` is no file.
- Where: options (``-o,--output``) that name the file, or positions among the operands: ``1``, ``2+`` from
  the second on, ``*`` all of them, ``$`` the last, or ``of=`` for what follows it. ``recursive`` has
  options by which copies go below folders.
- ``@-x,create`` after a role: only with one of these options, or this word as the first operand;
  ``!-p`` not with these.

``BUNDLE``: the first argument is a bundle of letters, with a dash or without. ``SINGLE``: an option of
several letters has one dash. ``LOOSE``: every argument that is no option counts as an operand.
``PATHSPECS``: an operand is a pattern of git's. ``REVISIONS``: of ``HEAD:f`` the file f is meant too.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import lru_cache

from runner.permissions.shell.programs import HIDING, RUNNERS, WRAPPERS, compiles
from runner.permissions.shell.words import by_name


@dataclass(frozen=True, slots=True)
class Role:
    """The use that a program makes of some of its arguments."""

    does: str
    items: tuple[str, ...]  # options, and positions of operands
    places: tuple[slice, ...]  # these positions
    keys: tuple[str, ...]  # ``of=``
    only: frozenset[str]  # it holds with one of these options or first operands
    never: frozenset[str]  # not with these

    def holds(self, given: set[str]) -> bool:
        return (not self.only or not self.only.isdisjoint(given)) and self.never.isdisjoint(given)


@dataclass(frozen=True, slots=True)
class Usage:
    roles: tuple[Role, ...]
    valued: frozenset[str]  # the options with a value
    long: tuple[str, ...]  # the long options that are known, which may be shortened
    flags: frozenset[str]  # BUNDLE, SINGLE, LOOSE

    def items(self, does: str) -> frozenset[str]:
        """Return where the arguments with that role are, whatever the options."""
        return frozenset(item for role in self.roles if role.does == does for item in role.items)


_ROLE = re.compile(
    r"(?P<does>[a-z]+)(?:@(?P<only>[^!:]+))?(?:!(?P<never>[^:]+))?(?::(?P<items>.*))?"
)


def _slice(place: str) -> slice:
    """Return a place among operands as a slice: ``2``, ``2+`` (from the second on), ``*`` (all) or ``$``
    (the last)."""
    first = -1 if place == "$" else int(place.strip("*+") or 1) - 1
    return slice(first, int(place) if place.isdigit() else None)


def _usage(text: str) -> Usage:
    roles: list[Role] = []
    flags: set[str] = set()
    for token in text.split():
        role = _ROLE.fullmatch(token)
        if role is None:
            flags.add(token)
            continue
        only, never, items = (
            tuple(filter(None, (role[name] or "").split(",")))
            for name in ("only", "never", "items")
        )
        places = tuple(_slice(item) for item in items if item in ("*", "$") or item[0].isdigit())
        keys = tuple(item for item in items if item.endswith("="))
        roles.append(Role(role["does"], items, places, keys, frozenset(only), frozenset(never)))
    options = {
        item: role.does != "recursive"
        for role in roles
        for item in role.items
        if item.startswith("-")
    }
    conditions = {each for role in roles for each in role.only | role.never}
    return Usage(
        tuple(roles),
        frozenset(option for option, valued in options.items() if valued),
        tuple(sorted(each for each in {*options, *conditions} if each.startswith("--"))),
        frozenset(flags),
    )


# They read their operands; what else is written to a file is an output option of most programs.
_READERS = """
    cat head tail less more most nl strings od hexdump hd base64 base32 basenc tac rev cut diff cmp
    comm colordiff sdiff diff3 paste join fold fmt pr expand unexpand column bat batcat zcat bzcat
    xzcat zless zmore lzcat zstdcat bzmore zdiff zcmp md5sum sha1sum sha224sum sha256sum sha384sum sha512sum
    b2sum cksum sum iconv shuf ptx tsort look man nroff troff groff hexyl pv glow mdcat pygmentize highlight
    ccat lolcat tidy uuencode objdump readelf lynx w3m links elinks envsubst nm dig drill
    logger vimcat git-update-index"""
_SCRIPTED = """
    grep egrep fgrep zgrep bzgrep xzgrep rgrep rg ag ack jq xq awk gawk mawk nawk sed gsed"""
_SCRIPT = "-e,-f,--regexp,--file,--from-file,--expression"
_PACKERS = "gzip bzip2 xz zstd gunzip bunzip2 unxz unzstd lz4 compress uncompress pigz"
_TARGET = "into:-t,--target-directory values:-S,--suffix"
_TAR_WRITES = "-c,-r,-u,-A,--create,--append,--update,--catenate,--concatenate,--delete"
_GENERAL = "--out,--outfile,--outFile,--out-file,--output,--output-file,--log-file,--logfile"
_OUTPUT = f"may:-o,{_GENERAL}"
_GIT_SHOWS = """
    git-show git-diff git-log git-annotate git-whatchanged git-stage git-add git-hash-object
    git-cat-file git-diff-files git-diff-index git-diff-tree git-unpack-file"""

_USAGES = {
    _READERS: "LOOSE reads:*",
    "sort": "LOOSE reads:* lists:--files0-from writes:-o,--output values:-k,-t,-S,-T",
    "date": "reads:-f,--file values:-d,-s,--date,--set",
    "wc": "LOOSE reads:* lists:--files0-from",
    "file": "reads:-f,--files-from",
    "pandoc": "LOOSE reads:* writes:-o,--output",
    "du": "reads:-X,--files0-from,--exclude-from",
    "xmllint": f"LOOSE reads:* {_OUTPUT}",
    "source . bash sh dash ash": "reads:1,--rcfile,--init-file",
    "split": "reads:1 changes:2 values:-a,-b,-C,-l,-n,-t",
    _SCRIPTED: f"LOOSE reads:-g,--glob,--iglob,--include reads!{_SCRIPT}:2+ reads@{_SCRIPT}:*",
    "yq": "SINGLE LOOSE reads:2+ reads@-p,--input-format:* unpacks@-s,--split-exp: "
    "values:-o,-p,--output-format,--input-format changes@-i,--inplace,--in-place:*",
    "uniq": "reads:1 writes:2 values:-f,-s,-w",
    "xxd": "reads:1 writes:2 values:-c,-g,-l,-o,-n,-R,-s",
    "tee sponge git-mailinfo": "writes:*",
    _PACKERS: "trees@-r,--recursive:* lists:--files,--files0,--filelist LOOSE reads:* "
    "packs!-c,-t,-l,--stdout,--to-stdout,--test,--list:* changes:-o",
    "dd": "reads:if= changes:of=",
    # --- They change their operands.
    "rm": "changes:* trees@-r,-R,--recursive:*",
    "rmdir unlink dos2unix unix2dos mac2unix": "changes:*",
    "shred": "changes:* values:-n,-s,--iterations,--size",
    "touch": "changes:* values:-d,-t,--date reads:-r,--reference",
    "mkdir mkfifo": "may:* values:-m,--mode",
    "mknod": "changes:1 values:-m,--mode",
    "truncate": "changes:* values:-s,--size reads:-r,--reference",
    "chmod chown chgrp": "changes!--reference:2+ changes@--reference:* reads:--reference "
    "trees@-R,--recursive:2+",
    "chattr attr setfattr xattr fallocate lockfile detox mmv crudini": "changes:* trees@-R:*",
    "perl ruby": "LOOSE changes@-i:* values:-e,-E,-I,-M,-r",
    "rename prename lessc recode": f"{_OUTPUT} changes:2+",
    "sass": f"{_OUTPUT} may:*",
    "optipng jpegoptim pngquant oxipng advpng jpegtran exiftool pdftk merge rcs ci co uudecode gtags "
    "bison yacc xgettext": "may:*,-o,-b,-p,-w,-d,--defines,--header,--graph,--xml,--output-dir",
    "mogrify": "SINGLE changes:* may:-path",
    "msgmerge": "changes@-U,--update:1 may:-o,--output-file",
    "zipfile tarfile": "reads:1 trees@-e,--extract:2+ changes@-c,--create:1 reads@-c,--create:2+",
    "brotli": "LOOSE reads:* changes@-j,--rm:* may:-o,--output",
    "2to3": "changes@-w,--write:*",
    "sqlfluff": "changes@fix,format:2+",
    "coverage": "may:-o,-d,--data-file,--directory",
    "sphinx-build mksquashfs debootstrap": f"{_OUTPUT},-d changes:2",
    "unsquashfs": "may:-d,-dest",
    "dpkg-deb": "changes:2+",
    "ninja": "may:-C",
    "tox": "may:--workdir,--result-json",
    "svn hg bzr fossil": "changes@revert,rm,remove,delete,del,mv,move,rename,checkout,co,export,clone,"
    "archive,branch,open:2+",
    "rpl": "changes:3+",
    "codespell": "changes@-w,--write-changes:*",
    "xmlstarlet": "changes@-L,--inplace:*",
    "csplit": "LOOSE reads:* changes:-f,--prefix",
    "mktemp": "may:*,-p,--tmpdir",
    "venv virtualenv": "changes:*",
    "setfacl": "changes:* values:-m,-x,-M,-X,--modify,--remove trees@-R,--recursive:*",
    "sd": "changes:3+",
    "find": "SINGLE reads:-files0-from reads@-exec,-execdir,-ok,-okdir:* "
    "may@-exec,-execdir,-ok,-okdir,-delete:*",
    "patch": "changes:1 writes:-o,--output changes:-r,--reject-file reads:-i,--input,2 "
    "values:-p,-B,-z,-F,-D,-V,-Y,-g,--strip unpacks!--dry-run,-o,--output:-d,--directory",
    # --- They copy.
    "cp": f"copies:* {_TARGET} recursive:-r,-R,-a,--recursive,--archive",
    "mv": f"moves:* {_TARGET}",
    "install": f"copies!-d,--directory:* changes@-d,--directory:* {_TARGET} "
    "values:-m,-o,-g,--mode,--owner,--group",
    "ln": f"links:* changes:* {_TARGET}",
    "link": "links:* changes:*",
    "rsync": "copies:* recursive:-r,-a,--recursive,--archive lists:--files-from reads:--exclude-from,"
    "--include-from,--password-file,--read-batch,--link-dest,--compare-dest,--copy-dest "
    "merges:-f,--filter trees@--remove-source-files:* values:-B,--exclude,--include,"
    "--max-size,--min-size,--bwlimit,--chmod,--chown,--timeout,--port,--suffix "
    "changes:-T,--temp-dir,--log-file,--backup-dir,--partial-dir,--write-batch,--only-write-batch",
    # --- Archives.
    "tar bsdtar gtar": f"BUNDLE changes@{_TAR_WRITES}:-f,--file reads!{_TAR_WRITES}:-f,--file "
    f"reads@{_TAR_WRITES}:* gathers@{_TAR_WRITES}!--exclude,-C,--directory:* "
    "unpacks@-x,--extract,--get!-O,--to-stdout:-C,--directory values:-b,-H,-K,-N,-V,-L "
    "within:-C,--directory values:--exclude,--strip-components,--transform,--format,--owner,--group,"
    "--mode,--mtime lists:-T,--files-from reads:-X,--exclude-from "
    "changes:-g,--listed-incremental,--index-file",
    "zip": "changes:1 reads:2+ gathers@-r!-x,-i:2+ trees@-m,--move:2+ "
    "offered:-x,-i reads:-i values:-P,-n,-t,-tt changes:-O,--out,-b",
    "unzip": "unpacks!-l,-t,-v,-p,-Z,-z:-d reads:1",
    "7z 7za 7zr 7zz rar unrar": "unpacks@x,e: trees@-sdel:3+ SINGLE changes@a,u,d,m:2 gathers@a,u:3+ "
    "offered@a,u:3+ reads@a,u:3+,-i!,-ir! offered:-i,-ir "
    "reads@x,e,l,t:2",
    "jar": "BUNDLE changes@-c,-u,--create,--update:-f,--file reads:* unpacks@-x,--extract:-C,--dir "
    "values:-m,-e",
    "ar": "changes:2 unpacks@x,-x:",
    "ranlib strip": "changes:* changes:-o",
    "objcopy": "reads:1 changes:* may:--dump-section,--add-section values:-I,-O,-j,-R",
    "cpio pax": "gathers@-w:* lists@-o,-p,--create,--pass-through: reads:-E "
    "unpacks@-i,-r,-p:-D,--directory",
    # --- The network.
    "curl": "offered:-d,-F,-H,-w,--data,--data-ascii,--data-binary,--data-raw,--data-urlencode,--form,"
    "--header,--json,--proxy-header,--url-query,--variable,--write-out,--url "
    "reads:-T,-b,-E,-t,--upload-file,--cookie,--cert,--key,--cacert,--proxy-cert,--proxy-key,--netrc-file,"
    "--pubkey,--etag-compare,--crlfile,--proxy-cacert,--ech,--knownhosts,-K,--config,-z,--time-cond "
    "writes:-o,-D,-c,--output,--dump-header,--cookie-jar,--trace,--trace-ascii,--stderr,--libcurl,"
    "--etag-save,--hsts,--alt-svc,--ssl-sessions,--dump-ca-embed "
    "values:-A,-C,-e,-m,-P,-Q,-r,-u,-U,-x,-X,-y,-Y,--output-dir,--request,--user,--user-agent,--referer,"
    "--max-time,--connect-timeout,--retry,--retry-delay,--retry-max-time,--proxy,--range,--limit-rate,"
    "--resolve,--connect-to,--cert-type,--max-redirs,--oauth2-bearer,--form-string,--ciphers,--interface,"
    "--parallel-max,--expect100-timeout,--speed-limit,--speed-time,--proto,--quote,--proxy-user,"
    "--rate,--max-filesize,--pass,--key-type,--noproxy,--dns-servers,--local-port,--keepalive-time",
    "wget wget2": "offered:--header "
    "reads:--config,-i,--input-file,--post-file,--body-file,--load-cookies,--certificate,"
    "--private-key,--ca-certificate,--crl-file,--egd-file,--warc-dedup "
    "writes:-o,-a,-O,--output-file,--append-output,--output-document,--save-cookies,--hsts-file,"
    "--rejected-log,--warc-file "
    "values:-A,-B,-D,-e,-I,-l,-P,-Q,-R,-t,-T,-U,-w,-X,--tries,--timeout,--user-agent,--user,"
    "--password,--post-data,--body-data,--method,--directory-prefix,--level,--wait,--accept,--reject,"
    "--domains,--limit-rate,--read-timeout,--connect-timeout,--dns-timeout,--waitretry,--referer,"
    "--warc-tempdir,--warc-header,--progress,--cut-dirs,--default-page,--quota,--exclude-directories",
    "http https xh xhs httpie": "offered:* may:-o,--output,--session reads:--cert,--cert-key",
    "gh glab": "offered:-f,-F,--field,--raw-field,--header,-H reads:--input,--body-file,--notes-file,-F "
    "changes:--output,-O,-D,--dir changes@repo,gist:4+",
    "aria2c axel": "reads:-i,--input-file,--load-cookies changes:-o,--out,-l,--log,--save-session,"
    "--save-cookies,-d,--dir",
    "npm pnpm yarn bun": "may:-C,--modules-folder reads@publish,pack:2+",
    "aws gsutil": "may:$",
    "rclone": "may:$ gathers@copy,sync,move,copyto,moveto:2+ trees@copy,sync,move:$",
    "s3cmd s5cmd": "may:$ gathers@sync,put,cp:2+",
    "borg": "gathers@create:3+ unpacks@extract:",
    "gcloud": "may:$ gathers@storage:3+",
    "az": f"{_OUTPUT} gathers@storage:-s,--source",
    "aws-s3": "copies@cp:2+ moves@mv:2+ copies@sync:2+ recursive:--recursive,sync "
    "trees@sync,--recursive:$ values:--exclude,--include",
    "kubectl oc": f"{_OUTPUT} changes@cp:2+ gathers@cp:2+ gathers@kustomize:2 "
    "gathers:--from-file,-k,--kustomize,-w,--www",
    "restic": "may:-t,--target",
    # --- Compilers and builds: they write their results wherever they are told.
    "gcc": "SINGLE may:-o,-MF,-MJ,-dumpdir,-aux-info,--output,--serialize-diagnostics "
    "reads:-include,-imacros,-I,-isystem,-iquote,*",
    "rustc": "may:-o,--out-dir,--emit,-C values:-L,-l,-A,-W,-D,-F,--crate-type,--crate-name,--edition,"
    "--extern,--target,--cfg reads:1",
    "go": "SINGLE writes:-o,--o,-coverprofile,--coverprofile,-blockprofile,--blockprofile,-cpuprofile,"
    "--cpuprofile,-memprofile,--memprofile,-mutexprofile,--mutexprofile,-trace,--trace,-outputdir,"
    "--outputdir,-test.coverprofile,-test.cpuprofile,-test.memprofile,-test.blockprofile,-test.trace,"
    "-test.outputdir changes@fmt:2+",
    "getent": "finds@passwd,group,shadow,hosts:/etc/passwd,/etc/group,/etc/shadow,/etc/hosts",
    "cargo": "may:--root,--target-dir,--artifact-dir,--out-dir changes@new,init,vendor,fmt:2+",
    "cmake": "may:-B,--build,--prefix,--graphviz,--trace-redirect,--profiling-output,--install-prefix",
    "ctest": "may:-O,--output-log,--output-junit",
    "meson": "may@setup:2+ may:--destdir",
    "make gmake": f"{_OUTPUT} may:*",
    "ld nasm yasm as": "SINGLE LOOSE reads:* may:-o,-l,-a,-Map,--Map,-T",
    "javac javadoc kotlinc scalac babel swc hugo mkdocs jekyll parcel": f"{_OUTPUT},-d,-h,-s",
    "dotenv dotenvx dotenv-cli env-cmd foreman honcho": "finds!-f,-e,--file,--env:.env",
    "helm": "gathers@package:2+ may:-o,-d,--output-dir,--destination,--untardir",
    "ctags cscope doxygen etags": f"{_OUTPUT},-f,-g",
    "redis-cli": "may:--rdb",
    "openssl": "SINGLE reads:-in,-inkey,-key,-CA,-CAkey,-CAfile,-cert,-certfile,-config,-passin,-pass,"
    "-passout,-rand,-kfile,-sigfile,-verify,-sign,-data,-untrusted,-extfile,2+ may:-out,-keyout,"
    "-writerand,-CAserial,-pubout_file,-signature_out,-outdir,-serial,-sess_out,-keylogfile,-msgfile",
    "ssh-keygen": "changes!-l,-B,-y,-e,-E,-F,-L,-H:-f reads:-f values:-t,-b,-C,-N,-P,-I,-n,-V,-O,-m,-a,-Z",
    "gpg gpg2": "may:-o,--output,--log-file,--logger-file,--status-file,--attribute-file reads:* "
    "values:-r,-u,--recipient,--local-user,--passphrase-fd reads:--passphrase-file",
    "pytest py.test": "may:--junitxml,--junit-xml,--log-file,--resultlog,--report-log,--html,"
    "--cov-report,--debug,--basetemp,--profile-svg,-o,--override-ini values:-k,-m,-n,-p,-W",
    "mypy pylint flake8 bandit": f"may:{_GENERAL},--html-report,--xml-report,--txt-report,--junit-xml,"
    "--cobertura-xml-report,--any-exprs-report,--linecount-report,--linecoverage-report,--cache-dir,-o",
    "pip pip3": "may:--log,-d,--dest,-w,--wheel-dir,-t,--target,--report,--root,--prefix,--src,--cache-dir "
    "reads:-r,-c,--requirement,--constraint,--cert,--client-cert,--build-constraint",
    "uv": f"changes@venv:2+ may:{_GENERAL},-o,--target,--out-dir,--cache-dir "
    "reads:-r,-c,--requirement,--requirements,"
    "--constraint,--constraints,--override,--env-file",
    "sqlite3 sqlite duckdb": "SINGLE changes!-readonly:1 values:-separator,-nullvalue,-newline,-vfs",
    "psql": f"{_OUTPUT},-L reads:-f,--file values:-c,-d,-h,-p,-U,-v,-F,-P,-R,-T,--command,--dbname,--host,"
    "--port,--username,--set,--pset,--field-separator",
    "mysql mariadb": f"{_OUTPUT},--tee values:-e,--execute,-h,-u,-P,-D",
    "pg_dump pg_dumpall mysqldump mongodump pg_restore": "may:-f,--file,-r,--result-file,-o,--out,-T,--tab,"
    "--archive",
    "docker podman nerdctl": "copies@cp:2+ gathers@cp:2+ trees@build,buildx:-o,--output "
    "may:-v,--volume,--mount,-o,--output,--iidfile,--cidfile,"
    "--metadata-file reads:--env-file,"
    "--label-file,--password-file",
    "convert magick ffmpeg sox wkhtmltopdf pdftotext ps2pdf pdf2ps qpdf mutool": f"SINGLE {_OUTPUT},$ "
    "reads:-i,*",
    "gs": "SINGLE may:-o reads:*",
    "nmap": "SINGLE reads:-iL may:-oN,-oX,-oG,-oA",
    "ab": "reads:-p,-u",
    "hey": "reads:-D",
    "tsc esbuild rollup webpack terser": f"{_OUTPUT},--outDir,--outdir,--out-dir,-d,--dir,"
    "--declarationDir,--tsBuildInfoFile,--metafile,--file",
    # --- Formatters, in place.
    "black isort autoflake pyupgrade docformatter blue yapf autopep8 djlint": "changes!--check,--diff,"
    "--check-only:* values:-l,--line-length,-t,--target-version,-p,--profile,--config,--exclude,-w",
    "ruff": f"changes@format,--fix,--add-noqa,--unsafe-fixes!--check,--diff:* may:{_GENERAL},-o "
    "values:--config,--select,--ignore,--line-length,--target-version,--exclude",
    "prettier": "changes@-w,--write:* values:--config,--parser,--plugin,--ignore-path",
    "eslint stylelint standard xo oxlint tslint": "changes@--fix,--write,--fix-dangerously:* "
    "values:-c,--config,--ext,--rule,-f,--format,--max-warnings,--ignore-path may:-o,--output-file,"
    "--cache-location,--cache-file",
    "biome rome dprint": "changes@--write,--fix,--apply,fmt,format:2+ changes@--apply-unsafe:2+",
    "deno": "changes@fmt,--fix:2+ finds@--env:.env reads:--env-file",
    "gofmt goimports gofumpt shfmt golines": "changes@-w,--write:* values:-r,-l,-i,-ln,-local",
    "rustfmt": "changes!--check:* values:--config,--edition,--config-path",
    "clang-format clang-tidy swift-format ktlint google-java-format": "SINGLE changes@-i,-fix,--fix,-F,"
    "--format,--in-place,--replace,-fix-errors:*",
    "rubocop": "changes@-a,-A,--autocorrect,--autocorrect-all,-x,--fix-layout,--auto-correct:* "
    "may:-o,--out",
    "terraform tofu packer": "changes@fmt:2+ may:-out,-state,-state-out,-backup SINGLE",
    "nixfmt stylua taplo mdformat elm-format ocamlformat ormolu fourmolu buildifier mix zig buf "
    "php-cs-fixer phpcbf scalafmt csharpier alejandra perltidy cmake-format yamlfmt": "changes!--check,"
    "--dry-run:*",
    # --- git, by subcommand.
    _GIT_SHOWS: "REVISIONS reads:* reads:-L,-O",
    "git-commit-tree": "reads:-F values:-m,-p",
    "git-blame": "REVISIONS reads:* reads:--contents,--ignore-revs-file",
    "git-archive": "reads:--add-file,2+ values:--format,--prefix writes:-o,--output",
    "git-rm": "PATHSPECS changes!--cached,-n,--dry-run:* trees@-r:* unpacks@--pathspec-from-file:",
    "git-mv": "moves!-n,--dry-run:*",
    "git-restore": "PATHSPECS trees!-S,--staged:* trees@-W,--worktree:* values:-s,--source "
    "unpacks@--pathspec-from-file:",
    "git-checkout": "PATHSPECS trees!-b,-B,--orphan:* values:-b,-B,--orphan,--conflict "
    "unpacks@--pathspec-from-file:",
    "git-read-tree": "writes:--index-output unpacks@-u: trees:--prefix",
    "git-subtree": "trees:-P,--prefix",
    "git-am": "unpacks!--abort,--continue,--skip,--quit,--resolved,-r: reads:*",
    "git-clean": "unpacks!-n,--dry-run:* values:-e,--exclude",
    "git-stash": "unpacks@-a,--all: PATHSPECS "
    "changes!pop,apply,list,show,drop,clear,branch,create,store,save:* values:-m,--message "
    "unpacks@--pathspec-from-file:",
    "git-apply": "unpacks!--cached,--check,--stat,--numstat,--summary:--directory reads:* "
    "changes:--build-fake-ancestor values:-p,-C,--exclude,--include,--whitespace",
    "git-clone": "changes:2+ may:--separate-git-dir values:-b,-o,-j,--branch,--depth,--origin,--filter,"
    "--shallow-since,--reference,--jobs reads:1",
    "git-init": "changes:* may:--separate-git-dir values:-b,--initial-branch,--object-format",
    "git-worktree": "changes@add:2 trees@move,remove:2+ values:-b,-B,--reason",
    "git-submodule": "changes@add:3+ values:-b,--name,--reference,--depth",
    "git-bundle": "writes@create:2 reads!create:2+",
    "git-mailsplit": "writes:-o reads:*",
    "git-merge-file": "writes!-p,--stdout:1 reads:* values:-L",
    "git-fast-export": "writes:--export-marks reads:--import-marks,--import-marks-if-exists",
    "git-interpret-trailers": "writes@--in-place:* reads:* values:--trailer,--where,--if-exists",
    "git-pack-objects": "writes:1",
    "git-index-pack": "writes:-o reads:1",
    "git-bugreport git-diagnose": "writes:-o,-s",
    "git-commit": "reads:*,-F,-t,--file,--template,--pathspec-from-file values:-m,-c,-C,-S,--message,"
    "--author,--date,--fixup,--squash,--trailer",
    "git-format-patch git-range-diff": "reads:* may:-o,--output-directory,--output",
    "git-tag git-merge git-notes": "reads:-F,--file values:-m,-u,-s,-X",
    "git-send-email": "reads:*",
    "git-ls-files": "reads:-X,--exclude-from",
    "git-config": "reads:-f,--file",
    "git-lfs": "changes@checkout:2+",
    "git-grep": "LOOSE REVISIONS reads:2+ reads:-f,-O",
}
_TABLE = by_name(_USAGES)


def named_by(glob: str) -> list[str]:
    """Return the known programs that a glob for a program's name may match."""
    pattern = re.compile(fnmatch.translate(glob.rpartition("/")[2]))
    return [name for name in {*_TABLE, *HIDING, *RUNNERS, *WRAPPERS, "git"} if pattern.match(name)]


@lru_cache(maxsize=512)
def usage_of(program: str) -> Usage:
    """Return how a program, or a subcommand of git (``git-rm``), uses its arguments."""
    return _usage(_TABLE.get("gcc" if compiles(program) else program, _OUTPUT))
