"""A run's messages, and what is known of the calls of its last reply.

``Progress`` as the row of a run holds it.

What is sent to the model in place of messages, as rows: ``core.context.compaction``.

Hooks that ran for a run, and the instructions that it read, as rows.

Rows of a run, copied for another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    bindparam,
    insert,
    literal,
    select,
)

from runner.core.budget import Reservation
from runner.core.context import Clip, Compacted, Compaction, estimate
from runner.core.conversation import Message, Usage, tool_uses
from runner.core.entries import HookFinished, HookStarted, InstructionsRead
from runner.core.events import INPUT_SUMMARY_LENGTH
from runner.core.hook_decisions import name_of
from runner.core.hooks import HookAnswer, Hooked, HookRun
from runner.core.spec import JobSpec
from runner.core.state import (
    Call,
    Failure,
    Fullness,
    OpenCall,
    Pace,
    Progress,
    RunView,
    Stop,
)
from runner.core.text import shorten
from runner.core.workspace import Instructions, Verification, with_instructions
from runner.permissions import (
    Answer,
    Decision,
    MatchedRule,
    ResolvedPath,
    Rule,
    ToolContext,
)
from runner.store.statements import Writes, execute
from runner.store.tables import (
    approvals,
    blocks,
    compactions,
    hook_runs,
    run_instructions,
    tool_calls,
)


def tool_context_to_json(context: ToolContext) -> dict[str, Any]:
    """What ``approvals.setting`` holds; ``tool_context_from_json`` gives the same value back."""
    return asdict(context)


def tool_context_from_json(data: Mapping[str, Any]) -> ToolContext:
    """The value that ``tool_context_to_json`` was given."""
    places = {text: ResolvedPath(**place) for text, place in data["places"].items()}
    return ToolContext(**{**data, "places": places})


_BLOCKS = (
    select(blocks.c.message, blocks.c.position, blocks.c.role, blocks.c.content)
    .where(blocks.c.run_id == bindparam("run"))
    .order_by(blocks.c.message, blocks.c.position)
)
_CALLS = (
    select(tool_calls)
    .where(tool_calls.c.run_id == bindparam("run"), tool_calls.c.message == bindparam("reply"))
    .order_by(tool_calls.c.position)
)
_ANSWERS = select(
    approvals.c.position,
    approvals.c.answer,
    approvals.c.input_digest,
    approvals.c.answered_by,
    approvals.c.reason,
    approvals.c.edited_input,
    approvals.c.setting,
).where(
    approvals.c.run_id == bindparam("run"),
    approvals.c.message == bindparam("reply"),
    approvals.c.answer != "cancelled",  # the calls of a cancelled run are interrupted
)

# Gives the rules of a snapshot by its number.
RulesOf = Callable[[int], tuple[Rule, ...]]


def load_conversation(
    connection: Connection, run_id: str, rules_of: RulesOf, closed: int | None = None
) -> tuple[tuple[Message, ...], tuple[Call, ...]]:
    """The whole messages of a run, and the last reply's calls while any of them has no result.

    Args:
        rules_of: finds the rules that calls were decided on by.
        closed: the last turn whose hooks are through; None: its turns have no hooks.
    """
    contents: dict[int, dict[int, Any]] = {}
    roles: dict[int, Any] = {}
    for row in execute(connection, _BLOCKS, {"run": run_id}):
        contents.setdefault(row.message, {})[row.position] = row.content
        roles[row.message] = row.role
    reply = max((number for number, role in roles.items() if role == "assistant"), default=None)
    calls: tuple[Call, ...] = ()
    if reply is not None:
        calls = _open_calls(connection, run_id, reply, contents, rules_of, closed)
    whole = [n for n in contents if not (calls and reply is not None and n > reply)]
    return tuple(Message(roles[n], tuple(contents[n].values())) for n in whole), calls


def _open_calls(
    connection: Connection,
    run_id: str,
    reply: int,
    contents: dict[int, dict[int, Any]],
    rules_of: RulesOf,
    closed: int | None,
) -> tuple[Call, ...]:
    rows = execute(connection, _CALLS, {"run": run_id, "reply": reply})
    is_closed = not rows or closed is None or closed >= rows[0].turn
    if is_closed and all(row.ended_at is not None for row in rows):
        return ()
    uses = tool_uses(contents[reply].values())
    answers = answers_to(connection, run_id, reply)
    results = contents.get(reply + 1, {})
    return tuple(
        Call(
            index=row.position,
            id=use["id"],
            name=use["name"],
            input=use["input"],
            decision=_decision(row, rules_of) if row.decision else None,
            answer=answers.get(row.position),
            started_by=row.started_attempt,
            interrupted=row.interrupted,
            asked_again=row.asked_again,
            result=results.get(row.position),
            outcome=row.outcome,
            updated_input=row.updated_input,
        )
        for row, use in zip(rows, uses, strict=True)
    )


def _decision(row: Any, rules_of: RulesOf) -> Decision:
    snapshot = row.decision_snapshot or 1
    matched_rules = tuple(
        MatchedRule(rule, "") for rule in rules_of(snapshot) if _decided(row, rule)
    )
    return Decision(row.decision, matched_rules[:1], snapshot, row.decision_reason or "")


def _decided(row: Any, rule: Rule) -> bool:
    """Whether a decision rests on a rule: the job's have a place in it, those of a type of sub-agent are
    known by what they say."""
    if row.rule_position is not None:
        return bool(rule.position == row.rule_position)
    return rule.position is None and bool((rule.text, rule.effect) == (row.rule, row.decision))


def answers_to(connection: Connection, run_id: str, reply: int) -> dict[int, Answer]:
    """The answers to questions about the calls of a reply (a message's number), by position."""
    rows = execute(connection, _ANSWERS, {"run": run_id, "reply": reply})
    return {
        row.position: Answer(
            effect=row.answer,
            input_digest=row.input_digest,
            by=row.answered_by or "",
            reason=row.reason,
            input=row.edited_input,
            places=_places(row),
        )
        for row in rows
    }


def _places(row: Any) -> tuple[str, ...]:
    """Where the call leads that was asked about. Where an edited one does is looked up before it runs."""
    if row.edited_input is not None:
        return ()
    return tuple(place.real for place in tool_context_from_json(row.setting).places.values())


def progress_to_json(progress: Progress) -> dict[str, Any]:
    """What ``runs.progress`` holds: the progress without the counters that have columns."""
    call = progress.open_call
    return {
        "model_calls": progress.model_calls,
        "tries": progress.tries,
        "last_prompt_tokens": progress.last_prompt_tokens,
        "appended_bytes": progress.appended_bytes,
        "continuations": progress.continuations,
        "nudges": progress.nudges,
        "charged_cost": progress.charged_cost,
        "worked": progress.worked,
        "warms": progress.warms,
        "budget_waits": progress.budget_waits,
        "tree": progress.tree,
        "verification": _fields(progress.verification),
        "verify_failures": progress.verify_failures,
        "submitted": progress.submitted,
        "result_nudges": progress.result_nudges,
        "delivered": progress.delivered,
        "children": progress.children,
        "split": progress.split,
        "hooked": _fields(progress.hooked),
        "instructed": progress.instructed,
        "fullness": _fields(progress.fullness),
        "pace": _fields(progress.pace),
        "stop": _fields(progress.stop),
        "failure": _fields(progress.failure),
        "open_call": call
        and {
            "number": call.number,
            "attempt": call.attempt,
            "reservation": _fields(call.reservation),
            "purpose": call.purpose,
        },
    }


def _fields(
    value: Stop | Failure | Fullness | Pace | Reservation | Verification | Hooked | None,
) -> dict[str, Any] | None:
    return None if value is None else {name: getattr(value, name) for name in value.__slots__}


def progress_from_row(row: Any) -> Progress:
    """The progress that a row of ``runs`` tells."""
    data = dict(row.progress)
    stop, failure, open_call = data.pop("stop"), data.pop("failure"), data.pop("open_call")
    fullness, pace = data.pop("fullness", {}), data.pop("pace", {})
    verification, hooked = data.pop("verification", None), data.pop("hooked", {})
    return Progress(
        **data,
        turns=row.turns,
        usage=Usage(
            row.input_tokens, row.cache_read_tokens, row.cache_creation_tokens, row.output_tokens
        ),
        charged_tokens=row.charged_tokens,
        fullness=Fullness(**fullness),
        pace=Pace(**pace),
        hooked=Hooked(**{**hooked, "decided": tuple(hooked.get("decided", ()))}),
        verification=Verification(**verification) if verification else None,
        stop=Stop(**stop) if stop else None,
        failure=Failure(**failure) if failure else None,
        open_call=OpenCall(**{**open_call, "reservation": Reservation(**open_call["reservation"])})
        if open_call
        else None,
    )


def counted(
    progress: Progress, spec: JobSpec, messages: Sequence[Message], calls: Sequence[Call]
) -> Progress:
    """The progress of a run that a Runner stored which kept no sums of its context: with the sums of
    what there is by now. Every other has some and stays as it is."""
    if progress.fullness.sent:
        return progress
    per_token = spec.context.chars_per_token
    sizes = [
        (message.role, sum(estimate(block, per_token) for block in message.blocks))
        for message in messages
    ]
    results = sum(estimate(call.result, per_token) for call in calls if call.result is not None)
    replies = [number for number, (role, _) in enumerate(sizes) if role == "assistant"]
    since = sizes[replies[-1] :] if replies else []
    fullness = Fullness(
        sent=spec.shared_tokens + results + sum(size for _, size in sizes),
        since=results + sum(size for _, size in since),
        measured=progress.last_prompt_tokens,
    )
    return replace(progress, fullness=fullness)


def compaction_row(
    view: RunView, compaction: Compaction, made_by_call: int | None, now: float
) -> dict[str, Any]:
    """The row of a compaction, the next of its run.

    Args:
        view: the run before it.
        made_by_call: the number of the model call that wrote it, None when none did.
        now: seconds since the epoch.
    """
    return {
        "run_id": view.run_id,
        "number": view.compacted.count + 1,
        "kind": compaction.kind,
        "first_message": compaction.first,
        "last_message": compaction.last,
        "text": compaction.text,
        "clips": [[clip.message, clip.position, clip.text] for clip in compaction.clips],
        "tokens_before": compaction.tokens_before,
        "tokens_after": compaction.tokens_after,
        "turn": view.progress.turns + 1,
        "made_by_call": made_by_call,
        "first_sent_in": view.progress.model_calls + 1,
        "created_at": now,
    }


def load_compacted(
    connection: Connection,
    run_id: str,
    *,
    sent_in: int | None = None,
    until_turn: int | None = None,
) -> Compacted:
    """All compactions of a run in one.

    Args:
        sent_in: only those that were sent in the model call of this number.
        until_turn: only those that were made for this turn, or before it.
    """
    query = select(compactions).where(compactions.c.run_id == run_id).order_by(compactions.c.number)
    if sent_in is not None:
        query = query.where(compactions.c.first_sent_in <= sent_in)
    if until_turn is not None:
        query = query.where(compactions.c.turn <= until_turn)
    compacted = Compacted()
    for row in connection.execute(query):
        compacted = compacted.after(
            Compaction(
                kind=row.kind,
                first=row.first_message,
                last=row.last_message,
                text=row.text,
                clips=tuple(Clip(*clip) for clip in row.clips),
                tokens_before=row.tokens_before,
                tokens_after=row.tokens_after,
            )
        )
    return compacted


_HOOK_RUNS = (
    select(hook_runs)
    .where(hook_runs.c.run_id == bindparam("run"), hook_runs.c.number > bindparam("past"))
    .order_by(hook_runs.c.number)
)
_INSTRUCTIONS = (
    select(run_instructions)
    .where(run_instructions.c.run_id == bindparam("run"))
    .order_by(run_instructions.c.position)
)


class HookRows:
    """The rows of hooks of one transaction.

    Args:
        attempt: who writes. now: seconds since the epoch.
    """

    def __init__(self, run_id: str, attempt: int, now: float) -> None:
        self._run_id = run_id
        self._attempt = attempt
        self._now = now
        self._new: dict[int, dict[str, Any]] = {}
        self._changed: dict[int, dict[str, Any]] = {}
        self._instructions: list[dict[str, Any]] = []

    def start(self, view: RunView, entry: HookStarted) -> None:
        """A hook begins, or begins again: ``view`` is before it."""
        begun = {
            "attempt": self._attempt,
            "started_at": self._now,
            "tree_before": view.progress.tree,
        }
        if any(run.number == entry.number for run in view.hook_runs):
            self._change(entry.number, begun)
            return
        self._new[entry.number] = begun | {
            "run_id": self._run_id,
            "number": entry.number,
            "hook": entry.hook,
            "event": entry.event,
            "name": shorten(name_of(view.spec.hooks[entry.hook]), INPUT_SUMMARY_LENGTH),
            "turn": view.progress.turns,
            "message": None if entry.index is None else len(view.messages) - 1,
            "position": entry.index,
        }

    def finish(self, entry: HookFinished) -> None:
        """A hook has ended."""
        result, answer = entry.result, entry.result.answer
        self._change(
            entry.number,
            {
                "ended_at": self._now,
                "duration": result.duration,
                "outcome": answer.outcome,
                "exit_code": result.exit_code,
                "decision": answer.decision,
                "reason": answer.reason,
                "context": answer.context,
                "stops": answer.stops,
                "output": result.output,
                "errors": result.errors,
                "tree_after": entry.tree,
            },
        )

    def instruct(self, entry: InstructionsRead) -> None:
        """The instructions of the workspace have been read."""
        self._instructions += [
            {
                "run_id": self._run_id,
                "position": position,
                "path": file.path,
                "sha256": file.sha256,
                "size": len(file.text.encode()),
                "text": file.text,
            }
            for position, file in enumerate(entry.files)
        ]

    def add_to(self, writes: Writes) -> None:
        """Have all of it written with the rest."""
        writes.insert(hook_runs, [*self._new.values()])
        writes.insert(run_instructions, self._instructions)
        for number, changes in self._changed.items():
            writes.change(hook_runs, changes, run_id=self._run_id, number=number)

    def _change(self, number: int, changes: dict[str, Any]) -> None:
        rows = self._new if number in self._new else self._changed
        rows.setdefault(number, {}).update(changes)


def load_hook_runs(connection: Connection, run_id: str, past: int) -> tuple[HookRun, ...]:
    """The hooks that have run for a run after number ``past``."""
    return tuple(
        HookRun(
            number=row.number,
            hook=row.hook,
            event=row.event,
            index=row.position,
            started_by=row.attempt,
            answer=_answer(row),
        )
        for row in execute(connection, _HOOK_RUNS, {"run": run_id, "past": past})
    )


def _answer(row: Any) -> HookAnswer | None:
    if row.outcome is None:
        return None
    return HookAnswer(row.outcome, row.decision, row.reason, row.context, row.stops)


def with_instructions_of(connection: Connection, run_id: str, spec: JobSpec) -> JobSpec:
    """The spec with the instructions that a run has read in its system prompt."""
    rows = execute(connection, _INSTRUCTIONS, {"run": run_id})
    files = [Instructions(row.path, row.sha256, row.text) for row in rows]
    return replace(spec, system=with_instructions(spec.system, files))


def copy_rows(
    connection: Connection,
    table: Table,
    run_id: str,
    copy_id: str,
    *conditions: ColumnElement[bool],
    **changes: Any,
) -> None:
    """Copy the rows of a run that meet the conditions, in the database itself; ``changes`` are the
    columns that differ in the copies."""
    given = {"run_id": copy_id, **changes}
    columns = [
        literal(given[column.name], column.type) if column.name in given else column
        for column in table.c
    ]
    query = select(*columns).where(table.c.run_id == run_id, *conditions)
    connection.execute(insert(table).from_select(list(table.c.keys()), query))
