"""Puts the processes of a call in the job's sandbox, with what this host has for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.core.network import Connection, hint
from runner.core.run import Ended as RunEnded
from runner.core.run import Lease, Outcome
from runner.core.sandbox import Kind, Sandbox
from runner.errors import SandboxMissing
from runner.permissions.decisions import Policy
from runner.ports import Interrupt, NoOutcome, Observer, Surroundings
from runner.tools import proxy_launcher, sandbox_caches, sandbox_landlock
from runner.tools.connection_notes import Notes
from runner.tools.containers import Containers, image_needs
from runner.tools.file_access import ToolFailure
from runner.tools.host import CallLimits, Ended, Gate, Start, ToolHost, boot
from runner.tools.sandbox_gate import OPTIONS
from runner.tools.sandbox_mounts import FOLDER, NAMESPACES, TMP, Blanks, Mounts, View, run_tmp

if TYPE_CHECKING:
    from runner.tools.proxy import Door, Proxy

PORT = 61080  # of the proxy in a sandbox: no port that programs are given when they ask for any

_PROBE_SECONDS = 30.0
_SPARE_PROCESSES = 10  # of bubblewrap, and for a small limit


@dataclass(frozen=True, slots=True)
class Containment:
    """The containment of calls on this host."""

    kind: Kind
    missing: str = ""  # why it is not the strongest; empty if it is
    abi: int = 0  # the version of Landlock


class Sandboxes:
    """The sandboxes of a worker's calls.

    Args:
        home: RUNNER_HOME.
        environment: of the tools.
        job_of: returns the id of a run's job.
        lock_dir: of the tool host; None where no call is run.
    """

    def __init__(
        self,
        home: Path,
        environment: Mapping[str, str],
        job_of: Callable[[str], str] = lambda run_id: run_id,
        lock_dir: Path | None = None,
    ) -> None:
        self._job_of = cache(job_of)
        self.home = home
        marker = home / FOLDER / "containers"
        self.containers = Containers(environment, lock_dir or home, marker)
        self.environment = dict(environment)
        self._probing = threading.Lock()
        self._probed: Containment | None = None
        self.proxy: Proxy | None = None  # made when a job first names hosts

    def close(self) -> None:
        """Close all connections of calls."""
        if self.proxy is not None:
            self.proxy.close()

    def probe(self) -> Containment:
        """Return what this host has to contain calls. It is tried out once."""
        with self._probing:
            if self._probed is None:
                self._probed = _probe(self.environment)
            return self._probed

    def require(self, sandbox: Sandbox) -> None:
        """Raise ``SandboxMissing`` if this host cannot contain the calls of a job that requires it. Remove
        containers that dead workers left."""
        self.containment_of(sandbox)
        if sandbox.image is not None:
            self.containers.remove_left()

    def containment_of(self, sandbox: Sandbox | None) -> Containment:
        """Return what will contain a call of a job with this sandbox. Raises ``SandboxMissing`` if the
        job requires one and this host has none."""
        if sandbox is None or not sandbox.is_on:
            return Containment("none", "the job has none")
        if sandbox.image is not None:
            return Containment(self.containers.image(sandbox).engine.name)
        found = self.probe()
        if found.kind != "bubblewrap" and sandbox.mode == "required":
            why = f"the job requires a sandbox, and this host has none: {found.missing}"
            raise SandboxMissing(why)
        return found

    def door(
        self, hosts: Sequence[str], run_id: str, about: Mapping[str, Any]
    ) -> AbstractContextManager[Door]:
        """Let a process reach hosts over the proxy; ``about`` is the data of its connections' events."""
        with self._probing:
            if self.proxy is None:
                # Imported here: commands that submit jobs load this module, and need no asyncio.
                from runner.tools.proxy import Proxy

                self.proxy = Proxy()
        return self.proxy.door(hosts, Notes(self.home, run_id, about).add)

    def mounts(
        self,
        start: Start,
        sandbox: Sandbox,
        policy: Policy | None,
        surroundings: Surroundings,
        kind: Kind,
    ) -> Mounts:
        """Return the files and folders of this host that a process sees."""
        needs = start.needs if sandbox.image is None else image_needs(start.needs, sandbox)
        user = Path(self.environment.get("HOME") or Path.home())
        folder = self.home / sandbox_caches.FOLDER / self._job_of(start.run_id)
        view = View(
            self.home,
            surroundings.workspace,
            surroundings.outputs,
            readable=tuple(needs),
            read_only=(Path(sandbox.file),) if sandbox.file else (),
            caches=sandbox.caches,
            copies={
                preset: sandbox_caches.writable_copy(preset, user, folder)
                for preset in sandbox.writable_caches
            },
        )
        rules, tmp = policy or Policy(), run_tmp(self.home, start.run_id)
        return Mounts(view, rules, Blanks.make(self.home), self.environment, tmp, kind)


def _named(found: Containment, mounts: Mounts, sandbox: Sandbox) -> str:
    """Return what is recorded of a sandbox. Raises ``ToolFailure`` if a job that requires one has rules
    that it cannot hold."""
    rules = ", ".join(f"deny {rule}" for rule in mounts.unheld)
    if rules and sandbox.mode == "required":
        raise ToolFailure(
            f"no command can run: {rules} is about too many files outside the workspace for the sandbox "
            "that this job requires; name a folder in it",
            "denied",
        )
    unheld = [f"{rules} outside the workspace"] if rules else []
    if rules := ", ".join(f"deny {rule}" for rule in mounts.unheld_inside):
        unheld.append(f"{rules} in the workspace")
    if mounts.exposed:
        unheld.append("what else is hidden in the workspace")
    if found.kind == "landlock" and sandbox.network:
        unheld.append("the list of hosts")
    if found.kind == "landlock" and found.abi < sandbox_landlock.SCOPES_ABI:
        unheld.append("signals")
    return f"{found.kind}, which cannot hold {', '.join(unheld)}" if unheld else found.kind


class TmpRemover(Observer):
    """Removes the /tmp of runs that have ended in this worker."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def released(self, lease: Lease, outcome: Outcome | NoOutcome) -> None:
        folder = self._home / TMP / lease.run_id
        if isinstance(outcome, RunEnded) and folder.exists():
            removal = partial(shutil.rmtree, folder, ignore_errors=True)
            threading.Thread(target=removal, name="tmp", daemon=True).start()


class Contained:
    """Starts the processes of one call in the job's sandbox; ``runner.tools.host.Starter``."""

    def __init__(
        self,
        host: ToolHost,
        sandboxes: Sandboxes,
        sandbox: Sandbox | None,
        policy: Policy | None,
        surroundings: Surroundings,
        about: Mapping[str, Any],
    ) -> None:
        self._host = host
        self._sandboxes = sandboxes
        self._about = (sandbox, policy, surroundings, about)
        self.containment: str | None = None  # of the processes; None: none was started
        self._door: Door | None = None

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The connections of the process that has ended, as far as they went over the proxy."""
        return () if self._door is None else self._door.connections

    def network_hint(self, said: str) -> str:
        """Return why the process, which failed and ``said`` so, did not reach a host; see ``hint``."""
        sandbox, *_ = self._about
        if sandbox is None or self.containment is None:
            return ""
        kind = self._sandboxes.containment_of(sandbox).kind
        if kind == "none" or (kind == "landlock" and sandbox.network):
            return ""
        return hint(sandbox.network, self.connections, said, loopback=kind != "landlock")

    def call(self, start: Start, interrupt: Interrupt) -> Ended:
        """Run a process to its end: see ``ToolHost.call``. An interrupted one has no result to record its
        connections: see ``connection_notes``. Also raises ``ToolFailure`` if the process made files that
        the policy denies."""
        sandbox, policy, surroundings, about = self._about
        found = self._sandboxes.containment_of(sandbox)
        kind = found.kind
        if sandbox is not None:
            start = replace(start, limits=self._limits(sandbox, kind, start))
        if kind == "none" or sandbox is None:
            self.containment = kind
            return self._run(start, start.limits, interrupt)
        limits = start.limits
        hosts = sandbox.network if kind != "landlock" else None
        way = self._sandboxes.door(hosts, start.run_id, about) if hosts else nullcontext()
        with way as self._door:
            mounts = self._sandboxes.mounts(start, sandbox, policy, surroundings, kind)
            start = self._entering(start, found, mounts, sandbox)
            self.containment = _named(found, mounts, sandbox)
            try:
                ended = self._run(start, limits, interrupt)
            except BaseException:  # interrupted or not started: report that, not the removed files
                mounts.remove_denied()
                raise
            if made := mounts.remove_denied():
                raise ToolFailure(made, "denied")
            return ended

    def _entering(
        self, start: Start, found: Containment, mounts: Mounts, sandbox: Sandbox
    ) -> Start:
        """Return the start of a process in its sandbox."""
        if sandbox.image is not None:
            return self._sandboxes.containers.start(start, sandbox, mounts, self._door)
        start = replace(start, variables={**start.variables, **mounts.variables})
        if found.kind == "landlock":
            return replace(start, landlock=(found.abi, sandbox.network != (), mounts.grants))
        path = self._sandboxes.environment.get("PATH")
        front = [shutil.which("bwrap", path=path) or "bwrap", *mounts.arguments]
        front += [*_network(sandbox), *OPTIONS, "--chdir", str(start.folder.resolve()), "--"]
        asked = start.limits.processes
        # More than the job allows, so that the keeper, which counts processes, ends the call first.
        gate = Gate(mounts.movable, processes=2 * asked + _SPARE_PROCESSES if asked else 0)
        if self._door is not None:
            gate = replace(gate, port=PORT, worker=str(self._door.socket))
            start = replace(start, variables={**start.variables, **proxy_launcher.variables(PORT)})
        return replace(
            start,
            arguments=[*front, *start.arguments],
            descriptors={**start.descriptors, **mounts.descriptors},
            gate=gate,
        )

    def _limits(self, sandbox: Sandbox, kind: Kind, start: Start) -> CallLimits:
        workspace = self._about[2].workspace
        folders = [] if workspace is None else [workspace]
        if sandbox.disk is not None and kind != "none":
            folders.append(run_tmp(self._sandboxes.home, start.run_id))
        return CallLimits(sandbox.memory, sandbox.processes, sandbox.cpu, sandbox.disk, folders)

    def _run(self, start: Start, limits: CallLimits, interrupt: Interrupt) -> Ended:
        """Run a process, and record who held it to the limits of the job."""
        sandbox, *_ = self._about
        work = partial(self._host.call, start, interrupt)
        if sandbox is None or not start.removal:
            ended = work()
        else:
            ended = self._sandboxes.containers.watch(work, start, sandbox)
        if ended.end in ("exited", "timed_out", "limited"):
            # The engine holds a container to the limits that it was given, by cgroups.
            given = limits.asked().keys() - start.limits.asked().keys()
            self.containment = f"{self.containment}{limits.holders({*ended.held, *given})}"
        return ended


def _network(sandbox: Sandbox) -> list[str]:
    """Return bubblewrap's options for the network. A namespace of its own has only loopback."""
    if sandbox.network is None:
        # A link may lead into /run, which is hidden.
        name_servers = os.path.realpath("/etc/resolv.conf")
        return ["--ro-bind-try", name_servers, name_servers]
    return ["--unshare-net"]


def _probe(environment: Mapping[str, str]) -> Containment:
    if sys.platform != "linux":
        return Containment("none", f"there is no sandbox on {sys.platform}: only on Linux")
    missing = _problem_of_bubblewrap(environment)
    if not missing:
        return Containment("bubblewrap")
    tried = _try(boot(sandbox_landlock.__name__))
    if isinstance(tried, str):
        return Containment(
            "none", f"{missing}; nor is there Landlock of Linux 6.2 or later: {tried}"
        )
    return Containment("landlock", missing, int(tried))


def _problem_of_bubblewrap(environment: Mapping[str, str]) -> str:
    bwrap = shutil.which("bwrap", path=environment.get("PATH"))
    if bwrap is None:
        return "bwrap is not on the PATH: install bubblewrap"
    true = shutil.which("true") or "/bin/true"
    tried = _try([bwrap, *NAMESPACES, "--unshare-net", "--", true])
    return f"bwrap cannot make a sandbox here: {tried}" if isinstance(tried, str) else ""


def _try(command: Sequence[str]) -> bytes | str:
    """Return what a command prints, or as a text why it failed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not start: {error}"
    if not done.returncode:
        return done.stdout
    said = done.stderr.decode("utf-8", "replace").splitlines()
    return " ".join(said[-1:]) or f"exit code {done.returncode}"
