"""What is known of a script: its parts, and why some of it is not known."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

Moment = tuple[int, ...]  # where a text has it; then where the text that is run there has it, …

_LAST: Moment = (sys.maxsize,)
_WRITES = re.compile(r">(?!&[0-9-])")
_READS = re.compile(r"(?<!<)<(?![<&(])")
_REDIRECT = re.compile(r"[<>][&|]?\s*[\"']?([^\s\"'<>|&;()]+)")


@dataclass(frozen=True, slots=True)
class Part:
    """A simple command. An allow rule must match ``text``: the command without harmless leading
    assignments and transparent wrappers, its words joined by one space, quotes taken off where no
    word needs them. Deny and ask rules are tried on each of ``forms``. ``hides`` says why a rule
    with a ``*`` may not allow it (it runs what its arguments say), "" when one may."""

    text: str
    forms: tuple[str, ...]
    hides: str = ""


class Target(NamedTuple):
    """A path that is opened, and when: what is opened later has a greater moment. A ``pipe`` to a
    command (``>(…)``) has the path "" and is no file."""

    path: str
    moment: Moment
    pipe: bool = False


class Placed(NamedTuple):
    """``paths`` has "" for each whose place is not known; ``adrift`` are those of them that are relative
    to a folder that is not known; ``anywhere``: a "" may be any file."""

    paths: tuple[str, ...]
    adrift: tuple[str, ...]
    anywhere: bool


@dataclass(frozen=True, slots=True)
class Script:
    """A command as rules see it. ``opaque`` is "" or says why no pattern may allow it.

    ``sources`` and ``writes`` are redirect targets: ``~/x`` stands for one in the user's home, "" for
    one that is not literal, or relative after a ``cd``. ``writes`` also has what well-known programs
    write by their arguments, ``reads`` the sources and what such programs read. ``guesses`` is what
    programs such as ``rm`` and ``cp`` change by their arguments, and what looks like a redirect target
    in a command that is not legible. ``adrift`` are the relative ones of ``writes`` after a ``cd``,
    which may have failed; those of the sources are among the reads. ``adrift``, ``guesses`` and
    ``reads`` are for deny and ask rules. ``reads_anywhere``, ``writes_anywhere``: a file is opened of
    which nobody knows which one it is. ``legible`` is False when the command may run something that is
    not among its parts; an opaque one that is legible only has parts that hide something, and rules
    without ``*`` that are equal to each part may allow it.
    """

    parts: tuple[Part, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    unanalyzable: str = ""
    legible: bool = True
    sources: tuple[str, ...] = ()
    adrift: tuple[str, ...] = ()
    reads_anywhere: bool = False
    writes_anywhere: bool = False


@dataclass(slots=True)
class Found:
    """Grows while a script is walked; the scripts inside of it (``bash -c``) add to the same."""

    parts: list[Part] = field(default_factory=list)
    reads: list[Target] = field(default_factory=list)
    writes: list[Target] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    readings: int = 0
    reason: str = ""
    here: Moment = ()  # the command that is walked
    loop: Moment | None = None  # the outermost loop around it
    deferred: bool = False  # it is in a function or a trap, and runs at any later time
    moved: Moment | None = None  # the first change of the folder
    unread: list[str] = field(default_factory=list)  # texts that may hold redirects
    functions: set[str] = field(default_factory=set)
    calls: list[Part] = field(default_factory=list)
    unsteady: bool = False  # a function may be undefined again, and a program take its place
    arrays: bool = False
    late: bool = False  # a declaration has a value that is only known when it runs
    reckoned: set[str] = field(default_factory=set)
    numeric: set[str] = field(default_factory=set)
    tainted: set[str] = field(default_factory=set)

    def obscure(self, reason: str) -> None:
        """It may run what is not among the parts; the first reason is the one that is told."""
        self.reason = self.reason or reason

    def miss(self, reason: str, text: str) -> None:
        """``obscure`` for a text in which redirects may be that nobody saw."""
        self.obscure(reason)
        self.unread.append(text)

    def move(self) -> None:
        """The folder is another after this command; in a loop all of it runs after it too."""
        moment = self.here if self.loop is None else self.loop
        if self.moved is None or moment < self.moved:
            self.moved = moment

    def read(self, path: str, moment: Moment, *, pipe: bool = False) -> None:
        """One more source, opened at that moment."""
        self.reads.append(Target(path, _LAST if self.deferred else moment, pipe))

    def write(self, path: str, moment: Moment, *, pipe: bool = False) -> None:
        """One more file that is written, opened at that moment."""
        self.writes.append(Target(path, _LAST if self.deferred else moment, pipe))

    def add(self, text: str, forms: dict[str, None], hides: str = "") -> None:
        """One more simple command."""
        forms.setdefault(text)
        self.parts.append(Part(text, tuple(forms), hides))

    def also(self, before: int, forms: dict[str, None], hides: str = "") -> None:
        """What was added since there were ``before`` parts is what a command named ``forms`` runs."""
        if len(self.parts) == before:
            self.add(next(iter(forms), ""), forms, hides)
            return
        first = self.parts[before]
        merged = tuple(dict.fromkeys((*first.forms, *forms)))
        self.parts[before] = Part(first.text, merged, first.hides or hides)

    def aside(self, look: Callable[[], None]) -> Found:
        """What ``look`` finds, of which nothing is kept but how many readings there were."""
        names = [each.name for each in fields(self)]
        kept = {name: getattr(self, name) for name in names}
        fresh = Found(readings=self.readings)
        for name in names:
            setattr(self, name, getattr(fresh, name))
        try:
            look()
            return Found(**{name: getattr(self, name) for name in names})
        finally:
            kept["readings"] = self.readings
            for name, value in kept.items():
                setattr(self, name, value)

    def script(self, command: str, raw_forms: Callable[[str], tuple[str, ...]]) -> Script:
        """The sum of it."""
        if not self.reckoned <= self.numeric - self.tainted:
            self.obscure("bash runs what is inside a variable when it does arithmetic with it")
        if self.late and self.arrays:
            self.obscure("bash evaluates what is declared for an array")
        parts = list(self.parts)
        if self.unsteady or not parts:
            parts.extend(self.calls)
        elif self.calls:
            forms = dict.fromkeys(form for call in self.calls for form in call.forms)
            last = parts[-1]
            parts[-1] = Part(last.text, (*last.forms, *forms), last.hides)
        if self.reason:
            parts.append(Part(command, raw_forms(command)))
        seen = _REDIRECT.findall(command) if self.reason else []
        guesses = tuple(dict.fromkeys((*seen, *filter(None, self.changes))))
        sources = self._placed(self.reads, any(map(_READS.search, self.unread)))
        writes = self._placed(self.writes, any(map(_WRITES.search, self.unread)))
        reads = dict.fromkeys((*sources.paths, *self.operands, *sources.adrift))
        hides = next((part.hides for part in parts if part.hides), "")
        unanalyzable = self.reason or hides
        return Script(
            tuple(parts),
            tuple(reads),
            tuple(dict.fromkeys((*writes.paths, *([""] if self.reason else ())))),
            guesses,
            unanalyzable,
            not self.reason,
            sources.paths,
            writes.adrift,
            sources.anywhere,
            writes.anywhere,
        )

    def _placed(self, targets: Sequence[Target], unread: bool) -> Placed:
        """What is known of the targets; ``unread``: there may be others."""
        paths: dict[str, None] = {}
        adrift: dict[str, None] = {}
        for path, moment, _ in targets:
            moved = self.moved is not None and moment > self.moved
            if path and moved and not path.startswith(("/", "~/")):
                adrift.setdefault(path)
                path = ""
            paths.setdefault(path)
        if unread:
            paths.setdefault("")
        files = any(not target.path and not target.pipe for target in targets)
        return Placed(tuple(paths), tuple(adrift), unread or files or bool(adrift))
