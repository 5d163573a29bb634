"""Runs git: with a time limit, stopped on request, and never directed by a repository's settings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile

from runner.errors import HostFaultError, WorkspaceError, host_fault, tells_host_fault

Check = Callable[[], None]  # called now and then; what it raises ends the work

REMOTE_SECONDS = 300.0

_LOCAL_SECONDS = 900.0
_CHECK_SECONDS = 0.2
_LONGEST_MESSAGE = 500  # characters of git's standard error
# Out of memory: the kernel ends a process; a file in memory could not grow.
_SIGNALS_OF_HOST = (signal.SIGKILL, signal.SIGBUS)
_FATAL = re.compile(r"^(fatal|error): ?", re.MULTILINE)
# How to reach a remote is the user's business; every other GIT_ name would lead git elsewhere
# (https://git-scm.com/docs/git#_environment_variables).
_TRANSPORT = re.compile(
    r"GIT_(SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|PROXY_COMMAND|SSL_.*|HTTP_.*|CONFIG_GLOBAL"
    r"|CONFIG_SYSTEM|CONFIG_NOSYSTEM|EXEC_PATH)"
)
# A repository may name programs that git runs (https://git-scm.com/docs/git-config).
_NEVER_RUN = ("core.hooksPath=/dev/null", "core.fsmonitor=false")
_VARIABLES = {
    "GIT_TERMINAL_PROMPT": "0",
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ATTR_NOSYSTEM": "1",
    "LC_ALL": "C",
}


class GitError(WorkspaceError):
    """git failed, took too long, or gave an answer that cannot be used."""


class GitTimeoutError(GitError):
    """git took too long."""


def no_check() -> None:
    """Never end the work early."""


@dataclass(frozen=True, slots=True)
class Git:
    """git with the folder, environment and settings that its commands run with."""

    folder: Path  # the working directory
    environment: Mapping[str, str]  # names that begin with GIT_ are dropped
    variables: Mapping[str, str] = field(default_factory=dict)  # GIT_DIR and the like, kept
    settings: Sequence[str] = ()  # "name=value" of git's configuration, above every file
    user_settings: bool = False  # honour the user's and the machine's configuration and transport
    seconds: float = _LOCAL_SECONDS  # after which a command is killed

    def run(
        self,
        *arguments: str | bytes,
        given: bytes = b"",
        check: Check = no_check,
        accept: Sequence[int] = (0,),
        seconds: float | None = None,
    ) -> bytes:
        """Run one command to its end and return its standard output.

        Args:
            given: its standard input.
            check: called before git starts and several times a second; what it raises ends git.
            accept: the exit codes that are no failure.
            seconds: a time limit other than ``self.seconds``.

        Raises:
            GitError: git failed, or took too long.
            HostFaultError: git is not installed, or says that this host has no space, no memory …
        """
        check()
        return self.start(*arguments, given=given).result(check, accept, seconds or self.seconds)

    def text(self, *arguments: str | bytes, given: bytes = b"", check: Check = no_check) -> str:
        """Run a command and return its output as text without the final newline."""
        return os.fsdecode(self.run(*arguments, given=given, check=check)).removesuffix("\n")

    def answer(self, *arguments: str) -> str | None:
        """Run a command and return its output like ``text``, or None if it fails."""
        try:
            return self.text(*arguments)
        except GitError:
            return None

    def records(
        self, *arguments: str | bytes, given: bytes = b"", check: Check = no_check
    ) -> list[bytes]:
        """Run a command with ``-z`` and return the records that it lists."""
        return split(self.run(*arguments, given=given, check=check))

    def having(self, **variables: str) -> Git:
        return replace(self, variables={**self.variables, **variables})

    def signed(self, name: str, email: str, **more: str) -> Git:
        """Return this git with an author and committer of what it writes; ``DATE`` can be given."""
        person = {"NAME": name, "EMAIL": email, **more}
        roles = ("AUTHOR", "COMMITTER")
        return self.having(**{f"GIT_{r}_{k}": value for r in roles for k, value in person.items()})

    def start(self, *arguments: str | bytes, given: bytes = b"") -> GitProcess:
        """Start one command. Raises ``GitError`` if git cannot be started in the folder,
        ``HostFaultError`` if it cannot be started on this host."""
        options = [part for setting in (*_NEVER_RUN, *self.settings) for part in ("-c", setting)]
        kept: dict[str, str] = {
            name: value
            for name, value in self.environment.items()
            if not name.startswith("GIT_") or (self.user_settings and _TRANSPORT.fullmatch(name))
        }
        if not self.user_settings:
            kept |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        # From a file: Popen.communicate stops writing to a pipe once it has timed out
        # (https://docs.python.org/3/library/subprocess.html#subprocess.Popen.communicate).
        try:
            with TemporaryFile() if given else open(os.devnull, "r+b", buffering=0) as source:
                source.write(given)
                source.seek(0)
                process = subprocess.Popen(
                    ["git", *options, *arguments],
                    cwd=self.folder,
                    env=kept | _VARIABLES | dict(self.variables),
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # no terminal to ask on, and one group to kill
                )
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self.folder.is_dir():
                advice = "install it (https://git-scm.com) and start the worker again"
                raise HostFaultError(f"git is not on the PATH: {advice}") from error
            wrong = f"git cannot be started in {one_line(str(self.folder))}: "
            wrong += error.strerror or str(error)
            is_of_host = host_fault(error) or isinstance(error, BlockingIOError)  # no process left
            raise (HostFaultError if is_of_host else GitError)(wrong) from error
        return GitProcess(process, os.fsdecode(arguments[0]))


@dataclass(frozen=True, slots=True)
class GitProcess:
    process: subprocess.Popen[bytes]
    name: str  # of the command, for messages

    def result(
        self, check: Check = no_check, accept: Sequence[int] = (0,), seconds: float = _LOCAL_SECONDS
    ) -> bytes:
        """Wait for its end and return its standard output; see ``Git.run``."""
        until = time.monotonic() + seconds
        try:
            while True:
                try:
                    output, said = self.process.communicate(timeout=_CHECK_SECONDS)
                    break
                except subprocess.TimeoutExpired as error:
                    check()
                    if time.monotonic() > until:
                        took = f"git {self.name} did not end within {seconds:.0f} seconds"
                        raise GitTimeoutError(took) from error
        finally:
            self.stop()
        code = self.process.returncode
        if code not in accept:
            why = _explained(code, said)
            is_of_host = -code in _SIGNALS_OF_HOST or tells_host_fault(why)
            raise (HostFaultError if is_of_host else GitError)(f"git {self.name} failed: {why}")
        return output

    def stop(self) -> None:
        """Kill it and what it started, unless it has ended."""
        with self.process:
            if self.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)


def split(listed: bytes) -> list[bytes]:
    """Return the records of a list in which a zero byte ends each."""
    return listed.split(b"\0")[:-1]


def one_line(text: str) -> str:
    """Return a text as one line that a terminal can show, unprintable characters escaped."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)


def shown(path: bytes) -> str:
    """Return a path of a work tree for a message."""
    return one_line(path.decode("utf-8", "backslashreplace").replace("\n", "\\n"))


def _explained(code: int, said: bytes) -> str:
    lines = said.decode("utf-8", "replace").splitlines()
    telling = [_FATAL.sub("", line) for line in lines if _FATAL.match(line)] or lines
    text = one_line("; ".join(line for line in telling if line.strip()))
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]} …"
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return text or f"{ended}, and it said nothing"
