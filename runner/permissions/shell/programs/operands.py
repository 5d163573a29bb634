"""Which files the arguments of well-known programs name, as far as they are literal.

Collected from the manuals of coreutils, curl and wget. ``writes`` need a rule that allows them;
``reads`` and ``changes`` are only looked at by deny and ask rules, so a guess too many does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.permissions.shell.words import Word, names_in, path_of

_READERS = names_in("""
    cat head tail less more most grep egrep fgrep zgrep rg ag ack sed gsed awk gawk mawk nawk sort wc
    nl strings xxd od hexdump hd base64 base32 basenc tac rev cut uniq diff cmp comm colordiff sdiff
    diff3 paste join fold fmt pr expand unexpand column split csplit jq yq xq bat batcat zcat bzcat
    xzcat zless gzip bzip2 xz zstd md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum
    sum iconv shuf ptx tsort openssl""")
_SCRIPTED = names_in("grep egrep fgrep zgrep rg ag ack sed gsed awk gawk mawk nawk jq yq xq")
_CHANGERS = names_in("""
    rm rmdir unlink mv touch mkdir chmod chown chgrp ln link truncate shred setfacl chattr mkfifo
    mknod gzip bzip2 xz zstd""")
_COPIERS = frozenset(["cp", "mv", "install", "rsync", "ln", "link"])
_NO_FILE = frozenset(["-", "/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"])
_IN_PLACE = re.compile(r"-[nErsuz]*i.*|--i[a-z-]*(?:=.*)?", re.DOTALL)
_SED_SCRIPT = re.compile(r"-[nErsuz]*[ef].*|--(?:e|f)[a-z-]*(?:=.*)?", re.DOTALL)
_CURL_WRITES = names_in("""
    o D c output dump-header cookie-jar trace trace-ascii stderr libcurl etag-save hsts
    alt-svc""")
_CURL_LONG = (*sorted(_CURL_WRITES), "upload-file", "output-dir", "cookie", "data", "form")
_CURL_LETTERS = "AbcCdDeEFHKmoPQrtTuUwxXyYz"
_WGET_LONG = ("output-document", "output-file", "append-output", "input-file", "directory-prefix")
_WGET_LOGS = frozenset(["o", "a", "output-file", "append-output"])
_WGET_PLAIN = names_in("q n v d c no-verbose quiet continue show-progress tries timeout t T header")
_SECOND = {"uniq": "fsw", "xxd": "cglonsR"}  # the second operand is written; letters with a value
_URL = re.compile(r"[^/?#]+/(?:[^?#]*/)?([A-Za-z0-9_.+@%-]+)")


@dataclass(slots=True)
class Files:
    """Paths as ``path_of`` gives them; only ``writes`` has "", for one that is not literal."""

    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


def files_of(program: str, arguments: Sequence[Word]) -> Files | None:
    """The files in the arguments of a program; None when it is not known to use files."""
    writes = _WRITES.get(program)
    if writes is None and program not in _KNOWN:
        return None
    files = Files()
    if writes is not None:
        paths = map(path_of, writes(program, arguments))
        files.writes = [path for path in paths if path not in _NO_FILE]
    if program in _READERS:
        files.reads = list(_literal(_named(arguments, program in _SCRIPTED)))
    if program in _CHANGERS:
        files.changes = list(_literal(_named(arguments, False)))
    if program in _COPIERS:
        _copied(arguments, files)
    if program == "dd":
        files.reads = [w.value[3:] for w in arguments if w.exact and w.value.startswith("if=")]
        files.changes = [w.value[3:] for w in arguments if w.exact and w.value.startswith("of=")]
    if program == "curl":
        files.reads = list(_uploaded(arguments))
    return files


def _literal(words: Iterable[Word]) -> Iterator[str]:
    return (path for path in map(path_of, words) if path and path not in _NO_FILE)


def _named(arguments: Sequence[Word], scripted: bool) -> Iterator[Word]:
    """The operands, and what is joined to an option. The first operand of ``grep`` and its like is no
    file, unless an option has it."""
    given = scripted and any(
        word.value[:2] in ("-e", "-f") or word.value.startswith(("--reg", "--file", "--exp"))
        for word in arguments
    )
    skip, ended = scripted and not given, False
    for word in arguments:
        value = word.value
        if not ended and value == "--":
            ended = True
        elif not ended and value.startswith("-") and value != "-":
            if value.startswith("--") and "=" in value:
                yield _piece(word, value.partition("=")[2])
            elif not value.startswith("--") and len(value) > 2:
                yield _piece(word, value[2:])
        elif skip:
            skip = False
        else:
            yield word


def _copied(arguments: Sequence[Word], files: Files) -> None:
    paths = list(_literal(_named(arguments, False)))
    if len(paths) < 2:
        files.reads += paths
        return
    *sources, target = paths
    files.reads += sources
    files.changes.append(target)
    names = (source.rstrip("/").rpartition("/")[2] for source in sources)
    files.changes += [f"{target.rstrip('/')}/{name}" for name in names if name]


def _piece(word: Word, text: str) -> Word:
    return Word(text, text, word.exact, word.loose)


Given = list[tuple[str, Word | None]]


def _options(
    arguments: Sequence[Word], letters: str, longs: Sequence[str] = ()
) -> tuple[Given, list[Word]]:
    """The options with their values, and the operands. ``letters`` and ``longs`` take a value; a long
    one may be shortened."""
    given: Given = []
    operands: list[Word] = []
    words = iter(arguments)
    for word in words:
        value = word.value
        if value == "--":
            operands += words
        elif value.startswith("--"):
            named, equals, joined = value[2:].partition("=")
            meant = [long for long in longs if long.startswith(named)]
            name = named if named in meant or not meant else meant[0]
            if equals:
                given.append((name, _piece(word, joined)))
            else:
                given.append((name, next(words, None) if meant else None))
        elif value.startswith("-") and value != "-":
            given += _letters(word, letters, words)
        else:
            operands.append(word)
    return given, operands


def _letters(word: Word, valued: str, words: Iterator[Word]) -> Iterator[tuple[str, Word | None]]:
    for at, letter in enumerate(word.value[1:], 1):
        if letter in valued:
            rest = word.value[at + 1 :]
            yield letter, _piece(word, rest) if rest else next(words, None)
            return
        yield letter, None


def _tee(program: str, arguments: Sequence[Word]) -> list[Word]:
    return [word for word in arguments if word.loose or not word.value.startswith("-")]


def _second(program: str, arguments: Sequence[Word]) -> list[Word]:
    _, operands = _options(arguments, _SECOND[program])
    return [word for at, word in enumerate(operands) if at or word.loose]


def _sed(program: str, arguments: Sequence[Word]) -> list[Word]:
    if not any(_IN_PLACE.fullmatch(word.value) for word in arguments):
        return []
    separate = any(_SED_SCRIPT.fullmatch(word.value) for word in arguments)
    found: list[Word] = []
    skip = False
    for word in arguments:
        if word.value.startswith("-") and not skip:
            skip = word.value in ("-e", "-f", "--expression", "--file")
        elif skip:
            skip = False
        else:
            found.append(word)
    return found if separate else found[1:]


def _curl(program: str, arguments: Sequence[Word]) -> list[Word]:
    given, operands = _options(arguments, _CURL_LETTERS, _CURL_LONG)
    found = [value for name, value in given if name in _CURL_WRITES and value is not None]
    names = {name for name, _ in given}
    if {"O", "J", "remote-name", "remote-name-all", "remote-header-name"} & names:
        certain = not {"J", "remote-header-name", "output-dir"} & names
        found += [_downloaded(word, "") if certain else _UNKNOWN for word in operands]
    elif "output-dir" in names and found:
        found.append(_UNKNOWN)
    return found


def _wget(program: str, arguments: Sequence[Word]) -> list[Word]:
    given, operands = _options(arguments, "aABDeiIloOPQRtTUwX", _WGET_LONG)
    options: Mapping[str, Word | None] = dict(given)
    found = [value for name, value in given if name in _WGET_LOGS and value is not None]
    if {"spider", "version", "help", "V", "h"} & options.keys():
        return found
    into = options.get("O") or options.get("output-document")
    if into is not None:
        return [*found, into]
    if not options.keys() <= _WGET_PLAIN:
        return [*found, _UNKNOWN]
    return [*found, *(_downloaded(word, "index.html") for word in operands)]


_UNKNOWN = Word("?", "", exact=False, loose=True)


def _downloaded(address: Word, otherwise: str) -> Word:
    """The file that is named by the end of an address."""
    place = re.sub(r"^[a-z]+://", "", address.value) if address.exact else ""
    named = _URL.fullmatch(place)
    if named:
        return Word(named[1], named[1])
    bare = re.fullmatch(r"[A-Za-z0-9.:-]+/?", place)
    return Word(otherwise, otherwise) if bare and otherwise else _UNKNOWN


def _uploaded(arguments: Sequence[Word]) -> Iterator[str]:
    given, _ = _options(arguments, _CURL_LETTERS, _CURL_LONG)
    for name, value in given:
        if name in ("T", "upload-file", "b", "cookie", "K", "E") and value is not None:
            yield from _literal([value])
    for word in arguments:
        after = re.search(r"(?:^|=|-[dF])[@<]([^;]+)|^file://(?:localhost)?([^?#]+)", word.value)
        if after and word.exact:
            yield after[1] or after[2]


def _go(program: str, arguments: Sequence[Word]) -> list[Word]:
    found: list[Word] = []
    for at, word in enumerate(arguments):
        following = arguments[at + 1] if at + 1 < len(arguments) else _UNKNOWN
        option = re.fullmatch(r"--?(?:o|coverprofile|[a-z]+profile)(?:=(.*))?", word.value)
        if option:
            found.append(following if option[1] is None else _piece(word, option[1]))
    return found


_WRITES = {
    "tee": _tee,
    "sponge": _tee,
    "uniq": _second,
    "xxd": _second,
    "sed": _sed,
    "gsed": _sed,
    "curl": _curl,
    "wget": _wget,
    "go": _go,
}
_KNOWN = _READERS | _CHANGERS | _COPIERS | {"dd"}
