"""Finds jobs, runs, tool calls and schedules by what people call them.

| text | names |
|---|---|
| an id, or its beginning: ``job_01jd9k`` | that |
| the end of an id, six characters or more: ``k3x9f2``; of a sub-agent ``k3x9f2.3.1`` | that |
| ``last`` | the newest job |
| the key that a job was submitted with | that job |
| a job's name, or the beginning of it | the newest job of that name |
| ``JOB/ITEM``: a job as above, an item's key or a part of it (see ``find``) | the item's newest run |
| a job as above, where a run is asked for and it has only one item | the item's newest run |
| of an imported session: its title, or its own id, or six characters that this begins with | its run |
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import Literal

from sqlalchemy import ColumnElement, Connection, func, or_, select

from runner.core.text import is_storable, visible
from runner.errors import NotFoundError
from runner.queries.filters import call_key
from runner.store import ids
from runner.store.conditions import IS_ITEM_RUN
from runner.store.database import Database, reads
from runner.store.tables import jobs, runs, schedules, sessions, tool_calls

Kind = Literal["job", "run", "call", "schedule"]

LAST = "last"
SHORTEST_SUFFIX = 6
_MOST_LISTED = 5
_MOST_COMPARED = 500
_MOST_COMPLETED = 100
_HARMLESS = re.compile(r"[\w.][\w./+@%,-]*")  # to a shell
_SHORT_ID = re.compile(rf"[0-9a-z]{{{SHORTEST_SUFFIX},26}}", re.ASCII)
# The id of a sub-agent's run ends in its numbers below its parents: ``.3.1``.
_NUMBERS = r"((?:\.[0-9]{1,9})*)"
_CALL_SUFFIX = re.compile(rf"([0-9a-z]*){_NUMBERS}_([0-9]{{1,9}})_([0-9]{{1,9}})")
_CALL_PREFIX = re.compile(rf"call_([0-9a-z]+){_NUMBERS}(?:_([0-9]{{1,9}}))?(?:_([0-9]{{1,9}})?)?")
_NAMES: dict[Kind, str] = {"job": "job", "run": "run", "call": "tool call", "schedule": "schedule"}
_JOB: tuple[Kind] = ("job",)
_IDS: dict[Kind, ColumnElement[str]] = {
    "job": jobs.c.id,
    "run": runs.c.id,
    "schedule": schedules.c.id,
}


@dataclass(frozen=True, slots=True)
class Found:
    kind: Kind
    id: str


@reads
def find(connection: Connection, text: str, *kinds: Kind, to_change: bool = False) -> Found:
    """Return the one thing of these kinds that a text names. ``to_change`` it, only an item's key or
    whole parts of its path name the item. Raises ``NotFoundError`` if it names nothing, more than one
    thing or a thing of another kind, and says what it could be."""
    found = _candidates(connection, text, kinds, _WHOLE_PARTS if to_change else _ANY_PART)
    if len(found) == 1:
        return found[0]
    raise NotFoundError(
        _could_be(connection, text, found) if found else _not_found(connection, text, kinds)
    )


_WHOLE_PARTS, _ANY_PART, _NO_PART = 2, 4, 5  # how far a text may be from an item's key


def _candidates(
    connection: Connection, text: str, kinds: Collection[Kind], farthest: int = _ANY_PART
) -> list[Found]:
    """Return what a text names, by the first of the ways in which it names anything."""
    if not text or not is_storable(text):
        return []
    ways = (
        *(_by_id, _by_name, partial(_by_item, farthest=farthest), _by_part_of_id, _by_session),
        *(_by_id_of_api, _by_start_of_name, _by_only_item),
    )
    return next(filter(None, (way(connection, text, kinds) for way in ways)), [])


def _by_id(connection: Connection, text: str, kinds: Collection[Kind]) -> list[Found]:
    found = [
        Found(kind, text)
        for kind, id_ in _IDS.items()
        if kind in kinds and connection.execute(select(id_).where(id_ == text)).first()
    ]
    if "call" in kinds and call_key(connection, text) is not None:
        found.append(Found("call", text))
    return found


def _by_name(connection: Connection, text: str, kinds: Collection[Kind]) -> list[Found]:
    found = []
    if "job" in kinds:
        newest = select(jobs.c.id).order_by(jobs.c.id.desc()).limit(1)
        ways = [newest]
        if text != LAST:
            ways = [newest.where(jobs.c.name == text), newest.where(jobs.c.key == text)]
        job_ids = {id_ for way in ways for id_ in connection.execute(way).scalars()}
        found += [Found("job", id_) for id_ in sorted(job_ids)]
    if "schedule" in kinds:
        of_name = schedules.c.name == text, schedules.c.removed_at.is_(None)
        named = select(schedules.c.id).where(*of_name).order_by(schedules.c.id)
        found += [Found("schedule", id_) for id_ in connection.execute(named).scalars()]
    if found and _SHORT_ID.fullmatch(text):  # Runner prints ids like this: no name may hide one
        found += (each for each in _by_part_of_id(connection, text, kinds) if each not in found)
    return found


def _by_item(
    connection: Connection, text: str, kinds: Collection[Kind], farthest: int
) -> list[Found]:
    if "run" not in kinds:
        return []
    found: dict[int, list[Found]] = {}
    for _, job_id, item in _jobs_and_items(connection, text):
        for key, run_id in newest_runs(connection, job_id).items():
            found.setdefault(_distance(key, item), []).append(Found("run", run_id))
    nearest = min(found, default=_NO_PART)
    return found[nearest] if nearest <= farthest else []


def _distance(key: str, part: str) -> int:
    """Return how far a text is from an item's key: 0 for the key, 1 for the last parts of a path with or
    without the suffix, 2 for its first parts, 3 for a beginning or end, 4 for another part of it."""
    ways = (
        key == part,
        f"/{key}".endswith(f"/{part}") or f"/{key.rpartition('.')[0]}".endswith(f"/{part}"),
        key.startswith(f"{part}/"),
        key.startswith(part) or key.endswith(part),
        part in key,
    )
    return ways.index(True) if True in ways else _NO_PART


def _by_only_item(connection: Connection, text: str, kinds: Collection[Kind]) -> list[Found]:
    """The run of a job with one item, for a command that takes no job."""
    if "run" not in kinds or "job" in kinds:
        return []
    found = [newest_runs(connection, job.id) for job in _candidates(connection, text, _JOB)]
    return [Found("run", *each.values()) for each in found if len(each) == 1]


def _jobs_and_items(connection: Connection, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each text before a slash that names a job, the job's id, and what follows the slash."""
    for slash in re.finditer("/", text):
        job, item = text[: slash.start()], text[slash.end() :]
        for found in _candidates(connection, job, _JOB) if item else ():
            yield job, found.id, item


def newest_runs(connection: Connection, job_id: str) -> dict[str, str]:
    """Return the newest run of each item of a job, by the item's key, in the order of the items."""
    newest = func.max(runs.c.id)
    query = select(runs.c.item_key, newest).where(runs.c.job_id == job_id, IS_ITEM_RUN)
    query = query.group_by(runs.c.item_key).order_by(func.min(runs.c.id))
    return dict(connection.execute(query).all())


def _by_part_of_id(connection: Connection, text: str, kinds: Collection[Kind]) -> list[Found]:
    head, dot, numbers = text.lower().partition(".")
    for from_start in (True, False):
        if len(head) < (1 if from_start else SHORTEST_SUFFIX):
            continue
        found = []
        for kind, id_ in _IDS.items():
            if kind not in kinds:
                continue
            matches = _is_id(id_, head, dot + numbers, from_start=from_start)
            query = select(id_).where(matches).order_by(id_).limit(_MOST_LISTED + 1)
            found += [Found(kind, each) for each in connection.execute(query).scalars()]
        condition = _is_call(text.lower(), from_start=from_start) if "call" in kinds else None
        if condition is not None:
            found += _calls(connection, condition)
        if found:
            return found
    return []


def _by_session(connection: Connection, text: str, kinds: Collection[Kind]) -> list[Found]:
    if "run" not in kinds or len(text) < SHORTEST_SUFFIX:
        return []
    named = or_(sessions.c.title == text, sessions.c.session_id.startswith(text, autoescape=True))
    query = select(sessions.c.run_id).where(named, sessions.c.agent_id.is_(None))
    found = connection.scalars(query.order_by(sessions.c.run_id).limit(_MOST_LISTED + 1))
    return [Found("run", run_id) for run_id in found]


def _by_id_of_api(connection: Connection, text: str, kinds: Collection[Kind]) -> list[Found]:
    if "call" not in kinds or len(text) < SHORTEST_SUFFIX:
        return []
    return [*_calls(connection, tool_calls.c.tool_use_id == text)]


def _by_start_of_name(connection: Connection, text: str, kinds: Collection[Kind]) -> list[Found]:
    if "job" not in kinds:
        return []
    starts = func.substr(jobs.c.name, 1, len(text)) == text
    newest = select(func.max(jobs.c.id).label("id")).where(starts).group_by(jobs.c.name)
    query = newest.order_by("id").limit(_MOST_LISTED + 1)
    return [Found("job", id_) for id_ in connection.execute(query).scalars()]


def _is_id(
    id_: ColumnElement[str], head: str, numbers: str, *, from_start: bool
) -> ColumnElement[bool]:
    """True for the id of a job or an item's run that starts with or ends in ``head``, followed by the
    numbers of a sub-agent, such as ``.3.1``."""
    if not from_start:
        return id_.endswith(head + numbers, autoescape=True)
    dots = numbers.count(".")
    is_as_deep = id_.like("%" + ".%" * dots) & id_.not_like("%" + ".%" * (dots + 1))
    starts, ends = id_.startswith(head, autoescape=True), id_.endswith(numbers, autoescape=True)
    return starts & ends & is_as_deep


def _is_call(text: str, *, from_start: bool) -> ColumnElement[bool] | None:
    """Calls whose id starts with or ends in a text, or None if no id does. A number counts as whole even
    if a longer one starts with it."""
    parts = (_CALL_PREFIX if from_start else _CALL_SUFFIX).fullmatch(text)
    if parts is None:
        return None
    run, numbers, turn, position = parts.groups()
    head = f"run_{run}" if from_start else run
    condition = _is_id(tool_calls.c.run_id, head, numbers, from_start=from_start)
    if turn is not None:
        condition &= tool_calls.c.turn == int(turn)
    if position is not None:
        condition &= tool_calls.c.position == int(position) - 1
    return condition


def _calls(connection: Connection, condition: ColumnElement[bool]) -> Iterator[Found]:
    key = (tool_calls.c.run_id, tool_calls.c.turn, tool_calls.c.position)
    query = select(*key).where(condition).order_by(*key).limit(_MOST_LISTED + 1)
    return (Found("call", ids.call_id(*row)) for row in connection.execute(query))


def completions(database: Database, text: str, *kinds: Kind) -> list[str]:
    """Return names of jobs or runs that begin with a text, the newest jobs' first: not all where there
    are many, and none that would mean something to a shell."""

    def work(connection: Connection) -> list[str]:
        names = [name for name in (LAST, *_names(connection, _JOB)) if name.startswith(text)]
        found = [*names] if "job" in kinds else []
        if "run" in kinds:
            named = [text.partition("/")[0]] if "/" in text else names[:_MOST_LISTED]
            name_of: dict[str, str] = {}
            for name in named:
                for job in _candidates(connection, name, _JOB):
                    name_of.setdefault(job.id, name)
            for job_id, name in name_of.items():
                found += (f"{name}/{key}" for key in newest_runs(connection, job_id))
        return [name for name in found if name.startswith(text) and _HARMLESS.fullmatch(name)]

    return database.read(work)[:_MOST_COMPLETED]


# Messages about a text that does not name exactly one thing


def _could_be(connection: Connection, text: str, found: Sequence[Found]) -> str:
    names = ", ".join(_told(connection, text, one) for one in found[:_MOST_LISTED])
    more = " and more" if len(found) > _MOST_LISTED else ""
    return f"{_quoted(text)} could be {names}{more}: give more of the name"


def _told(connection: Connection, text: str, found: Found) -> str:
    """Return an id; with the name of its job or schedule, or its item, if ``text`` is not part of the
    id."""
    labels = {"job": jobs.c.name, "run": runs.c.item_key, "schedule": schedules.c.name}
    if found.kind == "call" or text.lower().partition(".")[0] in found.id:
        return found.id
    query = select(labels[found.kind]).where(_IDS[found.kind] == found.id)
    return f"{found.id} ({visible(connection.execute(query).scalar_one())})"


def _not_found(connection: Connection, text: str, kinds: Sequence[Kind]) -> str:
    said = f"no {_wanted(kinds)} is named {_quoted(text)}"
    others = [kind for kind in _NAMES if kind not in kinds]
    if len(other := _candidates(connection, text, others)) == 1:
        return f"{said}: that is {_of_wrong_kind(connection, text, other[0], kinds)}"
    named = next(_jobs_and_items(connection, text), None) if "run" in kinds else None
    if named is not None:
        job, job_id, item = named
        near = [f"{job}/{key}" for key in newest_runs(connection, job_id) if item in key]
        if near:
            return f"{said}: did you mean {' or '.join(map(_in_shell, near[:_MOST_LISTED]))}?"
        return f"{said}: that job has {_runs(connection, *named)}"
    if close := get_close_matches(text, _names(connection, kinds), n=1):
        return f"{said}: did you mean {_in_shell(close[0])}?"
    look = "runner schedule list" if kinds == ("schedule",) else "runner list"
    return f"{said}: look with `{look}`"


def _of_wrong_kind(connection: Connection, text: str, found: Found, kinds: Sequence[Kind]) -> str:
    """Say what a text names, and what to name instead."""
    if found.kind == "job" and "run" in kinds:
        return f"a job; its runs: {_runs(connection, text, found.id)}"
    said = f"the {_NAMES[found.kind]} {found.id}"
    if found.kind == "run":
        query = select(runs.c.job_id).where(runs.c.id == found.id)
        said += f" of the job {connection.execute(query).scalar_one()}"
    if found.kind == "call" and (key := call_key(connection, found.id)) is not None:
        said += f" of the run {key.run_id}"
    return f"{said}: name a {_wanted(kinds)}"


def _runs(connection: Connection, job: str, job_id: str, item: str = "") -> str:
    """Some runs of a job, named as people can name them; the ones most like ``item`` first."""
    keys = [*newest_runs(connection, job_id)]
    shown = get_close_matches(item, keys[:_MOST_COMPARED]) or keys[:_MOST_LISTED]
    named = ", ".join(_in_shell(f"{job}/{key}") for key in shown)
    more = len(keys) - len(shown)
    return f"{named} and {more:,} more (`runner list {_in_shell(job)}`)" if more else named


def _names(connection: Connection, kinds: Collection[Kind]) -> list[str]:
    """Names of the newest jobs or of schedules; if runs are wanted, also of runs of the newest job."""
    if "job" not in kinds and "run" not in kinds:
        return [*connection.execute(select(schedules.c.name)).scalars()]
    newest = select(jobs.c.id, jobs.c.name, jobs.c.key).order_by(jobs.c.id.desc())
    rows = connection.execute(newest.limit(_MOST_COMPARED)).all()
    found = {name: None for row in rows for name in (row.name, row.key) if name}
    keys = newest_runs(connection, rows[0].id) if rows and "run" in kinds else ()
    return [*found, *(f"{LAST}/{key}" for key in islice(keys, _MOST_COMPARED))]


def _wanted(kinds: Collection[Kind]) -> str:
    return " or ".join(name for kind, name in _NAMES.items() if kind in kinds)


def _quoted(text: str) -> str:
    return f"{text[:60]!a}"


def _in_shell(name: str) -> str:
    return shlex.quote(visible(name))
