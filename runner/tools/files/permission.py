"""Where the paths of calls lead, as permission rules see them: before a call is decided on, and again
when a file tool is about to open what was decided on."""

# ruff: noqa: PTH111, PTH117, PTH118
# (its paths are strings)

from __future__ import annotations

import os
from collections.abc import Sequence

from runner.permissions import Request, ResolvedPath, ToolContext, paths_of
from runner.ports import Surroundings, ToolCall
from runner.tools.failure import ToolFailure
from runner.tools.files.places import Places, inside, resolve, unusable

# They lead somewhere else in each process: a command's are not this worker's.
_OF_EACH_PROCESS = ("/proc/", "/dev/fd/", "/dev/std")


def locate(paths: Sequence[str], surroundings: Surroundings, places: Places) -> ToolContext:
    """Where a run's tools would work, and where ``paths`` lead from there.

    A leading ``~/`` is the user's home, as it is where a shell redirects to; file tools refuse such a
    path. What leads nowhere, or nowhere that can be told beforehand, is left out: no pattern of a
    rule allows it.
    """
    context = tool_context_of(places)
    located = {path: _locate(path, surroundings, places, context.home) for path in paths}
    known = {path: place for path, place in located.items() if place is not None}
    return ToolContext(context.workspace, context.outputs, context.home, known)


def tool_context_of(places: Places) -> ToolContext:
    """A run's folders, and the home of the worker's user, which is that of its tools too."""
    home = os.path.expanduser("~")
    return ToolContext(
        workspace=places.workspace,
        outputs=places.outputs,
        home=os.path.realpath(home) if os.path.isabs(home) else None,
    )


def permitted(call: ToolCall, places: Places, *, writing: bool = False) -> str:
    """Where the path that a file tool was given leads now, when it may go there.

    Raises:
        ToolFailure: it may not, by where it leads or by the rules (``denied``).
    """
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
    """A path as it is written, absolute and without ``.`` and ``..``. The run's own folders have one
    name, the one without symlinks, whichever was used."""
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
    if name.startswith(_OF_EACH_PROCESS):
        return None
    try:
        real = resolve(os.path.join(places.workspace or places.outputs, path), strict=True)
        (name + real).encode()  # what cannot be stored cannot be asked about
    except (OSError, ValueError):
        return None
    return ResolvedPath(name, real)
