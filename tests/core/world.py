"""A world around one run in which everything goes wrong, and what is promised of the run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from runner.core.compaction import summarised
from runner.core.conversation import Block, ModelReply, ToolResult, Usage, message_blocks, tool_uses
from runner.core.decide import advance
from runner.core.entries import (
    PROMPT_TOO_LONG,
    Entry,
    ModelCallFailed,
    ModelReplied,
    SummaryReplied,
    ToolFinished,
    ToolsStarted,
    UserMessageAdded,
)
from runner.core.fold import apply, fold
from runner.core.model_calls import summary_request
from runner.core.run import Ended, Requeued, Waiting
from runner.core.state import Call, CountedPrompt, QueuedMessage, RunState
from runner.core.steps import CallModel, CountTokens, Done, Effect, LocateCalls, RunTools, Sleep
from runner.permissions import Answer, ToolContext, digest_of
from runner.permissions.decisions import Authorization
from tests.core.sendable import faults
from tests.core.story import changed, says, thinks, uses

MOST_STEPS = 2_000
RARE = ["refusal", "model_context_window_exceeded", "out_of_cheese"]
REASONS = ["tool_use", "end_turn", "stop_sequence", "max_tokens", "pause_turn"]
REASONS_WITH_CALLS = [*["tool_use"] * 8, *["max_tokens"] * 4, *REASONS, *RARE]
REASONS_WITHOUT = [*["max_tokens"] * 4, *["pause_turn"] * 3, *REASONS, *RARE]
SPEECH = st.lists(
    st.sampled_from([says(), says("  "), says(""), thinks(), {"type": "server_tool_use"}]),
    max_size=3,
)
INPUTS = st.sampled_from([{"path": "a"}, {}, [], "text"])


@dataclass
class World:
    """A model, tools, people, and workers that die, around one run.

    ``mischief`` is how often something may still go wrong or be asked for from outside; it runs
    out, so that a run which never ends is the core's own doing.
    """

    draw: Any
    state: RunState
    mischief: int
    now: float = 1_000.0
    draining: bool = False
    yields: bool = False
    started: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    said: list[int] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)
    sent: list[tuple[str, Block]] = field(default_factory=list)
    compactions: int = 0
    counted: int | None = None
    steps: int = 0
    call_ids: int = 0
    names: tuple[str, ...] = ("Read", "Grep", "Edit", "Bash", "Deploy", "Nothing")
    most_calls: int = 5

    def chance(self) -> bool:
        """Whether something goes wrong now."""
        if self.mischief and self.draw(st.integers(0, 3)) == 3:
            self.mischief -= 1
            return True
        return False

    # --- what a worker does ---

    def drive(self) -> Ended:
        """Take the run to an end from which nobody takes it up again."""
        while True:
            effect = self.advance()
            match effect:
                case CallModel():
                    self.call_model(effect)
                case CountTokens():
                    self.count_tokens()
                case LocateCalls(calls):
                    self.locate({call.index for call in calls})
                case RunTools():
                    self.run_tools(effect)
                case Sleep(until):
                    assert self.now < until <= self.now + 5.0
                    self.now = until
                case Done(outcome):
                    if isinstance(outcome, Ended) and not self.chance():
                        return outcome
                    self.take_up(effect)
                case _:
                    self.do(effect)

    def do(self, effect: Effect) -> None:
        """What only runs of some jobs do."""
        raise AssertionError(effect)

    def advance(self) -> Effect:
        """Decide, with whatever people did in the meantime."""
        while self.chance():
            self.people()
        self.draining, self.yields = self.chance(), self.chance()
        while True:
            decided, effect = advance(self.state, self.now, self.draining, self.yields)
            entries = [one.entry for one in decided]
            state = decided[-1].after if decided else self.state
            assert decided == fold(self.state, entries)
            if entries and self.chance():  # some of what was decided, then the worker is gone
                entries = entries[: self.draw(st.integers(0, len(entries) - 1))]
                self.append(*entries)
                self.die()
                continue
            self.append(*entries)
            assert self.state == state
            return effect

    def append(self, *entries: Entry) -> None:
        for entry in entries:
            self.steps += 1
            assert self.steps < MOST_STEPS, "the run never ends"
            self.watch(entry)
            self.state = apply(self.state, entry)
            self.check()

    def die(self) -> None:
        self.counted = None
        self.state = changed(self.state, attempt=self.state.attempt + 1, counted=None)

    def take_up(self, done: Done) -> None:
        """Whoever may does what makes a run go on from this outcome."""
        match done.outcome:
            case Requeued(due_at):
                self.now = max(self.now, due_at)
            case Ended():
                limits = self.state.limits
                self.state = replace(
                    self.state,
                    limits=replace(
                        limits,
                        max_turns=limits.max_turns + 1,
                        token_ceiling=limits.token_ceiling + self.draw(st.integers(0, 50_000)),
                    ),
                )
            case Waiting("approval"):
                assert self.waiting()
                while self.waiting() and not self.chance():
                    self.answer()
            case Waiting(reason):
                assert reason == "paused"
        self.state = replace(self.state, outcome=None)
        self.die()

    def locate(self, indexes: set[int]) -> None:
        self.change_calls(
            lambda call: (
                replace(call, tool_context=self.tool_context(call.name, call.input))
                if call.index in indexes
                else call
            )
        )

    def tool_context(self, name: str, arguments: Any) -> ToolContext:
        """Where a call would run."""
        return ToolContext()

    def change_calls(self, change: Callable[[Call], Call]) -> None:
        self.state = replace(self.state, calls=tuple(map(change, self.state.calls)))

    # --- what people do ---

    def waiting(self) -> list[Call]:
        return [
            call
            for call in self.state.calls
            if call.decision is not None
            and call.decision.effect == "ask"
            and call.answer is None
            and call.result is None
        ]

    def answer(self) -> None:
        call = self.draw(st.sampled_from(self.waiting()))
        given = self.given(call)
        self.change_calls(
            lambda c: replace(c, answer=given, tool_context=None) if c.index == call.index else c
        )

    def given(self, call: Call) -> Answer:
        """What a person says to a question."""
        effect = self.draw(st.sampled_from(["approved", "approved", "denied", "expired"]))
        return Answer(effect, digest_of(call.input_to_run))

    def people(self) -> None:
        match self.draw(st.sampled_from(["say", "pause", "cancel", "answer"])):
            case "answer" if self.waiting():
                self.answer()
            case "say":
                self.said.append(len(self.said) + 1)
                message = QueuedMessage(self.said[-1], f"message {self.said[-1]}")
                inbox = replace(self.state.inbox, messages=(*self.state.inbox.messages, message))
                self.state = replace(self.state, inbox=inbox)
            case "pause" if self.state.outcome is None:
                self.state = changed(self.state, pause_requested=True)
            case "cancel":  # and somebody resumes it
                calls = (replace(c, interrupted=c.result is None) for c in self.state.calls)
                self.state = changed(self.state, calls=tuple(calls), pause_requested=False)
                self.die()

    # --- what the model does ---

    def call_model(self, step: CallModel) -> None:
        assert not self.draining
        self.check_request()
        if not self.chance():
            is_summary = step.call.purpose == "summary"
            self.append(self.summary(step) if is_summary else self.replied(step))
        elif self.draw(st.booleans()):
            self.die()
        else:
            wait = self.draw(st.sampled_from([None, 0.0, 3.0, 60.0]))
            charged = self.draw(st.sampled_from([0, step.call.reservation.worst_case]))
            retry_at = None if wait is None else self.now + wait
            kind = self.draw(st.sampled_from(["api_error", PROMPT_TOO_LONG]))
            self.append(ModelCallFailed(kind, "no", 500, None, charged, self.now, retry_at))

    def count_tokens(self) -> None:
        state = self.state
        tokens = self.draw(st.none() | st.integers(0, 2 * self.state.context.window))
        assert self.counted != state.turns, "asked twice in a turn"
        self.counted = state.turns
        counted = CountedPrompt(tokens, state.context.estimate, state.turns)
        self.state = changed(self.state, counted=counted)

    def usage(self, step: CallModel) -> Usage:
        reservation = step.call.reservation
        prompt = reservation.worst_case - reservation.max_tokens
        most = reservation.max_tokens
        return Usage(
            input_tokens=self.draw(st.integers(0, prompt)),
            output_tokens=self.draw(st.just(most) | st.integers(0, most)),
        )

    def summary(self, step: CallModel) -> SummaryReplied:
        request = summary_request(self.state, step.call)
        assert not faults(request.messages)
        assert request.max_tokens == step.call.reservation.max_tokens
        text = self.draw(st.sampled_from(["", " ", "It went well.", "So. " * 2_000]))
        reason = self.draw(st.sampled_from(["end_turn", "end_turn", "max_tokens", "refusal"]))
        return summarised(self.state, ModelReply((says(text),), reason, self.usage(step), "m"))

    def replied(self, step: CallModel) -> ModelReplied:
        reply = self.reply(step)
        calls = tool_uses(message_blocks(reply))
        return ModelReplied(reply, tuple(self.tool_context(c["name"], c["input"]) for c in calls))

    def reply(self, step: CallModel) -> ModelReply:
        usage = self.usage(step)
        speech = self.draw(SPEECH)
        asked = self.draw(st.lists(st.sampled_from(self.names), max_size=self.most_calls))
        calls = [self.use(name, self.arguments(name)) for name in asked]
        reason = self.draw(st.sampled_from(REASONS_WITH_CALLS if calls else REASONS_WITHOUT))
        return ModelReply((*speech, *calls), reason, usage, "a-model")

    def arguments(self, name: str) -> Any:
        return self.draw(INPUTS)

    def use(self, name: str, arguments: Any) -> Block:
        self.call_ids += 1
        return uses(name, f"toolu_{self.call_ids}", arguments)

    # --- what the tools do ---

    def run_tools(self, step: RunTools) -> None:
        assert not self.draining or any(call.result for call in self.state.calls)
        calls = list(self.draw(st.permutations(step.calls)))
        while calls:
            if self.chance():
                self.die()
                return
            outcome = self.draw(st.sampled_from(["succeeded", "failed", "interrupted"]))
            call = calls.pop()
            lines = self.draw(st.sampled_from([1, 1, 200, 1_000]))
            result = ToolResult(f"result of {call.id}\n" * lines, outcome)
            self.append(ToolFinished(call.index, result))
            if calls:
                decided, effect = advance(self.state, self.now, self.chance())
                assert decided == []
                assert isinstance(effect, RunTools)
                assert {c.index for c in effect.calls} == {c.index for c in calls}

    # --- what is promised ---

    def watch(self, entry: Entry) -> None:
        """What one entry may never do."""
        match entry:
            case ToolsStarted(indexes):
                group = [self.state.calls[index] for index in indexes]
                assert group
                self.check_order(group)
                for call in group:
                    tool = self.state.spec.tool(call.name)
                    assert tool is not None
                    assert isinstance(call.input, dict)
                    assert call.decision is not None
                    Authorization(
                        call.decision, call.answer, digest_of(call.input_to_run), self.state.policy
                    )
                    assert call.result is None
                    assert not call.interrupted
                    assert not self.started[call.id] or self.may_start_again(call)
                    self.started[call.id] += 1
            case ToolFinished(index):
                call = self.state.calls[index]
                self.finished[call.id] += 1
                assert self.finished[call.id] == 1
            case UserMessageAdded(queued_ids=ids):
                assert not any(call.result is None for call in self.state.calls)
                self.heard += ids

    def may_start_again(self, call: Call) -> bool:
        tool = self.state.spec.tool(call.name)
        return tool is not None and tool.repeatable

    def check_order(self, group: list[Call]) -> None:
        """Nothing passes a call that waits for an answer, save reading past reading."""
        passed = [call for call in self.waiting() if call.index < group[-1].index]
        if passed:
            between = self.state.calls[passed[0].index : group[-1].index + 1]
            assert {call.name for call in between if call.result is None} <= {"Read", "Grep"}

    def check(self) -> None:
        """What holds after every entry."""
        state = self.state
        call, money = state.model.open_call, state.money
        reserved = call.reservation.worst_case if call else 0
        assert money.charged_tokens + reserved <= state.limits.token_ceiling
        assert money.usage.total <= money.charged_tokens
        assert state.turns <= state.limits.max_turns
        assert self.heard + [message.id for message in state.inbox.messages] == self.said
        assert not state.calls or state.messages[-1].role == "assistant"
        if not state.calls:
            assert not faults(state.messages)
            assert not faults(state.sent, state.context.compacted)
        if state.outcome is not None and isinstance(state.outcome, Ended):
            assert state.outcome.state != "succeeded" or not state.inbox.messages

    def check_request(self) -> None:
        """What is about to be sent is valid, and only adds to what was sent before, unless that was
        compacted."""
        sent, compactions = self.state.sent, self.state.context.compacted.count
        assert not faults(sent, self.state.context.compacted)
        assert not self.state.calls
        stop = self.state.model.stop
        paused = stop is not None and stop.reason == "pause_turn"
        assert sent[-1].role == ("assistant" if paused else "user")
        now = [(message.role, block) for message in sent for block in message.blocks]
        if compactions == self.compactions:
            assert now[: len(self.sent)] == self.sent
        self.sent, self.compactions = now, compactions
