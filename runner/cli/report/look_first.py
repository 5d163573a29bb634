"""What of a job to look at first: what waits for someone, what failed, what is odd, what is large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from runner.cli.report.findings import FailureGroup, Line
from runner.cli.report.markdown import code

_SHOWN_ID = 8
_MOST_GROUPS = 5
_MOST_NAMED = 3
_LARGE = 400  # lines: about as much as a reviewer takes in at once


def look_first(job_id: str, lines: Sequence[Line], groups: Sequence[FailureGroup]) -> list[str]:
    """Lines of Markdown, the most urgent first; never none."""
    odd = [*_odd(lines), *_unrecorded(lines)]
    found = [*_waiting(job_id, lines), *_failed(groups), *odd, *_large(lines)]
    return found or ["Nothing stands out."]


def _waiting(job_id: str, lines: Sequence[Line]) -> Iterator[str]:
    asked = [line for line in lines if line.waiting]
    if asked:
        count = sum(line.waiting for line in asked)
        calls = "1 tool call waits" if count == 1 else f"{count} tool calls wait"
        yield f"{calls} for an answer, in {_runs(asked)}: {code(f'runner approvals {job_id}')}"
    others = [line for line in lines if line.run["state"] == "waiting" and not line.waiting]
    for reason in dict.fromkeys(line.run["reason"] for line in others):
        found = [line for line in others if line.run["reason"] == reason]
        wait = "waits" if len(found) == 1 else "wait"
        yield f"{_runs(found)} {wait} ({code(reason)}): {_named(found, 'show')}"
    going = [line for line in lines if line.run["state"] in ("queued", "running")]
    if going:
        yield f"{_runs(going)} not ended yet"


def _failed(groups: Sequence[FailureGroup]) -> Iterator[str]:
    for group in groups[:_MOST_GROUPS]:
        said = f", {code(group.signature)}" if group.signature else ""
        told = f"{_runs(group.lines)} {group.state}, {code(group.reason)}{said}"
        yield f"{told}: {_named(group.lines, 'transcript')}"
    if len(groups) > _MOST_GROUPS:
        yield f"{len(groups) - _MOST_GROUPS} other kinds of failures, below"


def _odd(lines: Sequence[Line]) -> Iterator[str]:
    """What a success may hide."""
    oddities: tuple[tuple[str, Callable[[Line], bool]], ...] = (
        ("with tool calls whose outcome nobody knows", lambda line: bool(line.unknown)),
        ("although tool calls were denied", lambda line: bool(line.run["tree_denials"])),
        ("and changed nothing", lambda line: line.stat is not None and not line.stat.files),
        ("only when verified again", lambda line: (line.verified or {"number": 1})["number"] > 1),
    )
    succeeded = [line for line in lines if line.run["state"] == "succeeded"]
    for words, is_so in oddities:
        found = [line for line in succeeded if is_so(line)]
        if found:
            yield f"{_runs(found)} succeeded {words}: {_named(found, 'show')}"


def _unrecorded(lines: Sequence[Line]) -> Iterator[str]:
    """Work that is in no diff and no commit."""
    found = [line for line in lines if line.unrecorded]
    if found:
        names = sorted({name for line in found for name in line.unrecorded})
        told = ", ".join(map(code, names[:_MOST_NAMED])) + (
            " …" if len(names) > _MOST_NAMED else ""
        )
        why = "may have changed what is recorded nowhere, repositories of their own or submodules"
        yield f"{_runs(found)} {why} ({told}): {_named(found, 'diff')}"


def _large(lines: Sequence[Line]) -> Iterator[str]:
    large = [line for line in lines if line.lines_changed > _LARGE]
    large.sort(key=lambda line: -line.lines_changed)
    if large:
        yield f"{_runs(large)} changed more than {_LARGE} lines: {_named(large, 'diff')}"


def _named(lines: Sequence[Line], command: str) -> str:
    """How to look at the first of them, and which the next are."""
    first, *others = (line.id[-_SHOWN_ID:] for line in lines)
    told = code(f"runner {command} {first}")
    if others:
        told += "".join(f", {code(each)}" for each in others[: _MOST_NAMED - 1])
    return told + (" …" if len(lines) > _MOST_NAMED else "")


def _runs(lines: Sequence[Line]) -> str:
    return "1 run" if len(lines) == 1 else f"{len(lines)} runs"
