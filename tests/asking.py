"""Questions in SQL whose processes are forked, as those of ``tests.runner_process`` are: most of what a
test of one takes would be starting Python. What tests the start itself, or what such a process may take,
has it started (``begun_anew``)."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tests.forking import Forked, serve

if TYPE_CHECKING:  # what forks is as small as what is forked
    import pytest

_MODULE = "tests.asking"
_ANSWERS = "runner.queries.sql.child"


def _run(
    command: Sequence[str], *, input: bytes, stdout: int, stderr: int
) -> subprocess.CompletedProcess[bytes]:
    """As ``subprocess.run``, for the process of a question."""
    assert any(_ANSWERS in part for part in command), command
    assert (stdout, stderr) == (subprocess.PIPE, subprocess.DEVNULL)
    child_in, told = os.pipe()
    said, child_out = os.pipe()
    child_err = os.open(os.devnull, os.O_WRONLY)
    theirs = (child_in, child_out, child_err)
    try:
        asked = Forked(_MODULE, (), Path.cwd(), os.environ, theirs)
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    with open(said, "rb") as answer:
        with suppress(BrokenPipeError), open(told, "wb") as question:
            question.write(input)
        found = answer.read()
    asked.look(None)
    assert asked.returncode is not None
    return subprocess.CompletedProcess(command, asked.returncode, found)


def fork_questions(patch: pytest.MonkeyPatch) -> None:
    """Have questions answered by forked processes until the patch is undone."""
    forking = SimpleNamespace(**{**vars(subprocess), "run": _run})
    patch.setattr("runner.queries.sql.ask.subprocess", forking)


def _import_what_answers() -> None:
    for database in ("postgres", "sqlite"):
        importlib.import_module(f"runner.queries.sql.{database}")


if __name__ == "__main__":
    serve(_import_what_answers)
    from runner.queries.sql.child import main

    main()
