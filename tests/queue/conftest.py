"""A real server, which tests may kill, freeze and start again on the same socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from runner.queue.connection import connect, connect_impatiently
from runner.queue.embedded import server_binary
from runner.queue.notify import RqNotifier
from runner.queue.worker import QueueWorker

RUN_IDS = [f"run_{number:026d}" for number in range(1000)]
QUEUE_KEY = "rq:queue:runner"


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when ``condition`` holds; fail when it does not in time."""
    nothing = threading.Event()
    for _ in range(int(seconds * 100)):
        if condition():
            return
        nothing.wait(0.01)
    pytest.fail(f"not within {seconds} s: {condition}")


class Server:
    """A server process on a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder}/socket"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [server_binary(), "--port", "0", "--unixsocket", "socket", "--save", ""],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        until(self.answers)

    def answers(self) -> bool:
        try:
            with connect_impatiently(connect(self.url), 5.0) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        """kill -9: everything in it is lost and its socket is left behind."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


@pytest.fixture
def short_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A temporary folder whose path leaves room for a socket (pytest's own is long)."""
    tmp_path_factory.getbasetemp()  # else pytest would make it in the folder below
    folder = Path(tempfile.mkdtemp(prefix="rq-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def server(short_folder: Path) -> Iterator[Server]:
    server = Server(short_folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def connection(server: Server) -> Iterator[redis.Redis]:
    with connect(server.url) as client:
        yield client


@pytest.fixture
def notifier(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> RqNotifier:
    with monkeypatch.context() as patched:  # one that waits longer for a starved server
        patched.setattr("runner.queue.notify.ANSWER_SECONDS", 60.0)
        return RqNotifier(connection)


class Handler:
    """Records what it is given, and holds each queue message until it is told to let go."""

    def __init__(self, *, held: bool = False) -> None:
        self._lock = threading.Lock()
        self._go = threading.Event()
        if not held:
            self._go.set()
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.at_once = 0
        self.most_at_once = 0

    def __call__(self, run_id: str) -> None:
        with self._lock:
            self.begun.append(run_id)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        assert self._go.wait(60)
        with self._lock:
            self.at_once -= 1
            self.ended.append(run_id)

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker loses no message because a starved server answers late, and when it is stopped has told
    Redis all that it noted."""
    monkeypatch.setattr("runner.queue.worker.ANSWER_SECONDS", 60.0)
    monkeypatch.setattr("runner.queue.worker.FAREWELL_SECONDS", 60.0)


@contextmanager
def working(
    connection: redis.Redis,
    handler: Callable[[str], None],
    *,
    slots: int = 4,
    on_slot_free: Callable[[], None] | None = None,
) -> Iterator[QueueWorker]:
    """A worker in a thread, stopped at the end of the block."""
    worker = QueueWorker(
        connection, name="tested", slots=slots, handle=handler, on_slot_free=on_slot_free
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        if isinstance(handler, Handler):
            handler.let_go()
        thread.join(60)
        assert not thread.is_alive()
