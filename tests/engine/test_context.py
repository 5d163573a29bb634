"""What an attempt brings to the context: windows, counts, summaries, and the time that work took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import select

from runner.core.compaction import HEADING
from runner.core.context import DEFAULT_WINDOW, Context
from runner.core.conversation import ModelReply, ModelRequest
from runner.core.entries import Entry
from runner.core.run import Ended, Lease, Outcome, Requeued
from runner.core.spec import JobSpec, NewRun
from runner.core.state import RunState
from runner.core.workspace import Workspace
from runner.engine.attempt import Ports, run_attempt
from runner.errors import Interrupted, ModelCallError, StaleState
from runner.llm.scripted import ScriptedModel
from runner.permissions import Rule
from runner.ports import Clock, Decide, Interrupt, Journal, Surroundings
from runner.queries.transcript import tool_output
from runner.store import jobs
from runner.store.database import Database
from runner.store.tables import model_calls
from runner.tools.registry import BUILTIN
from runner.tools.toolbox import LocalTools
from tests.engine.test_attempt import claim, ports, row, scripted
from tests.store.examples import SPEC, submission

__all__ = ["ports"]

OWN, OTHER = SPEC.model, "claude-other"
DONE = {"text": "Done."}

T = TypeVar("T")


@dataclass
class Model:
    """A scripted model that has windows, counts, and keeps what it is asked."""

    script: dict[str, Any]
    windows: dict[str, int] = field(default_factory=dict)
    tokens: int | None = None
    on_call: Callable[[], None] = lambda: None
    on_count: Callable[[], None] = lambda: None
    requests: list[ModelRequest] = field(default_factory=list)
    counted: list[ModelRequest] = field(default_factory=list)

    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        self.requests.append(request)
        self.on_call()
        return ScriptedModel(self.script).complete(request, interrupt, on_text)

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        self.counted.append(request)
        self.on_count()
        interrupt.check()
        return self.tokens

    def window(self, model: str) -> int | None:
        return self.windows.get(model)


@dataclass
class Watching:
    """A journal that keeps the states that it is shown; ``loses`` an answer to a commit."""

    journal: Journal
    states: list[RunState] = field(default_factory=list)
    loses: bool = False

    def load(self, lease: Lease) -> RunState:
        return self.journal.load(lease)

    def commit(
        self, lease: Lease, state: RunState, entries: Sequence[Entry], decide: Decide[T]
    ) -> tuple[RunState, T]:
        self.states.append(state)
        stored = self.journal.commit(lease, state, entries, decide)
        if self.loses and entries:
            self.loses = False
            raise StaleState("it was stored")
        return stored


@dataclass
class SteppedClock:
    """The real time, and durations that only ``passes`` makes longer."""

    clock: Clock
    seconds: float = 0.0

    def now(self) -> float:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.seconds

    def passes(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class Heard:
    texts: list[str] = field(default_factory=list)

    def publish(self, run_id: str, text: str) -> None:
        self.texts.append(text)


@dataclass
class Bench:
    """One run with a model of its own."""

    database: Database
    ports: Ports
    model: Model
    lease: Lease
    watching: Watching

    def work(self, interrupt: Interrupt | None = None) -> Outcome:
        ports = replace(self.ports, journal=self.watching, models=lambda spec: self.model)
        return run_attempt(self.lease, ports, interrupt or Interrupt())

    def row(self) -> Any:
        return row(self.database, self.lease)


Begin = Callable[..., Bench]


@pytest.fixture
def begin(database: Database, ports: Ports) -> Begin:
    """Submit a run of a script and claim it."""

    def start(spec: JobSpec, prompt: str = "Mend one.", **model: Any) -> Bench:
        given = replace(submission("one", spec=spec), runs=(NewRun("one", {}, prompt),))
        jobs.submit(database, given, time.time(), None, "ws_1")
        script = dict(spec.script or {})
        return Bench(
            database, ports, Model(script, **model), claim(database), Watching(ports.journal)
        )

    return start


@pytest.mark.parametrize(
    ("own", "windows", "known", "window", "summary_window"),
    [
        (50_000, {OWN: 70_000, OTHER: 90_000}, {}, 50_000, 90_000),
        (None, {OWN: 70_000}, {OWN: 80_000, OTHER: 90_000}, 70_000, 90_000),
        (None, {}, {OWN: 80_000}, 80_000, DEFAULT_WINDOW),
        (None, {}, {}, DEFAULT_WINDOW, DEFAULT_WINDOW),
    ],
    ids=["the job's", "the model's", "the known one", "the default"],
)
def test_window_is_the_first_that_is_told(
    begin: Begin,
    own: int | None,
    windows: dict[str, int],
    known: dict[str, int],
    window: int,
    summary_window: int,
) -> None:
    spec = replace(scripted(DONE), context=Context(window=own, summary_model=OTHER))
    bench = begin(spec, windows=windows)
    bench.ports = replace(bench.ports, known_window=known.get)
    assert bench.work() == Ended("succeeded", "end_turn")
    first, *later = [
        (state.context.window, state.context.summary_window) for state in bench.watching.states
    ]
    assert set(later) == {(window, summary_window)}
    # No step before the first call waits for an API.
    assert first == (own or known.get(OWN, DEFAULT_WINDOW), known.get(OTHER, DEFAULT_WINDOW))


def test_summaries_of_the_same_model_have_the_jobs_window(begin: Begin) -> None:
    bench = begin(replace(scripted(DONE), context=Context(window=50_000)))
    bench.work()
    assert bench.watching.states[0].context.summary_window == 50_000


def test_what_an_attempt_sees_stays_when_the_answer_to_a_commit_is_lost(
    begin: Begin, tmp_path: Path
) -> None:
    spec = replace(talks_much(tmp_path, 1), workspace=None, context=Context())
    bench = begin(spec, windows={OWN: 70_000})
    bench.watching.loses = True
    assert bench.work() == Ended("succeeded", "end_turn")
    assert not bench.watching.loses
    outputs = {state.files.outputs for state in bench.watching.states}
    windows = [state.context.window for state in bench.watching.states]
    assert windows == sorted(windows, reverse=True)
    assert (windows[0], windows[-1]) == (DEFAULT_WINDOW, 70_000)
    assert [Path(path).name for path in outputs] == [bench.lease.run_id]


def close_to_full(*replies: dict[str, Any]) -> JobSpec:
    return replace(
        scripted(*replies),
        context=Context(window=20_000, reserve=10_000),
        limits=replace(SPEC.limits, max_output_tokens=2_000),
    )


@pytest.mark.parametrize("tokens", [5_000, None])
def test_api_is_asked_once_a_turn_how_long_the_prompt_is(begin: Begin, tokens: int | None) -> None:
    bench = begin(close_to_full(DONE), "x" * 38_000, tokens=tokens)
    assert bench.work() == Ended("succeeded", "end_turn")
    assert len(bench.model.counted) == 1
    assert bench.model.counted[0].messages == bench.model.requests[0].messages
    assert bench.model.counted[0].tools == bench.model.requests[0].tools


def test_count_says_that_a_prompt_does_not_fit_although_the_estimate_does(begin: Begin) -> None:
    bench = begin(close_to_full(DONE), "x" * 38_000, tokens=12_000)
    outcome = bench.work()
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("stopped", "context_window")
    assert bench.model.requests == []


def test_count_that_a_shutdown_cuts_leaves_the_run_for_another_worker(begin: Begin) -> None:
    interrupt = Interrupt()
    bench = begin(close_to_full(DONE), "x" * 38_000)
    bench.ports = replace(bench.ports, stopping=threading.Event())

    def shut_down() -> None:
        bench.ports.stopping.set()
        interrupt.set("shutdown")

    bench.model.on_count = shut_down
    outcome = bench.work(interrupt)
    assert isinstance(outcome, Requeued)
    assert outcome.reason == "shutdown"
    assert bench.model.requests == []


def test_count_of_a_run_that_was_lost_ends_the_attempt(begin: Begin) -> None:
    interrupt = Interrupt()
    bench = begin(close_to_full(DONE), "x" * 38_000)
    bench.model.on_count = lambda: interrupt.set("dropped")
    with pytest.raises(Interrupted):
        bench.work(interrupt)
    assert bench.model.requests == []


def test_prompt_that_stays_too_long_ends_the_run_in_words(begin: Begin) -> None:
    refused = {"error": {"kind": "prompt_too_long", "status": 400, "message": "as the API says"}}
    bench = begin(scripted(refused))
    outcome = bench.work()
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("stopped", "context_window")
    assert 1 <= len(bench.model.requests) <= 3


def test_the_window_that_a_refusal_states_outlives_the_worker(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a line\n")
    spec = replace(talks_much(tmp_path, 5), context=Context(reserve=5_000))
    bench = begin(spec, windows={OWN: 70_000})
    bench.ports = replace(bench.ports, workspaces=_In(tmp_path))
    interrupt = Interrupt()

    def call() -> None:
        if len(bench.model.requests) == 4:
            words = "prompt is too long: 20001 tokens > 20000 maximum"
            raise ModelCallError("prompt_too_long", words, status=400, billed=False)
        if len(bench.model.requests) == 5:
            interrupt.set("dropped")
            interrupt.check()

    bench.model.on_call = call
    with pytest.raises(Interrupted):
        bench.work(interrupt)
    bench.watching.states.clear()
    assert bench.work() == Ended("succeeded", "end_turn")
    windows = [state.context.window for state in bench.watching.states]
    assert set(windows) == {20_000}, "not even the list of models says otherwise"


def talks_much(folder: Path, turns: int) -> JobSpec:
    """A run whose replies are long and whose results are short: only a summary makes it shorter."""
    reads = {
        "text": "I think so. " * 1_500,
        "tools": [{"name": "Read", "input": {"file_path": "a"}}],
    }
    return replace(
        SPEC,
        provider="scripted",
        script={"*": [reads] * turns + [DONE], "summary": "What was done so far."},
        tools=(BUILTIN["Read"],),
        rules=(Rule("allow", "Read"), Rule("allow", "Grep")),
        workspace=Workspace(str(folder)),
        context=Context(window=40_000, reserve=10_000),
        limits=replace(SPEC.limits, max_output_tokens=6_000),
    )


@pytest.mark.slow
def test_summary_is_written_unheard_and_stands_in_for_what_it_sums_up(
    begin: Begin, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a line\n")
    bench = begin(talks_much(tmp_path, 12))
    heard = Heard()
    bench.ports = replace(bench.ports, live=heard, workspaces=_In(tmp_path))
    assert bench.work() == Ended("succeeded", "end_turn")
    summaries = [request for request in bench.model.requests if request.purpose == "summary"]
    assert summaries
    assert all(request.tools == () for request in summaries)
    assert not [text for text in heard.texts if "What was done" in text]
    last = bench.model.requests[-1]
    assert last.purpose == "turn"
    assert last.messages[1].blocks[0]["text"].startswith(HEADING)
    assert "What was done so far." in last.messages[1].blocks[0]["text"]
    assert len(last.messages) < len(bench.watching.states[-1].messages)
    query = select(model_calls.c.purpose).where(model_calls.c.run_id == bench.lease.run_id)
    in_order = query.order_by(model_calls.c.number)
    purposes = bench.database.read(lambda connection: connection.execute(in_order).scalars().all())
    assert purposes == [request.purpose for request in bench.model.requests]


@pytest.mark.parametrize("tool", ["Read", "Grep"])
def test_whole_result_is_had_again_by_the_id_that_the_model_gave_the_call(
    begin: Begin, tmp_path: Path, tool: str
) -> None:
    (tmp_path / "a").write_text("a needle\n")
    bench = begin(replace(talks_much(tmp_path, 1), tools=(BUILTIN["Read"], BUILTIN["Grep"])))
    use_id = f"toolu_{bench.lease.run_id.rpartition('_')[2]}_0_0"
    whole = str(tmp_path / "outputs" / f"{use_id}.txt")
    given = {
        "Read": {"file_path": whole},
        "Grep": {"pattern": "needle", "path": whole, "output_mode": "content"},
    }
    again = {"tools": [{"name": tool, "input": given[tool]}]}
    first, *rest = bench.model.script["*"]
    bench.model.script["*"] = [first, again, *rest]
    tools = LocalTools(
        tmp_path / "home",
        tmp_path / "locks",
        stored_output=lambda run_id, name: tool_output(bench.database, run_id, name),
        watchdog_seconds=300,  # nobody tells its host that the worker is alive
    )
    bench.ports = replace(bench.ports, tools=tools, workspaces=_In(tmp_path))
    assert bench.work() == Ended("succeeded", "end_turn")
    tools.close()
    result = bench.model.requests[-1].messages[-1].blocks[0]
    assert result["tool_use_id"] != use_id
    assert "a needle" in result["content"]


@pytest.mark.slow
def test_only_what_models_and_tools_do_is_working_time(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a line\n")
    spec = replace(talks_much(tmp_path, 2), context=Context())
    bench = begin(spec)
    clock = SteppedClock(bench.ports.clock)
    failures = [ModelCallError("overloaded_error", "busy", status=529, billed=False)]

    def call() -> None:
        if failures:
            clock.passes(1_000)
            raise failures.pop()
        clock.passes(2)

    bench.model.on_call = call
    bench.ports = replace(
        bench.ports,
        clock=clock,
        workspaces=_In(tmp_path),
        tools=_Slow(bench.ports.tools, lambda: clock.passes(3)),
    )
    outcome = bench.work()
    assert outcome == Ended("succeeded", "end_turn")
    assert bench.row().progress["worked"] == 3 * 2 + 2 * 3


@dataclass
class _In:
    """A workspace that is there."""

    folder: Path

    def surroundings(self, lease: Lease, folder: Path | None) -> Surroundings:
        return Surroundings(self.folder, self.folder / "outputs")


@dataclass
class _Slow:
    """The real tools, whose calls take their time."""

    tools: Any
    passes: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tools, name)

    def run(self, call: Any, interrupt: Interrupt) -> Any:
        self.passes()
        return self.tools.run(call, interrupt)
