"""Snapshots of a folder in which somebody goes on: what is found may be gone before it is looked at."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.workspace.git import GitTimeoutError
from runner.workspace.survey import Surveyor

from .places import Place, write

# git, and what happens in the work tree before or after one of its commands, once.
GIT = """#!{python}
import os, shutil, subprocess, sys
arguments = sys.argv[1:]
is_it = not os.path.exists({happened!r}) and eval({when!r})
if is_it:
    open({happened!r}, "w").close()
if is_it and {before!r}:
    shutil.rmtree({victim!r})
    arguments.remove("--remove")  # it has seen the files, and is about to read them
code = subprocess.run([{git!r}, *arguments]).returncode
if is_it and not {before!r}:
    shutil.rmtree({victim!r})
sys.exit(code)
"""

FOUND = "'--others' in arguments and '--directory' in arguments"
LISTED = "'--others' in arguments and '--directory' not in arguments"
READ = "'update-index' in arguments and '--add' in arguments"


def environment(folder: Path, victim: Path, when: str) -> Mapping[str, str]:
    """One with a git during whose command a folder vanishes, once ``happened`` beside it is gone."""
    programs = folder / "programs"
    programs.mkdir()
    program = programs / "git"
    text = GIT.format(
        python=sys.executable,
        git=shutil.which("git"),
        happened=str(folder / "happened"),
        victim=str(victim),
        when=when,
        before=when == READ,
    )
    program.write_text(text)
    program.chmod(0o755)
    (folder / "happened").touch()
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.parametrize("when", [FOUND, LISTED, READ], ids=["found", "listed", "read"])
def test_what_vanishes_while_a_snapshot_is_taken_is_not_in_it(
    place: Place, tmp_path: Path, when: str
) -> None:
    without = place.snapshots(1).take()
    victim = place.work / "temporary"
    snapshots = place.snapshots(2, environment=environment(tmp_path, victim, when))
    assert snapshots.take() == without
    (tmp_path / "happened").unlink()
    write(place.work, {"temporary/new.py": "x", "temporary/inner/b.py": "y"})
    (victim / "empty").mkdir()
    assert snapshots.take() == without
    assert (tmp_path / "happened").exists()
    assert not victim.exists()
    assert snapshots.take() == without


def test_a_git_that_hangs_is_not_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def hang(*arguments: object) -> None:
        asked.append(arguments)
        raise GitTimeoutError("git ls-files did not end within 900 seconds")

    monkeypatch.setattr(Surveyor, "survey", hang)
    with pytest.raises(GitTimeoutError):
        place.snapshots(1).take()
    assert len(asked) == 1
