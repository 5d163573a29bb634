"""Landlock holds what it can where bubblewrap cannot be used, and each call says what it cannot."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.conversation import ToolResult
from runner.core.hooks import Hook
from runner.core.sandbox import Sandbox
from runner.errors import HostFaultError
from runner.ports import Command, HookCall, Interrupt
from runner.settings import Secrets
from runner.tools.registry import resolve_tools
from runner.tools.sandbox import Sandboxes
from runner.tools.toolbox import LocalTools
from runner.workspace.folders import COPIES
from tests.tools.proxies import echo_server
from tests.tools.test_process_life import (
    ANCESTORS,
    ATTACKS,
    guard_of_this_process,
    host_of_this_process,
    left_in,
)

from .conftest import Workbench, wait_until

WITHOUT_BWRAP = {"PATH": "/nowhere"}
HERE = Sandboxes(Path("/nowhere"), WITHOUT_BWRAP).probe()
pytestmark = pytest.mark.skipif(HERE.kind != "landlock", reason=HERE.missing)

AUTO = Sandbox()
SECRET = "nobody may read this"
BEFORE = "as it was at first"
CONNECT = """python3 -c '
import socket
try:
    made = socket.socket({family}, {kind})
    made.connect({where})
    print("connected")
except OSError as error:
    print(error.strerror)'"""


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder outside /tmp. Calls cannot see anything in /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def bench(top: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workbench]:
    """A host without bubblewrap, and a run in a workspace that is recorded, in RUNNER_HOME."""
    user, home, elsewhere = top / "user", top / "home", top / "elsewhere"
    workspace, outputs = home / COPIES / "run_1", home / "outputs" / "run_1"
    for folder in (user / ".ssh", workspace / "src", outputs, elsewhere / "private"):
        folder.mkdir(parents=True)
    for path in (user / ".ssh/key", home / "runner.db", elsewhere / "private/k"):
        path.write_text(SECRET)
    for path in (user / "notes", elsewhere / "f", workspace / ".env", outputs / "call_0.txt"):
        path.write_text(BEFORE)
    monkeypatch.setenv("HOME", str(user))
    tools = LocalTools(home, home / "locks", Secrets(), watchdog_seconds=300)
    tools.sandboxes = Sandboxes(home, tools.environment | WITHOUT_BWRAP)
    yield Workbench(workspace, home, outputs, home / "locks", tools, {})
    tools.close()


def bash(bench: Workbench, text: str, sandbox: Sandbox = AUTO, seconds: float = 60) -> ToolResult:
    command = Command("c", "run_1", text, bench.surroundings, seconds, sandbox, bench.policy)
    return bench.tools.command(command, Interrupt())


@pytest.mark.slow
def test_a_command_writes_the_workspace_and_its_temporary_folder(bench: Workbench) -> None:
    command = "mkdir a && echo x > a/f && mv a/f src/ && echo y > $TMPDIR/t && mv src/f $TMPDIR/ &&"
    command += "cat $TMPDIR/t $TMPDIR/f > both && rm -r a && echo > /dev/null && ls -A $TMPDIR"
    result = bash(bench, command)
    assert (result.content, result.containment) == ("f\nt\n", "landlock")
    assert (bench.workspace / "both").read_text() == "y\nx\n"
    assert bash(bench, "cat $TMPDIR/t").content == "y\n"  # as long as the run


WRITES = [
    "echo x > {f}",
    "python3 -c 'import os; os.truncate(\"{f}\", 0)'",
    "rm -f {f}",
    "mv {f} .",
    "mv .env {f}",
    "ln {f} mine && echo x > mine",
    "ln -s {f} mine && echo x > mine",
    "echo x > /proc/self/root{f}",
    "cd / && echo x > $OLDPWD/../../../elsewhere/f",
    "mkdir -p $(dirname {f})/made/deep",
    "cp .env $(dirname {f})/made",
    "setsid sh -c 'echo x > {f}'",
]


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITES)
def test_it_writes_nothing_else_by_any_spelling(bench: Workbench, top: Path, command: str) -> None:
    for place in ("elsewhere/f", "user/notes", "home/outputs/run_1/call_0.txt"):
        path = top / place
        bash(bench, command.format(f=path))
        assert path.read_text() == BEFORE
        assert not (path.parent / "made").exists()


@pytest.mark.slow
def test_it_writes_neither_shared_memory_nor_tmp_nor_devices(bench: Workbench) -> None:
    for place in ("/dev/shm", "/tmp", "/var/tmp", "/dev"):
        name = f"{place}/runner-test-{os.getpid()}"
        assert "denied" in bash(bench, f"echo x > {name}; mknod {name} c 1 3").content
        assert not Path(name).exists()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no shared memory on this system")
def test_a_call_sees_its_own_files_in_shared_memory_and_no_others(bench: Workbench) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        outputs = Path(folder, "outputs")
        outputs.mkdir()
        for path in (outputs / "call_0.txt", Path(folder, "other")):
            path.write_text(BEFORE)
        seen = bash(
            replace(bench, outputs=outputs), f"cat {outputs}/call_0.txt; cat {folder}/other"
        )
        assert seen.content.startswith(BEFORE)
        assert seen.content.count(BEFORE) == 1


@pytest.mark.slow
def test_no_command_reads_a_credentials_file_that_the_environment_names(
    bench: Workbench, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = top / "elsewhere/f"
    assert bash(bench, f"cat {place}").content == BEFORE
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(place))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    assert BEFORE not in bash(bench, f"cat {place}").content
    assert bash(bench, "echo x > /dev/null && echo fine").content == "fine\n"


READS = [
    "cat {f}",
    "cp {f} mine; cat mine",
    "ln {f} mine; cat mine",
    "ln -s {f} mine; cat mine",
    "cat /proc/self/root{f}",
    "cat /proc/$PPID/root{f}",
    "cd $(dirname {f}) && cat *",
    "chmod 777 {f}; cat {f}",
    "mv {f} mine; cat mine",
    "tar cf - {f} | cat",
]


@pytest.mark.slow
@pytest.mark.parametrize("command", READS)
def test_what_is_hidden_outside_the_workspace_is_read_by_no_spelling(
    bench: Workbench, top: Path, command: str
) -> None:
    bench = bench.under(f"deny Read(/{top}/elsewhere/private/**)")
    for place in ("user/.ssh/key", "home/runner.db", "elsewhere/private/k"):
        assert SECRET not in bash(bench, command.format(f=top / place)).content
        assert (top / place).read_text() == SECRET


@pytest.mark.slow
def test_what_is_beside_it_and_the_run_s_own_files_are_read(bench: Workbench, top: Path) -> None:
    bench = bench.under(f"deny Read(/{top}/elsewhere/private/**)")
    command = f"cat .env {top}/user/notes {top}/elsewhere/f {bench.outputs}/*; ls / > all"
    result = bash(bench, command)
    assert (result.content, result.containment) == (BEFORE * 4, "landlock")


@pytest.mark.slow
def test_a_call_names_the_rules_that_are_not_held_in_the_workspace(bench: Workbench) -> None:
    bench = bench.under("deny Read(.env)", "deny Edit(*.lock)", "deny Read(absent)")
    unheld = "landlock, which cannot hold deny Read(.env) in the workspace"
    assert bash(bench, "cat .env").containment == unheld
    result = bash(bench, "echo x > a.lock")
    assert result.outcome == "denied"
    assert not (bench.workspace / "a.lock").exists()


@pytest.mark.slow
def test_a_workspace_that_may_not_be_edited_is_read_only_and_all_rules_in_it_are_held(
    bench: Workbench,
) -> None:
    bench = bench.under("deny Edit", "deny Read(.env)")
    result = bash(bench, "echo x > made; cat .env; ls; touch $TMPDIR/mine && echo wrote")
    assert result.content.count("Permission denied") == 2
    assert result.content.endswith("src\nwrote\n")
    assert (bench.workspace / ".env").read_text() == BEFORE
    assert result.containment == "landlock"


@pytest.mark.slow
def test_runners_home_in_a_writable_workspace_is_named(bench: Workbench, top: Path) -> None:
    bench = replace(bench, workspace=top)
    exposed = "landlock, which cannot hold what else is hidden in the workspace"
    assert bash(bench, "true").containment == exposed


@pytest.mark.slow
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_without_a_network_there_is_no_socket_to_leave_by(bench: Workbench, family: str) -> None:
    for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"):
        there = CONNECT.format(
            family=f"socket.{family}", kind=f"socket.{kind}", where='("localhost", 9)'
        )
        result = bash(bench, f"{there}; exit 1")
        assert result.content.startswith("Address family not supported by protocol\n")
        assert result.content.endswith("commands reach nothing on this host, localhost neither.")


@pytest.mark.slow
def test_an_abstract_socket_of_another_program_is_not_reached(bench: Workbench) -> None:
    name = f"runner-test-{os.getpid()}"
    there = CONNECT.format(family="socket.AF_UNIX", kind="socket.SOCK_STREAM", where=f'"\\0{name}"')
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        assert bash(bench, there).content == "Operation not permitted\n"
        assert bash(bench, there, Sandbox("off")).content == "connected\n"


@pytest.mark.slow
def test_a_network_that_is_on_is_reached_and_a_list_of_hosts_is_not_held(bench: Workbench) -> None:
    with echo_server() as port:
        for network, kind in (
            (None, "landlock"),
            (("example.org",), "landlock, which cannot hold the list of hosts"),
        ):
            where = f'("127.0.0.1", {port})'
            there = CONNECT.format(family="socket.AF_INET", kind="socket.SOCK_STREAM", where=where)
            result = bash(bench, there, Sandbox(network=network))
            assert (result.content, result.containment) == ("connected\n", kind)


# Without a sandbox the last leaves processes behind: nobody is left to kill them.
@pytest.mark.slow
@pytest.mark.parametrize("attack", [*ATTACKS, "kill -9 $G $H $K"])
def test_no_signal_reaches_what_watches_over_a_call(bench: Workbench, attack: str) -> None:
    bash(bench, "true")
    watching = [guard_of_this_process(), host_of_this_process()]
    command = f"{ANCESTORS} {attack}; setsid sleep 1000 & sleep 1000 & echo $K done"
    result = bash(bench, command)
    assert result.outcome == "succeeded"
    assert "ermitted" in result.content
    wait_until(lambda: left_in(bench.workspace) == [], "all is killed")
    assert all(each.is_running() for each in watching)
    assert bash(bench, "echo again").content == "again\n"


@pytest.mark.slow
def test_nothing_of_other_processes_is_read_but_that_they_are_there(bench: Workbench) -> None:
    result = bash(bench, f"cd /proc/{os.getpid()}; cat environ maps mem fd/0; cat cmdline")
    assert result.content.count("Permission denied") == 4
    assert Path(f"/proc/{os.getpid()}/cmdline").read_text().split("\0")[0] in result.content


@pytest.mark.slow
def test_it_has_no_capability_and_the_filter_of_system_calls(bench: Workbench) -> None:
    result = bash(bench, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; unshare -Ur true")
    words = result.content.split()
    assert words[:10:2] == ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"]
    assert set(words[1:6:2]) == {"0" * 16}
    assert set(words[7:10:2]) == {"0" * 16} or os.geteuid()
    assert words[10:14] == ["NoNewPrivs:", "1", "Seccomp:", "2"]
    assert "unshare failed: Operation not permitted" in result.content


@pytest.mark.slow
def test_git_works_in_a_recorded_workspace(bench: Workbench) -> None:
    own = bench.workspace.parent / ".run_1.git"
    bash(bench, f"git init -q --separate-git-dir {own} .", Sandbox("off"))
    command = "git add -A && git -c user.name=me -c user.email=me@example.org commit -qm one"
    assert bash(bench, f"{command} && git log --oneline | wc -l").content == "1\n"


@pytest.mark.slow
def test_tools_of_your_own_and_hooks_run_in_it(bench: Workbench, top: Path) -> None:
    (top / "mine.py").write_text(
        'def keep(path: str) -> str:\n    """Write a file."""\n    open(path, "w").close()\n'
    )
    ((tool,), _) = resolve_tools(["mine:keep"], top)
    beside = top / "beside"
    call = replace(bench.call(tool, path=str(beside)), sandbox=Sandbox())
    result = bench.tools.run(call, Interrupt())
    assert ("Permission denied" in result.content, result.containment) == (True, "landlock")
    hook = Hook("TurnEnd", command=f"touch {beside}")
    said = bench.tools.hook(HookCall("run_1", hook, {}, bench.surroundings, Sandbox()), Interrupt())
    assert (said.exit_code, said.containment) == (1, "landlock")
    assert not beside.exists()


def test_an_older_landlock_says_that_it_cannot_hold_signals(bench: Workbench) -> None:
    older = replace(HERE, abi=4)
    bench.tools.sandboxes.probe = lambda: older  # type: ignore[method-assign]
    result = bash(bench, "kill -0 $PPID && echo x > /var/tmp/runner-test")
    assert "Permission denied" in result.content
    assert result.containment == "landlock, which cannot hold signals"


def test_a_job_that_requires_a_sandbox_is_not_content_with_landlock(bench: Workbench) -> None:
    with pytest.raises(HostFaultError, match=r"requires a sandbox, .*: bwrap is not on the PATH"):
        bash(bench, "touch made", Sandbox("required"))
    assert not (bench.workspace / "made").exists()
