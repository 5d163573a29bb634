"""One pass of the sweep: a run whose worker is killed or frozen at the n-th boundary, and the worker
that goes on with it."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil
from sqlalchemy import select

from runner.core import commands
from runner.core.commands import Question, Target
from runner.llm.requests import encoded
from runner.store import approvals, ids, jobs, leases, tables
from runner.store.database import Database
from runner.store.questions import waiting
from runner.store.retry import say
from runner.tools import host_process
from runner.tools.host_process import run_is_quiet
from runner.workspace.folders import identify
from tests.crash import files, invariants, record, scenario, sent
from tests.crash.invariants import Served
from tests.crash.life import DROPPED, LOG, MARK, Life, Task
from tests.crash.record import Violation
from tests.crash.scenario import Planned, Scenario
from tests.crash.sent import Asked
from tests.messages_api import MessagesServer, Received, Reply
from tests.store.asked import run_ids

_LOOK_SECONDS = 0.02
_NAME = "the person"


class Person:
    """Answers in a thread of its own, while inside: some questions as soon as they are asked, while
    the worker is busy, the others when the run waits, those that come last first."""

    def __init__(self, database: Database, run_id: str, workspace: Path, variant: Scenario) -> None:
        self._database = database
        self._run_id = run_id
        self._workspace = workspace
        self._plan = {id: one for id, one in variant.answers.items() if one.by == "person"}
        self._answering = threading.Lock()
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._stay, name=_NAME)

    def __enter__(self) -> Person:
        if self._plan:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._gone.set()
        if self._plan:
            self._thread.join()

    def answer_all(self) -> None:
        """Answer whatever is asked now, whoever lives."""
        if self._plan:
            self._answer(early_only=False)

    def _stay(self) -> None:
        while not self._gone.wait(_LOOK_SECONDS):
            self._answer(early_only=not self._run_waits())

    def _answer(self, *, early_only: bool) -> None:
        with self._answering:
            for asked in reversed(waiting(self._database, Target("run", self._run_id))):
                planned = self._plan.get(f"toolu_{asked.turn - 1}_{asked.position}")
                if planned is not None and (planned.early or not early_only):
                    self._give(asked, planned)

    def _give(self, asked: Question, planned: Planned) -> None:
        reply = commands.Reply(
            planned.effect,
            _NAME,
            planned.reason,
            edited={"command": planned.command} if planned.command else None,
            remember="job" if planned.remember else "call",
            rule=planned.remember,
        )
        approvals.answer(self._database, [asked.id], reply, time.time())
        if planned.early:
            (self._workspace / scenario.ANSWERED).touch()

    def _run_waits(self) -> bool:
        query = select(tables.runs.c.state).where(tables.runs.c.id == self._run_id)
        state = self._database.read(lambda connection: connection.execute(query).scalar_one())
        return bool(state == "waiting")


Mode = Literal["kill", "freeze"]

_SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
_FROZEN_WATCHDOG_SECONDS = 6.0
_PATIENCE = 60.0
_AHEAD = 60.0  # seconds
_CLOCK_ERROR = 10.0  # seconds; when a process began is not known exactly


class Iteration:
    """One run, its model, and its two workers."""

    def __init__(self, database: Database, folder: Path, run_id: str, variant: Scenario) -> None:
        self.database = database
        self.folder = folder
        self.run_id = run_id
        self._variant = variant
        self.served = Served()
        self._failed: set[int] = set()
        self._began = time.time()
        self._frozen_at = 0.0
        self._said = False
        self._home = folder / "home"
        self._person = Person(database, run_id, folder / "workspace", variant)

    def run(self, task: Task) -> bool:
        """Interrupt a worker, and let another worker go on; whether the first one was interrupted."""
        self.begin()
        with MessagesServer(self.plan, batch_now=_api_time) as server, self._person:
            # A batch of an earlier iteration is stored: one with its id would be taken for it.
            server.shelf.prefix = f"msgbatch_{self.folder.name}_"
            interrupted = self._work(replace(task, api_url=server.url))
            self.served.refusals += [refusal.message for refusal in server.refusals]
        _wait(lambda: not self._processes(), "processes survived the workers", self._processes)
        self.check()
        return interrupted

    def begin(self) -> None:
        """What happens before any worker comes."""
        say(self.database, self.run_id, scenario.SAID_FIRST, time.time())

    def plan(self, request: Received) -> Reply:
        """The model: its reply depends on the conversation alone; some calls fail the first time."""
        messages = request.body["messages"]
        batched = request.custom_id is not None
        raw = encoded(request.body) if batched else request.raw
        prompt_tokens = len(raw) // 4
        if "tools" not in request.body:
            self.served.summaries += 1
            reply = scenario.summary(messages, self.served.summaries)
            return self.billed(scenario.with_usage(reply, prompt_tokens), prompt_tokens)
        position = scenario.position_of(messages)
        self.served.turns.append(Asked(position, raw, _content_of(messages)))
        if position == scenario.SAID_LATER_AT and not self._said:
            self._said = True
            say(self.database, self.run_id, scenario.SAID_LATER, time.time())
        reply = scenario.with_usage(self._variant.reply(position), prompt_tokens)
        if reply.fail_first and position not in self._failed:
            self._failed.add(position)
            reply = scenario.failing(reply)
        elif batched:
            self.served.batched.append(position)
            return self.billed(reply, prompt_tokens, 0.5)
        return self.billed(reply, prompt_tokens)

    def billed(self, reply: Reply, prompt_tokens: int, share: float = 1.0) -> Reply:
        """The reply, counted if it is paid for, at a share of the price."""
        if reply.broken is None or reply.broken.kind != "status":
            self.served.tokens += prompt_tokens + reply.output_tokens()
            self.served.cost += int(scenario.cost_of(reply) * share)
        return reply

    def records(self) -> list[record.Record]:
        """All that the workers may write to: the run first."""
        return [record.read(self.database, self.run_id)]

    def check(self) -> None:
        """Raise ``Violation`` unless everything holds of what has ended."""
        found = self.records()[0]
        invariants.check(found, self.served, self._variant)
        files.check(found, self.folder, self._home, self._variant)
        sent.check_told_again(self.database, found, self.served.turns)

    def _work(self, task: Task) -> bool:
        frozen = task.signal == signal.SIGSTOP
        watchdog = _FROZEN_WATCHDOG_SECONDS if frozen else task.watchdog_seconds
        first = replace(task, worker_id=_new_worker(), watchdog_seconds=watchdog)
        life = Life(first)
        end = life.wait()
        if end == 0:
            return False
        if end != -task.signal:
            raise Violation(f"the worker ended with {end}")
        if frozen:
            self._frozen_at = time.monotonic()
            _wait(lambda: not _has_tools(life.pid), "tools outlive their worker's lease")
        invariants.check_job_budget(self.records()[0], self._variant)
        self._person.answer_all()
        other = "home-2" if self._variant.files.hosts else task.home
        if self.records()[0].run.ended_at is None:
            self._home = self.folder / other  # whoever ends it leaves its trees there
        self._take_from(first.worker_id)
        end = Life(replace(task, worker_id=_new_worker(), boundary=None, home=other)).wait()
        if end != 0:
            raise Violation(f"the worker that went on ended with {end}")
        if frozen:
            self._thaw(life)
        return True

    def _take_from(self, worker_id: str) -> None:
        locks = self.folder / "locks"
        for each in self.records():
            _wait(partial(run_is_quiet, locks, each.run.id), "the run does not become quiet")
        tools = [p for p in self._processes() if host_process.__name__ not in p]
        if tools:
            raise Violation(f"tools outlive their worker: {tools}")
        leases.take_from(self.database, [worker_id], time.time())
        invariants.check_job_budget(self.records()[0], self._variant)

    def _thaw(self, life: Life) -> None:
        """Let the worker that lost its run go on: it appends nothing, and touches nothing."""
        woken_at = self._frozen_at + _FROZEN_WATCHDOG_SECONDS
        _wait(lambda: time.monotonic() > woken_at, "time stands still")
        before = self.records()
        asleep = [_files(each.own_workspace) for each in before]
        life.send_signal(signal.SIGCONT)
        end = life.wait()
        if end not in (0, DROPPED):
            raise Violation(f"the worker that was frozen ended with {end}")
        if self.records() != before:
            raise Violation("a worker that had lost its run wrote to it")
        if (left := [_files(each.own_workspace) for each in before]) != asleep:
            raise Violation(f"a worker that had lost its run ran a tool: {asleep} then {left}")

    def _processes(self) -> list[str]:
        """The command lines of what the workers started and still runs."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.create_time() < self._began - _CLOCK_ERROR:
                    continue
                if process.environ().get(MARK) != str(self.folder):
                    continue
                if command := process.cmdline():  # it has none once it has exited
                    found.append(" ".join(command))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


class Sweep:
    """A scenario, swept in one way. ``iteration`` is what each interrupted run goes through.

    Args:
        fault: seeded into every worker process.
    """

    iteration: type[Iteration] = Iteration

    def __init__(
        self,
        database: Database,
        folder: Path,
        mode: Mode,
        variant: Scenario,
        fault: str | None = None,
    ) -> None:
        self._database = database
        self._folder = folder
        self._mode = mode
        self._variant = variant
        self._fault = fault

    def run(self, first: int, every: int) -> int:
        """Interrupt at every ``every``-th boundary from ``first`` on, until a run survives.

        Returns:
            How many runs were interrupted.

        Raises:
            Violation: a guarantee did not hold; it says at which boundary.
        """
        boundary, interrupted = first, 0
        while self._interrupt(boundary):
            boundary, interrupted = boundary + every, interrupted + 1
        return interrupted

    def interrupt(self, boundaries: Iterable[int]) -> int:
        """Interrupt at each of these boundaries: how many runs were interrupted. Raises ``Violation``."""
        return sum(self._interrupt(boundary) for boundary in boundaries)

    def find(self, what: str, boundaries: Iterable[int]) -> str:
        """Interrupt at ``boundaries`` until a violation says ``what``; its text.

        Raises:
            AssertionError: none does; it tells the last one that says something else.
        """
        other = "nothing at all"
        for boundary in boundaries:
            try:
                self._interrupt(boundary)
            except Violation as violation:
                if what in str(violation):
                    return str(violation)
                other = str(violation)
        raise AssertionError(f"the sweep has not found that {what}, but {other}")

    def _interrupt(self, boundary: int) -> bool:
        folder = self._folder / f"at-{boundary}"
        workspace = folder / "workspace"
        scenario.furnish(workspace, self._variant)
        (folder / "locks").mkdir()
        submission = self._variant.submission(workspace, scenario.tools())
        shared = self._variant.workspace in ("shared", "copy")
        workspace_id = identify(workspace) if shared else None
        job_id = jobs.submit(self._database, submission, time.time(), workspace_id=workspace_id)
        (run_id,) = run_ids(self._database, job_id)
        iteration = self.iteration(self._database, folder, run_id, self._variant)
        try:
            interrupted = iteration.run(
                Task(
                    database_url=self._database.url.render_as_string(hide_password=False),
                    api_url="",
                    folder=str(folder),
                    run_id=run_id,
                    worker_id="",
                    boundary=boundary,
                    signal=_SIGNALS[self._mode],
                    fault=self._fault,
                )
            )
        except Violation as violation:
            note, log = folder / "boundary", folder / LOG
            where = note.read_text() if note.exists() else "nothing interrupted"
            said = log.read_text() if log.exists() else ""
            raise Violation(f"{self._mode} at {where}: {violation}\n{said}") from violation
        shutil.rmtree(folder)
        return interrupted


def _api_time() -> float:
    """The time by the API's clock: not before that of a worker, which leaps ahead."""
    return time.time() + _AHEAD


def _content_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without cache breakpoints."""

    def plain(block: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in block.items() if name != "cache_control"}

    return [{**one, "content": [plain(block) for block in one["content"]]} for one in messages]


def _new_worker() -> str:
    return ids.new("worker", time.time())


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _has_tools(pid: int) -> bool:
    """True if the tool host of a worker, below its guard, has calls in hand."""
    hosts = (host for guard in _children(psutil.Process(pid)) for host in _children(guard))
    return any(_children(host) for host in hosts)


def _children(process: psutil.Process) -> list[psutil.Process]:
    """The children of a process; none if it has just ended."""
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


def _wait(
    condition: Callable[[], object], what: str, seen: Callable[[], object] = lambda: ""
) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Violation(f"{what} {seen()}")
        threading.Event().wait(0.005)
