"""What workspaces are made with: the database, the disk, and processes that end with their worker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runner.core.text.plain import plain
from runner.errors import UsageError, WorkspaceError
from runner.ports import Interrupt
from runner.store.connection.database import Database
from runner.tools.host.client import Ended, Start, boot
from runner.tools.toolbox import LocalTools
from runner.workspace import child

T = TypeVar("T")

# Worktrees and copies lie here, in RUNNER_HOME, named after their runs.
COPIES = "workspaces"

REMOTE_SECONDS = 1_800.0
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_CHILD_SECONDS = 7_200.0
_LAST_WORDS = 1_000


@dataclass(frozen=True, slots=True)
class Around:
    """``home`` is RUNNER_HOME. Whatever writes in a workspace is started by the host of ``tools``.
    For ``remote_seconds`` a remote that does not answer is asked again."""

    database: Database
    home: Path
    tools: LocalTools
    now: Callable[[], float] = time.time
    remote_seconds: float = REMOTE_SECONDS

    @property
    def environment(self) -> Mapping[str, str]:
        return self.tools.environment

    def below(self, what: str, run_id: str, interrupt: Interrupt, **request: Any) -> dict[str, Any]:
        """Have something done to a run's workspace below the tool host (``runner.workspace.child``).

        Raises:
            WorkspaceError: it cannot be done. Interrupted: it was cut; no process of it is left.
        """
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        start = Start(
            boot(child.__name__),
            self.home,
            run_id,
            _CHILD_SECONDS,
            stdin=json.dumps({"do": what, **request}).encode(),
        )
        ended = self.tools.host.call(start, interrupt)
        if (
            ended.end == "lost"
        ):  # someone killed it, or memory ran out; what it does can be done twice
            ended = self.tools.host.call(start, interrupt)
        if ended.end != "exited" or ended.exit_code:
            raise WorkspaceError(f"the workspace of {run_id} is of no use: {_ending(what, ended)}")
        answer: dict[str, Any] = json.loads(ended.output)
        if "error" in answer:
            raise WorkspaceError(answer["error"])
        return answer

    def insist(self, work: Callable[[], T], interrupt: Interrupt) -> T:
        """Do what needs a remote, again and again for a while when it cannot be done.

        Raises:
            WorkspaceError: it could not be done in all that time. Interrupted.
        """
        until = time.monotonic() + self.remote_seconds
        pause = _FIRST_PAUSE
        while True:
            try:
                return work()
            except WorkspaceError:
                if time.monotonic() + pause > until:
                    raise
            interrupt.wait(pause)
            interrupt.check()
            pause = min(2 * pause, _LONGEST_PAUSE)


def explained(work: Callable[[], T]) -> T:
    """What ``work`` gives; what is wrong with files is wrong with the workspace.

    Raises:
        WorkspaceError: it cannot be done.
    """
    try:
        return work()
    except (OSError, UsageError) as error:
        raise WorkspaceError(str(error)) from error


def _ending(what: str, ended: Ended) -> str:
    said = plain(ended.errors.decode("utf-8", "replace")[-_LAST_WORDS:]).split("\n")
    how = {
        "timed_out": f"took more than {_CHILD_SECONDS:.0f} s",
        "not_started": f"could not be started ({ended.output.decode('utf-8', 'replace')})",
        "lost": "was killed twice",
        "exited": f"ended with exit code {ended.exit_code}",
    }[ended.end]
    return " ".join([f"`{what}` {how}", *said]).strip()
