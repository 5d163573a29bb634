"""The report on a job as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.app.humanize import cell, cost, cost_line, denier, duration, moment, verdict
from runner.cli.report.findings import FailureGroup, Line, failure_groups
from runner.cli.report.look_first import look_first
from runner.cli.report.markdown import block, code, table
from runner.core.prices import Spending

if TYPE_CHECKING:
    from runner.queries.decisions import DeniedKind

SHOWN_ID = 8
_MOST_NAMED = 8
_MOST_KINDS = 30
_MOST_EXCERPT_LINES = 12


@dataclass(frozen=True, slots=True)
class Report:
    """All that the page tells: the job as ``queries.show_job`` gives it, and a line for each run.
    ``missing`` says why changes of some runs are not counted, empty when all are."""

    job: dict[str, Any]
    lines: Sequence[Line]
    denied: Sequence[DeniedKind]
    now: float
    missing: str = ""


def page(report: Report) -> str:
    """The page."""
    groups = failure_groups(report.lines)
    sections = [
        *_head(report),
        "## What to look at first",
        "\n".join(f"- {line}" for line in look_first(report.job["id"], report.lines, groups)),
        *_failures(groups),
        "## Runs",
        _runs(report.lines),
        *_denials(report.denied),
        *_answers(report.lines),
    ]
    return "\n\n".join(sections) + "\n"


def _head(report: Report) -> Iterator[str]:
    job, lines = report.job, report.lines
    spec = job["spec"]
    yield f"# Job {code(job['name'])}"
    total = sum((line.spending for line in lines), Spending())
    ended = [line.run["ended_at"] for line in lines if line.run["ended_at"] is not None]
    worked = sum(line.seconds or 0 for line in lines)
    took = duration(max(ended) - job["created_at"]) if ended else ""
    stats = [line.stat for line in lines if line.stat is not None]
    verified = [line for line in lines if line.verified is not None]
    facts = [
        ("job", code(job["id"])),
        ("model", code(spec["model"] if spec["provider"] == "anthropic" else "scripted")),
        ("workspace", _workspace(spec.get("workspace"))),
        ("submitted", moment(job["created_at"])),
        ("outcomes", _outcomes(lines)),
        ("last end", f"{moment(max(ended))}, {took} after it was submitted" if ended else ""),
        ("time", f"{duration(worked)} of all runs together" if worked else ""),
        ("changes", _changes(stats)),
        ("verified", f"{sum(map(_passed, verified))} of {len(verified)}" if verified else ""),
        ("cost", cost_line(total)),
    ]
    yield "\n".join(f"- {name}: {told}" for name, told in facts if told)
    yield f"As of {moment(report.now)}."
    if report.missing:
        yield f"Changes are not counted for every run: {code(report.missing, 300)}"


def _workspace(workspace: dict[str, Any] | None) -> str:
    if not workspace:
        return ""
    source = workspace.get("url") or workspace.get("path")
    commit = (workspace.get("commit") or "")[:12]
    base = f" at {code(workspace.get('base'))}, commit {code(commit)}" if commit else ""
    return f"{cell(workspace['mode'])}, {code(source)}{base}" if source else cell(workspace["mode"])


def _outcomes(lines: Sequence[Line]) -> str:
    by_state: dict[str, int] = {}
    for line in lines:
        by_state[line.run["state"]] = by_state.get(line.run["state"], 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in by_state.items())
    return f"{told}, of {len(lines)}"


def _changes(stats: Sequence[Any]) -> str:
    changed = [stat for stat in stats if stat.files]
    if not stats:
        return ""
    added, removed = sum(s.added for s in changed), sum(s.removed for s in changed)
    return f"+{added:,} −{removed:,} lines in {len(changed)} of {len(stats)} runs"


def _passed(line: Line) -> bool:
    return verdict(line.verified) == "passed"


def _failures(groups: Sequence[FailureGroup]) -> Iterator[str]:
    if not groups:
        return
    yield "## Failures"
    for group in groups:
        count = len(group.lines)
        said = code(group.signature, 200) or "nothing was said"
        yield f"### {count} × {group.state} {code(group.reason)}: {said}"
        named = ", ".join(
            f"{code(line.id[-SHOWN_ID:])} {code(line.run['item_key'])}"
            for line in group.lines[:_MOST_NAMED]
        )
        yield named + (f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else "")
        if group.excerpt.strip():
            yield block(_excerpt(group.excerpt))


def _excerpt(text: str) -> str:
    """The end of what was said: that is where commands say why they failed."""
    lines = [line[:300] for line in text.rstrip().split("\n")]
    if len(lines) <= _MOST_EXCERPT_LINES:
        return "\n".join(lines)
    return "\n".join([f"… {len(lines) - _MOST_EXCERPT_LINES} lines", *lines[-_MOST_EXCERPT_LINES:]])


def _runs(lines: Sequence[Line]) -> str:
    columns = (
        *("run", "item", "outcome", "changes", "verify", "cost", "time", "turns"),
        *("sub-agents", "denied", "approvals"),
    )
    return table(
        columns,
        (
            (
                code(line.id[-SHOWN_ID:]),
                code(line.run["item_key"]),
                f"{line.run['state']} {code(line.run['reason'])}".strip(),
                _stat(line),
                _verdict(line),
                cost(line.spending) if line.spending.calls else "",
                duration(line.seconds),
                str(line.run["turns"]),
                str(line.run["below"] or ""),
                str(line.run["tree_denials"] or ""),
                _answered(line),
            )
            for line in lines
        ),
    )


def _stat(line: Line) -> str:
    stat = line.stat
    if stat is None:
        return "?" if line.trees.is_recorded and line.trees.start_tree else ""
    if not stat.files:
        return "none"
    files = "1 file" if stat.files == 1 else f"{stat.files} files"
    return f"{files} +{stat.added:,} −{stat.removed:,}"


def _verdict(line: Line) -> str:
    """What verification said, and which one said so when it was not the first."""
    number = 1 if line.verified is None else line.verified["number"]
    return verdict(line.verified) + (f" (verification {number})" if number > 1 else "")


def _answered(line: Line) -> str:
    told = [f"{count} {answer}" for answer, count in _by_answer(line.answers).items()]
    if line.waiting:
        told.append(f"{line.waiting} waiting")
    return ", ".join(told)


def _by_answer(answers: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for (answer, _), count in sorted(answers.items()):
        found[answer] = found.get(answer, 0) + count
    return found


def _denials(kinds: Sequence[DeniedKind]) -> Iterator[str]:
    if not kinds:
        return
    yield "## Denied tool calls"
    yield table(
        ("calls", "runs", "tool", "such as", "by"),
        (
            (
                str(kind["calls"]),
                str(kind["runs"]),
                code(kind["tool"]),
                code(kind["matched"]),
                code(denier(kind), 200),
            )
            for kind in kinds[:_MOST_KINDS]
        ),
    )
    if len(kinds) > _MOST_KINDS:
        yield f"… and for {len(kinds) - _MOST_KINDS} other reasons."


def _answers(lines: Sequence[Line]) -> Iterator[str]:
    found: dict[tuple[str, str], int] = {}
    for line in lines:
        for key, count in line.answers.items():
            found[key] = found.get(key, 0) + count
    waiting = sum(line.waiting for line in lines)
    if not found and not waiting:
        return
    yield "## Approvals"
    told = [f"- {count} {answer} (by {via})" for (answer, via), count in sorted(found.items())]
    if waiting:
        told.append(f"- {waiting} waiting for an answer")
    yield "\n".join(told)
