"""The report on a job: the outcomes of its runs, as values and as a Markdown page.

Nothing from outside means anything in the page: it stands there as code, the one place where Markdown has
no links, mentions or HTML (https://spec.commonmark.org/0.31.2/#code-spans,
https://github.github.com/gfm/#tables-extension-).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from runner.app import humanize, workspaces
from runner.app.budgets import budget_of
from runner.app.costs import cost_fields, losses_of
from runner.app.forecast import JobForecast, forecast_of
from runner.app.handle import App
from runner.app.listing import pause_line
from runner.app.transcript_page import environment
from runner.core.budget import JobBudget
from runner.core.losses import Losses
from runner.core.pauses import BY_PILOT
from runner.core.prices import Spending
from runner.core.text import failure_signature
from runner.errors import RunnerError
from runner.queries import decisions, jobs
from runner.queries.costs import costs_by
from runner.queries.outcomes import Verification, last_verifications
from runner.queries.tool_calls import containments
from runner.store.workspaces import RunWorkspace, workspaces_of_job
from runner.workspace.diffs import DiffStat

_LONGEST_CODE = 100
_MOST_EXCERPT_LINES = 12


@dataclass(frozen=True, slots=True)
class ReportedRun:
    run: jobs.RunSummary
    snapshots: RunWorkspace
    spending: Spending = field(default_factory=Spending)  # its sub-agents included
    stat: DiffStat | None = None  # what it changed; None where that is unknown
    verified: Verification | None = None  # the last one
    answers: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by answer and its source
    waiting: int = 0  # tool calls that wait for an answer
    unknown: int = 0  # tool calls of unknown outcome
    last_text: str | None = None  # what the model said last
    unrecorded: tuple[str, ...] = ()  # paths in its workspace whose content is not recorded

    @property
    def short_id(self) -> str:
        return str(self.run["id"])[-humanize.SHORT_ID :]

    @property
    def seconds(self) -> float | None:
        """The time from its first step to its end; None before that."""
        started, ended = self.run["started_at"], self.run["ended_at"]
        return None if started is None or ended is None else ended - started

    @property
    def lines_changed(self) -> int:
        return 0 if self.stat is None else self.stat.added + self.stat.removed

    @property
    def verdict(self) -> str:
        return humanize.verdict(self.verified)

    @property
    def verifications(self) -> int:
        return 1 if self.verified is None else self.verified["number"]

    @property
    def failed_output(self) -> str | None:
        """The output of the verification that it failed."""
        is_by_it = self.run["reason"] == "verify"
        return self.verified["output"] if is_by_it and self.verified is not None else None

    @property
    def answer_counts(self) -> list[tuple[str, int]]:
        counts: Counter[str] = Counter()
        for (answer, _), count in sorted(self.answers.items()):
            counts[answer] += count
        waiting = {"waiting": self.waiting} if self.waiting else {}
        return [*counts.items(), *waiting.items()]


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Runs that failed for the same reason, with the same signature."""

    state: str
    reason: str
    signature: str
    runs: tuple[Any, ...]
    said: str  # by the first

    @property
    def excerpt(self) -> str:
        """The end of what the first run said, where commands say why they failed."""
        lines = [line[:300] for line in self.said.rstrip().split("\n")]
        if (more := len(lines) - _MOST_EXCERPT_LINES) > 0:
            lines = [f"… {more} lines", *lines[-_MOST_EXCERPT_LINES:]]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    job: dict[str, Any]  # as ``queries.jobs.show_job`` gives it
    runs: Sequence[ReportedRun]  # of its items, those begun afresh left out
    denied: Sequence[decisions.DeniedKind]
    denied_counts: tuple[int, int]  # tool calls, and runs that made them
    waiting: Mapping[str, int]  # tool calls that wait for an answer by run, sub-agents included
    budget: JobBudget
    pruned: jobs.PrunedTurns
    now: float  # seconds since the epoch
    missing: str  # why the changes of some runs are not counted; empty if all are
    containment: Mapping[str, int]  # tool calls by what contained them
    forecast: JobForecast | None  # of a job that goes on
    losses: Losses
    spending: Spending  # of all runs of the job, those begun afresh and sub-agents included

    @property
    def outcomes(self) -> str:
        return humanize.counts(Counter(each.run["state"] for each in self.runs))

    @property
    def failures(self) -> list[FailureGroup]:
        return failure_groups((each, each.run, each.failed_output) for each in self.runs)

    @property
    def oddities(self) -> list[tuple[str, list[ReportedRun]]]:
        """Return problems that a success may hide, each with its runs."""
        tests: tuple[tuple[str, Callable[[ReportedRun], object]], ...] = (
            ("with tool calls of unknown outcome", lambda each: each.unknown),
            ("although tool calls were denied", lambda each: each.run["tree_denials"]),
            ("and changed nothing", lambda each: each.stat is not None and not each.stat.files),
            ("only when verified again", lambda each: each.verifications > 1),
        )
        succeeded = [each for each in self.runs if each.run["state"] == "succeeded"]
        found = ((words, [each for each in succeeded if is_so(each)]) for words, is_so in tests)
        return [(words, runs) for words, runs in found if runs]

    @property
    def worst_denied(self) -> decisions.DeniedKind | None:
        """The kind of denials whose example is the most dangerous call; None without any."""
        return max(self.denied, key=lambda kind: kind["level"], default=None)

    @property
    def answers(self) -> list[tuple[tuple[str, str], int]]:
        counts: Counter[tuple[str, str]] = Counter()
        for each in self.runs:
            counts.update(each.answers)
        return sorted(counts.items())

    @property
    def pause(self) -> list[str]:
        """Return why Runner has paused the job, if it has, and what its pilot came to, in lines."""
        pause = self.job["pause"]
        if pause is None or pause["reason"] != "pilot":
            return [] if pause is None else [pause_line(self.job)]
        worked = [each for each in self.runs if each.run["detail"] != BY_PILOT]
        took = [each.seconds for each in worked if each.seconds is not None]
        spent = sum((each.spending for each in worked), Spending())
        lines = [pause_line(self.job)]
        if took:
            lines.append(f"an item took {humanize.duration(sum(took) / len(took))}")
        if spent.calls > spent.scripted and not spent.unpriced:
            each_usd = (spent.usd + spent.at_most) / len(worked)
            all_usd = humanize.dollars(each_usd * len(self.runs))
            lines.append(
                f"an item cost {humanize.dollars(each_usd)}; at that all {len(self.runs):,} cost {all_usd}"
            )
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the job, its runs without their changes, denials and cost."""
        runs = [
            {
                **each.run,
                "last_text": each.last_text,
                "open_approvals": each.waiting,
                "verified": each.verdict or None,
                **cost_fields(each.spending),
            }
            for each in self.runs
        ]
        whole = self.job | {"run_summaries": runs, "denied": self.denied}
        whole |= {"containment": self.containment}
        whole |= {"forecast": self.forecast and self.forecast.as_json()}
        return whole | cost_fields(self.spending)


def failure_groups(runs: Iterable[tuple[Any, Mapping[str, Any], str | None]]) -> list[FailureGroup]:
    """Return failures grouped by signature, the most frequent first. Each run is a tuple of the run, its
    row, and the output of the verification that it failed."""
    found: dict[tuple[str, str, str], list[Any]] = {}
    said: dict[tuple[str, str, str], str] = {}
    for each, run, output in runs:
        if run["state"] in ("failed", "stopped"):
            signature = failure_signature(run["detail"], run["item_key"], output)
            key = run["state"], run["reason"], signature
            found.setdefault(key, []).append(each)
            said.setdefault(key, output or run["detail"])
    groups = [FailureGroup(*key, tuple(same), said[key]) for key, same in found.items()]
    return sorted(groups, key=lambda group: -len(group.runs))


def report_on(app: App, job: str, now: float, *, with_changes: bool | None) -> Report:
    """Gather the report on a job (an id or a part of it) ``now`` (seconds since the epoch), with or
    without the runs' changes, which need git; None: with them while the job waits after its pilot."""
    database, job_id = app.database, app.find_job(job)
    recorded = {each.run_id: each for each in workspaces_of_job(database, job_id)}
    shown_job = jobs.show_job(database, job_id)
    if with_changes is None:
        with_changes = (shown_job["pause"] or {}).get("reason") == "pilot"
    changes, missing = _changes(app, recorded.values() if with_changes else ())
    waiting = decisions.open_approval_counts(database, job_id)
    costs = costs_by(database, app.prices(), "tree", job_id=job_id)
    told: dict[str, Mapping[str, Any]] = {  # by field of a reported run
        "spending": {each.key: each.spending for each in costs},
        "verified": last_verifications(database, job_id),
        "answers": decisions.answer_counts(database, job_id),
        "waiting": waiting,
        "unknown": decisions.unknown_outcome_counts(database, job_id),
        "last_text": jobs.last_texts(database, job_id),
    }
    runs = [
        ReportedRun(
            run,
            recorded[run_id],
            **{name: found[run_id] for name, found in told.items() if run_id in found},
            **changes.get(run_id, {}),
        )
        for run in jobs.current_runs(jobs.list_runs(database, job_id))
        if (run_id := run["id"]) in recorded
    ]
    return Report(
        job=shown_job,
        runs=runs,
        denied=decisions.denied_kinds(database, job_id),
        denied_counts=decisions.denied_counts(database, job_id),
        waiting=waiting,
        budget=budget_of(app, job_id),
        pruned=jobs.pruned_turns(database, job_id),
        now=now,
        missing=missing,
        containment=containments(database, job_id),
        forecast=forecast_of(app, job_id),
        losses=losses_of(app, job_id),
        spending=sum((each.spending for each in costs), Spending()),
    )


def _changes(app: App, runs: Iterable[RunWorkspace]) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the ``stat`` and ``unrecorded`` of runs by id, and why some are missing."""
    recorded = workspaces.recorded_in(app)
    found: dict[str, dict[str, Any]] = {}
    missing = ""
    for run in runs:
        if not run.is_recorded or not (changes := workspaces.delivered_or_recorded(run)):
            continue
        try:
            where = workspaces.whereabouts(app, run)
            found[run.run_id] = {"stat": recorded.stat(where, changes)}
            if run.tree is not None:
                found[run.run_id]["unrecorded"] = recorded.unrecorded(where, run.tree)
        except RunnerError as error:
            missing = missing or str(error)
    return found, missing


def markdown(report: Report) -> str:
    return markdown_environment().get_template("report.md").render(report=report)


@cache
def markdown_environment() -> Environment:
    """Return an environment that shows an expression as code unless it is a number or safe."""
    found = environment(code)
    found.filters |= report_filters(_safe, code) | {"block": block}
    return found


def report_filters(
    own: Callable[[Callable[..., str]], Callable[..., Markup]], code: Callable[..., Markup]
) -> dict[str, Callable[..., Any]]:
    """Return the filters of the report's parts. ``own`` makes a function that returns words of ours one
    that returns markup, ``code`` shows a value from outside."""
    own_words = ("cost", "duration", "moment", "plural", "loss_line")
    cost_line = own(humanize.cost_line)
    return {
        **{name: own(getattr(humanize, name)) for name in own_words},
        "code": code,
        # It names models without a price and has no words of ours.
        "cost_line": lambda spent: (humanize.cost_line if spent.unpriced else cost_line)(spent),
        "cheaper_lines": humanize.cheaper_lines,
        "contained": humanize.containment_line,
        "denier": humanize.denier,
        # The first column, and columns with a value in some row.
        "filled": lambda columns, rows: [
            c for c in columns if c is columns[0] or any(map(c[1], rows))
        ],
        "number": own("{:,}".format),
    }


def _safe(words: Callable[..., str]) -> Callable[..., Markup]:
    return lambda *arguments: Markup(words(*arguments))


def code(value: Any, longest: int = _LONGEST_CODE) -> Markup:
    """Return a value from outside as code on one line; nothing for nothing, numbers as they are."""
    if isinstance(value, Markup | int):
        return Markup(value)
    text = humanize.short_ids(humanize.cell(value)).strip()
    if not text:
        return Markup()
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    # A pipe ends a table's cell, and a backslash before it would undo its escape.
    text = re.sub(r"\\(?=\|)", r"\\ ", text).replace("|", r"\|")
    fence = _fence(text, 1)
    pad = " " if "`" in (text[0], text[-1]) else ""
    return Markup(f"{fence}{pad}{text}{pad}{fence}")


def block(text: str) -> Markup:
    """Return a text from outside as a block of code."""
    shown = humanize.lines(text.rstrip())
    fence = _fence(shown, 3)
    return Markup(f"{fence}text\n{shown}\n{fence}")


def _fence(text: str, shortest: int) -> str:
    """A run of backticks that is longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)
