"""Rules, put where the ones that can have a say in a call are found fast."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from runner.core.permissions.aspects import Line
from runner.core.permissions.language.patterns import CommandPattern
from runner.core.permissions.language.syntax import covers
from runner.core.permissions.rule import REMEMBERED, Rule

_MOST_KEPT = 64  # a model can make up names of tools
_PLACE = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Rules with their places in order, by the first word of the commands that they match; under
    None those that must always be looked at."""

    by_word: Mapping[str | None, tuple[tuple[int, Line], ...]]
    always: Sequence[Line]

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Shelf:
        """Puts the rules where they are found."""
        found: dict[str | None, tuple[tuple[int, Line], ...]] = {}
        for place, line in enumerate(lines):
            word = line.specifier.word if isinstance(line.specifier, CommandPattern) else None
            found[word] = (*found.get(word, ()), (place, line))
        return cls(found, tuple(line for _, line in found.get(None, ())))

    def beside(self, words: Collection[str]) -> Sequence[Line]:
        """The rules that can match commands which begin with one of the words, in order."""
        found = [entry for word in words for entry in self.by_word.get(word, ())]
        if not found:
            return self.always
        return [line for _, line in sorted((*self.by_word.get(None, ()), *found), key=_PLACE)]


@dataclass(frozen=True, slots=True)
class Lines:
    """The rules that have a say in calls of some tools, by what they do. What a person remembered is
    apart from what else allows."""

    deny: Shelf
    remembered: Shelf
    ask: Shelf
    allow: Shelf


@dataclass(frozen=True)
class Ruled:
    """Rules, in order."""

    rules: tuple[Rule, ...] = ()

    def lines(self, tools: Iterable[str]) -> Lines:
        """The rules that have a say in calls of one of the tools."""
        key = tuple(tools)
        found = self._looked_up.get(key)
        if found is None:
            lines = [line for line in self._lines if any(covers(line.name, tool) for tool in key)]
            found = Lines(
                Shelf.of(line for line in lines if line.rule.effect == "deny"),
                Shelf.of(line for line in lines if _is_remembered(line.rule)),
                Shelf.of(line for line in lines if line.rule.effect == "ask"),
                Shelf.of(line for line in lines if line.rule.effect == "allow"),
            )
            if len(self._looked_up) < _MOST_KEPT:
                self._looked_up[key] = found
        return found

    @cached_property
    def _lines(self) -> tuple[Line, ...]:
        return tuple(map(Line.of, self.rules))

    @cached_property
    def _looked_up(self) -> dict[tuple[str, ...], Lines]:
        return {}


def _is_remembered(rule: Rule) -> bool:
    return rule.effect == "allow" and rule.origin == REMEMBERED
