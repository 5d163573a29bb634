"""Declarations of job-file keys, and the reader of a table that follows them.

A ``Table`` declares keys, each with its ``Type``; a ``Section`` is a table of a job file, read. Problems
are noted with their places, not raised, so that all of them are found.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

from runner.errors import Problem
from runner.jobfile import values
from runner.jobfile.lines import Excerpts, Part, Path, locate, place
from runner.jobfile.values import BadValueError, kind, line_problem, listed, shown, text_problem

T = TypeVar("T")
Check = Callable[[Any], str | None]  # returns what is wrong with a value, or None


class Node:
    """A place in a job file, at which problems can be noted."""

    def __init__(self, path: Path, problems: list[Problem], elsewhere: Mapping[str, str]) -> None:
        self.path = path
        self.problems = problems  # of the whole file
        self.elsewhere = elsewhere  # keys of other sections, and where they belong

    @property
    def place(self) -> str:
        return place(*self.path)

    def at(self, *parts: Part) -> Node:
        return Node((*self.path, *parts), self.problems, self.elsewhere)

    def note(self, message: str, *parts: Part) -> None:
        """Add a problem here, or at a place below."""
        self.problems.append(Problem(place(*self.path, *parts), message))

    def attempt(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return what the function returns, or None after noting the ``BadValueError`` it raises."""
        try:
            return function(*arguments)
        except BadValueError as error:
            self.note(str(error))
            return None

    def is_wrong(self) -> bool:
        """True if a problem was noted here or below."""
        return any(problem.place.startswith(self.place) for problem in self.problems)

    @contextmanager
    def noting_at_most(self, most: int, rest: str) -> Iterator[None]:
        """Drop the problems noted within after the first ``most``, and note ``rest`` with their number."""
        end = len(self.problems) + most
        yield
        if more := len(self.problems[end:]):
            del self.problems[end:]
            self.note(rest.format(f"{more:,}"))


@dataclass(frozen=True, slots=True)
class Type:
    words: str  # in the tables of docs/
    schema: Mapping[str, Any]  # JSON Schema, draft 4
    read: Callable[[Any, Node], Any]  # returns a TOML value as used; raises BadValueError
    table: Table | None = None  # of a [section]


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    type: Type
    default: Any = None  # as in TOML; None: no value
    doc: str = ""  # one line of Markdown
    stands_for: str | None = None  # in the tables of docs/ in place of the default
    needed: str = ""  # what it is, if it must be given
    needs: str = ""  # the key without which it does nothing
    modes: tuple[str, ...] = ()  # of the workspace, if it is only for some
    example: Any = None


@dataclass(frozen=True, slots=True)
class Table:
    name: str  # in the markers of docs/
    keys: tuple[Key, ...]
    # Groups of keys that exclude each other; with a text (their name) one of them is required.
    groups: tuple[tuple[tuple[str, ...], str], ...] = ()
    is_open: bool = False  # takes other keys too
    noun: str = "key"  # what messages call the names

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(key.name for key in self.keys)


UNKNOWN = "unknown"  # begins the message of a problem that is the key's own
_ADVICE = {
    "concurrency": "; how many runs one process works at once is `-c N`, not in the job file"
}
_REPLACED = {"on_ask": 'write [notify] with on = ["needs_approval"] and command = "…" instead'}


class Section(Node):
    """A table of a job file, read; ``section[key]`` is the value of a key, or its default."""

    def __init__(self, table: Table, written: Mapping[str, Any], node: Node) -> None:
        # Only a [section] can have keys of another: deeper tables repeat the names of some.
        elsewhere = dict(node.elsewhere) if len(node.path) < 2 else {}
        inner: dict[str, list[str]] = {}
        for key in table.keys:
            for name in key.type.table.names if key.type.table else ():
                inner.setdefault(name, []).append(f"in [{place(*node.path, key.name)}]")
        elsewhere |= {name: " or ".join(places) for name, places in inner.items()}
        super().__init__(node.path, node.problems, elsewhere)
        self.table = table
        self.written = written
        if not table.is_open:
            self._note_unknown_keys()
        self.values = {key.name: self._value_of(key) for key in table.keys}
        for names, needed in table.groups:
            given = [name for name in names if name in self]
            if len(given) > 1:
                self.note(f"give only one of {listed(names)}, not {listed(given)}", given[-1])
                self.values.update(dict.fromkeys(names))
            elif not given and needed:
                at = self if self.path else self.at(names[0])
                at.note(f"one of {listed(names)} is needed: {needed}")

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.written

    def fill(self, cls: Callable[..., T], **others: Any) -> T:
        """Return a value object, its fields from ``others`` and from the keys of the same names."""
        names = {field.name for field in fields(cast(Any, cls))} & self.values.keys()
        return cls(**{**{name: self.values[name] for name in names}, **others})

    def _value_of(self, key: Key) -> Any:
        at = self.at(key.name)
        value = None
        if key.name in self:
            if key.needs and key.needs not in self:
                at.note(f"does nothing without {key.needs}; give that too")
            value = at.attempt(key.type.read, self.written[key.name], at)
        elif key.needed and self.path:
            self.note(f"the key {key.name} is missing: {key.needed}")
        elif key.needed:
            at.note(f"is missing: {key.needed}")
        if value is not None or key.default is None:
            return value
        return () if key.default == [] else key.type.read(key.default, at)

    def _note_unknown_keys(self) -> None:
        noun, known = self.table.noun, self.table.names
        elsewhere = self.elsewhere if noun == "key" else {}
        for key in self.written:
            if key in known:
                continue
            message = f"{UNKNOWN} {noun} {shown(key)}"
            near = difflib.get_close_matches(key, known, 1, 0.8 if key in elsewhere else 0.6)
            far = difflib.get_close_matches(key, elsewhere.keys() - {key}, 1, 0.8)
            if key in _REPLACED:
                message += f": {_REPLACED[key]}"
            elif near and difflib.get_close_matches(key, near + far, 1) == near:
                message += f"; did you mean {near[0]}?"
            elif key in elsewhere:
                message += f" here; it belongs {elsewhere[key]}"
            elif far:
                message += f"; did you mean {far[0]}, which belongs {elsewhere[far[0]]}?"
            else:
                message += f"; known {'here:' if noun == 'key' else 'are'} {', '.join(known)}"
            self.note(message + _ADVICE.get(key, ""), key)


def checked(words: str, schema: Mapping[str, Any], check: Check) -> Type:
    """Any value that has no problem, unchanged."""

    def read(value: Any, node: Node) -> Any:
        if wrong := check(value):
            raise BadValueError(wrong)
        return value

    return Type(words, schema, read)


def text(most: int = 0, words: str = "string", check: Check | None = None) -> Type:
    """A string that is not blank; with ``most``, one line of at most ``most`` characters."""

    def wrong(value: Any) -> str | None:
        if not isinstance(value, str):
            return f"must be a string, not {kind(value)}"
        found = text_problem(value) if value.strip() else "is empty"
        return found or (line_problem(value, most) if most else None) or (check and check(value))

    longest = {"maxLength": most} if most else {}
    return checked(words, {"type": "string", "pattern": r"\S", **longest}, wrong)


flag = checked(
    "boolean",
    {"type": "boolean"},
    lambda value: None if isinstance(value, bool) else f"must be true or false, not {kind(value)}",
)


def choice(*options: str) -> Type:
    quoted = [f'"{option}"' for option in options]

    def wrong(value: Any) -> str | None:
        if isinstance(value, str) and value in options:
            return None
        got = shown(value) if isinstance(value, str) else kind(value)
        near = difflib.get_close_matches(value, options, 1) if isinstance(value, str) else ()
        meant = "".join(f"; did you mean {option}?" for option in near)
        return f"must be {' or '.join(quoted)}, not {got}{meant}"

    words = listed([f"`{option}`" for option in quoted], "or")
    return checked(words, {"enum": list(options)}, wrong)


def integer(most: int, least: int = 1) -> Type:
    def wrong(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be an integer, not {kind(value)}"
        if least <= value <= most:
            return None
        bound = f"least {least}" if value < least else f"most {most:,}"
        return f"must be at {bound}, not {shown(value)}"

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return checked(f"integer{_bounds(least, most)}", schema, wrong)


def number(least: float, most: float) -> Type:
    """A number, read as a float."""

    def read(value: Any, node: Node) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValueError(f"must be a number, not {kind(value)}")
        if not least <= value <= most:
            bounds = [f"{bound:,f}".rstrip("0").rstrip(".") for bound in (least, most)]
            raise BadValueError(f"must be a number from {' to '.join(bounds)}, not {shown(value)}")
        return float(value)

    schema = {"type": "number", "minimum": least, "maximum": most}
    return Type(f"number{_bounds(least, most)}", schema, read)


def _bounds(least: float, most: float) -> str:
    """Return the bounds in words, if they are narrow enough to matter to a reader."""
    return f" from {least:g} to {most:,g}" if most <= 1_000 else ""


def duration(most: float = values.MOST_SECONDS) -> Type:
    """A number of seconds, or a string such as ``"30m"``; read as seconds."""

    def read(value: Any, node: Node) -> float:
        seconds = math.nan
        if isinstance(value, str):
            seconds = values.seconds_in(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(max(-1, min(value, 10**15)))
        if math.isnan(seconds):
            got = shown(value) if isinstance(value, str | float) else kind(value)
            raise BadValueError(
                f'must be a number of seconds or a string such as "90s", "30m", "8h", not {got}'
            )
        if seconds <= 0:
            raise BadValueError(f"must be more than 0 seconds, not {shown(value)}")
        if seconds > most:
            raise BadValueError(f"must be at most {most:,.0f} seconds, not {shown(value)}")
        return seconds

    bounds = {"minimum": 0, "exclusiveMinimum": True, "maximum": most}
    pattern = f"^\\s*{values.DURATION.pattern}\\s*$"
    return Type("duration", {"type": ["number", "string"], "pattern": pattern, **bounds}, read)


def size(least: int, most: int = 2**50) -> Type:
    """A number of bytes, or a string such as ``"4G"``; read as bytes."""

    def read(value: Any, node: Node) -> int:
        found = value if isinstance(value, int) and not isinstance(value, bool) else None
        if isinstance(value, str):
            found = values.bytes_in(value)
        if found is None:
            got = shown(value) if isinstance(value, str | float) else kind(value)
            raise BadValueError(
                f'must be a number of bytes or a string such as "512M", "4G", not {got}'
            )
        if not least <= found <= most:
            raise BadValueError(f"must be from {least:,} to {most:,} bytes, not {shown(value)}")
        return found

    pattern = f"^\\s*{values.SIZE.pattern}\\s*$"
    bounds = {"minimum": least, "maximum": most}
    return Type("size", {"type": ["integer", "string"], "pattern": pattern, **bounds}, read)


def list_of(
    of: Type,
    plural: str = "strings",
    *,
    words: str = "",
    empty: str = "",
    unique: bool = False,
    placed: bool = False,
) -> Type:
    """A list, read without the elements that have problems.

    Args:
        plural: what messages call the elements.
        words: what the tables of docs/ call them, if not that.
        empty: makes an empty list wrong, and says what to give.
        unique: makes an element that was listed before wrong.
        placed: read each element as a pair of its node and its value.
    """

    def read(value: Any, node: Node) -> tuple[Any, ...]:
        if not isinstance(value, list):
            written = f", written [[{node.place}]]" if plural == "tables" else ""
            raise BadValueError(f"must be a list of {plural}{written}, not {kind(value)}")
        if empty and not value:
            raise BadValueError(f"is empty: {empty}")
        nodes = map(node.at, range(len(value)))
        pairs = [(at, at.attempt(of.read, each, at)) for at, each in zip(nodes, value, strict=True)]
        for index, (at, each) in enumerate(pairs):
            if unique and each is not None and each in value[:index]:
                at.note(f"{shown(each)} is listed twice")
        return tuple((at, each) if placed else each for at, each in pairs if each is not None)

    schema = {"type": "array", "items": of.schema, "minItems": 1 if empty else 0}
    return Type(f"list of {words or plural}", schema, read)


def either(one: Type, many: Type) -> Type:
    """One type, or a list as the other type has it."""

    def read(value: Any, node: Node) -> Any:
        return (many if isinstance(value, list) else one).read(value, node)

    return Type(f"{one.words} or {many.words}", {"anyOf": [one.schema, many.schema]}, read)


def table_of(of: Table) -> Type:
    """A ``[section]``, read as a ``Section``."""

    def read(value: Any, node: Node) -> Section:
        return Section(of, mapping(value, node), node)

    return Type("table", schema_of(of), read, None if of.is_open else of)


def tables_by_name(of: Table) -> Type:
    """Sections ``[key.NAME]``, read as a mapping from names to ``Section``."""
    one = table_of(of)

    def read(value: Any, node: Node) -> dict[str, Section]:
        nodes = {name: node.at(name) for name in mapping(value, node)}
        found = {name: at.attempt(one.read, value[name], at) for name, at in nodes.items()}
        return {name: section for name, section in found.items() if section is not None}

    return Type("tables", {"type": "object", "additionalProperties": one.schema}, read)


def mapping(value: Any, node: Node) -> Mapping[str, Any]:
    """Return a value that must be a table."""
    if isinstance(value, Mapping):
        return value
    *parent, last = node.path
    written = f"[[{place(*parent)}]]" if isinstance(last, int) else f"[{node.place}]"
    raise BadValueError(f"must be a table, written {written}, not {kind(value)}")


def schema_of(table: Table) -> dict[str, Any]:
    """Return the JSON Schema (draft 4) of a table."""
    groups: list[dict[str, Any]] = []
    for names, needed in table.groups:
        one_each = [{"required": [name]} for name in names]
        groups.append({"oneOf": one_each} if needed else {"not": {"required": list(names)}})
    parts = {
        "required": [key.name for key in table.keys if key.needed],
        "dependencies": {key.name: [key.needs] for key in table.keys if key.needs},
        "allOf": groups,
    }
    properties = {}
    for key in table.keys:
        more = {
            "description": re.sub(r"\[(.*?)\]\(.*?\)", r"\1", key.doc),
            "default": None if key.default == {} else key.default,
            "examples": None if key.example is None else [key.example],
        }
        told = {name: each for name, each in more.items() if each is not None}
        properties[key.name] = {**key.type.schema, **told}
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": table.is_open,
        **{keyword: part for keyword, part in parts.items() if part},
    }


def with_lines(problems: Sequence[Problem], text: str) -> tuple[Problem, ...]:
    """Return the problems with their lines, in file order; problems of missing keys first."""
    lines, excerpts = locate(text), Excerpts(text)

    def placed_at(problem: Problem) -> Problem:
        at = problem.place
        while at and at not in lines:
            at = at[: max(at.rfind("."), at.rfind("["), 0)]
        is_of_key = problem.message.startswith(UNKNOWN) or at != problem.place
        excerpt = excerpts.mark(at, the_key=is_of_key)
        return replace(problem, line=lines.get(at), excerpt=excerpt)

    placed = [placed_at(problem) for problem in problems]
    return tuple(sorted(placed, key=lambda problem: problem.line or 0))
