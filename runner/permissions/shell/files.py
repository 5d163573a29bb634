"""Which files the arguments of well-known programs name, as far as they are literal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.permissions.shell import programs
from runner.permissions.shell.words import DEVICES, Word, path_of

_IN_PLACE = re.compile(r"-[nErsuz]*i.*|--i[a-z-]*(?:=.*)?", re.DOTALL)
_SED_SCRIPT = re.compile(r"-[nErsuz]*[ef].*|--(?:e|f)[a-z-]*(?:=.*)?", re.DOTALL)
_GO_WRITES = re.compile(r"--?(?:o|coverprofile|[a-z]+profile)(?:=(.*))?")
_URL = re.compile(r"[^/?#]+/(?:[^?#]*/)?([A-Za-z0-9_.+@%-]+)")
_NO_FILE = DEVICES | {"-"}
_UNKNOWN = Word("?", "", exact=False, loose=True)


@dataclass(slots=True)
class Files:
    """Paths as ``path_of`` gives them."""

    reads: list[str] = field(default_factory=list)  # for deny and ask rules: a guess does no harm
    writes: list[str] = field(default_factory=list)  # a rule must allow them; "" if not literal
    changes: list[str] = field(default_factory=list)  # for deny and ask rules, as ``reads``


def files_of(program: str, arguments: Sequence[Word]) -> Files | None:
    """Return the files in the arguments of a program, None if it is not known to use files."""
    writes = _WRITES.get(program)
    if writes is None and program not in _KNOWN:
        return None
    files = Files()
    if writes is not None:
        paths = map(path_of, writes(program, arguments))
        files.writes = [path for path in paths if path not in _NO_FILE]
    if program in programs.READERS:
        files.reads = list(_literal(_operands(arguments, program in programs.SCRIPTED)))
    if program in programs.CHANGERS:
        files.changes = list(_literal(_operands(arguments)))
    if program in programs.COPIERS:
        _copied(arguments, files)
    if program == "dd":
        files.reads = [w.value[3:] for w in arguments if w.exact and w.value.startswith("if=")]
        files.changes = [w.value[3:] for w in arguments if w.exact and w.value.startswith("of=")]
    if program == "curl":
        files.reads = list(_uploaded(arguments))
    return files


def _literal(words: Iterable[Word]) -> Iterator[str]:
    return (path for path in map(path_of, words) if path and path not in _NO_FILE)


def _operands(arguments: Sequence[Word], scripted: bool = False) -> Iterator[Word]:
    """Yield the operands, and what is joined to an option.

    Args:
        scripted: the first operand is no file, as with ``grep``, unless an option has the script.
    """
    skip, ended = scripted, False
    if scripted:
        skip = not any(
            word.value[:2] in ("-e", "-f") or word.value.startswith(("--reg", "--file", "--exp"))
            for word in arguments
        )
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
    paths = list(_literal(_operands(arguments)))
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
    """Return the options with their values, and the operands.

    Args:
        letters: short options with a value.
        longs: long options with a value; one may be shortened.
    """
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


# What each program writes, by its arguments.


def _tee(program: str, arguments: Sequence[Word]) -> list[Word]:
    return [word for word in arguments if word.loose or not word.value.startswith("-")]


def _second(program: str, arguments: Sequence[Word]) -> list[Word]:
    _, operands = _options(arguments, programs.SECOND_WRITTEN[program])
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
    given, operands = _options(arguments, programs.CURL_LETTERS, programs.CURL_LONG)
    found = [value for name, value in given if name in programs.CURL_WRITES and value is not None]
    names = {name for name, _ in given}
    if {"O", "J", "remote-name", "remote-name-all", "remote-header-name"} & names:
        certain = not {"J", "remote-header-name", "output-dir"} & names
        found += [_downloaded(word, "") if certain else _UNKNOWN for word in operands]
    elif "output-dir" in names and found:
        found.append(_UNKNOWN)
    return found


def _wget(program: str, arguments: Sequence[Word]) -> list[Word]:
    given, operands = _options(arguments, programs.WGET_LETTERS, programs.WGET_LONG)
    options: Mapping[str, Word | None] = dict(given)
    found = [value for name, value in given if name in programs.WGET_LOGS and value is not None]
    if {"spider", "version", "help", "V", "h"} & options.keys():
        return found
    into = options.get("O") or options.get("output-document")
    if into is not None:
        return [*found, into]
    if not options.keys() <= programs.WGET_PLAIN:
        return [*found, _UNKNOWN]
    return [*found, *(_downloaded(word, "index.html") for word in operands)]


def _downloaded(address: Word, otherwise: str) -> Word:
    """Return the file that the end of an address names, or else ``otherwise``."""
    place = re.sub(r"^[a-z]+://", "", address.value) if address.exact else ""
    named = _URL.fullmatch(place)
    if named:
        return Word(named[1], named[1])
    bare = re.fullmatch(r"[A-Za-z0-9.:-]+/?", place)
    return Word(otherwise, otherwise) if bare and otherwise else _UNKNOWN


def _uploaded(arguments: Sequence[Word]) -> Iterator[str]:
    given, _ = _options(arguments, programs.CURL_LETTERS, programs.CURL_LONG)
    for name, value in given:
        if name in programs.CURL_READS and value is not None:
            yield from _literal([value])
    for word in arguments:
        after = re.search(r"(?:^|=|-[dF])[@<]([^;]+)|^file://(?:localhost)?([^?#]+)", word.value)
        if after and word.exact:
            yield after[1] or after[2]


def _go(program: str, arguments: Sequence[Word]) -> list[Word]:
    found: list[Word] = []
    for at, word in enumerate(arguments):
        following = arguments[at + 1] if at + 1 < len(arguments) else _UNKNOWN
        option = _GO_WRITES.fullmatch(word.value)
        if option:
            found.append(following if option[1] is None else _piece(word, option[1]))
    return found


_WRITES = {
    **dict.fromkeys(("tee", "sponge"), _tee),
    **dict.fromkeys(programs.SECOND_WRITTEN, _second),
    **dict.fromkeys(("sed", "gsed"), _sed),
    "curl": _curl,
    "wget": _wget,
    "go": _go,
}
_KNOWN = programs.READERS | programs.CHANGERS | programs.COPIERS | {"dd"}
