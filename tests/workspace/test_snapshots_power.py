"""What was written for a snapshot that a crash or the disk cut off is never taken for recorded."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from runner.workspace import writing
from runner.workspace.git import GitError
from runner.workspace.snapshots import Snapshots, looking

from .places import RUN, Place, contents, git, write


@pytest.fixture
def cut_off(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of a changed file and an empty folder that was cut off before its
    objects were on the disk; what the disk has of them then is nothing."""

    def power_goes(drafts: object, check: object) -> None:
        raise KeyboardInterrupt

    place.snapshots().take()
    write(place.work, {"a.py": "new\n", "empty.log": "x"})
    (place.work / "nothing").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(writing, "put_in_place", power_goes)
        with pytest.raises(KeyboardInterrupt):
            place.snapshots().take()
    left = [
        path for path in (place.store / "runs" / RUN / "objects-1").rglob("*") if path.is_file()
    ]
    assert left
    for path in left:
        path.unlink()
        path.touch()


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.usefixtures("cut_off")
def test_what_the_disk_lost_is_recorded_anew(place: Place, attempt: int) -> None:
    snapshots, before = place.snapshots(attempt), contents(place.work)
    tree = snapshots.take()
    write(place.work, {"a.py": "other\n"})
    (place.work / "nothing").rmdir()
    snapshots.restore(tree)
    assert contents(place.work) == before
    assert_sound(place)


@pytest.mark.usefixtures("cut_off")
def test_who_looks_meanwhile_sees_the_files(place: Place) -> None:
    with looking(
        place.store, place.work, RUN, environment=os.environ, ignored=(), largest_file=1000
    ) as looked:
        seen = looked.take()
    assert seen == place.snapshots(2).take()


def test_nothing_takes_its_place_that_the_disk_does_not_take(
    snapshots: Snapshots, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.take()
    before = stored(place)
    write(place.work, {"a.py": "new\n"})

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(GitError, match=r"cannot write .*: Input/output error"):
            snapshots.take()
    assert stored(place) == before
    tree = snapshots.take()
    assert snapshots.last() == tree
    assert_sound(place)


@pytest.mark.parametrize("is_linux", [True, False])
def test_all_that_takes_its_place_was_flushed_before(
    snapshots: Snapshots, place: Place, monkeypatch: pytest.MonkeyPatch, is_linux: bool
) -> None:
    """On Linux with one flush for all, elsewhere with one for each."""
    flushed, moved = [], []
    fsync, rename = os.fsync, Path.rename

    def flush(descriptor: int) -> None:
        assert not moved
        flushed.append(descriptor)
        fsync(descriptor)

    def move(self: Path, target: Path) -> Path:
        if self.is_relative_to(place.store):
            moved.append(target)
        return rename(self, target)

    if not is_linux:
        monkeypatch.setattr(writing, "_SYNC_FILE_RANGE", None)
    snapshots.take()
    write(place.work, {"a.py": "new\n", "folder/c.py": "new, too\n"})
    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(Path, "rename", move)
    snapshots.take()
    # two files, two folders, the commit, the ref
    assert [len(flushed), len(moved)] == [1 if is_linux else 6, 6]
    assert moved[-1] == place.store / f"refs/runner/runs/{RUN}/1"


def test_a_change_that_is_no_other_tree_leaves_nothing_behind(
    snapshots: Snapshots, place: Place
) -> None:
    """What the source has, and the store has not yet, is written when it is seen again."""
    tree = snapshots.take()
    write(place.work, {"a.py": "one\n"})
    assert snapshots.take() == tree
    assert not list((place.store / "runs" / RUN / "objects-1").iterdir())


def test_snapshots_are_sound_to_git(snapshots: Snapshots, place: Place) -> None:
    for number in range(3):
        write(place.work, {"a.py": f"{number}\n", f"folder{number}/x": "x"})
        snapshots.take(note="héllo")
    assert_sound(place)


def stored(place: Place) -> dict[Path, bytes]:
    """The store's objects and refs."""
    folders = (place.store / "objects", place.store / "refs")
    return {
        path: path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_sound(place: Place) -> None:
    objects = str(place.source / ".git/objects")
    located = {"GIT_DIR": str(place.store), "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
    git(place.work, "fsck", "--strict", "--full", **located)
