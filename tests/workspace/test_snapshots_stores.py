from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from runner.errors import WorkspaceError
from runner.workspace.diffs import DiffStat
from runner.workspace.git import GitError
from runner.workspace.snapshot_store import make_store, store_git, store_id, store_of
from runner.workspace.snapshots import Snapshots

from .places import Place, contents, git, git_bytes, make_place, make_repository, write

FILES = {"a.py": "one\n", "binary": b"\0\1\2", "old name": "x\n"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path, FILES)


def test_a_source_has_one_store_by_whichever_path(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "link").symlink_to("source")
    stores = {store_of(tmp_path, str(tmp_path / name)) for name in ("source", "link", "x/../link")}
    assert len(stores) == 1
    assert store_of(tmp_path, "https://example.org/a") != store_of(tmp_path, "git@example.org:a")


def test_a_store_is_made_once_by_many_at_once(tmp_path: Path) -> None:
    make_repository(tmp_path / "source", FILES)
    barrier = Barrier(8)

    def make(_: int) -> tuple[Path, str]:
        barrier.wait()
        store = make_store(tmp_path, str(tmp_path / "source"), tmp_path / "source/.git")
        return store, store_id(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(make, range(8)))
    assert len(made) == 1
    store, identity = made.pop()
    assert re.fullmatch("[a-z2-7]{26}", identity)
    assert {path.name for path in store.parent.iterdir()} == {store.name, "id"}


@pytest.mark.slow
def test_a_folder_without_git_has_a_store_too(tmp_path: Path) -> None:
    write(tmp_path / "work", FILES)
    store = make_store(tmp_path / "home", str(tmp_path / "elsewhere"), None)
    place = Place(tmp_path / "home", tmp_path / "elsewhere", tmp_path / "work", "")
    snapshots = Snapshots(store, place.work, "run_1", 1, environment=os.environ)
    before = contents(place.work)
    tree = snapshots.take()
    shutil.rmtree(place.work / "a.py", ignore_errors=True)
    write(place.work, {"a.py": "two\n", "b/c": "new"})
    snapshots.restore(tree)
    assert contents(place.work) == before


def test_an_id_that_is_none_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"snapshots/id": "what is this?"})
    with pytest.raises(GitError, match="does not hold an id: delete that file"):
        store_id(tmp_path)


def test_a_store_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"snapshots": "in the way"})
    with pytest.raises(GitError, match="cannot make the store for snapshots"):
        make_store(tmp_path, "https://example.org/a", None)
    with pytest.raises(GitError, match="cannot keep the id"):
        store_id(tmp_path)


def test_a_source_that_is_no_repository_is_told(tmp_path: Path) -> None:
    with pytest.raises(GitError, match=r"git rev-parse failed: not a git repository"):
        make_store(tmp_path, str(tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_an_ignore_list_that_is_no_file_is_left_alone(place: Place, what: str) -> None:
    listing = place.source / ".git/info/exclude"
    listing.parent.mkdir(exist_ok=True)
    listing.unlink(missing_ok=True)
    if what == "link":
        listing.symlink_to("/dev/zero")
    elif what == "pipe":
        os.mkfifo(listing)
    else:
        listing.mkdir()
    write(place.work, {"b": "1"})
    assert "b" in place.listed(place.snapshots().take())


@pytest.mark.slow
def test_a_diff_is_a_patch_that_git_applies(place: Place) -> None:
    snapshots = place.snapshots()
    before = snapshots.take()
    write(place.work, {"a.py": "two\n", "binary": b"\0\3", "new \xff\n": "z", "sub/deep": "w\r\n"})
    (place.work / "old name").rename(place.work / "new name")
    (place.work / "link").symlink_to("a.py")
    (place.work / "empty").mkdir()
    after = snapshots.take()
    patch = place.diff(before, after)
    assert b".runner-snapshot" not in patch
    (place.source / "patch").write_bytes(patch)
    git(place.source, "apply", "patch")
    (place.source / "patch").unlink()
    (place.work / "empty").rmdir()
    assert contents(place.source) == contents(place.work)
    assert place.diff(before, before) == b""


@pytest.mark.slow
def test_a_diff_heeds_no_setting_and_no_attribute(place: Place) -> None:
    snapshots = place.snapshots()
    before = snapshots.take()
    write(place.work, {"a.py": "two\n", ".gitattributes": "*.py -diff\n"})
    after = snapshots.take()
    git(place.source, "config", "diff.noprefix", "true")
    git(place.source, "config", "color.ui", "always")
    assert b"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one\n+two\n" in place.diff(before, after)


def test_a_diff_takes_commits_of_the_source(place: Place) -> None:
    write(place.work, {"a.py": "two\n"})
    git(place.work, "commit", "-q", "-a", "-m", "x")
    commit = git(place.work, "rev-parse", "HEAD")
    patch = place.diff(place.base, commit)
    assert patch == git_bytes(place.work, "diff", "--binary", "--full-index", place.base, commit)


def test_a_diff_with_a_missing_tree_is_an_error(place: Place) -> None:
    with pytest.raises(WorkspaceError, match="the files of run_1 are recorded on another host"):
        place.diff(place.base, "1" * 40)


@pytest.mark.slow
def test_what_changed_is_counted(place: Place) -> None:
    snapshots = place.snapshots()
    before = snapshots.take()
    write(place.work, {"a.py": "1\n2\n3\n", "binary": b"\0\3", "new\nname": "z\n"})
    (place.work / "empty").mkdir()
    after = snapshots.take()
    assert place.diff_stat(before, after) == DiffStat(files=3, added=4, removed=1)
    assert place.diff_stat(after, after) == DiffStat()
    stat = place.diff(before, after, stat=True).decode()
    assert "3 files changed, 4 insertions(+), 1 deletion(-)" in stat
    assert "create mode 100644" in stat


def test_a_store_has_no_hooks_and_packs_nothing_by_itself(place: Place) -> None:
    assert not (place.store / "hooks").exists()
    assert store_git(place.store, os.environ).run("config", "gc.auto") == b"0\n"
