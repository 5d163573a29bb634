"""MCP servers over stdio: calls, cuts, deaths, what shares a server, and what is left of it."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.conversation import Tool, ToolResult
from runner.core.mcp import McpServer
from runner.core.run import Ended, Lease
from runner.core.sandbox import Sandbox
from runner.errors import HostFaultError, HostLacks, Interrupted
from runner.permissions import Decision, digest_of
from runner.permissions.decisions import Authorization
from runner.ports import Claimed, Interrupt, ToolCall
from runner.tools.host import Ended as Finished
from runner.tools.mcp import MISSING, list_tools
from runner.tools.media import Opener
from runner.tools.sandbox import Sandboxes

from .conftest import PATIENCE, Workbench, running, wait_until

SERVER = Path(__file__).parents[1] / "mcp_server.py"
OBJECT = {"type": "object"}
CONTAINMENT = Sandboxes(Path("/nowhere"), os.environ).probe().kind

pytestmark = pytest.mark.usefixtures("patient_sessions")


class Ours:
    """Calls of tools of our own server."""

    def __init__(self, bench: Workbench, **server: Any) -> None:
        self.bench = bench
        self.sandbox: Sandbox | None = None
        self.notes = bench.workspace / "notes"
        given = {"command": sys.executable, "args": (str(SERVER), str(self.notes))}
        given |= {"folder": str(bench.workspace), "start_timeout": PATIENCE}
        self.server = McpServer("ours", **{**given, **server})

    def request(
        self, tool: str, seconds: float = PATIENCE, run: str = "run_1", **given: Any
    ) -> ToolCall:
        read_only = self.server.trust_hints
        described = Tool(
            self.server.tool_name(tool), tool, OBJECT, read_only, source=self.server.source(tool)
        )
        authorization = Authorization(Decision("allow"), None, digest_of(given), self.bench.policy)
        about = (described, given, authorization, self.bench.surroundings, seconds, self.sandbox)
        return ToolCall("call_1", run, *about, server=self.server)

    def call(
        self, tool: str, seconds: float = PATIENCE, run: str = "run_1", **given: Any
    ) -> ToolResult:
        return self.bench.tools.run(self.request(tool, seconds, run, **given), Interrupt())

    def where(self, run: str = "run_1") -> dict[str, Any]:
        """The folder, the process and the variables of the server."""
        about: dict[str, Any] = json.loads(self.call("where", run=run).content)
        return about

    def pids(self, count: int) -> list[int]:
        wait_until(lambda: self.notes.read_text().count("pid ") >= count, f"{count} servers")
        lines = self.notes.read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("pid ")]


@pytest.fixture
def ours(patient: Workbench) -> Ours:
    return Ours(patient)


def test_results_of_every_kind_become_text(ours: Ours) -> None:
    assert ours.call("say", text="häl\x1b[31mlo").content == "häl\\x1b[31mlo"
    given = ours.call("kinds")
    assert [(media.media_type, media.width) for media in given.media] == [("image/png", 1)]
    kinds = given.content.splitlines()
    assert kinds[0] == "one"
    assert kinds[1] == "[image: image 1 of kinds, 1x1]"
    assert kinds[2:] == ["[resource file:///a]", "inside", "[resource b: file:///b]"]
    assert json.loads(ours.call("structured").content) == {"a": 1}
    wrong = ours.call("wrong")
    assert (wrong.outcome, wrong.content) == ("failed", "no luck")
    odd = ours.call("odd")
    assert (odd.outcome, odd.content.count("\n")) == ("failed", 0)
    assert odd.content.endswith(
        " of its answer is wrong: Field required. The call may have taken effect."
    )
    assert ours.call("odd.name/x").content == "odd.name/x"
    assert len(ours.pids(1)) == 1


def test_a_call_whose_images_cannot_be_opened_has_a_result_and_is_not_made_again(
    ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*given: Any) -> Any:
        raise HostFaultError("no program can be started: Cannot allocate memory")

    monkeypatch.setattr(Opener, "image", no_memory)
    given = ours.call("kinds")
    assert (given.outcome, given.media) == ("succeeded", ())
    assert "[image not shown: no program can be started" in given.content


def test_tools_are_listed_again_for_each_run_of_a_server_that_says_so(patient: Workbench) -> None:
    for run_id in ("run_1", "run_2"):
        patient.tools.servers.claimed(Claimed(Lease(run_id, 1, "worker_1"), "job_1", "a"))

    def listed(run_id: str, *, again: bool = False) -> dict[str, str]:
        tools, _ = patient.tools.listed(run_id, again=again).get("ours", ((), {}))
        assert [*tools] == sorted(tools, key=lambda tool: tool.name)
        return {tool.name.removeprefix("mcp__ours__"): tool.description for tool in tools}

    ours = Ours(patient)
    assert ours.call("say", text="a").content == "a"
    assert listed("run_1") == {}
    before = listed("run_1", again=True)
    assert {"say", "wrong"} < before.keys()
    assert ours.call("change").content == "changed"
    now = listed("run_1")
    assert (before.keys() - now.keys(), now.keys() - before.keys()) == (
        {"wrong"},
        {"extra", "crooked"},
    )
    assert now["say"] == "Say a text. Loudly."
    assert listed("run_2") == now
    assert listed("run_3") == {}
    assert ours.call("die", text="b").outcome == "unknown"
    assert listed("run_1", again=True) == {}
    assert ours.call("say", text="c").content == "c"
    assert (listed("run_1"), listed("run_1", again=True)) == ({}, before)


def test_a_long_result_is_cut_as_any_tools_and_kept_whole(ours: Ours) -> None:
    long = "x" * 200_000
    result = ours.call("say", text=long)
    assert len(result.content) <= 50_000
    assert result.output is not None
    assert result.output.decode() == long


def test_variables_are_looked_up_here_and_not_shown(
    patient: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "hunter2hunter2")
    environ = {"TOKEN": "${SERVICE_TOKEN}", "MODE": "${MODE:-quiet}"}
    ours = Ours(patient, env=environ)
    seen = ours.where()["environ"]
    assert seen["TOKEN"] == "${SERVICE_TOKEN}"  # the value, as it is shown
    assert seen["MODE"] == "quiet"
    assert "ANTHROPIC_API_KEY" not in seen
    assert "RUNNER_DATABASE_URL" not in seen
    assert ours.call("say", text="${SERVICE_TOKEN}").content == "${SERVICE_TOKEN}"
    for text, why in {
        "${NOT_THERE}": "the variable NOT_THERE is not set",
        "${ANTHROPIC_API_KEY}": "${ANTHROPIC_API_KEY} is a setting that only",
    }.items():
        result = Ours(patient, env={"A": text}, scope="run").call("say", run=text, text="")
        assert result.outcome == "failed"
        assert why in result.content


def test_a_call_that_takes_too_long_is_cancelled_and_its_server_goes_on(ours: Ours) -> None:
    pid = ours.where()["pid"]
    slow = ours.call("slow", seconds=0.5, text="began")
    assert slow.outcome == "timed_out"
    wait_until(lambda: "cancelled" in ours.notes.read_text().split(), "the call to be cancelled")
    assert ours.where()["pid"] == pid


def test_a_call_that_is_cut_is_cancelled_and_its_server_goes_on(ours: Ours) -> None:
    pid = ours.where()["pid"]
    interrupt = Interrupt()

    def cut() -> None:
        wait_until(lambda: "began" in ours.notes.read_text().split(), "the call to begin")
        interrupt.set("dropped")

    thread = threading.Thread(target=cut)
    thread.start()
    with pytest.raises(Interrupted):
        ours.bench.tools.run(ours.request("slow", text="began"), interrupt)
    thread.join()
    wait_until(lambda: "cancelled" in ours.notes.read_text().split(), "the call to be cancelled")
    assert ours.where()["pid"] == pid


def test_a_call_whose_server_dies_is_unknown_and_the_next_one_has_a_new_server(ours: Ours) -> None:
    first = ours.where()["pid"]
    died = ours.call("die", text="once")
    assert died.outcome == "unknown"
    assert "exit code 3" in died.content
    assert "last words" in died.content
    assert ours.where()["pid"] != first
    assert ours.notes.read_text().split().count("once") == 1


@pytest.mark.slow
def test_a_server_that_reads_nothing_is_replaced(
    ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ours.call("deafen").content == "what?"
    for name in ("_ANSWER_PATIENCE", "_EXIT_PATIENCE"):
        monkeypatch.setattr(f"runner.tools.mcp_session.{name}", 2.0)
    lost = ours.call("say", seconds=0.5, text="x" * 5_000_000)
    assert lost.outcome == "unknown"
    assert "it does not read what it is sent" in lost.content
    assert ours.call("say", text="again").content == "again"
    assert len(running(ours.pids(2))) == 1


@pytest.mark.parametrize(("trusted", "outcome"), [(True, "succeeded"), (False, "unknown")])
def test_a_call_whose_server_dies_runs_again_only_if_it_is_trusted_to_read(
    patient: Workbench, trusted: bool, outcome: str
) -> None:
    ours = Ours(patient, trust_hints=trusted)
    assert ours.call("die_once").outcome == outcome
    assert ours.notes.read_text().split().count("died") == 1


def test_a_server_that_cannot_begin_is_told_with_its_stderr_and_tried_after_growing_pauses(
    patient: Workbench,
) -> None:
    arguments = (str(SERVER), str(patient.workspace / "notes"), "--fails")
    ours = Ours(patient, args=arguments)
    for _ in range(3):
        result = ours.call("say", text="x")
        assert result.outcome == "failed"
        assert "cannot begin: no database" in result.content
    said = "times in a row; it is started again in"
    wait_until(lambda: said in ours.call("say", seconds=0.1, text="x").content, said)


def test_runs_share_the_server_of_a_job_and_not_that_of_a_run(patient: Workbench) -> None:
    for run_id in ("run_1", "run_2"):
        patient.tools.servers.claimed(Claimed(Lease(run_id, 1, "worker_1"), "job_1", "a"))
    shared, own = Ours(patient), Ours(patient, scope="run")
    own.server = replace(own.server, name="own")
    assert shared.where("run_1")["pid"] == shared.where("run_2")["pid"]
    assert own.where("run_1")["pid"] != own.where("run_2")["pid"]
    assert own.where("run_1")["cwd"] == str(patient.workspace)


def test_a_runs_server_ends_with_its_attempt_and_a_jobs_with_its_last_run_here(
    patient: Workbench,
) -> None:
    servers = patient.tools.servers
    servers.idle_seconds = 0.1
    shared, own = Ours(patient), Ours(patient, scope="run")
    own.server = replace(own.server, name="own")
    leases = [Lease(f"run_{number}", 1, "worker_1") for number in (1, 2)]
    for lease in leases:
        servers.claimed(Claimed(lease, "job_1", "a"))
    of_job, of_run = shared.where("run_1")["pid"], own.where("run_1")["pid"]
    servers.released(leases[0], Ended("succeeded", "end_turn"))
    wait_until(lambda: not running([of_run]), "the run's server to end")
    assert running([of_job]) == [of_job]
    servers.released(leases[1], Ended("succeeded", "end_turn"))
    wait_until(lambda: not running([of_job]), "the job's server to end")


@pytest.mark.slow
def test_a_runs_next_attempt_begins_a_server_though_the_last_one_has_not_ended_yet(
    patient: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, own, starting = patient.tools.servers, Ours(patient, scope="run"), []
    first, second = (Lease("run_1", attempt, "worker_1") for attempt in (1, 2))
    servers.claimed(Claimed(first, "job_1", "a"))
    before = own.where()["pid"]
    with monkeypatch.context() as late:
        late.setattr(threading.Thread, "start", lambda thread: starting.append(thread))
        servers.released(first, Ended("succeeded", "end_turn"))
    servers.claimed(Claimed(second, "job_1", "a"))
    now = own.where()["pid"]
    assert now != before
    for thread in starting:
        thread.start()
    wait_until(lambda: not running([before]), "the first server to end")
    assert own.where()["pid"] == now


def test_what_a_server_starts_ends_with_it(patient: Workbench) -> None:
    ours = Ours(patient)
    child = int(ours.call("spawn").content)
    assert running([child]) == [child]
    patient.tools.close()
    assert running([child, *ours.pids(1)]) == []


def test_servers_are_listed_on_all_pages_and_hints_count_only_when_trusted(
    patient: Workbench,
) -> None:
    ours = Ours(patient, trust_hints=True).server
    plain = replace(ours, name="plain", trust_hints=False)
    listed = list_tools([ours, plain])
    tools = listed["ours"]
    assert isinstance(tools, tuple)
    names = [tool.name for tool in tools]
    assert names == sorted(names)
    assert len(names) == 16
    reads = {tool.name for tool in tools if tool.read_only}
    assert "mcp__ours__say" in reads
    assert "mcp__ours__note" not in reads
    others = listed["plain"]
    assert isinstance(others, tuple)
    assert not any(tool.read_only for tool in others)


@pytest.mark.slow
def test_what_a_server_says_of_its_tools_does_not_show_values_of_variables(
    patient: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", 'hunter2"hunter2')
    server = Ours(patient, env={"ABOUT": "${SERVICE_TOKEN}"}).server
    tools = list_tools([server])["ours"]
    assert isinstance(tools, tuple)
    assert all("${SERVICE_TOKEN}" in tool.description for tool in tools)
    assert {tool.input_schema["title"] for tool in tools} == {"${SERVICE_TOKEN}"}


def test_a_call_waits_for_a_server_that_another_run_starts_no_longer_than_its_timeout(
    patient: Workbench,
) -> None:
    arguments = (str(SERVER), str(patient.workspace / "notes"), "--mute")
    ours = Ours(patient, args=arguments)
    interrupt, cut = Interrupt(), threading.Event()

    def start() -> None:
        with suppress(Interrupted):
            ours.bench.tools.run(ours.request("say", text="x"), interrupt)
        cut.set()

    # Both runs are of one job: that of the first starts the server.
    for run_id in ("run_1", "run_2"):
        patient.tools.servers.claimed(Claimed(Lease(run_id, 1, "worker_1"), "job_1", "a"))
    ours.notes.touch()
    thread = threading.Thread(target=start)
    thread.start()
    ours.pids(1)
    waits = ours.call("say", seconds=0.2, run="run_2", text="x")
    assert not cut.is_set()
    interrupt.set("dropped")
    thread.join()
    starts = ours.call("say", seconds=0.2, text="x")
    for result in (waits, starts):
        assert result.outcome == "failed"
        assert "the MCP server ours was not ready in 0.2 s" in result.content


def test_a_session_that_is_closed_at_once_ends() -> None:
    from runner.tools.mcp_session import Session

    for _ in range(5):
        session = Session(McpServer("absent", url="http://127.0.0.1:9/mcp"))
        session.close()
        assert not session.is_alive


def test_a_session_that_is_closed_before_it_is_connected_keeps_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from runner.tools import mcp_session

    near: list[socket.socket] = []
    connecting = threading.Event()

    async def hang(given: socket.socket) -> None:
        near.append(given)
        connecting.set()
        await mcp_session.anyio.sleep_forever()

    def begin(channel: int, _interrupt: Interrupt) -> Finished:
        return Finished("exited")

    monkeypatch.setattr(mcp_session.SocketStream, "from_socket", hang)
    session = mcp_session.Session(McpServer("ours", sys.executable), begin)
    assert connecting.wait(PATIENCE)
    session.close()
    assert near[0].fileno() == -1


def test_a_call_of_a_session_that_has_ended_is_never_taken(tmp_path: Path) -> None:
    from runner.tools.mcp_session import Session, SessionForgotten

    def begin(channel: int, _interrupt: Interrupt) -> Finished:
        command = [sys.executable, str(SERVER), str(tmp_path / "notes"), "--quiet"]
        with subprocess.Popen(command, stdin=channel, stdout=channel) as server:
            return Finished("exited", server.wait())

    session = Session(McpServer("ours", sys.executable), begin)
    session.wait_open(Interrupt())
    session.close()
    with pytest.raises(SessionForgotten, match="it ended with exit code 0"):
        session.call("note", {"text": "a"}, PATIENCE, Interrupt())


def test_a_server_that_cannot_be_listed_says_why(patient: Workbench) -> None:
    good = Ours(patient).server
    fails = replace(good, name="fails", args=(*good.args, "--fails"))
    toolless = replace(good, name="toolless", args=(*good.args, "--toolless"))
    mute = replace(good, name="mute", args=(*good.args, "--mute"), start_timeout=0.5)
    missing = replace(good, name="missing", command="no-such-server")
    unset = replace(good, name="unset", args=("${NOT_THERE}",))
    listed = list_tools([fails, toolless, mute, missing, unset])
    assert listed["toolless"] == "it answered with an error: no tools/list"
    assert listed["fails"] == "it ended with exit code 1\ncannot begin: no database"
    mute_said, *_ = str(listed["mute"]).splitlines()  # it may add that it was ended as it began
    assert mute_said == "it has not answered in 0.5 s"
    assert listed["missing"] == "its command no-such-server is not on this host"
    assert listed["unset"] == "the variable NOT_THERE is not set in this environment"
    wait_until(lambda: not running(process_ids_of(good)), "the listed servers to end")


def process_ids_of(server: McpServer) -> list[int]:
    lines = Path(server.args[1]).read_text().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("pid ")]


@pytest.mark.skipif(CONTAINMENT == "none", reason="nothing here contains calls")
def test_a_runs_server_works_in_the_workspace_and_sandbox_of_the_run(
    patient: Workbench, tmp_path: Path
) -> None:
    ours = Ours(patient, scope="run", env={"MODE": "quiet"})
    ours.sandbox = Sandbox()
    where = ours.where()
    assert (where["cwd"], where["environ"]["MODE"]) == (str(patient.workspace), "quiet")
    inside, outside = patient.workspace / "made", tmp_path / "beside"
    assert ours.call("write", path=str(inside)).outcome == "succeeded"
    kept_in = ours.call("write", path=str(outside))  # bubblewrap writes it to another /tmp
    assert kept_in.containment is not None
    assert kept_in.containment.startswith(CONTAINMENT)
    assert inside.exists()
    assert not outside.exists()


def test_a_jobs_server_is_outside_the_sandbox_and_its_calls_say_so(patient: Workbench) -> None:
    ours = Ours(patient)
    ours.sandbox = Sandbox()
    assert ours.call("say", text="x").containment == "none"


@pytest.mark.slow
def test_published_servers_list_and_run_their_tools(patient: Workbench) -> None:
    command = ["init", "-q", "-b", "main", str(patient.workspace)]
    subprocess.run(["git", *command], check=True)
    clock = Ours(patient, args=("-m", "mcp_server_time"))
    history = Ours(patient, args=("-m", "mcp_server_git"))
    clock.server = replace(clock.server, name="time")
    history.server = replace(history.server, name="git", trust_hints=True)
    listed = list_tools([clock.server, history.server])
    names = {name: {tool.name for tool in tools} for name, tools in listed.items()}  # type: ignore[union-attr]
    assert names["time"] == {"mcp__time__convert_time", "mcp__time__get_current_time"}
    assert {"mcp__git__git_status", "mcp__git__git_commit"} <= names["git"]
    zones = {"source_timezone": "Europe/Berlin", "target_timezone": "Asia/Tokyo"}
    told = json.loads(clock.call("convert_time", time="12:00", **zones).content)
    assert told["target"]["timezone"] == "Asia/Tokyo"
    status = history.call("git_status", repo_path=str(patient.workspace))
    assert "On branch main" in status.content
    wrong = history.call("git_status", repo_path="/nowhere")
    assert wrong.outcome == "failed"


def test_without_the_extra_a_job_is_refused_and_its_calls_are_left_to_other_hosts(
    ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list_tools([ours.server]) == {"ours": MISSING}
    with pytest.raises(HostLacks, match="the extra mcp is not installed"):
        ours.call("say", text="x")
