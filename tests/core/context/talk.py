"""A run that is told until its context is full."""

from runner.core.budget import Limits
from runner.core.compaction import summarised
from runner.core.context import Context
from runner.core.conversation import ModelReply, Usage
from runner.core.state import CountedPrompt
from runner.core.steps import CallModel, CountTokens
from tests.core.story import Story, a_run, a_spec, changed, says, uses

WINDOW = 20_000
LIMITS = Limits(
    max_output_tokens=1_000, max_turns=1_000
)  # the room is 15,000 tokens, enough are 11,250
ROOM, ENOUGH = 15_000, 11_250
WORDS = "I think. " * 400  # what clips do not make shorter


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
