"""One run as pages show it: its head, its turns from the newest on, its tree, costs and events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.app import humanize, outputs
from runner.app.costs import costs_of_trees, spending_of
from runner.app.event_words import event_note
from runner.app.handle import App
from runner.app.listing import what_runs_wait_for
from runner.app.show import tree_of
from runner.app.transcript import (
    Message,
    Part,
    Piece,
    ToolCall,
    ToolResult,
    parts_of,
    request_as_sent,
    session_facts,
)
from runner.core.agents import place_of
from runner.core.prices import Spending
from runner.core.run import ENDED, Author
from runner.errors import UsageError
from runner.queries import decisions, jobs, outcomes, timeline, transcript, workers
from runner.queries.costs import CallCost, call_costs
from runner.store import changes

TURNS = 12  # of a page
CALLS = 100  # model calls of a page
EVENTS = 200  # of a page
_MOST_DIFF = 400_000  # characters that a page shows
_MOST_SENT = 300_000


@dataclass(frozen=True, slots=True)
class Head:
    """The head of every page about a run."""

    run: Mapping[str, Any]  # its row, with its place, and the sums of its tree
    spending: Spending
    waits_for: str | None
    waiting: int  # calls of it and its sub-agents that wait for an answer
    session: Mapping[str, Any] | None  # that it was imported from

    @property
    def is_ended(self) -> bool:
        return self.run["state"] in ENDED

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values."""
        run = self.run
        ended = run["ended_at"] or None
        took = ended - run["started_at"] if ended and run["started_at"] else None
        below = run["below"]
        limits = f" of {run['max_turns']:,}", f" of {run['token_ceiling']:,}"
        of_turns, of_tokens = ("", "") if self.session else limits  # a session had none
        found = (
            ("turns", f"{run['turns']:,}{of_turns}"),
            ("tokens", f"{run['charged_tokens']:,}{of_tokens}"),
            ("cost", humanize.cost_line(self.spending)),
            ("took", humanize.duration(took)),
            ("denied", f"{run['denials']:,}" if run["denials"] else ""),
            ("model", humanize.cell(run["model"])),
            ("sub-agents", f"{below.runs:,}, {below.turns:,} turns" if below.runs else ""),
            *session_facts(self.session),
        )
        return [(name, words) for name, words in found if words]


def head_of(app: App, name: str) -> Head:
    """Return the head of a run, by an id or a part of it. Raises ``NotFoundError``."""
    run_id, database = app.find(name, "run").id, app.database
    run: dict[str, Any] = {**transcript.show_run(database, run_id), **place_of(run_id)}
    run |= tree_of(app, run_id)
    (run,) = workers.with_shown_states(database, app.now(), [run])
    open_questions = decisions.open_approval_counts(database, run["job_id"])
    return Head(
        run,
        spending_of(app, run_id=run_id),
        what_runs_wait_for(app, [run]).get(run_id),
        open_questions.get(run["root"], 0),
        transcript.session_of_run(database, run_id),
    )


@dataclass(slots=True)
class Call:
    """A tool call with its result, if it has one yet."""

    call: ToolCall
    result: ToolResult | None = None

    @property
    def line(self) -> str:
        """The first line of its input: a command, a path, or another field."""
        given = self.call.arguments
        if not isinstance(given, Mapping):
            return humanize.first_line(str(given))
        names = ("command", "file_path", "path", "pattern", "description", "url")
        name = next((name for name in names if isinstance(given.get(name), str)), None)
        text = given[name] if name else json.dumps(given, ensure_ascii=False) if given else ""
        return humanize.first_line(text)


@dataclass(slots=True)
class Turn:
    """The words and calls of a turn, in order."""

    number: int  # 0: before the first reply
    parts: list[Part | Call | tuple[Message, Sequence[Piece]]] = field(default_factory=list)
    reply: Message | None = None


@dataclass(frozen=True, slots=True)
class TurnsPage:
    turns: Sequence[Turn]  # the newest first
    older: int | None  # the next page has the turns up to this one; None on the last one
    system: str  # the system prompt, on the last page


def turns_page(app: App, head: Head, last: int | None) -> TurnsPage:
    """Return some turns of a run: the newest, or those up to the ``last`` one. Raises ``UsageError``."""
    newest = max(head.run["turns"], 1)
    if last is not None and not 1 <= last <= newest + 1:
        raise UsageError(f"there is no turn {last}: the last one is {head.run['turns']}")
    # A turn that has begun is not counted before its reply is stored.
    until = newest + 1 if last is None or last >= newest else last
    first = max(1, min(until, newest) - TURNS + 1)
    some = (0 if first == 1 else first, until)
    turns = list(_grouped(parts_of(app, head.run, some), first))
    is_last = first == 1
    system = transcript.system_prompt(app.database, head.run["id"]) if is_last else ""
    return TurnsPage(turns[::-1], None if is_last else first - 1, system or "")


def _grouped(parts: Iterable[Part], first: int) -> Iterator[Turn]:
    """Yield the turns of parts that come in order; results stand with their calls."""
    turn = Turn(first - 1)
    for part in parts:
        if not isinstance(part, Message):
            turn.parts.append(part)
            continue
        if part.role == "assistant" and part.turn > turn.number:
            before = turn.parts if turn.reply is None and first > 1 else []
            if turn.parts and not before:
                yield turn
            turn = Turn(part.turn, before, part)
        left = list(_placed(turn, part))
        if left and part is not turn.reply:
            turn.parts.append((part, left))
        else:
            turn.parts += [(part, [piece]) for piece in left if not isinstance(piece, ToolCall)]
            turn.parts += [Call(piece) for piece in left if isinstance(piece, ToolCall)]
    if turn.parts:
        yield turn


def _placed(turn: Turn, message: Message) -> Iterator[Piece]:
    """Give results to the calls of the turn, and yield the other pieces."""
    calls = {each.call.id: each for each in turn.parts if isinstance(each, Call)}
    for piece in message.pieces:
        if isinstance(piece, ToolResult) and piece.call_id in calls:
            calls[piece.call_id].result = piece
        else:
            yield piece


def tree_rows(app: App, head: Head) -> list[Mapping[str, Any]]:
    """Return the runs of the tree that a run is in, each after its parent, with a state to show, and the
    ``cost`` of it and all below it."""
    root, job_id = head.run["root"], head.run["job_id"]
    found = jobs.list_runs(app.database, job_id, whole_trees=True, among=[root])
    spent = costs_of_trees(app, [root])
    found = workers.with_shown_states(app.database, app.now(), found)
    return [{**run, "cost": spent[run["id"]]} for run in found]


def cost_lines(app: App, head: Head, last: int | None) -> tuple[list[CallCost], int | None]:
    """Return the model calls of some turns with their costs, the newest first, and the last turn of the
    next page."""
    until = min(last or head.run["turns"] + 1, head.run["turns"] + 1)
    first = max(0, until - CALLS + 1)
    found = call_costs(app.database, app.prices(), head.run["id"], (first, until))
    return found[::-1], first - 1 if first > 1 else None


def event_lines(
    app: App, head: Head, before: int | None
) -> tuple[list[Mapping[str, Any]], int | None]:
    """Return some events of a run, the newest first, with their ``words`` where they have any, and the
    number before which the next page begins."""
    found = timeline.newest_events(app.database, head.run["id"], before, EVENTS + 1)
    lines: list[Mapping[str, Any]] = []
    for event in found[:EVENTS]:
        note = event_note(event["type"], event["data"], event["attempt"], beside_calls=False)
        lines.append({**event, "note": note})
    return lines, found[EVENTS - 1]["number"] if len(found) > EVENTS else None


@dataclass(frozen=True, slots=True)
class DiffPage:
    lines: Sequence[tuple[humanize.DiffKind, str]]
    is_cut: bool
    remarks: Sequence[str]  # what the diff does not have


def diff_page(app: App, name: str, turn: int | None) -> DiffPage:
    """Return what a run or one of its turns changed, with a summary. Raises ``UsageError`` and
    ``RunnerError`` if that is not recorded, or not here."""
    diff = outputs.diff_of(app, name, turn)
    text = diff.content.decode(errors="replace")
    remarks = [f"{path} is too large to be recorded whole" for path in diff.too_large]
    remarks += [f"the content of {path} is not recorded" for path in diff.unrecorded]
    lines = list(humanize.diff_kinds(text[:_MOST_DIFF]))
    return DiffPage(lines, len(text) > _MOST_DIFF, remarks)


def sent_page(app: App, name: str, turn: int) -> tuple[str, bool]:
    """Return the request that a turn sent, as JSON on several lines, and True if it is cut."""
    body = json.loads(request_as_sent(app, name, turn))
    text = json.dumps(body, indent=2, ensure_ascii=False)
    return text[:_MOST_SENT], len(text) > _MOST_SENT


def call_page(app: App, name: str) -> Mapping[str, Any]:
    """Return a tool call with its whole input and output, by its id. Raises ``NotFoundError``."""
    found = transcript.show_call(app.database, app.find(name, "call").id)
    return found | decisions.decision_on_call(app.database, found["id"])


def record_read(app: App, run_id: str, person: str) -> None:
    """Record that a person reads a run, if its job wants that."""
    app.change(lambda now: changes.record_read(app.database, run_id, now, Author(person)))


def verifications(app: App, head: Head) -> list[Mapping[str, Any]]:
    """Return the verifications of a run, the newest first, each with its ``note``."""
    return [
        {**each, "note": humanize.verified_note(each)}
        for each in reversed(outcomes.verifications_of_run(app.database, head.run["id"]))
    ]
