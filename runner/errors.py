"""The exceptions that Runner raises. Tool errors are not here: they are results for the model
(``runner.core.conversation``)."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal


class RunnerError(Exception):
    """Base of all errors that Runner raises on purpose. Its text is one line that says what to do."""


class UsageError(RunnerError):
    """The caller asked for something that cannot be done; nothing was changed (exit code 2)."""


class NotFoundError(UsageError):
    """An id names nothing, or more than one thing."""


class NoDatabaseError(UsageError):
    """No database exists yet where the settings say, given as ``where``."""

    def __init__(self, where: str, other: str = "") -> None:
        """``other``: the place of another database, which the user may mean."""
        super().__init__(
            f"no jobs yet in {where}: some are in {other}; use --home, set RUNNER_HOME, or go there"
            if other
            else f"no jobs yet in {where}: start one with `runner run SPEC`, which `runner init` writes"
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a job file: its place (``limits.max_turns``, line) and a suggestion."""

    place: str
    message: str
    line: int | None = None
    excerpt: str = ""  # the line itself, and below it carets under the value

    def __str__(self) -> str:
        at = f"line {self.line}: " if self.line else ""
        return f"{at}{self.place}: {self.message}" if self.place else f"{at}{self.message}"


class SpecError(UsageError):
    """A job file cannot be used. ``problems`` lists every problem in it, in order."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("; ".join(f"{source}: {problem}" for problem in problems))


class WorkspaceError(RunnerError):
    """A run's workspace cannot be made, recorded or put back, and trying again would not help."""


class WorkspaceElsewhere(RunnerError):  # noqa: N818 - not wrong, only not here
    """The snapshots of a run's workspace are on another host: the run waits for that host."""


class HostFaultError(RunnerError):
    """This host cannot work: no space, no memory, no git … No fault of a run: another host may."""

    unbegun: tuple[int, ...] = ()  # indexes of tool calls that were to start, and did not


class HostLacks(HostFaultError):  # noqa: N818 - not wrong, only not here
    """This host lacks what a job requires; it can work other jobs."""


class Unprepared(HostLacks):
    """This host cannot make the workspace that a run is to begin in; another has not tried."""


class ProviderFault(HostLacks):
    """This host cannot call a provider's API; it can work jobs of other providers.

    Args:
        provider: of the API.
        why: in the API's words, or the system's.
        persists: asks the API, at no cost, if it is still so.
    """

    said = "{provider}: {why}"

    def __init__(self, provider: str, why: str, persists: Callable[[], bool]) -> None:
        super().__init__(self.said.format(provider=provider, why=why))
        self.provider, self.persists = provider, persists


class KeyRefused(ProviderFault):
    """The API refuses the key of this host."""

    said = "the API refuses this host's key for {provider} ({why}): start its worker again with a valid key"


class ApiUnreached(ProviderFault):
    """This host does not reach the API: no name server, no route, no certificates, a proxy in the way."""

    said = (
        "this host does not reach the API of {provider} ({why}): look at its network, its proxy, its "
        "certificates and the API's address in its environment"
    )


class SandboxMissing(HostLacks):
    """This host cannot contain the calls of a job that requires it."""


# No space, read-only, too many open files, no memory, a broken disk.
_HOST_ERRORS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE),
        *(errno.ENOMEM, errno.EIO, errno.ESTALE),
    }
)
_NO_THREAD = "can't start new thread"
# How a program says that at the end of a message; EAGAIN: no process or thread could be started.
_SAID = re.compile(
    r"(\[Errno \d+\] )?("
    + "|".join(re.escape(os.strerror(each)) for each in (*sorted(_HOST_ERRORS), errno.EAGAIN))
    + r")\.?|out of memory\b.*|MemoryError",
    re.IGNORECASE,
)
_PARTS = re.compile(r"[:;\n]|$")


def host_fault(error: BaseException) -> str | None:
    """Return the fault of this host in one line, if an error comes from one; else None."""
    cause: BaseException | None = error
    while cause is not None:
        if (
            isinstance(cause, HostFaultError | MemoryError)
            or (isinstance(cause, OSError) and cause.errno in _HOST_ERRORS)
            or (isinstance(cause, RuntimeError) and _NO_THREAD in str(cause))
        ):
            return " ".join(str(error).split()) or "no memory is left"
        cause = cause.__cause__ or cause.__context__  # libraries raise "from None", too
    return None


def tells_host_fault(said: str) -> bool:
    """True if what a program or the system said is about the host: it has no space, no memory …"""
    return any(_SAID.fullmatch(part.strip()) for part in _PARTS.split(said))


class UnreachableError(RunnerError):
    """A database, queue or network that Runner needs does not answer (exit code 5)."""


class LeaseLost(RunnerError):  # noqa: N818 - the design's word for it
    """Another attempt holds the run, or it was cancelled: drop it, append nothing."""


class StaleState(RunnerError):  # noqa: N818 - the design's word for it
    """The journal has moved on since the run state was loaded (a commit whose answer was lost went
    through): load it again. Nothing was stored."""


InterruptReason = Literal["dropped", "shutdown"]


class Interrupted(RunnerError):  # noqa: N818 - the design's word for it
    """An effect was cut because this attempt no longer has the run."""

    reason: InterruptReason = "dropped"

    def __init__(self) -> None:
        super().__init__(f"interrupted ({self.reason})")


SHUT_DOWN = "the worker was shut down during the call"


class ShutDown(Interrupted):
    """An effect was cut because the worker shuts down: its result may still be stored."""

    reason = "shutdown"


@dataclass(eq=False)
class ModelCallError(RunnerError):
    """A model call returned no complete reply."""

    # The API's error type where it gave one (``rate_limit_error``, ``overloaded_error`` …), else
    # ``connection``, ``stream_cut``, ``stream_stalled``, ``stream_broken`` or ``call_deadline``; and
    # ``prompt_too_long`` whatever the API calls that.
    kind: str
    message: str  # the API's own words, or what was seen, in one line
    _: KW_ONLY
    status: int | None = None  # HTTP status, when the API answered with an error status
    request_id: str | None = None
    retry_after: float | None = None  # seconds that the API asked to wait
    # False when it is certain that no token was used: the API refused the request before any model read
    # it, or it was never sent.
    billed: bool = True
    counted: Mapping[str, int] | None = None  # tokens by kind that the API has counted, if it has
    most_output: int | None = None  # tokens that the reply can have had; None: nothing bounds it

    @property
    def is_unreached(self) -> bool:
        """True if the request did not reach the API."""
        return not self.billed and self.kind in ("connection", "stream_stalled", "call_deadline")

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"
