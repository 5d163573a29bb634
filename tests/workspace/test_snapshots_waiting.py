"""What git would wait for for ever, in the place of a file with its rules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.workspace.git import GitError

from .places import Place, make_place, write


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path, {"a.py": "one\n", "folder/b.py": "two\n"})


@pytest.mark.slow
@pytest.mark.parametrize("name", [".gitignore", "folder/.gitignore", "new/.gitignore"])
def test_a_pipe_with_gits_rules_is_told_and_not_waited_for(place: Place, name: str) -> None:
    snapshots = place.snapshots()
    tree = snapshots.take()
    write(place.work, {"new/c.py": "three\n"})
    os.mkfifo(place.work / name)
    for deed in (snapshots.take, lambda: snapshots.restore(tree)):
        with pytest.raises(GitError, match=f"^{name} is not a file, and git would wait for it"):
            deed()
    (place.work / name).unlink()
    snapshots.restore(tree)
    assert snapshots.take() == tree


def test_a_link_with_gits_rules_that_leads_to_no_file_gives_a_tree(
    place: Place, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (place.work / "folder" / ".gitignore").symlink_to(tmp_path / "pipe")
    (place.work / ".gitattributes").symlink_to("/dev/zero")
    assert place.snapshots().take(), "git follows no link there"
