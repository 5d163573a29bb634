from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import redis

from runner.errors import UnreachableError
from runner.queue.connection import connect, connect_impatiently
from runner.queue.embedded import EmbeddedServer, folder_of, server_binary
from tests.queue.conftest import until

USER = """
import sys
from pathlib import Path
from runner.queue.embedded import EmbeddedServer
with EmbeddedServer(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(short_folder: Path) -> Iterator[Path]:
    home = short_folder / "home"
    yield home
    folder = folder_of(home)
    if folder.is_dir():
        end_server(server_of(home))


def server_of(home: Path) -> psutil.Process:
    return psutil.Process(int((folder_of(home) / "pid").read_text()))


def end_server(process: psutil.Process) -> None:
    process.kill()
    until(lambda: is_gone(process))


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def answers(url: str) -> bool:
    try:
        with connect_impatiently(connect(url), 5.0) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


class User:
    """Another process that uses the embedded server until it is told to leave."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def url(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def servers_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["name", "cwd"]):
        name = str(process.info["name"])
        if name.startswith(("valkey", "redis")) and process.info["cwd"] == str(folder):
            found.append(process)
    return found


def test_the_server_runs_inside_the_block_and_leaves_nothing(home: Path) -> None:
    with EmbeddedServer(home) as url:
        assert answers(url)
        process = server_of(home)
        assert len(os.fsencode(folder_of(home) / "socket")) < 104
    until(lambda: is_gone(process))
    assert not folder_of(home).exists()


def test_the_server_keeps_nothing_on_disk(home: Path) -> None:
    with EmbeddedServer(home) as url, connect(url) as client:
        client.set("key", "value")
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("appendonly") == {"appendonly": "no"}
    with EmbeddedServer(home) as url, connect(url) as client:
        assert client.get("key") is None


def test_the_server_has_its_own_session_and_none_of_our_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    with EmbeddedServer(home):
        process = server_of(home)
        assert os.getsid(process.pid) not in (0, os.getsid(0))
        assert "ANTHROPIC_API_KEY" not in process.environ()
        assert process.ppid() != os.getpid()


def test_only_the_owner_can_reach_the_socket(home: Path) -> None:
    with EmbeddedServer(home):
        assert folder_of(home).stat().st_mode & 0o077 == 0
        assert (folder_of(home) / "socket").stat().st_mode & 0o077 == 0


def test_homes_do_not_share_a_server(home: Path) -> None:
    with EmbeddedServer(home) as one, EmbeddedServer(home.with_name("other")) as other:
        assert one != other


def test_a_home_by_another_name_is_the_same_home(home: Path) -> None:
    home.mkdir()
    link = home.with_name("link")
    link.symlink_to(home)
    with EmbeddedServer(home) as one, EmbeddedServer(link) as other:
        assert one == other
        assert len(servers_in(folder_of(home))) == 1


@pytest.mark.slow
def test_the_last_process_out_shuts_the_server_down(home: Path) -> None:
    first, second = User(home), User(home)
    url = first.url()
    assert second.url() == url
    process = server_of(home)
    first.leave()
    assert answers(url)
    second.leave()
    until(lambda: is_gone(process))
    assert not folder_of(home).exists()


@pytest.mark.slow
def test_the_next_user_adopts_the_server_of_a_killed_one(home: Path) -> None:
    user = User(home)
    url = user.url()
    process = server_of(home)
    user.kill()
    assert answers(url)
    with EmbeddedServer(home) as adopted:
        assert adopted == url
        assert server_of(home) == process
    until(lambda: is_gone(process))
    assert not folder_of(home).exists()


def test_a_killed_server_is_started_again_by_the_next_user(home: Path) -> None:
    with EmbeddedServer(home) as url:
        end_server(server_of(home))
        assert not answers(url)
        with EmbeddedServer(home) as again:
            assert again == url
            assert answers(url)
        assert answers(url)


def test_a_killed_server_is_started_again_on_demand(home: Path) -> None:
    server = EmbeddedServer(home)
    server.ensure()
    assert not folder_of(home).exists()
    server.enter()
    end_server(server_of(home))
    server.ensure()
    assert answers(server.url)
    server.leave()
    server.leave()
    assert not folder_of(home).exists()


@pytest.mark.slow
def test_what_everybody_left_by_kill_is_used_again(home: Path) -> None:
    user = User(home)
    url = user.url()
    user.kill()
    end_server(server_of(home))
    with EmbeddedServer(home) as again:
        assert again == url
        assert answers(again)


@pytest.mark.slow
def test_processes_that_start_at_once_share_one_server(home: Path) -> None:
    users = [User(home) for _ in range(6)]
    assert len({user.url() for user in users}) == 1
    [process] = servers_in(folder_of(home))
    for user in users:
        assert user.process.stdin is not None
        user.process.stdin.close()
    for user in users:
        assert user.process.wait(60) == 0
        assert user.process.stdout is not None
        user.process.stdout.close()
    until(lambda: is_gone(process))
    assert not folder_of(home).exists()


@pytest.mark.slow
def test_coming_and_going_at_once_always_finds_one_server(home: Path) -> None:
    failures: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(15):
                with EmbeddedServer(home) as url:
                    assert answers(url)
                    until(lambda: len(servers_in(folder_of(home))) == 1)  # one may be ending
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert not folder_of(home).exists()


@contextmanager
def held_door(folder: Path) -> Iterator[None]:
    with (folder / "door").open("w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        yield


def open_doors(folder: Path) -> int:
    """How often this process has the door open that is in the folder now."""
    door = (folder / "door").stat()
    count = 0
    for file in psutil.Process().open_files():
        with suppress(OSError):  # the other thread closed it in between
            count += os.path.samestat(os.fstat(file.fd), door)
    return count


def test_a_user_who_waited_while_the_folder_was_removed_makes_a_new_one(home: Path) -> None:
    folder = folder_of(home)
    folder.mkdir(mode=0o700)
    server = EmbeddedServer(home)
    coming = threading.Thread(target=server.enter)
    with held_door(folder):
        coming.start()
        until(lambda: open_doors(folder) == 2)
        shutil.rmtree(folder)
    coming.join(60)
    assert answers(server.url)
    server.leave()


def test_a_user_who_waited_at_a_removed_door_waits_at_the_new_one(home: Path) -> None:
    folder = folder_of(home)
    folder.mkdir(mode=0o700)
    server = EmbeddedServer(home)
    coming = threading.Thread(target=server.enter)
    with ExitStack() as new_door:
        with held_door(folder):
            coming.start()
            until(lambda: open_doors(folder) == 2)
            (folder / "door").unlink()
            new_door.enter_context(held_door(folder))
        until(lambda: open_doors(folder) == 2)
        assert servers_in(folder) == []
    coming.join(60)
    assert answers(server.url)
    server.leave()


@pytest.mark.slow
def test_a_server_that_hangs_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        stack.enter_context(EmbeddedServer(home))
        monkeypatch.setattr("runner.queue.embedded.ANSWER_SECONDS", 0.2)
        process = server_of(home)
        process.send_signal(signal.SIGSTOP)
        stack.callback(process.send_signal, signal.SIGCONT)
        with pytest.raises(UnreachableError, match=f"process {process.pid}"):
            EmbeddedServer(home).enter()


def test_a_folder_that_others_may_enter_is_refused(home: Path) -> None:
    folder_of(home).mkdir(mode=0o755)
    folder_of(home).chmod(0o755)
    with pytest.raises(UnreachableError, match="not a private folder"):
        EmbeddedServer(home).enter()
    folder_of(home).rmdir()


def test_a_link_in_place_of_the_folder_is_refused(home: Path, short_folder: Path) -> None:
    target = short_folder / "target"
    target.mkdir(mode=0o700)
    folder_of(home).symlink_to(target)
    with pytest.raises(UnreachableError, match="not a private folder"):
        EmbeddedServer(home).enter()
    assert list(target.iterdir()) == []
    folder_of(home).unlink()


def test_a_folder_of_somebody_else_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("os.geteuid", lambda: 12345)
        folder_of(home).mkdir(mode=0o700)
        with pytest.raises(UnreachableError, match="not a private folder"):
            EmbeddedServer(home).enter()
        assert list(folder_of(home).iterdir()) == []


def test_a_temporary_folder_that_is_too_deep_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.tempdir", "/tmp/" + "deep/" * 20)
        with pytest.raises(UnreachableError, match="TMPDIR"):
            EmbeddedServer(home)


def test_a_server_of_the_system_comes_first(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = short_folder / "bin"
    system.mkdir()
    installed = system / "redis-server"
    installed.symlink_to(server_binary())
    monkeypatch.setenv("PATH", str(system))
    assert server_binary() == installed


def test_a_platform_without_a_server_says_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnreachableError, match="install redis-server"):
        EmbeddedServer(home).enter()
    shutil.rmtree(folder_of(home))


def test_a_server_that_does_not_start_is_quoted(
    home: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = short_folder / "valkey-server"
    broken.write_text("#!/bin/sh\necho wrong architecture\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setenv("PATH", f"{short_folder}:{os.environ['PATH']}")
    with pytest.raises(UnreachableError, match="wrong architecture"):
        EmbeddedServer(home).enter()
    shutil.rmtree(folder_of(home))
