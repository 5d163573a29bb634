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
from runner.queries.filters import (
    CALLED_AT,
    KEY,
    NEWEST_FIRST,
    STATE,
    TOOK,
    Filters,
    at_most,
    cut,
    with_labels,
)
from runner.queries.find import descendant_ids
from runner.queries.rows import Rows, columns
from runner.queries.search.index import needs_of
from runner.queries.search.search import open_index
from runner.store import ids
from runner.store.conditions import APPROVAL_OF_CALL
from runner.store.database import Database, to_json
from runner.store.tables import approvals, blocks, hook_runs, runs, tool_calls

_TOOL_COLUMNS = columns(
    "tool outcome calls:integer runs:integer seconds:seconds average:seconds longest:seconds "
    "first_at:time last_at:time"
)
_COMMAND_COLUMNS = columns(
    "call_id label at:time run_id item turn:integer outcome seconds:seconds decision rule answer "
    "answered_by ran command"
)
# How many commands are analysed for a pattern that neither the index nor SQL can narrow: that takes
# a third of a second.
MOST_TAKEN_APART = 1_000
# More candidates than this, and the newest calls are as likely to match.
MOST_CANDIDATES = 20_000
# Indexing more texts than this takes longer than looking at every call.
MOST_UNINDEXED = 5_000


def tool_rows(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """A row for each tool and outcome of its calls, the most frequent first.

    ``outcome`` is the outcome of a call that has one, else ``interrupted`` (its run ended first),
    ``started`` or ``pending``. ``seconds`` is what the calls took together, None if none of them ran.
    """
    each = filters.tool_calls(
        tool_calls.c.run_id,
        tool_calls.c.name,
        STATE.label("outcome"),
        TOOK.label("duration"),
        CALLED_AT.label("at"),
    ).subquery()
    # Runs are counted after their calls are grouped: COUNT(DISTINCT run_id) would sort all calls.
    one = each.c
    by_run = (
        select(
            one.name,
            one.outcome,
            func.count().label("calls"),
            func.sum(one.duration).label("seconds"),
            func.count(one.duration).label("timed"),
            func.max(one.duration).label("longest"),
            func.min(one.at).label("first_at"),
            func.max(one.at).label("last_at"),
        )
        .group_by(one.run_id, one.name, one.outcome)
        .subquery()
    )
    of_run = by_run.c
    calls, seconds = cast(func.sum(of_run.calls), Integer), func.sum(of_run.seconds)
    query = (
        select(
            of_run.name,
            of_run.outcome,
            calls,
            func.count(),
            seconds,
            seconds / func.nullif(func.sum(of_run.timed), 0),
            func.max(of_run.longest),
            func.min(of_run.first_at),
            func.max(of_run.last_at),
        )
        .group_by(of_run.name, of_run.outcome)
        .order_by(calls.desc(), of_run.name, of_run.outcome)
        .limit(at_most(limit))
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return cut(_TOOL_COLUMNS, [tuple(row) for row in rows], limit, "the most frequent")


def command_rows(
    database: Database, filters: Filters, pattern: str | None = None, *, limit: int | None = None
) -> Rows:
    """The calls of Bash, the newest first. ``command`` is what the model asked for, and ``ran`` what
    a person or a hook replaced it with.

    Args:
        pattern: only commands that match ``command_pattern(pattern)``. A pattern without a word, such
            as ``:opaque``, is tried on the newest calls only, unless ``limit`` is None.

    Raises:
        UsageError: the pattern can match nothing.
    """
    wanted = None if pattern is None else command_pattern(pattern)
    among = candidates(database, filters, wanted.terms, "Bash") if wanted else None
    needles = wanted.needles if wanted else ()
    most = at_most(limit)
    is_slow = wanted is not None and not needles and limit is not None

    def work(connection: Connection) -> tuple[list[tuple[Any, ...]], bool]:
        found: list[tuple[Any, ...]] = []
        is_bash = tool_calls.c.name == "Bash"
        calls = walk(connection, filters, is_bash, limit=most, needles=needles, among=among)
        for number, walked in enumerate(calls):
            if is_slow and number == MOST_TAKEN_APART:
                return found, True
            row = _command_row(walked)
            if wanted is None or any(wanted.matches(text) for text in row[-2:] if text):
                found.append(row)
            if len(found) == most:
                break
        return found, False

    found, is_given_up = database.read(work)
    answer = cut(_COMMAND_COLUMNS, with_labels(database, found), limit, "the newest")
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
    """The command in an input, which a model may have written in any shape."""
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else None


# --- Patterns of commands and paths


@dataclass(frozen=True, slots=True)
class Pattern:
    """What to look for among commands or paths. The terms and the needles narrow the search: a text
    that spells its words in pieces (quotes, backslashes) may match without them."""

    matches: Callable[[str], bool]
    terms: tuple[Term, ...]  # for the search index: every matching text has them
    needles: tuple[str, ...]  # for LIKE: every matching text has them in some case, as JSON does


# Characters that JSON never escapes.
_PLAIN = re.compile(r"[A-Za-z0-9 _./:=,@%+#-]+")
_WORD = re.compile(r"[^\W_]+")
_STARS = re.compile(r"\*+")


def command_pattern(text: str) -> Pattern:
    """A pattern of commands. With a ``*`` it is a pattern of ``Bash(…)`` rules, tried on each command of
    a script as rules are; otherwise words, which must all be there in upper or lower case.

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
    terms: list[Term] = []
    for term in _terms(pieces):  # each word by itself: a command may have others between them
        *others, last = term.words
        terms += [*(Term((word,)) for word in others), Term((last,), term.is_prefix)]
    needles = _needles(word for piece in pieces for word in piece.split())
    return Pattern(matches, tuple(dict.fromkeys(terms)), needles)


def path_pattern(text: str) -> Pattern:
    """A pattern of paths, in which ``*`` stands for any characters. It matches a whole path, or a path
    from one of its folders on.

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

    return Pattern(matches, tuple(_terms(pieces)), _needles(pieces))


def _words_pattern(text: str) -> Pattern:
    words = {word.lower() for word in _WORD.findall(text)}
    if not words:
        raise UsageError(
            "the pattern has no letter or digit: give words, or a pattern as in Bash(…) rules"
        )

    def matches(command: str) -> bool:
        return words <= {word.lower() for word in _WORD.findall(command)}

    terms = (term for word in sorted(words) for term in _terms([word]))
    return Pattern(matches, tuple(terms), _needles(filter(str.isascii, sorted(words))))


def _terms(pieces: Sequence[str]) -> Iterator[Term]:
    """The words of each piece of a pattern. A word may continue at a star: the word after the star is
    left out, and the word before it becomes a prefix."""
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        folded = fold(piece)
        words = folded.split()
        if number > 0 and words and folded[0] != " ":
            del words[0]
        is_prefix = number < last and bool(words) and folded[-1] != " "
        if is_prefix and len(words[-1]) < SHORTEST_PART:
            del words[-1]  # too many words start with it
            is_prefix = False
        if words and max(map(len, words)) < LONGEST_WORD:
            yield Term(tuple(words), is_prefix)


def _needles(pieces: Iterable[str]) -> tuple[str, ...]:
    found = (found for piece in pieces for found in _PLAIN.findall(piece))
    return tuple(dict.fromkeys(needle for needle in found if needle.strip(" ")))


# --- Walking through calls, the newest first

Key = tuple[str, int, int]  # run, message, position
Message = tuple[str, int]  # run, number

_BATCH = 250
_LISTED = 5_000
# How many times the caller's limit is looked at call by call before all calls are searched.
_MORE = 10
_ASKS = and_(
    blocks.c.run_id == tool_calls.c.run_id,
    blocks.c.message == tool_calls.c.message,
    blocks.c.type == "tool_use",
)
_ANSWERS = blocks.alias()


@dataclass(frozen=True, slots=True)
class Walked:
    """A tool call."""

    # The columns of ``tool_calls``, and ``at``, ``state``, ``took``, ``item_key``, the ``answer`` and
    # ``answered_by`` of its approval, and ``edited_input``, which a person or a hook replaced the
    # model's input with.
    row: Row[Any]
    asked: Any  # the model's input
    answer: Any = None  # the content of its result, if asked for


def candidates(
    database: Database, filters: Filters, terms: Sequence[Term], tool: str | None = None
) -> list[Message] | None:
    """The replies with a call that has all these terms in its input, and perhaps others.

    Args:
        filters: only their job and run count.
        terms: what to look up in the search index.
        tool: only calls of this tool.

    Returns:
        None where the index is no help: there are no terms or too many candidates, or it does not
        answer or is far behind.
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
    except RunnerError:  # every call can be looked at instead
        return None
    return list(dict.fromkeys((each.place.run_id, each.place.message) for each in found))


def _refuse_to_wait(done: int, all: int) -> None:
    if all - done > MOST_UNINDEXED:
        raise RunnerError("the index of searches is far behind: see `runner db reindex`")


def walk(
    connection: Connection,
    filters: Filters,
    *conditions: ColumnElement[bool],
    limit: int | None,
    needles: Sequence[str] = (),
    among: Sequence[Message] | None = None,
    answers: bool = False,
) -> Iterator[Walked]:
    """Tool calls with their inputs, the newest first, as far as the caller iterates.

    Args:
        limit: how many the caller needs; it may skip some.
        needles: the caller skips calls whose input does not have all of these (``Pattern.needles``).
        among: the caller skips calls that none of these replies asked for (``candidates``).
        answers: include their results.
    """
    calls = filters.tool_calls(*KEY, CALLED_AT.label("at")).where(*conditions)
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
    """Queries for the keys of a few calls, of more, and at last of all. The last one searches for the
    needles in SQL, before any input is read."""
    if limit is not None:
        if not needles:
            yield newest_few(connection, newest, max(limit, _BATCH))
        yield newest_few(connection, newest, _MORE * limit)
    if needles:
        newest = newest.where(or_(_has(connection, needles), _WAS_EDITED))
    yield newest


def oldest_of_the_newest(count: int) -> ScalarSelect[Any]:
    """The id of the oldest of the ``count`` newest runs: ids are in the order of creation."""
    return select(runs.c.id).order_by(runs.c.id.desc()).offset(count - 1).limit(1).scalar_subquery()


_NEWEST_RUNS = oldest_of_the_newest(200)


def newest_few(connection: Connection, newest: Select[Any], most: int) -> Select[Any]:
    """Limit a query that selects ``at``, newest first, to the newest few calls.

    Takes a lower bound of ``at`` from the calls of the newest runs. The database goes through runs from
    the oldest on: without the bound it would sort each call in, as the newest so far, and out again.
    """
    of_newest = newest.where(tool_calls.c.run_id >= _NEWEST_RUNS).limit(most)
    times = [row.at for row in connection.execute(of_newest)]
    if len(times) < most:
        return newest.limit(most)
    return newest.where(times[-1] <= CALLED_AT).limit(most)


def _chosen(connection: Connection, calls: Select[Any], among: Sequence[Message]) -> list[Row[Any]]:
    """The keys of the calls of these replies, and of the calls that a person or a hook edited: what
    these ran with is not in the index."""
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
# Few runs have hooks, so that few calls are looked at for edits by hooks.
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
    """True if the call's reply has all needles in what it asks for, in any case: LIKE ignores case on
    SQLite (https://sqlite.org/lang_expr.html#like), ILIKE on Postgres."""
    stored = cast(blocks.c.content, Text)
    like = stored.like if connection.dialect.name == "sqlite" else stored.ilike
    return exists().where(_ASKS, *(like(f"%{_escaped(each)}%", escape="/") for each in needles))


def _escaped(needle: str) -> str:
    return needle.replace("/", "//").replace("%", "/%").replace("_", "/_")


def _read(connection: Connection, keys: Sequence[Key], answers: bool) -> Iterator[Walked]:
    """These calls with their inputs. The n-th call of a reply is its n-th block that asks for a tool."""
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
    """Messages as a table of run ids and numbers to join with.

    Pairs in an IN would make SQLite scan every row, and with statistics SQLite 3.40 skips rows of an OR
    of IN lists.
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
