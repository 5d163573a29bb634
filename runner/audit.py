"""The record from Python: ``runner.audit.open(url)`` gives the answers of ``runner audit`` as rows.

with runner.audit.open("sqlite:///.runner/runner.db") as audit:
    for row in audit.tools(job="job_01jd9k"):
        print(row["tool"], row["calls"])
    frame = audit.sql("SELECT model, sum(usd) AS usd FROM v_costs GROUP BY model").pandas()
"""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import datetime
from typing import Any, Self, TypedDict, Unpack

from sqlalchemy.exc import DBAPIError

from runner.app.handle import App
from runner.app.workspaces import differences_in
from runner.core.prices import By, PriceList
from runner.core.run import RunStatus
from runner.core.search import Role, Source, parse
from runner.core.text import is_storable
from runner.errors import UnreachableError, UsageError
from runner.queries import costs, decisions, problems, tool_calls
from runner.queries.accesses import Differences, connection_rows, file_rows
from runner.queries.filters import Filters
from runner.queries.jobs import with_own_last
from runner.queries.names import Kind, find
from runner.queries.rows import Column, Rows
from runner.queries.search.search import Found, Hit, search
from runner.queries.sql.ask import Bounds, ask, store_prices
from runner.queries.sql.views import VIEWS
from runner.queries.timeline import timeline_rows
from runner.settings import Settings
from runner.store import migrate
from runner.store.database import Database

__all__ = ["Audit", "Column", "Found", "Hit", "Only", "Rows", "open", "views"]

_MOST_SECONDS = 366 * 86_400.0
MOST_ROWS = 2**31 - 1  # more than a database has, and a number that every database takes


class Only(TypedDict, total=False):
    """Filters of a question. All given filters must hold."""

    job: str  # an id, whole or shortened as for the commands
    run: str  # the same
    item: str  # an item's key
    since: float | datetime  # seconds since the epoch
    until: float | datetime  # exclusive
    tool: str
    model: str


class Asked(Only, total=False):
    """The filters of a question, and how many rows at most (from 1; None: all)."""

    state: RunStatus  # of the runs
    limit: int | None


def open(url: str | None = None) -> Audit:
    """Open the record in a database (``sqlite:///path``, ``postgresql://…``; None: the database of
    the commands), without creating anything. Use it in a ``with``, or close it. Raises
    ``UsageError`` if there is no database, or not an up-to-date one, and ``UnreachableError``."""
    settings = Settings.load(database_url=url)
    if not migrate.is_created(settings.database_url):
        raise UsageError(f"there is no database at {url or settings.home}: `runner run` makes one")
    database = Database(settings.database_url)
    try:
        migrate.require_current(database)
        return Audit.of(App(settings, database))
    except BaseException:
        database.close()
        raise


class Audit:
    """The record. Every question returns rows, and takes the filters and the limit of ``Asked``.

    Questions raise ``UsageError`` for an impossible limit, time or name, ``NotFoundError`` when
    ``job`` or ``run`` names nothing, and ``UnreachableError`` when the database does not answer.
    ``differences`` compares the snapshots around calls; without it ``files`` has only what tools
    were asked to do."""

    def __init__(
        self, database: Database, prices: PriceList, differences: Differences | None = None
    ) -> None:
        self._database = database
        self._prices = prices
        self._differences = differences

    @classmethod
    def of(cls, app: App) -> Self:
        """The record in an open database, with the prices and the snapshots of its settings."""
        return cls(app.database, app.prices(), differences_in(app))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    def search(
        self,
        text: str = "",
        *,
        exact: str | None = None,
        sources: Collection[Source] = (),
        role: Role | None = None,
        limit: int = 20,
        offset: int = 0,
        **only: Unpack[Only],
    ) -> Rows:
        """Places in the conversations, the best first.

        Args:
            text: words, ``"a phrase"``, ``pre*``, ``-not``.
            exact: a text to find letter by letter, inside of words too.
            sources: ``text``, ``thinking``, ``input``, ``output``, ``system``; none: everywhere.
            role: only what the ``user`` or the ``assistant`` said; of a user in an imported session,
                what a ``person``, a ``machine`` or a ``peer`` (another agent) said.
        """
        options: Any = {"sources": sources, "role": role, "limit": _at_most(limit)}
        return self.find(text, exact, only, offset=offset, **options).rows()

    def find(
        self, text: str, exact: str | None, only: Only, *, offset: int, **options: Any
    ) -> Found:
        """``search`` for readers that show excerpts; other options go to the query."""
        filters, query = self._filters(only), parse(text, exact)
        if not 0 <= offset <= MOST_ROWS:
            raise UsageError(f"offset={offset!r}: give the number of rows to skip, 0 or more")
        return search(self._database, query, filters, offset=offset, **options)

    def tools(self, **asked: Unpack[Asked]) -> Rows:
        """Return the number of calls of each tool by outcome."""
        return tool_calls.tool_rows(self._database, self._filters(asked))

    def commands(self, pattern: str | None = None, **asked: Unpack[Asked]) -> Rows:
        """Commands of Bash, the newest first; ``pattern`` is a pattern as in rules, or words."""
        return tool_calls.command_rows(self._database, self._filters(asked), pattern)

    def files(self, pattern: str | None = None, **asked: Unpack[Asked]) -> Rows:
        """List reads and changes of files, with their runs and turns."""
        filters, told = self._filters(asked), self._differences
        return file_rows(self._database, filters, pattern, differences=told)

    def connections(self, pattern: str | None = None, **asked: Unpack[Asked]) -> Rows:
        """Hosts that calls reached or were refused, the newest first; ``pattern`` is a host, or a host
        with a port, in which ``*`` stands for anything."""
        return connection_rows(self._database, self._filters(asked), pattern)

    def decisions(self, *, each: bool = False, **asked: Unpack[Asked]) -> Rows:
        """Return calls allowed, asked about and denied by rule; with ``each``, call by call."""
        return decisions.decision_rows(self._database, self._filters(asked), each=each)

    def approvals(self, **asked: Unpack[Asked]) -> Rows:
        """The questions that were asked, and who answered."""
        return decisions.approval_rows(self._database, self._filters(asked))

    def limits(self, **asked: Unpack[Asked]) -> Rows:
        """The limits that stopped runs, and the budgets that runs wait for."""
        return problems.limit_rows(self._database, self._filters(asked))

    def errors(self, **asked: Unpack[Asked]) -> Rows:
        """Errors, grouped when they are alike."""
        return problems.error_rows(self._database, self._filters(asked))

    def costs(self, by: By = "job", **asked: Unpack[Asked]) -> Rows:
        """Return costs by ``job``, ``run``, ``tree``, ``model``, ``day`` or ``purpose``."""
        return costs.cost_rows(self._database, self._filters(asked), self._prices, by)

    def models(self, **asked: Unpack[Asked]) -> Rows:
        """Return the calls and the cost of each model."""
        return costs.model_rows(self._database, self._filters(asked), self._prices)

    def timeline(self, run: str, /, **asked: Unpack[Asked]) -> Rows:
        """Everything that happened in a run, in order."""
        run_id = self._id("run", run)
        return timeline_rows(self._database, self._filters(asked), run_id, self._prices)

    def sql(
        self, sql: str, *, limit: int | None = None, timeout: float = 30.0, role: str | None = None
    ) -> Rows:
        """Ask with a SELECT over the views of docs/views.md; it cannot change anything. It may take
        ``timeout`` seconds; on Postgres it has the rights of ``role``. Raises ``UsageError`` if it
        cannot be answered, ``RunnerError`` if it takes too long or too much memory."""
        if not 0 < timeout <= _MOST_SECONDS:
            raise UsageError(f"timeout={timeout!r}: give more than 0 seconds, and a year at most")
        notes = []
        try:
            store_prices(self._database, self._prices)
        except (DBAPIError, UnreachableError):  # a user who may only read can still ask
            notes = ["v_costs has an older price list: this user may not store the newer one"]
        rows = ask(self._database, sql, Bounds(seconds=timeout, rows=_most(limit)), role)
        rows.note = "; ".join(filter(None, (rows.note, *notes)))
        return rows

    def _filters(self, asked: Asked | Only) -> Filters:
        """Filters with whole ids. Raises ``UsageError`` and ``NotFoundError`` as questions do."""
        given: dict[str, Any] = {}
        values: dict[str, Any] = {**asked}
        for name, value in values.items():
            if name in ("since", "until"):
                seconds = value.timestamp() if isinstance(value, datetime) else value
                if seconds is not None and not math.isfinite(seconds):
                    raise UsageError(
                        f"{value!r} is not a time: give seconds since the epoch, or a datetime"
                    )
                given[name] = seconds
            elif name in ("job", "run"):
                given[f"{name}_id"] = self._id("job" if name == "job" else "run", value)
            elif name == "limit":
                given[name] = _most(value)
            else:
                given[name] = _name(name, value)
        return Filters(**given)

    def _id(self, kind: Kind, value: Any) -> str:
        name = with_own_last(self._database, _name(kind, value), (kind,))
        return find(self._database, name, kind).id


def _name(option: str, text: str) -> str:
    if not is_storable(text):
        raise UsageError(f"{option}={text[:60]!a} has a character that no name can have")
    return text


def _most(limit: int | None) -> int | None:
    return None if limit is None else _at_most(limit)


def _at_most(limit: int) -> int:
    if not 1 <= limit <= MOST_ROWS:
        raise UsageError(f"limit={limit!r}: give 1 to {MOST_ROWS:,}, or leave it out")
    return limit


def views(name: str | None = None) -> Rows:
    """The columns of the views that ``Audit.sql`` can ask, or of one view. Needs no database.
    Raises ``UsageError`` if there is no such view."""
    names = [view.name for view in VIEWS]
    if name is not None and name not in names:
        raise UsageError(f"no view is named {name}: there are {', '.join(names)}")
    rows = [
        (view.name, column.name, column.kind, column.meaning.replace("`", ""))
        for view in VIEWS
        if name in (None, view.name)
        for column in view.columns
    ]
    return Rows([Column(name) for name in ("view", "column", "kind", "meaning")], rows)
