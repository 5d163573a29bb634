"""Paths in the arguments of a program, where no table says what the program does with them.

A denial of ``Read(.env)`` stops every program given ``.env``, except those that look at names only.
Guessing is safe here, because only deny and ask rules use these paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from runner.permissions.shell.files import LEFT_OUT, decoded, literal, pieces
from runner.permissions.shell.programs import HIDING, SCRIPTED, WRAPPERS
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
    r"|scala|ghc|[a-z]*tex|r?vim?|nvim|g?view|vimdiff|ex|red?|emacs|octave|guile|sbcl|racket|gnuplot)[0-9.]*"
)
# They take queries in which a file may be named; a name without a dot or slash is that of a table.
_QUERIED = names("""
    sqlite3 sqlite duckdb psql mysql mariadb clickhouse clickhouse-local q textql dsq csvsql sqlcmd usql
    jsonnet gdb""")
_TEXT_TOKEN = re.compile(r"[^\s'\"`(){}\[\],;=<>|&]+")
_WRITES = re.compile(
    r"['\"](?:[wxa]b?\+?|rb?\+)['\"]|writ|append|unlink|remove|rename|replace|rmtree|rmdir|rmSync|chmod|touch|truncate|copy"
    r"|move|mkdir|link|save|dump|delete|\brm\b|shutil|put|\$F|>|output|open\s*\(?\s*F"
)
_OUTPUT = re.compile(
    r"-+[\w.-]*(?:out|dest|save|dump|record|report|cache|log|prefix|write|target|artifact|dist|dir|cwd|junit|store"
    r"|profile|trace)",
    re.IGNORECASE,
)
_INPUT = re.compile(
    r"-+[\w.-]*(?:root|test|source|src|include|project|work|config|input|loglevel)", re.I
)
_NO_PATH = re.compile(r"\s|(?<!file)(?<!fileb)://")
_NAMES_FILE = re.compile(r"--[a-z-]*(?:file|from|input|include|list)")
# The value of these options is a command.
_COMMAND = re.compile(r"-[cC]|--(?:command|cmd|exec|run|scripts|parameters)")
_LISTED = re.compile(r"['\"]\s*,\s*['\"]|[\[\]]")  # ``["rm", "x"]`` is ``rm x``
_UNKNOWN = re.compile(r"[$`…]|\{\}")


def candidates(word: Word) -> Iterator[str]:
    """Yield the paths that a word may be or contain; none for a text with blanks and for an address."""
    if len(word.value) > _LONGEST or _NO_PATH.search(word.value):
        return
    texts = literal([word]) if word.exact else [*literal([word]), *decoded(word)]
    for text in texts:
        yield from pieces(text)
        if re.match(r"-[A-Za-z].", text):
            yield text[2:]


def is_interpreter(program: str) -> bool:
    """True if a program is an interpreter, which may run code in an argument."""
    return _INTERPRETERS.fullmatch(program) is not None


def scripts(program: str, arguments: Sequence[Word]) -> Iterator[str]:
    """Yield the texts in the arguments of a program that it may run as commands."""
    interprets = is_interpreter(program)
    if program == "git" or (knows_operands(program) and not interprets):
        return
    before = ""
    for word in arguments:
        option, _, given = word.value.partition("=")
        text = given if _COMMAND.fullmatch(option) else word.value
        runs = interprets or program in SCRIPTED or text == given or _COMMAND.fullmatch(before)
        if runs and " " in text:
            yield text
        if interprets and (joined := _LISTED.sub(" ", text)) != text:
            yield joined
        before = word.value


def is_unknown(program: str, arguments: Sequence[Word]) -> bool:
    """True if a program may open a file that only the run determines."""
    return program not in _NAMING and any(
        not word.exact and _UNKNOWN.search(word.value) for word in arguments
    )


def mentioned(program: str, arguments: Sequence[Word]) -> tuple[list[str], list[str]]:
    """Return the paths that a program may read, and those that it may write."""
    reads: list[str] = []
    writes: list[str] = []
    # Of a program that hides what it runs, a script may be in any argument.
    interprets = is_interpreter(program) or program in HIDING | _QUERIED or program in WRAPPERS
    knows = program in _NAMING | _KNOWN or knows_operands(program)
    before = ""
    for word in arguments:
        found = list(candidates(word))
        option = before if not word.value.startswith("-") else word.value
        given = option.startswith("-")
        before = word.value if "=" not in word.value else ""
        if given and LEFT_OUT.match(option):
            continue
        listed = _NAMES_FILE.match(option) or word.value.startswith("@")
        if knows and program not in _NAMING and listed:
            reads += found
        if not knows:
            bare = program in _SUBCOMMANDS and not given
            reads += [path for path in found if not bare or re.search(r"[./]", path)]
        if program != "git" and given and _OUTPUT.match(option) and not _INPUT.match(option):
            writes += found
        if interprets and re.search(r"[\s'\"({\\]", word.value) and len(word.value) <= _LONGEST:
            tokens = [each.split("\\")[0] for each in _TEXT_TOKEN.findall(word.value)]
            tokens = [each for each in tokens if program not in _QUERIED or re.search("[./]", each)]
            reads += tokens
            writes += tokens if _WRITES.search(word.value) else []
    return _paths(reads), _paths(writes)


def knows_operands(program: str) -> bool:
    """True if a table has what a program does with its operands, whatever its options."""
    return any(
        item in ("*", "$") or item[0].isdigit()
        for role in usage_of(program).roles
        if role.does in ("reads", "copies", "moves", "links") and not role.only
        for item in role.items
    )


def _paths(texts: list[str]) -> list[str]:
    found = dict.fromkeys(text for text in texts if text and text[0] not in "-!" and text != ".")
    return list(found)[:_MOST]
