"""Search, the ready questions about the record, questions in SQL, and the report on a job."""

from __future__ import annotations

import csv
import io
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

from starlette.responses import Response

from runner import audit
from runner.app import overview, report, tables
from runner.core.prices import BY
from runner.core.search import ROLES, SOURCES
from runner.errors import RunnerError, UsageError
from runner.web.pages import number
from runner.web.render import url
from runner.web.visit import Visit

_HITS = 20  # of a page
_ROWS, _CSV_ROWS = 300, 100_000
_SQL_SECONDS = 20.0
_PATIENCE_SECONDS, _MOST_SEARCHES = 4.0, 8
_KEPT_SECONDS = 30.0  # that a search waits, once it is done, for the page that asked
_at_once = threading.BoundedSemaphore(2)  # questions in SQL; each has a process of its own


class _Search(threading.Thread):
    """A search that may have to build its index first. A page waits for it a while, then shows its
    progress and reloads itself."""

    running: ClassVar[dict[str, _Search]] = {}
    _lock = threading.Lock()

    def __init__(self, look: Callable[..., audit.Found]) -> None:
        super().__init__(name="search", daemon=True)
        self.done = self.all = 0
        self._look = look
        self._ended_at = 0.0
        self._found: audit.Found | Exception = RunnerError("the search was cut off: search again")

    @classmethod
    def found(cls, key: str, look: Callable[..., audit.Found]) -> audit.Found | _Search:
        """Return the result of a search, or the search itself if it is still running. Raises its error."""
        with cls._lock:
            oldest = time.monotonic() - _KEPT_SECONDS
            for each, one in list(cls.running.items()):
                if not one.is_alive() and one._ended_at < oldest:
                    cls.running.pop(each, None)
            if (search := cls.running.get(key)) is None:
                if sum(each.is_alive() for each in cls.running.values()) >= _MOST_SEARCHES:
                    raise UsageError("many searches are running: try again in a moment")
                cls.running[key] = search = cls(look)
                search.start()
        search.join(_PATIENCE_SECONDS)
        if search.is_alive():
            return search
        cls.running.pop(key, None)
        if isinstance(search._found, Exception):
            raise search._found
        return search._found

    def run(self) -> None:
        try:
            self._found = self._look(progress=self._progress)
        except Exception as error:
            self._found = error
        self._ended_at = time.monotonic()

    def _progress(self, done: int, all_: int) -> None:
        self.done, self.all = done, all_


# Questions, what each answers, and what it takes beside the filters.
QUESTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "decisions": ("What was allowed and denied, and by which rule or person", ("each",)),
    "approvals": ("What was asked, and who answered what", ()),
    "commands": ("Commands of Bash, and who allowed them", ("pattern",)),
    "files": ("Who read or changed which file", ("pattern",)),
    "connections": ("Hosts that calls reached or were refused", ("pattern",)),
    "tools": ("How often each tool ran, and how it ended", ()),
    "errors": ("Errors, equal ones together", ()),
    "limits": ("Limits that stopped runs", ()),
    "costs": ("What jobs, runs, models or days cost", ("by",)),
    "models": ("Calls and cost of each model", ()),
}
# Columns that say where a row is from. They come last, as a narrow window cuts off what is on the right.
_PLACES = ("call_id", "run_id", "turn", "label")
_FILTERS = ("job", "run", "item", "tool", "model", "since", "until")


def questions(visit: Visit) -> Response:
    return visit.page("audit.html", {"questions": QUESTIONS, "name": None})


def question(visit: Visit) -> Response:
    """The answer to a ready question, as a table or as CSV. The address repeats it."""
    name = visit.parts["question"]
    if name not in QUESTIONS:
        raise UsageError(f"{name[:40]!a} is not a question: choose {', '.join(QUESTIONS)}")
    query, takes = visit.query, QUESTIONS[name][1]
    is_csv = query.get("format") == "csv"
    options: dict[str, Any] = {"limit": _CSV_ROWS if is_csv else _ROWS}
    if "pattern" in takes and query.get("pattern"):
        options["pattern"] = query["pattern"]
    if "each" in takes and query.get("each"):
        options["each"] = True
    if "by" in takes and query.get("by"):
        if query["by"] not in BY:
            raise UsageError(f"costs are by {', '.join(BY)}, not by {query['by'][:20]!a}")
        options["by"] = query["by"]
    found: audit.Rows = getattr(audit.Audit.of(visit.app), name)(**options, **_only(query))
    if is_csv:
        return _csv(found, name)
    given = {key: value for key, value in query.items() if value and key != "sort"}
    values: dict[str, Any] = {"questions": QUESTIONS, "name": name, "takes": takes, "by": BY}
    values["given"] = given
    values |= _table(found, query.get("sort"), f"/audit/{name}", given)
    values["columns"] = sorted(found.columns, key=lambda column: column.name in _PLACES)
    return visit.page("audit.html", values)


def sql(visit: Visit) -> Response:
    """A question in SQL, which can change nothing. A link from another site shows it and does not ask."""
    text = visit.query.get("q", "")
    values: dict[str, Any] = {"text": text, "views": _views(), "problem": "", "columns": ()}
    if not text.strip() or visit.is_from_elsewhere:
        return visit.page("sql.html", values)
    is_csv = visit.query.get("format") == "csv"
    if not _at_once.acquire(timeout=_SQL_SECONDS):
        raise UsageError("many queries are running: try again in a moment")
    try:
        limit = _CSV_ROWS if is_csv else _ROWS
        found = audit.Audit.of(visit.app).sql(text, limit=limit, timeout=_SQL_SECONDS)
        if is_csv:
            return _csv(found, "answer")
        values |= _table(found, visit.query.get("sort"), "/sql", {"q": text})
    except RunnerError as error:
        values["problem"] = str(error)
    finally:
        _at_once.release()
    return visit.page("sql.html", values)


def search(visit: Visit) -> Response:
    """Places in the conversations, the best first."""
    query = visit.query
    text, exact = query.get("q", "").strip(), query.get("exact", "").strip() or None
    given = {key: value for key, value in query.items() if value and key != "offset"}
    values: dict[str, Any] = {"given": given, "found": None, "indexing": None}
    values |= {"sources": SOURCES, "roles": ROLES}
    if not text and exact is None:
        return visit.page("search.html", values)
    source, role = query.get("in") or None, query.get("role") or None
    if source not in (None, *SOURCES) or role not in (None, *ROLES):
        raise UsageError(f"search in {', '.join(SOURCES)}, of the {' or the '.join(ROLES)}")
    offset = number(visit, "offset") or 0
    options: Any = {"sources": (source,) if source else (), "role": role, "limit": _HITS}
    look = partial(audit.Audit.of(visit.app).find, text, exact, _only(query), offset=offset)
    found = _Search.found(repr(sorted(query.items())), partial(look, **options))
    if isinstance(found, _Search):
        values["indexing"] = found.done, found.all
        response = visit.page("search.html", values)
        response.headers["refresh"] = "3"  # the same page again, with or without scripts
        return response
    is_more = offset + len(found.hits) < found.total or found.is_least
    values |= {"found": found, "offset": offset}
    values["next"] = (
        url("/search", **given, offset=offset + _HITS) if is_more and found.hits else None
    )
    return visit.page("search.html", values)


def morning(visit: Visit) -> Response:
    """The report on a job: its outcomes, and what to look at first."""
    job_id = visit.app.find_job(visit.parts["job"])
    found = report.report_on(visit.app, job_id, time.time(), with_changes=None)
    line = overview.job_line(visit.app, job_id)
    return visit.page("report.html", {"line": line, "report": found})


def _only(query: Mapping[str, str]) -> Any:
    given: dict[str, Any] = {name: query[name].strip() for name in _FILTERS if query.get(name)}
    for name in {"since", "until"} & given.keys():
        given[name] = tables.time_of(given[name])
    return given


def _table(
    found: audit.Rows, sort: str | None, path: str, given: Mapping[str, str]
) -> dict[str, Any]:
    """Return a table's columns, each with the address that sorts by it, and its rows."""
    rows = list(found)
    name = (sort or "").removeprefix("-")
    is_descending = (sort or "").startswith("-")
    names = [column.name for column in found.columns]
    if name in names:
        here = [row for row in rows if row[name] is not None]
        here.sort(key=lambda row: _key(row[name]), reverse=is_descending)
        rows = here + [row for row in rows if row[name] is None]
    sorts = {
        each: url(path, **given, sort=each if f"-{each}" == sort else f"-{each}") for each in names
    }
    return {
        "columns": found.columns,
        "rows": rows,
        "note": found.note.partition(" (--limit")[0],
        "sorts": sorts,
        "sort": (name, is_descending),
        "csv": url(path, **given, format="csv"),
    }


def _key(value: Any) -> tuple[int, Any]:
    is_number = isinstance(value, int | float)
    return (0, value) if is_number else (1, str(value))


def _csv(found: audit.Rows, name: str) -> Response:
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow([column.name for column in found.columns])
    writer.writerows(tables.csv_values(found.columns, row) for row in found)
    return Response(
        written.getvalue().encode("utf-8", "backslashreplace"),
        headers={"content-disposition": f'attachment; filename="{name}.csv"'},
        media_type="text/csv; charset=utf-8",
    )


def _views() -> list[tuple[str, list[Mapping[str, Any]]]]:
    by_view = groupby(audit.views(), key=itemgetter("view"))
    return [(view, list(columns)) for view, columns in by_view]
