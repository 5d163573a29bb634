"""The results of a job: the table at the end of ``run``, and ``report`` as a Markdown page."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from runner.app import budgets, handle, report_page, times
from runner.app import report as app_report
from runner.app.humanize import (
    cell,
    containment_line,
    cost_line,
    denier,
    duration,
    first_line,
    plural,
    tokens_of,
)
from runner.cli.exit_codes import exit_code
from runner.cli.options import JOB, output_option, with_app
from runner.cli.terminal import drop_stdout, note, say, say_bytes, say_json, say_table
from runner.cli.terminal import output as write_to

_MOST_DENIALS = 10
# Runs that have a line each: those that have not begun, and those that just succeeded.
_MOST_IDLE, _MOST_FINE = 10, 100


@click.command()
@click.argument("job", type=JOB)
@output_option
@click.option(
    "--html",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Write one HTML page, with diffs and charts (-: to stdout).",
)
@with_app
def report(app: handle.App, job: str, output: Path | None, html: Path | None) -> None:
    """Report on a job in Markdown: what to look at first, failures grouped by message, and for each
    run its outcome, changes, verification, cost, time, denials and approvals. --html writes a
    self-contained page instead, to open in a browser or to mail.

    Text from models, tools and repositories is shown as code, so that it has no effect.

    \b
    Example:
      runner report job_01jd9k -o morning.md
      runner report job_01jd9k --html morning.html
    """
    if html is not None and output is not None:
        raise click.UsageError("--html writes a page, -o Markdown: give one of them")
    found = app_report.report_on(app, job, time.time(), with_changes=True)
    if html is not None:
        to_stdout = str(html) == "-"
        with write_to(None if to_stdout else html) as write:
            for piece in report_page.report_page(app, found):
                write(piece.encode(errors="backslashreplace"))
        if not to_stdout:
            note(f"written: {cell(html)}")
        return
    say_bytes(app_report.markdown(found).encode(errors="backslashreplace"), output)


def summarise(report: app_report.Report, *, interrupted: bool, as_json: bool) -> int:
    """Print the outcomes of a job's items and further commands. Return the exit code, which says what
    became of the runs also if nobody reads stdout any more."""
    try:
        if as_json:
            say_json(report.as_json())
        else:
            _say_summary(report)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
    return exit_code((each.run["state"] for each in report.runs), interrupted=interrupted)


def _say_summary(report: app_report.Report) -> None:
    runs = [each.run for each in report.runs]
    _say_runs(report.runs)
    names = ("turns", "charged_tokens", "unknown_tokens")
    turns, tokens, unknown = (report.job[name] for name in names)
    below = sum(run["below"] for run in runs)
    started = f" and {plural(below, 'sub-agent')}" if below else ""
    used = f"{plural(turns, 'turn')}, {tokens_of(tokens, unknown)} tokens"
    say(f"\n{report.outcomes}{started}; {used}")
    if cost := cost_line(report.spending):
        say(f"cost: {cost}")
    if report.forecast:
        say(f"expected in all: {report.forecast.line}")
    if contained := containment_line(report.containment):
        say(f"sandbox: {contained}")
    _say_denied(report)
    _say_waiting(report)
    for line in report.pause:
        say(cell(line))
    if report.pruned.runs:
        why = f" ({cell(report.pruned.why)})" if report.pruned.why else ""
        say(
            f"in {plural(report.pruned.runs, 'run')} the oldest turns were left out of what the model "
            f"was sent: no summary could stand in for them{why}"
        )
    if runs:
        telling = max(runs, key=lambda run: (bool(run["started_at"]), run["state"] != "succeeded"))
        note(f"\nlook further: runner transcript {telling['id']}")
        note(f"              runner events {telling['id']}")
        note(f"              runner report {report.job['id']}")
        if any(e.run["state"] == "succeeded" and e.snapshots.is_recorded for e in report.runs):
            note(f"take it:      runner patch {report.job['id']} -o patches")
        if any(run["state"] == "failed" for run in runs):
            note(f"try again:    runner retry {report.job['id']} --failed")


def _say_runs(found: Sequence[app_report.ReportedRun]) -> None:
    """Print a line for each run, but of many that need no look only their number."""
    idle = [each for each in found if not (each.run["started_at"] or each.run["detail"])]
    fine = [
        each for each in found if each.run["state"] == "succeeded" and not each.run["tree_denials"]
    ]
    told = (("have not begun", idle, _MOST_IDLE), ("succeeded", fine, _MOST_FINE))
    left_out = {words: some for words, some, most in told if len(some) > most}
    hidden = {each.run["id"] for some in left_out.values() for each in some}
    _say_table_of([each for each in found if each.run["id"] not in hidden])
    for words, some in left_out.items():
        say(f"{len(some):,} runs that {words} are not listed")


def _say_table_of(runs: Sequence[app_report.ReportedRun]) -> None:
    if not runs:
        return
    is_verified = ("verified",) if any(each.verified for each in runs) else ()
    is_tree = ("below",) if any(each.run["below"] for each in runs) else ()
    has_changes = ("changes",) if any(each.stat for each in runs) else ()
    is_denied = ("denied",) if any(each.run["tree_denials"] for each in runs) else ()
    columns = (*has_changes, *is_tree, "turns", "tokens", "time", *is_denied, "last text")
    say_table(
        ("run", "item", "state", "reason", *is_verified, *columns),
        (
            (
                *(each.run["id"], each.run["item_key"], each.run["state"], each.run["reason"]),
                *(each.verdict for _ in is_verified),
                *(_changes(each) for _ in has_changes),
                *(each.run["below"] or "" for _ in is_tree),
                each.run["turns"],
                tokens_of(each.run["tree_tokens"], each.run["tree_unknown_tokens"]),
                duration(each.seconds),
                *(each.run["tree_denials"] or "" for _ in is_denied),
                first_line(each.run["detail"] or each.last_text or ""),
            )
            for each in runs
        ),
        spare=("tokens", "turns", "below", "denied", "changes"),
        excerpt=True,
    )


def _changes(each: app_report.ReportedRun) -> str:
    stat = each.stat
    return "" if stat is None else f"{plural(stat.files, 'file')} +{stat.added} -{stat.removed}"


def _say_denied(report: app_report.Report) -> None:
    calls, in_runs = report.denied_counts
    if not calls:
        return
    were = plural(calls, "tool call was", "tool calls were")
    say(f"{were} denied, in {plural(in_runs, 'run')}: the work may be incomplete")
    for kind in report.denied[:_MOST_DENIALS]:
        summary = cell(kind["summary"]) + ("" if kind["alike"] else " (and other calls)")
        say(f"  {kind['calls']} × {cell(kind['tool'])} {summary}: {denier(kind)}")
    if len(report.denied) > _MOST_DENIALS:
        others = len(report.denied) - _MOST_DENIALS
        say(f"  … and for {others} other reasons (all: runner show RUN)")


def _say_waiting(report: app_report.Report) -> None:
    job_id = report.job["id"]
    if report.waiting:
        waits = plural(sum(report.waiting.values()), "tool call waits", "tool calls wait")
        runs = plural(len(report.waiting), "run")
        say(f"{waits} for an answer, in {runs}: runner approvals {job_id}")
    if count := sum(budgets.is_out_of_budget(each.run) for each in report.runs):
        waits = plural(count, "run waits", "runs wait")
        say(f"{waits} for the job's budget: {budgets.how_to_raise(job_id, report.budget)}")
    if count := sum(times.is_past_finish(each.run) for each in report.runs):
        waits = plural(count, "run waits", "runs wait")
        say(f"{waits} since the job's finish_by: {times.how_to_move(job_id)}")
