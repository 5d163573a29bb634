"""Running git: bounded in time, cut on request, and never steered by a repository's own settings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from runner.errors import WorkspaceError

Check = Callable[[], None]

LOCAL_SECONDS = 900.0
REMOTE_SECONDS = 300.0

_CHECK_SECONDS = 0.2
_MOST_TEXT = 500  # characters of what git said
_HOPELESS = re.compile(r"^(fatal|error): ?", re.MULTILINE)
# How to reach a remote is the user's business; every other GIT_ name would lead git elsewhere
# (https://git-scm.com/docs/git#_environment_variables).
_TRANSPORT = re.compile(
    r"GIT_(SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|PROXY_COMMAND|SSL_.*|HTTP_.*|CONFIG_GLOBAL"
    r"|CONFIG_SYSTEM|CONFIG_NOSYSTEM|EXEC_PATH)"
)
# A repository may name programs that git runs (https://git-scm.com/docs/git-config).
_NEVER_RUN = ("core.hooksPath=/dev/null", "core.fsmonitor=false")


class GitError(WorkspaceError):
    """git is missing, failed, took too long, or its answer cannot be used."""


class GitTimeoutError(GitError):
    """It took too long."""


@dataclass(frozen=True, slots=True)
class Git:
    """git as it is run at one place.

    Args:
        folder: where it runs.
        environment: its environment; names that begin with GIT_ are dropped.
        variables: further variables (GIT_DIR …), kept as they are.
        settings: ``name=value`` of git's configuration, over those of any file.
        user_settings: whether the user's and the machine's configuration count, and the variables
            that say how a remote is reached: only where one is talked to.
    """

    folder: Path
    environment: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[str] = ()
    user_settings: bool = False

    def run(
        self,
        *arguments: str | bytes,
        given: bytes = b"",
        check: Check = lambda: None,
        accept: Sequence[int] = (0,),
        seconds: float = LOCAL_SECONDS,
    ) -> bytes:
        """Run one command of git to its end.

        Args:
            given: its standard input.
            check: called before git starts and several times a second; what it raises ends git first.
            accept: the exit codes that are no failure.
            seconds: after which git is killed.

        Returns:
            What it wrote to its standard output.

        Raises:
            GitError: it is not installed, failed, or took too long.
        """
        check()
        return self.start(*arguments, given=given).result(check, accept, seconds)

    def start(self, *arguments: str | bytes, given: bytes = b"") -> Running:
        """Start one command of git.

        Raises:
            GitError: it is not installed, or cannot be started.
        """
        options = [part for setting in (*_NEVER_RUN, *self.settings) for part in ("-c", setting)]
        name = os.fsdecode(arguments[0])
        try:
            with _standard_input(given) as standard_input:
                process = subprocess.Popen(
                    ["git", *options, *arguments],
                    cwd=self.folder,
                    env=self._variables(),
                    stdin=standard_input,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # no terminal to ask on, and one group to kill
                )
        except OSError as error:
            raise GitError(_not_started(error, self.folder)) from error
        return Running(process, name)

    def _variables(self) -> dict[str, str]:
        wanted = _TRANSPORT.fullmatch if self.user_settings else lambda name: None
        found: dict[str, str] = {
            name: value
            for name, value in self.environment.items()
            if not name.startswith("GIT_") or wanted(name)
        }
        if not self.user_settings:
            found |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        return found | {
            "GIT_TERMINAL_PROMPT": "0",
            "SSH_ASKPASS_REQUIRE": "never",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_ATTR_NOSYSTEM": "1",
            "LC_ALL": "C",
            **self.variables,
        }


class Running:
    """A git that was started."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._process = process
        self._name = name

    def result(
        self,
        check: Check = lambda: None,
        accept: Sequence[int] = (0,),
        seconds: float = LOCAL_SECONDS,
    ) -> bytes:
        """Wait for its end; see ``Git.run``."""
        try:
            output, said = self._wait(check, time.monotonic() + seconds)
        except subprocess.TimeoutExpired as error:
            took = f"git {self._name} did not end within {seconds:.0f} seconds"
            raise GitTimeoutError(took) from error
        finally:
            self.stop()
        code = self._process.returncode
        if code not in accept:
            raise GitError(f"git {self._name} failed: {_explained(code, said)}")
        return output

    def stop(self) -> None:
        """Kill it and what it started, unless it has ended."""
        with self._process:
            if self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _wait(self, check: Check, until: float) -> tuple[bytes, bytes]:
        while True:
            try:
                return self._process.communicate(timeout=_CHECK_SECONDS)
            except subprocess.TimeoutExpired:
                check()
                if time.monotonic() > until:
                    raise


@contextmanager
def _standard_input(given: bytes) -> Iterator[int | IO[bytes]]:
    """What a process reads: a file, as ``Popen.communicate`` writes no more to a pipe once it has timed
    out (https://docs.python.org/3/library/subprocess.html#subprocess.Popen.communicate)."""
    if not given:
        yield subprocess.DEVNULL
        return
    with TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        yield file


def one_line(text: str) -> str:
    """A text on one line that a terminal can show: what is not printable is escaped."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)


def shown(path: bytes) -> str:
    """A path of a work tree, for a message."""
    return one_line(path.decode("utf-8", "backslashreplace").replace("\n", "\\n"))


def _explained(code: int, said: bytes) -> str:
    lines = said.decode("utf-8", "replace").splitlines()
    telling = [_HOPELESS.sub("", line) for line in lines if _HOPELESS.match(line)] or lines
    text = one_line("; ".join(line for line in telling if line.strip()))
    if len(text) > _MOST_TEXT:
        text = f"{text[:_MOST_TEXT]} …"
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return text or f"{ended}, and it said nothing"


def _not_started(error: OSError, folder: Path) -> str:
    if isinstance(error, FileNotFoundError) and folder.is_dir():
        return "git is not on the PATH: install it (https://git-scm.com) and start the worker again"
    return f"git cannot be started in {one_line(str(folder))}: {error.strerror or error}"
