"""Files that the arguments of well-known programs name, if literal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from runner.permissions.shell import programs
from runner.permissions.shell.words import DEVICES, Word, path_of

_IN_PLACE = re.compile(r"-[nErsuz]*i.*|--i[a-z-]*(?:=.*)?", re.DOTALL)
_SED_SCRIPT = re.compile(r"-[nErsuz]*[ef].*|--(?:e|f)[a-z-]*(?:=.*)?", re.DOTALL)
_GO_WRITES = re.compile(r"--?(?:o|coverprofile|[a-z]+profile)(?:=(.*))?")
_URL = re.compile(r"[^/?#]+/(?:[^?#]*/)?([A-Za-z0-9_.+@%-]+)")
_UPLOADED = re.compile(r"(?:^|=|-[dF])[@<]([^;]+)|^file://(?:localhost)?([^?#]+)")
_NO_FILE = DEVICES | {"-"}
_UNKNOWN = Word("?", "", exact=False, loose=True)


@dataclass(slots=True)
class Files:
    """Paths as ``path_of`` gives them."""

    reads: list[str] = field(default_factory=list)  # for deny and ask rules: a guess does no harm
    writes: list[str] = field(default_factory=list)  # a rule must allow them; "" if not literal
    changes: list[str] = field(default_factory=list)  # for deny and ask rules, as ``reads``


def files_of(program: str, arguments: Sequence[Word]) -> Files:
    """Return the files in the arguments of a program, if it is known."""
    paths = map(path_of, _written(program, arguments))
    files = Files(writes=[path for path in paths if path not in _NO_FILE])
    if program in programs.READERS:
        files.reads = _literal(_operands(arguments, program in programs.SCRIPTED))
    if program in programs.CHANGERS:
        files.changes = _literal(_operands(arguments))
    if program in programs.COPIERS:
        *sources, target = _literal(_operands(arguments)) or [""]
        files.reads += sources or filter(None, [target])
        if sources:
            names = (source.rstrip("/").rpartition("/")[2] for source in sources)
            into = target.rstrip("/")
            files.changes += [target, *(f"{into}/{name}" for name in names if name)]
    if program == "dd":
        files.reads = [w.value[3:] for w in arguments if w.exact and w.value.startswith("if=")]
        files.changes = [w.value[3:] for w in arguments if w.exact and w.value.startswith("of=")]
    if program == "curl":
        given, _ = _options(arguments, programs.CURL_LETTERS, programs.CURL_LONG)
        files.reads = _literal(word for name, word in given if word and name in programs.CURL_READS)
        found = (_UPLOADED.search(word.value) for word in arguments if word.exact)
        files.reads += [after[1] or after[2] for after in found if after]
    return files


def _literal(words: Iterable[Word]) -> list[str]:
    return [path for path in map(path_of, words) if path and path not in _NO_FILE]


def _operands(arguments: Sequence[Word], scripted: bool = False) -> Iterator[Word]:
    """Yield the operands, and what is joined to an option. ``scripted``: the first operand is no file,
    as with ``grep``, unless an option has the script."""
    script = ("-e", "-f", "--reg", "--file", "--exp")
    skip = scripted and not any(word.value.startswith(script) for word in arguments)
    ended = False
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


def _piece(word: Word, text: str) -> Word:
    return Word(text, text, word.exact, word.loose)


Given = list[tuple[str, Word | None]]


def _options(
    arguments: Sequence[Word], letters: str, longs: Sequence[str] = ()
) -> tuple[Given, list[Word]]:
    """Return the options with their values, and the operands. ``letters`` are short options with a
    value, ``longs`` long ones, which may be shortened."""
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
            for at, letter in enumerate(value[1:], 2):
                if letter in letters:
                    joined = value[at:]
                    given.append((letter, _piece(word, joined) if joined else next(words, None)))
                    break
                given.append((letter, None))
        else:
            operands.append(word)
    return given, operands


def _written(program: str, arguments: Sequence[Word]) -> Sequence[Word]:
    match program:
        case "tee" | "sponge":
            return [word for word in arguments if word.loose or not word.value.startswith("-")]
        case "uniq" | "xxd":
            _, operands = _options(arguments, programs.SECOND_WRITTEN[program])
            return [word for at, word in enumerate(operands) if at or word.loose]
        case "sed" | "gsed":
            return _edited(arguments)
        case "curl":
            return _curl(arguments)
        case "wget":
            return _wget(arguments)
        case "go":
            return [
                following if option[1] is None else _piece(word, option[1])
                for word, following in zip_longest(arguments, arguments[1:], fillvalue=_UNKNOWN)
                if (option := _GO_WRITES.fullmatch(word.value))
            ]
        case _:
            return ()


def _edited(arguments: Sequence[Word]) -> list[Word]:
    if not any(_IN_PLACE.fullmatch(word.value) for word in arguments):
        return []
    found: list[Word] = []
    skip = False
    for word in arguments:
        if word.value.startswith("-") and not skip:
            skip = word.value in ("-e", "-f", "--expression", "--file")
        elif skip:
            skip = False
        else:
            found.append(word)
    has_script = any(_SED_SCRIPT.fullmatch(word.value) for word in arguments)
    return found if has_script else found[1:]


def _curl(arguments: Sequence[Word]) -> list[Word]:
    given, operands = _options(arguments, programs.CURL_LETTERS, programs.CURL_LONG)
    found = [value for name, value in given if name in programs.CURL_WRITES and value is not None]
    names = {name for name, _ in given}
    if {"O", "J", "remote-name", "remote-name-all", "remote-header-name"} & names:
        certain = not {"J", "remote-header-name", "output-dir"} & names
        found += [_downloaded(word, "") if certain else _UNKNOWN for word in operands]
    elif "output-dir" in names and found:
        found.append(_UNKNOWN)
    return found


def _wget(arguments: Sequence[Word]) -> list[Word]:
    given, operands = _options(arguments, programs.WGET_LETTERS, programs.WGET_LONG)
    options = dict(given)
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
    if named := _URL.fullmatch(place):
        return Word(named[1], named[1])
    bare = re.fullmatch(r"[A-Za-z0-9.:-]+/?", place)
    return Word(otherwise, otherwise) if bare and otherwise else _UNKNOWN
