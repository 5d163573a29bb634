"""Fork a run: a new run that continues from a turn of another, with its messages and files.

Messages are copied to the byte, so the API finds the prompt in its cache and accepts the signed
thinking (https://platform.claude.com/docs/en/build-with-claude/preserved-thinking).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, insert, or_, select

from runner.core.agents import Split
from runner.core.children import split_of
from runner.core.commands import Change, Raised
from runner.core.context import estimate, is_measurement, sent_messages
from runner.core.conversation import CUT_REASONS, Block, Message, Usage, content_bytes, content_text
from runner.core.events import INPUT_SUMMARY_LENGTH, signed_event
from runner.core.fold import context_of
from runner.core.hook_decisions import end_turns, hooks_of
from runner.core.run import ENDED, RUNNER, UNKNOWN, Author
from runner.core.spec import JobSpec, NewRun
from runner.core.state import Children, ContextState, Files, HookState, ModelState, Progress, Stop
from runner.core.text import FORKED_TEXT, FORKED_WITH_FILES_TEXT, shorten
from runner.errors import NotFoundError, UsageError
from runner.store import run_state
from runner.store.changes import event_rows, refuse_child
from runner.store.conditions import IS_ATTACHED
from runner.store.database import writes
from runner.store.jobs import OpenedRun, insert_runs, open_run, refuse_unstorable, spec_to_go_on
from runner.store.notices import arm
from runner.store.tables import (
    blocks,
    compactions,
    jobs,
    model_calls,
    queued_messages,
    run_instructions,
    run_items,
    runs,
    tool_calls,
    tool_lists,
    tool_outputs,
)
from runner.store.workspaces import snapshot_after_turn

# The run's own row names its copy of the workspace: the job's names the source.
_WITH_SOURCE = select(runs, jobs.c.workspace_id.label("source_id")).join(
    jobs, jobs.c.id == runs.c.job_id
)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A run's conversation up to the end of a turn."""

    number: int
    messages: tuple[Message, ...]
    sent: tuple[Message, ...]  # the messages as the model is sent them
    compactions: int
    since: tuple[Block, ...]  # what was added after the turn's model call
    call: Row[Any] | None  # that model call; None if it is not known any more
    stop: Stop | None  # how its reply was cut off, if that is still to be answered
    is_final: bool  # the model has nothing more to do unless a person says something
    tree: str | None  # the workspace's at its end
    split: Split  # as in ``Progress``
    tool_lists: int  # of MCP servers that the run had followed by its end


@writes
def fork(
    connection: Connection,
    run_id: str,
    turn: int,
    now: float,
    *,
    text: str | None = None,
    model: str | None = None,
    author: Author = UNKNOWN,
) -> Change:
    """Begin a run of the same job as a copy of another run at the end of a turn: after the reply
    and its tool results, before later messages. The other run may be in any state and does not
    change.

    Args:
        turn: 0 is before the first.
        text: what is said to the new run. model: what it calls instead of the other run's model.

    Raises:
        NotFoundError: there is no such run.
        UsageError: it has no such turn, or the turn has not ended, or nobody says how to go on after
            a final reply, or the files of that turn are not known, or it is a sub-agent, or a session
            of Claude Code's; what to do.
    """
    for what, given in (("message", text), ("model's name", model)):
        if given is not None and not given.strip():
            raise UsageError(f"the {what} is empty: leave the option out, or fill it in")
        refuse_unstorable(f"the {what}", given or "")
    run = connection.execute(_WITH_SOURCE.where(runs.c.id == run_id)).one_or_none()
    if run is None:
        raise NotFoundError(f"no run is named {run_id}")
    refuse_child(run.id, "forked")
    spec = spec_to_go_on(connection, run.job_id)
    _refuse_unfinished(connection, run, spec, turn)
    found = _load_turn(connection, run, spec, turn)
    if found.is_final and text is None:
        raise UsageError(
            f"turn {turn} of {run.id} was its last word: say what to do next with --say"
        )
    if turn and spec.is_recorded and found.tree is None:
        raise UsageError(
            f"the files of {run.id} after turn {turn} are not known, as none were recorded "
            "then: fork it at 0"
        )
    return _store(connection, run, spec, found, text, model, now, author)


def _refuse_unfinished(connection: Connection, run: Row[Any], spec: JobSpec, turn: int) -> None:
    if turn > run.turns:
        last = f"its last is {run.turns}" if run.turns else "it has made none (0 is its beginning)"
        raise UsageError(f"{run.id} has no turn {turn}: {last}")
    of_turn = select(tool_calls.c.ended_at).where(
        tool_calls.c.run_id == run.id, tool_calls.c.turn == turn
    )
    calls = connection.execute(of_turn).scalars().all()
    if None in calls:
        raise UsageError(
            f"turn {turn} of {run.id} has not ended, as tool calls of it have no results: fork it at "
            f"{turn - 1}"
        )
    # Hooks are still to run after the calls of a run's last turn.
    is_open = run_state.progress_from_row(run).hooks.closed < run.turns
    has_ended, replaces = run.state in ENDED, any(hooks_of(spec, "PostToolUse"))
    awaited = replaces if has_ended else end_turns(spec)
    if turn and turn == run.turns and is_open and awaited and calls:
        how = f" (`runner retry {run.id}` runs them)" if has_ended else ""
        raise UsageError(
            f"turn {turn} of {run.id} has not ended, as hooks of it may still change files and "
            f"results: fork it when they have run{how}, or at {turn - 1}"
        )


def _load_turn(connection: Connection, run: Row[Any], spec: JobSpec, number: int) -> _Turn:
    query = select(blocks).where(blocks.c.run_id == run.id, _is_copied(number))
    rows = connection.execute(query.order_by(blocks.c.message, blocks.c.position)).all()
    grouped = groupby(rows, lambda row: (row.message, row.role))
    messages = tuple(Message(role, tuple(r.content for r in rs)) for (_, role), rs in grouped)
    query = select(
        tool_calls.c.turn, tool_calls.c.name, tool_calls.c.outcome, tool_calls.c.started_attempt
    ).where(tool_calls.c.run_id == run.id, tool_calls.c.turn <= number)
    made = connection.execute(query).all()
    calls = [(call.name, call.outcome) for call in made if call.turn == number]
    started = [call.started_attempt is not None for call in made if spec.splits(call.name)]
    compacted = run_state.load_compacted(connection, run.id, until_turn=number)
    since = tuple(row.content for row in rows if number and row.turn == number)
    call, tool = _model_call(connection, run, number), spec.result_tool
    query = select(tool_lists.c.turn).where(tool_lists.c.run_id == run.id)
    listed_in = connection.execute(query.where(tool_lists.c.turn <= number)).scalars().all()
    reason = "" if call is None or not since else call.stop_reason
    is_cut = reason in CUT_REASONS or (reason == "pause_turn" and not calls)
    has_submitted = tool is not None and (tool.name, "succeeded") in calls
    return _Turn(
        number=number,
        messages=messages,
        sent=sent_messages(messages, compacted),
        compactions=compacted.count,
        since=since,
        # A call of before the tools changed has not counted these.
        call=None if number in listed_in else call,
        stop=Stop(reason, lowered=False, empty=False) if is_cut else None,
        is_final=has_submitted or bool(since and not calls and not is_cut),
        tree=snapshot_after_turn(connection, run.id, number),
        split=split_of(spec, messages, started),
        tool_lists=len(listed_in) if number else 0,
    )


def _is_copied(turn: int) -> ColumnElement[bool]:
    """The blocks up to a turn's end: of those with its number, the reply and the results of its tools,
    not what was said after them. The first block of all is the prompt."""
    of_turn = or_(blocks.c.role == "assistant", blocks.c.type == "tool_result")
    is_prompt = and_(blocks.c.message == 0, blocks.c.position == 0)
    return or_(is_prompt, IS_ATTACHED, blocks.c.turn < turn, and_(blocks.c.turn == turn, of_turn))


def _model_call(connection: Connection, run: Row[Any], turn: int) -> Row[Any] | None:
    """The model call that gave the reply of a turn: for a turn that a fork copied, the original's."""
    while run.fork_of is not None and turn <= run.fork_turn:
        run = connection.execute(select(runs).where(runs.c.id == run.fork_of)).one()
    query = select(model_calls).where(
        model_calls.c.run_id == run.id,
        model_calls.c.turn == turn,
        model_calls.c.purpose == "turn",
        model_calls.c.stop_reason.is_not(None),
    )
    return connection.execute(query.order_by(model_calls.c.number.desc()).limit(1)).first()


def _store(
    connection: Connection,
    run: Row[Any],
    spec: JobSpec,
    turn: _Turn,
    text: str | None,
    model: str | None,
    now: float,
    author: Author,
) -> Change:
    new = NewRun(run.item_key, None, turn.messages[0].blocks[0]["text"])
    opened = open_run(run.job_id, new, spec, run.source_id, now, author)
    fork_id = opened.run["id"]
    called = model or run.model or spec.model
    sees = run_state.with_instructions_of(connection, run.id, spec) if turn.number else spec
    if turn.tool_lists:
        sees = run_state.with_tools_of(
            connection, run.id, sees, tool_lists.c.number == turn.tool_lists
        )
    forked = {"of": run.id, "turn": turn.number, "model": called, "messages": len(turn.messages)}
    happened, texts = [signed_event("forked", author, forked)], list[dict[str, Any]]()
    for by, said in ((RUNNER, _where_it_is(run, spec, turn, fork_id)), (author, text)):
        if said is not None:
            old, new_count = {"queued_count": len(texts)}, {"queued_count": len(texts) + 1}
            summary = {"text": shorten(said, INPUT_SUMMARY_LENGTH)}
            happened.append(signed_event("message_queued", by, summary, old=old, new=new_count))
            texts.append({"run_id": fork_id, "text": said, "created_at": now})
    row = opened.run | {
        "fork_of": run.id,
        "fork_turn": turn.number,
        "model": None if called == spec.model else called,
        # It may use as much as the other, of turns as well: they are counted on from the other's.
        **Raised().of(run),
        "max_turns": turn.number + run.max_turns,
        "turns": turn.number,
        "message_count": len(turn.messages),
        "queued_count": len(texts),
        "event_count": 1 + len(happened),
        "start_tree": run.start_tree,
        "progress": run_state.progress_to_json(_progress(run, sees, turn, called)),
        "compaction_count": turn.compactions,
    }
    if turn.tree is not None:
        # Where the snapshots are. With a remote anywhere, even if sub-agents hold the run to a host.
        is_here = spec.workspace is None or spec.workspace.remote is None
        for place in ("workspace_path", "workspace_id"):
            row[place] = getattr(run, place) if is_here else None
    happened_rows = opened.events + event_rows(fork_id, happened, now, after=1)
    insert_runs(connection, [OpenedRun(row, [], [], happened_rows)])
    arm(connection, run.job_id, spec.notify, now)
    _copy(connection, run.id, fork_id, turn.number)
    if texts:
        connection.execute(insert(queued_messages), texts)
    detail = f"forked from {run.id} after turn {turn.number}"
    return Change(fork_id, run.item_key, "queued", True, detail)


def _where_it_is(run: Row[Any], spec: JobSpec, turn: _Turn, fork_id: str) -> str | None:
    """The text that tells the new run its folders; None if the conversation names no folder of the old
    run. Folders of workspaces and of outputs, and the outputs in them, have the run's id in their names."""
    theirs, ours = (each.removeprefix("run_") for each in (run.id, fork_id))
    if not any(theirs in content_text(block) for one in turn.sent for block in one.blocks):
        return None
    text = FORKED_WITH_FILES_TEXT if spec.is_recorded else FORKED_TEXT
    return text.format(theirs=theirs, ours=ours)


def _copy(connection: Connection, run_id: str, fork_id: str, turn: int) -> None:
    run_state.copy_rows(connection, run_items, run_id, fork_id)
    run_state.copy_rows(connection, blocks, run_id, fork_id, _is_copied(turn))
    run_state.copy_rows(connection, tool_calls, run_id, fork_id, tool_calls.c.turn <= turn)
    in_turns = tool_calls.c.run_id == run_id, tool_calls.c.turn <= turn
    with_output = tool_outputs.c.message.in_(select(tool_calls.c.message).where(*in_turns))
    run_state.copy_rows(connection, tool_outputs, run_id, fork_id, with_output)
    # Its first model call is sent all of them; none of its own has made one.
    own = {"made_by_call": None, "first_sent_in": 1}
    run_state.copy_rows(connection, compactions, run_id, fork_id, compactions.c.turn <= turn, **own)
    if turn:  # before the first nothing was said under them: it reads its own
        run_state.copy_rows(connection, run_instructions, run_id, fork_id)
        lists = tool_lists.c.turn <= turn
        run_state.copy_rows(connection, tool_lists, run_id, fork_id, lists, first_sent_in=1)


def _progress(run: Row[Any], spec: JobSpec, turn: _Turn, called: str) -> Progress:
    """The progress that the new run begins with: nothing used, and its next prompt measured by the real
    tokens of the last one if the same model counted them."""
    before = run_state.progress_from_row(run)
    return Progress(
        turns=turn.number,
        model=ModelState(stop=turn.stop, tool_lists=turn.tool_lists),
        context=_context(before.context, spec, turn, called),
        files=Files(turn.tree, instructed=before.files.instructed and turn.number > 0),
        children=Children(split=turn.split),
        hooks=HookState(closed=turn.number),
    )


def _context(before: ContextState, spec: JobSpec, turn: _Turn, called: str) -> ContextState:
    context, call = context_of(spec, turn.sent), turn.call
    if call is None or call.model != called:
        return context
    real = Usage(
        call.input_tokens, call.cache_read_tokens, call.cache_creation_tokens
    ).prompt_tokens
    since = sum(estimate(block, spec.context.chars_per_token) for block in turn.since)
    if not is_measurement(real, context.estimate - since):
        return context
    return replace(
        context,
        measured=real,
        estimate_since=since,
        correction=before.correction,
        last_prompt_tokens=real,
        appended_bytes=sum(map(content_bytes, turn.since)),
    )
