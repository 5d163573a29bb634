"""The report on a job as one self-contained HTML page: no script, nothing that a browser has to load.

It shares the parts of the Markdown report. Content from outside is text, as in ``transcript_page``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from runner.app import workspaces
from runner.app.handle import App
from runner.app.humanize import DiffKind, cell, diff_kinds, short_ids
from runner.app.report import Report, ReportedRun, report_filters
from runner.app.transcript_page import digest, environment, shown
from runner.core.run import STATES
from runner.errors import RunnerError

_LONGEST_CODE = 200
_MOST_DIFF_LINES = 400  # of a run
_MOST_LINES = 20_000  # of all runs
_WIDTH = 90  # of a diff's summary, in columns
_MOST_BARS = 12
_MOST_SPANS = 1_000


@dataclass(frozen=True, slots=True)
class Diff:
    lines: Sequence[tuple[DiffKind, str]]
    more: int = 0  # lines that are not shown
    why: str = ""  # why there are none


@dataclass(frozen=True, slots=True)
class Span:
    """The time of a run, as shares of the time of all runs."""

    run: ReportedRun
    start: float
    length: float


def report_page(app: App, report: Report) -> Iterator[str]:
    """Yield the page a piece at a time, while the runs' diffs are read from git."""
    html = _html()
    assert html.loader is not None
    sheets = (html.loader.get_source(html, name)[0] for name in ("transcript.css", "report.css"))
    left = [_MOST_LINES]
    return html.get_template("report.html").generate(
        report=report,
        style=Markup("".join(sheets)),
        diff=partial(_diff, app, left),
        counts=_counts(report.runs),
        dearest=_dearest(report.runs),
        spans=_spans(report),
    )


def _diff(app: App, left: list[int], run: ReportedRun) -> Diff:
    """Return a run's changes, cut to the lines that the page still has room for (``left``)."""
    if run.stat is None or not run.stat.files:
        return Diff(())
    changes = workspaces.delivered_or_recorded(run.snapshots)
    try:
        where = workspaces.whereabouts(app, run.snapshots)
        content = workspaces.recorded_in(app).diff(where, changes, "shown", _WIDTH)
    except RunnerError as error:
        return Diff((), why=str(error))
    found = [*diff_kinds(content.decode(errors="replace"))]
    lines = found[: min(_MOST_DIFF_LINES, left[0])]
    left[0] -= len(lines)
    return Diff(lines, len(found) - len(lines))


def _counts(runs: Sequence[ReportedRun]) -> list[tuple[str, int]]:
    found = ((state, sum(each.run["state"] == state for each in runs)) for state in STATES)
    return [(state, count) for state, count in found if count]


def _dearest(runs: Sequence[ReportedRun]) -> list[tuple[ReportedRun, float]]:
    """Return the runs that cost most, or where nothing has a price used most tokens, each with its share
    of the most."""
    is_priced = any(each.spending.usd for each in runs)

    def size(each: ReportedRun) -> float:
        return float(each.spending.usd if is_priced else each.run["tree_tokens"])

    largest = sorted(runs, key=size, reverse=True)[:_MOST_BARS]
    most = size(largest[0]) if largest else 0.0
    return [(each, size(each) / most) for each in largest] if most else []


def _spans(report: Report) -> list[Span]:
    """Return when each begun run started and ended (now if it has not ended), in order of start."""
    begun = [each for each in report.runs if each.run["started_at"] is not None]
    begun = sorted(begun, key=lambda each: each.run["started_at"])[:_MOST_SPANS]
    if not begun:
        return []
    ends = [each.run["ended_at"] or report.now for each in begun]
    first, last = begun[0].run["started_at"], max(ends)
    whole = (last - first) or 1.0
    return [
        Span(each, (each.run["started_at"] - first) / whole, (end - each.run["started_at"]) / whole)
        for each, end in zip(begun, ends, strict=True)
    ]


@cache
def _html() -> Environment:
    """Return the environment of the page: an expression is code unless it is a number or markup."""
    found = environment(_code, keep_trailing_newline=True)
    # Our own words may have a < too (<$0.0001).
    found.filters |= report_filters(_words, _code) | {
        "digest": digest,
        "safe": escape,
        "text": shown,
    }
    return found


def _words(words: Callable[..., str]) -> Callable[..., Markup]:
    return lambda *arguments: escape(words(*arguments))


def _code(value: Any, longest: int = _LONGEST_CODE) -> Markup:
    """Return a value from outside as code on one line; nothing for nothing, numbers as they are."""
    if isinstance(value, Markup | int):
        return Markup(value)
    text = short_ids(cell(value)).strip()
    if not text:
        return Markup()
    short = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return Markup("<code>{}</code>").format(shown(short))
