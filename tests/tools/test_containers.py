"""Calls in a container of the job's image: on a real engine, where one answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from runner.core.conversation import ToolResult
from runner.core.hooks import Hook
from runner.core.sandbox import Sandbox
from runner.errors import Interrupted, SandboxMissing
from runner.permissions.decisions import Policy
from runner.ports import Command, HookCall, Interrupt
from runner.tools import containers as module
from runner.tools.containers import Containers, Engine, options
from runner.tools.process_tree import children, descendants
from runner.tools.proxy import Proxy
from runner.tools.registry import resolve_tools
from runner.tools.sandbox_mounts import Blanks, Mount, Mounts, View
from tests.tools.proxies import LOOPBACK, echo_server

from . import conftest
from .conftest import Workbench, wait_until
from .engines import ENGINE, NO_ENGINE, engine, make_image

on_an_engine = pytest.mark.skipif(bool(NO_ENGINE), reason=NO_ENGINE)
FEW, PYTHON = f"runner-test-{os.getpid()}:few", f"runner-test-{os.getpid()}:python"
DOCKER, PODMAN = Engine("docker", "/bin/docker"), Engine("podman", "/bin/podman")


@pytest.fixture(scope="module")
def few() -> Iterator[str]:
    """An image of a few programs."""
    make_image(FEW, python=False)
    yield FEW
    engine("rmi", "--force", FEW)


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    make_image(PYTHON, python=True)
    yield PYTHON
    engine("rmi", "--force", PYTHON)


@pytest.fixture
def bench(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workbench]:
    """The bench, whose containers are removed."""
    monkeypatch.setattr(conftest, "PATIENCE", 150.0)  # an engine is slow on a busy machine
    yield bench
    bench.tools.close()
    for name in [] if NO_ENGINE else left(bench):
        engine("rm", "--force", name)


def left(bench: Workbench) -> list[str]:
    """The containers of a bench, running or not."""
    label = f"label={module._LABEL}={bench.lock_dir}"
    return engine("ps", "--all", "--filter", label, "--format", "{{.Names}}").split()


def bash(bench: Workbench, text: str, sandbox: Sandbox, seconds: float = 120) -> ToolResult:
    command = Command("c", "run_1", text, bench.surroundings, seconds, sandbox, bench.policy)
    return bench.tools.command(command, Interrupt())


# --- without an engine ------------------------------------------------------------------------------


def test_the_options_hold_what_a_sandbox_promises() -> None:
    words = " ".join(options(DOCKER, Sandbox()))
    for held in (
        "run --rm --pull never --log-driver none --read-only",
        "--cap-drop ALL --security-opt no-new-privileges",
        f"--user {os.getuid()}:{os.getgid()}",
        "--env HOME=/tmp",
        "--network none",
        "--env https_proxy= ",
    ):
        assert held in words
    assert not any(word in words for word in ("--memory", "--pids", "--cpus", "--privileged"))
    limited = " ".join(options(DOCKER, Sandbox(memory=2**30, processes=50, cpu=1.5)))
    assert "--memory 1073741824 --memory-swap 1073741824 --pids-limit 50 --cpus 1.5" in limited


def test_a_list_of_hosts_has_no_other_network_and_on_that_of_the_engine() -> None:
    assert "none" in options(DOCKER, Sandbox(network=("a.test",)))
    assert "--network" not in options(DOCKER, Sandbox(network=None))
    assert "--env HTTP_PROXY=" not in " ".join(options(DOCKER, Sandbox(network=None)))
    assert "--http-proxy=false" in options(PODMAN, Sandbox(network=None))


def test_an_engine_without_root_runs_as_the_worker_s_user() -> None:
    assert replace(DOCKER, is_rootless=True).user == ["--user", "0:0"]
    own = f"{os.getuid()}:{os.getgid()}"
    assert replace(PODMAN, is_rootless=True).user == ["--userns", "keep-id", "--user", own]


def test_a_path_cannot_add_a_field_to_its_mount() -> None:
    words = options(
        DOCKER, Sandbox(), [Mount('/a,readonly=false"', "/b,c"), Mount("/tmp", None, True)]
    )
    assert words[-4:-2] == [
        "--mount",
        'type=bind,"source=/b,c","target=/a,readonly=false""",readonly',
    ]
    assert words[-2:] == ["--tmpfs", "/tmp:exec"]


def test_a_container_sees_the_workspace_and_nothing_else_of_this_machine(tmp_path: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "home/workspaces/run_1"
    outputs = home / "outputs"
    for folder in (workspace, outputs, tmp_path / "user/.ssh"):
        folder.mkdir(parents=True)
    (job := tmp_path / "job.toml").touch()
    view = View(home, workspace, outputs, read_only=(job,))
    user = {"HOME": str(tmp_path / "user")}
    mounts = Mounts(view, Policy(), Blanks.make(home), user, kind="docker")
    assert {each.target: each.source for each in mounts.mounts} == {
        "/tmp": None,  # it has mounts below it here
        str(workspace): str(workspace),
        str(outputs): str(outputs),
    }
    assert {each.target for each in mounts.mounts if each.writable} == {"/tmp", str(workspace)}


def test_without_an_engine_no_call_of_a_job_with_an_image_runs(
    bench: Workbench, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    marker = tmp_path / "marker"
    bench.tools.sandboxes.containers = Containers({"PATH": str(tmp_path / "bin")}, tmp_path, marker)
    for sandbox in (Sandbox(image="a"), Sandbox("required", image="a")):
        with pytest.raises(
            SandboxMissing, match=r"no container engine .* docker is not on the PATH"
        ):
            bash(bench, "touch made", sandbox)
    assert not (bench.workspace / "made").exists()


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("echo 'No such image: a' >&2; exit 125", "docker has none of this name: `docker pull a`"),
        ("echo nonsense >&2; exit 125", "docker says nonsense"),
        ("echo python", "no bash"),
        ("echo bash", "without a seccomp filter"),
        ("echo bash seccomp", "no python3 .* needs for a list of hosts"),
        ("echo bash seccomp python", "cannot hold limits here"),
    ],
)
def test_an_image_that_cannot_be_used_is_a_fault_of_this_host(
    tmp_path: Path, said: str, wrong: str
) -> None:
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\nif [ $1 = info ]; then echo '[]'; else {said}; fi\n")
    program.chmod(0o700)
    here = Containers({"PATH": f"{tmp_path}:/usr/bin:/bin"}, tmp_path, tmp_path / "marker")
    with pytest.raises(SandboxMissing, match=f"the image a cannot be used: .*{wrong}"):
        here.image(Sandbox(image="a", network=("a.test",), memory=2**20))


# --- on a real engine -------------------------------------------------------------------------------

LOOK = """
echo ran > made; echo x > %(mine)s; echo x > /usr/no; echo x > %(beside)s
[ -e /etc/shadow ] || echo no shadow; cd; pwd; id -u; echo $HARMLESS; ls /sys/class/net
grep -E 'CapBnd|CapEff|NoNewPrivs|Seccomp:' /proc/self/status; ls -d /proc/[0-9]* | grep -c .
"""


@on_an_engine
@pytest.mark.slow
def test_a_command_in_an_image_writes_the_workspace_and_nothing_else(
    bench: Workbench, few: str, tmp_path: Path
) -> None:
    mine = Path("/tmp", f"runner-{uuid4()}")
    command = LOOK % {"beside": tmp_path / "beside", "mine": mine}
    result = bash(bench, command, Sandbox(image=few))
    assert isinstance(ENGINE, Engine)
    assert result.containment == ENGINE.name
    assert (bench.workspace / "made").stat().st_uid == os.getuid()
    assert not (tmp_path / "beside").exists()
    assert not mine.exists()
    said = result.content.replace("\t", " ")
    assert said.count("Read-only file system") == 1  # the other is in its own /tmp
    nothing = "0000000000000000"
    assert f"no shadow\n/tmp\n{os.getuid()}\n\nlo\nCapEff: {nothing}\nCapBnd: {nothing}\n" in said
    assert "NoNewPrivs: 1\nSeccomp: 2\n" in said
    assert int(said.split()[-1]) < 6


@on_an_engine
@pytest.mark.slow
def test_what_rules_deny_is_held_in_an_image(bench: Workbench, few: str) -> None:
    bench = bench.under("deny Read(secrets/**)", "deny Edit(*.lock)")
    (bench.workspace / "secrets").mkdir()
    (bench.workspace / "secrets/k").write_text("SECRET")
    (bench.workspace / "a.lock").write_text("as it was")
    command = """
    cat secrets/k /proc/self/cwd/secrets/k; ln -s /proc/self/cwd here 2> /dev/null; cat here/secrets/k
    mv secrets s; ls secrets; echo x > a.lock; rm -f a.lock; mv a.lock b; echo fine
    """
    result = bash(bench, command, Sandbox(image=few))
    assert "SECRET" not in result.content
    assert result.content.endswith("fine\n")
    assert (bench.workspace / "a.lock").read_text() == "as it was"
    assert (bench.workspace / "secrets/k").read_text() == "SECRET"


@on_an_engine
@pytest.mark.slow
@pytest.mark.parametrize("rule", ["deny Read(a/**)", "deny Edit(a/**)"])
def test_a_link_in_the_place_of_what_is_mounted_stops_the_call(
    bench: Workbench, few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    (bench.workspace / "a").mkdir()
    (bench.workspace / "a/k").write_text("SECRET")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/k").write_text("SECRET")
    made = module.options

    def meanwhile(*arguments: Any) -> list[str]:
        if len(arguments) == 3:
            (bench.workspace / "a").rename(bench.workspace / "moved")
            (bench.workspace / "a").symlink_to(tmp_path / "outside")
        return made(*arguments)

    monkeypatch.setattr(module, "options", meanwhile)
    result = bash(bench.under(rule), "cat a/k moved/k", Sandbox(image=few))
    assert result.outcome == "failed"
    assert "SECRET" not in result.content


@on_an_engine
@pytest.mark.slow
def test_a_tool_of_your_own_runs_with_the_python_of_the_image(
    bench: Workbench, few: str, python: str, tmp_path: Path
) -> None:
    text = """
import os
def keep(path: str) -> str:
    '''Write a file.'''
    open("made", "w").write(path)
    return f"{os.getcwd()} {sorted(os.listdir('/usr/lib'))}"
"""
    (tmp_path / "mine.py").write_text(text)
    ((tool,), _) = resolve_tools(["mine:keep"], tmp_path)
    call = replace(bench.call(tool, path="given"), sandbox=Sandbox(image=python))
    result = bench.tools.run(call, Interrupt())
    assert result.outcome == "succeeded", result.content
    assert result.content.startswith(str(bench.workspace))
    assert "systemd" not in result.content
    assert (bench.workspace / "made").read_text() == "given"
    refused = bench.tools.run(replace(call, sandbox=Sandbox(image=few)), Interrupt())
    assert "has no python3 (3.11 or later) with pydantic" in refused.content


@on_an_engine
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "limits", "said"),
    [
        (
            "x=$(head -c 90000000 /dev/zero | cat -v)",
            {"memory": 2**26},
            "more than 64 MB of memory",
        ),
        (":(){ :|:& };: 2> /dev/null; sleep 1", {"processes": 50}, "more than 50 processes"),
    ],
)
def test_a_hog_in_an_image_ends_in_an_error_that_names_the_limit(
    bench: Workbench, few: str, command: str, limits: dict[str, Any], said: str
) -> None:
    result = bash(bench, command, Sandbox(image=few, **limits))
    assert result.outcome == "failed"
    assert said in result.content


@on_an_engine
@pytest.mark.slow
def test_a_list_of_hosts_is_all_that_an_image_reaches(bench: Workbench, python: str) -> None:
    bench.tools.sandboxes.proxy = Proxy(lambda *_: [LOOPBACK], lambda address: address == LOOPBACK)
    get = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=30).read())"
    (bench.workspace / "get.py").write_text(get)
    with echo_server() as port:
        url, hosts = f"http://a.test:{port}/", (f"a.test:{port}",)
        told = bash(bench, f"python3 get.py {url}", Sandbox(image=python, network=hosts))
        refused = bash(
            bench,
            f"python3 get.py http://b.test:{port}/; env -i python3 get.py {url}",
            Sandbox(image=python, network=hosts),
        )
        off = bash(bench, f"python3 get.py {url}", Sandbox(image=python))
    assert (told.outcome, told.connections[0].host) == ("succeeded", "a.test")
    assert (refused.outcome, refused.connections[0].outcome) == ("failed", "refused")
    assert (off.outcome, off.connections) == ("failed", ())


@on_an_engine
@pytest.mark.slow
def test_a_hook_has_its_input_and_a_command_both_of_its_outputs(bench: Workbench, few: str) -> None:
    command = "setsid sleep 1000 & echo out; echo err >&2; exit 3"
    result = bash(bench, command, Sandbox(image=few))
    assert (result.content, result.outcome) == ("out\nerr\nExit code 3", "failed")
    bench.outputs.mkdir(parents=True)  # in RUNNER_HOME, which is hidden in the workspace
    (bench.outputs / "call_0.txt").write_text("an output")
    text = f"head -c 1; cat {bench.outputs}/call_0.txt; ls {bench.home}; echo err >&2"
    hook, sandbox = Hook("TurnEnd", command=text), Sandbox(image=few, hooks=True)
    said = bench.tools.hook(HookCall("run_1", hook, {}, bench.surroundings, sandbox), Interrupt())
    assert (said.output, said.errors) == (b"{an outputoutputs\n", b"err\n")


# --- nothing outlives ---------------------------------------------------------------------------------

LONG = "echo x > began; sleep 1000"


def begun(bench: Workbench) -> None:
    wait_until((bench.workspace / "began").exists, "the command begins")


@on_an_engine
@pytest.mark.slow
def test_no_container_outlives_a_timeout_or_a_cut(bench: Workbench, few: str) -> None:
    assert bash(bench, LONG, Sandbox(image=few), 3).outcome == "timed_out"
    assert left(bench) == []
    (bench.workspace / "began").unlink(missing_ok=True)
    interrupt = Interrupt()
    command = Command("c", "run_1", LONG, bench.surroundings, 500, Sandbox(image=few), bench.policy)
    with ThreadPoolExecutor() as pool:
        call = pool.submit(bench.tools.command, command, interrupt)
        begun(bench)
        bench.tools.require(Sandbox(image=few))
        assert len(left(bench)) == 1, "a call that goes on keeps its container"
        interrupt.set("cancel")
        with pytest.raises(Interrupted):
            call.result(60)
    assert left(bench) == []


@on_an_engine
@pytest.mark.slow
def test_no_container_outlives_its_keeper(bench: Workbench, few: str) -> None:
    with ThreadPoolExecutor() as pool:
        call = pool.submit(bash, bench, LONG, Sandbox(image=few))
        begun(bench)
        (guard,) = children(os.getpid())
        (host,) = children(guard)
        (keeper,) = children(host)
        os.kill(keeper, signal.SIGKILL)
        assert call.result(60).outcome == "interrupted"
    assert left(bench) == []


@on_an_engine
@pytest.mark.slow
@pytest.mark.parametrize("all_of_it", [False, True])
def test_no_container_outlives_its_worker_or_the_next_attempt(
    bench: Workbench, few: str, all_of_it: bool
) -> None:
    words = (str(bench.home), str(bench.workspace), "60", LONG, few)
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "worker_process.py"), *words]
    )
    begun(bench)
    family = [process.pid, *descendants(process.pid)] if all_of_it else [process.pid]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    for pid in family:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    if all_of_it:  # nobody was left to end it
        assert len(left(bench)) == 1
        bench.tools.require(Sandbox(image=few))
        assert left(bench) == []
    else:
        wait_until(lambda: left(bench) == [], "the keeper removes it")
