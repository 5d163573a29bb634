"""The pages that only read: jobs and their runs."""

from __future__ import annotations

from starlette.responses import Response

from runner.app import overview, run_table
from runner.app.people import may
from runner.app.run_table import ROLE_OF, SORTS, Sorting
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
