"""How a sub-agent's conversation begins: with its prompt alone, or with its parent's up to there.

Some models refuse thinking whose system prompt, tools or messages before it have changed
(https://platform.claude.com/docs/en/build-with-claude/preserved-thinking), so a child that has others
than its parent is given none of it. Not so where ``model_options`` give thinking a budget: there the
API asks for some in the newest reply, and looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from sqlalchemy import Connection

from runner.core.agents.agent import NewChild, child_id
from runner.core.context.compaction import sent_messages, tokens_of
from runner.core.conversation import (
    Block,
    Message,
    ToolResult,
    content_bytes,
    content_text,
    result_block,
    text_block,
    text_bytes,
)
from runner.core.journal.fold import opening
from runner.core.journal.view import Fullness, Progress, RunView
from runner.core.spec import JobSpec
from runner.core.text.prompts import SNAPSHOT_TEXT
from runner.store.rows.copying import copy_rows
from runner.store.tables import blocks, compactions

_THINKING = ("thinking", "redacted_thinking")

_THIS_ONE = (
    "This call has started a sub-agent: you. All that was said before is the conversation of the agent "
    "that asks for it. What you are to do follows."
)
_UNDER_WAY = "This call is under way, and not for you to wait for: its result is not known here."


@dataclass(frozen=True, slots=True)
class Opening:
    """``message`` is the child's own, number ``number`` of its conversation: before it are copies of
    all that its parent's had, if it is a snapshot."""

    number: int
    message: Message
    progress: Progress


def opening_of(view: RunView, spec: JobSpec, child: NewChild) -> Opening:
    """How a child begins.

    Args:
        view: of its parent, with the reply that asks for it.
        spec: that the child works by, with the model that it calls.
    """
    if not child.snapshot:
        (message,), progress = opening(spec, child.prompt)
        return Opening(0, message, progress)
    told = [text_block(text) for text in (*_where_outputs_are(view, child), child.prompt)]
    own = Message("user", (*_results(view, child), *told))
    return Opening(len(view.messages), own, _progress(view, spec, own))


def copy_conversation(connection: Connection, view: RunView, child_run: str, spec: JobSpec) -> None:
    """Copy the parent's messages, and what is sent in place of some; ``spec`` as in ``opening_of``."""
    kept = [blocks.c.message < len(view.messages)]
    if not _keeps_thinking(view, spec):
        kept.append(blocks.c.type.not_in(_THINKING))
    copy_rows(connection, blocks, view.run_id, child_run, *kept, turn=0)
    if view.compacted.count:
        own = {"made_by_call": None, "first_sent_in": 1, "turn": 1}
        copy_rows(connection, compactions, view.run_id, child_run, **own)


def _results(view: RunView, child: NewChild) -> Iterator[Block]:
    """A result for each call of the reply that asks for the child: the API takes no call without."""
    for call in view.calls:
        if call.result is not None:
            yield call.result
        else:
            text = _THIS_ONE if call.index == child.index else _UNDER_WAY
            yield result_block(call.id, ToolResult(text))


def _where_outputs_are(view: RunView, child: NewChild) -> Iterator[str]:
    """What a child is told of the outputs that its parent's conversation names as it is sent: clips and
    summaries name some, too."""
    theirs, ours = view.run_id, child_id(view.run_id, child.number)
    results = (call.result for call in view.calls if call.result is not None)
    said = chain((block for message in view.sent for block in message.blocks), results)
    if any(_names_outputs(content_text(block), theirs) for block in said):
        yield SNAPSHOT_TEXT.format(theirs=theirs, ours=ours)


def _names_outputs(text: str, run_id: str) -> bool:
    """Whether a text names outputs of a run: one of them, or all that others had, as what a snapshot or
    a fork is told does."""
    of_fork = f"yours have {run_id.removeprefix('run_')} in"
    return any(each in text for each in (f"outputs/{run_id}/", f"outputs/{run_id},", of_fork))


def _progress(view: RunView, spec: JobSpec, own: Message) -> Progress:
    """Nothing used, and the first prompt measured as well as can be: the real tokens of the parent's last
    one count where the same model counted them, with all that is new in this one."""
    messages = (*_kept(view, spec), own)
    sent = sent_messages(messages, view.compacted)
    tokens = spec.shared_tokens + tokens_of(sent, spec.context.chars_per_token)
    progress = Progress(appended_bytes=spec.request_bytes(sent), fullness=Fullness(sent=tokens))
    before = view.progress
    if spec.model != view.spec.model or before.last_prompt_tokens is None:
        return progress
    new = sum(map(content_bytes, own.blocks))
    if not _has_the_same_prefix(view, spec):
        new += sum(map(text_bytes, spec.shared_texts))
    return replace(
        progress,
        last_prompt_tokens=before.last_prompt_tokens,
        appended_bytes=before.appended_bytes + new,
        fullness=replace(progress.fullness, correction=before.fullness.correction),
    )


def _kept(view: RunView, spec: JobSpec) -> tuple[Message, ...]:
    if _keeps_thinking(view, spec):
        return view.messages
    return tuple(
        Message(one.role, tuple(block for block in one.blocks if block["type"] not in _THINKING))
        for one in view.messages
    )


def _keeps_thinking(view: RunView, spec: JobSpec) -> bool:
    return spec.thinking_tokens > 0 or _has_the_same_prefix(view, spec)


def _has_the_same_prefix(view: RunView, spec: JobSpec) -> bool:
    """Whether the same comes before the messages. What the workspace says to agents may be another thing
    by the time that the child reads it."""
    if spec.instructions:
        return False
    return (spec.model, spec.shared_texts) == (view.spec.model, view.spec.shared_texts)
