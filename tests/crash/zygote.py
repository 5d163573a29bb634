"""Fresh worker processes at the price of a fork: a process that has imported everything and done
nothing forks one for each life.

As a program it takes orders, a line of JSON each, and answers each with a line.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.crash.life import Task, live

LOG = "log"
_PR_SET_PDEATHSIG = 1
_IMPORTED_LATE = (
    "anthropic.types",
    "psycopg",
    "runner.llm.connections",
    "runner.llm.connections",
    "runner.llm.stream",
)


class Zygote:
    """The zygote's process, as a test sees it; started when it is first needed. ``close`` ends it and
    every life that is left."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self, task: Task) -> int:
        """Begin a life; its process id. What it prints goes to ``log`` in the task's folder."""
        pid: int = self._order({"start": asdict(task)})
        return pid

    def wait(self, pid: int) -> int:
        """Wait until a life ends or is stopped: its exit status, or a signal's number, negative."""
        status: int = self._order({"wait": pid})
        if os.WIFSTOPPED(status):
            return -os.WSTOPSIG(status)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _order(self, order: dict[str, Any]) -> Any:
        process = self._process = self._process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())
        except BaseException:  # a test's timeout, too: the next answer would be to this order
            self.close()
            raise


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )


def main() -> None:
    _die_with_parent()
    for module in _IMPORTED_LATE:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            answer = _fork(Task(**order["start"]))
        else:
            _, answer = os.waitpid(order["wait"], os.WUNTRACED)
        print(json.dumps(answer), flush=True)


def _fork(task: Task) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _die_with_parent()
        log = os.open(Path(task.folder) / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        status = live(task)
    except BaseException:  # a life never goes back into the zygote's loop, whatever ended it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _die_with_parent() -> None:
    """Be killed when the test's process is, which has no time to call ``close`` then (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
