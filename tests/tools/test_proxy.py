"""The proxy, asked over real sockets: what it lets through, refuses, bounds and records."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from runner.errors import HostFaultError
from runner.tools import proxy as module
from runner.tools.proxy import Proxy
from tests.tools.proxies import (
    LOOPBACK,
    Echo,
    ask,
    dial,
    echo_server,
    enter,
    proxy_here,
    raw_server,
    through,
)

PATIENCE = 60.0


@pytest.fixture
def server() -> Iterator[int]:
    with echo_server() as port:
        yield port


def get(
    host: str, path: str = "/", *, headers: str = "", body: str = "", method: str = "GET"
) -> bytes:
    head = f"{method} http://{host}{path} HTTP/1.1\r\nHost: other.test\r\n{headers}\r\n"
    return (head + body).encode()


def connect(target: str) -> bytes:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()


def outcomes(door: module.Door) -> list[tuple[str, int, str, str]]:
    return [(each.host, each.port, each.outcome, each.why) for each in door.connections]


def test_a_request_for_a_host_on_the_list_is_sent_on_with_its_name(server: int) -> None:
    with through(f"a.test:{server}") as (door, port):
        said = ask(port, get(f"A.test.:{server}", "/x?y=1", headers="Proxy-Authorization: z\r\n"))
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in head.lower()
    assert body == f"GET /x?y=1 a.test:{server} ".encode()
    assert "proxy-authorization" not in Echo.heads[-1]
    assert outcomes(door) == [("a.test", server, "allowed", "")]


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_sent_on(server: int, chunked: bool) -> None:
    body = "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n" if chunked else "hello world"
    length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 11"
    with through(f"a.test:{server}") as (_, port):
        request = get(f"a.test:{server}", method="POST", headers=f"{length}\r\n", body=body)
        assert ask(port, request[:60], request[60:]).endswith(b" hello world")


def test_a_tunnel_carries_both_directions_and_counts_them(server: int) -> None:
    early, late = b"GET /1 HTTP/1.1\r\nHost: a\r\n", b"Connection: close\r\n\r\n"
    with through(f"a.test:{server}") as (door, port), dial(port) as client:
        client.sendall(connect(f"a.test:{server}") + early)  # before the answer
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        client.sendall(late)
        said = b"".join(iter(lambda: client.recv(1000), b""))
    assert said.endswith(b"GET /1 a ")
    (made,) = door.connections
    assert (made.sent, made.received) == (len(early + late), len(said))
    assert time.time() - PATIENCE < made.at < time.time()


@pytest.mark.parametrize("is_tunnel", [False, True])
@pytest.mark.parametrize(
    ("host", "port", "why"),
    [
        ("b.test", 80, "it is not on the job's list of hosts"),
        ("a.test", 22, "its port is not on the job's list of hosts"),
        ("test", 443, "it is not on the job's list of hosts"),
        ("127.0.0.1", 80, "only a port of a host with a name can be reached"),
        ("2130706433", 80, "only a port of a host with a name can be reached"),
        ("[::ffff:127.0.0.1]", 443, "only a port of a host with a name can be reached"),
    ],
)
def test_what_is_not_on_the_list_is_refused_with_one_line(
    host: str, port: int, why: str, is_tunnel: bool
) -> None:
    def never(name: str, port: int) -> list[str]:
        raise AssertionError(f"{name} was looked up")

    with through("a.test", "*.test.test", resolve=never) as (door, inside):
        request = connect(f"{host}:{port}") if is_tunnel else get(f"{host}:{port}")
        said = ask(inside, request)
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 ")
    assert body == f"Runner: {host}:{port} is refused: {why}\n".encode()
    assert outcomes(door) == [(host, port, "refused", why)]


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["169.254.169.254"],
        ["10.0.0.1", "::1"],
        ["::ffff:127.0.0.1"],
        ["0.0.0.0"],
        [],
    ],
)
def test_a_name_that_leads_to_no_public_address_is_refused(addresses: list[str]) -> None:
    with closing(Proxy(lambda name, port: addresses)) as proxy, proxy.door(["a.test"]) as door:
        said = ask(enter(door), connect("a.test:443"))
    assert said.startswith(b"HTTP/1.1 403 ")
    assert outcomes(door) == [("a.test", 443, "refused", "its address is not a public one")]


def test_the_address_that_was_checked_is_dialled_and_the_name_looked_up_once(server: int) -> None:
    """A name that leads elsewhere the second time, and one of whose addresses is private."""
    looked_up: list[str] = []

    def rebinding(name: str, port: int) -> list[str]:
        looked_up.append(name)
        return ["10.0.0.1", LOOPBACK] if len(looked_up) == 1 else ["10.0.0.1"]

    with through(f"a.test:{server}", resolve=rebinding) as (_, port):
        assert b" 200 " in ask(port, get(f"a.test:{server}"))
    assert looked_up == ["a.test"]


def test_a_closed_proxy_starts_no_thread_for_a_call_that_ends_or_begins_later() -> None:
    before, proxy = set(threading.enumerate()), Proxy()
    with proxy.door(["a.test"]):
        proxy.close()
    with pytest.raises(HostFaultError, match="cannot be opened: the worker ends"):
        proxy.door(["a.test"]).__enter__()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert set(threading.enumerate()) <= before


def test_a_name_or_host_that_cannot_be_reached_fails() -> None:
    def resolve(name: str, port: int) -> list[str]:
        if name == "gone.test":
            raise socket.gaierror("no such name")
        return [LOOPBACK]

    with socket.socket() as closed:
        closed.bind((LOOPBACK, 0))
        port = closed.getsockname()[1]
        with proxy_here(resolve) as proxy, proxy.door(["gone.test", f"a.test:{port}"]) as door:
            inside = enter(door)
            assert b" 502 " in ask(inside, connect("gone.test:443"))
            assert b" 502 " in ask(inside, get(f"a.test:{port}"))
    assert outcomes(door) == [
        ("gone.test", 443, "failed", "its name cannot be resolved"),
        ("a.test", port, "failed", "it cannot be reached"),
    ]


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://u:p@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost : a.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        b"POST http://a.test/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET http://a.test/" + b"x" * 100_000,
    ],
)
def test_what_is_no_strict_request_is_answered_and_not_sent_on(request_: bytes) -> None:
    asked = []
    with raw_server(lambda it: asked.append(it.recv(1))) as server:
        request_ = request_.replace(b"a.test/", b"a.test:%d/" % server)
        with through(f"a.test:{server}") as (_, port), dial(port) as client:
            with suppress(ConnectionError):  # it is answered before all of it has come
                client.sendall(request_)
            assert client.recv(100).split()[1] in (b"400", b"431", b"501")
    assert [each for each in asked if each] == []


def test_a_second_request_on_a_connection_is_not_sent_on(server: int) -> None:
    before = len(Echo.heads)
    with through(f"a.test:{server}") as (_, port):
        said = ask(port, get(f"a.test:{server}", "/1") + get("b.test:443", "/2"))
    assert said.endswith(b"/1 a.test:%d " % server)
    assert len(Echo.heads) == before + 1


def test_a_server_that_speaks_no_http_fails() -> None:
    said = raw_server(lambda it: it.sendall(b"SSH-2.0-x\r\n"))
    with said as server, through(f"a.test:{server}") as (door, port):
        assert b" 502 " in ask(port, get(f"a.test:{server}"))
    assert outcomes(door) == [("a.test", server, "failed", "its answer is no HTTP")]


def is_over(it: socket.socket) -> bool:
    """Wait for the other side, which says nothing. Return True if it closed the connection."""
    try:
        return it.recv(100) == b""
    except ConnectionResetError:  # before it had read, or accepted, all
        return True


def test_every_connection_ends_with_the_call() -> None:
    reached, ended = threading.Event(), threading.Event()

    def hold(it: socket.socket) -> None:
        reached.set()
        assert is_over(it)
        ended.set()

    with raw_server(hold) as server, proxy_here() as proxy, ExitStack() as held:
        with proxy.door([f"a.test:{server}"]) as door:
            port = enter(door)
            clients = [held.enter_context(dial(port)) for _ in range(3)]
            clients[0].sendall(connect(f"a.test:{server}"))  # a tunnel that is silent
            clients[1].sendall(b"GET http")  # a head that does not end; the third says nothing
            assert reached.wait(PATIENCE)
        assert ended.wait(PATIENCE)
        assert is_over(clients[1])
        assert is_over(clients[2])
        assert not door.socket.parent.exists()


@pytest.mark.slow
def test_a_call_that_ends_as_a_connection_is_made_ends_it() -> None:
    """The cancel comes at any moment of the dial, which must not lose it."""
    for _ in range(50):
        reached = threading.Event()

        def hold(it: socket.socket, reached: threading.Event = reached) -> None:
            reached.set()
            with suppress(ConnectionResetError):
                it.recv(1)

        with (
            raw_server(hold) as server,
            ExitStack() as held,
            through(f"a.test:{server}") as (_, port),
        ):
            client = held.enter_context(dial(port))
            client.sendall(connect(f"a.test:{server}"))
            assert reached.wait(PATIENCE)


def test_nobody_but_the_first_is_heard_at_the_socket_of_a_call(server: int) -> None:
    with through(f"a.test:{server}") as (door, port):
        socket_of_call = str(door.socket)
        ask(port, get(f"a.test:{server}"))
        with (
            socket.socket(socket.AF_UNIX) as second,
            pytest.raises((ConnectionRefusedError, FileNotFoundError)),
        ):
            second.connect(socket_of_call)


@pytest.mark.slow
def test_hostile_clients_hold_up_neither_other_calls_nor_much_memory() -> None:
    """One call opens more connections than it may have, reads from none, and starts lookups that do
    not end. Another call is served meanwhile."""
    sent = []
    going_on = threading.Event()

    def pour(it: socket.socket) -> None:
        total = 0
        it.settimeout(5)
        try:
            while total < 100_000_000:
                total += it.send(bytes(65536))
        except OSError:
            sent.append(total)

    def resolve(name: str, port: int) -> list[str]:
        if name.startswith("slow"):
            going_on.wait(PATIENCE)
        return [LOOPBACK]

    with raw_server(pour) as flood, echo_server() as server, ExitStack() as held:
        held.callback(going_on.set)
        proxy = held.enter_context(proxy_here(resolve))
        hostile = held.enter_context(
            proxy.door([f"flood.test:{flood}", "*.slow.test", "slow.test"])
        )
        inside = enter(hostile)
        for number in range(module._MOST_CONNECTIONS + 20):
            client = held.enter_context(dial(inside))
            client.sendall(connect("slow.test:443" if number < 8 else f"flood.test:{flood}"))
        with proxy.door([f"a.test:{server}"]) as door:
            port = enter(door)
            for _ in range(20):
                assert b" 200 " in ask(port, get(f"a.test:{server}"))
    assert len(hostile.connections) <= module._MOST_CONNECTIONS


@pytest.mark.slow
def test_fifty_calls_at_once_reach_their_own_hosts_only(server: int) -> None:
    with proxy_here() as proxy, ExitStack() as held:
        doors = [held.enter_context(proxy.door([f"n{n}.test:{server}"])) for n in range(50)]
        ports = [enter(door) for door in doors]
        with ThreadPoolExecutor(50) as pool:
            own = pool.map(lambda n: ask(ports[n], get(f"n{n}.test:{server}")), range(50))
            others = pool.map(lambda n: ask(ports[n], get(f"n{n + 1}.test:{server}")), range(50))
        assert all(b" 200 " in each for each in own)
        assert all(b" 403 " in each for each in others)
    assert {len(door.connections) for door in doors} == {2}


def test_a_host_that_cannot_open_a_proxy_has_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    fault = pytest.raises(HostFaultError, match="cannot be opened: No such")
    with proxy_here() as proxy, fault, proxy.door(["a.test"]):
        pass


@pytest.mark.slow
def test_many_connections_are_recorded_together(
    monkeypatch: pytest.MonkeyPatch, server: int
) -> None:
    monkeypatch.setattr(module, "_RECORDED_EACH", 3)
    monkeypatch.setattr(module, "_MOST_RECORDS", 6)
    with through(f"a.test:{server}") as (door, port):
        for _ in range(6):
            assert b" 200 " in ask(port, get(f"a.test:{server}"))
        for number in range(5):
            assert b" 403 " in ask(port, connect(f"{number}.evil.test:443"))
        assert b"too many hosts" in ask(port, get(f"a.test:{server}"))
    made = [(each.host, each.outcome, each.count) for each in door.connections]
    assert made[:4] == [("a.test", "allowed", 1)] * 3 + [("a.test", "allowed", 3)]
    assert sum(count for _, _, count in made) == 12
    assert len(made) == 7


def test_a_port_of_an_ipv6_address_is_dialled() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with ExitStack() as stack:
            proxy = stack.enter_context(proxy_here(lambda *_: ["::1"], lambda each: each == "::1"))
            inside = enter(stack.enter_context(proxy.door([f"a.test:{port}"])))
            client = stack.enter_context(dial(inside))
            client.sendall(connect(f"a.test:{port}"))
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
