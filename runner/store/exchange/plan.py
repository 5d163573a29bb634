"""Looking through an export of Runner's own before any of it is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import IO, Any, Literal

from runner.core.journal.view import Progress
from runner.core.spec import JobSpec
from runner.errors import UsageError
from runner.exchange.checks import JobCheck, Place, RunCheck, check_id
from runner.exchange.fitting import misfit
from runner.exchange.lines import Line, Reading, encoded_row
from runner.exchange.shapes import Shape
from runner.permissions import ToolContext
from runner.store.exchange.shapes import JOB_TABLES, RUN_TABLES, SHAPES
from runner.store.job.rules import tool_context_from_json
from runner.store.rows.progress import progress_from_row

_JOB_ORDER = {table.name: number for number, table in enumerate(JOB_TABLES)}
_RUN_ORDER = {table.name: number for number, table in enumerate(RUN_TABLES)}


@dataclass(eq=False)
class Section:
    """The rows of a job as a whole, or of one run: where they are in the file, from a byte and a line
    on, and their digest. ``state`` is the run's, ``questions`` the ids of what was asked in it."""

    kind: Literal["job", "run"]
    id: str
    start: int
    line: int
    rows: int = 0
    digest: str = ""
    state: str = ""
    has_ended: bool = True
    questions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What a file holds. ``key`` is the job's, if its submitter gave it one."""

    source: str
    job: Section
    runs: tuple[Section, ...]
    key: str | None


def look_through(file: IO[bytes], source: str) -> Plan:
    """Look at every line of a file.

    Args:
        source: what it is called in errors.

    Raises:
        UsageError: what is wrong, and in which line.
    """
    file.seek(0)
    looking = _Looking()
    reading: Reading | None = None
    try:
        reading = Reading(file)
        looking.begin(reading)
        for line in reading.rows():
            looking.add(line)
        return looking.end(source)
    except ValueError as error:
        number = 1 if reading is None else reading.number
        raise UsageError(f"{source}, line {number}: {error}; nothing was imported") from error


def shape_of(line: Line) -> Shape:
    """The shape of a row's table. Raises ``ValueError``."""
    shape = SHAPES.get(line.table)
    if shape is None:
        raise ValueError(
            f"there is no table {line.table[:60]!a}: the file may be of a newer Runner"
        )
    return shape


class _Looking:
    """Looks at the rows of a file in order."""

    def __init__(self) -> None:
        self._run_wanted: str | None = None
        self._job: Section | None = None
        self._job_id = ""
        self._key: str | None = None
        self._runs: list[Section] = []
        self._known: dict[str, frozenset[Place]] = {}
        self._spec: JobSpec | None = None
        self._waiting: set[str] = set()  # for the sub-agent that has their whole task
        self._at: Section | None = None
        self._check: JobCheck | RunCheck | None = None
        self._digest = hashlib.sha256()
        self._place: tuple[int, list[Any]] = (-1, [])

    def begin(self, reading: Reading) -> None:
        self._job_id, self._run_wanted = reading.header.job_id, reading.header.run_id
        check_id(self._job_id, "job")

    def add(self, line: Line) -> None:
        shape = shape_of(line)
        table = shape.table
        if table in ("jobs", "runs"):
            self._finish_section()
            self._begin_section(line, table)
        if self._at is None or self._check is None:
            raise ValueError("the first row is not the job's")
        row = shape.from_file(line.row)
        self._check_order(table, [row[name] for name in shape.key])
        self._check.add(table, row)
        self._note(table, row)
        self._at.rows += 1
        self._digest.update(encoded_row(table, shape.to_file(row)))

    def end(self, source: str) -> Plan:
        self._finish_section()
        if self._job is None:
            raise ValueError("there is no row in it")
        if self._run_wanted is not None and self._run_wanted not in self._known:
            raise ValueError(f"the run {self._run_wanted[:60]!a} that it is of is not in it")
        if self._waiting:
            without = f"{min(self._waiting)} has given its whole task to a sub-agent"
            raise ValueError(f"{without}, which is not in the file")
        return Plan(source, self._job, tuple(self._runs), self._key)

    def _begin_section(self, line: Line, table: str) -> None:
        if (table == "jobs") == (self._job is not None):
            raise ValueError("a file has one job, and its row comes first")
        id_ = line.row.get("id") if isinstance(line.row, dict) else None
        if not isinstance(id_, str):
            raise ValueError(f"{table}.id is no text")
        self._place = (-1, [])
        self._digest = hashlib.sha256()
        if table == "jobs":
            self._job = self._at = Section("job", id_, line.start, line.number)
            self._check = JobCheck(self._job_id)
        else:
            self._at = Section("run", id_, line.start, line.number)
            assert self._spec is not None, "the job's row comes first"
            self._check = RunCheck(self._job_id, self._spec, self._known)

    def _finish_section(self) -> None:
        section, check = self._at, self._check
        if section is None:
            return
        section.digest = self._digest.hexdigest()
        if isinstance(check, RunCheck):
            check.end()
            section.has_ended = check.has_ended
            self._runs.append(section)
            self._known[section.id] = check.starts
        elif check is not None:
            self._spec = check.spec

    def _check_order(self, table: str, key: Sequence[Any]) -> None:
        """Each row once, and in the order in which they are written."""
        order = _JOB_ORDER if isinstance(self._check, JobCheck) else _RUN_ORDER
        if table not in order:
            raise ValueError(f"a row of {table} does not belong here")
        last, last_key = self._place
        place = order[table]
        in_order = place > last or (place == last and (not key or list(last_key) < list(key)))
        if not in_order:
            raise ValueError(f"the row of {table} is there twice, or is not in its place")
        self._place = (place, list(key))

    def _note(self, table: str, row: dict[str, Any]) -> None:
        """What is needed later, and what only the store can look at."""
        assert self._at is not None
        match table:
            case "jobs":
                self._key = row["key"]
            case "runs":
                self._at.state = row["state"]
                if _checked_progress(row).split == "whole":
                    self._waiting.add(row["id"])
                if row["parent_position"] is None:
                    self._waiting.discard(row["parent_run"])
            case "approvals":
                self._at.questions.append(row["id"])
                _check_setting(row)
            case "permission_rules":
                if (row["run_id"] is None) != (self._at.kind == "job"):
                    raise ValueError("permission_rules.run_id does not belong here")


def _checked_progress(row: dict[str, Any]) -> Progress:
    try:
        progress = progress_from_row(SimpleNamespace(**row))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"runs.progress is no run's ({type(error).__name__}: {error})") from error
    wrong = misfit(progress, Progress)
    if wrong is not None:
        raise ValueError(f"runs.progress is no run's ({wrong} is of another kind)")
    return progress


def _check_setting(row: dict[str, Any]) -> None:
    try:
        tool_context = tool_context_from_json(row["setting"])
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"approvals.setting is none ({type(error).__name__}: {error})") from error
    wrong = misfit(tool_context, ToolContext)
    if wrong is not None:
        raise ValueError(f"approvals.setting is none ({wrong} is of another kind)")
