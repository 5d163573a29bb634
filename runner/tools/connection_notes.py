"""Connections of calls, noted in files of RUNNER_HOME as they happen: of a call that was cut there is no
result to store them with. A file is removed when its connections are stored, whichever way."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from runner.core.hosts import Connection
from runner.core.run import Lease, Outcome
from runner.ports import NoOutcome, Observer

FOLDER = "connections"


class Notes:
    """The file with the connections of one call. It is made with the first."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, made: Connection) -> None:
        """Note a connection; the next note with its time takes the place of this one."""
        with suppress(OSError):  # no space, say: the call's result will have them
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(made)) + "\n")


def noted(path: Path) -> list[Connection]:
    """Return the connections in a file."""
    found: dict[float, Connection] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError, TypeError):  # the worker died in the middle of it
            made = Connection(**json.loads(line))
            found[made.at] = made
    return list(found.values())


class NotesStorer(Observer):
    """Stores what was noted of calls that were cut: when their attempt is over, when runs were taken
    over from a dead worker, and when this one starts.

    Args:
        store: stores the connections of a call, by its id, unless its result has them. Returns False
            while its run is being worked on.
        failed: takes what went wrong; the file stays for the next time.
    """

    def __init__(
        self,
        home: Path,
        store: Callable[[str, list[Connection]], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self._folder, self._store, self._failed = home / FOLDER, store, failed
        self._begin("*")

    def released(self, lease: Lease, outcome: Outcome | NoOutcome) -> None:
        self._begin(f"call_{lease.run_id.removeprefix('run_')}_*")

    def reaped(self, count: int) -> None:
        self._begin("*")

    def _begin(self, pattern: str) -> None:
        if paths := list(self._folder.glob(pattern)):
            threading.Thread(target=self._work, args=(paths,), name="connections").start()

    def _work(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                if self._store(path.name, noted(path)):
                    path.unlink(missing_ok=True)
            except FileNotFoundError:  # another worker of this host was faster
                continue
            except Exception as error:  # in a thread nobody would see it
                self._failed(error)
                return
