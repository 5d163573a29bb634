"""Tool calls of the record: counts, commands, and a search through their inputs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, FromClause, Select, and_, func, or_, select

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
    CallKey,
    Filters,
    answer,
    descendant_ids,
)
from runner.queries.rows import Rows, columns
from runner.queries.search.search import needs_of, open_index
from runner.store.conditions import APPROVAL_OF_CALL, CALL_BLOCKS, IS_OWN_CALL, of_call
from runner.store.database import Database, in_lots, to_json
from runner.store.tables import approvals, blocks, hook_runs, runs, tool_calls

_TOOL_COLUMNS = columns(
    "tool outcome calls:integer runs:integer seconds:seconds average:seconds longest:seconds "
    "first_at:time last_at:time"
)
_COMMAND_COLUMNS = columns(
    "call_id label at:time run_id item turn:integer outcome seconds:seconds decision rule answer "
    "answered_by containment ran command"
)
# How many commands are analysed for a pattern that neither the index nor SQL can narrow: that takes
# a third of a second.
MOST_TAKEN_APART = 1_000
# More candidates than this, and the newest calls are as likely to match.
MOST_CANDIDATES = 20_000
# The newest calls are first searched among this many of the newest runs.
NEWEST_RUNS = 200
# Indexing more texts than this takes longer than looking at every call.
MOST_UNINDEXED = 5_000


def tool_rows(database: Database, filters: Filters) -> Rows:
    """A row for each tool and outcome of its calls, the most frequent first. A call without an
    outcome is ``interrupted`` (its run ended), ``started`` or ``pending``; ``seconds`` is None if
    none ran."""
    one = filters.tool_calls(
        *(tool_calls.c.run_id, tool_calls.c.name.label("tool"), STATE.label("outcome")),
        *(TOOK.label("duration"), CALLED_AT.label("at")),
    )
    one_call = one.subquery().c
    # Runs are counted after their calls are grouped: COUNT(DISTINCT run_id) would sort all calls.
    of_run = (
        select(
            *(one_call.tool, one_call.outcome),
            func.count().label("calls"),
            func.sum(one_call.duration).label("seconds"),
            func.count(one_call.duration).label("timed"),
            func.max(one_call.duration).label("longest"),
            func.min(one_call.at).label("first_at"),
            func.max(one_call.at).label("last_at"),
        )
        .group_by(one_call.run_id, one_call.tool, one_call.outcome)
        .subquery()
        .c
    )
    calls, seconds = sa.cast(func.sum(of_run.calls), sa.Integer), func.sum(of_run.seconds)
    query = (
        select(
            *(of_run.tool, of_run.outcome, calls.label("calls"), func.count().label("runs")),
            seconds.label("seconds"),
            (seconds / func.nullif(func.sum(of_run.timed), 0)).label("average"),
            func.max(of_run.longest).label("longest"),
            func.min(of_run.first_at).label("first_at"),
            func.max(of_run.last_at).label("last_at"),
        )
        .group_by(of_run.tool, of_run.outcome)
        .order_by(calls.desc(), of_run.tool, of_run.outcome)
        .limit(filters.most)
    )
    rows = [row._mapping for row in database.rows(query)]
    return answer(database, _TOOL_COLUMNS, rows, filters, "the most frequent")


def containments(database: Database, job_id: str) -> dict[str, int]:
    """Return how many tool calls of a job each containment had, of those that started a process."""
    by = tool_calls.c.containment
    query = (
        select(by, func.count())
        .join(runs, runs.c.id == tool_calls.c.run_id)
        .where(runs.c.job_id == job_id, by.is_not(None), IS_OWN_CALL)
        .group_by(by)
        .order_by(by)
    )
    return {row[0]: row[1] for row in database.rows(query)}


def command_rows(database: Database, filters: Filters, pattern: str | None = None) -> Rows:
    """Return the calls of Bash (only commands that match ``command_pattern(pattern)``), the newest
    first: ``command`` is the model's, ``ran`` a person's or hook's replacement. A pattern without a
    word, such as ``:unanalyzable``, is tried on the newest calls only, unless there is no limit."""
    wanted = None if pattern is None else command_pattern(pattern)
    among = candidates(database, filters, wanted.terms, "Bash") if wanted else None
    needles = wanted.needles if wanted else ()
    most = filters.most
    is_slow = wanted is not None and not needles and most is not None

    def work(connection: Connection) -> tuple[list[Call], bool]:
        found: list[Call] = []
        is_bash = tool_calls.c.name == "Bash"
        calls = walk(connection, filters, is_bash, limit=most, needles=needles, among=among)
        for number, call in enumerate(calls):
            if is_slow and number == MOST_TAKEN_APART:
                return found, True
            texts = {"command": _command(call["asked"]), "ran": _command(call["edited"])}
            if wanted is None or any(wanted.matches(text) for text in texts.values() if text):
                found.append(call | texts)
            if len(found) == most:
                break
        return found, False

    found, is_given_up = database.read(work)
    rows = answer(database, _COMMAND_COLUMNS, found, filters, "the newest")
    if is_given_up:
        rows.note = (
            f"only the newest {MOST_TAKEN_APART:,} commands were looked at: narrow with --job or "
            "--since (--limit 0 looks at all, which takes long)"
        )
    return rows


def _command(arguments: Any) -> str | None:
    """The command in an input, which a model may have written in any shape."""
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else None


# --- Patterns of commands and paths


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of commands or paths. The terms and needles narrow the search: a text with words in
    pieces (quotes, backslashes) may match without them."""

    matches: Callable[[str], bool]
    terms: tuple[Term, ...]  # for the search index: every matching text has them
    needles: tuple[str, ...]  # for LIKE: every matching text has them in some case, as JSON does


# Characters that JSON never escapes.
_PLAIN = re.compile(r"[A-Za-z0-9 _./:=,@%+#-]+")
_WORD = re.compile(r"[^\W_]+")
_STARS = re.compile(r"\*+")


def command_pattern(text: str) -> Pattern:
    """A pattern of commands: with a ``*`` of ``Bash(…)`` rules, tried on each command of a script;
    else words, which must all be there in any case. Raises ``UsageError`` if it can match
    nothing."""
    if "*" not in text and text != UNANALYZABLE:
        wanted = {word.lower() for word in _WORD.findall(text)}
        if not wanted:
            raise UsageError(
                "the pattern has no letter or digit: give words, or a pattern as in Bash(…) rules"
            )
        words = sorted(wanted)
        return Pattern(
            lambda command: wanted <= {word.lower() for word in _WORD.findall(command)},
            tuple(term for word in words for term in _terms([word])),
            _needles(filter(str.isascii, words)),
        )
    rule = f"Bash({text})"
    if (problem := syntax.problem(rule)) is not None:
        raise UsageError(f"{problem}; to find words, leave out the *")
    parsed = ParsedRule.of(Rule("deny", rule))

    def matches(command: str) -> bool:
        parts = accesses_of("Bash", {"command": command}, ToolContext())
        return any(part.required and part.catches(parsed) is not None for part in parts)

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
    from one of its folders on. Raises ``UsageError`` if it is empty."""
    wanted = text.strip()
    if not wanted.strip("*/"):
        raise UsageError("the pattern names no path: write a path, in which * stands for anything")
    pieces = _STARS.split(wanted.removeprefix("/"))
    glob = Glob(tuple(_STARS.split(wanted)))
    within = Glob(tuple(_STARS.split(f"*/{wanted.removeprefix('/')}")))

    def matches(path: str) -> bool:
        return glob.matches(path) or within.matches(f"/{path.removeprefix('./')}")

    return Pattern(matches, tuple(_terms(pieces)), _needles(pieces))


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

Message = tuple[str, int]  # run, number

# A tool call: ``run_id``, ``message``, ``position``, ``turn``, ``item``, ``tool``, ``at``, ``decision``,
# ``rule``, ``outcome`` (``filters.STATE``), ``seconds``, ``containment``, the ``answer`` and
# ``answered_by`` of its approval, the input that the model ``asked`` for and ``edited``, what a person or
# a hook replaced it with, and the content of its ``result``, if asked for.
Call: TypeAlias = dict[str, Any]

BATCH = 250
_LISTED = 5_000
# How many times the caller's limit is looked at call by call before all calls are searched.
MORE = 10
_RESULTS = blocks.alias()
_ANSWERS = and_(
    _RESULTS.c.run_id == tool_calls.c.run_id,
    _RESULTS.c.message == tool_calls.c.message + 1,
    _RESULTS.c.position == tool_calls.c.position,
    _RESULTS.c.type == "tool_result",
)
_WAS_ANSWERED = and_(APPROVAL_OF_CALL, approvals.c.edited_input.is_not(None))
_WAS_UPDATED = tool_calls.c.updated_input.is_not(None)
# Few runs have hooks, so that few calls are looked at for edits by hooks.
_HOOK_OF_CALL = and_(of_call(hook_runs), hook_runs.c.event == "PreToolUse")


def candidates(
    database: Database, filters: Filters, terms: Sequence[Term], tool: str | None = None
) -> list[Message] | None:
    """The replies with a call (of this tool) that has all these terms in its input, and perhaps others,
    by the search index; of the filters, job and run count. None where the index is no help: there are no
    terms or too many candidates, or it does not answer or is far behind."""
    if not terms:
        return None
    only = Filters(job_id=filters.job_id, run_id=filters.run_id, tool=tool)

    def refuse_to_wait(done: int, all: int) -> None:
        if all - done > MOST_UNINDEXED:
            raise RunnerError("the search index is far behind: run `runner db reindex`")

    try:
        with open_index(database).up_to_date(refuse_to_wait) as index:
            query = Query(tuple(terms))
            under = descendant_ids(database, only.run_id) if only.run_id else ()
            needs = needs_of(index, query, only, ["input"], "assistant", time.time(), under)
            found = index.find(needs, max(MOST_CANDIDATES + 1, 0))
            if len(found) > MOST_CANDIDATES:
                return None
    except RunnerError:  # every call can be looked at instead
        return None
    return list(dict.fromkeys((each.place.run_id, each.place.message) for each in found))


def walk(
    connection: Connection,
    filters: Filters,
    *conditions: ColumnElement[bool],
    limit: int | None,  # how many the caller needs; it may skip some
    needles: Sequence[str] = (),  # the caller skips calls whose input does not have all of these
    among: Sequence[Message] | None = None,  # the caller skips calls that no such reply asked for
    results: bool = False,  # include their results
) -> Iterator[Call]:
    """Yield tool calls with their inputs, the newest first."""
    calls = filters.tool_calls(*KEY, CALLED_AT.label("at")).where(*conditions)
    lots: Iterable[Iterable[Any]]
    if among is None:
        newest = calls.order_by(*NEWEST_FIRST)
        lots = map(connection.execute, unindexed_lots(connection, newest, limit, needles))
    else:
        lots = [_chosen(connection, calls, among)]
    seen: set[CallKey] = set()
    for lot in lots:
        keys = [key for row in lot if (key := CallKey(*row[:3])) not in seen]
        seen.update(keys)
        for some in in_lots(list(dict.fromkeys(keys)), BATCH):
            yield from _read(connection, some, results)


def unindexed_lots(
    connection: Connection, newest: Select[Any], limit: int | None, needles: Sequence[str]
) -> Iterator[Select[Any]]:
    """Queries for the keys of a few calls, of more, and at last of all. The last one searches for the
    needles in SQL, before any input is read."""
    if limit is not None:
        if not needles:
            yield newest_few(connection, newest, max(limit, BATCH))
        yield newest_few(connection, newest, MORE * limit)
    if needles:
        # In any case: LIKE ignores case on SQLite (https://sqlite.org/lang_expr.html#like), ILIKE on
        # Postgres.
        stored = sa.cast(blocks.c.content, sa.Text)
        like = stored.contains if connection.dialect.name == "sqlite" else stored.icontains
        has = sa.exists().where(CALL_BLOCKS, *(like(needle, autoescape=True) for needle in needles))
        newest = newest.where(or_(has, _WAS_UPDATED, sa.exists().where(_WAS_ANSWERED)))
    yield newest


def newest_few(connection: Connection, newest: Select[Any], most: int) -> Select[Any]:
    """Limit a query that selects ``at``, newest first, to the newest few calls, by a lower bound of
    ``at`` from the newest runs. Without it the database would sort in every call, from the oldest
    run on."""
    by_creation = select(runs.c.id).order_by(runs.c.id.desc())
    oldest = by_creation.offset(NEWEST_RUNS - 1).limit(1).scalar_subquery()
    of_newest = newest.where(tool_calls.c.run_id >= oldest).limit(most)
    times = [row.at for row in connection.execute(of_newest)]
    if len(times) < most:
        return newest.limit(most)
    return newest.where(times[-1] <= CALLED_AT).limit(most)


def _chosen(connection: Connection, calls: Select[Any], among: Sequence[Message]) -> list[Any]:
    """The keys of the calls of these replies, and of the calls that a person or a hook edited: what
    these ran with is not in the index."""
    found = [*connection.execute(calls.join(approvals, _WAS_ANSWERED))]
    found += connection.execute(calls.join(hook_runs, and_(_HOOK_OF_CALL, _WAS_UPDATED)))
    for some in in_lots(sorted(among), _LISTED):
        found += connection.execute(calls.join(*_listed(connection, some)))
    return sorted(found, key=lambda row: (row.at, *row[:3]), reverse=True)


def _read(connection: Connection, keys: Sequence[CallKey], results: bool) -> Iterator[Call]:
    """These calls with their inputs. The n-th call of a reply is its n-th block that asks for a tool."""
    listed, is_in = _listed(connection, list(dict.fromkeys(key[:2] for key in keys)))
    edited = func.coalesce(approvals.c.edited_input, tool_calls.c.updated_input, type_=sa.JSON)
    query = (
        select(
            *(*KEY, tool_calls.c.turn, tool_calls.c.name.label("tool"), CALLED_AT.label("at")),
            *(tool_calls.c.decision, tool_calls.c.rule, STATE.label("outcome")),
            tool_calls.c.containment,
            *(TOOK.label("seconds"), runs.c.item_key.label("item")),
            *(approvals.c.answer, approvals.c.answered_by, edited.label("edited")),
            blocks.c.content.label("asked"),
        )
        .select_from(listed)
        .join(tool_calls, is_in)
        .join(runs, runs.c.id == tool_calls.c.run_id)
        .join(blocks, CALL_BLOCKS)
        .outerjoin(approvals, APPROVAL_OF_CALL)
        .order_by(*KEY, blocks.c.position)
    )
    if results:
        query = query.outerjoin(_RESULTS, _ANSWERS).add_columns(_RESULTS.c.content.label("result"))
    found: dict[CallKey, list[Any]] = {}
    for row in connection.execute(query):
        found.setdefault(CallKey(*row[:3]), []).append(row._mapping)
    for key in keys:
        if key.position < len(rows := found.get(key, [])):
            call = dict(rows[key.position])
            result = (call.get("result") or {}).get("content")
            yield call | {"asked": call["asked"].get("input"), "result": result}


def _listed(
    connection: Connection, messages: Sequence[Message]
) -> tuple[FromClause, ColumnElement[bool]]:
    """A table of these replies, and the condition to join it with their calls. Pairs in an IN would
    make SQLite scan every row, and with statistics SQLite 3.40 skips rows of an OR of IN lists."""
    given = sa.literal(to_json(messages), sa.Text)
    if connection.dialect.name == "sqlite":
        values = func.json_each(given)
    else:
        values = func.json_array_elements(sa.cast(given, sa.JSON))
    pair = values.table_valued(sa.column("value", sa.JSON)).c.value
    listed = select(
        pair[0].as_string().label("run_id"), pair[1].as_integer().label("message")
    ).subquery("listed")
    key = (tool_calls.c.run_id == listed.c.run_id, tool_calls.c.message == listed.c.message)
    return listed, and_(*key)
