"""Send a span for each run, model call and tool call, and metrics of tokens and durations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry.metrics import Histogram, Meter
from opentelemetry.trace import SpanKind

from runner.core.conversation import ModelReply, Usage
from runner.core.entries import (
    ChildrenStarted,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    RunSettled,
    SummaryReplied,
    ToolFinished,
    UserMessageAdded,
)
from runner.core.fold import Applied
from runner.core.run import Ended
from runner.core.state import OpenCall, RunState
from runner.core.text import shorten
from runner.ports import Ending, Stored
from runner.telemetry import spans as attributes
from runner.telemetry import spans as content
from runner.telemetry.spans import Spans, Told, for_child

# As the conventions give them:
# https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-metrics.md.
_TOKEN_BOUNDARIES = [4**power for power in range(14)]
_SECOND_BOUNDARIES = [0.01 * 2**power for power in range(14)]


class Instruments:
    """``calls`` and ``tools`` take seconds."""

    def __init__(self, meter: Meter) -> None:
        self._tokens: Histogram = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKEN_BOUNDARIES,
        )
        self.calls = _seconds(
            meter, "gen_ai.client.operation.duration", "GenAI operation duration."
        )
        self.tools = _seconds(meter, "gen_ai.execute_tool.duration", "Tool execution duration.")

    def count(self, usage: Usage, attributes: Mapping[str, Any]) -> None:
        """Add the tokens of a reply."""
        read, written = usage.prompt_tokens, usage.output_tokens
        self._tokens.record(read, {**attributes, "gen_ai.token.type": "input"})
        self._tokens.record(written, {**attributes, "gen_ai.token.type": "output"})


def _seconds(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(
        name,
        unit="s",
        description=description,
        explicit_bucket_boundaries_advisory=_SECOND_BOUNDARIES,
    )


logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
_MOST_AT_A_LOOK = 500
_WHY_LENGTH = 300


@dataclass(slots=True)
class _Run:
    """A run whose end is not told yet. ``calls`` says when those in hand began (seconds since the epoch),
    ``children`` when those that it has started did, by their numbers; ``is_over`` that it was found to
    have ended."""

    begun: float
    name: str
    worker_id: str
    says: Mapping[str, Any]
    calls: dict[int, float] = field(default_factory=dict)
    children: dict[int, float] = field(default_factory=dict)
    is_over: bool = False


class Telemetry:
    """``runner.ports.Observer`` for a collector.

    Args:
        spans: takes spans. meter: makes the instruments.
        with_content: also tell what was said and what tools printed.
        endings: of these runs, those that have ended.
        close: sends what is left.
    """

    def __init__(
        self,
        spans: Spans,
        meter: Meter,
        *,
        with_content: bool,
        endings: Callable[[Sequence[str]], Sequence[Ending]],
        close: Callable[[], None],
    ) -> None:
        self._spans = spans
        self._instruments = Instruments(meter)
        self._with_content = with_content
        self._endings = endings
        self._close = close
        self._open: dict[str, _Run] = {}
        self._stopping = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="runner-telemetry", daemon=True)
        self._follower.start()

    def stored(self, stored: Stored) -> None:
        """Tell what is in it; see the port."""
        try:
            for applied in stored.applied:
                self._tell(stored, applied)
        except Exception:  # whatever it is: no run may end for its telemetry
            logger.exception("some telemetry of %s is lost", stored.lease.run_id)

    def close(self) -> None:
        """Send what there is. No attempt goes on by now."""
        self._stopping.set()
        self._follower.join(LOOK_SECONDS)
        self._close()

    # --- what attempts store ----------------------------------------------------------------------

    def _tell(self, stored: Stored, applied: Applied) -> None:
        state, run_id = applied.before, stored.lease.run_id
        run = self._open.get(run_id) or self._open.setdefault(run_id, self._begin(stored, state))
        match applied.entry:
            case ModelCallStarted(number):
                run.calls[number] = stored.at
            case ModelReplied(reply) | SummaryReplied(reply):
                self._tell_reply(run, stored, applied, reply)
            case ModelCallFailed() as failed:
                self._tell_failure(run, stored, state, failed)
            case ChildrenStarted(children):
                run.children |= {child.number: stored.at for child in children}
            case ToolFinished() as finished:
                self._tell_tool(run, stored, state, finished)
            case UserMessageAdded(_, "children"):
                self._tell_whole_task(run, stored, state)
            case RunSettled(Ended() as outcome):
                money = applied.after.money
                used = attributes.of_usage(money.usage)
                cost = attributes.of_cost(money.charged_cost)
                self._tell_end(run_id, outcome, stored.at, {**used, **cost})
            case _:
                pass  # part of what the others tell, or nothing that a trace is for

    def _begin(self, stored: Stored, state: RunState) -> _Run:
        says = attributes.of_run(stored, state, "invoke_agent")
        says["gen_ai.request.model"] = state.spec.model
        if self._with_content:
            says["runner.item"] = state.item_key
            if state.spec.system:
                says["gen_ai.system_instructions"] = content.system_instructions(state.spec.system)
        name = attributes.name_of(state)
        return _Run(state.submitted_at, name, stored.lease.worker_id, says)

    def _tell_reply(self, run: _Run, stored: Stored, applied: Applied, reply: ModelReply) -> None:
        state = applied.before
        call = _open_call(state)
        cost = applied.after.money.charged_cost - state.money.charged_cost
        says = {
            **attributes.of_call(stored, state),
            "gen_ai.response.model": reply.model,
            "gen_ai.response.finish_reasons": [reply.stop_reason],
            **attributes.of_usage(reply.usage),
            **attributes.of_cost(cost),
            **attributes.of_request(reply.request_id),
        }
        if self._with_content:
            says["gen_ai.output.messages"] = content.output_messages(reply)
            if call.purpose == "turn":
                says["gen_ai.input.messages"] = content.new_messages(state.messages)
        model = attributes.model_of(state, call.purpose)
        begun = run.calls.pop(call.number, stored.at - reply.latency)
        self._spans.tell(_chat(stored, call, model, begun, says))
        counted = attributes.measured(state, model) | {"gen_ai.response.model": reply.model}
        self._instruments.calls.record(reply.latency, counted)
        self._instruments.count(reply.usage, counted)

    def _tell_failure(
        self, run: _Run, stored: Stored, state: RunState, failed: ModelCallFailed
    ) -> None:
        """A call that a dead worker had begun is known by its end alone: its span has no length."""
        call = _open_call(state)
        model = attributes.model_of(state, call.purpose)
        begun = run.calls.pop(call.number, stored.at)
        says = attributes.of_call(stored, state) | attributes.of_request(failed.request_id)
        told = _chat(stored, call, model, begun, says, failed.kind, failed.message)
        self._spans.tell(told)
        counted = attributes.measured(state, model) | {"error.type": failed.kind}
        self._instruments.calls.record(max(0.0, stored.at - begun), counted)

    def _tell_tool(
        self, run: _Run, stored: Stored, state: RunState, finished: ToolFinished
    ) -> None:
        """A call that started children has a span for each of them, which theirs are below."""
        call, result = state.calls[finished.index], finished.result
        numbers = [
            child.number for child in state.children.current if child.index == finished.index
        ]
        begun = min(
            (run.children.pop(number, stored.at) for number in numbers),
            default=stored.at - result.duration,
        )
        failed = {} if result.outcome == "succeeded" else {"error.type": result.outcome}
        tool = attributes.tool_of(state, call.name)
        says = {
            **attributes.of_attempt(stored, state, "execute_tool"),
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
            "runner.turn": state.turns,
        }
        if call.decision is not None:
            says["runner.decision"] = call.decision.effect
        if self._with_content:
            says["gen_ai.tool.name"] = call.name
            says["gen_ai.tool.call.arguments"] = content.arguments(call.input_to_run)
            says["gen_ai.tool.call.result"] = content.arguments(result.content)
        own = ("tool", state.turns, finished.index)
        for what in map(for_child, numbers) if numbers else (own,):
            told = Told(stored.lease.run_id, what, f"execute_tool {tool}", begun, stored.at)
            self._spans.tell(replace(told, error=failed.get("error.type"), attributes=says))
        counted = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        self._instruments.tools.record(stored.at - begun, {**counted, **failed})

    def _tell_whole_task(self, run: _Run, stored: Stored, state: RunState) -> None:
        """A child that no call asked for has ended."""
        for number in (child.number for child in state.children.current if child.index is None):
            says = attributes.of_attempt(stored, state, "execute_tool")
            begun = run.children.pop(number, stored.at)
            run_id, name = stored.lease.run_id, "execute_tool whole_task"
            told = Told(run_id, for_child(number), name, begun, stored.at, attributes=says)
            self._spans.tell(told)

    def _tell_end(self, run_id: str, outcome: Ended, at: float, used: Mapping[str, Any]) -> None:
        run = self._open.pop(run_id, None)
        if run is None:
            return
        ended = {"runner.state": outcome.state, "runner.reason": outcome.reason}
        self._spans.tell(
            Told(
                run_id,
                (),
                f"invoke_agent {run.name}",
                run.begun,
                at,
                error=outcome.reason if outcome.state == "failed" else None,
                why=shorten(outcome.detail, _WHY_LENGTH),
                attributes={**run.says, **used, **ended},
            )
        )

    # --- ends that no attempt stores --------------------------------------------------------------

    def _follow(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self._look(sure=False)
        self._look(sure=True)

    def _look(self, *, sure: bool) -> None:
        """Tell the ends of runs that a person cancelled or that were given up, where this worker had them
        last. ``sure``: no attempt is about to tell one of them itself."""
        try:
            waiting = list(self._open)
            for first in range(0, len(waiting), _MOST_AT_A_LOOK):
                for ending in self._endings(waiting[first : first + _MOST_AT_A_LOOK]):
                    self._found(ending, sure=sure)
        except Exception as error:  # a database that is away, or a bug: no worker may end for it
            logger.warning("telemetry waits: %s", error)

    def _found(self, ending: Ending, *, sure: bool) -> None:
        run = self._open.get(ending.run_id)
        if run is None:
            return
        if run.worker_id != ending.worker_id:
            self._open.pop(ending.run_id, None)  # told by the worker that had it last
        elif run.is_over or sure:
            used = attributes.of_usage(ending.usage)
            self._tell_end(ending.run_id, ending.outcome, ending.at, used)
        else:
            run.is_over = True


def _open_call(state: RunState) -> OpenCall:
    assert state.model.open_call is not None
    return state.model.open_call


def _chat(
    stored: Stored,
    call: OpenCall,
    model: str,
    begun: float,
    says: Mapping[str, Any],
    error: str | None = None,
    why: str = "",
) -> Told:
    return Told(
        stored.lease.run_id,
        ("chat", call.number),
        f"chat {model}",
        begun,
        stored.at,
        SpanKind.CLIENT,
        error=error,
        why=shorten(why, _WHY_LENGTH),
        attributes=says,
    )
