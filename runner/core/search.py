"""The meaning of a search: words, the query language, matching and excerpts.

A word is a run of letters and digits; everything else separates. Case and accents do not count.
Invisible characters (joiners, soft hyphens, marks of direction) are dropped, so that nothing hides
behind them. In scripts written without spaces each character is a word.

Folding works on one character at a time: the fold of two texts joined is their two folds joined. So
a part of a text is found in it, wherever it was cut.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from base64 import b32encode
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, islice, takewhile
from typing import Literal

from runner.errors import UsageError

Source = Literal["text", "thinking", "input", "output", "system"]
# A user's words in an imported session are a person's, a machine's, or a peer's (another agent).
Role = Literal["user", "assistant", "person", "machine", "peer"]
SOURCES: tuple[Source, ...] = ("text", "thinking", "input", "output", "system")
ROLES: tuple[Role, ...] = ("user", "assistant", "person", "machine", "peer")

# A longer run (mostly encoded data) counts as several words, and its text is marked LONG.
LONGEST_WORD = 64

# No word starts with it, since it is neither a letter nor a digit.
MARK = "§"
LONG = f"{MARK}long"

LONGEST_QUERY = 2_000
MOST_TERMS = 50
SHORTEST_PREFIX = 2
SHORTEST_PART = 3

EXCERPT_LENGTH = 240

# Han, kana, Thai, Lao, Myanmar and Khmer.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)
_FOLDING = "runner-fold"  # the codec error handler that folds what is not ASCII
_TERM = re.compile(r'(NOT\s+)?(?:"([^"]*)"(\*?)|([^\s"]+))')
_FLAG = re.compile(r"--?\w")
_BLANKS = re.compile(r"\s+")


# Folds a byte of UTF-8: only ASCII changes.
_ASCII = bytes(
    code if code >= 0x80 else ord(chr(code).lower() if chr(code).isalnum() else " ")
    for code in range(256)
)


class _Folds(dict[int, str]):
    """The fold of each character, computed once."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = unicodedata.category(character)
        folded = " "
        if kind[0] == "M" or kind == "Cf":
            folded = ""
        elif character.isalnum():
            # Marks first: the case of the iota below a letter is a letter.
            folded = _unmarked(_unmarked(character).casefold())
            if _UNSPACED.match(character) or "\U00020000" <= character <= "\U0003ffff":
                folded = f" {folded} "
        self[code] = folded
        return folded


_FOLDS = _Folds()


def _unmarked(text: str) -> str:
    parts = unicodedata.normalize("NFD", text)
    return "".join(part for part in parts if unicodedata.category(part)[0] != "M")


def _fold_run(error: UnicodeError) -> tuple[bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    return error.object[error.start : error.end].translate(_FOLDS).encode(), error.end


codecs.register_error(_FOLDING, _fold_run)


def fold(text: str) -> str:
    """Return the words of ``text`` with blanks between them. Each ASCII character becomes one."""
    return text.encode("ascii", _FOLDING).translate(_ASCII).decode()


def words_of(text: str) -> list[str]:
    return split(fold(text))


def split(folded: str) -> list[str]:
    """Return the words of a folded text, in order."""
    runs = folded.split()
    if max(map(len, runs), default=0) <= LONGEST_WORD:
        return runs
    return [piece for run in runs for piece in pieces(run)]


def pieces(run: str) -> Iterator[str]:
    """Yield the words that a run of letters and digits counts as."""
    for start in range(0, len(run), LONGEST_WORD):
        yield run[start : start + LONGEST_WORD]


@lru_cache(maxsize=4096)
def facet(kind: str, value: str) -> str:
    """Return the index word for a property of a text, such as its run; a letter names the kind."""
    digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return f"{MARK}{kind}{b32encode(digest).decode().rstrip('=').lower()}"


@dataclass(frozen=True, slots=True)
class Term:
    """Words that stand side by side."""

    words: tuple[str, ...]
    is_prefix: bool = False  # the last word may go on

    def __str__(self) -> str:
        words = " ".join(self.words)
        return (f'"{words}"' if len(self.words) > 1 else words) + ("*" if self.is_prefix else "")


@dataclass(frozen=True, slots=True)
class Query:
    """A text matches if it has every wanted term, no unwanted one, and the exact text."""

    wanted: tuple[Term, ...]
    unwanted: tuple[Term, ...] = ()
    exact: str | None = None

    def __str__(self) -> str:
        wanted = " and ".join(map(str, self.wanted))
        if self.exact is not None:
            wanted += f"{' and ' if wanted else ''}exactly {self.exact!r}"
        unwanted = " or ".join(map(str, self.unwanted))
        return wanted + (f", without {unwanted}" if unwanted else "")


@dataclass(frozen=True, slots=True)
class Parts:
    """Facts about the words around an exact text. An empty part has none."""

    whole: tuple[str, ...] = ()  # words that stand side by side
    first: str = ""  # how the word before them ends
    last: str = ""  # how the word after them starts
    inner: str = ""  # the exact text lies within one word; the other parts are empty


def parse(text: str, exact: str | None = None) -> Query:
    """Parse a search. ``exact`` must be there letter by letter; with it, ``text`` may be empty.

    ``words`` must all be there, in any order. The words of ``"a phrase"`` stand side by side, and so do
    words that are joined by anything but a blank (``parse_call_id``, ``src/main.py``), and all words of a
    text that looks like a command because a word begins with a hyphen (``rm -rf``). ``pre*`` finds words
    that start so. ``NOT word``, ``NOT "a phrase"`` and ``NOT pre*`` must not be there.
    """
    if len(text) > LONGEST_QUERY or len(exact or "") > LONGEST_QUERY:
        raise UsageError(f"a search has at most {LONGEST_QUERY:,} characters: give less of it")
    if text.count('"') % 2:
        raise UsageError('a phrase has no closing quote: add a "')
    terms: dict[bool, list[Term]] = {False: [], True: []}
    for is_not, phrase, star, plain in _terms_in(text):
        if "*" in plain[:-1]:
            raise UsageError(f"{plain!r} has a * inside: put it at the end of a word")
        term = _term(phrase or plain.removesuffix("*"), bool(star) or plain.endswith("*"))
        if term is None:
            raise UsageError(
                f"{plain or phrase!r} has no letter or digit: use --exact for such a text, and NOT to "
                "exclude"
            )
        terms[bool(is_not)].append(term)
    wanted, unwanted = map(tuple, terms.values())
    found = parts_of(exact or "")
    longest = max(map(len, (found.first, found.last, found.inner)))
    if exact is not None and not found.whole and longest < SHORTEST_PART:
        raise UsageError(
            f"{exact!r} has no {SHORTEST_PART} letters or digits in a row, nor a whole word: "
            "give more of the text"
        )
    if len(wanted) + len(unwanted) > MOST_TERMS:
        raise UsageError(f"a search has at most {MOST_TERMS} terms: leave some out")
    if not wanted and exact is None:
        what = "only words to exclude" if unwanted else "no words"
        raise UsageError(f"the search has {what}: add a word that a match must contain")
    return Query(wanted, unwanted, exact)


def _terms_in(text: str) -> list[tuple[str, str, str, str]]:
    """Return the groups of ``_TERM`` for each term. A command with options is one phrase."""
    terms = _TERM.findall(text)
    words = [plain for is_not, _, _, plain in terms if not is_not]
    if any(map(_FLAG.match, words)) and all(word and "*" not in word for word in words):
        return [("", " ".join(words), "", ""), *(term for term in terms if term[0])]
    return terms


def _term(text: str, is_prefix: bool) -> Term | None:
    words = tuple(words_of(text))
    if not words:
        return None
    if is_prefix and (not text[-1].isalnum() or len(words[-1]) < SHORTEST_PREFIX):
        raise UsageError(
            f"'{text}*' has no word to begin with: give at least {SHORTEST_PREFIX} letters before the *"
        )
    is_cut = is_prefix and fold(text)[-1] != " " and len(words[-1]) < LONGEST_WORD
    return Term(words, is_cut)


def parts_of(exact: str) -> Parts:
    """Return the parts of an exact text that the index can answer."""
    folded = fold(exact)
    runs = folded.split()
    if not runs:
        return Parts()
    starts_whole, ends_whole = folded[0] == " ", folded[-1] == " "
    if len(runs) == 1 and not starts_whole and not ends_whole:
        return Parts(inner=runs[0])
    first = "" if starts_whole else runs.pop(0)
    last = "" if ends_whole else runs.pop()
    return Parts(tuple(word for run in runs for word in split(run)), first, last)


class Matcher:
    """Tries a query on many texts. The score is like Okapi BM25
    (https://en.wikipedia.org/wiki/Okapi_BM25), but counts how close the words stand and not how
    rare they are: every word must be there."""

    _USUAL_WORDS = 300
    _SATURATION = 1.2
    _LENGTH_COUNTS = 0.75
    _MOST_PLACES = 200
    _NEAR = 60  # characters: within a line

    def __init__(self, query: Query) -> None:
        self._wanted = [_needle(term) for term in query.wanted]
        self._unwanted = [_needle(term) for term in query.unwanted]
        self._exact = query.exact

    def score(self, text: str) -> float | None:
        """Return how well a text matches, above 0, or None if it does not match."""
        if self._exact is not None and self._exact not in text:
            return None
        words = words_of(text)
        spaced = f" {' '.join(words)} "
        if not all(needle in spaced for needle in self._wanted):
            return None
        if any(needle in spaced for needle in self._unwanted):
            return None
        counts = [spaced.count(needle) for needle in self._wanted]
        if self._exact is not None:
            counts.append(text.count(self._exact))
        length = 1 - self._LENGTH_COUNTS + self._LENGTH_COUNTS * len(words) / self._USUAL_WORDS
        score = sum(count / (count + self._SATURATION * length) for count in counts)
        return score * (1 + self._nearness(spaced))

    def _nearness(self, spaced: str) -> float:
        """Return 1 if all wanted terms stand in one line, and less the further they are apart."""
        if len(self._wanted) < 2:
            return 0.0
        places = sorted(
            (place.start(), number)
            for number, needle in enumerate(self._wanted)
            for place in islice(re.finditer(f"(?={re.escape(needle)})", spaced), self._MOST_PLACES)
        )
        shortest, last = places[-1][0], dict[int, int]()
        for place, number in places:
            last[number] = place
            if len(last) == len(self._wanted):
                shortest = min(shortest, place - min(last.values()))
        return self._NEAR / max(shortest, self._NEAR)


def _needle(term: Term) -> str:
    """Return a part that the blank-separated words of a text contain if it has the term."""
    return f" {' '.join(term.words)}{'' if term.is_prefix else ' '}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    text: str  # runs of blanks are one blank; … at an end stands for what is left out there
    marks: tuple[tuple[int, int], ...] = ()  # start and end of each match in it


_BEFORE = 60  # characters shown before the first match
_LONGEST_EDGE = 24
_MOST_SPANS = 50


def excerpt(text: str, query: Query, length: int = EXCERPT_LENGTH) -> Excerpt:
    """Return the part of ``text``, about ``length`` characters, that shows most of the query."""
    spans = _spans(text, query)
    start = max(0, _best_start(spans, length - _BEFORE) - _BEFORE)
    edge = text[max(0, start - _LONGEST_EDGE) : start]  # only long words are cut
    start -= sum(1 for _ in takewhile(str.isalnum, reversed(edge)))
    end = min(len(text), start + length)
    end += sum(1 for _ in takewhile(str.isalnum, text[end : end + _LONGEST_EDGE]))
    return _excerpt_of(text, start, end, spans)


# Start and end of a match in a text, and the number of the wanted term (-1: the exact text).
_Span = tuple[int, int, int]


def _spans(text: str, query: Query) -> list[_Span]:
    spans: list[_Span] = []
    folded = fold(text)
    sums: Sequence[int] = range(len(text) + 1)  # the length of the fold before each offset
    if not text.isascii():
        sums = [*accumulate(map(_fold_length, text), initial=0)]
    for number, term in enumerate(query.wanted):
        for found in islice(_pattern(term).finditer(folded), _MOST_SPANS):
            start = bisect_right(sums, found.start()) - 1
            # after any accent there
            end = bisect_right(sums, sums[bisect_left(sums, found.end())]) - 1
            spans.append((start, end, number))
    if query.exact:
        exact = re.finditer(re.escape(query.exact), text)
        spans += [(*found.span(), -1) for found in islice(exact, _MOST_SPANS)]
    return sorted(spans)


def _pattern(term: Term) -> re.Pattern[str]:
    pattern = r"(?<!\S)"
    for word in term.words[:-1]:
        between = " *" if len(word) == LONGEST_WORD else " +"  # a long run has no blank here
        pattern += re.escape(word) + between
    return re.compile(
        pattern + re.escape(term.words[-1]) + (r"\S*" if term.is_prefix else r"(?!\S)")
    )


@lru_cache(maxsize=65_536)
def _fold_length(character: str) -> int:
    return len(fold(character))


def _best_start(spans: Sequence[_Span], width: int) -> int:
    """Return the start of the stretch that has the most parts of the query, most often."""

    def parts_from(start: int) -> tuple[int, int]:
        within = [number for at, end, number in spans if start <= at < start + width >= end]
        return len(set(within)), len(within)

    return max((start for start, _, _ in spans), key=parts_from, default=0)


def _excerpt_of(text: str, start: int, end: int, spans: Sequence[_Span]) -> Excerpt:
    """Return the part with single blanks, piece by piece so that the marks stay right."""
    shown, marks, at = "…" if start else "", [], start
    for from_, to, _ in spans:
        if from_ < at or from_ >= end:
            continue
        shown = _with(shown, text[at:from_])
        marked = _BLANKS.sub(" ", text[from_ : min(to, end)])
        marks.append((len(shown), len(shown) + len(marked)))
        shown += marked
        at = min(to, end)
    shown = _with(shown, text[at:end]).rstrip()
    return Excerpt(shown + ("…" if end < len(text) else ""), tuple(marks))


def _with(shown: str, more: str) -> str:
    spaced = _BLANKS.sub(" ", more)
    return shown + (spaced.lstrip() if shown in ("", "…") or shown.endswith(" ") else spaced)
