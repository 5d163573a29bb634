"""Puts the processes of a call in the job's sandbox, with what this host has for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from runner.core.sandbox import Kind, Sandbox
from runner.errors import HostFaultError
from runner.permissions import Policy
from runner.ports import Interrupt, Surroundings
from runner.tools.host import Ended, Start, ToolHost

_PROBE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Containment:
    """What contains calls on this host."""

    kind: Kind
    missing: str = ""  # why it is not the strongest; empty if it is


@dataclass(frozen=True, slots=True)
class Entered:
    """A process about to start in its sandbox."""

    start: Start
    containment: str  # recorded with the call


class Sandboxes:
    """The sandboxes of a worker's calls.

    Args:
        home: RUNNER_HOME.
        environment: of the tools.
    """

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self._home = home
        self._environment = dict(environment)
        self._probing = threading.Lock()
        self._probed: Containment | None = None

    def probe(self) -> Containment:
        """Return what this host has to contain calls. It is tried out once."""
        with self._probing:
            if self._probed is None:
                self._probed = _probe(self._environment)
            return self._probed

    def containment_of(self, sandbox: Sandbox | None) -> Containment:
        """Return what will contain a call of a job with this sandbox. Raises ``HostFaultError`` if the
        job requires one and this host has none."""
        if sandbox is None or not sandbox.is_on:
            return Containment("none", "the job has none")
        found = self.probe()
        if found.kind == "none" and sandbox.mode == "required":
            raise HostFaultError(f"this job requires a sandbox: {found.missing}")
        return found

    @contextmanager
    def enter(
        self,
        start: Start,
        sandbox: Sandbox | None,
        policy: Policy | None,
        surroundings: Surroundings,
    ) -> Iterator[Entered]:
        """While the block runs, a process can be started in a sandbox. At its end, raise
        ``ToolFailure`` if the process made what the policy denies."""
        kind = self.containment_of(sandbox).kind
        if kind == "none":
            yield Entered(start, kind)
            return
        front = self._bubblewrap(start, surroundings)
        yield Entered(replace(start, arguments=[*front, *start.arguments]), kind)

    def _bubblewrap(self, start: Start, surroundings: Surroundings) -> list[str]:
        bwrap = shutil.which("bwrap", path=self._environment.get("PATH")) or "bwrap"
        seen = [("--ro-bind", path) for path in start.needs]
        workspace = [surroundings.workspace] if surroundings.workspace else []
        seen += [("--bind", path) for path in (*workspace, *_repository_of(surroundings.workspace))]
        binds = [word for option, path in seen for word in (option, str(path), str(path))]
        return [bwrap, *_BASE, *binds, "--chdir", str(start.folder), "--"]


class Contained:
    """Starts the processes of one call in the job's sandbox; ``runner.tools.host.Starter``."""

    def __init__(
        self,
        host: ToolHost,
        sandboxes: Sandboxes,
        sandbox: Sandbox | None,
        policy: Policy | None,
        surroundings: Surroundings,
    ) -> None:
        self._host = host
        self._sandboxes = sandboxes
        self._about = (sandbox, policy, surroundings)
        self.containment: str | None = None  # of the processes; None: none was started

    def call(self, start: Start, interrupt: Interrupt) -> Ended:
        """Run a process to its end: see ``ToolHost.call`` and ``Sandboxes.enter``."""
        with self._sandboxes.enter(start, *self._about) as entered:
            self.containment = entered.containment
            return self._host.call(entered.start, interrupt)


# fmt: off
_BASE = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
    "--die-with-parent", "--new-session", "--cap-drop", "ALL",
    "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--dev", "/dev", "--proc", "/proc",
)
# fmt: on


def _probe(environment: Mapping[str, str]) -> Containment:
    if sys.platform != "linux":
        return Containment("none", f"there is no sandbox on {sys.platform}: only on Linux")
    bwrap = shutil.which("bwrap", path=environment.get("PATH"))
    if bwrap is None:
        return Containment("none", "bwrap is not on the PATH: install bubblewrap")
    try:
        done = subprocess.run(
            [bwrap, *_BASE, "--", shutil.which("true") or "/bin/true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Containment("none", f"bwrap does not start: {error}")
    said = " ".join(done.stderr.decode("utf-8", "replace").split())
    if done.returncode:
        return Containment("none", f"bwrap cannot make a sandbox here: {said}")
    return Containment("bubblewrap")


def _repository_of(workspace: Path | None) -> list[Path]:
    """Return the folder of the repository that a worktree belongs to."""
    if workspace is None or not (file := workspace / ".git").is_file():
        return []
    folder = Path(workspace, file.read_text().removeprefix("gitdir:").strip())
    common = folder / "commondir"
    return [(folder / common.read_text().strip()).resolve() if common.is_file() else folder]
