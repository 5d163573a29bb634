"""Paths in the arguments of a program, where no table says what the program does with them.

A denial of ``Read(.env)`` stops every program given ``.env``, except those that look at names only.
Guessing is safe here, because only deny and ask rules use these paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from runner.permissions.shell.arguments import executed_by_find
from runner.permissions.shell.files import (
    ANY_READ,
    LEFT_OUT,
    Below,
    decoded,
    literal,
    matching,
    pieces,
)
from runner.permissions.shell.programs import HIDING, SCRIPTED, WRAPPERS, compiles
from runner.permissions.shell.usages import usage_of
from runner.permissions.shell.words import Word, names

_MOST = 1000  # paths of one command
_LONGEST = 20_000  # characters of an argument
# Programs that look at names, not into files.
_NAMING = names("""
    echo printf ls dir vdir stat test [ find fd fdfind basename dirname realpath readlink cd
    pushd popd which whereis type command hash mkdir rmdir rm unlink touch chmod chown chgrp
    chattr truncate shred mknod mkfifo setfacl du df tree file export unset read declare typeset
    local readonly set shopt kill pkill pgrep killall trap sleep pwd true false : alias mktemp
    seq date lsof fuser namei exit return shift umask ulimit wait jobs getopts let expr tee
    sponge printenv env uname id whoami hostname ping ln link rename prename""")
# Programs whose reads are all in a table.
_KNOWN = names("curl wget wget2 http https xh xhs httpie git dig host nslookup")
# Programs whose operands name actions and things, unless they look like paths.
_SUBCOMMANDS = names("""
    docker podman nerdctl kubectl oc helm gh glab aws gcloud az npm yarn pnpm bun cargo go
    terraform tofu make gmake just task systemctl journalctl brew apt apt-get pip pip3 uv poetry
    vault consul gem bundle rails rake mvn gradle dotnet composer mix flutter""")
_INTERPRETERS = re.compile(
    r"(?:python|pypy|node|nodejs|ruby|perl|php|lua|luajit|deno|bun|tclsh|Rscript|R|julia|osascript|elixir|groovy"
    r"|scala|ghc|runghc|stack|swift|mix|iex|mongo(?:sh)?|tsx|ts-node|zx|coffee|pyp|blender|jshell|dart|zig|[a-z]*tex|r?vim?|nvim|g?view|vimdiff|ex|red?|emacs|octave|guile|sbcl|racket|gnuplot)[0-9.]*"
)
# They take queries in which a file may be named; a name without a dot or slash is that of a table.
_QUERIED = names("""
    sqlite3 sqlite duckdb psql mysql mariadb clickhouse clickhouse-local q textql dsq csvsql sqlcmd usql
    jsonnet gdb ffmpeg ffprobe convert magick xmllint terraform tofu dotnet rustc sbt
    chezmoi cqlsh""")
# They take names of files, or targets, from their input.
_TAKES_NAMES = names("xargs read mapfile readarray make gmake")
_READS_INPUT = _QUERIED | HIDING
_MAY_RUN = _READS_INPUT.union(SCRIPTED, WRAPPERS)  # a script may be in any argument
# A name that begins with a dot, as a pattern that a program may look up itself.
_HIDDEN_GLOB = re.compile(r"(?:.*[/=])?\.\w+[*?\[][^/\s]*")
_LISTS_HIDDEN = {
    **dict.fromkeys(names("ls eza exa lsd tree du"), re.compile(r"-\w*[aA]\w*|--al.*")),
    "echo": re.compile(r".*\\[^nt].*"),
    "fd": re.compile(r"-\w*[Hu]\w*|--hidden|--unrestricted"),
    "rg": re.compile(r"-\w*[.u]+|--hidden|--unrestricted"),
    "git": re.compile(r"-\w*o\w*|--others|--ignored.*"),
}
_NOT_HIDDEN = re.compile(r"(?:-not|!) -\w+ (?:\*/|\./)?\.\*")  # in the arguments of find
_DECODES = names("rev base64 base32 xxd")
_PLAIN_FORMAT = re.compile(r"(?:[^%\\]|\\[nt0](?!\d))*|(?:%s(?:\\[nt0](?!\d)|\s))*(?:%s)?")
_BLANK = re.compile(r"\s")
_CODE = re.compile(r"[\s'\"({\\[]")
_TEXT = re.compile(r"([\"'])((?:(?!\1)[^\\])+)\1")
_TEXT_TOKEN = re.compile(r"[^\s'\"`(){}\[\],;=<>|&]+")
_WRITES = re.compile(
    r"['\"](?:[wxa]b?\+?|rb?\+)['\"]|writ|append|unlink|remove|rename|replace|rmtree|rmdir|rmSync|chmod|touch|truncate|copy"
    r"|move|mkdir|link|save|dump|delete|\brm\b|shutil|put|\$F|>|output|open\s*\(?\s*F"
)
# In the names of options, in lower case.
_OUTPUT = re.compile(
    "out|dest|save|dump|record|report|cache|log|prefix|write|target|artifact|dist|dir|cwd|junit|store"
    "|profile|trace"
)
_INPUT = re.compile("root|test|source|src|include|project|work|config|input|loglevel")
_OPTION = re.compile(r"-[\w.-]*")
_BARE = re.compile(r"(?:--)?[A-Za-z0-9_][A-Za-z0-9_./-]{0,999}")
_NO_PATH = re.compile(r"\s|(?<!file)(?<!fileb)://")
_SHORT_WITH_VALUE = re.compile(r"-[A-Za-z].")
_NAMES_FILE = re.compile(r"--[a-z-]*(?:file|from|input|include|list)")
# The value of these options is a command.
_COMMAND = re.compile(r"-[cC]|--(?:command|cmd|exec|run|scripts|parameters)")
LISTED = re.compile(r"['\"]\s*,\s*\[?\s*['\"]|[\[\]]")  # ``["rm", "x"]`` is ``rm x``
_UNKNOWN = re.compile(r"[$`…]|\{\}")


def candidates(word: Word) -> Iterator[str]:
    """Yield the paths that a word may be or contain; none for a text with blanks and for an address."""
    if word.exact and _BARE.fullmatch(word.value):  # most words
        yield word.value
        return
    if len(word.value) > _LONGEST or _NO_PATH.search(word.value):
        return
    texts = literal([word]) if word.exact else [*literal([word]), *decoded(word)]
    for text in texts:
        yield from pieces(text)
        if _SHORT_WITH_VALUE.match(text):
            yield text[2:]


@lru_cache(maxsize=1_000)
def is_interpreter(program: str) -> bool:
    """True if a program is an interpreter, which may run code in an argument."""
    return _INTERPRETERS.fullmatch(program) is not None


def scripts(program: str, arguments: Sequence[Word]) -> Iterator[str]:
    """Yield the texts in the arguments of a program that it may run as commands."""
    interprets = is_interpreter(program)
    if program == "git" or (knows_operands(program) and not interprets):
        return
    if not interprets and not any(map(_BLANK.search, (word.value for word in arguments))):
        return
    before = ""
    for word in arguments:
        option, _, given = word.value.partition("=")
        text = given if _COMMAND.fullmatch(option) else word.value
        runs = interprets or program in SCRIPTED or text == given or _COMMAND.fullmatch(before)
        if runs and _BLANK.search(text):
            yield text
            yield from (found[2] for found in _TEXT.finditer(text))
        if interprets and (joined := LISTED.sub(" ", text)) != text:
            yield joined
        before = word.value


def is_unknown(program: str, arguments: Sequence[Word]) -> bool:
    """True if a program may open a file that only the run determines."""
    return program not in _NAMING and any(
        not word.exact and _UNKNOWN.search(word.value + word.source) for word in arguments
    )


def runs_input(line: str, *, names: bool = True) -> bool:
    """True if a line of a script names a program that may run its input as code. With ``names`` also if
    it names one that reads names of files from its input."""
    known = _READS_INPUT | _TAKES_NAMES if names else _READS_INPUT
    called = [word.rpartition("/")[2] for word in re.findall(r"[\w./+-]+", line)]
    return any(is_interpreter(name) or name in known or compiles(name) for name in called)


def inside(text: str) -> tuple[list[str], list[str]]:
    """Return the paths that code may read, and those that it may write."""
    tokens = [each.split("\\")[0] for each in _TEXT_TOKEN.findall(text)]
    tokens += [
        part for each in tokens if re.search("[:@]", each) for part in re.split("[:@]", each)
    ]
    return tokens, tokens if _WRITES.search(text) else []


def listed(program: str, arguments: Sequence[Word]) -> Iterator[Below]:
    """Yield the files whose names a program may print, if it may print names of hidden files or make up
    names."""
    values = [word.value for word in arguments]
    every = _LISTS_HIDDEN.get("fd" if program == "fdfind" else program)
    found = executed_by_find(arguments) if program == "find" else None
    if found is not None and "d" not in values and not _NOT_HIDDEN.search(" ".join(values)):
        for folder in literal(found.starts):
            yield from (Below(folder, name, deep=True, reads=True) for name in found.names)
    elif program == "printf":
        joins = len(values) > 2 and values[0].endswith("%s")
        if values and (joins or not _PLAIN_FORMAT.fullmatch(values[0])):
            yield ANY_READ
    elif program in _DECODES or (every and any(map(every.fullmatch, values))):
        folders = [value for value in values if program == "ls" and value[:1] != "-"]
        for folder in folders or ["."]:
            yield Below(folder, "" if program == "ls" else "**", deep=True, reads=True)


def mentioned(program: str, arguments: Sequence[Word]) -> tuple[list[str], list[str], list[Below]]:
    """Return paths that a program may read, paths that it may write, and globs in its arguments."""
    reads: list[str] = []
    writes: list[str] = []
    interprets = program in _MAY_RUN or is_interpreter(program)
    globs: list[Below] = []
    naming = program in _NAMING
    in_table = knows_operands(program) and program not in _QUERIED
    knows = naming or program in _KNOWN or in_table
    before = ""
    for word in arguments:
        option = word.value if word.value[:1] == "-" else before
        given = option[:1] == "-"
        before = word.value if "=" not in word.value else ""
        if given and LEFT_OUT.match(option):
            continue
        lists = (given and _NAMES_FILE.match(option)) or word.value[:1] == "@"
        if not naming and "." in word.value and _HIDDEN_GLOB.fullmatch(word.value):
            globs.append(matching(word.value.rpartition("=")[2], reads=True))
        named = _OPTION.match(option) if program != "git" else None
        name = named[0].casefold() if named else ""
        outputs = _OUTPUT.search(name) and not _INPUT.search(name)
        found = list(candidates(word)) if lists or outputs or not knows else []
        if not knows:
            bare = program in _SUBCOMMANDS and not given
            reads += [path for path in found if "." in path or "/" in path] if bare else found
        elif lists and not naming:
            reads += found
        if outputs:
            writes += found
        if interprets and _CODE.search(word.value) and len(word.value) <= _LONGEST:
            tables = program in _QUERIED
            for paths, tokens in zip((reads, writes), inside(word.value), strict=True):
                paths += [each for each in tokens if not tables or re.search("[./]", each)]
    return _paths(reads), _paths(writes), globs


@lru_cache(maxsize=1_000)
def knows_operands(program: str) -> bool:
    """True if a table has what a program does with its operands, whatever its options."""
    return any(
        role.places and role.does in ("reads", "copies", "moves", "links") and not role.only
        for role in usage_of(program).roles
    )


def _paths(texts: list[str]) -> list[str]:
    found = dict.fromkeys(text for text in texts if text and text[0] not in "-!" and text != ".")
    return list(found)[:_MOST]
