"""Send a span for each run, model call and tool call, and metrics of tokens and durations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any

from opentelemetry.metrics import Meter
from opentelemetry.trace import SpanKind

from runner.core.conversation import ModelReply
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
from runner.errors import UnreachableError
from runner.ports import Ending, Observer, Stored
from runner.telemetry import spans

# As the conventions give them:
# https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-metrics.md.
_TOKEN_BOUNDARIES = [4**power for power in range(14)]
_SECOND_BOUNDARIES = [0.01 * 2**power for power in range(14)]

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
_MOST_AT_A_LOOK = 500


@dataclass(slots=True)
class _Run:
    """A run whose end is not told yet. Times are in seconds since the epoch."""

    begun: float
    name: str
    worker_id: str
    says: Mapping[str, Any]
    calls: dict[int, float] = field(default_factory=dict)  # when those in hand began
    children: dict[int, float] = field(default_factory=dict)  # when each was started, by its number
    is_over: bool = False  # it was found to have ended


@dataclass(eq=False, repr=False)
class Telemetry(Observer):
    """``runner.ports.Observer`` for a collector."""

    exporter: spans.Spans
    meter: InitVar[Meter]  # makes the instruments
    with_content: bool  # also tell what was said and what tools printed
    endings: Callable[[Sequence[str]], Sequence[Ending]]  # the ends of the given runs
    export_rest: Callable[[], None]  # sends what is left

    def __post_init__(self, meter: Meter) -> None:
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKEN_BOUNDARIES,
        )
        duration = partial(
            meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=_SECOND_BOUNDARIES
        )
        name = "gen_ai.client.operation.duration"
        self._call_seconds = duration(name, description="GenAI operation duration.")
        name = "gen_ai.execute_tool.duration"
        self._tool_seconds = duration(name, description="Tool execution duration.")
        self._open: dict[str, _Run] = {}
        self._stopping = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="runner-telemetry", daemon=True)
        self._follower.start()

    def stored(self, stored: Stored) -> None:
        try:
            for applied in stored.applied:
                self._tell(stored, applied)
        except Exception:  # of any kind: telemetry must not end a run
            logger.exception("some telemetry of %s is lost", stored.lease.run_id)

    def close(self) -> None:
        """Send what there is. No attempt goes on by now."""
        self._stopping.set()
        self._follower.join(LOOK_SECONDS)
        self.export_rest()

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
            case UserMessageAdded(_, "children"):  # a child that no call asked for has ended
                says = spans.of_attempt(stored, state, "execute_tool")
                for child in state.children.current:
                    if child.index is None:
                        begun = run.children.pop(child.number, stored.at)
                        what, name = spans.for_child(child.number), "execute_tool whole_task"
                        self.exporter.tell(run_id, what, name, begun, stored.at, says)
            case RunSettled(Ended() as outcome):
                money = applied.after.money
                used = spans.of_usage(money.usage) | spans.of_cost(money.charged_cost)
                self._tell_end(run_id, outcome, stored.at, used)
            case _:
                pass  # part of what the others tell, or nothing that a trace is for

    def _begin(self, stored: Stored, state: RunState) -> _Run:
        says = spans.of_run(stored, state, "invoke_agent")
        says["gen_ai.request.model"] = state.spec.model
        if self.with_content:
            says["runner.item"] = state.item_key
            if state.spec.system:
                instructions = [{"type": "text", "content": state.spec.system}]
                says["gen_ai.system_instructions"] = spans.as_json(instructions)
        return _Run(state.submitted_at, spans.name_of(state), stored.lease.worker_id, says)

    def _tell_reply(self, run: _Run, stored: Stored, applied: Applied, reply: ModelReply) -> None:
        state, call = applied.before, _open_call(applied.before)
        cost = applied.after.money.charged_cost - state.money.charged_cost
        says = {
            "gen_ai.response.model": reply.model,
            "gen_ai.response.finish_reasons": [reply.stop_reason],
            **spans.of_usage(reply.usage),
            **spans.of_cost(cost),
            **spans.of_request(reply.request_id),
        }
        if self.with_content:
            says["gen_ai.output.messages"] = spans.output_messages(reply)
            if call.purpose == "turn":
                says["gen_ai.input.messages"] = spans.new_messages(state.messages)
        begun = run.calls.pop(call.number, stored.at - reply.latency)
        counted = self._tell_call(stored, state, begun, says)
        counted["gen_ai.response.model"] = reply.model
        self._call_seconds.record(reply.latency, counted)
        read, written = reply.usage.prompt_tokens, reply.usage.output_tokens
        self._tokens.record(read, {**counted, "gen_ai.token.type": "input"})
        self._tokens.record(written, {**counted, "gen_ai.token.type": "output"})

    def _tell_failure(
        self, run: _Run, stored: Stored, state: RunState, failed: ModelCallFailed
    ) -> None:
        """A call that a dead worker had begun is known by its end alone: its span has no length."""
        begun = run.calls.pop(_open_call(state).number, stored.at)
        says = spans.of_request(failed.request_id)
        counted = self._tell_call(stored, state, begun, says, failed.kind, failed.message)
        counted["error.type"] = failed.kind
        self._call_seconds.record(max(0.0, stored.at - begun), counted)

    def _tell_call(
        self,
        stored: Stored,
        state: RunState,
        begun: float,
        says: Mapping[str, Any],
        error: str | None = None,
        why: str = "",
    ) -> dict[str, Any]:
        """Tell a span of the open model call. Return what its metrics are counted by."""
        call = _open_call(state)
        model = state.spec.model if call.purpose == "turn" else state.spec.summary_model
        self.exporter.tell(
            stored.lease.run_id,
            ("chat", call.number),
            f"chat {model}",
            begun,
            stored.at,
            {
                **spans.of_attempt(stored, state, "chat"),
                "gen_ai.request.model": model,
                "gen_ai.request.max_tokens": call.reservation.max_tokens,
                "gen_ai.request.stream": True,
                "runner.turn": state.turns + 1,
                "runner.purpose": call.purpose,
                **says,
            },
            kind=SpanKind.CLIENT,
            error=error,
            why=why,
        )
        return spans.measured(state, model)

    def _tell_tool(
        self, run: _Run, stored: Stored, state: RunState, finished: ToolFinished
    ) -> None:
        """A call that started children has a span for each of them, which theirs are below."""
        call, result = state.calls[finished.index], finished.result
        current = state.children.current
        numbers = [child.number for child in current if child.index == finished.index]
        started = [run.children.pop(number, stored.at) for number in numbers]
        begun = min(started, default=stored.at - result.duration)
        error = None if result.outcome == "succeeded" else result.outcome
        # A name that the job does not have was made up by the model: it is content, and of any number.
        tool = call.name if state.spec.tool(call.name) is not None else "unknown_tool"
        says = {
            **spans.of_attempt(stored, state, "execute_tool"),
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
            "runner.turn": state.turns,
        }
        if call.decision is not None:
            says["runner.decision"] = call.decision.effect
        if self.with_content:
            says["gen_ai.tool.name"] = call.name
            says["gen_ai.tool.call.arguments"] = spans.as_json(call.input_to_run)
            says["gen_ai.tool.call.result"] = spans.as_json(result.content)
        own = ("tool", state.turns, finished.index)
        run_id, name = stored.lease.run_id, f"execute_tool {tool}"
        for what in map(spans.for_child, numbers) if numbers else (own,):
            self.exporter.tell(run_id, what, name, begun, stored.at, says, error=error)
        counted = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        failed = {} if error is None else {"error.type": error}
        self._tool_seconds.record(stored.at - begun, {**counted, **failed})

    def _tell_end(self, run_id: str, outcome: Ended, at: float, used: Mapping[str, Any]) -> None:
        run = self._open.pop(run_id, None)
        if run is None:
            return
        ended = {"runner.state": outcome.state, "runner.reason": outcome.reason}
        says = {**run.says, **used, **ended}
        error = outcome.reason if outcome.state == "failed" else None
        name = f"invoke_agent {run.name}"
        self.exporter.tell(run_id, (), name, run.begun, at, says, error=error, why=outcome.detail)

    # --- ends that no attempt stores --------------------------------------------------------------

    def _follow(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self._look(sure=False)
        self._look(sure=True)

    def _look(self, *, sure: bool) -> None:
        """Tell the ends of runs that a person cancelled or that were given up, where this worker had
        them last. ``sure``: no attempt is about to tell one of them itself."""
        try:
            waiting = list(self._open)
            for first in range(0, len(waiting), _MOST_AT_A_LOOK):
                for ending in self.endings(waiting[first : first + _MOST_AT_A_LOOK]):
                    self._found(ending, sure=sure)
        except UnreachableError:
            pass  # the worker says so
        except Exception as error:  # any bug: no worker may end for it
            logger.warning("telemetry waits: %s", error)

    def _found(self, ending: Ending, *, sure: bool) -> None:
        run = self._open.get(ending.run_id)
        if run is None:
            return
        if run.worker_id != ending.worker_id:
            self._open.pop(ending.run_id, None)  # told by the worker that had it last
        elif run.is_over or sure:
            used = spans.of_usage(ending.usage)
            self._tell_end(ending.run_id, ending.outcome, ending.at, used)
        else:
            run.is_over = True


def _open_call(state: RunState) -> OpenCall:
    assert state.model.open_call is not None
    return state.model.open_call
