"""(k) What a run's prompts cost over its compactions, beside other policies and a lower bound."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from bench.stage.databases import Databases
from bench.tables import Table, held
from runner.core.budget import Limits
from runner.core.compaction import (
    OLD_RESULT,
    TokenEstimate,
    prompt_limit,
    sent_results,
    summarised,
    summary_question,
    token_estimate,
    truncated,
)
from runner.core.context import Compaction, Context, TruncatedResult, difference
from runner.core.conversation import ModelReply, ModelRequest, ToolResult, Usage, text_block
from runner.core.decide import advance
from runner.core.entries import ContextCompacted, Entry, ToolFinished
from runner.core.fold import apply
from runner.core.model_calls import next_request, summary_request, turn_request
from runner.core.prices import USUAL_RATES
from runner.core.spec import JobSpec
from runner.core.state import CountedPrompt, OpenCall, RunState
from runner.core.steps import CallModel, CountTokens, Done, RunTools
from runner.llm.requests import request_body
from runner.permissions import Rule
from runner.tools.registry import BUILTIN
from tests.core.story import a_run, changed, replied, uses
from tests.messages_api.prompt_cache import Prompt, PromptCache

TURNS = 40
GROWTHS = (2, 10, 25, 45)  # thousands of characters that a turn's tool prints
WINDOWS = (50_000, 100_000, 200_000)
KEPT = (2, 8, 16)
MOST_OF_BEST, MOST_OF_BOUND = 1.15, 1.4
THE_CASE, MOST_UNITS = (TURNS, 45, 100_000, 8), 900_000
LONG = 160  # turns
SAID = "I note what this says and go on with the next part. " * 12
NO_TOOLS = {"type": "none"}
SUMMARY = "What was done, and what came of it. " * 140
TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep")


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Units, breaks and cached share of each shape of run, and what summaries cost."""
    table = Table("context", "(k) prompts that outgrow the window, in millions of input tokens")
    asked = Table("summaries", "(k) what asking for the summaries of these runs costs, by the way")
    for turns, kept in {TURNS: (8,)}.items() if quick else {TURNS: KEPT, LONG: (8,)}.items():
        ways = Counter[str]()
        for growth, window in product(GROWTHS, WINDOWS):
            others = {
                name: play(growth, window, 8, policy, turns) for name, policy in POLICIES.items()
            }
            for keep in kept:
                run = play(growth, window, keep, turns=turns)
                table.rows.append(_row(run, keep, others))
                ways.update(run.ways)
        asked.rows.append({"turns": turns, **{way: n / 1e6 for way, n in ways.items()}})
    table.notes += [
        "units, breaks of the cached prefix, share of the prompts that was read from the cache",
        "a written token counts 1.25, a read one 0.1, a token of a summary 5; replies are left out",
        "naive: at 40 % of the window all of the prompt is summarised; truncate: at the limit the oldest",
        "results, to 30 %; summary: at 60 % all but the last exchange, as Runner asks for it",
        "bound: the same prompts, had each turn been written once and the rest been read",
        f"targets are for {TURNS} turns",
    ]
    asked.notes += [
        "millions of input tokens; apart: a request of its own; within: the prompt and an instruction"
    ]
    return [table, asked]


def _row(run: Played, keep: int, others: Mapping[str, Played]) -> dict[str, Any]:
    shape = (run.turns, run.growth // 1_000, run.state.context.window, keep)
    best, bound = run.units / min(other.units for other in others.values()), run.units / run.bound
    row: dict[str, Any] = dict(zip(("turns", "KB", "window", "keep"), shape, strict=True))
    row |= {"runner": run.told, **{name: other.told for name, other in others.items()}}
    row |= {"bound": f"{run.bound / 1e6:.3f}", "of best": best, "of bound": bound}
    if run.turns == TURNS:
        row["best"], row["least"] = held(best, MOST_OF_BEST), held(bound, MOST_OF_BOUND)
    if shape == THE_CASE:
        row["the case"] = held(run.units, MOST_UNITS)
    return row


@dataclass
class Played:
    """A run whose model and tools say what is expected, and what its prompts cost."""

    state: RunState
    growth: int  # characters that a tool prints
    turns: int
    cache: PromptCache = field(default_factory=lambda: PromptCache(lambda: 0.0))
    units: float = 0.0
    bound: float = 0.0
    breaks: int = 0
    prompts: int = 0  # tokens
    read: int = 0
    before: int = 0  # tokens of the last prompt
    ended: int = 0  # messages when it was sent
    ways: Counter[str] = field(
        default_factory=Counter
    )  # units of its summaries, by the way of asking

    @property
    def told(self) -> str:
        return f"{self.units / 1e6:.3f}, {self.breaks}, {self.read / self.prompts:.0%}"

    def run(self, policy: Policy | None) -> None:
        """Drive the run to its end. A policy compacts in Runner's stead."""
        happened: list[Entry] = []
        while True:
            for entry in happened:
                self.state = apply(self.state, entry)
            if policy is not None and not self.state.calls and self.state.turns:
                for made in policy(self, token_estimate(self.state)):
                    self.state = apply(self.state, ContextCompacted(made))
            decided, effect = advance(self.state, 1_000.0, draining=False)
            self.state = decided[-1].after if decided else self.state
            match effect:
                case Done():
                    return
                case CountTokens():
                    tokens = _prompt(next_request(self.state)).tokens
                    counted = CountedPrompt(tokens, self.state.context.estimate, self.state.turns)
                    self.state, happened = changed(self.state, counted=counted), []
                case CallModel(call) if call.purpose == "summary":
                    happened = [self._summary(call)]
                case CallModel(call):
                    happened = [self._reply(call)]
                case RunTools(calls):
                    happened = [ToolFinished(calls[0].index, ToolResult("x" * self.growth))]

    def _reply(self, call: OpenCall) -> Entry:
        request = turn_request(self.state, call)
        prompt = _prompt(request)
        found = self.cache.find(prompt)
        kept = self.cache.keep(prompt, found)
        usage = Usage(
            kept["input_tokens"],
            kept["cache_read_input_tokens"],
            kept["cache_creation_input_tokens"],
        )
        new = sum(
            len(json.dumps(block)) // 4
            for message in self.state.messages[self.ended :]
            for block in message.blocks
        )
        self.ended = len(self.state.messages)
        self.units += _units(usage)
        self.bound += _units(
            Usage(0, max(0, prompt.tokens - new), min(new, prompt.tokens))
            if self.before
            else Usage(0, 0, prompt.tokens)
        )
        self.breaks += usage.cache_read_tokens < self.before
        self.prompts += prompt.tokens
        self.read += usage.cache_read_tokens
        self.before = prompt.tokens
        is_last = self.state.turns == self.turns - 1
        blocks = [text_block(SAID)]
        if not is_last:
            blocks.append(uses("Bash", f"toolu_{self.state.turns}", {"command": "make part"}))
        return replied(
            ModelReply(tuple(blocks), "end_turn" if is_last else "tool_use", usage, "a-model")
        )

    def _summary(self, call: OpenCall) -> Entry:
        apart = _prompt(summary_request(self.state, call)).tokens
        self.pay_summary(apart)
        self.ways["apart"] += apart
        body = json.loads(request_body(next_request(self.state)))
        body["messages"].append({"role": "user", "content": [text_block(SAID)]})
        for way, choice in {"within": {}, "within, no tools": {"tool_choice": NO_TOOLS}}.items():
            prompt = Prompt.of(body | choice)
            read = prompt.tokens_to(self.cache.find(prompt))
            self.ways[way] += round(_units(Usage(prompt.tokens - read, read)))
        usage = Usage(output_tokens=len(SUMMARY) // 4)
        reply = ModelReply((text_block(SUMMARY),), "end_turn", usage, "a-model")
        return summarised(self.state, reply)

    def pay_summary(self, prompt: int) -> None:
        """Charge the call for a summary, whose prompt is not cached."""
        self.units += prompt + float(USUAL_RATES.output) * len(SUMMARY) / 4


Policy = Callable[[Played, TokenEstimate], Iterator[Compaction]]


def naive(run: Played, now: TokenEstimate) -> Iterator[Compaction]:
    """At 40 % of the window, summarise everything."""
    if now.tokens > 0.4 * run.state.context.window:
        run.pay_summary(now.tokens)
        yield _stood_in(run.state, len(run.state.messages) - 1)


def truncate(run: Played, now: TokenEstimate) -> Iterator[Compaction]:
    """At the limit, truncate the oldest results until 30 % of the window are taken."""
    state, made = run.state, list[TruncatedResult]()
    if now.tokens <= prompt_limit(state):
        return
    tokens = float(now.estimate)
    for result in sent_results(state):
        if tokens <= 0.3 * state.context.window or result.message == len(state.messages) - 1:
            break
        if (shorter := truncated(state, result, OLD_RESULT)) is not None:
            made.append(shorter)
            tokens -= (len(result.sent) - len(shorter.text)) / 4
    if made:
        yield _measured(
            state, Compaction("clip", made[0].message, made[-1].message, "", tuple(made))
        )


def summary(run: Played, now: TokenEstimate) -> Iterator[Compaction]:
    """At 60 % of the window, summarise all but the last exchange, as Runner asks for it."""
    state = run.state
    last = len(state.messages) - 3
    if now.tokens <= 0.6 * state.context.window or last <= state.context.compacted.last:
        return
    asked = summary_question(state, last)
    assert asked is not None
    run.pay_summary((len(asked.system) + len(asked.text)) // 4)
    yield _stood_in(state, last)


def _stood_in(state: RunState, last: int) -> Compaction:
    return _measured(state, Compaction("summary", 1, last, SUMMARY))


def _measured(state: RunState, made: Compaction) -> Compaction:
    before = token_estimate(state)
    change = difference(state.messages, state.context.compacted, made, 4.0)
    after = round((before.estimate + change) * before.per_estimated)
    return Compaction(made.kind, made.first, made.last, made.text, made.truncated, 0, after)


POLICIES: dict[str, Policy] = {
    "naive at 40 %": naive,
    "truncate to 30 %": truncate,
    "summary at 60 %": summary,
}


def play(
    growth: float, window: int, keep: int, policy: Policy | None = None, turns: int = TURNS
) -> Played:
    """Return a run of a shape that was played to its end, by Runner's own decisions or a policy."""
    spec = JobSpec(
        name="bench",
        model="a-model",
        system="You work through the parts of a project, one a turn. " * 20,
        tools=tuple(BUILTIN[name] for name in TOOLS),
        rules=(Rule("allow", "*"),),
        limits=Limits(max_turns=max(50, turns + 10), token_ceiling=10**12),
        context=Context(keep_messages=keep, compaction="auto" if policy is None else "off"),
    )
    state = changed(a_run(spec), window=window, summary_window=window)
    run = Played(state, int(growth * 1_000), turns)
    run.run(policy)
    return run


def _prompt(request: ModelRequest) -> Prompt:
    body: dict[str, Any] = json.loads(request_body(request))
    return Prompt.of(body)


def _units(usage: Usage) -> float:
    return 1e6 * float(USUAL_RATES.cost(usage, hour_cache=False))
