"""Tool calls of the record: counts, commands, and a search through their inputs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Row,
    ScalarSelect,
    Select,
    Text,
    and_,
    cast,
    column,
    exists,
    func,
    literal,
    or_,
    select,
)

from runner.core.search import LONGEST_WORD, SHORTEST_PART, Query, Term, fold
from runner.errors import RunnerError, UsageError
from runner.permissions import Rule, ToolContext
from runner.permissions import rules as syntax
from runner.permissions.accesses import accesses_of
from runner.permissions.rules import UNANALYZABLE, Glob, ParsedRule
from runner.queries.filters import CALLED_AT, KEY, NEWEST_FIRST, STATE, TOOK, Filters, of_calls
from runner.queries.find import descendant_ids
from runner.queries.rows import Column, Rows, at_most, cut, labelled
from runner.queries.search.index import needs_of
from runner.queries.search.search import open_index
from runner.store import ids
from runner.store.conditions import APPROVAL_OF_CALL
from runner.store.database import Database, to_json
from runner.store.tables import approvals, blocks, hook_runs, runs, tool_calls

_TOOL_COLUMNS = (
    Column("tool"),
    Column("outcome"),
    Column("calls", "integer"),
    Column("runs", "integer"),
    Column("seconds", "seconds"),
    Column("average", "seconds"),
    Column("longest", "seconds"),
    Column("first_at", "time"),
    Column("last_at", "time"),
)


def tool_rows(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """A row for each tool and what came of its calls, the most frequent first.

    ``outcome`` is that of a call that has one, else ``interrupted`` (its run ended first), ``started``
    or ``pending``. ``seconds`` is what its calls took together, None if none of them ran.
    """
    each = of_calls(
        filters,
        tool_calls.c.name,
        STATE.label("outcome"),
        tool_calls.c.run_id,
        TOOK.label("duration"),
        CALLED_AT.label("at"),
    ).subquery()
    # SQLite sorts what it groups, which takes longest: it does so once.
    query = (_at_once(each) if database.dialect == "sqlite" else _run_by_run(each)).limit(
        at_most(limit)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return cut(_TOOL_COLUMNS, [tuple(row) for row in rows], limit, "the most frequent")


def _at_once(each: FromClause) -> Select[Any]:
    one = each.c
    calls, seconds = func.count(), func.sum(one.duration)
    return (
        select(
            one.name,
            one.outcome,
            calls,
            func.count(one.run_id.distinct()),
            seconds,
            seconds / func.nullif(func.count(one.duration), 0),
            func.max(one.duration),
            func.min(one.at),
            func.max(one.at),
        )
        .group_by(one.name, one.outcome)
        .order_by(calls.desc(), one.name, one.outcome)
    )


def _run_by_run(each: FromClause) -> Select[Any]:
    """Runs are counted after their calls were put together: Postgres sorts to count what is different."""
    of_run = each.c
    by_run = (
        select(
            of_run.name,
            of_run.outcome,
            func.count().label("calls"),
            func.sum(of_run.duration).label("seconds"),
            func.count(of_run.duration).label("timed"),
            func.max(of_run.duration).label("longest"),
            func.min(of_run.at).label("first_at"),
            func.max(of_run.at).label("last_at"),
        )
        .group_by(of_run.run_id, of_run.name, of_run.outcome)
        .subquery()
    )
    one = by_run.c
    calls, seconds = cast(func.sum(one.calls), Integer), func.sum(one.seconds)
    return (
        select(
            one.name,
            one.outcome,
            calls,
            func.count(),
            seconds,
            seconds / func.nullif(func.sum(one.timed), 0),
            func.max(one.longest),
            func.min(one.first_at),
            func.max(one.last_at),
        )
        .group_by(one.name, one.outcome)
        .order_by(calls.desc(), one.name, one.outcome)
    )


# With more of them, the newest calls are as likely to have what is looked for.
MOST_CANDIDATES = 20_000
# To index more takes longer than to look at every call.
MOST_UNINDEXED = 5_000

Message = tuple[str, int]


class _TooFarBehindError(RunnerError):
    """The index lacks so much that nobody should wait for it here."""


def candidates(
    database: Database, filters: Filters, terms: Sequence[Term], tool: str | None = None
) -> list[Message] | None:
    """The replies that ask for a call with all of these in its input, and perhaps others.

    Args:
        filters: of these the job's and the run's count.
        terms: what the index is asked for; none: it cannot tell.
        tool: only calls of this one.

    Returns:
        The run and the number of each, or None where the index cannot tell: they are too many, or
        it is not there, does not answer, or is far behind.
    """
    if not terms:
        return None
    only = Filters(job_id=filters.job_id, run_id=filters.run_id, tool=tool)
    try:
        with open_index(database).up_to_date(_refuse_to_wait) as index:
            query = Query(tuple(terms))
            under = descendant_ids(database, only.run_id) if only.run_id else ()
            needs = needs_of(index, query, only, ["input"], "assistant", time.time(), under)
            found = index.find(needs, max(MOST_CANDIDATES + 1, 0))
            if len(found) > MOST_CANDIDATES:
                return None
    except RunnerError:  # whatever it is: every call can be looked at instead
        return None
    return list(dict.fromkeys((each.place.run_id, each.place.message) for each in found))


def _refuse_to_wait(done: int, all: int) -> None:
    if all - done > MOST_UNINDEXED:
        raise _TooFarBehindError("the index of searches is far behind: see `runner db reindex`")


Key = tuple[str, int, int]

_BATCH = 250
_LISTED = 5_000
# So many times what the caller takes are looked at one by one before all others are searched.
_MORE = 10
_ASKS = and_(
    blocks.c.run_id == tool_calls.c.run_id,
    blocks.c.message == tool_calls.c.message,
    blocks.c.type == "tool_use",
)
_ANSWERS = blocks.alias()


@dataclass(frozen=True, slots=True)
class Walked:
    """A tool call. ``row`` has its columns, ``at``, ``state``, ``took``, ``item_key``, its approval's
    ``answer`` and ``answered_by``, and ``edited_input``, which a person or a hook had it run with instead.
    ``asked`` is the input that the model gave, and ``answer`` what came of it, where that was asked
    for."""

    row: Row[Any]
    asked: Any
    answer: Any = None


def walk(
    connection: Connection,
    filters: Filters,
    *conditions: ColumnElement[bool],
    limit: int | None,
    needles: Sequence[str] = (),
    among: Sequence[Message] | None = None,
    answers: bool = False,
) -> Iterator[Walked]:
    """Calls with what was said in them, the newest first, as far as the caller goes.

    Args:
        limit: after so many the caller has had enough; it may pass over some.
        needles: the caller passes over calls that do not have all of these in their input, in
            whatever case (``Pattern.needles``).
        among: the caller passes over calls that none of these replies asked for
            (``candidates``). None: any may do.
        answers: with what came of them.
    """
    calls = of_calls(filters, *KEY, CALLED_AT.label("at")).where(*conditions)
    newest = calls.order_by(*NEWEST_FIRST)
    lots: Iterable[Iterable[Any]]
    if among is None:
        lots = map(connection.execute, _lots(connection, newest, limit, needles))
    else:
        lots = [_chosen(connection, calls, among)]
    seen: set[Key] = set()
    for lot in lots:
        keys = [key for key in dict.fromkeys(map(_key, lot)) if key not in seen]
        seen.update(keys)
        for start in range(0, len(keys), _BATCH):
            yield from _read(connection, keys[start : start + _BATCH], answers)


def _lots(
    connection: Connection, newest: Select[Any], limit: int | None, needles: Sequence[str]
) -> Iterator[Select[Any]]:
    """The keys of a few calls, of more, and at last of all, as the caller goes on. All of them are
    searched for the needles where they are, before any is read."""
    if limit is not None:
        if not needles:
            yield newest_few(connection, newest, max(limit, _BATCH))
        yield newest_few(connection, newest, _MORE * limit)
    if needles:
        newest = newest.where(or_(_has(connection, needles), _WAS_EDITED))
    yield newest


def oldest_of_the_newest(count: int) -> ScalarSelect[Any]:
    """The id of the oldest of so many of the newest runs: ids are in the order that they were made in."""
    return select(runs.c.id).order_by(runs.c.id.desc()).offset(count - 1).limit(1).scalar_subquery()


_NEWEST_RUNS = oldest_of_the_newest(200)


def newest_few(connection: Connection, newest: Select[Any], most: int) -> Select[Any]:
    """The newest few calls of a query that has their ``at`` and gives the newest first.

    None is older than the oldest of so many calls of the newest runs, where these have so many. Runs are
    gone through from the oldest on: without that each call is sorted in, as the newest so far, and out
    again.
    """
    of_newest = newest.where(tool_calls.c.run_id >= _NEWEST_RUNS).limit(most)
    times = [row.at for row in connection.execute(of_newest)]
    if len(times) < most:
        return newest.limit(most)
    return newest.where(times[-1] <= CALLED_AT).limit(most)


def _chosen(connection: Connection, calls: Select[Any], among: Sequence[Message]) -> list[Row[Any]]:
    """The keys of the calls that these replies ask for, and of those that a person or a hook changed:
    what they ran with is in no index."""
    was_edited = and_(APPROVAL_OF_CALL, approvals.c.edited_input.is_not(None))
    found = list(connection.execute(calls.join(approvals, was_edited)))
    was_updated = and_(_HOOK_OF_CALL, tool_calls.c.updated_input.is_not(None))
    found += connection.execute(calls.join(hook_runs, was_updated))
    wanted = sorted(among)
    for start in range(0, len(wanted), _LISTED):
        listed = _listed(connection, wanted[start : start + _LISTED])
        found += connection.execute(calls.join(listed, _is_in(listed)))
    return sorted(found, key=lambda row: (row.at, *_key(row)), reverse=True)


_WAS_EDITED = or_(
    tool_calls.c.updated_input.is_not(None),
    exists().where(APPROVAL_OF_CALL, approvals.c.edited_input.is_not(None)),
)
# Few runs have hooks: all calls need not be looked at for those that one has changed.
_HOOK_OF_CALL = and_(
    hook_runs.c.run_id == tool_calls.c.run_id,
    hook_runs.c.message == tool_calls.c.message,
    hook_runs.c.position == tool_calls.c.position,
    hook_runs.c.event == "PreToolUse",
)
_RAN_WITH: ColumnElement[Any] = func.coalesce(
    approvals.c.edited_input, tool_calls.c.updated_input, type_=JSON
)


def _has(connection: Connection, needles: Sequence[str]) -> ColumnElement[bool]:
    """Whether the reply of a call has the needles among what it asks for, in whatever case: that is
    what LIKE does on SQLite (https://sqlite.org/lang_expr.html#like), and ILIKE on Postgres."""
    stored = cast(blocks.c.content, Text)
    like = stored.like if connection.dialect.name == "sqlite" else stored.ilike
    return exists().where(_ASKS, *(like(f"%{_escaped(each)}%", escape="/") for each in needles))


def _escaped(needle: str) -> str:
    return needle.replace("/", "//").replace("%", "/%").replace("_", "/_")


def _read(connection: Connection, keys: Sequence[Key], answers: bool) -> Iterator[Walked]:
    """These calls with their inputs. A call has the place among its reply's calls that its block has
    among the blocks that ask for tools."""
    found: dict[Key, list[Row[Any]]] = {}
    listed = _listed(connection, [key[:2] for key in keys])
    for row in connection.execute(_details(listed, answers)):
        found.setdefault(_key(row), []).append(row)
    for key in keys:
        rows = found.get(key, [])
        if key[2] < len(rows):
            row = rows[key[2]]
            answer = (row.answered or {}).get("content") if answers else None
            yield Walked(row, row.content.get("input"), answer)


def _details(listed: FromClause, answers: bool) -> Select[Any]:
    query = (
        select(
            tool_calls,
            CALLED_AT.label("at"),
            STATE.label("state"),
            TOOK.label("took"),
            runs.c.item_key,
            approvals.c.answer,
            approvals.c.answered_by,
            _RAN_WITH.label("edited_input"),
            blocks.c.content,
        )
        .select_from(listed)
        .join(tool_calls, _is_in(listed))
        .join(runs, runs.c.id == tool_calls.c.run_id)
        .join(blocks, _ASKS)
        .outerjoin(approvals, APPROVAL_OF_CALL)
        .order_by(*KEY, blocks.c.position)
    )
    if not answers:
        return query
    answers_it = and_(
        _ANSWERS.c.run_id == tool_calls.c.run_id,
        _ANSWERS.c.message == tool_calls.c.message + 1,
        _ANSWERS.c.position == tool_calls.c.position,
        _ANSWERS.c.type == "tool_result",
    )
    return query.outerjoin(_ANSWERS, answers_it).add_columns(_ANSWERS.c.content.label("answered"))


def _listed(connection: Connection, messages: Iterable[Message]) -> FromClause:
    """Messages as a table of their runs and numbers, to be joined with.

    Not as pairs in an IN, for which SQLite looks at every row, nor as an OR of IN lists: with what
    ANALYZE tells it, SQLite 3.40 passes over rows then.
    """
    is_sqlite = connection.dialect.name == "sqlite"
    given = literal(to_json([*dict.fromkeys(messages)]), Text)
    each = (
        func.json_each(given) if is_sqlite else func.json_array_elements(cast(given, JSON))
    ).table_valued(column("value", JSON))
    pair = each.c.value
    return select(
        pair[0].as_string().label("run_id"), pair[1].as_integer().label("message")
    ).subquery("listed")


def _is_in(listed: FromClause) -> ColumnElement[bool]:
    return and_(tool_calls.c.run_id == listed.c.run_id, tool_calls.c.message == listed.c.message)


def _key(row: Row[Any]) -> Key:
    return row.run_id, row.message, row.position


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
        return _words_pattern(text)
    rule = f"Bash({text})"
    if (problem := syntax.problem(rule)) is not None:
        raise UsageError(f"{problem}; to find words, leave out the *")
    parsed = ParsedRule.of(Rule("deny", rule))

    def matches(command: str) -> bool:
        parts = accesses_of("Bash", {"command": command}, ToolContext())
        return any(part.catches(parsed) is not None for part in parts)

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


def _words_pattern(text: str) -> Pattern:
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


_COMMAND_COLUMNS = (
    Column("call_id"),
    Column("at", "time"),
    Column("run_id"),
    Column("item"),
    Column("turn", "integer"),
    Column("outcome"),
    Column("seconds", "seconds"),
    Column("decision"),
    Column("rule"),
    Column("answer"),
    Column("answered_by"),
    Column("ran"),
    Column("command"),
)
MOST_TAKEN_APART = 1_000

_IS_BASH = tool_calls.c.name == "Bash"


def command_rows(
    database: Database, filters: Filters, pattern: str | None = None, *, limit: int | None = None
) -> Rows:
    """The calls of Bash, the newest first. ``command`` is what the model asked for, and ``ran`` what
    a person or a hook had it run instead.

    Args:
        pattern: only commands that it finds: ``command_pattern``. One
            without a word, as ``:opaque``, is tried on the newest calls alone unless all are asked for.

    Raises:
        UsageError: the pattern can match nothing.
    """
    wanted = None if pattern is None else command_pattern(pattern)
    among = candidates(database, filters, wanted.terms, "Bash") if wanted else None
    needles = wanted.needles if wanted else ()
    most = at_most(limit)
    # What no index and no search narrows is taken apart one by one, a thousand in a third of a second.
    is_slow = wanted is not None and not needles and limit is not None

    def work(connection: Connection) -> tuple[list[tuple[Any, ...]], bool]:
        found: list[tuple[Any, ...]] = []
        calls = walk(connection, filters, _IS_BASH, limit=most, needles=needles, among=among)
        for looked_at, walked in enumerate(calls):
            if is_slow and looked_at == MOST_TAKEN_APART:
                return found, True
            row = _command_row(walked)
            if wanted is None or any(wanted.matches(text) for text in row[-2:] if text):
                found.append(row)
            if len(found) == most:
                break
        return found, False

    found, is_given_up = database.read(work)
    answer = labelled(database, cut(_COMMAND_COLUMNS, found, limit, "the newest"))
    if is_given_up:
        answer.note = (
            f"only the newest {MOST_TAKEN_APART:,} commands were looked at: narrow with --job or "
            "--since (--limit 0 looks at all, which takes long)"
        )
    return answer


def _command_row(walked: Walked) -> tuple[Any, ...]:
    call = walked.row
    return (
        ids.call_id(call.run_id, call.turn, call.position),
        call.at,
        call.run_id,
        call.item_key,
        call.turn,
        call.state,
        call.took,
        call.decision,
        call.rule,
        call.answer,
        call.answered_by,
        None if call.edited_input is None else _command(call.edited_input),
        _command(walked.asked),
    )


def _command(arguments: Any) -> str | None:
    """The command in an input, whatever a model gave as one."""
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else None
