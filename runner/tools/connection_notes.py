"""Connections of calls, verify commands and hooks, noted in files of RUNNER_HOME as they happen: what was
cut has no result to store them with. A file is removed when its connections are stored."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.core.network import Connection
from runner.core.run import Lease, Outcome
from runner.ports import NoOutcome, Observer

_FOLDER = "connections"


class Notes:
    """The file with the connections of one process. It is made with the first.

    Args:
        home: RUNNER_HOME.
        about: data of the events of the connections: who made them.
    """

    def __init__(self, home: Path, run_id: str, about: Mapping[str, Any]) -> None:
        self._path = home / _FOLDER / f"{run_id}-{secrets.token_hex(8)}"
        self._about = dict(about)

    def add(self, made: Connection) -> None:
        """Note a connection; the next note with its time takes the place of this one."""
        with suppress(OSError):  # no space, say: the result will have them
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([self._about, asdict(made)]) + "\n")


def noted(path: Path) -> tuple[dict[str, Any], list[Connection]]:
    """Return what a file holds: who made its connections, and the connections."""
    about: dict[str, Any] = {}
    found: dict[float, Connection] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError, TypeError):  # the worker died in the middle of it
            about, fields = json.loads(line)
            made = Connection(**fields)
            found[made.at] = made
    return about, list(found.values())


class NotesStorer(Observer):
    """Stores what was noted of calls that were cut: when their attempt is over, when runs were taken
    over from a dead worker, and when this one starts.

    Args:
        store: stores connections that a run has no events of, with who made them. Returns False
            while the run is being worked on.
        failed: takes what went wrong; the file stays for the next time.
    """

    def __init__(
        self,
        home: Path,
        store: Callable[[str, dict[str, Any], list[Connection]], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self._folder, self._store, self._failed = home / _FOLDER, store, failed
        self._begin()

    def released(self, lease: Lease, outcome: Outcome | NoOutcome) -> None:
        self._begin(f"{lease.run_id}-")

    def reaped(self, count: int) -> None:
        self._begin()

    def _begin(self, prefix: str = "") -> None:
        # After every attempt: to compile a pattern of its own took a tenth of a short run's time.
        paths: list[Path] = []
        with suppress(OSError):  # no folder before the first note
            paths = [path for path in self._folder.iterdir() if path.name.startswith(prefix)]
        if paths:
            threading.Thread(target=self._work, args=(paths,), name="connections").start()

    def _work(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                if self._store(path.name.rpartition("-")[0], *noted(path)):
                    path.unlink(missing_ok=True)
            except FileNotFoundError:  # another worker of this host was faster
                continue
            except Exception as error:  # in a thread nobody would see it
                self._failed(error)
                return
