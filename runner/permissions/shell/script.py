"""The analysis of a script: its simple commands, the files that it opens, and why the rest is
unknown."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePosixPath
from typing import NamedTuple

from runner.permissions.shell.files import Below, decoded, joined, matching
from runner.permissions.shell.harmless import is_python_path
from runner.permissions.shell.mentions import LISTED, candidates, inside
from runner.permissions.shell.words import Word

Moment = tuple[int, ...]  # where a text has it; then where the text that is run there has it, …

_MOST_FOLDERS = 16
_MOST_WORDS = 300
_GLOB = re.compile(r"(?=.*[*?\[])[A-Za-z0-9_./+@*?\[\]!^~-]+")
_NAMED = re.compile(r"\$\{?([A-Za-z_]\w*)")
# A variable and literal texts that it may be set to.
_GIVEN = re.compile(r"\b([A-Za-z_]\w*)(?:=| +in +)([\w./~][\w./~ -]*)")
_TOO_LONG = re.compile(r"[^/]{256}")  # no file has such a name
# Variables that bash keeps numbers in: it calculates what they are set to.
INTEGERS = frozenset(
    ("RANDOM", "SRANDOM", "SECONDS", "LINENO", "EPOCHSECONDS", "UID", "EUID", "PPID")
)
_LAST: Moment = (sys.maxsize,)
_WRITES = re.compile(r">(?!&[0-9-])")
_READS = re.compile(r"(?<!<)<(?![<&(])")
_REDIRECT = re.compile(r"[<>][&|]?\s*[\"']?([^\s\"'<>|&;()]+)")


class Part(NamedTuple):
    """A simple command."""

    # What an allow rule must match: the command without harmless assignments before it and without
    # wrappers, its words joined by one space, quotes taken off where no word needs them.
    text: str
    forms: tuple[str, ...]  # what deny and ask rules are tried on
    hides: str = ""  # why no rule with a * may allow it (it runs what its arguments say), or ""
    # The commands that it runs (``find -exec``): a rule with a * that allows it does not allow them.
    inner: tuple[Part, ...] = ()
    folders: tuple[str, ...] = ()  # absolute ones, which must be in the workspace
    plain: str = ""  # what an allow rule may match instead: without harmless options before


class Target(NamedTuple):
    path: str  # "" when it is not literal
    moment: Moment  # greater for what is opened later
    pipe: bool = False  # a pipe to a command (``>(…)``), no file


class Script(NamedTuple):
    """A command as rules see it. In paths ``~/x`` stands for one in the user's home, "" for one that is
    not literal, or relative after a ``cd``."""

    parts: tuple[Part, ...]
    reads: tuple[str, ...] = ()  # the sources, and what known programs read; for deny and ask rules
    writes: tuple[str, ...] = ()  # targets of redirects, and what known programs write
    # What programs such as rm and cp change, and what looks like a redirect in a command that is not
    # complete; for deny and ask rules.
    guesses: tuple[str, ...] = ()
    unanalyzable: str = ""  # why no pattern may allow it, or ""
    # False when it may run something that is not among its parts. Rules without * that are equal to
    # each part may allow a script that is unanalyzable but complete: only its parts hide something.
    complete: bool = True
    sources: tuple[str, ...] = ()  # what redirects read
    # The relative ones of the writes after a cd, which may have failed; for deny and ask rules.
    after_cd: tuple[str, ...] = ()
    below: tuple[Below, ...] = ()  # what programs change or read somewhere below; for deny rules
    matches: tuple[Below, ...] = ()  # what is written and only a glob says; a rule must allow all
    mentions: tuple[
        str, ...
    ] = ()  # what programs may read; for deny and ask rules about some paths
    reads_anywhere: bool = False  # it reads a file that only the run determines
    writes_anywhere: bool = False  # it writes such a file


@dataclass(slots=True)
class Findings:
    """Grows while a script is walked; the scripts inside of it (``bash -c``) add to the same."""

    parts: list[Part] = field(default_factory=list)
    reads: list[Target] = field(default_factory=list)
    writes: list[Target] = field(default_factory=list)
    matches: list[Below] = field(default_factory=list)  # as ``writes``, by globs
    globs: list[str] = field(default_factory=list)  # of files that redirects read
    operands: list[str] = field(default_factory=list)  # files that known programs read
    changes: list[str] = field(default_factory=list)  # files that known programs change
    below: list[Below] = field(default_factory=list)  # paths that are not literal, as ``changes``
    mentions: list[str] = field(default_factory=list)  # paths that programs may read
    words: list[Word] = field(default_factory=list)  # all words of the script
    unknown: bool = False  # a program may open a file that only the run determines
    feeds: bool = False  # another command reads the output of this one
    listed: list[Below] = field(default_factory=list)  # files whose names the command prints
    fed: list[str] = field(default_factory=list)  # texts that programs may run as code
    readings: int = 0  # how many readings of commands were tried
    reason: str = ""  # why it may run what is not among the parts
    here: Moment = ()  # the command that is walked
    loop: Moment | None = None  # the outermost loop around it
    deferred: bool = False  # it is in a function or a trap, and runs at any later time
    moved: Moment | None = None  # the first change of the folder
    folders: list[str] = field(default_factory=list)  # literal ones that it may be
    enters: int = 0  # the position up to which the script runs in the only folder
    lost: bool = False  # it may be another
    unread: list[str] = field(default_factory=list)  # texts that may hold redirects
    sources_written: bool = False  # an output of the shell may lead to a file opened for reading
    targets_read: bool = False  # its input may lead to a file opened for writing
    trusts_output: bool = False  # it matters what a program prints, which is known
    defines_functions: bool = False
    functions: set[str] = field(default_factory=set)
    calls: list[Part] = field(default_factory=list)  # of these functions, and ends of pipes
    programs: set[str] = field(default_factory=set)  # that it runs
    python_paths: list[tuple[Part, str]] = field(default_factory=list)  # ``export PYTHONPATH=…``
    inputs: list[Part] = field(default_factory=list)  # they set variables to what they read
    functions_change: bool = False  # one may be undefined again, and a program take its place
    arrays: bool = False  # an array is set
    declares_dynamic: bool = False  # a declaration has a value that is only known when it runs
    calculated: set[str] = field(default_factory=set)  # variables that arithmetic reads
    numeric: set[str] = field(default_factory=set)  # variables that are set to a number
    tainted: set[str] = field(default_factory=set)  # variables that are set to anything else

    def give_up(self, reason: str, unread: str | None = None) -> None:
        """Note that the script may run what is not among the parts. The first reason is kept.
        ``unread`` is the text that was not understood, in which redirects may be."""
        self.reason = self.reason or reason
        if unread is not None:
            self.unread.append(unread)

    def move(self, path: str) -> None:
        """Note that the folder is another after this command; in a loop all of it runs after it too.
        ``path`` is where it leads; "" if that is not literal."""
        if path and len(self.folders) < _MOST_FOLDERS:
            self.folders += [joined(folder, path) for folder in ("", *self.folders)]
        moment = self.here if self.loop is None else self.loop
        if self.moved is None or moment < self.moved:
            self.moved = moment

    def target(self, path: str, moment: Moment, pipe: bool = False) -> Target:
        """Return a path that is opened at that moment, or later where that is not certain."""
        return Target(path, _LAST if self.deferred else moment, pipe)

    def add(
        self,
        text: str,
        forms: dict[str, None],
        hides: str = "",
        inner: tuple[Part, ...] = (),
        plain: str = "",
        folders: tuple[str, ...] = (),
    ) -> None:
        forms.setdefault(text)
        self.parts.append(Part(text, tuple(forms), hides, inner, folders, plain))

    def add_outer(self, before: int, forms: dict[str, None], hides: str = "") -> None:
        """Add a command's forms to the first part that it runs, which is at ``before``."""
        if len(self.parts) == before:
            self.add(next(iter(forms), ""), forms, hides)
            return
        first = self.parts[before]
        merged = tuple(dict.fromkeys((*first.forms, *forms)))
        self.parts[before] = first._replace(forms=merged, hides=first.hides or hides)

    def script(self, command: str) -> Script:
        """Return the walked ``command`` as rules see it. Call it once, at the end of the walk."""
        self._refuse_surprises()
        parts = self._all_parts(command)
        if self.unknown:
            self._any_word_opens(command)
            self.below += self.listed
        if self.globs and self.moved is not None:
            self.reads.append(Target("", _LAST))
        else:
            self.below += [matching(glob, reads=True) for glob in self.globs]
        entered = self._entered
        whole = entered >= len(command.encode("utf-8", "replace").rstrip())
        if self.matches and self.moved is not None and not whole:
            self.writes.append(Target("", _LAST))
        start = self.folders[0] if entered and whole else ""
        unknown = [""] if "" in self.operands else []
        guesses = _REDIRECT.findall(command) if self.reason else []
        sources = self.reads + (self.writes if self.targets_read else [])
        targets = self.writes + (self.reads if self.sources_written else [])
        reads, reads_after_cd, reads_anywhere = self._located(sources, _READS)
        writes, writes_after_cd, writes_anywhere = self._located(targets, _WRITES)
        return Script(
            parts=tuple(parts),
            reads=_unique(reads, unknown, *map(self._anywhere, (self.operands, reads_after_cd))),
            writes=_unique(writes, [""] if self.reason else []),
            guesses=_unique(guesses, self._anywhere(self.changes)),
            unanalyzable=self.reason or next((part.hides for part in parts if part.hides), ""),
            complete=not self.reason,
            sources=_unique(reads),
            after_cd=_unique(self._anywhere(writes_after_cd)),
            below=tuple(
                each._replace(folder=folder)
                for each in dict.fromkeys(self.below)
                for folder in (self._anywhere([each.folder]) or [""])
            ),
            matches=tuple(
                each._replace(folder=joined(start, each.folder))
                for each in dict.fromkeys(self.matches)
            ),
            mentions=_unique(self._anywhere(dict.fromkeys(self.mentions))),
            reads_anywhere=reads_anywhere or bool(unknown),
            writes_anywhere=writes_anywhere,
        )

    def _refuse_surprises(self) -> None:
        """Give up if commands that are harmless alone run something else together."""
        if not self.calculated <= (self.numeric | INTEGERS) - self.tainted:
            self.give_up("bash runs what is inside a variable when it does arithmetic with it")
        if self.declares_dynamic and self.arrays:
            self.give_up("bash evaluates what is declared for an array")
        if self.trusts_output and self.defines_functions:
            self.give_up("a function may take the place of a program whose output matters")

    def _all_parts(self, command: str) -> list[Part]:
        """Return the parts that need a rule. The forms of all other commands join the last part."""
        for part, value in self.python_paths:
            harmless = is_python_path(value, self.programs)
            (self.calls if harmless and not self.reason else self.parts).append(part)
        # A ``read`` needs a rule if a program may open a file whose name was read.
        opens = self.unknown or any(not (read.path or read.pipe) for read in self.reads)
        parts = [*self.parts, *(self.inputs if opens else ())]
        self.calls += () if opens else self.inputs
        if self.functions_change or not parts:
            parts.extend(self.calls)
        elif self.calls:
            forms = dict.fromkeys(form for call in self.calls for form in call.forms)
            last = parts[-1]
            parts[-1] = last._replace(forms=(*last.forms, *forms))
        if self.reason:
            parts.append(Part(command, raw_forms(command)))
        for text in self.fed:
            reads, writes = inside(text)
            self.mentions += reads
            self.changes += writes
            seen = (*parts[-1].forms, *raw_forms(text), *raw_forms(LISTED.sub(" ", text)))
            parts[-1] = parts[-1]._replace(forms=tuple(dict.fromkeys(seen)))
        return parts

    def _any_word_opens(self, command: str) -> None:
        """Treat each word of the script as a path that a variable, pipe or find may pass on."""
        given: dict[str, list[str]] = {}
        for name, value in _GIVEN.findall(command)[:_MOST_FOLDERS]:
            given.setdefault(name, []).extend(value.split()[:_MOST_FOLDERS])
        for word in self.words[:_MOST_WORDS]:
            self.mentions += candidates(word)
            for name in filter(given.get, _NAMED.findall(word.value)):
                found = re.compile(rf"\$(?:{name}\b|\{{{name}\}})")
                self.mentions += [found.sub(value, word.value) for value in given[name]]
            for text in filter(_GLOB.fullmatch, decoded(word)):
                folder, _, name = text.rpartition("/")
                self.below.append(matching(name if "**" in folder else text, reads=True))

    def _anywhere(self, paths: Iterable[str]) -> list[str]:
        """Return the paths from each folder that the script may be in."""
        known = (path for path in paths if path and "\0" not in path)
        possible = (path for path in known if not _TOO_LONG.search(path))
        return [joined(folder, path) for path in possible for folder in ("", *self.folders)]

    @property
    def _entered(self) -> int:
        """The end of the part of the script that runs in the first of ``folders`` from its ``cd`` on; 0 if
        there is no such part."""
        return self.enters if len(self.folders) == 1 and not self.lost else 0

    def _located(
        self, targets: Sequence[Target], operator: re.Pattern[str]
    ) -> tuple[list[str], list[str], bool]:
        """Return the paths of targets, "" for one whose place is not known; the relative ones after a
        cd; and True if a "" may be any file. ``operator`` finds a redirect to such a
        target in a text that was not understood."""
        paths: list[str] = []
        after_cd: list[str] = []
        lost = False
        for path, moment, pipe in targets:
            if pipe:
                continue
            moved = self.moved is not None and moment > self.moved
            if path and moved and not path.startswith(("/", "~/")):
                after_cd.append(path)
                entered = moment < (self._entered,)
                path = joined(self.folders[0], path) if entered else ""
                lost = lost or not entered
            paths.append(path)
        unread = any(map(operator.search, self.unread))
        if unread:
            paths.append("")
        anywhere = any(not target.path and not target.pipe for target in targets)
        return paths, after_cd, unread or anywhere or lost


def _unique(*lists: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain(*lists)))


# A command as mere text: what a reader sees in it where it cannot be parsed.

_MOST_STARTS = 12  # words of a segment that a form may start at
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_UNSEEN_CATEGORIES = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"))
_BORDER = re.compile(r"[\r\n;&|(){}<>`!=]|\$\(")
_BRACES = re.compile(r"(?<![^{}\s])([^{}\s]*)\{([^{}\s]*,[^{}\s]*)\}([^{}\s]*)")
_BLANKS = re.compile(r"[ \t\f\v]+")
_QUOTES = str.maketrans("", "", "\"'\\")


def hidden_character(command: str) -> str:
    """Return why a reader cannot trust their eyes with this text, "" if they can."""
    if command.isascii() and command.isprintable():
        return ""
    odd = (sign for sign in command if sign not in "\n\t" and not " " <= sign <= "~")
    found = next(filter(_deceives, odd), None)
    return f"it has the invisible or deceptive character U+{ord(found):04X}" if found else ""


def _deceives(character: str) -> bool:
    if character in _UNSEEN or unicodedata.category(character) in _UNSEEN_CATEGORIES:
        return True
    # Variation selectors; U+FE0F alone is part of everyday emoji.
    return "\ufe00" <= character <= "\ufe0e" or "\U000e0100" <= character <= "\U000e01ef"


def _expanded(found: re.Match[str]) -> str:
    return " ".join(f"{found[1]}{choice}{found[3]}" for choice in found[2].split(","))


def raw_forms(command: str) -> tuple[str, ...]:
    """Return the text itself, each line, each segment between shell operators, and what starts at each
    of a segment's first words; with quotes and without, invisible characters taken out."""
    forms: dict[str, None] = {command: None, command.strip(): None}
    texts = dict.fromkeys((command.replace("\\\n", " "), command.replace("\\\n", "")))
    for text in tuple(texts):
        texts.setdefault(_BRACES.sub(_expanded, text).replace('$"', '"'))
    for text in tuple(texts):
        if text.isascii() and text.isprintable():
            continue  # nothing in it is invisible or has another form
        seen = "".join(c for c in text if c in "\n\t\r" or not _deceives(c) or c.isspace())
        texts.setdefault(unicodedata.normalize("NFKC", seen))
    for text in tuple(texts):
        texts.setdefault(text.translate(_QUOTES))
        texts.setdefault(text.replace("\\n", "\n").translate(_QUOTES))
    for text in texts:
        forms.update(dict.fromkeys(line.strip() for line in text.split("\n")))
        for segment in _BORDER.split(text):
            words = [word for word in _BLANKS.split(segment) if word]
            for at, word in enumerate(words[:_MOST_STARTS]):
                bare = word.strip("\"'")
                for name in (word, bare, PurePosixPath(bare).name if "/" in bare else bare):
                    forms.setdefault(" ".join([name, *words[at + 1 :]]))
    forms.pop("", None)
    return tuple(forms)
