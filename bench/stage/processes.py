"""Workers in processes of their own, as a user starts them, and how much memory they take."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.messages_api import API_KEY

SAMPLES_A_SECOND = 10
MIB = 1 << 20


@contextmanager
def worker(
    *arguments: str,
    home: Path,
    database_url: str,
    api_url: str,
    temporary: Path,
    log: Path,
    module: str = "runner",
) -> Iterator[subprocess.Popen[bytes]]:
    """``runner worker`` with these arguments; it is told to end, and waited for, on the way out.

    Args:
        temporary: its TMPDIR: workers with different ones are on different hosts to each other.
        log: where its standard error goes.
        module: what is run as ``runner``.
    """
    environment = {
        **os.environ,
        "RUNNER_HOME": str(home),
        "RUNNER_DATABASE_URL": database_url,
        "ANTHROPIC_BASE_URL": api_url,
        "ANTHROPIC_API_KEY": API_KEY,
        "TMPDIR": str(temporary),
    }
    environment.pop("RUNNER_REDIS_URL", None)
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "worker", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


@dataclass
class Memory:
    """The most that was seen at once, in MiB. ``proportional`` shares out what processes share."""

    proportional: float = 0.0
    resident: float = 0.0
    processes: int = 0


@contextmanager
def watching_memory(pid: int, queue_folder: Path | None = None) -> Iterator[Memory]:
    """Look ten times a second at a process, its descendants and the embedded queue server.

    Args:
        queue_folder: that of the server, which is nobody's child.
    """
    memory = Memory()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(1 / SAMPLES_A_SECOND):
            _sample(memory, _family(pid, queue_folder))

    thread = threading.Thread(target=watch, name="memory")
    thread.start()
    try:
        yield memory
    finally:
        stop.set()
        thread.join()


def _family(pid: int, queue_folder: Path | None) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        found = [process, *process.children(recursive=True)]
        if queue_folder is not None and (queue_folder / "pid").exists():
            found.append(psutil.Process(int((queue_folder / "pid").read_text())))
    except (psutil.NoSuchProcess, ValueError, FileNotFoundError):
        return []  # they are coming or going
    return found


def _sample(memory: Memory, processes: list[psutil.Process]) -> None:
    proportional = resident = 0.0
    for process in processes:
        try:
            taken = process.memory_full_info()
        except psutil.Error:
            continue  # it has just ended
        proportional += taken.pss / MIB
        resident += taken.rss / MIB
    memory.proportional = max(memory.proportional, proportional)
    memory.resident = max(memory.resident, resident)
    memory.processes = max(memory.processes, len(processes))
