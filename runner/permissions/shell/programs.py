"""Facts about programs, as data. ``arguments``, ``files`` and ``spellings`` interpret them.

Collected from the programs' manuals, https://gtfobins.github.io and the published advisories of tools
with such rules.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from runner.permissions.shell.words import by_name, names

# --- Wrappers: they run the command in their arguments.


# Options are from GNU coreutils, util-linux and the bash manual; one with a value ends in ":". A
# command with another option hides what it runs. OPERAND: a word stands between the options and the
# command. ASSIGNS: assignments may come before the command. NUMBERS: "-5" is an option.
_WRAPPERS = {
    "timeout": "-v --verbose -f --foreground -p --preserve-status -k: --kill-after: -s: --signal: OPERAND",
    "time": "-p ASSIGNS",
    "nice": "-n: --adjustment: NUMBERS",
    "nohup builtin catchsegv": "",
    "setsid": "-c -f -w --ctty --fork --wait",
    "stdbuf": "-i: -o: -e: --input: --output: --error:",
    "env": "- -i --ignore-environment -v --debug -u: --unset: ASSIGNS",
    "command unbuffer": "-p",
    "exec": "-c -l -cl -lc -a:",
    "ionice": "-t --ignore -c: --class: -n: --classdata:",
    "chrt": "-b -f -i -o -r -v --batch --fifo --idle --other --rr OPERAND",
    "taskset": "OPERAND",
    "jobs": "-x",
    "xargs": "-0 --null -r --no-run-if-empty -t --verbose -x --exit -n: --max-args: -P: --max-procs: "
    "-L: --max-lines: -I: -d: --delimiter: -s: --max-chars: -E:",
}
# By wrapper: whether each option takes a value.
WRAPPERS = {
    name: {option.rstrip(":"): option.endswith(":") for option in options.split()}
    for name, options in by_name(_WRAPPERS).items()
}

# They change who runs a command, where or when, or start a program of their own: never seen through.
HIDING = names("""
    sudo sudoedit doas su ssh chroot flock parallel sem watch script busybox toybox entr strace ltrace
    unshare nsenter systemd-run runuser pkexec setpriv sg newgrp screen tmux at batch gdb lldb valgrind
    perf hyperfine rlwrap proot fakeroot fakechroot firejail bwrap start-stop-daemon setarch linux32
    linux64 i386 x86_64 prlimit numactl choom cgexec chpst faketime expect dbus-run-session xvfb-run
    torsocks torify proxychains proxychains4 run-parts scp sftp mosh ssh-agent dc m4 dbus-launch telnet
    nc ncat socat netcat vi vim nvim view vimdiff rvim ex ed red emacs nano pico zsh ksh mksh fish csh
    tcsh rbash pwsh nu xonsh elvish rsh rexec crontab xterm daemonize nsjail capsh sshpass zargs gosu
    dtach abduco unbound-control ld.so ld-linux.so.2 ld-linux-x86-64.so.2 uconv chronic ifne env-update
    setuidgid softlimit envdir envuidgid pgrphack cpulimit trickle eatmydata nocache caffeinate ts
    unbuffer-x cset schedtool coreutils execlineb multirun dumb-init tini ip lxc-execute machinectl
    runcon logsave lftp pee lckdo setlock aa-exec authbind daemon nq tsp su-exec s6-setuidgid s6-setlock
    s6-envdir s6-softlimit s6-applyuidgid distcc ccache sccache icecc systemd-inhibit systemd-cat
    systemd-nspawn systemd-ask-password yash posh osh ysh sash lksh oksh hush rc es scsh ion murex nsh
    bear scan-build intercept-build kcov
    catatonit retry timelimit turbostat rr uftrace bpftrace tclsh wish zsh-static bash-static dbclient
    plink pdsh dsh clush ansible run0 heaptrack reptyr incrond watchexec nodemon reflex when-changed
    xdotool xdg-open sensible-pager sensible-editor sensible-browser run-one run-this-one flatpak-spawn
    distrobox-enter minijail0 pivot_root switch_root tini-static msgfilter grc multitime pexec genie
    mutt neomutt micro kak hx helix joe mcedit pssh parallel-ssh wine wine64 box64 qemu-x86_64
    openvt autossh sshuttle nix-shell run-mailcap dmsetup check_by_ssh tmate jtag openvpn logrotate""")

# --- Runners: they run another program as their everyday use. People write allow rules for them
# (``Bash(uv run pytest *)``), so such a command stays what it is; deny and ask rules see the command
# inside too.

# By program: how the command inside is introduced, in each way ("" for right after the options).
# After "?" one word may stand before the command; "&pip": the command begins with that word.
_RUNNERS = {
    "npx bunx pnpx uvx corepack env-cmd cross-env summon envconsul lxc-attach gpg-agent": "",
    "npm": "exec|x|explore ?",
    "pnpm": "exec|dlx",
    "yarn": "exec|dlx|run|&npm|workspace ?|workspaces run",
    "bun": "x|run|exec",
    "uv": "run|tool run|&pip",
    "pipx poetry pipenv pdm rye hatch conda mamba micromamba volta devbox": "run",
    "dotenvx op doppler infisical coverage foreman honcho heroku railway": "run",
    "lxc incus multipass": "exec ?",
    "limactl": "shell ?",
    "orb wsl": "|run|-e|--exec",
    "microk8s k3s": "&kubectl",
    "minikube": "ssh|&kubectl",
    "colima": "ssh",
    "consul vault": "exec ?|lock ?|ssh ?",
    "sops": "exec-env ?|exec-file ?",
    "dotenv": "|run",
    "pixi": "run|exec",
    "asdf pyenv rbenv nodenv goenv jenv fnm opam dune ddev lerna gem": "exec",
    "cabal": "exec|v2-exec|new-exec",
    "stack": "exec|&ghc|&runghc",
    "zig": "&cc|&c++",
    "mix": "cmd|do cmd",
    "composer": "exec|global exec",
    "dotnet": "tool run",
    "meson": "subprojects foreach|devenv",
    "pm2": "start",
    "bundle bundler": "exec|e|ex|exe",
    "mise rtx": "exec ?|x ?",
    "direnv aws-vault chamber": "exec ?",
    "rvm": "exec ?|do ?",
    "nvm docker podman nerdctl kubectl crictl buildah runc crun ctr": "exec ?|run ?|unshare|machine ssh",
    "oc": "exec ?|run ?|rsh ?",
    "docker-compose podman-compose": "exec ?|run ?",
    "rustup": "run ?",
    "nix": "run ?|shell ?|develop ?",
}
RUNNERS = {
    program: tuple(way.split() for way in ways.split("|"))
    for program, ways in by_name(_RUNNERS).items()
}

# They run a command by ``compose exec`` and ``container run`` too, and with ``--entrypoint COMMAND``.
CONTAINERS = names("docker podman nerdctl")

# They run what is in an argument with blanks: ``concurrently "npm run a" "npm run b"``.
SCRIPTED = names("""
    concurrently minikube heroku cross-env-shell start-server-and-test sops salt wsl npm-run-all
    wireit wait-on chokidar onchange husky lint-staged pm2 yarn aws npx pnpm bunx""")

# Modules that are programs of that name: ``python -m black``.
PYTHON_MODULES = names("""
    pip pytest black ruff isort mypy pylint flake8 coverage tox nox uv poetry autopep8 yapf bandit venv
    virtualenv dotenv gzip build twine docformatter pyupgrade autoflake sphinx celery gunicorn uvicorn
    zipfile tarfile""")

# --- Options that run or overwrite what they say.


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a program that make its arguments decide what is run or written."""

    letters: str = ""  # short options
    long: Collection[str] = ()  # long options without dashes; the start of one counts too
    starts: tuple[str, ...] = ()  # an argument that starts so
    pattern: re.Pattern[str] | None = None  # an argument in which it is found, also after "--"
    bundle: bool = False  # the first argument is a bundle of letters, with a dash or without
    all_options: bool = False  # "--" does not end the options
    any_value: bool = False  # what a variable or a glob becomes in its arguments does not matter

    @classmethod
    def of(cls, text: str, pattern: re.Pattern[str] | None = None) -> Options:
        """Return the options in ``text``: ``-ab`` two letters, ``--long``, and ``+*`` for what starts
        with ``+``; ``BUNDLE`` and ``ALL`` for ``bundle`` and ``all_options``."""
        every = text.split()
        return cls(
            letters="".join(each[1:] for each in every if re.fullmatch("-[A-Za-z]+", each)),
            long=tuple(each[2:] for each in every if re.fullmatch("--[^*]+", each)),
            starts=tuple(each[:-1] for each in every if each[-1] == "*"),
            pattern=pattern,
            bundle="BUNDLE" in every,
            all_options="ALL" in every,
            any_value="ANY" in every,
        )


def _letters(text: str) -> dict[str, str]:
    """Return the letters of each name: ``clone:uc am:i``."""
    return dict(each.split(":") for each in text.split())


_NPM = (
    "--script-shell --node-options --userconfig --globalconfig --shell --git --editor --viewer "
    "--browser --onload-script --init-module --node-gyp --python"
)
_RISKY = {
    "find": "ALL -exec* -ok* -delete* -fprint* -fls*",
    "sort": "--compress-program",
    "rg": "--pre --hostname-bin",
    "fd fdfind": "-xX --exec-batch",
    "tar bsdtar gtar": "BUNDLE -IFP --absolute-names --remove-files --to-command --checkpoint-action "
    "--use-compress-program --info-script --new-volume-script --rsh-command --rmt-command",
    "rsync": "-eM --rsh --rsync-path --remote-option --daemon --config rsync://*",
    "man apropos whatis": "-PHCK --pager --html --config-file --browser --preprocessor "
    "--troff-device -T* -X* -Z* -p*",
    "less": "-koO --cmd --lesskey-file --lesskey-src --lesskey-content --log-file --LOG-FILE +*",
    "more most": "+*",
    "date": "--file --set -f* -s* -uf* -us* -Rf* -Rs*",
    "tree": "-oR",
    "ag": "--pager",
    "ack": "--pager --output",
    "split": "--filter",
    "zip": "-T --unzip-command --test -TT*",
    "cpio": "-FHOI --rsh-command --to-stdout --file",
    "sdiff": "-o --output --diff-program",
    "diff3": "--diff-program",
    "tcpdump": "-zwW --postrotate-command",
    "exiftool": "ANY -if* -config* -@* -use*",
    "cowsay cowthink": "ANY -f",
    "enscript": "ANY -I --filter",
    "pidstat": "ANY -e",
    "facter": "ANY --custom-dir --external-dir",
    "sqlmap": "ANY --eval --os-*",
    "gem": "ANY -e --editor",
    "ugrep ug": "ANY --filter* --pager* --view*",
    "pygmentize": "ANY -x",
    "code": "ANY --install-extension --extensions-dir",
    "ansible-playbook": "ANY -M --module-path --vault-id --become-password-file "
    "--connection-password-file --vault-password-file --ssh-common-args --ssh-extra-args "
    "--scp-extra-args --sftp-extra-args",
    "php": "ANY -z*",
    "ninja": "ANY -f",
    "clang-tidy": "ANY -load* --load*",
    "hg": "-e --config --ssh --remotecmd",
    "jj": "ANY --config --config-file --config-toml",
    "svn": "--config-option --editor-cmd --diff-cmd --diff3-cmd --config-dir",
    "javac": "-processor* -J* -Xplugin* @* --processor*",
    "npm": _NPM,
    "npx": f"-c --call {_NPM}",
    "pnpm pnpx": "ANY --script-shell --userconfig --globalconfig --config.* --pnpmfile --global-pnpmfile",
    "yarn": "ANY --script-shell --use-yarnrc*",
    "cargo": "--config",
    "gcc g++ cc clang emcc em++": "-wrapper* --wrapper* -plugin* --plugin* -fplugin* -fpass-plugin* "
    "-iplugindir* -ccc-* --ccc-* -mllvm=-load* -B* -specs* --specs* @* -fuse-ld=/* -fuse-ld=.* "
    "--ld-path* -load* -add-plugin* "
    "--gcc-toolchain* -gcc-toolchain* --config* -Wl,-plugin* -Wl,--plugin* -Wl,@* -Wa,@*",
    "ld gold lld ld.lld ld.gold ld.bfd as ar nm ranlib objdump objcopy strip size": "ANY -plugin* "
    "--plugin* @*",
    "rustc rustdoc": "ANY @* -Z* --sysroot*",
    "tex latex pdftex pdflatex xetex xelatex luatex lualatex etex pdfetex platex uplatex ptex uptex "
    "dvilualatex dviluatex luahbtex lualatex-dev pdflatex-dev xelatex-dev context texlua": "ANY "
    "--shell-escape --enable-write18 --shell-restricted --cnf-line --luaonly --fmt --ini "
    "-shell-escape* -enable-write18* -shell-restricted* -cnf-line* -lua* -fmt* -ini*",
    "latexmk": "-pdflatex* -latex* -xelatex=* -lualatex=* -usepretex* -shell-escape* --shell-escape*",
    "tectonic": "ANY -Z*",
    "openssl": "ANY -WWW* -HTTP* -engine* --engine* -provider* --provider* -config* --config*",
    "ssh-keygen": "ANY -Dw",
    "ssh-add": "ANY -sS",
    "gpg gpg2 gpgv": "ANY --photo-viewer --exec-path --agent-program --dirmngr-program --options "
    "--load-extension --keyserver-options --pinentry-program --gpgconf-program",
    "pylint": "ANY --init-hook --load-plugins",
    "mypy dmypy": "ANY --python-executable",
    "pytest py.test": "ANY --basetemp* --pdbcls* --pastebin* --tx* --rsyncdir* --px*",
    "tox": "ANY -x* --override*",
    "rake": "ANY -eEpr --execute-print --execute-continue --require",
    "prove": "ANY -eP --exec --source",
    "mvn mvnw": "ANY -Dexec.* -Dmaven.ext.class.path*",
    "gradle gradlew": "ANY -I* --init-script",
    "ant": "ANY -lib* -logger* -listener* -inputhandler*",
    "helm": "ANY --post-renderer*",
    "bazel bazelisk blaze": "ANY --run_under* --workspace_status_command* --shell_executable* --bazelrc* "
    "--server_javabase* --host_jvm_args* --override_*",
    "javadoc": "ANY -doclet* -taglet* -J* @* --doclet*",
    "kotlinc scalac": "ANY -Xplugin* -J* @*",
    "nmap": "ANY --script --datadir",
    "tshark dumpcap": "ANY -Xw",
    "duckdb": "ANY -cmd* -init* -unsigned*",
    "mysql mariadb": "ANY --pager --tee --plugin-dir --init-command --defaults-file "
    "--defaults-extra-file",
    "xmllint": "ANY --shell",
    "convert magick mogrify identify": "ANY @*",
    "nvcc": "ANY -ccbin* --compiler-bindir* --options-file* -optf*",
    "swiftc": "ANY @* -load-plugin* -tools-directory* -use-ld* -ld-path*",
    "ghc": "ANY @* -pgm* -e*",
    "cabal": "ANY -w --with-*",
    "ocamlc ocamlopt ocamlfind": "ANY -pp* -cc*",
    "protoc": "ANY @* --plugin*",
    "meson": "ANY --native-file* --cross-file* --wrap* --gdb-path* devenv*",
    "ctest": "ANY -S* --script* --build-and-test* --build-makeprogram* --test-command* "
    "--overwrite*",
    "dotnet msbuild": "ANY @* -logger:* /logger:* -l:* /l:*",
    "aria2c": "ANY --on-* --conf-path*",
    "yt-dlp youtube-dl": "ANY --exec* --config-location* --postprocessor-args* --downloader* "
    "--netrc-cmd*",
    "rclone restic": "ANY --password-command* --config*",
    "lynx": "ANY -cfg* -editor*",
    "gnuplot": "ANY -e*",
    "fzf sk peco": "ANY --preview* --bind* --exec*",
    "busctl systemctl loginctl": "ANY --address* --host -H",
    "ssh-copy-id ssh-keyscan sshfs": "ANY -oFf",
    "mail mailx": "ANY -S --exec*",
    "just": "ANY -ec --command --shell --shell-arg --chooser --edit",
    "unison": "ANY -sshcmd* -rshcmd* -servercmd*",
    "java": "ANY -agentpath* -XX:OnError* -XX:OnOutOfMemoryError* -XX:Flags* @*",
    "mpv": "ANY --script* --input-conf* --config-dir*",
    "scrot": "ANY -e --exec",
    "nginx": "ANY -g",
    "apache2ctl httpd": "ANY -cC",
    "kustomize": "ANY --enable-exec --enable-alpha-plugins --helm-command",
    "dnf yum": "ANY -c --config --setopt=plugin*",
    "debugfs mlr sqlcmd clickhouse clickhouse-client clickhouse-local smbclient sbt nx rtorrent "
    "nix nix-build nix-instantiate glab restic csvtool": "ANY",
    "psql yq ffmpeg ffprobe gh gs sox": "ANY",
    "go": "-exec* -toolexec* -vettool* --exec* --toolexec* --vettool* -modfile* -overlay* -gccgoflags* "
    "--gccgoflags*",
    "wget": "-e --execute --use-askpass --config",
    "ctags": "-o --options --output",
    "history": "-anrwsp",
    "mapfile readarray": "-C",
    "xxd": "-r",
    "file": "-Cm --compile --magic-file",
    "pip pip3": "--python --editor",
    "install": "--strip-program",
    "dpkg": "-i --install --unpack --configure --pre-invoke --post-invoke",
    "apt apt-get": "-o --option --config-file",
    "jq": "ANY -L --from-file*",
    "curl": "-K --config --engine",
    "shuf iconv": "-o --output",
    "bat batcat": "--pager --config-file --diagnostic",
    "pandoc": "-FLd --filter --lua-filter --defaults --data-dir --pdf-engine --extract-media",
    "rpm rpmquery rpmverify": "-ED --eval --define --pipe --load --macros --rcfile --root",
    "rpmbuild": "-ED --eval --define --load --macros --rcfile",
    "make gmake": "-EfI --eval --file --makefile --include-dir .SHELLFLAGS*",
    "sqlite3": "ALL",
    "cmake": "ANY --install -E* -P* -C* --toolchain*",
}
_SQLITE = re.compile(
    r"^\s*\.(?!(?:tables|schema|fullschema|dump|indexes|indices|databases|headers?|mode|help|show)\b)|-cmd|-init|^-A|--?archive|writefile|readfile|fsdir|zipfile|load_extension|fts3_tokenizer"
    r"|\bedit\b(?:\W|/\*.*?\*/|--[^\n]*\n)*\(|\bvacuum\b.*\binto\b|\battach\b",
    re.MULTILINE | re.IGNORECASE | re.DOTALL,
)
# A backslash command (with -c it is alone) other than those that show something; backticks run one too.
_PSQL = re.compile(
    r"^(?:-\w*c|--com\w*=)?\s*\\(?:(?!(?:d\w*|l|dt|x|timing|conninfo|z|\?|h|encoding|echo)[+S]*(?=\s|$))|.*`)"
    r"|\balter\s+system\b|\b(?:plpython\w*u|plperlu|plsh)\b|^\s*(?:-\w*c)?\s*load\s+'|\bcopy\b(?!(?:(?!/\*|--)[^;'$])*\b(?:to|from)\s+(?:stdin|stdout)\b)"
    r"|^(?:-\w*[oL]|--output=)?\||\bpg_(?:read|ls|write|file)_\w+|\blo_(?:im|ex)port\b",
    re.IGNORECASE | re.DOTALL,
)
_MYSQL = re.compile(
    r"\\[!.TPeE]|^\s*(?:system|source|tee|pager|edit)\b|\binto\b.*\b(?:out|dump)file\b|\bload_file\b"
    r"|\bload\s+data\b",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_DUCKDB = re.compile(
    r"^\s*\.|\bcopy\b|\bexport\b|\battach\b|\binstall\b|\bload\b|\bread_\w+\s*\(|\bpragma\b",
    re.IGNORECASE | re.MULTILINE,
)
# Options of rustc by which other programs run, behind -C and in the arguments of cargo rustc.
_RUSTC = re.compile(
    r"^(?:-C\s*|--codegen=)?(?:linker|linker-flavor|link-args?|(?:pre|post|late)-link-args?|ar|llvm-args)="
    r"|^--target=.*\.json$|^[^-].*\.json$|=.*\.(?:so|dylib|dll)$"
)
# Settings of npm that ``npm config set`` keeps.
_NPM_SETTINGS = re.compile(
    r"^(?:(?:script-shell|node-options|userconfig|globalconfig|onload-script|init-module)(?:=|$)|git=)"
)
_CARGO = re.compile(
    r"^(?:-C\s*|--codegen=)?(?:linker|(?:pre-|post-|late-)?link-args?|ar)=|^--target=.*\.json$"
)
_PATTERNS = {
    "sqlite3": _SQLITE,
    "duckdb": _DUCKDB,
    "psql": _PSQL,
    "mysql mariadb": _MYSQL,
    "rustc rustdoc": _RUSTC,
    "cargo": _CARGO,
    "npm pnpm yarn": _NPM_SETTINGS,
    "latexmk": re.compile(r"^-[er]$"),
    "openssl": re.compile(r"^engine$|\.(?:so|dylib|dll)\b|SO_PATH"),
    "go": re.compile(r"-extld(?:[\s=\"']|$)|-extldflags.*(?:\s-B|-wrapper|-plugin|fuse-ld=[./])"),
    "gh glab": re.compile(r"^(?:alias|extensions?|ext|config)$"),
    "mlr": re.compile(
        r"\b(?:system|exec)\s*\(|\b(?:tee|emit\w*|print|dump)\b.*[>|]|^(?:tee|split)$"
    ),
    "clickhouse clickhouse-client clickhouse-local": re.compile(
        r"\b(?:executable|file|url|s3|hdfs)\s*\(|\binto\s+outfile\b", re.IGNORECASE
    ),
    "sqlcmd": re.compile(
        r"^\s*:?(?:!!|:(?:out|error|perftrace|r)\b)", re.MULTILINE | re.IGNORECASE
    ),
    "debugfs smbclient": re.compile(r"^\s*!|;\s*!|^-w|^(?:dump|rdump|write|put|get|mget|mput)\b"),
    "sbt": re.compile(r"^[!<]|\beval\b|\"\s*\.!|^-sbt-jar|^-java-home"),
    "nx": re.compile(r"run-commands"),
    "rtorrent": re.compile(r"execute|^import="),
    "nix nix-build nix-instantiate": re.compile(r"allow-unsafe"),
    "restic": re.compile(r"sftp\.command"),
    "csvtool": re.compile(r"^call$"),
    "mvn mvnw": re.compile(
        r"^exec:exec$|exec-maven-plugin:(?:.*:)?exec$|^-Djvm=|^-Dmaven\.(?:home|multi)|^-DargLine=.*(?:agent|@|:On)"
        r"|^groovy:|^wagon:"
    ),
    "java": re.compile(r"^-agentlib:.*(?:launch|onthrow|onuncaught)="),
    "php": re.compile(r"^(?:-d)?(?:(?:zend_)?extension|auto_\w+_file|sendmail_path|mail\.log)="),
    "dotnet msbuild": re.compile(
        r"^[-/]p(?:roperty)?:.*(?:(?:Pre|Post)\w*(?:Build|Link|Compile)\w*|Custom(?:Before|After)\w*)=",
        re.IGNORECASE,
    ),
    "pandoc": re.compile(r"\.lua$"),
    "gs": re.compile(r"%pipe|NOSAFER"),
    "sox": re.compile(r"^\|"),
    "curl": re.compile(r"^--proto-d|^--(?:abstract-)?unix|%output\{"),
    "yq": re.compile(r"\bload(?:_\w+)?\s*\("),
    "convert magick mogrify identify": re.compile(r"^\w+:@|^(?:msl|ephemeral):|^\|"),
    "ffmpeg ffprobe": re.compile(r"^-protocol_whitelist|\bconcat:|\bsubfile[,:]"),
}
_PATTERN_OF = by_name(_PATTERNS)
RISKY = {name: Options.of(text, _PATTERN_OF.get(name)) for name, text in by_name(_RISKY).items()}


class CommandReader(NamedTuple):
    """A program that runs commands of its own, and so programs, from its input."""

    option: re.Pattern[str]  # not with such an option
    valued: frozenset[str]  # options with a value
    operands: int  # nor with so many operands
    given_by: str  # the option whose value it runs; "" for an operand


_COMMAND_READERS = {
    "sqlite3": CommandReader(
        re.compile(r"--?(?:version|help)"),
        names("-separator -nullvalue -newline -maxsize -mmap -vfs -heap"),
        2,
        "",
    ),
    "duckdb": CommandReader(
        re.compile(r"-[cs]|--?(?:version|help)"), names("-separator -nullvalue -newline"), 2, "-c"
    ),
    "psql": CommandReader(
        re.compile(r"-[AtXqaebEnxSsz01w]*[cfl].*|-V|--(?:com|fi|li|ve|he).*"), names(""), 9, "-c"
    ),
    "mysql mariadb": CommandReader(
        re.compile(r"-[sNBtHrvn]*e.*|-V|--(?:exec|vers|help).*"), names(""), 9, "-e"
    ),
}
COMMAND_READERS = by_name(_COMMAND_READERS)
# gcc by its other names: x86_64-linux-gnu-gcc-12, clang++
_COMPILERS = re.compile(
    r"(?:.*-)?(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cpp|gfortran|c[89]9)(?:-[0-9.]+)?"
)
_COMPILER_ENDS = (*"0123456789", "cc", "++", "clang", "cpp", "gfortran")


def compiles(program: str) -> bool:
    """True for gcc, clang and their like, by any name."""
    return program.endswith(_COMPILER_ENDS) and _COMPILERS.fullmatch(program) is not None


# They run the scripts of a project: by which option, of a project in another folder.
_PROJECT_OPTIONS = {
    "npm pnpm yarn bun make gmake cargo uv poetry go hatch pdm pipenv meson ctest": "-C --prefix "
    "--workspace --cwd --dir --directory --project --manifest-path --path --test-dir",
    "pytest py.test": "-c --rootdir --confcutdir --config-file",
    "eslint jest vitest mocha webpack vite rollup stylelint pylint flake8 phpunit rspec "
    "playwright cypress ava nyc storybook deno dotnet swift stack cabal": "-c -f -r -R -p -b -I --config "
    "--format --root --rootDir --rulesdir --rules-dir --parser --plugin --resolve-plugins-relative-to "
    "--require --file --reporter --reporters --runner --testRunner --testEnvironment --resolver --preset "
    "--globalSetup --globalTeardown --setupFiles --setupFilesAfterEnv --extends --rcfile --append-config "
    "--bootstrap --configuration --prepend --include-path --default-path "
    "--cwd --preload --import --project --project-file --test-adapter-path --stack-yaml --package-path "
    "--with-compiler",
    "gradle gradlew mvn mvnw just task rake ninja tox nox composer": "-C -f -b -P -p -c -d -g --file "
    "--justfile --rakefile --build-file --project-dir --taskfile --dir --directory --working-directory "
    "--working-dir --project-prop --gradle-user-home --settings-file",
}
PROJECT_OPTIONS = {name: names(text) for name, text in by_name(_PROJECT_OPTIONS).items()}

# Options whose value most programs run, and programs whose options of that kind concern other machines.
RUNS_VALUE = re.compile(
    r"--(?!no-)[\w-]*(?:-hook|-cmd|-command|-program|remote-schema|rsh|pager|editor|plugin-dir)(?:=.*)?"
)
ELSEWHERE = names("docker podman nerdctl docker-compose kubectl oc gcloud az aws fly flyctl git gh")

# Patterns for a program's joined arguments; with a match it runs or writes what they say.
_USES = {
    "npm": r"^(?:(?:c|config) )?set (?:-\S+ )*(?:git|editor|viewer|browser|prefix|shell|python|node-gyp)\b"
    r"|^(?:c|config) edit|^edit\b|^pkg set .*\bscripts[.\[]|^(?:exec|x) (?:.* )?(?:-c|--call?)(?:[ =]|$)",
    "yarn": r"^set version [./~]|^config set (?:-\S+ )*(?:yarnPath|plugins)",
    "bundle bundler": r"^open\b",
    "service": r"^\S*/",
    "jj": r"^(?:-\S+ )*util exec",
    "composer": r"^config .*(?:\bscripts| -e\b| --editor)|^config -e",
    "cargo": r"^watch .*(?:-s|--shell)\b",
    "redis-cli": r"(?i)\bconfig set (?:dir|dbfilename)\b|\bmodule load\b|\bslaveof\b|\breplicaof\b",
    "docker podman nerdctl": r"(?:(?:^| )(?:-[A-Za-z]*v|--volume)[ =]?|[ ,=](?:source|src)=)(?:"
    r"/(?:etc|root|var|usr|bin|sbin|proc|sys|dev|boot|lib|run)?(?=[:/, ]|$)"
    r"|/home(?:/[^/:, ]*)?/?(?=[:, ]|$)"
    r"|/(?:[^:, ]*/)?\.|~|\$HOME)|docker\.sock"
    r"|(?:^| )--device[ =]/dev/(?!(?:dri|snd|kvm)\b)"
    r"|(?:^| )--(?:runtime|conmon)[= ][./]|(?:^| )--(?:hooks-dir|rootfs)\b"
    r"|(?:^| )--(?:privileged|cap-add|security-opt|volumes-from)\b|--(?:pid|userns|ipc)[= ]host\b"
    r"|^(?:-\S+ (?:[^-\s]\S* )?)*(?:-H|-c|--host|--config|--context|--connection)\b",
    "kubectl oc": r"(?:^| )--kubeconf|^(?:(?! -- ).)*(?:(?:^| )(?:--server\b|-s[ =h]|--enable-exec"
    r"|--helm-command)|\bset-credentials .*--exec-)",
    "gh": r"^(?:codespace|cs) (?:ssh|cp|logs) .*-o|^(?:repo|gist) .*-- (?:.* )?(?:-[cu]|--(?:c|u|te|se))",
    "ant": r"(?:^| )-(?:buildfile|file|f)[ =](?:[/~$]|\.\.)|(?:^| )-Dbuild\.compiler",
    "prettier": r"(?:^| )--plugin[ =](?:[/~]|\.\.)",
    "terraform tofu": r"(?:^| )-(?:chdir|from-module)[= ](?:[/~$]|\.\.)|(?:^| )-plugin-dir",
    "helm": r"^plugin (?:install|update)\b",
    "gcloud": r"(?:^| )--(?:ssh|scp)-flag",
    "aws": r"^(?:-\S+ )*configure set (?:\S+\.)?credential_process",
    "tar bsdtar gtar": r"^(?!.*--force-local)(?:.*(?<!form) )?(?:--file=)?[\w.@-]*[A-Za-z][\w.@-]*:",
    "gradle gradlew": r"(?:^| )-Dorg\.gradle\.(?:java\.home|jvmargs=.*(?:agent|@|class|boot|OnE|OnO))",
    "cmake": r"(?:^|(?<!-B) |(?:^| )(?:-[SH]=?|--build=))(?:[/~]|\$\{?HOME\b)"
    r"|^--build .* -- (?:.* )?(?:-[A-Za-z]*[fCEI]|--(?:f|m|e|d|i)|[A-Za-z_.]+=)",
}
USES = {name: re.compile(pattern) for name, pattern in by_name(_USES).items()}

NPM_RUNS = names("run run-script rum urn")
NPX_FLAGS = names("-y --yes --no --no-install -q --quiet")
AWK_HARMLESS = re.compile(r"\|\||> ?\"/dev/stderr\"(?=[ \t]*(?:[;}\n]|\Z))")
AWK_RISKY = re.compile(r"system|\bARG[VC]\b|[|@`]|getline|close|include|load|print.*>", re.DOTALL)
# In a script of awk: a text, a comment, a division, or a regular expression behind an operator.
_AWK_DATA = re.compile(
    r"\"(?:[^\"\\\n]|\\.)*\"|#[^\n]*"
    r"|(?:(?!(?:print|printf|return|in|case|else|do|getline|exit|delete)\b)\b\w+|\])[ \t]*/"
    r"|(?P<before>^|[{};(,!~&|\n])[ \t]*/(?:[^/\\\n\[]|\\.|\[\^?[^\]/\\\n]+\])+/"
)


def awk_code(script: str) -> str:
    """Return a script of awk without what is harmless in it: texts, regular expressions, ``||``."""
    code = AWK_HARMLESS.sub("", script)
    data = _AWK_DATA.sub(lambda found: f'{found["before"] or ""}""', code)
    return code if "/" in data else data


# --- git (https://git-scm.com/docs).

GIT_GLOBAL = names("""
    --no-pager -P --no-optional-locks --version -v --help -h --literal-pathspecs --glob-pathspecs
    --noglob-pathspecs --icase-pathspecs --no-replace-objects --no-lazy-fetch""")
GIT_GLOBAL_VALUED = names("""
    -C -c --git-dir --work-tree --namespace --exec-path --config-env --super-prefix --attr-source
    --list-cmds""")
# Settings for one command (``git -c NAME=VALUE``) by which git neither runs nor writes anything else.
GIT_SETTINGS = re.compile(
    r"(?i:color\.[a-z.]+|column\.ui)=(?:always|never|auto|true|false)"
    r"|(?i:core\.(?:quotepath|filemode|autocrlf|ignorecase|longpaths|precomposeunicode)|advice\.[a-z]+"
    r"|(?:commit|tag)\.gpgsign|log\.showsignature|diff\.(?:noprefix|mnemonicprefix|renames)|pull\.(?:rebase|ff)"
    r"|fetch\.prune|rebase\.(?:autostash|autosquash)|rerere\.enabled)=(?:false|off|no|0|input)"
    r"|(?i:core\.quotepath|fetch\.prune|pull\.(?:rebase|ff)|rebase\.auto(?:stash|squash)|diff\.renames)=(?:true|on|only)"
    r"|(?i:(?:core\.)?pager(?:\.[a-z]+)?)=(?:cat|false)?|(?i:core|sequence)\.editor=(?:true|:)"
    r"|(?i:user)\.name=[\w .-]*|(?i:user)\.email=[\w.@+-]*|(?i:init\.defaultbranch)=[\w-]+"
    r"|(?i:gc\.auto|diff\.context|diff\.renamelimit|core\.abbrev|protocol\.version)=[0-9]+"
    r"|(?i:merge\.conflictstyle|diff\.algorithm|log\.date)=[a-z0-9-]+"
)
# Subcommands that can run any command.
GIT_RUNS = names("""
    checkout-index send-pack http-push difftool mergetool filter-branch filter-repo daemon instaweb
    send-email p4 svn cvsserver credential upload-pack receive-pack upload-archive hook for-each-repo
    maintenance gui citool gitk shell http-backend fast-import quiltimport imap-send cvsimport
    archimport scalar sh-setup merge-index merge-one-file sh-i18n""")
# Parts of other commands (submodule--helper foreach, difftool--helper) and of transports.
GIT_INTERNAL = re.compile(r".*--.*|remote-.*|credential-.*|mergetool-.*|gui-.*|citool-.*")
# Of these no option runs anything, so what a variable or a glob becomes in them does not matter.
_GIT_HARMLESS = names("""
    add commit status checkout switch branch tag rm mv restore reset merge cherry-pick revert rev-parse
    worktree describe ls-files""")
GIT_CONFIG_READS = names("get list --get --list -l --get-all --get-regexp --get-urlmatch")
# They say where ``git config`` looks, and how it prints what it finds.
GIT_CONFIG_HARMLESS = re.compile(
    r"--(?:global|local|system|worktree|show-origin|show-scope|null|name-only|includes|no-includes|bool|int"
    r"|path|type=[a-z-]+)|-z"
)
_GIT_OPTIONS = Options(
    long=names("""
        upload-pack receive-pack exec output ext-diff textconv open-files-in-pager template config extcmd
        filters exec-path output-directory config-env upload-archive strategy"""),
    pattern=re.compile(r"(?:ext|fd)::", re.IGNORECASE),  # an URL that runs a command
)
_GIT_LETTERS = _letters("rebase:xs grep:O clone:uc ls-remote:u format-patch:o am:i merge:s pull:s")
_GIT_LONG = {"update-index": ("cacheinfo", "index-info"), "apply": ("unsafe-paths",)}
# Other names of the same: deny and ask rules see both.
GIT_SYNONYMS = {
    "send-pack": "push",
    "http-push": "push",
    "subtree push": "push",
    "svn dcommit": "push",
    "p4 submit": "push",
    "annex sync": "push",
    "lfs push": "push",
    "fetch-pack": "fetch",
    "stage": "add",
    "commit-tree": "commit",
    "checkout-index": "checkout",
    "init-db": "init",
    "annotate": "blame",
    "whatchanged": "log",
}
# The same of other programs, by program: a subcommand and its other names.
_OTHER_NAMES = {
    "npm pnpm": "install:i,in,ins,inst,insta,instal,isnt,isnta,isntal,isntall,add,it,cit,"
    "sit,install-test,install-ci-test,clean-install-test run:run-script,rum,urn "
    "uninstall:un,unlink,remove,rm,r exec:x test:t,tst,tes,it,cit ci:clean-install,ic,install-clean,cit,"
    "sit,install-ci-test,clean-install-test "
    "update:up,upgrade,udpate publish:pub,publ,publi,publis unpublish:unp,unpub config:c",
    "helm": "uninstall:un,del,delete install:i upgrade:up",
    "cargo": "build:b check:c run:r test:t doc:d remove:rm",
    "docker podman nerdctl": "rm:container~rm run:container~run,create,container~create "
    "exec:container~exec stop:container~stop kill:container~kill cp:container~cp start:container~start "
    "rmi:image~rm build:image~build,buildx~build push:image~push pull:image~pull prune:container~prune",
}
OTHER_NAMES = {
    program: [
        (other.replace("~", " "), name)
        for name, _, others in (each.partition(":") for each in text.split())
        for other in others.split(",")
    ]
    for program, text in by_name(_OTHER_NAMES).items()
} | {"git": list(GIT_SYNONYMS.items())}


def git_options(name: str) -> Options:
    letters = _GIT_LETTERS.get(name, "")
    long = (*_GIT_OPTIONS.long, *_GIT_LONG.get(name, ()))
    return replace(_GIT_OPTIONS, letters=letters, long=long, any_value=name in _GIT_HARMLESS)


# Git takes the start of a long option for it (https://git-scm.com/docs/gitcli); of these the start is
# read as the whole.
GIT_LONG = sorted(
    names("""
    abort all amend delete discard-changes force force-create force-with-lease hard keep merge mirror
    mixed move no-verify pathspec-from-file prune rebase skip soft tags""")
)
# Letters that take the rest of their word for a value.
GIT_VALUED = _letters(
    "commit:mFCctuS tag:mFun branch:u merge:mFXsS grep:efOmABC log:nLSG diff:USGO clean:e"
)

# --- Downloads of wget. With other options than these the file's name is not known.

WGET_NO_FILE = names("-O --output-document --spider --version --help -V -h")
WGET_PLAIN = names("""
    -q -n -v -d -c --no-verbose --quiet --continue --show-progress --tries --timeout -t -T --header
    --post-data --post-file --body-file --body-data --method --load-cookies --user-agent -U""")

# --- Options that have several names, for deny and ask rules.

_SAME_OPTIONS = {
    "sed gsed": "-i,--in-place",
    "npm pnpm": "-g,--global,--location=global",
    "base64 base32": "-d,-D,--decode",
    "node nodejs": "-e,-p,--eval,--print",
    "kill": "-9,-KILL,-SIGKILL",
    "docker podman": "-d,--detach -v,--volume",
    "curl": "-k,--insecure -X,--request",
    "chmod": "-R,--recursive",
}
SAME_OPTIONS = {
    program: [group.split(",") for group in text.split()]
    for program, text in by_name(_SAME_OPTIONS).items()
}
# Programs that take the arguments of another, and deny and ask rules about it.
LIKE = {
    name: program
    for program, others in {
        "docker": "podman nerdctl",
        "git": "hub",
        "terraform": "tofu opentofu",
        "npx": "bunx pnpx",
        "sed": "gsed",
        "make": "gmake",
        "tar": "gtar bsdtar",
        "node": "nodejs",
        "yarn": "yarnpkg",
        "mysql": "mariadb",
        "kubectl": "oc",
    }.items()
    for name in others.split()
}
# What follows their first operand is not theirs.
PASSES_ON = re.compile(
    r"(?:python|pypy|ruby|perl|php|node|lua|deno|bun)[0-9.]*|npx|bunx|uvx|(?:ba|da|z|k)?sh|env|xargs"
)
# Each of their operands is something to do.
BUILDERS = names("make gmake just rake rails gradle gradlew mvn ninja task")

# --- Short options that deny and ask rules see in every order.

BUNDLED = names("rm rmdir cp mv ln chmod chown chgrp mkdir")
LETTERS = {"--recursive": "r", "--force": "f", "--verbose": "v", "--interactive": "i"}
CAPITAL_RECURSIVE = names("chmod chown chgrp")  # -r is not --recursive there
