"""What is known of a script: its parts, and why some of it is not known."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields

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


@dataclass(frozen=True, slots=True)
class Script:
    """A command as rules see it. ``opaque`` is "" or says why no pattern may allow it.

    ``sources`` and ``writes`` are redirect targets: ``~/x`` stands for one in the user's home, "" for
    one that is not literal, or relative after a ``cd``. ``writes`` also has what well-known programs
    write by their arguments, ``reads`` the sources and what such programs read. ``guesses`` is what
    programs such as ``rm`` and ``cp`` change by their arguments, and what looks like a redirect target
    in a command that is not legible; it and ``reads`` are for deny and ask rules. ``legible`` is False
    when the command may run something that is not among its parts; an opaque one that is legible only
    has parts that hide something, and rules without ``*`` that are equal to each part may allow it.
    """

    parts: tuple[Part, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    opaque: str = ""
    legible: bool = True
    sources: tuple[str, ...] = ()


@dataclass(slots=True)
class Found:
    """Grows while a script is walked; the scripts inside of it (``bash -c``) add to the same."""

    parts: list[Part] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    readings: int = 0
    reason: str = ""
    moved: bool = False
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
            self.writes.append("")
        guesses = self._literal(_REDIRECT.findall(command) if self.reason else [])
        guesses = tuple(dict.fromkeys((*guesses, *filter(None, self.changes))))
        sources, writes = self._literal(self.reads), self._literal(self.writes)
        reads = tuple(dict.fromkeys((*sources, *self.operands)))
        hides = next((part.hides for part in parts if part.hides), "")
        opaque = self.reason or hides
        return Script(tuple(parts), reads, writes, guesses, opaque, not self.reason, sources)

    def _literal(self, paths: list[str]) -> tuple[str, ...]:
        known = ("" if self.moved and not path.startswith(("/", "~/")) else path for path in paths)
        return tuple(dict.fromkeys(known))
