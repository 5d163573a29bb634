"""A snapshot that a crash or a failing git cut off is never taken for recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import Interrupted
from runner.workspace.git import GitError
from runner.workspace.snapshots import Snapshots, looking

from .places import RUN, Place, contents, git, git_that, write

STEPS = ("update-index", "write-tree", "commit-tree", "update-ref")  # of a snapshot, in order


@pytest.mark.slow
def test_a_snapshot_that_is_cut_off_anywhere_is_taken_by_the_next_attempt(place: Place) -> None:
    attempt, was_cut = 1, True
    while was_cut:
        write(place.work, {"a.py": f"{attempt}\n", "empty.log": "x", f"new/{attempt}": "y"})
        (place.work / "nothing").mkdir(exist_ok=True)
        steps = iter(range(attempt))

        def check(steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise Interrupted

        was_cut = False
        try:
            place.snapshots(attempt).take(check)
        except Interrupted:
            was_cut = True
        with looking(
            place.store, place.work, RUN, environment=os.environ, ignored=(), largest_file=1000
        ) as looked:
            seen = looked.take()
        snapshots, before = place.snapshots(attempt + 1), contents(place.work)
        assert snapshots.take() == seen
        write(place.work, {"a.py": "other\n"})
        (place.work / "nothing").rmdir()
        snapshots.restore(seen)
        assert contents(place.work) == before
        attempt += 2
    assert attempt > len(STEPS)
    assert_sound(place)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_nothing_counts_as_recorded_that_git_failed_to_write(
    place: Place, tmp_path: Path, step: str
) -> None:
    before = place.snapshots().take()
    write(place.work, {"a.py": "new\n"})
    script = f"""case " $* " in *" {step} "*) echo "fatal: no room" >&2; exit 128;; esac"""
    failing = place.snapshots(2, environment=git_that(tmp_path / "bin", script))
    with pytest.raises(GitError, match=f"git {step} failed: no room"):
        failing.take()
    assert failing.last() == before
    snapshots = place.snapshots(3)
    tree = snapshots.take()
    assert tree != before
    assert snapshots.last() == tree
    assert_sound(place)


def test_whatever_a_snapshot_writes_is_flushed_to_the_disk(place: Place, tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = f'export GIT_TRACE2_EVENT="{told}"'
    snapshots = place.snapshots(environment=git_that(tmp_path / "bin", script))
    snapshots.take()
    told.unlink()
    write(place.work, {"a.py": "new\n", "folder/c.py": "new, too\n"})
    snapshots.take()
    flushes = {
        event["sid"]: event["value"]
        for event in map(json.loads, told.read_text().splitlines())
        if event.get("key") == "fsync/hardware-flush"
    }
    assert list(flushes.values()) == ["1"] * len(STEPS)


@pytest.mark.slow
def test_snapshots_are_sound_to_git(snapshots: Snapshots, place: Place) -> None:
    for number in range(3):
        write(place.work, {"a.py": f"{number}\n", f"folder{number}/x": "x"})
        snapshots.take(note="héllo")
    assert_sound(place)


def assert_sound(place: Place) -> None:
    objects = str(place.source / ".git/objects")
    located = {"GIT_DIR": str(place.store), "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
    git(place.work, "fsck", "--strict", "--full", **located)
