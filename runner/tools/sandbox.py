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
from runner.tools.file_access import ToolFailure
from runner.tools.host import Ended, Start, ToolHost
from runner.tools.sandbox_mounts import NAMESPACES, Blanks, Mounts, View, run_tmp

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
        needs = tuple(start.needs)
        caches = () if sandbox is None else sandbox.caches
        view = View(self._home, surroundings.workspace, surroundings.outputs, needs, caches=caches)
        mounts = Mounts(
            view,
            Policy() if policy is None else policy,
            Blanks.make(self._home),
            self._environment,
            run_tmp(self._home, start.run_id),
        )
        bwrap = shutil.which("bwrap", path=self._environment.get("PATH")) or "bwrap"
        folder = str(start.folder.resolve())
        arguments = [bwrap, *mounts.arguments, "--chdir", folder, "--", *start.arguments]
        descriptors = {**start.descriptors, **mounts.descriptors}
        yield Entered(replace(start, arguments=arguments, descriptors=descriptors), kind)
        if made := mounts.remove_denied():
            raise ToolFailure(made, "denied")


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


def _probe(environment: Mapping[str, str]) -> Containment:
    if sys.platform != "linux":
        return Containment("none", f"there is no sandbox on {sys.platform}: only on Linux")
    bwrap = shutil.which("bwrap", path=environment.get("PATH"))
    if bwrap is None:
        return Containment("none", "bwrap is not on the PATH: install bubblewrap")
    try:
        done = subprocess.run(
            [bwrap, *NAMESPACES, "--", shutil.which("true") or "/bin/true"],
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
