"""The life of one worker process in the sweep: it works one run, and those that it starts, until they
have ended, or until it is killed or frozen at the boundary that it was told."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from runner.core.model_calls import tariffs_of
from runner.core.prices import Tariff
from runner.core.run import ENDED, Lease
from runner.core.spec import JobSpec
from runner.engine.attempt import Ports, run_attempt
from runner.engine.batches import PASS_SECONDS, Collector
from runner.errors import Interrupted, LeaseLost
from runner.llm.anthropic import AnthropicModel
from runner.llm.batches import AnthropicBatches
from runner.llm.prices import load_prices
from runner.logs import Outage
from runner.ports import Command, Interrupt, ToolCall
from runner.queries.transcript import tool_output
from runner.store import children, due_runs, ids, leases
from runner.store import tables as stored
from runner.store.batches import is_there_work
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.tools.toolbox import LocalTools
from runner.workspace.run_workspaces import RunWorkspaces
from tests.crash import faults
from tests.forking import PR_SET_PDEATHSIG, Forked, serve
from tests.messages_api import API_KEY

T = TypeVar("T")


class Boundaries:
    """Counts the moments right before and right after each call of a port.

    Args:
        at: the number of the moment (from 1) at which this process signals itself; None: never.
        number: the signal, SIGKILL or SIGSTOP.
        note: the file that then tells which moment it was.
    """

    def __init__(self, at: int | None, number: int, note: Path) -> None:
        self._at = at
        self._number = number
        self._note = note
        self.count = 0  # of the moments so far
        self._counting = threading.Lock()
        self._whole = threading.Lock()

    def around(self, name: str, call: Callable[[], T], *, whole: bool = False) -> T:
        """Call a port. ``whole``: this process is not stopped, only killed, in the middle of it."""
        self._cross(f"before {name}")
        try:
            with self._whole if whole else nullcontext():
                return call()
        finally:
            self._cross(f"after {name}")

    def _cross(self, what: str) -> None:
        with self._counting:
            self.count += 1
            if self.count != self._at:
                return
            self._note.write_text(f"boundary {self.count}, {what}")
            if self._number == signal.SIGKILL:
                os.kill(os.getpid(), signal.SIGKILL)
            # Sent to the process, the signal could stop another thread first, and this one go on.
            with self._whole:
                signal.pthread_kill(threading.get_ident(), self._number)


class Counted:
    """A port, every call of which is two boundaries, save of methods that are for ``looking`` only.
    ``whole`` says, given the call's arguments, whether the process may not be stopped in the middle."""

    def __init__(
        self,
        name: str,
        port: Any,
        boundaries: Boundaries,
        whole: Callable[..., bool] = lambda *arguments, **named: False,
        looking: Collection[str] = (),
    ) -> None:
        self._name = name
        self._port = port
        self._boundaries = boundaries
        self._whole = whole
        self._looking = looking

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._port, method)
        if method in self._looking:
            return call

        def counted(*arguments: Any, **named: Any) -> Any:
            return self._boundaries.around(
                f"{self._name}.{method}",
                lambda: call(*arguments, **named),
                whole=self._whole(*arguments, **named),
            )

        return counted


MARK = "CRASH_SWEEP_MARK"  # a variable in the environment of every process that a life starts
DROPPED = 10  # exit status: another attempt has the run
_SAY_ALIVE_SECONDS = 0.1
_LOOK_SECONDS = 0.01
_GRACE_SECONDS = 10.0
LOG = "log"
# All that a client of the API trusts: to read the system's takes longer than the calls of a run.
_CERTIFICATE = Path(__file__).parents[1] / "llm" / "localhost.pem"
_IMPORTED_LATE = (
    "runner.tools.mcp_session",
    "anthropic.types",
    "psycopg",
    "runner.llm.connections",
    "runner.llm.api_errors",
    "runner.llm.stream",
)


@dataclass(frozen=True)
class Task:
    """What a life is told. ``boundary`` and ``signal``: when it signals itself, and how; ``folder``
    is the iteration's, and ``home`` the name of the worker's own in it; ``fault`` is seeded into the
    code that it runs."""

    database_url: str
    api_url: str
    folder: str
    run_id: str
    worker_id: str
    boundary: int | None = None
    signal: int = 0
    watchdog_seconds: float = 60.0
    fault: str | None = None
    home: str = "home"


class Life(Forked):
    """The process of a task, as a test sees it. It writes to ``log`` in the task's folder."""

    def __init__(self, task: Task) -> None:
        log = os.open(Path(task.folder) / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        arguments, root = (json.dumps(asdict(task)),), Path(__file__).parents[2]
        environment = {**os.environ, "SSL_CERT_FILE": str(_CERTIFICATE)}
        try:
            super().__init__("tests.crash.life", arguments, root, environment, (nothing, log, log))
        finally:
            os.close(log)
            os.close(nothing)

    def wait(self) -> int:
        """Wait until the process ends or is stopped: its exit code, or minus the signal's number."""
        code = self.look(None)
        assert code is not None
        return code


class LeapingClock:
    """A clock that leaps where a worker would sleep."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.time() + self._ahead

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def leap(self, seconds: float) -> None:
        self._ahead += max(0.0, seconds)


class LeapingEvent(threading.Event):
    """``Ports.stopping``: nobody sets it, and to wait for it is to leap."""

    def __init__(self, clock: LeapingClock, boundaries: Boundaries) -> None:
        super().__init__()
        self._clock = clock
        self._boundaries = boundaries

    def wait(self, timeout: float | None = None) -> bool:
        self._boundaries.around("stopping.wait", lambda: self._clock.leap(timeout or 0.0))
        return self.is_set()


class NobodyFollows:
    """``Live`` whose first text of each reply is two boundaries: the others change nothing more."""

    def __init__(self, boundaries: Boundaries) -> None:
        self._boundaries = boundaries
        self._count_after = -1

    def publish(self, run_id: str, text: str) -> None:
        """Drop the text."""
        if self._boundaries.count != self._count_after:
            self._boundaries.around("live.publish", lambda: None)
            self._count_after = self._boundaries.count


def live(task: Task) -> int:
    """Work the run; the exit status of the process."""
    if task.fault is not None:
        faults.seed(task.fault)
    folder = Path(task.folder)
    os.environ[MARK] = task.folder
    boundaries = Boundaries(task.boundary, task.signal, folder / "boundary")
    clock = LeapingClock()
    database = Database(task.database_url)
    home = folder / task.home
    home.mkdir(parents=True, exist_ok=True)
    tools = LocalTools(
        home,
        folder / "locks",
        stored_output=lambda run_id, name: tool_output(database, run_id, name),
        watchdog_seconds=task.watchdog_seconds,
    )
    api = AnthropicModel(base_url=task.api_url, api_key=API_KEY)
    model = Counted("model", api, boundaries, looking=("window",))
    journal = StoredJournal(database, clock.now, tariffs)
    ports = Ports(
        journal=Counted("journal", journal, boundaries, _in_a_transaction),
        models=lambda spec: model,
        tools=Counted(
            "tools", tools, boundaries, _in_this_process, ("listed", "locate", "problem")
        ),
        workspaces=Counted("workspaces", RunWorkspaces(database, home, tools), boundaries),
        live=NobodyFollows(boundaries),
        clock=clock,
        jitter=lambda: 0.0,
        call_id=ids.call_id,
        stopping=LeapingEvent(clock, boundaries),
    )
    alive = Alive(task, database, tools)
    threading.Thread(target=alive.say_so, daemon=True).start()
    try:
        collector = _collector(task, clock, boundaries, ports, journal)
        return _work(task, database, clock, boundaries, ports, alive, collector)
    finally:
        alive.ended.set()
        tools.close()
        database.close()


def tariffs(spec: JobSpec) -> dict[str, Tariff]:
    """Return the prices of the run's models, by model."""
    return tariffs_of(spec, load_prices())


def _collector(
    task: Task, clock: LeapingClock, boundaries: Boundaries, ports: Ports, journal: StoredJournal
) -> Collector:
    """Collects for this worker. Each of its transactions and calls of the API is two boundaries."""
    database = Database(task.database_url)
    write = database.write

    def counted(work: Callable[[Connection], T], **options: Any) -> T:
        made = partial(write, work, **options)
        return boundaries.around("collector.write", made, whole=True)

    database.write = counted  # type: ignore[method-assign,assignment]
    api = AnthropicBatches(base_url=task.api_url, api_key=API_KEY)
    batches: Any = Counted("batches", api, boundaries, looking=("body", "shared"))
    return Collector(
        database=database,
        worker_id=task.worker_id,
        clock=clock,
        api=lambda: batches,
        look=journal.look,
        tariffs=tariffs,
        stopping=ports.stopping,
        outage=Outage("the database", lambda *given: None),  # type: ignore[arg-type]
        grace=_GRACE_SECONDS,
    )


class Alive:
    """What a worker's watch does: as long as its leases last, it may act, and its tools may run."""

    def __init__(self, task: Task, database: Database, tools: LocalTools) -> None:
        self.ended = threading.Event()
        self._task = task
        self._database = database
        self._tools = tools
        self._renewed_at = time.monotonic()

    def may_act(self) -> bool:
        return time.monotonic() - self._renewed_at < self._task.watchdog_seconds

    def say_so(self) -> None:
        while not self.ended.wait(_SAY_ALIVE_SECONDS):
            asked_at = time.monotonic()
            if not self.may_act() and not self._holds_the_run():
                return
            self._renewed_at = asked_at
            self._tools.alive()

    def _holds_the_run(self) -> bool:
        return self._task.run_id in due_runs.held_by(self._database, self._task.worker_id)


def _in_a_transaction(*arguments: Any, **named: Any) -> bool:
    """Every call of the journal: stopped in it, a process keeps everybody else from writing."""
    return True


def _in_this_process(call: ToolCall | Command, interrupt: Interrupt) -> bool:
    """A file tool: what one has begun it does when it wakes up."""
    return isinstance(call, ToolCall) and call.tool.name in ("Read", "Write", "Edit")


def _work(
    task: Task,
    database: Database,
    clock: LeapingClock,
    boundaries: Boundaries,
    ports: Ports,
    alive: Alive,
    collector: Collector,
) -> int:
    leases.register(
        database,
        task.worker_id,
        host_id="host",
        hostname="here",
        pid=os.getpid(),
        slots=1,
        now=clock.now(),
    )
    while (due := _next_due(database, task.run_id, clock, collector)) is not None:
        run_id, due_at = due
        clock.leap(due_at - clock.now())
        claim = partial(_claim, task, run_id, database, clock)
        lease = boundaries.around("due_runs.claim", claim)
        if lease is None:
            continue
        try:
            run_attempt(lease, ports, Interrupt(alive.may_act))
        except LeaseLost:
            return DROPPED
        except Interrupted:
            leases.give_back(database, lease, clock.now())
    leases.end(database, task.worker_id, clock.now())
    return 0


def _claim(task: Task, run_id: str, database: Database, clock: LeapingClock) -> Lease | None:
    run = due_runs.look_at(database, run_id, clock.now())
    return due_runs.claim(database, run, task.worker_id, clock.now()) if run else None


def _next_due(
    database: Database, root: str, clock: LeapingClock, collector: Collector
) -> tuple[str, float] | None:
    """The run of the tree that is due first, and its time, after a person has answered all questions;
    None when all have ended and no batch is open. Does the work of the dispatcher for parents, and of
    the collector for batches."""
    columns = tuple(stored.runs.c[name] for name in ("id", "due_at", "state", "reason"))
    of_tree = (stored.runs.c.id == root) | (stored.runs.c.root_run == root)
    query = select(*columns).where(of_tree)
    while True:
        found = database.read(lambda connection: connection.execute(query).all())
        if due := [(run.due_at, run.id) for run in found if run.state == "queued"]:
            due_at, run_id = min(due)
            return run_id, due_at
        has_ended = all(run.state in ENDED for run in found)
        if has_ended and not is_there_work(database):
            return None
        # A batch may outlive its run: the next iteration's server does not know it.
        if has_ended or any(run.reason == "batch" for run in found):
            collector.collect()
            clock.leap(PASS_SECONDS)
        elif not children.attend(database, clock.now()):
            threading.Event().wait(_LOOK_SECONDS)


def _import_all() -> None:
    for module in _IMPORTED_LATE:
        importlib.import_module(module)


if __name__ == "__main__":
    (order,) = serve(_import_all, stops=True)
    if sys.platform == "linux":  # be killed when the tests end
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    status = live(Task(**json.loads(order)))
    sys.stderr.flush()
    os._exit(status)
