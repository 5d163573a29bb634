"""Conversations of any shape, and what is to be known of one to judge what is sent of it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from runner.core.budget import Limits
from runner.core.compaction import summarised
from runner.core.context import Context, estimate, estimate_text, tokens_of
from runner.core.conversation import Block, Message, ModelReply, Usage
from runner.core.state import CountedPrompt, RunState
from runner.core.steps import CallModel, CountTokens
from tests.core.story import Story, a_run, a_spec, changed, says, thinks, uses

LENGTHS = st.sampled_from([1, 20, 900, 1_100, 5_000, 45_000]) | st.integers(1, 30_000)
# What the characters are decides how many of them JSON writes.
LETTERS = st.sampled_from(["a", "\n", "é", '"', "\U0001f600", "word "])


@st.composite
def texts(draw: Any, lengths: Any = LENGTHS) -> str:
    letters = draw(LETTERS)
    return "x" + letters * (draw(lengths) // len(letters))


def result(call_id: str, content: str) -> Block:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


@st.composite
def messages(draw: Any, most: int = 9, lengths: Any = LENGTHS) -> tuple[Message, ...]:
    """A task, and exchanges of a model with tools and a user who says things in between."""
    said: list[Message] = [Message("user", (says(draw(texts(lengths))),))]
    for exchange in range(draw(st.integers(0, most))):
        blocks: list[Block] = [thinks("Hm." * 30)] if draw(st.booleans()) else []
        if draw(st.integers(0, 3)) == 0:
            blocks.append(says(draw(texts(lengths))))
        ids = [f"t{exchange}_{index}" for index in range(draw(st.integers(0, 3)))]
        if not ids:
            blocks.append(says("So."))
        arguments = {"path": draw(texts(st.sampled_from([5, 3_000])))}
        blocks += [uses("Bash", call_id, arguments) for call_id in ids]
        if not ids and draw(st.booleans()):  # a turn that was paused
            said.append(Message("assistant", ({"type": "server_tool_use", "id": "s"},)))
        said.append(Message("assistant", tuple(blocks)))
        answers = [result(call_id, draw(texts(lengths))) for call_id in ids]
        if not ids or draw(st.integers(0, 4)) == 0:
            answers.append(says(draw(texts(lengths))))
        said.append(Message("user", tuple(answers)))
    return tuple(said)


def a_state(said: tuple[Message, ...], window: int, context: Context, most_output: int) -> RunState:
    """A run with this conversation that has never been measured."""
    spec = a_spec(system="Be brief.", context=context)
    limits = Limits(max_output_tokens=most_output, token_ceiling=10**12, max_turns=10**6)
    state = changed(a_run(spec, limits), messages=said, window=window, summary_window=window)
    return changed(state, turns=3, estimate=estimated(state))


def estimated(state: RunState) -> int:
    """The estimate of everything that is sent, from scratch."""
    per_token = state.spec.context.chars_per_token
    fixed = estimate_text(state.spec.system or "", per_token)
    fixed += sum(estimate(tool.definition(), per_token) for tool in state.spec.tools)
    return fixed + tokens_of(state.sent, per_token)


WINDOW = 20_000
LIMITS = Limits(
    max_output_tokens=1_000, max_turns=1_000
)  # the room is 15,000 tokens, enough are 11,250
ROOM, ENOUGH = 15_000, 11_250
WORDS = "I think. " * 400  # no truncation makes it shorter


class Talk(Story):
    """A run whose tokens are what is estimated of it, and a model that goes on and on."""

    def __init__(self, *, keep=2, limits=LIMITS, state=None, **context):
        spec = a_spec(context=Context(keep_messages=keep, **context), limits=limits)
        super().__init__(changed(a_run(spec), window=WINDOW, summary_window=WINDOW))
        self.number = 0

    def exchange(self, length=4_000, speech="I look."):
        """A call of a tool, and its result of so many characters."""
        self.number += 1
        self.reply(
            "tool_use",
            says(speech),
            uses("Bash", f"t{self.number}"),
            prompt=self.state.context.estimate,
        )
        return self.finish(0, f"begin {self.number} " + "x" * length + f" end {self.number}")

    def fill(self, length=4_000, **more):
        """Exchanges until something is made shorter or summarised."""
        while True:
            effect = self.settle_count(self.exchange(length, **more))
            if self.kinds or not isinstance(effect, CallModel) or self.is_summary(effect):
                return effect

    def settle_count(self, effect, tokens=None):
        if isinstance(effect, CountTokens):
            counted = CountedPrompt(tokens, self.state.context.estimate, self.state.turns)
            self.state = changed(self.state, counted=counted)
            return self.go_on()
        return effect

    def summarise(self, text="We looked at much.", reason="end_turn"):
        reply = ModelReply((says(text),), reason, Usage(500, 0, 0, 50), "a-model")
        return self.go_on(summarised(self.state, reply))

    @staticmethod
    def is_summary(effect):
        return isinstance(effect, CallModel) and effect.call.purpose == "summary"

    @property
    def kinds(self):
        return [e.compaction.kind for e in self.entries if getattr(e, "compaction", None)]

    @property
    def sent_text(self):
        return [
            block.get("text") or block.get("content") for m in self.state.sent for block in m.blocks
        ]
