"""Snapshots that travel by a remote."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.workspace.git import GitError

from .places import RUN, Place, contents, git, make_place, write

FILES = {"a.py": "one\n", "folder/b.py": "two\n"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path, FILES)


@pytest.mark.slow
def test_a_shallow_clone_is_recorded_and_pushed(place: Place, tmp_path: Path) -> None:
    write(place.source, {"a.py": "second\n"})
    git(place.source, "commit", "-q", "-a", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{place.source}", "shallow")
    git(tmp_path, "init", "-q", "--bare", "remote.git")
    work = tmp_path / "other"
    base = git(tmp_path / "shallow", "rev-parse", "HEAD")
    git(tmp_path / "shallow", "worktree", "add", "-q", "--detach", str(work), base)
    shallow = Place(tmp_path / "home2", tmp_path / "shallow", work, base)
    snapshots = shallow.snapshots()
    write(work, {"new": "x"})
    git(work, "commit", "-q", "-a", "-m", "x", "--allow-empty")
    tree = snapshots.take(keep=[git(work, "rev-parse", "HEAD")])
    snapshots.push(str(tmp_path / "remote.git"))
    ref = f"refs/runner/runs/{RUN}/1^{{tree}}"
    assert git(tmp_path / "remote.git", "rev-parse", ref) == tree


@pytest.mark.slow
def test_snapshots_travel_by_a_remote(place: Place, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "remote.git")
    remote = str(tmp_path / "remote.git")
    snapshots = place.snapshots()
    snapshots.take()
    write(place.work, {"new/file": "x", "a.py": "2\n"})
    (place.work / "empty").mkdir()
    tree, before = snapshots.take(), contents(place.work)
    snapshots.push(remote)
    snapshots.push(remote)
    git(tmp_path, "clone", "-q", str(place.source), "clone")
    git(tmp_path / "clone", "worktree", "add", "-q", "--detach", str(tmp_path / "w"), place.base)
    elsewhere = Place(tmp_path / "home2", tmp_path / "clone", tmp_path / "w", place.base)
    theirs = elsewhere.snapshots(2)
    assert not theirs.has(tree)
    theirs.fetch(remote)
    assert theirs.has(tree)
    assert theirs.last() is None
    theirs.restore(tree)
    assert contents(elsewhere.work) == before
    theirs.push(remote)
    snapshots.fetch(remote)
    assert git(tmp_path / "remote.git", "rev-parse", f"refs/runner/runs/{RUN}/2^{{tree}}") == tree


@pytest.mark.slow
def test_a_remote_without_snapshots_gives_none(place: Place, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "remote.git")
    snapshots = place.snapshots()
    snapshots.fetch(str(tmp_path / "remote.git"))
    assert snapshots.last() is None


@pytest.mark.slow
def test_a_remote_that_is_not_there_is_an_error_of_one_line(place: Place, tmp_path: Path) -> None:
    snapshots = place.snapshots()
    snapshots.take()
    with pytest.raises(GitError, match=r"git push failed: .* does not appear") as caught:
        snapshots.push(str(tmp_path / "no\x1bsuch"))
    assert str(caught.value).isprintable()
    with pytest.raises(GitError, match="git fetch failed"):
        snapshots.fetch(str(tmp_path / "nothing"))


def test_what_is_here_under_the_name_of_another_attempt_is_not_pushed(
    place: Place, tmp_path: Path
) -> None:
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", str(remote))
    place.snapshots(2).take()  # by whoever looked at what is left here of attempt 1
    write(place.work, {"a.py": "other\n"})
    third = place.snapshots(3)
    third.take()
    third.push(str(remote))
    names = git(remote, "for-each-ref", "--format=%(refname)").split("\n")
    assert [name.rpartition("/")[2] for name in names] == ["3"]
