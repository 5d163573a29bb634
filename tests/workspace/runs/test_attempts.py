"""Whole attempts at runs on branches of their own: real git, tools and database; the model is scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.commands import Reply, Target
from runner.core.conversation import ToolResult
from runner.core.network import Connection
from runner.core.run import Ended, Lease, Outcome, Requeued, Waiting
from runner.core.spec import JobSpec, ParallelTools
from runner.core.workspace import Verify, Workspace
from runner.engine.attempt import Ports, run_attempt
from runner.errors import HostFaultError, Interrupted, WorkspaceElsewhere, WorkspaceError
from runner.llm.scripted import ScriptedModel
from runner.permissions import Rule
from runner.ports import Command, Interrupt, Workspaces
from runner.store import ids
from runner.store.approvals import answer
from runner.store.database import Database, DatabaseClock
from runner.store.journal import StoredJournal
from runner.store.leases import HostFault, give_back_for_host
from runner.store.questions import waiting
from runner.store.retry import retry
from runner.store.tables import blocks, events, tool_calls
from runner.tools.registry import resolve_tools
from tests.store.examples import SPEC
from tests.workspace.repository.made import Made

from .conftest import Host, claim, claim_again, row, submit

TOOLS, _ = resolve_tools(["Bash", "Read", "Edit"], Path("/"))


class Silence:
    def publish(self, run_id: str, text: str) -> None:
        """Nobody listens."""


class Bench:
    """A run of a scripted job, on a branch of ``repository``."""

    def __init__(self, store: Database, host: Host, repository: Made, spec: JobSpec) -> None:
        self.store, self.host, self.repository = store, host, repository
        clock = DatabaseClock(store)
        self.stopping = threading.Event()
        self.ports = Ports(
            journal=StoredJournal(store, clock.now, lambda spec: {}),
            models=lambda spec: ScriptedModel(spec.script or {}),
            tools=host.tools,
            workspaces=host.workspaces,
            live=Silence(),
            clock=clock,
            jitter=lambda: 0.0,
            call_id=ids.call_id,
            stopping=self.stopping,
        )
        self.lease: Lease = claim(store, submit(store, spec, "one"))

    @property
    def path(self) -> Path:
        return self.host.path(self.lease)

    def work(self, interrupt: Interrupt | None = None) -> Outcome:
        return run_attempt(self.lease, self.ports, interrupt or Interrupt())

    def work_until(self, happened: Callable[[], bool], reason: Any) -> Outcome | None:
        """Cut the attempt when something has happened; its outcome, None when it was dropped."""
        interrupt = Interrupt()
        outcomes: list[Outcome | None] = []

        def work() -> None:
            try:
                outcomes.append(self.work(interrupt))
            except Interrupted:
                outcomes.append(None)

        thread = threading.Thread(target=work)
        thread.start()
        while not happened():
            assert thread.is_alive(), outcomes
        if reason == "shutdown":
            self.stopping.set()
        interrupt.set(reason)
        thread.join(60)
        (outcome,) = outcomes
        return outcome

    def work_again(self) -> Outcome:
        self.stopping.clear()
        self.lease = claim_again(self.store, self.lease)
        return self.work()

    def rows(self, table: Any) -> list[Any]:
        query = select(table).where(table.c.run_id == self.lease.run_id)
        order = [table.c[name] for name in ("message", "number", "position") if name in table.c]
        query = query.order_by(*order)
        return list(self.store.read(lambda connection: connection.execute(query).all()))

    def results(self) -> list[str]:
        """What the model was given of its calls."""
        return [row.content["content"] for row in self.rows(blocks) if row.type == "tool_result"]

    def committed(self, name: str) -> str:
        return self.repository.git("show", f"runner/Mend-it/one:{name}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row.data for row in self.rows(events) if row.type == kind]


Begin = Callable[..., Bench]


@pytest.fixture
def begin_bench(store: Database, host: Host, repository: Made) -> Begin:
    def begin(
        *replies: dict[str, Any],
        verify: Verify | None = None,
        parallel: ParallelTools = "safe",
        **workspace: Any,
    ) -> Bench:
        commit = repository.git("rev-parse", "HEAD")
        spec = replace(
            SPEC,
            name="Mend it",
            provider="scripted",
            tools=TOOLS,
            rules=(Rule("allow", "*"),),
            script={"*": list(replies)},
            workspace=Workspace(str(repository.path), "git", commit=commit, **workspace),
            verify=verify,
            parallel_tools=parallel,
        )
        return Bench(store, host, repository, spec)

    return begin


def bash(*commands: str) -> dict[str, Any]:
    return {"tools": [{"name": "Bash", "input": {"command": command}} for command in commands]}


def once(marker: Path, then: str) -> str:
    """A command that only the first time goes on for long, after ``then``."""
    return f"{then}; if mkdir {marker} 2>/dev/null; then sleep 600; fi"


@pytest.mark.slow
def test_what_the_agent_did_is_recorded_and_ends_in_a_commit(begin_bench: Begin) -> None:
    bench = begin_bench(bash("echo 2 > a.py"), bash("ls"), {"text": "Done."})
    assert bench.work() == Ended("succeeded", "end_turn")
    first, second = bench.rows(tool_calls)
    run = row(bench.store, bench.lease)
    assert first.tree_before == run.start_tree != first.tree_after
    assert (
        second.tree_before == second.tree_after == first.tree_after == run.progress["files"]["tree"]
    )
    assert bench.committed("a.py") == "2"
    (delivered,) = bench.events("delivered")
    assert delivered["commit"] == bench.repository.git("rev-parse", "runner/Mend-it/one")


@pytest.mark.slow
def test_a_call_that_was_cut_off_runs_again_on_the_files_as_they_were(
    begin_bench: Begin, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    bench = begin_bench(bash(once(marker, "echo more >> a.py")), {"text": "Done."})
    assert bench.work_until(marker.exists, "dropped") is None
    assert bench.path.joinpath("a.py").read_text() == "1\nmore\n"
    assert bench.work_again() == Ended("succeeded", "end_turn")
    assert bench.committed("a.py") == "1\nmore"
    assert bench.results() == ["(no output)"]
    restored = bench.events("tree_recorded")[1]
    assert restored["cause"] == "restored"
    assert restored["found"] != restored["tree"]


@pytest.mark.slow
def test_writing_calls_side_by_side_are_done_together_or_not_at_all(
    begin_bench: Begin, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    calls = bash("echo one >> a.py", once(marker, "echo two >> b.py"))
    bench = begin_bench(calls, {"text": "Done."}, parallel="all")

    def is_half_done() -> bool:
        return marker.exists() and bench.path.joinpath("a.py").read_text() != "1\n"

    assert bench.work_until(is_half_done, "dropped") is None
    assert bench.results() == []
    assert bench.work_again() == Ended("succeeded", "end_turn")
    assert (bench.committed("a.py"), bench.committed("b.py")) == ("1\none", "2\ntwo")
    first, second = bench.rows(tool_calls)
    assert (first.tree_before, first.tree_after) == (second.tree_before, second.tree_after)
    assert first.ended_at == second.ended_at


@pytest.mark.slow
def test_a_call_whose_effects_leave_the_workspace_is_not_run_again(
    begin_bench: Begin, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    external = (Rule("ask", "Bash(touch *)"),)
    command = once(marker, f"touch {tmp_path}/sent; echo more >> a.py")
    bench = begin_bench(bash(command), {"text": "Done."}, external=external)
    assert bench.work_until(marker.exists, "dropped") is None
    assert bench.work_again() == Ended("succeeded", "end_turn")
    (told,) = bench.results()
    assert "unknown" in told
    (call,) = bench.rows(tool_calls)
    assert (call.outcome, call.started_attempt) == ("unknown", 1)
    assert bench.committed("a.py") == "1\nmore", "what it did stays"


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["safe", "all"])
def test_a_call_that_a_shutdown_cut_has_one_clean_result(
    begin_bench: Begin, tmp_path: Path, parallel: ParallelTools
) -> None:
    marker = tmp_path / "marker"
    calls = bash("echo one >> b.py", once(marker, "echo more >> a.py"))
    bench = begin_bench(calls, {"text": "Done."}, parallel=parallel)

    def is_half_done() -> bool:
        return marker.exists() and bench.path.joinpath("b.py").read_text() != "2\n"

    outcome = bench.work_until(is_half_done, "shutdown")
    assert isinstance(outcome, Requeued)
    cut = bench.rows(tool_calls)[1]
    assert (cut.started_attempt, cut.outcome, cut.tree_after) == (1, None, None)
    bench.stopping.clear()
    bench.lease = claim(bench.store, bench.lease.run_id)
    assert bench.work() == Ended("succeeded", "end_turn")
    assert bench.results() == ["(no output)", "(no output)"]
    assert (bench.committed("a.py"), bench.committed("b.py")) == ("1\nmore", "2\none")
    created, restored = bench.events("tree_recorded")
    assert (created["cause"], restored["cause"]) == ("created", "restored")


@pytest.mark.slow
def test_a_call_beside_a_repository_of_its_own_is_not_done_again(
    begin_bench: Begin, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    make = bash("git init -q vendor && echo 1 > vendor/log")
    bench = begin_bench(
        make, bash(once(marker, "echo 2 >> vendor/log; echo 2 > a.py")), {"text": "Done."}
    )
    assert bench.work_until(marker.exists, "dropped") is None
    assert bench.work_again() == Ended("succeeded", "end_turn")
    told = bench.results()[1]
    assert "unknown" in told
    assert "vendor" in told
    assert "as they were" not in told
    assert bench.path.joinpath("vendor/log").read_text() == "1\n2\n"
    assert bench.committed("a.py") == "2", "nothing of it was undone"
    assert [data["cause"] for data in bench.events("tree_recorded")] == ["created", "changed"]


@pytest.mark.slow
def test_a_person_who_is_asked_about_such_a_call_is_not_told_of_files_put_back(
    begin_bench: Begin, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    make = bash("git init -q vendor && echo 1 > vendor/log")
    cut = bash(once(marker, "rm -rf vendor; echo 2 > a.py"))
    bench = begin_bench(make, cut, {"text": "Done."}, on_unknown="ask")
    assert bench.work_until(marker.exists, "dropped") is None
    assert bench.work_again() == Waiting("approval")
    assert bench.path.joinpath("a.py").read_text() == "2\n"
    assert "vendor" in bench.rows(tool_calls)[1].decision_reason
    answer(
        bench.store, [one.id for one in waiting(bench.store)], Reply("denied", "ada"), time.time()
    )
    bench.lease = claim(bench.store, bench.lease.run_id)
    assert bench.work() == Ended("succeeded", "end_turn")
    assert "as they were" not in bench.results()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "external"),
    [("true", (Rule("ask", "Bash(echo *)"),)), ("git init -q vendor && touch vendor/log", ())],
)
def test_a_call_that_cannot_be_undone_has_the_result_of_the_shutdown_that_cut_it(
    begin_bench: Begin, tmp_path: Path, made: str, external: tuple[Rule, ...]
) -> None:
    marker = tmp_path / "marker"
    cut = bash(once(marker, "echo more >> a.py"))
    bench = begin_bench(bash(made), cut, {"text": "Done."}, external=external)
    outcome = bench.work_until(marker.exists, "shutdown")
    assert isinstance(outcome, Requeued)
    call = bench.rows(tool_calls)[1]
    assert call.outcome == "interrupted"
    assert call.tree_after not in (None, call.tree_before)
    bench.stopping.clear()
    bench.lease = claim(bench.store, bench.lease.run_id)
    assert bench.work() == Ended("succeeded", "end_turn")
    assert bench.results()[1] == "Interrupted by shutdown of the worker."
    assert bench.committed("a.py") == "1\nmore"
    assert [data["cause"] for data in bench.events("tree_recorded")] == ["created"]


@pytest.mark.slow
def test_a_success_is_what_the_verification_says(begin_bench: Begin, tmp_path: Path) -> None:
    second = tmp_path / "second"
    verify = Verify(("echo built > left; grep -q 2 a.py", f"echo ran >> {second}"))
    bench = begin_bench(
        {"text": "All done!"}, bash("echo 2 > a.py"), {"text": "Now it is."}, verify=verify
    )
    assert bench.work() == Ended("succeeded", "end_turn")
    ended = bench.events("verified")
    assert [data["outcome"] for data in ended] == ["failed", "succeeded"]
    assert ended[0]["command"] == verify.commands[0]
    assert second.read_text() == "ran\n", "the first that fails is the last"
    said = [row.content for row in bench.rows(blocks) if row.role == "user"]
    assert "Exit code 1" in said[1]["text"]
    names = bench.repository.git("ls-tree", "--name-only", "runner/Mend-it/one").split()
    assert "left" not in names, "a verification only looks"
    assert row(bench.store, bench.lease).progress["worked"] > 0


@pytest.mark.slow
def test_a_verification_that_was_cut_off_is_run_again_on_what_was_recorded(
    begin_bench: Begin, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    command = f"{once(marker, 'echo half >> a.py')}; test $(wc -l < a.py) = 2"
    bench = begin_bench({"text": "Done."}, verify=Verify((command,), "fail"))
    assert bench.work_until(marker.exists, "dropped") is None
    assert bench.work_again() == Ended("succeeded", "end_turn")
    assert bench.committed("a.py") == "1"


def test_connections_of_all_commands_of_a_verification_are_told(
    begin_bench: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = begin_bench({"text": "Done."}, verify=Verify(("true", "true"), "fail"))
    run, about = bench.host.tools.command, []

    def connecting(command: Command, interrupt: Interrupt) -> ToolResult:
        about.append(command.about)
        made = Connection(f"{command.name}.test", 443, float(len(about)))
        return replace(run(command, interrupt), connections=(made,))

    monkeypatch.setattr(bench.host.tools, "command", connecting)
    bench.work()
    told = bench.events("connection")
    assert [data["host"] for data in told] == ["verify_1_1.test", "verify_1_2.test"]
    assert about == [{"turn": data["turn"], "verification": 1} for data in told]


@pytest.mark.slow
def test_a_verification_that_was_killed_from_outside_is_run_again_once(
    begin_bench: Begin, tmp_path: Path
) -> None:
    killed = f"echo half >> a.py; mkdir {tmp_path / 'once'} && kill -9 $PPID && sleep 600"
    command = f"{killed}; test $(wc -l < a.py) = 2"
    bench = begin_bench({"text": "Done."}, verify=Verify((command,), "fail"))
    assert bench.work() == Ended("succeeded", "end_turn")
    assert [data["outcome"] for data in bench.events("verified")] == ["succeeded"]


@pytest.mark.slow
def test_a_workspace_that_is_of_no_use_any_more_fails_the_run(
    begin_bench: Begin, tmp_path: Path
) -> None:
    bench = begin_bench({"text": "Done."})

    class Broken:
        """Workspaces that can be prepared and not delivered."""

        def __getattr__(self, name: str) -> Any:
            return getattr(bench.host.workspaces, name)

        def deliver(self, *arguments: Any) -> str:
            raise WorkspaceError("no room on the disk")

    broken: Workspaces = Broken()
    bench.ports = replace(bench.ports, workspaces=broken)
    assert bench.work() == Ended("failed", "workspace", "no room on the disk")


def record_nothing_once(bench: Bench, error: Exception) -> None:
    """The next snapshot after a call fails."""
    real, errors = bench.host.workspaces, [error]

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def record(self, *arguments: Any) -> str | None:
            if errors:
                raise errors.pop()
            return real.record(*arguments)

    failing: Workspaces = Failing()
    bench.ports = replace(bench.ports, workspaces=failing)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["safe", "all"])
def test_calls_whose_files_could_not_be_recorded_run_again_on_the_files_as_they_were(
    begin_bench: Begin, parallel: ParallelTools
) -> None:
    """After the run failed for it, and was retried."""
    calls = bash("echo more >> a.py", "echo more >> b.py")
    bench = begin_bench(calls, {"text": "Done."}, parallel=parallel)
    record_nothing_once(bench, WorkspaceError("the index is damaged"))
    assert bench.work() == Ended("failed", "workspace", "the index is damaged")
    assert bench.path.joinpath("a.py").read_text() == "1\nmore\n"
    retry(bench.store, Target("run", bench.lease.run_id), time.time())
    bench.lease = claim(bench.store, bench.lease.run_id)
    assert bench.work() == Ended("succeeded", "end_turn")
    assert bench.committed("a.py") == "1\nmore"
    left_out = "Interrupted: the run ended before this call had a result."
    second = {"safe": left_out, "all": "(no output)"}[parallel]
    assert bench.results() == ["(no output)", second]


@pytest.mark.slow
def test_a_call_whose_files_a_host_could_not_record_runs_again_on_the_files_as_they_were(
    begin_bench: Begin,
) -> None:
    bench = begin_bench(bash("echo more >> a.py"), {"text": "Done."})
    record_nothing_once(bench, HostFaultError("no space left"))
    with pytest.raises(HostFaultError, match="no space left"):
        bench.work()
    fault = HostFault("id_a", "a", "no space left")
    give_back_for_host(bench.store, bench.lease, fault, (), time.time())
    assert row(bench.store, bench.lease).state == "queued"
    bench.lease = claim(bench.store, bench.lease.run_id)
    assert bench.work() == Ended("succeeded", "end_turn")
    assert bench.committed("a.py") == "1\nmore"
    assert bench.results() == ["(no output)"]
    assert row(bench.store, bench.lease).host_faults is None


def test_a_run_whose_workspace_is_elsewhere_waits_for_that_host(begin_bench: Begin) -> None:
    bench = begin_bench({"text": "Done."})

    class Elsewhere:
        """Workspaces of a host that has not what was recorded."""

        def __getattr__(self, name: str) -> Any:
            return getattr(bench.host.workspaces, name)

        def prepare(self, *arguments: Any, **options: Any) -> Any:
            raise WorkspaceElsewhere("the snapshots are on another host")

    elsewhere: Workspaces = Elsewhere()
    bench.ports = replace(bench.ports, workspaces=elsewhere)
    assert bench.work() == Waiting("workspace")
    stored = row(bench.store, bench.lease)
    assert (stored.state, stored.detail) == ("waiting", "the snapshots are on another host")


def test_an_interrupt_past_shutdown_is_cut_only_when_the_run_is_dropped() -> None:
    interrupt = Interrupt()
    with interrupt.past_shutdown() as kept:
        interrupt.set("shutdown")
        kept.check()
        interrupt.set("dropped")
        with pytest.raises(Interrupted):
            kept.check()
    with interrupt.past_shutdown() as late, pytest.raises(Interrupted):
        late.check()
