"""Load and store the parts of a run's state: conversation, calls, progress, compactions, hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import NoneType
from typing import Any, get_type_hints

from sqlalchemy import ColumnElement, Connection, Table, bindparam, insert, literal, select

from runner.core.context import Compacted, Compaction, TruncatedResult
from runner.core.conversation import Message, Tool, Usage, tool_uses
from runner.core.hooks import HookAnswer, HookRun
from runner.core.spec import JobSpec, decoder
from runner.core.state import Call, Progress
from runner.core.workspace import Instructions, with_instructions
from runner.permissions import Answer, Decision, MatchedRule, ResolvedPath, Rule, ToolContext
from runner.store.database import Json, to_json
from runner.store.statements import execute
from runner.store.tables import (
    approvals,
    blocks,
    compactions,
    hook_runs,
    run_instructions,
    tool_calls,
    tool_lists,
)


def tool_context_from_json(data: Mapping[str, Any]) -> ToolContext:
    """Return the tool context that a value of ``approvals.setting`` holds."""
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
    """Return a run's complete messages, and the last reply's calls if one has no result yet.
    ``closed`` is the last turn whose hooks are through; None: its turns have no hooks."""
    contents: dict[int, dict[int, Any]] = {}
    roles: dict[int, Any] = {}
    for row in execute(connection, _BLOCKS, {"run": run_id}):
        contents.setdefault(row.message, {})[row.position] = row.content
        roles[row.message] = row.role
    reply = max((number for number, role in roles.items() if role == "assistant"), default=-1)
    rows = execute(connection, _CALLS, {"run": run_id, "reply": reply}) if reply >= 0 else []
    calls: tuple[Call, ...] = ()
    is_closed = not rows or closed is None or closed >= rows[0].turn
    if not is_closed or any(row.ended_at is None for row in rows):
        uses = tool_uses(contents[reply].values())
        answers = answers_to(connection, run_id, reply)
        results = contents.get(reply + 1, {})
        calls = tuple(
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
                details=row.details,
                updated_input=row.updated_input,
                original=row.original,
            )
            for row, use in zip(rows, uses, strict=True)
        )
    whole = (number for number in contents if not calls or number <= reply)
    return tuple(Message(roles[n], tuple(contents[n].values())) for n in whole), calls


def _decision(row: Any, rules_of: RulesOf) -> Decision:
    """Return the decision in a row of ``tool_calls``. A job's rule is found by its position, a rule
    of a sub-agent's type by its text."""
    snapshot, reason = row.decision_snapshot or 1, row.decision_reason or ""
    for rule in rules_of(snapshot):
        is_same = (rule.text, rule.effect) == (row.rule, row.decision)
        if rule.position == row.rule_position and (rule.position is not None or is_same):
            return Decision(row.decision, (MatchedRule(rule, ""),), snapshot, reason)
    return Decision(row.decision, (), snapshot, reason)


def answers_to(connection: Connection, run_id: str, reply: int) -> dict[int, Answer]:
    """The answers to questions about the calls of a reply (a message's number), by position."""
    answers = {}
    rows = execute(connection, _ANSWERS, {"run": run_id, "reply": reply})
    for position, effect, digest, by, reason, edited, context in rows:
        # Where an edited call leads is looked up before it runs.
        asked = {} if edited is not None else tool_context_from_json(context).places
        places = tuple(place.real for place in asked.values())
        answers[position] = Answer(effect, digest, by or "", reason, edited, places)
    return answers


def progress_to_json(progress: Progress) -> Json:
    """Return the value of ``runs.progress``: the fields without columns or rows of their own."""
    parts = (
        fresh if (part := getattr(progress, name)) is default else _part_to_json(name, part)
        for name, (default, fresh) in _fresh_parts().items()
    )
    return Json(f"{{{','.join(parts)}}}")


@cache
def _fresh_parts() -> dict[str, tuple[Any, str]]:
    """The parts of a new run's progress, which thousands of runs begin with, and their JSON."""
    parts = {name: getattr(Progress(), name) for name in _stored_fields(Progress)}
    return {name: (part, _part_to_json(name, part)) for name, part in parts.items()}


def _part_to_json(name: str, part: Any) -> str:
    return f'"{name}":{to_json(_to_json(part))}'


def progress_from_row(row: Any) -> Progress:
    """The progress that a row of ``runs`` holds. Raises ``KeyError`` if a part of it is missing."""
    parts = {name: row.progress[name] for name in _stored_fields(Progress)}
    progress: Progress = decoder(Progress)(parts)
    usage = Usage(*(getattr(row, name) for name in Usage.__slots__))
    money = replace(progress.money, usage=usage, charged_tokens=row.charged_tokens)
    return replace(progress, turns=row.turns, money=money)


_PLAIN = frozenset({str, int, float, bool, NoneType})


def _to_json(value: Any) -> Any:
    kind: Any = value.__class__
    if is_dataclass(kind):
        return {  # most are plain, and this runs at every step
            name: part if (part := getattr(value, name)).__class__ in _PLAIN else _to_json(part)
            for name in _stored_fields(value.__class__)
        }
    return list(value) if kind is tuple else value


@cache
def _stored_fields(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields that are stored as JSON, by name."""
    hints = get_type_hints(kind)
    stored = (each for each in fields(kind) if each.compare and not each.metadata)
    return {each.name: hints[each.name] for each in stored}


_COMPACTIONS = select(
    compactions.c.kind,
    compactions.c.first_message,
    compactions.c.last_message,
    compactions.c.text,
    compactions.c.clips,
    compactions.c.tokens_before,
    compactions.c.tokens_after,
).order_by(compactions.c.number)


def load_compacted(
    connection: Connection,
    run_id: str,
    *,
    sent_in: int | None = None,
    until_turn: int | None = None,
) -> Compacted:
    """The merged compactions of a run: those that the model call ``sent_in`` used, or those up to
    ``until_turn``."""
    query = _COMPACTIONS.where(compactions.c.run_id == run_id)
    if sent_in is not None:
        query = query.where(compactions.c.first_sent_in <= sent_in)
    if until_turn is not None:
        query = query.where(compactions.c.turn <= until_turn)
    compacted = Compacted()
    for kind, first, last, text, clips, before, after in connection.execute(query):
        truncated = tuple(TruncatedResult(*each) for each in clips)
        compacted = compacted.after(Compaction(kind, first, last, text, truncated, before, after))
    return compacted


_HOOK_RUNS = (
    select(
        hook_runs.c.number,
        hook_runs.c.hook,
        hook_runs.c.event,
        hook_runs.c.position,
        hook_runs.c.attempt,
        hook_runs.c.outcome,
        hook_runs.c.decision,
        hook_runs.c.reason,
        hook_runs.c.context,
        hook_runs.c.stops,
    )
    .where(hook_runs.c.run_id == bindparam("run"), hook_runs.c.number > bindparam("past"))
    .order_by(hook_runs.c.number)
)
_INSTRUCTIONS = (
    select(run_instructions.c.path, run_instructions.c.sha256, run_instructions.c.text)
    .where(run_instructions.c.run_id == bindparam("run"))
    .order_by(run_instructions.c.position)
)


def load_hook_runs(connection: Connection, run_id: str, past: int) -> tuple[HookRun, ...]:
    """The hooks that have run for a run after number ``past``."""
    rows = execute(connection, _HOOK_RUNS, {"run": run_id, "past": past})
    return tuple(
        HookRun(number, hook, event, index, attempt, HookAnswer(*said) if said[0] else None)
        for number, hook, event, index, attempt, *said in rows
    )


def load_instructions(connection: Connection, run_id: str) -> list[Instructions]:
    """The files of instructions in a run's system prompt."""
    return [Instructions(*row) for row in execute(connection, _INSTRUCTIONS, {"run": run_id})]


def with_instructions_of(connection: Connection, run_id: str, spec: JobSpec) -> JobSpec:
    """The spec with the instructions that a run has read in its system prompt."""
    files = load_instructions(connection, run_id)
    return replace(spec, system=with_instructions(spec.system, files))


def with_tools_of(
    connection: Connection, run_id: str, spec: JobSpec, *conditions: ColumnElement[bool]
) -> JobSpec:
    """The spec with the tools of the run's newest list that meets the conditions, if there is one."""
    listed = tool_lists.c
    query = select(listed.tools).where(listed.run_id == run_id, *conditions)
    newest = query.order_by(listed.number.desc()).limit(1)
    for tools in connection.execute(newest).scalars():
        return replace(spec, tools=decoder(tuple[Tool, ...])(tools))
    return spec


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
