"""Hundreds of turns in a small window, with an API that refuses what does not fit and counts tokens in
its own way, and a model that summarises."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random

import pytest

from runner.core.budget import Limits
from runner.core.compaction import summarised
from runner.core.context import Context
from runner.core.conversation import ModelReply, ToolResult, Usage, content_text
from runner.core.decide import advance
from runner.core.entries import PROMPT_TOO_LONG, Entry, ModelCallFailed, ToolFinished
from runner.core.fold import apply, fold
from runner.core.model_calls import next_request, summary_request, turn_request
from runner.core.run import Ended
from runner.core.state import CountedPrompt
from runner.core.steps import CallModel, CountTokens, Done, RunTools
from tests.core.context.histories import estimated
from tests.core.sendable import faults
from tests.core.story import a_run, a_spec, changed, replied, says, thinks, uses

WINDOW = 100_000
FACT = re.compile(r"FACT-\d+ is \d+")


def real_tokens(request, per_estimated):
    """What the API counts, which knows of no estimate."""
    parts = [request.system or "", *(content_text(tool.definition()) for tool in request.tools)]
    parts += [content_text(block) for message in request.messages for block in message.blocks]
    return int(sum(map(len, parts)) / 4 * per_estimated) + 300


@dataclass
class Marathon:
    """A run of so many turns. ``per_estimated`` is how many tokens the API counts for one that is
    estimated, ``summaries`` how often a summary is of use (0 to 1), ``counts`` whether the API has
    a count of tokens."""

    turns: int
    per_estimated: float = 1.0
    summaries: float = 1.0
    counts: bool = True
    longest: int = 45_000
    random: Random = field(default_factory=lambda: Random(7))
    entries: list[Entry] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    refusals: int = 0
    facts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = Limits(max_turns=10_000, token_ceiling=10**12, max_output_tokens=8_000)
        spec = a_spec(system="Find all facts.", limits=limits, context=Context())
        self.first = changed(a_run(spec), window=WINDOW, summary_window=WINDOW)
        self.state = self.first

    def run(self) -> Ended:
        happened: list[Entry] = []
        for _ in range(20 * self.turns):
            for entry in happened:
                self.state = apply(self.state, entry)
            decided, effect = advance(self.state, 1_000.0, draining=False)
            self.state = decided[-1].after if decided else self.state
            self.entries += [*happened, *(one.entry for one in decided)]
            match effect:
                case Done(outcome):
                    return outcome
                case CountTokens():
                    happened = self.count()
                case CallModel(call) if call.purpose == "summary":
                    happened = [self.summary(call)]
                case CallModel(call):
                    happened = [self.reply(call)]
                case RunTools(calls):
                    happened = [self.result(call.index) for call in calls]
        raise AssertionError("the run never ends")

    def count(self) -> list[Entry]:
        tokens = real_tokens(next_request(self.state), self.per_estimated) if self.counts else None
        counted = CountedPrompt(tokens, self.state.context.estimate, self.state.turns)
        self.state = changed(self.state, counted=counted)
        return []

    def reply(self, call) -> Entry:
        request = turn_request(self.state, call)
        assert not faults(request.messages, self.state.context.compacted)
        prompt = real_tokens(request, self.per_estimated)
        assert prompt <= call.reservation.worst_case - call.reservation.max_tokens
        if prompt > WINDOW:
            self.refusals += 1
            message = f"prompt is too long: {prompt} tokens > {WINDOW} maximum"
            return ModelCallFailed(PROMPT_TOO_LONG, message, 400, "r", 0, 1_000.0, 1_000.0)
        self.prompts.append(prompt)
        done = self.state.turns >= self.turns
        calls = [
            uses("Read", f"t{self.state.turns}_{index}", {"path": "p" * 40})
            for index in range(0 if done else self.random.choice([1, 1, 1, 3]))
        ]
        blocks = (thinks("Hm. " * 50), says("I look further. " * 10), *calls)
        usage = Usage(input_tokens=prompt, output_tokens=400)
        return replied(ModelReply(blocks, "tool_use" if calls else "end_turn", usage, "a-model"))

    def result(self, index: int) -> Entry:
        self.facts.append(f"FACT-{len(self.facts)} is {self.random.randrange(10**6)}")
        length = self.random.choice([200, 2_000, self.longest])
        return ToolFinished(index, ToolResult(f"{self.facts[-1]}.\n" + "line\n" * (length // 5)))

    def summary(self, call) -> Entry:
        request = summary_request(self.state, call)
        prompt = real_tokens(request, self.per_estimated)
        assert prompt + request.max_tokens <= WINDOW
        assert prompt <= call.reservation.worst_case - call.reservation.max_tokens
        useful = self.random.random() < self.summaries
        text = "\n".join(FACT.findall(request.messages[0].blocks[0]["text"])) if useful else ""
        usage = Usage(input_tokens=prompt, output_tokens=len(text) // 4)
        return summarised(self.state, ModelReply((says(text),), "end_turn", usage, "a-model"))

    @property
    def compactions(self) -> list[str]:
        made = [getattr(entry, "compaction", None) for entry in self.entries]
        return [compaction.kind for compaction in made if compaction is not None]

    @property
    def sent_text(self) -> str:
        return "\n".join(content_text(b) for m in self.state.sent for b in m.blocks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turns", "ratio", "counts", "longest"),
    [(300, 1.0, True, 45_000), (120, 0.6, False, 45_000), (120, 2.5, False, 15_000)],
)
def test_a_long_run_stays_in_its_window_and_forgets_no_fact(turns, ratio, counts, longest):
    run = Marathon(turns, ratio, counts=counts, longest=longest)
    assert run.run().state == "succeeded"
    assert run.refusals == 0
    assert max(run.prompts) <= WINDOW
    assert set(FACT.findall(run.sent_text)) == set(run.facts)
    assert run.state.context.estimate == estimated(run.state)
    assert abs(run.state.context.correction - ratio) < 0.1 * ratio + 0.05
    assert "clip" in run.compactions
    # Each of them breaks the cache of what follows it.
    assert len(run.compactions) < turns / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("summaries", "ratio", "kind"), [(0.0, 1.0, "prune"), (0.5, 1.5, "summary")]
)
def test_without_useful_summaries_the_run_goes_on_all_the_same(summaries, ratio, kind):
    run = Marathon(150, ratio, summaries)
    assert run.run().state == "succeeded"
    assert run.refusals == 0
    assert kind in run.compactions


@pytest.mark.slow
def test_folding_all_entries_of_a_long_run_gives_the_view_that_grew():
    run = Marathon(120)
    run.run()
    assert fold(run.first, run.entries)[-1].after == run.state


def test_parallel_calls_with_long_results_fit_a_small_window():
    run = Marathon(60, 1.5, longest=49_000)
    run.first = run.state = changed(run.state, window=WINDOW // 2, summary_window=WINDOW // 2)
    assert run.run().state == "succeeded"
    assert max(run.prompts) <= WINDOW // 2
