"""Questions in SQL whose processes are forked, as those of ``tests.runner_process`` are: most of what a
test of one takes would be starting Python. What tests the start itself, or what such a process may take,
has it started (``begun_anew``)."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tests.forking import Forked, serve

if TYPE_CHECKING:  # what forks is as small as what is forked
    import pytest

_MODULE = "tests.asking"
_ANSWERS = "runner.queries.sql.child"


class _Asked(Forked):
    """The process of a question, used like ``subprocess.Popen``."""

    def __init__(self, command: Sequence[str], **streams: int) -> None:
        assert any(_ANSWERS in part for part in command), command
        nothing = subprocess.DEVNULL
        pipe = subprocess.PIPE
        assert streams == {"stdin": pipe, "stdout": pipe, "stderr": nothing}, streams
        child_in, told = os.pipe()
        said, child_out = os.pipe()
        child_err = os.open(os.devnull, os.O_WRONLY)
        theirs = (child_in, child_out, child_err)
        try:
            super().__init__(_MODULE, (), Path.cwd(), os.environ, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.stdin = open(told, "wb")  # noqa: SIM115 - closed by the one who asks
        self.stdout = open(said, "rb")  # noqa: SIM115

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        self.look(None)


def fork_questions(patch: pytest.MonkeyPatch) -> None:
    """Have questions answered by forked processes until the patch is undone."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": _Asked})
    patch.setattr("runner.queries.sql.ask.subprocess", forking)


def _import_what_answers() -> None:
    for database in ("postgres", "sqlite"):
        importlib.import_module(f"runner.queries.sql.{database}")


if __name__ == "__main__":
    serve(_import_what_answers)
    from runner.queries.sql.child import main

    main()
