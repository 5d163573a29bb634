"""A run told step by step: what a worker and a model would do to it, without either of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from runner.core.budget import Limits
from runner.core.conversation import (
    Block,
    ModelReply,
    Tool,
    ToolResult,
    Usage,
    message_blocks,
    tool_uses,
)
from runner.core.decide import advance
from runner.core.entries import Entry, ModelCallFailed, ModelReplied, ToolFinished
from runner.core.fold import apply, opening
from runner.core.run import Outcome
from runner.core.spec import JobSpec
from runner.core.state import QueuedMessage, RunState
from runner.core.steps import CallModel, Done, Effect, RunTools
from runner.permissions import Rule, ToolContext
from runner.permissions.decisions import Policy

READ = Tool("Read", "Read a file.", {"type": "object"}, read_only=True, repeatable=True)
GREP = Tool("Grep", "Search files.", {"type": "object"}, read_only=True, repeatable=True)
EDIT = Tool("Edit", "Change a file.", {"type": "object"}, repeatable=True)
BASH = Tool("Bash", "Run a command.", {"type": "object"})
DEPLOY = Tool("Deploy", "Not for this job.", {"type": "object"}, read_only=True)
PARTS = ("model", "context", "money", "files", "ending", "children", "hooks", "inbox")
TOOLS = (READ, GREP, EDIT, BASH, DEPLOY)
RULES = (Rule("allow", "*"), Rule("deny", "Deploy"))


def a_spec(**changes: Any) -> JobSpec:
    return replace(JobSpec("a job", "a-model", tools=TOOLS, rules=RULES), **changes)


def a_run(spec: JobSpec | None = None, limits: Limits | None = None) -> RunState:
    """A run as it is submitted."""
    spec = spec or a_spec()
    messages, progress = opening(spec, "Mend it.")
    policy = Policy(spec.rules, spec.asking.default)
    return RunState(
        run_id="run_1",
        item_key="item",
        attempt=1,
        submitted_at=0.0,
        spec=spec,
        policy=policy,
        limits=limits or spec.limits,
        messages=messages,
        context=progress.context,
        model=progress.model,
    )


def changed(state: RunState, **changes: Any) -> RunState:
    """A state with other values of fields, each of its own or of the part that has it."""
    for name, value in changes.items():
        if hasattr(state, name):
            state = replace(state, **{name: value})
            continue
        part = next(part for part in PARTS if hasattr(getattr(state, part), name))
        state = replace(state, **{part: replace(getattr(state, part), **{name: value})})
    return state


def says(text: str = "Done.") -> Block:
    return {"type": "text", "text": text}


def thinks(text: str = "Hm.") -> Block:
    return {"type": "thinking", "thinking": text, "signature": "signed"}


def uses(name: str, call_id: str = "toolu_1", arguments: Any = None) -> Block:
    arguments = {"path": "a"} if arguments is None else arguments
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def several(*names: str) -> list[Block]:
    """Calls of these tools, with the ids ``t0``, ``t1`` …"""
    return [uses(name, f"t{index}") for index, name in enumerate(names)]


def replied(reply: ModelReply) -> ModelReplied:
    """The entry of a reply whose calls would run in a setting without folders."""
    return ModelReplied(reply, tuple(ToolContext() for _ in tool_uses(message_blocks(reply))))


class Story:
    """Holds the state of a run, and what was decided so far. Each method gives the effect that is
    next, as the engine would see it."""

    def __init__(self, state: RunState | None = None, **spec: Any) -> None:
        self.state = state or a_run(a_spec(**spec))
        self.now = 1_000.0
        self.draining = False
        self.yields = False
        self.permit_at: float | None = None
        self.entries: list[Entry] = []

    def go_on(self, *entries: Entry) -> Effect:
        """Append what happened and decide what follows."""
        for entry in entries:
            self.state = apply(self.state, entry)
        decided, effect = advance(self.state, self.now, self.draining, self.yields, self.permit_at)
        self.state = decided[-1].after if decided else self.state
        self.entries += [*entries, *(one.entry for one in decided)]
        return effect

    def reply(
        self, stop_reason: str, *blocks: Block, prompt: int = 100, output: int = 10
    ) -> Effect:
        """The model answers the call in hand (one is started when none is)."""
        if self.state.model.open_call is None:
            effect = self.go_on()
            assert isinstance(effect, CallModel), effect
        usage = Usage(input_tokens=prompt, output_tokens=output)
        return self.go_on(replied(ModelReply(blocks, stop_reason, usage, "a-model")))

    def break_off(
        self,
        kind: str = "overloaded_error",
        *,
        retry_at: float | None,
        charged: int = 0,
        status: int | None = None,
    ) -> Effect:
        """The model call in hand fails."""
        if self.state.model.open_call is None:
            effect = self.go_on()
            assert isinstance(effect, CallModel), effect
        return self.go_on(
            ModelCallFailed(kind, "its own words", status, "req_7", charged, self.now, retry_at)
        )

    def finish(self, index: int, content: str = "ok") -> Effect:
        """A tool that runs gives its result."""
        return self.go_on(ToolFinished(index, ToolResult(content)))

    def finish_all(self) -> Effect:
        """Run tools in the order in which they are started until something else is next."""
        effect = self.go_on()
        while isinstance(effect, RunTools):
            effect = self.finish(effect.calls[0].index)
        return effect

    def say(self, *texts: str) -> None:
        """People queue messages while the run goes on."""
        first = 1 + max((message.id for message in self.state.inbox.messages), default=0)
        queued = tuple(QueuedMessage(first + n, text) for n, text in enumerate(texts))
        inbox = replace(self.state.inbox, messages=self.state.inbox.messages + queued)
        self.state = replace(self.state, inbox=inbox)

    def claim(self, **changes: Any) -> Effect:
        """Another attempt takes the run, after a crash, a wait or an end."""
        state = replace(self.state, attempt=self.state.attempt + 1, outcome=None)
        self.state = changed(state, **changes)
        return self.go_on()

    @property
    def tail(self) -> Sequence[Block]:
        return self.state.messages[-1].blocks


def outcome_of(effect: Effect) -> Outcome:
    assert isinstance(effect, Done), effect
    return effect.outcome


def text_of(blocks: Sequence[Block]) -> list[str]:
    return [block["text"] for block in blocks if block["type"] == "text"]


def started(effect: Effect) -> list[int]:
    """The indexes of the calls that are to run now."""
    assert isinstance(effect, RunTools), effect
    return [call.index for call in effect.calls]
