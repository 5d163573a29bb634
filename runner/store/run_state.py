"""Load and store the parts of a run's state: conversation, calls, progress, compactions, hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from sqlalchemy import ColumnElement, Connection, Table, bindparam, insert, literal, select

from runner.core.context import Compacted, Compaction, TruncatedResult
from runner.core.conversation import Message, Usage, tool_uses
from runner.core.entries import HookFinished, HookStarted, InstructionsRead
from runner.core.events import INPUT_SUMMARY_LENGTH
from runner.core.hook_decisions import name_of
from runner.core.hooks import HookAnswer, HookRun
from runner.core.spec import JobSpec
from runner.core.state import Call, Progress, RunState
from runner.core.text import shorten
from runner.core.workspace import Instructions, with_instructions
from runner.permissions import Answer, Decision, MatchedRule, ResolvedPath, Rule, ToolContext
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
    """The value of ``runs.progress``: the progress without what has a column, rows of its own, or is
    known to the attempt alone."""
    return {name: _to_json(getattr(progress, name)) for name in _stored_fields(Progress)}


def progress_from_row(row: Any) -> Progress:
    """The progress that a row of ``runs`` holds. Raises ``KeyError`` if a part of it is missing."""
    parts = {name: row.progress[name] for name in _stored_fields(Progress)}
    progress: Progress = _from_json(Progress, parts)
    usage = Usage(
        row.input_tokens, row.cache_read_tokens, row.cache_creation_tokens, row.output_tokens
    )
    money = replace(progress.money, usage=usage, charged_tokens=row.charged_tokens)
    return replace(progress, turns=row.turns, money=money)


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return {name: _to_json(getattr(value, name)) for name in _stored_fields(value.__class__)}
    return list(value) if isinstance(value, tuple) else value


def _from_json(kind: Any, data: Any) -> Any:
    """The value of a dataclass, of one or None, of a tuple, or of a plain JSON type."""
    if get_origin(kind) is tuple:
        return tuple(data)
    kind = next((each for each in (kind, *get_args(kind)) if is_dataclass(each)), None)
    if kind is None or data is None:
        return data
    if not isinstance(data, Mapping):
        raise TypeError(f"{kind.__name__} is no object")
    kinds = _stored_fields(kind)
    return kind(**{name: _from_json(kinds[name], value) for name, value in data.items()})


@cache
def _stored_fields(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields that are stored as JSON, by name."""
    hints = get_type_hints(kind)
    stored = (each for each in fields(kind) if each.compare and not each.metadata)
    return {each.name: hints[each.name] for each in stored}


def compaction_row(
    state: RunState, compaction: Compaction, made_by_call: int | None, now: float
) -> dict[str, Any]:
    """The row of a compaction, the next of its run.

    Args:
        state: the run before it.
        made_by_call: the number of the model call that wrote it, None when none did.
        now: seconds since the epoch.
    """
    return {
        "run_id": state.run_id,
        "number": state.context.compacted.count + 1,
        "kind": compaction.kind,
        "first_message": compaction.first,
        "last_message": compaction.last,
        "text": compaction.text,
        "clips": [[clip.message, clip.position, clip.text] for clip in compaction.truncated],
        "tokens_before": compaction.tokens_before,
        "tokens_after": compaction.tokens_after,
        "turn": state.turns + 1,
        "made_by_call": made_by_call,
        "first_sent_in": state.model.calls + 1,
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
                truncated=tuple(TruncatedResult(*clip) for clip in row.clips),
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

    def start(self, state: RunState, entry: HookStarted) -> None:
        """A hook begins, or begins again: ``state`` is before it."""
        begun = {"attempt": self._attempt, "started_at": self._now, "tree_before": state.files.tree}
        if any(run.number == entry.number for run in state.hooks.runs):
            self._change(entry.number, begun)
            return
        self._new[entry.number] = begun | {
            "run_id": self._run_id,
            "number": entry.number,
            "hook": entry.hook,
            "event": entry.event,
            "name": shorten(name_of(state.spec.hooks[entry.hook]), INPUT_SUMMARY_LENGTH),
            "turn": state.turns,
            "message": None if entry.index is None else len(state.messages) - 1,
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
