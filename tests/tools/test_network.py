"""The network of calls in the sandbox: none, the hosts of a list by the proxy, or the host's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest

from runner.core.conversation import ToolResult
from runner.core.hooks import Hook
from runner.core.network import Connection
from runner.core.sandbox import Sandbox
from runner.errors import Interrupted
from runner.ports import Command, HookCall, Interrupt
from runner.tools.connection_notes import NotesStorer
from runner.tools.proxy import SOCKET_INSIDE, Proxy
from runner.tools.registry import resolve_tools
from runner.tools.sandbox import Sandboxes
from tests.tools.proxies import LOOPBACK, echo_server

from .conftest import EVERYTHING, Workbench, wait_until

HERE = Sandboxes(Path("/nowhere"), os.environ).probe()
pytestmark = pytest.mark.skipif(
    HERE.kind != "bubblewrap", reason=f"this host has no bubblewrap: {HERE.missing}"
)

GET = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())
except Exception as error:
    sys.exit(str(error))
"""


@pytest.fixture
def server() -> Iterator[int]:
    with echo_server() as port:
        yield port


@pytest.fixture
def bench(bench: Workbench) -> Workbench:
    """Every name leads to this machine; ``get URL`` of the workspace asks for one."""
    allowed = Proxy(lambda name, port: [LOOPBACK], lambda address: address == LOOPBACK)
    bench.tools.sandboxes.proxy = allowed
    (bench.workspace / "get.py").write_text(GET)
    return bench


def bash(bench: Workbench, command: str, network: tuple[str, ...] | None) -> ToolResult:
    call = replace(bench.call("Bash", command=command), sandbox=Sandbox(network=network))
    return bench.tools.run(call, Interrupt())


def test_a_job_has_no_network_unless_it_says_so(bench: Workbench, server: int) -> None:
    assert Sandbox().network == ()
    result = bash(bench, f"cat /proc/net/dev; python3 get.py http://{LOOPBACK}:{server}/", ())
    assert "refused" in result.content
    assert [line.split(":")[0].strip() for line in result.content.splitlines() if ": " in line] == [
        "lo"
    ]
    assert result.connections == ()
    unresolved = bash(bench, "python3 get.py http://a.test/", ())
    assert unresolved.outcome == "failed"
    assert unresolved.content.endswith(
        "This job has no network ([sandbox] network): commands reach nothing but localhost."
    )


@pytest.mark.slow
def test_a_host_of_the_list_is_reached_and_every_other_refused(
    bench: Workbench, server: int
) -> None:
    hosts = (f"a.test:{server}", f"*.b.test:{server}")
    result = bash(
        bench,
        f"python3 get.py http://a.test:{server}/1; python3 get.py http://x.b.test:{server}/2",
        hosts,
    )
    assert result.content == f"GET /1 a.test:{server} \nGET /2 x.b.test:{server} \n"
    assert [(each.host, each.outcome) for each in result.connections] == [
        ("a.test", "allowed"),
        ("x.b.test", "allowed"),
    ]
    assert all(each.sent and each.received for each in result.connections)
    refused = bash(bench, f"python3 get.py http://b.test:{server}/", hosts)
    assert "403" in refused.content
    assert refused.content.endswith(
        "[sandbox] network of this job refused connections: "
        f"b.test:{server}: it is not on the job's list of hosts."
    )
    assert [(each.host, each.outcome) for each in refused.connections] == [("b.test", "refused")]


@pytest.mark.slow
def test_tls_passes_unopened_by_the_tunnel(bench: Workbench, tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("this machine has no openssl to make a certificate with")
    pem = bench.workspace / "pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a.test"]
    made += ["-addext", "subjectAltName=DNS:a.test", "-keyout", "-", "-out", "-"]
    pem.write_bytes(subprocess.run(made, capture_output=True, check=True).stdout)
    with echo_server(pem) as server:
        result = bash(
            bench,
            f"SSL_CERT_FILE=pem python3 get.py https://a.test:{server}/",
            (f"a.test:{server}",),
        )
        assert result.content.strip() == f"GET / a.test:{server}"
        if shutil.which("curl"):
            command = f"curl -sS --cacert pem https://a.test:{server}/"
            assert bash(bench, command, (f"a.test:{server}",)).content == f"GET / a.test:{server} "
            refused = bash(bench, command.replace("a.test", "b.test"), (f"a.test:{server}",))
            assert "response 403" in refused.content


@pytest.mark.slow
def test_there_is_no_other_way_out_than_the_proxy(bench: Workbench, server: int) -> None:
    """Unset variables, addresses, the host's sockets, the socket that a launcher would use."""
    command = f"""
        unset ${{!HTTP*}} ${{!http*}} ${{!ALL*}} ${{!all*}}
        python3 get.py http://a.test:{server}/ && echo reached
        python3 get.py http://{LOOPBACK}:{server}/ && echo reached
        python3 get.py http://169.254.169.254/ && echo reached
        python3 - <<'END'
import os, socket
print(sorted(set(os.listdir("/proc/self/fd")) - {{"0", "1", "2", "3"}}))
names = [open(f"/proc/{{each}}/comm").read() for each in os.listdir("/proc") if each.isdigit()]
print(sum("python" in name for name in names), "python")
try:
    socket.socket(socket.AF_UNIX).connect("{SOCKET_INSIDE}")
    print("reached")
except FileNotFoundError:
    print("nobody listens")
END
    """
    result = bash(bench, command, (f"a.test:{server}",))
    assert "reached" not in result.content
    assert result.content.splitlines()[-3:] == ["[]", "1 python", "nobody listens"]
    assert result.connections == ()


@pytest.mark.slow
def test_literal_addresses_are_refused_by_the_proxy(bench: Workbench, server: int) -> None:
    command = f"NO_PROXY= no_proxy= python3 get.py http://{LOOPBACK}:{server}/"
    result = bash(bench, command, (f"a.test:{server}",))
    assert [(each.host, each.outcome) for each in result.connections] == [(LOOPBACK, "refused")]
    assert "only a port of a host with a name can be reached" in result.content


@pytest.mark.slow
@pytest.mark.parametrize("network", [(), ("a.test",)])
def test_a_test_server_inside_can_be_asked(bench: Workbench, network: tuple[str, ...]) -> None:
    command = """
        python3 -m http.server 8123 --bind 127.0.0.1 2>/dev/null &
        for _ in $(seq 100); do
            for host in 127.0.0.1 localhost; do python3 get.py http://$host:8123/ && exit; done; sleep 0.1
        done 2>/dev/null"""
    result = bash(bench, command, network)
    assert "get.py" in result.content
    assert result.connections == ()


@pytest.mark.slow
def test_a_job_may_ask_for_the_network_of_the_host(bench: Workbench, server: int) -> None:
    result = bash(bench, f"python3 get.py http://{LOOPBACK}:{server}/; cat /etc/resolv.conf", None)
    assert result.content.startswith("GET / ")
    assert Path("/etc/resolv.conf").read_text().strip() in result.content
    assert result.connections == ()


@pytest.mark.slow
@pytest.mark.parametrize("made_by", ["call", "verify", "hook"])
def test_connections_of_what_was_cut_are_kept_to_be_stored(
    bench: Workbench, server: int, made_by: str
) -> None:
    text = f"python3 get.py http://b.test:{server}/; touch asked; sleep 600"
    sandbox, about, interrupt = Sandbox(network=("a.test",)), {"turn": 3}, Interrupt()
    call = replace(bench.call("Bash", command=text), sandbox=sandbox, about=about)
    told = (bench.surroundings, 60, sandbox, EVERYTHING, about)
    hook = HookCall("run_1", Hook("TurnEnd", command=text), {}, bench.surroundings, sandbox)
    run: dict[str, Callable[[], object]] = {
        "call": lambda: bench.tools.run(call, interrupt),
        "verify": lambda: bench.tools.command(Command("v", "run_1", text, *told), interrupt),
        "hook": lambda: bench.tools.hook(replace(hook, about=about), interrupt),
    }
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run[made_by])
        wait_until((bench.workspace / "asked").exists, "the request")
        interrupt.set("dropped")
        with pytest.raises(Interrupted):
            running.result()
    stored = Queue[tuple[str, dict[str, object], list[Connection]]]()
    NotesStorer(bench.home, lambda *noted: stored.put(noted) or True, pytest.fail)
    run_id, who, (made,) = stored.get(timeout=30)
    assert (run_id, who, made.host, made.outcome) == ("run_1", about, "b.test", "refused")
    wait_until(lambda: not [*(bench.home / "connections").iterdir()], "the note's removal")


@pytest.mark.slow
def test_own_tools_and_verify_commands_have_the_same_network(
    bench: Workbench, server: int, tmp_path: Path
) -> None:
    url = f"http://a.test:{server}/"
    sandbox = Sandbox(network=(f"a.test:{server}",))
    text = f"python3 get.py {url}"
    command = Command("verify_1", "run_1", text, bench.surroundings, 60, sandbox, EVERYTHING)
    verified = bench.tools.command(command, Interrupt())
    module = "import urllib.request\n\ndef fetch(url: str) -> str:\n    'Fetch.'\n"
    module += "    return urllib.request.urlopen(url, timeout=30).read().decode()\n"
    (tmp_path / "mine.py").write_text(module)
    ((tool,), _) = resolve_tools(["mine:fetch"], tmp_path)
    called = bench.tools.run(replace(bench.call(tool, url=url), sandbox=sandbox), Interrupt())
    for result in (verified, called):
        assert result.content.startswith(f"GET / a.test:{server}")
        assert [each.host for each in result.connections] == ["a.test"]
