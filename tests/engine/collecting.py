"""Runs in the lane of batches, worked in this process, and collectors that die at chosen points."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from runner.core.commands import Target
from runner.core.conversation import Tool
from runner.core.model_calls import tariffs_of
from runner.core.run import Outcome
from runner.core.spec import JobSpec, NewRun, Submission
from runner.engine.attempt import Ports, run_attempt
from runner.engine.batches import Collector
from runner.llm.anthropic import AnthropicModel
from runner.llm.batches import AnthropicBatches
from runner.llm.prices import load_prices
from runner.logs import Outage
from runner.ports import Batches, Interrupt
from runner.queries.costs import costs_by
from runner.store import due_runs, ids, jobs, leases
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.tables import (
    batch_collectors,
    batches,
    day_cap,
    job_budgets,
    metadata,
    model_calls,
)
from runner.store.tables import runs as run_table
from runner.tools.toolbox import LocalTools
from runner.workspace.run_workspaces import RunWorkspaces
from tests.messages_api import API_KEY, Break, MessagesServer, Received, Reply, text, tool_use

SPEC = JobSpec(
    name="batched",
    model="claude-sonnet-5",
    tools=(Tool("Nothing", "Does nothing.", {"type": "object"}),),  # that nobody allows
    lane="batch",
    batch_linger=5.0,
)


BATCH_SECONDS = 60.0
COUNT = 3
PAID_ONCE = sorted((f"Do {number}.", turn) for number in range(COUNT) for turn in range(2))
ALL_SUCCEEDED = {"succeeded end_turn": COUNT}
RESET = Break("reset_before_headers")


def all_runs(job: str) -> Target:
    return Target("job", job)


class Died(BaseException):
    """The collector's process ends here."""


class TurnedClock:
    """The clock of the workers and of the API, which tests turn."""

    def __init__(self) -> None:
        self._turned = 0.0

    def now(self) -> float:
        return time.time() + self._turned

    def monotonic(self) -> float:
        return time.monotonic() + self._turned

    def turn(self, seconds: float) -> None:
        self._turned += seconds


def two_turns(request: Received) -> Reply:
    """A call of a tool, then the end."""
    if request.position == 1:
        return Reply([text("Done.")])
    return Reply([text("On it."), tool_use("toolu_1", "Nothing", {})])


class Silence:
    def publish(self, run_id: str, text: str) -> None:
        """Nobody listens."""


class Office:
    """A database, an API with batches, and this process as the worker of all runs."""

    def __init__(
        self, database: Database, server: MessagesServer, folder: Path, clock: TurnedClock
    ) -> None:
        (folder / "home").mkdir(exist_ok=True)
        self.database, self.server, self.clock = database, server, clock
        self.api = AnthropicBatches(base_url=server.url, api_key=API_KEY)
        model = AnthropicModel(base_url=server.url, api_key=API_KEY)
        prices = load_prices()
        tools = LocalTools(folder / "home", folder / "locks")
        self.ports = Ports(
            journal=StoredJournal(database, clock.now, lambda spec: tariffs_of(spec, prices)),
            models=lambda spec: model,
            tools=tools,
            workspaces=RunWorkspaces(database, folder / "home", tools),
            live=Silence(),
            clock=clock,
            jitter=lambda: 0.0,
            call_id=ids.call_id,
            stopping=threading.Event(),
        )
        self.boundary: int | None = None  # at which the collector dies, one from now
        self._closes = [tools.close, model.close, self.api.close]

    def close(self) -> None:
        for close in self._closes:
            close()

    def submit(self, count: int = 3, spec: JobSpec = SPEC, **changes: Any) -> str:
        """Submit a job; its id."""
        new = tuple(NewRun(f"i{number}", None, f"Do {number}.") for number in range(count))
        submission = Submission("job.toml", "", replace(spec, **changes), new)
        return jobs.submit(self.database, submission, self.clock.now())

    def work(self) -> list[Outcome]:
        """Work all runs that are due, one after another, until none is."""
        outcomes = []
        while due := due_runs.due_to_notify(self.database, 1000, self.clock.now()):
            for run_id in due:
                run = due_runs.look_at(self.database, run_id, self.clock.now())
                assert run is not None
                lease = due_runs.claim(self.database, run, "worker_a", self.clock.now())
                assert lease is not None
                outcomes.append(run_attempt(lease, self.ports, Interrupt()))
        return outcomes

    def collector(self, worker_id: str = "worker_a", grace: float = 300.0) -> Collector:
        """A collector of a worker that lives."""
        self._register(worker_id)
        api: Any = Mortal(self.api, self._cross)
        return Collector(
            database=self.database,
            worker_id=worker_id,
            clock=self.clock,
            api=lambda: api,
            look=self.ports.journal.look,
            tariffs=lambda spec: tariffs_of(spec, load_prices()),
            stopping=self.ports.stopping,
            outage=Outage("the database", lambda *given: None),  # type: ignore[arg-type]
            grace=grace,
        )

    def _register(self, worker_id: str) -> None:
        now, known = self.clock.now(), leases.others(self.database, "")
        if worker_id in {each[0] for each in known}:
            leases.renew(self.database, worker_id, now)
        else:
            about: Any = {"host_id": "h", "hostname": "h", "pid": 1, "slots": 1}
            leases.register(self.database, worker_id, now=now, **about)

    @contextmanager
    def dying_at(self, boundary: int) -> Iterator[Callable[[], int]]:
        """In the block the process of a collector dies at the n-th boundary from now: before or after a
        transaction or a call of the API."""
        self.boundary = boundary
        write = self.database.write

        def dying_write(work: Any, **options: Any) -> Any:
            self._cross()
            result = write(work, **options)
            self._cross()
            return result

        self.database.write = dying_write  # type: ignore[method-assign]
        left = boundary
        try:
            yield lambda: left
            left = self.boundary
        finally:
            self.database.write = write  # type: ignore[method-assign]
            self.boundary = None

    def _cross(self) -> None:
        if self.boundary is not None:
            self.boundary -= 1
            if not self.boundary:
                raise Died

    def round(self, worker_id: str = "worker_a", seconds: float = BATCH_SECONDS) -> None:
        """Work all that is due, collect, and let time pass."""
        self.work()
        self.collector(worker_id).collect()
        self.clock.turn(seconds)

    def finish(self, worker_id: str = "worker_a", most: int = 30) -> None:
        """Go on until all runs have ended."""
        for _ in range(most):
            self.round(worker_id)
            if not any(name.startswith(("queued", "waiting")) for name in self.states()):
                return
        raise AssertionError(self.states())

    def states(self) -> dict[str, int]:
        """How many runs are in each state, with its reason."""
        query = select(run_table.c.state, run_table.c.reason)
        found: dict[str, int] = {}
        for row in self.database.rows(query):
            name = f"{row.state} {row.reason}".strip()
            found[name] = found.get(name, 0) + 1
        return found

    def calls(self, *names: str) -> list[tuple[Any, ...]]:
        """Columns of all model calls, by run and number."""
        query = select(*(model_calls.c[name] for name in names))
        query = query.order_by(model_calls.c.run_id, model_calls.c.number)
        return [tuple(row) for row in self.database.rows(query)]

    def batches(self, *names: str) -> list[tuple[Any, ...]]:
        """Columns of all batches, the oldest first."""
        query = select(*(batches.c[name] for name in names)).order_by(batches.c.id)
        return [tuple(row) for row in self.database.rows(query)]

    def run_ids(self) -> list[str]:
        return [
            row.id for row in self.database.rows(select(run_table.c.id).order_by(run_table.c.id))
        ]

    def reservations(self) -> list[tuple[int, bool]]:
        """The most that each open call may cost, and if it goes into a batch."""
        found = self.database.rows(select(run_table.c.progress))
        calls = [row.progress["model"]["open_call"] for row in found]
        held = [call["reservation"] for call in calls if call is not None]
        return [(each["worst_cost"], each["batch"]) for each in held]

    def cost_of(self, run_id: str) -> int:
        """Return the sum that the API billed for a run's calls, in billionths of a USD."""
        return self._cost(lambda key: key == run_id)

    def billed(self) -> int:
        """Return the sum that the API billed for all calls, in billionths of a USD."""
        return self._cost(lambda key: True)

    def _cost(self, is_counted: Callable[[str], bool]) -> int:
        found = costs_by(self.database, load_prices(), "run")
        return sum(int(each.spending.usd * 10**9) for each in found if is_counted(each.key))

    def spent(self) -> tuple[int, int]:
        """Return the charges of the job's budget and of the day's cap."""
        (budget,) = self.database.rows(select(job_budgets.c.spent_cost))
        days = self.database.rows(select(day_cap.c.spent_cost))
        return budget.spent_cost, sum(day.spent_cost for day in days)

    def holder(self) -> str:
        """The worker that collects."""
        (row,) = self.database.rows(select(batch_collectors.c.worker_id))
        return str(row.worker_id)

    def make_another(self, count: int) -> None:
        """Somebody else makes a batch of so many requests."""
        message = {"role": "user", "content": "Another."}
        params = {"model": "claude-sonnet-5", "max_tokens": 9, "messages": [message]}
        requests = [{"custom_id": f"o{n}", "params": params} for n in range(count)]
        self.server.shelf.create({"requests": requests}, "2023-06-01")

    def paid(self) -> list[tuple[str, int]]:
        """Prompt and turn of each request that was paid for."""
        asked = [*self.server.requests, *self.server.worked_in_batches]
        return sorted((each.first_text, each.position) for each in asked)


def sweep(database: Database, folder: Path, every: int = 1) -> dict[str, int]:
    """Let the collector die at every n-th of its boundaries, each time in another story, until a story
    ends before. Returns how many died, how batches ended, and how many calls were paid twice."""
    boundary, died = 1, True
    found = dict.fromkeys(("died", "adopted", "lost", "twice"), 0)
    while died:
        clock = TurnedClock()
        server = MessagesServer(
            two_turns, batch_now=clock.now, batch_takes=lambda number: BATCH_SECONDS
        )
        with server:
            office = Office(database, server, folder, clock)
            office.submit()
            died = _die(office, boundary)
            office.clock.turn(20.0)  # the leases of the dead worker have expired
            office.finish("worker_b")
            paid, ended = office.paid(), office.batches("outcome", "adopted")
            office.close()
        found["died"] += died
        found["twice"] += len(paid) - len(set(paid))
        found["lost"] += ended.count(("lost", False))
        found["adopted"] += ended.count(("ended", True))
        assert len(set(paid)) == 6, (boundary, paid)
        boundary += every
        _empty(database)
    return found


def _die(office: Office, boundary: int) -> bool:
    """Work with a collector until it dies at a boundary. False if the runs ended before."""
    for _ in range(30):
        office.work()
        collector = office.collector()
        with office.dying_at(boundary) as left:
            try:
                collector.collect()
            except Died:
                return True
        boundary = left()
        if office.states().keys() == {"succeeded end_turn"}:
            return False
        office.clock.turn(BATCH_SECONDS)
    raise AssertionError(office.states())


def _empty(database: Database) -> None:
    """Delete all rows, for another story in the same database."""

    def work(connection: Any) -> None:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())

    database.write(work)


class Mortal:
    """The API, whose user may die before and after each call."""

    def __init__(self, api: Batches, cross: Callable[[], None]) -> None:
        self._api, self._cross = api, cross

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)
        if name in ("body", "shared"):
            return method

        def call(*given: Any) -> Any:
            self._cross()
            found = method(*given)
            if name == "results":
                return self._lines(found)
            self._cross()
            return found

        return call

    def _lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            self._cross()
            yield line


class Faulty:
    """The API, some of whose methods are others."""

    def __init__(self, api: AnthropicBatches, **methods: Any) -> None:
        self._api = api
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


def collect(office: Office, **methods: Any) -> None:
    """One pass, with other methods of the API."""
    collector = office.collector()
    faulty: Any = Faulty(office.api, **methods)
    collector.api = lambda: faulty
    collector.collect()
