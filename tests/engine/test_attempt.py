"""The spine over a real database, with a scripted model."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.core.commands import Target
from runner.core.conversation import ToolResult
from runner.core.run import BEGUN, Ended, Lease, Outcome, Requeued, Waiting
from runner.core.spec import JobSpec, Patience
from runner.core.times import Moment, Times
from runner.core.workspace import Workspace
from runner.engine.attempt import Ports, run_attempt
from runner.errors import (
    ApiUnreached,
    HostFaultError,
    HostLacks,
    Interrupted,
    KeyRefused,
    LeaseLost,
    ModelCallError,
    Unprepared,
)
from runner.jobfile.values import schema_problem
from runner.llm.scripted import ScriptedModel
from runner.permissions import Rule
from runner.ports import Interrupt, ToolCall
from runner.store import control, due_runs, ids, jobs
from runner.store.database import Database, DatabaseClock
from runner.store.journal import StoredJournal
from runner.store.leases import HostFault, give_back_for_host
from runner.store.tables import events, model_calls, tool_calls
from runner.store.tables import jobs as job_table
from runner.store.tables import runs as run_table
from runner.tools.registry import resolve_tools
from runner.tools.toolbox import LocalTools
from runner.workspace.run_workspaces import RunWorkspaces
from tests.store.examples import SPEC, submission


class Silence:
    def publish(self, run_id: str, text: str) -> None:
        """Nobody listens."""


@pytest.fixture
def ports(database: Database, tmp_path: Path) -> Iterator[Ports]:
    clock = DatabaseClock(database)
    (tmp_path / "home").mkdir(exist_ok=True)
    tools = LocalTools(
        tmp_path / "home",
        tmp_path / "locks",
        schema_problem=schema_problem,
        watchdog_seconds=300,  # nobody tells its host that the worker is alive
    )
    yield Ports(
        journal=StoredJournal(database, clock.now, lambda spec: {}),
        models=lambda spec: ScriptedModel(spec.script or {}),
        tools=tools,
        workspaces=RunWorkspaces(database, tmp_path / "home", tools),
        live=Silence(),
        clock=clock,
        jitter=lambda: 0.0,
        call_id=ids.call_id,
        stopping=threading.Event(),
    )
    tools.close()


def claimed(database: Database, spec: JobSpec, workspace_id: str = "ws_1") -> Lease:
    """A new run of ``spec``, held by this test."""
    jobs.submit(database, submission("one", spec=spec), time.time(), None, workspace_id)
    return claim(database)


def claim(database: Database) -> Lease:
    """The only run, which is due, held by this test."""
    (run_id,) = due_runs.due_to_notify(database, 9, time.time())
    run = due_runs.look_at(database, run_id, time.time())
    assert run is not None
    lease = due_runs.claim(database, run, "worker_a", time.time())
    assert lease is not None
    return lease


def row(database: Database, lease: Lease) -> Any:
    query = select(run_table).where(run_table.c.id == lease.run_id)
    return database.read(lambda connection: connection.execute(query).one())


def scripted(*replies: dict[str, Any]) -> JobSpec:
    return replace(SPEC, provider="scripted", script={"*": list(replies)})


def test_a_run_goes_from_prompt_to_end(database: Database, ports: Ports) -> None:
    lease = claimed(database, scripted({"text": "Done."}))
    assert run_attempt(lease, ports, Interrupt()) == Ended("succeeded", "end_turn")
    assert row(database, lease).state == "succeeded"


@pytest.mark.slow
def test_a_workspace_that_cannot_be_made_fails_the_run(
    database: Database, ports: Ports, tmp_path: Path
) -> None:
    spec = replace(scripted(), workspace=Workspace(str(tmp_path / "gone"), "copy"))
    lease = claimed(database, spec)
    outcome = run_attempt(lease, ports, Interrupt())
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", "workspace")
    assert str(tmp_path / "gone") in row(database, lease).detail


@pytest.mark.slow
def test_a_call_that_a_host_could_not_begin_is_begun_by_the_next_attempt(
    database: Database, ports: Ports, tmp_path: Path
) -> None:
    """Its outcome is known though it is stored as started: it did nothing."""
    (workspace := tmp_path / "workspace").mkdir()
    tools, _ = resolve_tools(["Bash"], Path("/"))
    calls = [{"name": "Bash", "input": {"command": f"echo {each} >> log"}} for each in "ab"]
    spec = replace(
        scripted({"tools": calls}, {"text": "Done."}),
        tools=tools,
        rules=(Rule("allow", "*"),),
        workspace=Workspace(str(workspace), "shared"),
        parallel_tools="all",
    )
    lease = claimed(database, spec)

    class NoMemory:
        """The tools of a host that can begin only one of the two calls."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ports.tools, name)

        def run(self, call: ToolCall, interrupt: Interrupt) -> ToolResult:
            if "echo a" in call.input["command"]:
                raise HostFaultError("no program can be started: Cannot allocate memory")
            return ports.tools.run(call, interrupt)

    with pytest.raises(HostFaultError) as caught:
        run_attempt(lease, replace(ports, tools=NoMemory()), Interrupt())
    assert caught.value.unbegun == (0,)
    fault = HostFault("id_a", "a", str(caught.value))
    give_back_for_host(database, lease, fault, caught.value.unbegun, time.time())
    assert (workspace / "log").read_text() == "b\n"
    assert run_attempt(claim(database), ports, Interrupt()) == Ended("succeeded", "end_turn")
    assert (workspace / "log").read_text() == "b\na\n"
    query = select(tool_calls.c.outcome).where(tool_calls.c.run_id == lease.run_id)
    assert [each.outcome for each in database.rows(query)] == ["succeeded", "succeeded"]


def test_a_host_that_lacks_what_the_model_needs_begins_no_call(
    database: Database, ports: Ports
) -> None:
    def models(spec: JobSpec) -> Any:
        raise HostLacks("the extra bedrock is not installed here")

    lease = claimed(database, scripted({"text": "Done."}))
    with pytest.raises(HostLacks):
        run_attempt(lease, replace(ports, models=models), Interrupt())
    assert database.rows(select(model_calls.c.number)) == []
    fault = HostFault("id_a", "a", "no extra")
    give_back_for_host(database, lease, fault, (), time.time())
    assert run_attempt(claim(database), ports, Interrupt()) == Ended("succeeded", "end_turn")


@pytest.mark.slow
@pytest.mark.parametrize("sent", [False, True])
def test_a_model_call_without_descriptors_is_a_fault_of_the_host(
    database: Database, ports: Ports, sent: bool
) -> None:
    """Unless something was sent: then it may be paid for, and is made again like any that broke."""
    lease = claimed(database, scripted({"text": "Done."}))
    model = ScriptedModel({"*": [{"text": "Done."}]})
    errors = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    class NoDescriptors:
        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def complete(self, *given: Any) -> Any:
            if errors:
                error = errors.pop()
                raise ModelCallError("connection", str(error), billed=sent) from error
            return model.complete(*given)

    failing = replace(ports, models=lambda spec: NoDescriptors())
    if not sent:
        with pytest.raises(HostFaultError, match="Too many open files"):
            run_attempt(lease, failing, Interrupt())
        give_back_for_host(
            database, lease, HostFault("id_a", "a", "no descriptors"), (), time.time()
        )
        lease = claim(database)
    assert run_attempt(lease, failing, Interrupt()) == Ended("succeeded", "end_turn")
    assert row(database, lease).turns == 1


def test_a_worker_that_may_not_act_makes_no_call(database: Database, ports: Ports) -> None:
    lease = claimed(database, scripted({"text": "Done."}))
    with pytest.raises(Interrupted):
        run_attempt(lease, ports, Interrupt(may_act=lambda: False))
    assert row(database, lease).turns == 0


def test_a_cancel_is_seen_in_a_back_off(
    database: Database, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("decide", "retries"):
        monkeypatch.setattr(f"runner.core.{module}.IN_HAND_SECONDS", 500.0)
    failing = {"error": {"kind": "overloaded_error", "status": 529, "retry_after": 400}}
    lease = claimed(database, scripted(failing))
    interrupt = Interrupt()
    ended: list[BaseException] = []

    def work() -> None:
        try:
            run_attempt(lease, ports, interrupt)
        except (Interrupted, LeaseLost) as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while row(database, lease).progress["model"]["failure"] is None:
        assert thread.is_alive()
    control.cancel(database, Target("run", lease.run_id), time.time())
    interrupt.set("dropped")
    thread.join(60)
    assert [type(error) for error in ended] == [Interrupted]


def test_a_run_yields_its_slot_after_a_turn_of_its_own(database: Database, ports: Ports) -> None:
    """Without harm: it goes on where it was, and makes a turn each time, so that it ends."""
    read = {"tools": [{"name": "Read", "input": {"file_path": "/nowhere"}}]}
    lease = claimed(database, scripted(read, read, {"text": "Done."}))
    asked = Interrupt(yields=lambda: True)
    for turns in (1, 2):
        outcome = run_attempt(lease, ports, asked)
        assert isinstance(outcome, Requeued)
        run = row(database, lease)
        assert (outcome.reason, run.state, run.reason) == ("yielded", "queued", "yielded")
        assert (run.turns, run.rank, run.lost_leases, run.bugs) == (turns, BEGUN, 0, 0)
        lease = claim(database)
    assert run_attempt(lease, ports, asked) == Ended("succeeded", "end_turn")
    ends = select(events.c.data).where(events.c.type == "attempt_ended").order_by(events.c.number)
    assert [event.data["why"] for event in database.rows(ends)][:2] == ["yielded", "yielded"]


@pytest.mark.parametrize(
    ("times", "outcome"),
    [
        (Times(not_before=Moment("", "UTC", 4e9)), Requeued(4e9, "not_before")),
        (Times(finish_by=Moment("", "UTC", 4e9)), Waiting("finish_by")),
    ],
)
def test_a_run_that_waits_for_its_jobs_times_needs_no_workspace(
    database: Database, ports: Ports, tmp_path: Path, times: Times, outcome: Outcome
) -> None:
    workspace = Workspace(str(tmp_path / "gone"), "copy", setup=("touch prepared",))
    spec = replace(scripted({"text": "Done."}), times=times, workspace=workspace)
    jobs.submit(database, submission("one", spec=spec), time.time(), None, "ws_1")
    # It was due before its job's window closed, or before its ``finish_by`` was moved.
    database.execute(update(run_table).values(due_at=1.0, reason=""))
    database.execute(update(job_table).values(finish_by=times.finish_by and 1.0))
    lease = claim(database)
    assert run_attempt(lease, ports, Interrupt()) == outcome
    assert row(database, lease).reason == outcome.reason


PERMISSION = "permission_error"


def refusing(kind: str, of_key: bool, status: int | None = 403) -> Callable[[JobSpec], Any]:
    """Models of an API that refuses calls, and whatever this host asks if it is ``of_key``."""

    def refuse(*given: Any) -> Any:
        raise ModelCallError(kind, "not with this key", status=status, billed=False)

    model = SimpleNamespace(
        complete=refuse,
        refuses_host=lambda: of_key,
        window=lambda model: None,
        count=lambda *_: None,
    )
    return lambda spec: model


@pytest.mark.parametrize(("kind", "of_key"), [("authentication_error", False), (PERMISSION, True)])
def test_a_refused_key_is_a_fault_of_the_host(
    database: Database, ports: Ports, kind: str, of_key: bool
) -> None:
    lease = claimed(database, scripted({"text": "Done."}))
    with pytest.raises(KeyRefused, match="not with this key"):
        run_attempt(lease, replace(ports, models=refusing(kind, of_key)), Interrupt())
    give_back_for_host(database, lease, HostFault("id_a", "a", "refused"), (), time.time())
    assert run_attempt(claim(database), ports, Interrupt()) == Ended("succeeded", "end_turn")


def test_a_run_that_a_host_cannot_call_the_api_for_is_left_to_another(
    database: Database, ports: Ports
) -> None:
    lease = claimed(database, replace(scripted({"text": "Done."}), retry=Patience(max_attempts=2)))
    models = refusing("connection", True, status=None)
    with pytest.raises(
        ApiUnreached, match=r"does not reach the API of scripted \(not with this key\)"
    ):
        run_attempt(lease, replace(ports, models=models), Interrupt())
    give_back_for_host(database, lease, HostFault("id_a", "a", "unreached"), (), time.time())
    assert run_attempt(claim(database), ports, Interrupt()) == Ended("succeeded", "end_turn")


def test_a_call_that_failed_though_the_api_answers_this_host_counts_for_the_run(
    database: Database, ports: Ports
) -> None:
    lease = claimed(database, replace(scripted({"text": "Done."}), retry=Patience(max_attempts=1)))
    models = refusing("connection", False, status=None)
    outcome = run_attempt(lease, replace(ports, models=models), Interrupt())
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", "connection")


@pytest.mark.parametrize("is_untried", [True, False])
def test_a_run_whose_workspace_cannot_be_made_is_left_to_a_host_that_has_not_tried(
    database: Database, ports: Ports, tmp_path: Path, is_untried: bool
) -> None:
    gone = Workspace(str(tmp_path / "gone"), "copy")
    lease = claimed(database, replace(scripted({"text": "Done."}), workspace=gone))
    ports = replace(ports, is_untried=lambda run_id: is_untried)
    if is_untried:
        with pytest.raises(Unprepared, match="gone"):
            run_attempt(lease, ports, Interrupt())
        return
    outcome = run_attempt(lease, ports, Interrupt())
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", "workspace")


def test_a_model_that_the_key_may_not_use_fails_the_run(database: Database, ports: Ports) -> None:
    lease = claimed(database, scripted({"text": "Done."}))
    models = refusing(PERMISSION, of_key=False)
    outcome = run_attempt(lease, replace(ports, models=models), Interrupt())
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", PERMISSION)
