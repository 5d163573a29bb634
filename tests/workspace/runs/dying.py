"""A worker's process that does one thing to a run's workspace, and a git that kills it in the middle.

It is forked, with a task as JSON on stdin.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event
from typing import Any

from runner.core.run import Ended, Lease
from runner.errors import WorkspaceError
from runner.ports import Interrupt
from runner.store.database import Database
from runner.tools.host_process import run_is_quiet
from runner.tools.toolbox import LocalTools
from runner.workspace.run_workspaces import RunWorkspaces
from tests.forking import Forked, serve

_MODULE = "tests.workspace.runs.dying"
DONE = Ended("succeeded", "end_turn")
KILLED = -9

_GIT = """#!/bin/sh
printf x >> "{folder}/calls"
if [ "$(wc -c < "{folder}/calls")" -ge {number} ] && mv "{folder}/pid" "{folder}/killed" 2>/dev/null
then kill -9 "$(cat "{folder}/killed")"
fi
exec "{git}" "$@"
"""


@dataclass(frozen=True)
class Deed:
    """What a worker is to do: ``prepare``, ``restore`` or ``deliver``."""

    what: str
    url: str
    folder: Path
    lease: Lease
    tree: str | None = None
    undo: bool = False


@dataclass(frozen=True)
class Done:
    returncode: int
    stderr: str


def dies_at(deed: Deed, number: int) -> bool:
    """Do it in a process that is killed when git is called for the ``number``th time; False when it
    was done before that. No process of the run is left."""
    done = _do(deed, number)
    assert done.returncode in (0, KILLED), done.stderr
    pause = Event()
    while not run_is_quiet(deed.folder / "locks", deed.lease.run_id):
        pause.wait(0.01)
    return done.returncode == KILLED


def fails_without_room(deed: Deed, most_bytes: int) -> str:
    """Do it in a process that can write no file of more than so many bytes; what it says of it."""
    done = _do(deed, sys.maxsize, most_bytes)
    assert done.returncode == 1, done.stderr
    return done.stderr.rstrip("\n")


def _do(deed: Deed, number: int, most_bytes: int = 0) -> Done:
    shim = deed.folder / f"shim-{deed.what}-{number}-{deed.lease.attempt}"
    shim.mkdir()
    git = shim / "git"
    git.write_text(_GIT.format(folder=shim, number=number, git=shutil.which("git")))
    git.chmod(0o755)
    task = {
        "what": deed.what,
        "url": deed.url,
        "folder": str(deed.folder),
        "lease": [deed.lease.run_id, deed.lease.attempt, deed.lease.worker_id],
        "tree": deed.tree,
        "undo": deed.undo,
        "pid": str(shim / "pid"),
        "most_bytes": most_bytes,
    }
    with (
        TemporaryFile("w+") as given,
        TemporaryFile("w+") as said,
        open(os.devnull, "w") as nothing,
    ):
        json.dump(task, given)
        given.seek(0)
        environment = {**os.environ, "PATH": f"{shim}{os.pathsep}{os.environ['PATH']}"}
        streams = [each.fileno() for each in (given, nothing, said)]
        code = Forked(_MODULE, (), Path.cwd(), environment, streams).look(None)
        assert code is not None
        said.seek(0)
        return Done(code, said.read())


def main() -> None:
    task = json.load(sys.stdin)
    Path(task["pid"]).write_text(str(os.getpid()))
    folder = Path(task["folder"])
    (folder / "home").mkdir(parents=True, exist_ok=True)
    # Nobody tells its host that the worker is alive.
    tools = LocalTools(folder / "home", folder / "locks", watchdog_seconds=300)
    workspaces = RunWorkspaces(Database(task["url"]), folder / "home", tools)
    lease, tree = Lease(*task["lease"]), task["tree"]
    deeds: dict[str, Callable[[], Any]] = {
        "prepare": lambda: workspaces.prepare(lease, tree, Interrupt(), undo=task["undo"]),
        "restore": lambda: workspaces.restore(lease, tree, Interrupt()),
        "deliver": lambda: workspaces.deliver(lease, DONE, Interrupt()),
    }
    if task["most_bytes"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (task["most_bytes"], task["most_bytes"]))
    try:
        deeds[task["what"]]()
    except WorkspaceError as error:
        sys.exit(str(error))
    finally:
        tools.close()


if __name__ == "__main__":
    serve(lambda: None)  # what is needed is imported
    main()
