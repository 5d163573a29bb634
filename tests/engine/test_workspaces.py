"""Where runs work, and what an agent may do to the proof of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.engine.workspaces import COPIES, RunWorkspaces
from runner.store.database import Database
from runner.workspace.identity import MARKER, identify


@pytest.fixture
def workspaces(database: Database, tmp_path: Path) -> RunWorkspaces:
    return RunWorkspaces(database, tmp_path / "home")


def test_a_copy_is_proof_of_itself(workspaces: RunWorkspaces, tmp_path: Path) -> None:
    copy = tmp_path / "home" / COPIES / "run_1"
    assert not workspaces.visible(copy, "ws_1")
    copy.mkdir(parents=True)
    assert workspaces.visible(copy, "ws_1")


def test_a_folder_that_was_seen_gets_its_id_back(workspaces: RunWorkspaces, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    identity = identify(folder)
    assert workspaces.visible(folder, identity)
    (folder / MARKER).unlink()
    assert workspaces.visible(folder, identity)
    assert identify(folder) == identity


def test_a_folder_with_another_id_or_never_seen_is_not_taken_for_it(
    workspaces: RunWorkspaces, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    assert not workspaces.visible(folder, "ws_" + "a" * 26)
    identify(folder)
    assert not workspaces.visible(folder, "ws_" + "a" * 26)
