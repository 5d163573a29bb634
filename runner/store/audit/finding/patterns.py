"""What a person looks for among commands and paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from runner.core.search.query import SHORTEST_PART, Term
from runner.core.search.words import LONGEST_WORD, fold
from runner.errors import UsageError
from runner.permissions import Rule, ToolContext
from runner.permissions import rules as syntax
from runner.permissions.accesses import ParsedRule, accesses_of
from runner.permissions.rules import UNANALYZABLE, Glob

# What JSON writes as it is, in whichever way it was written.
_PLAIN = re.compile(r"[A-Za-z0-9 _./:=,@%+#-]+")
_WORD = re.compile(r"[^\W_]+")
_STARS = re.compile(r"\*+")


@dataclass(frozen=True, slots=True)
class Pattern:
    """``terms`` are what the index of searches knows of every text that matches, and ``needles`` are
    in it, if not in the same case; a text whose words were written in pieces (quotes, backslashes)
    may match without. Needles have only characters that JSON does not change."""

    matches: Callable[[str], bool]
    terms: tuple[Term, ...]
    needles: tuple[str, ...]


def command_pattern(text: str) -> Pattern:
    """What finds commands: with a ``*`` a pattern as in ``Bash(…)`` rules, which is tried on each
    command of a script as rules are, else words that must all be there, upper or lower case.

    Raises:
        UsageError: it is empty, or can match nothing.
    """
    if "*" not in text and text != UNANALYZABLE:
        return _words(text)
    rule = f"Bash({text})"
    if (problem := syntax.problem(rule)) is not None:
        raise UsageError(f"{problem}; to find words, leave out the *")
    line = ParsedRule.of(Rule("deny", rule))

    def matches(command: str) -> bool:
        parts = accesses_of("Bash", {"command": command}, ToolContext())
        return any(part.catches(line) is not None for part in parts)

    start = text.removesuffix(":*").removesuffix(" *")
    pieces = [] if text == UNANALYZABLE else _STARS.split(start)
    terms = (word for term in _known(pieces) for word in _apart(term))
    needles = _needles(word for piece in pieces for word in piece.split())
    return Pattern(matches, tuple(dict.fromkeys(terms)), needles)


def path_pattern(text: str) -> Pattern:
    """What finds paths: ``*`` stands for any characters. A path matches as a whole, or from one of
    its folders on.

    Raises:
        UsageError: it is empty.
    """
    wanted = text.strip()
    if not wanted.strip("*/"):
        raise UsageError("the pattern names no path: write a path, in which * stands for anything")
    pieces = _STARS.split(wanted.removeprefix("/"))
    glob = Glob(tuple(_STARS.split(wanted)))
    within = Glob(tuple(_STARS.split(f"*/{wanted.removeprefix('/')}")))

    def matches(path: str) -> bool:
        return glob.matches(path) or within.matches(f"/{path.removeprefix('./')}")

    return Pattern(matches, tuple(_known(pieces)), _needles(pieces))


def _words(text: str) -> Pattern:
    words = {word.lower() for word in _WORD.findall(text)}
    if not words:
        raise UsageError(
            "the pattern has no letter or digit: give words, or a pattern as in Bash(…) rules"
        )

    def matches(command: str) -> bool:
        return words <= {word.lower() for word in _WORD.findall(command)}

    terms = (term for word in sorted(words) for term in _known([word]))
    return Pattern(matches, tuple(terms), _needles(filter(str.isascii, sorted(words))))


def _known(pieces: Sequence[str]) -> Iterator[Term]:
    """The words of each piece of a pattern, side by side. At a star a word may go on: the one after it
    is left out, and of the one before it the beginning is known."""
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        folded = fold(piece)
        words = folded.split()
        if number > 0 and words and folded[0] != " ":
            del words[0]
        is_cut = number < last and bool(words) and folded[-1] != " "
        if is_cut and len(words[-1]) < SHORTEST_PART:
            del words[-1]  # too many words begin so
            is_cut = False
        if words and max(map(len, words)) < LONGEST_WORD:
            yield Term(tuple(words), is_cut)


def _apart(term: Term) -> Iterator[Term]:
    """The words of a term each by itself, as there may be others between them."""
    *others, last = term.words
    yield from (Term((word,)) for word in others)
    yield Term((last,), term.is_prefix)


def _needles(pieces: Iterable[str]) -> tuple[str, ...]:
    found = (found for piece in pieces for found in _PLAIN.findall(piece))
    return tuple(dict.fromkeys(needle for needle in found if needle.strip(" ")))
