"""Runs the processes of a call in a container of the job's image, by docker or podman.

Each call has a container of its own. Its first process is a shell, which ends with the command, and the
kernel ends what is left of the container then. If the call is cut, its keeper has the engine remove the
container; if the keeper was killed, the worker does. The next attempt of a job with an image removes what
is left of a worker that was killed with all its children.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.core.sandbox import Sandbox
from runner.core.text import shorten
from runner.errors import HostFaultError, SandboxMissing
from runner.tools.cgroups import MEMORY, PROCESSES
from runner.tools.file_access import ToolFailure, inside
from runner.tools.host import CallLimits, Ended, Start, boot_needs
from runner.tools.host_process import run_is_quiet
from runner.tools.keeper import ENGINE_FAILED
from runner.tools.sandbox_gate import escaped
from runner.tools.sandbox_mounts import Mount, Mounts

if TYPE_CHECKING:
    from runner.tools.proxy import Door

logger = logging.getLogger(__name__)

EngineName = Literal["docker", "podman"]

_LABEL = "runner.locks"
_PREFIX = "runner-"  # of names of containers: then the run, and a number
_ANSWER_SECONDS = 60.0
_LONGEST_WORDS = 300
# An engine says with it that it works for the worker's user and not for root.
_ABOUT: Mapping[EngineName, str] = {
    "docker": "{{.SecurityOptions}}{{if and .MemoryLimit .PidsLimit .CPUCfsQuota}} limits{{end}}",
    "podman": "{{if .Host.Security.Rootless}}rootless {{end}}limits",  # it fails if it cannot
}
_MISSING = ("no such image", "image not known")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY")
# The first process of a container. Its arguments: whether errors go with the output, what to say if the
# memory or the processes were not enough (in files of version 2 and 1 of cgroups), mounts, and the command.
# Somebody may put a link in the place of a folder before it is mounted, or mounted on, and the engine may
# read what the worker cannot. By proc(5) a line has as its fourth word what is mounted, by its path in its
# file system, and as the fifth where.
_FIRST = """
[ -z "$1" ] || exec 2>&1
memory=$2 processes=$3 at=/sys/fs/cgroup all=' '
shift 3
while read -r _ _ _ what where _; do all="$all$what>$where "; done < /proc/self/mountinfo
while [ "$1" != -- ]; do
    case "$all" in
        *" $1 "*) shift ;;
        *) echo "${1#*>} was moved while the container was made: try again" >&2; exit 1 ;;
    esac
done
shift
counted() {
    [ ! -r "$1" ] && return 1
    while read -r name count; do [ "$name" = "$2" ] && [ "$count" != 0 ] && return 0; done < "$1"
    return 1
}
"$@"
code=$?
if counted $at/memory.events oom_kill || counted $at/memory/memory.oom_control oom_kill; then
    [ -z "$memory" ] || { echo "$memory" >&2; code=137; }
elif counted $at/pids.events max || counted $at/pids/pids.events max; then
    [ -z "$processes" ] || { echo "$processes" >&2; code=137; }
fi
exit $code
"""
# Prints what an image has.
_LOOK = """
command -v bash > /dev/null && echo bash
while read -r name value; do [ "$name$value" = Seccomp:2 ] && echo seccomp; done < /proc/self/status
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2> /dev/null && echo python
python3 -c 'import sys, pydantic; sys.exit(sys.version_info < (3, 11))' 2> /dev/null && echo pydantic
exit 0
"""


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine that answers."""

    name: EngineName
    program: str
    is_rootless: bool = False
    can_limit: bool = True  # memory, processes and cores

    @property
    def user(self) -> list[str]:
        """The options for the worker's user."""
        if self.is_rootless and self.name == "docker":
            return ["--user", "0:0"]  # who is the worker's user outside
        keep = ["--userns", "keep-id"] if self.is_rootless else []
        return [*keep, "--user", f"{os.getuid()}:{os.getgid()}"]

    def removal(self, container: str) -> list[str]:
        """Return the command that ends and removes a container."""
        at_once = ["--time", "0"] if self.name == "podman" else []
        return [self.program, "rm", "--force", *at_once, container]


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a container was started of."""

    name: str
    engine: Engine
    has: frozenset[str]  # words of ``_LOOK``


def options(engine: Engine, sandbox: Sandbox, mounts: Sequence[Mount] = ()) -> list[str]:
    """Return the options of an engine's ``run`` that hold what the sandbox promises."""
    words = ["run", "--rm", "--pull", "never", "--log-driver", "none", "--read-only"]
    words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", *engine.user]
    words += ["--env", "HOME=/tmp"]
    if sandbox.network is not None:
        words += ["--network", "none"]
        if engine.name == "docker":  # its client passes on those of its configuration
            both = (name for each in _PROXIES for name in (each, each.lower()))
            words += [word for name in both for word in ("--env", f"{name}=")]
    if engine.name == "podman":
        words.append("--http-proxy=false")
    if sandbox.memory is not None:
        words += ["--memory", str(sandbox.memory), "--memory-swap", str(sandbox.memory)]
    if sandbox.processes is not None:
        words += ["--pids-limit", str(sandbox.processes)]
    if sandbox.cpu is not None:
        words += ["--cpus", f"{sandbox.cpu:g}"]
    return [*words, *(word for mount in mounts for word in _mounted(mount))]


class Containers:
    """The containers of a worker's calls.

    Args:
        environment: of the engine's client.
        lock_dir: tells which containers are those of living workers.
        marker: a file that exists if there was ever a container.
    """

    def __init__(self, environment: Mapping[str, str], lock_dir: Path, marker: Path) -> None:
        self._environment = dict(environment)
        self._lock_dir, self._marker = lock_dir, marker
        self._trying = threading.Lock()
        self._images: dict[str, Image] = {}  # that were tried out

    def image(self, sandbox: Sandbox) -> Image:
        """Return the image of a job, tried out. Raises ``SandboxMissing`` if this host lacks an engine,
        or the image, or the image what the sandbox needs."""
        name = sandbox.image or ""
        with self._trying:
            if name not in self._images:
                self._images[name] = self._try(name)
            image = self._images[name]
        wrong = ""
        if sandbox.network and "python" not in image.has:
            wrong = "it has no python3 (3.9 or later), which [sandbox] network needs for a list of hosts"
        elif not image.engine.can_limit and (sandbox.memory or sandbox.processes or sandbox.cpu):
            wrong = f"{image.engine.name} cannot hold limits here: its cgroups are not its own"
        if wrong:
            raise SandboxMissing(f"the image {name} cannot be used: {wrong}")
        return image

    def start(self, start: Start, sandbox: Sandbox, mounts: Mounts, door: Door | None) -> Start:
        """Return the start of a process in a container. Raises ``ToolFailure`` if the image has not what
        it needs; ``SandboxMissing``."""
        image, limits = self.image(sandbox), start.limits
        if start.arguments[0] == sys.executable and "pydantic" not in image.has:
            raise ToolFailure(
                f"the image {image.name} has no python3 (3.11 or later) with pydantic, which tools of "
                "your own need"
            )
        told = [
            "" if most is None else f"The command was ended: {limits.explain(name)}."
            for name, most in ((MEMORY, limits.memory), (PROCESSES, limits.processes))
        ]
        merged = "merged" if start.merge else ""
        places = [
            f"{_in_file_system(each.source)}>{_escaped(each.target)}" for each in mounts.mounts
        ]
        first = ["/bin/sh", "-c", _FIRST, "sh", merged, *told, *places, "--", *start.arguments]
        command = first if door is None else door.launch(first)
        path = self._environment.get("PATH")
        programs = {shutil.which(name, path=path): name for name in ("bash", "env")}
        programs[sys.executable] = "python3"
        entry, *rest = (programs.get(word, word) for word in command)
        name = f"{_PREFIX}{start.run_id}-{secrets.token_hex(6)}"
        arguments = [
            image.engine.program,
            *options(image.engine, sandbox, mounts.mounts),
            *(() if door is None else _mounted(door.mount)),
            *("--name", name, "--label", f"{_LABEL}={self._lock_dir}"),
            *(["--interactive"] if start.stdin or start.channel is not None else []),
            *(word for name in start.variables for word in ("--env", name)),  # the client has them
            *("--workdir", str(start.folder.resolve()), "--entrypoint", entry, image.name, *rest),
        ]
        self._marker.touch()
        # The engine holds a container to the others.
        limits = CallLimits(disk=limits.disk, folders=limits.folders)
        removal = image.engine.removal(name)
        return replace(start, arguments=arguments, limits=limits, removal=removal)

    def watch(self, work: Callable[[], Ended], start: Start, sandbox: Sandbox) -> Ended:
        """Do the ``work`` of a call; when this returns or raises, its container is gone. Raises
        ``HostFaultError`` if the engine does not remove it."""
        try:
            ended = work()
        except BaseException:
            self._remove(start.removal)
            raise
        if ended.end != "exited" or ended.exit_code < 0:
            self._remove(start.removal)
        elif ended.exit_code == ENGINE_FAILED:
            with self._trying:
                self._images.pop(sandbox.image or "", None)
            try:
                self.image(sandbox)
            except SandboxMissing:  # the next call says so, before it starts
                return replace(ended, end="lost")
        return ended

    def engine(self) -> Engine | str:
        """Return the engine of this host, or why there is none."""
        return find_engine(self._environment)

    def remove_left_aside(self) -> None:
        """Do as ``remove_left`` in a thread, if this host had a container once."""

        def remove() -> None:
            try:
                self.remove_left()
            except HostFaultError as error:
                logger.warning("containers of dead workers may be left: %s", error)

        if self._marker.exists():
            threading.Thread(target=remove, name="containers", daemon=True).start()

    def remove_left(self) -> None:
        """Remove the containers of calls that nobody watches over any more. Raises ``HostFaultError``."""
        engine = self._engine()
        asked = ("ps", "--all", "--filter", f"label={_LABEL}={self._lock_dir}")
        listed = self._ask(engine.program, *asked, "--format", "{{.Names}}")
        if listed.returncode:
            raise SandboxMissing(f"{engine.name} does not list containers: {_said(listed)}")
        for name in listed.stdout.split():
            if run_is_quiet(self._lock_dir, name.removeprefix(_PREFIX).rpartition("-")[0]):
                self._remove(engine.removal(name))

    def _remove(self, removal: Sequence[str]) -> None:
        done = self._ask(*removal)
        said = _said(done)
        if done.returncode and "no such container" not in said.lower():
            raise HostFaultError(f"the container {removal[-1]} cannot be removed: {said}")

    def _try(self, name: str) -> Image:
        """Start a container of an image. Raises ``SandboxMissing``."""
        engine = self._engine()
        look = ("--entrypoint", "/bin/sh", name, "-c", _LOOK)
        done = self._ask(engine.program, *options(engine, Sandbox()), *look)
        said = _said(done)
        has = frozenset(done.stdout.split())
        if any(words in said.lower() for words in _MISSING):
            wrong = f"{engine.name} has none of this name: `{engine.name} pull {name}` brings it"
        elif done.returncode:
            wrong = f"{engine.name} says {said}"
        elif "bash" not in has:
            wrong = "it has no bash, which calls need"
        elif "seccomp" not in has:
            wrong = f"{engine.name} starts it without a seccomp filter: correct its configuration"
        else:
            return Image(name, engine, has)
        raise SandboxMissing(f"the image {name} cannot be used: {wrong}")

    def _engine(self) -> Engine:
        found = self.engine()
        if isinstance(found, str):
            raise SandboxMissing(f"there is no container engine for images of jobs: {found}")
        return found

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return _ask(arguments, self._environment)


def find_engine(environment: Mapping[str, str]) -> Engine | str:
    """Return the first engine on the PATH that answers, or why there is none."""
    reasons = []
    for name, about in _ABOUT.items():
        program = shutil.which(name, path=environment.get("PATH"))
        if program is None:
            reasons.append(f"{name} is not on the PATH")
            continue
        try:
            done = _ask((program, "info", "--format", about), environment)
        except HostFaultError as error:
            reasons.append(str(error))
            continue
        if done.returncode == 0:
            return Engine(name, program, "rootless" in done.stdout, "limits" in done.stdout)
        reasons.append(f"{name} does not answer: {_said(done)}")
    return "; ".join(reasons)


def image_needs(needs: Sequence[Path], sandbox: Sandbox) -> list[Path]:
    """Return what of the folders that a process has to see is mounted: of Runner, its code alone."""
    *interpreter, code = boot_needs()
    needs = [*needs, code] if sandbox.network else needs  # the proxy's launcher
    return [each / "runner" if each == code else each for each in needs if each not in interpreter]


def _ask(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environment),
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxMissing(f"{arguments[0]} does not answer: {error}") from error


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return shorten(done.stderr.strip().partition("\n")[0], _LONGEST_WORDS)


def _in_file_system(path: str | None) -> str:
    """Return the path of a file from the root of its file system, as mountinfo of proc(5) has it."""
    if path is None:
        return "/"
    name, found, below = _escaped(path), "", ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for what, at in (line.split()[3:5] for line in file):
            if inside(name, at) and len(at) >= len(found):  # of two at one place, the later
                found, below = at, what
    return f"{below.rstrip('/')}/{name[len(found) :].lstrip('/')}".rstrip("/") or "/"


def _escaped(path: str) -> str:
    return os.fsdecode(escaped(path))


def _mounted(mount: Mount) -> tuple[str, str]:
    """Return a mount as an option: its fields as a line of CSV."""
    if mount.source is None and mount.writable:
        return "--tmpfs", f"{mount.target}:exec"
    fields = ["type=tmpfs", f"target={mount.target}"]
    if mount.source is not None:
        fields = ["type=bind", f"source={mount.source}", *fields[1:]]
    if not mount.writable:
        fields.append("readonly")
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return "--mount", line.getvalue()
