"""Where runs work, and what an agent may do to the proof of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.core.run import Lease
from runner.ports import Interrupt
from runner.workspace.folders import COPIES, MARKER, identify
from runner.workspace.run_workspaces import RunWorkspaces
from runner.workspace.snapshot_store import store_id
from tests.workspace.repository.made import Made

from .conftest import Claim, Host


@pytest.fixture
def workspaces(host: Host) -> RunWorkspaces:
    return host.workspaces


def test_a_copy_is_proof_of_itself(host: Host, workspaces: RunWorkspaces) -> None:
    copy = host.home / COPIES / "run_1"
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


def test_recorded_files_are_seen_where_their_snapshots_are(
    host: Host, workspaces: RunWorkspaces
) -> None:
    gone = host.home / COPIES / "run_1"
    assert workspaces.visible(gone, f"snap_{store_id(host.home)}"), "it can be made again"
    assert not workspaces.visible(gone, "snap_" + "a" * 26)


def test_a_repository_is_seen_where_it_has_the_commit(
    workspaces: RunWorkspaces, repository: Made, tmp_path: Path
) -> None:
    commit = repository.git("rev-parse", "HEAD")
    assert not workspaces.visible(repository.path, "git_" + "1" * 40)
    assert not workspaces.visible(tmp_path / "other", f"git_{commit}")
    assert workspaces.visible(repository.path, f"git_{commit}")
    repository.path.rename(tmp_path / "other")
    assert not workspaces.visible(repository.path, f"git_{commit}")


def test_attempts_that_open_workspaces_side_by_side_do_each_other_no_harm(
    host: Host, begin: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(dict[Lease, Any]):
        """What must not grow while one looks for the oldest in it."""

        def __iter__(self) -> Iterator[Lease]:
            assert workspaces._opening.locked()
            return super().__iter__()

    workspaces = host.open(most_open=2)
    monkeypatch.setattr(workspaces, "_open", Watched())
    lease = begin()
    for number in range(1, 5):
        each = Lease(lease.run_id, number, lease.worker_id)
        assert workspaces._own(each, Interrupt()) is not None
    assert len(workspaces._open) == 2
