"""Decide which files the file tools may touch, and open them without ever waiting.

A path is judged by where it leads, with symlinks resolved. If the opened file is not the one that
was judged, because a symlink changed in between, the call is refused. Permission rules see the same
resolved paths: before a call is decided on, and again when the file is opened.
"""

# ruff: noqa: PTH115, PTH116, PTH118, PTH120 - pathlib costs a fast path time

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from runner.core.conversation import ToolOutcome
from runner.permissions import Request, ResolvedPath, ToolContext
from runner.permissions.accesses import paths_of
from runner.ports import Surroundings, ToolCall
from runner.settings import user_home

WORKSPACE_MARKER = ".runner-workspace"  # as runner.workspace.folders names it; a test compares
_LONGEST_PATH = 4_096  # PATH_MAX of Linux
_MOST_FOLDERS = 200  # the standard library makes folders by recursion
# The file systems whose regular files are the kernel's own.
_KERNEL_DEVICES = frozenset(
    os.stat(each).st_dev for each in ("/proc", "/sys") if os.path.ismount(each)
)
_EXPLAINED = {
    errno.ENOENT: " does not exist: Glob finds the files that do",
    errno.ENOTDIR: ": a part of this path is a file, not a folder",
    errno.ELOOP: " is a symlink that leads nowhere",
}
# They lead somewhere else in each process: a command's are not this worker's.
_OF_EACH_PROCESS = ("/proc/", "/dev/fd/", "/dev/std")
_MOST_SYMLINKS = 40  # of Linux: a path with more of them cannot be opened


class ToolFailure(Exception):  # noqa: N818 - not an error of Runner's: a result for the model
    """Ends a tool call; its text tells the model what was wrong and what to do."""

    def __init__(self, message: str, outcome: ToolOutcome = "failed") -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of a run, symlinks resolved."""

    workspace: str | None  # where it works
    outputs: str  # its long outputs
    home: str  # Runner's own

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, surroundings: Surroundings, home: Path) -> Places:
        # Should a folder's symlinks change meanwhile, files in it are refused: that is safe.
        workspace = surroundings.workspace
        return cls(
            None if workspace is None else os.path.realpath(workspace),
            os.path.realpath(surroundings.outputs),
            os.path.realpath(home),
        )

    def find(self, path: str, *, writing: bool = False) -> str:
        """Return where a path (absolute, or relative to the workspace) leads; it need not exist.
        Raises ``ToolFailure`` if no file tool may go there."""
        if (problem := unusable(path)) is not None:
            raise ToolFailure(problem)
        if path == "~" or path.startswith("~/"):
            raise ToolFailure(
                f"{path}: file tools do not expand ~: give a path relative to the workspace, "
                "or ./~ for a file with that name"
            )
        try:
            real = resolve(os.path.join(self.workspace or self.outputs, path))
        except (OSError, ValueError) as error:
            raise ToolFailure(f"{path!r} is not a path that can be used: {error}") from error
        if inside(real, self.outputs):
            if writing:
                raise ToolFailure(f"{path}: outputs of tools can be read and searched, not written")
            return real
        workspace, home = self.workspace, self.home
        if workspace is None:
            raise ToolFailure(
                f"{path}: this job has no workspace, so there are no files to work on"
            )
        if not inside(real, workspace):
            raise ToolFailure(
                f"{path} leads to {real}, outside the workspace {workspace}: "
                "file tools work only inside it"
            )
        # At any depth: a folder of this workspace may be another job's workspace.
        if writing and WORKSPACE_MARKER in real[len(workspace) :].split("/"):
            raise ToolFailure(f"{path} says which workspace this is: it is Runner's own")
        if inside(real, home) and (workspace == home or not inside(workspace, home)):
            raise ToolFailure(f"{path} is in Runner's own folder, which file tools leave alone")
        return real

    def name(self, real: str) -> str:
        """Return how a path that ``find`` gave is shown: relative to the workspace if it lies there."""
        if self.workspace is not None and inside(real, self.workspace):
            return os.path.relpath(real, self.workspace)
        return real


def unusable(path: str) -> str | None:
    """Return what is wrong with a text that no operating system takes for a path, or None."""
    if "\0" in path or not path:
        return "the path is empty or contains a NUL character: give a file's path"
    if len(path) > _LONGEST_PATH or path.count("/") > _MOST_FOLDERS:
        return (
            f"the path is too long: {_LONGEST_PATH} characters and {_MOST_FOLDERS} folders at most"
        )
    return None


def resolve(path: str) -> str:
    """Return an absolute path with its symlinks resolved; missing parts at its end stay. Raises
    ``OSError`` and ``ValueError`` if it is no path, or symlinks lead on and on."""
    try:
        return os.path.realpath(path)
    except RecursionError:  # it follows each symlink by recursion
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None


def _resolve_for_any(path: str) -> str:
    """Return an absolute path with its symlinks resolved, the same for every process. Raises
    ``OSError`` where processes differ (``/proc/self/cwd``), symlinks lead on and on, or a name is too
    long."""
    real, left, followed = "/", path.split("/")[::-1], 0
    while left:
        part = left.pop()
        if part in ("", ".", ".."):
            real = os.path.dirname(real) if part == ".." else real
            continue
        below = os.path.join(real, part)
        if f"{below}/".startswith(_OF_EACH_PROCESS):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        try:
            left += os.readlink(below).split("/")[::-1]
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise
            real = below  # no symlink, or nothing
            continue
        followed += 1
        if followed > _MOST_SYMLINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        real = "/" if left[-1] == "" else real
    return real


def inside(path: str, folder: str) -> bool:
    """Return True if a path is a folder, or leads into it; both without symlinks."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def open_file(real: str, name: str) -> int:
    """Return a descriptor of a regular file, open for reading. Raises ``ToolFailure`` if there is
    none, or it is something else; nothing was waited for."""
    with explained(name):
        check_regular(os.lstat(real), name)  # opening a device can already do something
        return _open(real, name, os.O_NONBLOCK | os.O_NOCTTY)


def open_folder(real: str, name: str) -> int:
    """Return a descriptor of a folder, to name files relative to. Raises ``ToolFailure`` if it is
    not a folder any more, or not the one that was meant."""
    with explained(name):
        return _open(real, name, os.O_DIRECTORY)


def _open(real: str, name: str, flags: int) -> int:
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
    try:
        if not flags & os.O_DIRECTORY:
            check_regular(os.fstat(descriptor), name)
        if sys.platform == "linux" and os.readlink(f"/proc/self/fd/{descriptor}") != real:
            raise ToolFailure(f"{name} changed its place while it was opened: try again")
    except BaseException:  # whatever it was: the descriptor must not stay open
        os.close(descriptor)
        raise
    return descriptor


def make_folders(folder: str, name: str) -> None:
    """Make a folder, and those above it that are missing, where they were meant to be. Raises
    ``OSError`` if one cannot be made; ``ToolFailure`` if the one that they belong in changed its
    place."""
    missing: list[str] = []
    while not os.path.lexists(folder):
        folder, part = os.path.split(folder)
        missing.append(part)
    if not missing:
        return
    descriptor = open_folder(folder, name)
    try:
        for part in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=descriptor)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
    finally:
        os.close(descriptor)


def check_regular(status: os.stat_result, name: str) -> None:
    """Raise ``ToolFailure`` unless this is the status of a regular file on a real file system."""
    if stat.S_ISDIR(status.st_mode):
        raise ToolFailure(
            f"{name} is a folder, not a file: Glob with the pattern '*' lists what is in it"
        )
    if not stat.S_ISREG(status.st_mode) or status.st_dev in _KERNEL_DEVICES:
        raise ToolFailure(f"{name} is not a regular file (a pipe, socket, device or the like)")


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn an operating system's error into a ``ToolFailure`` for whoever named the file."""
    try:
        yield
    except OSError as error:
        why = _EXPLAINED.get(error.errno or 0, f": {error.strerror}")
        raise ToolFailure(f"{name}{why}") from error


def locate(paths: Sequence[str], surroundings: Surroundings, places: Places) -> ToolContext:
    """Return where a run's tools would work, and where ``paths`` lead from there (``~/`` to the
    user's home). What leads nowhere, or below ``/proc``, is left out: it may be what any deny rule
    names."""
    context = tool_context_of(places)
    located = {path: _locate(path, surroundings, places, context.home) for path in paths}
    known = {path: place for path, place in located.items() if place is not None}
    return ToolContext(context.workspace, context.outputs, context.home, known)


def tool_context_of(places: Places) -> ToolContext:
    """Return a run's folders, and the home of the worker's user, which is that of its tools too."""
    return ToolContext(workspace=places.workspace, outputs=places.outputs, home=user_home())


def permitted(call: ToolCall, places: Places, *, writing: bool = False) -> str:
    """Return where the path that a file tool was given leads now, if it may go there. Raises
    ``ToolFailure`` if it may not, by where it leads or by the rules (``denied``)."""
    path = call.input["file_path"]
    real = places.find(path, writing=writing)
    require(call, places, path, real)
    return real


def require(call: ToolCall, places: Places, path: str, real: str) -> None:
    """Raise ``ToolFailure`` (``denied``) unless the call's rules let it touch this one file."""
    place = ResolvedPath(named(path, call.surroundings, places), real)
    decision = call.authorization.check(call.tool.name, place, tool_context_of(places))
    if decision.effect != "allow":
        raise ToolFailure(f"{path}: {decision.explain()}", "denied")


def require_command(call: ToolCall, places: Places) -> None:
    """Raise ``ToolFailure`` (``denied``) unless the rules still let a command redirect to where its
    paths lead now: an earlier call, or somebody else, may have moved a symlink since it was decided."""
    paths = paths_of(call.tool.name, call.input)
    if not paths:
        return
    context = locate(paths, call.surroundings, places)
    decision = call.authorization.check_again(Request(call.tool.name, call.input, context))
    if decision.effect != "allow":
        raise ToolFailure(f"Permission {decision.explain()}.", "denied")


def named(path: str, surroundings: Surroundings, places: Places) -> str:
    """Return a path as written, absolute and without ``.`` and ``..``. The run's own folders have
    one name, the one without symlinks, whichever was used."""
    absolute = os.path.normpath(os.path.join(places.workspace or places.outputs, path))
    absolute = "/" + absolute.lstrip("/")  # POSIX lets two slashes mean something else
    for folder, real in (
        (surroundings.outputs, places.outputs),
        (surroundings.workspace, places.workspace),
    ):
        if folder is None or real is None:
            continue
        given = os.path.normpath(folder).rstrip("/")
        if inside(absolute, given):
            return (real.rstrip("/") + absolute[len(given) :]) or "/"
    return absolute


def _locate(
    path: str, surroundings: Surroundings, places: Places, home: str | None
) -> ResolvedPath | None:
    if unusable(path) is not None:
        return None
    if path.startswith("~"):
        if home is None or path[1:2] not in ("", "/"):
            return None
        path = home + path[1:]
    name = named(path, surroundings, places)
    try:
        real = _resolve_for_any(os.path.join(places.workspace or places.outputs, path))
        (name + real).encode()  # what cannot be stored cannot be asked about
    except (OSError, ValueError):
        return None
    return ResolvedPath(name, real)
