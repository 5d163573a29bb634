"""The pages that only read: jobs, their runs, and the calls of a run."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from runner.app import overview, run_page, run_table
from runner.app.people import may
from runner.app.run_table import ROLE_OF, SORTS, Sorting
from runner.errors import RunnerError, UsageError
from runner.web.render import url
from runner.web.visit import Visit


def jobs(visit: Visit) -> Response:
    watched = visit.watch("jobs")
    lines, older = overview.jobs_page(visit.app, visit.query.get("before"))
    values = {"lines": lines, "older": older and url("/", before=older), "watched": watched}
    return visit.page("jobs.html", values)


def job(visit: Visit) -> Response:
    """The runs of a job, and actions on all that match the filters."""
    app = visit.app
    job_id = app.find_job(visit.parts["job"])
    watched = visit.watch(f"job:{job_id}")
    filters = run_table.filters_of(visit.query)
    sorting = Sorting.parse(visit.query.get("sort"))
    given = run_table.as_given(filters)
    line = overview.job_line(app, job_id)
    page = run_table.runs_page(app, job_id, filters, sorting, visit.query.get("after"))
    options = {"sort": None if str(sorting) == "submitted" else str(sorting), **given}
    values = {
        "watched": watched,
        "line": line,
        "page": page,
        "given": given,
        "reasons": run_table.reasons_of(app, job_id),
        "sorting": sorting,
        "sorts": {
            by: url("/jobs/{}", job_id, **{**given, "sort": sorting.toggled(by)}) for by in SORTS
        },
        "next": page.next and url("/jobs/{}", job_id, **options, after=page.next),
        "first": url("/jobs/{}", job_id, **options) if visit.query.get("after") else None,
        "all": {
            action: url("/jobs/{}/all", job_id, action=action, **given)
            for action in line.actions
            if may(visit.session.role, ROLE_OF[action])
        },
    }
    return visit.page("job.html", values)


def charts(visit: Visit) -> Response:
    job_id = visit.app.find_job(visit.parts["job"])
    values = {
        "line": overview.job_line(visit.app, job_id),
        "failures": overview.failures_of(visit.app, job_id),
        "figures": overview.charts_of(visit.app, job_id),
    }
    return visit.page("charts.html", values)


def run(visit: Visit) -> Response:
    """Some turns of a transcript: the newest, those up to the ``last`` one, or those around a ``turn``."""
    run_id = visit.app.find(visit.parts["run"], "run").id
    _record(visit, run_id)
    watched = visit.watch(f"run:{run_id}")
    head = run_page.head_of(visit.app, run_id)
    last, turn = number(visit, "last"), number(visit, "turn")
    if turn is not None:
        last = min(max(turn, 1) + run_page.TURNS // 2, max(head.run["turns"], 1))
        last = None if last >= head.run["turns"] else last
    page = run_page.turns_page(visit.app, head, last)
    values = {"head": head, "page": page, "is_newest": last is None, "watched": watched}
    return visit.page("run.html", values)


def changes(visit: Visit) -> Response:
    head = run_page.head_of(visit.app, visit.parts["run"])
    _record(visit, head.run["id"])
    values: dict[str, Any] = {"problem": "", "diff": None}
    try:
        values["diff"] = run_page.diff_page(visit.app, head.run["id"], number(visit, "turn"))
    except RunnerError as error:
        values["problem"] = str(error)
    checks = run_page.verifications(visit.app, head)
    return _more(visit, head, "changes", verifications=checks, **values)


def costs(visit: Visit) -> Response:
    head = run_page.head_of(visit.app, visit.parts["run"])
    lines, older = run_page.cost_lines(visit.app, head, number(visit, "last"))
    return _more(visit, head, "costs", lines=lines, older=older)


def tree(visit: Visit) -> Response:
    head = run_page.head_of(visit.app, visit.parts["run"])
    return _more(visit, head, "tree", rows=run_page.tree_rows(visit.app, head))


def events(visit: Visit) -> Response:
    head = run_page.head_of(visit.app, visit.parts["run"])
    lines, older = run_page.event_lines(visit.app, head, number(visit, "before"))
    return _more(visit, head, "events", lines=lines, older=older)


def sent(visit: Visit) -> Response:
    head = run_page.head_of(visit.app, visit.parts["run"])
    _record(visit, head.run["id"])
    turn = int(visit.parts["turn"])
    text, is_cut = run_page.sent_page(visit.app, head.run["id"], turn)
    return _more(visit, head, "sent", turn=turn, text=text, is_cut=is_cut)


def call(visit: Visit) -> Response:
    found = run_page.call_page(visit.app, visit.parts["call"])
    _record(visit, found["run_id"])
    return visit.page("call.html", {"call": found})


def _record(visit: Visit, run_id: str) -> None:
    """Record the read; a page that loads itself again is the same one."""
    if not visit.is_refresh:
        run_page.record_read(visit.app, run_id, visit.session.person)


def _more(visit: Visit, head: run_page.Head, tab: str, **values: Any) -> Response:
    return visit.page("run_more.html", {"head": head, "tab": tab, **values})


def number(visit: Visit, name: str) -> int | None:
    """Return a number of the query string, if it is there. Raises ``UsageError``."""
    text = visit.query.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{name}={text[:20]!a} is not a number")
    return int(text)
