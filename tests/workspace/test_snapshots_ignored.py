"""What no snapshot holds, or only names: ignored files, and repositories in the workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core.workspace import TOOL_CACHES
from runner.workspace.git import GitError
from runner.workspace.snapshot_store import MANIFEST
from runner.workspace.snapshots import Snapshots

from .places import FILES, Place, contents, git, make_place, write


@pytest.mark.slow
def test_ignored_files_are_neither_recorded_nor_touched(snapshots: Snapshots, place: Place) -> None:
    tree = snapshots.take()
    write(place.work, {"x.log": "1", "built/out.o": "2", "folder/y.log": "3", "new.py": "4"})
    changed = snapshots.take()
    assert place.listed(changed) == [".gitignore", "a.py", "folder/b.py", "new.py"]
    snapshots.restore(tree)
    assert (place.work / "x.log").read_text() == "1"
    assert (place.work / "built/out.o").read_text() == "2"
    assert (place.work / "folder/y.log").read_text() == "3"
    assert not (place.work / "new.py").exists()


def test_caches_of_tools_are_left_out_unless_a_gitignore_takes_them_in(place: Place) -> None:
    start = place.snapshots(ignore=TOOL_CACHES).take()
    caches = ("__pycache__/a.pyc", "b.pyc", "x/.pytest_cache/v", ".mypy_cache/3.11/a.json")
    caches += (".ruff_cache/0", "x/node_modules/.cache/y", "node_modules/.cache/z")
    write(place.work, {**dict.fromkeys(caches, "1"), "node_modules/m.js": "2", "new.py": "3"})
    (place.work / "own").mkdir()
    write(place.work / "own", {".gitignore": "!*.pyc\n", "kept.pyc": "4"})
    tree = place.snapshots(ignore=TOOL_CACHES).take()
    new = {*place.listed(tree)} - {*place.listed(start)}
    assert new - {os.fsdecode(MANIFEST)} == {
        "node_modules/m.js",
        "new.py",
        "own/.gitignore",
        "own/kept.pyc",
    }
    assert {*caches} <= {*place.listed(place.snapshots(run_id="run_2", ignore=()).take())}


@pytest.mark.slow
def test_chosen_ignored_files_are_recorded(place: Place) -> None:
    snapshots = place.snapshots(ignored=("*.log", "/built/keep"))
    start = snapshots.take()
    write(place.work, {"folder/x.log": "1", "built/keep/y": "2", "built/z": "3"})
    tree = snapshots.take()
    assert {"folder/x.log", "built/keep/y"} <= set(place.listed(tree))
    assert "built/z" not in place.listed(tree)
    snapshots.restore(start)
    assert not (place.work / "folder/x.log").exists()
    assert not (place.work / "built/keep").exists()
    assert (place.work / "built/z").read_text() == "3"
    snapshots.restore(tree)
    assert (place.work / "built/keep/y").read_text() == "2"
    assert snapshots.holds("built/keep/y")
    assert snapshots.holds("any.log") is False  # it is not there, and nothing says that it would be


@pytest.mark.slow
def test_a_chosen_file_is_removed_though_the_rules_changed_too(place: Place) -> None:
    snapshots = place.snapshots(ignored=("*.log",))
    tree, before = snapshots.take(), contents(place.work)
    write(place.work, {"x.log": "1", ".gitignore": "*.log\nbuilt/\n*.bin\n"})
    snapshots.restore(tree)
    assert contents(place.work) == before


@pytest.mark.slow
def test_a_file_that_becomes_ignored_stays_recorded(snapshots: Snapshots, place: Place) -> None:
    write(place.work, {"notes.txt": "1"})
    tree = snapshots.take()
    write(place.work, {".gitignore": "*.log\nbuilt/\n*.txt\n", "notes.txt": "2"})
    assert "notes.txt" in place.listed(snapshots.take())
    assert snapshots.holds("notes.txt")
    snapshots.restore(tree)
    assert (place.work / "notes.txt").read_text() == "1"


@pytest.mark.slow
def test_what_was_ignored_survives_a_cut_off_change_of_the_rules(
    snapshots: Snapshots, place: Place
) -> None:
    """An agent that overwrites .gitignore makes all that it named look new."""
    write(place.work, {"built/dear": "1", "dear.log": "2", "folder/dear.log": "3"})
    tree = snapshots.take()
    write(place.work, {".gitignore": "", "new.py": "x"})
    write(place.work, {"folder/.gitignore": "!dear.log\n"})
    assert "built/dear" in place.listed(snapshots.take())
    snapshots.restore(tree)
    assert contents(place.work)[b"built/dear"] == ("file", b"1")
    assert contents(place.work)[b"dear.log"] == ("file", b"2")
    assert contents(place.work)[b"folder/dear.log"] == ("file", b"3")
    assert not (place.work / "new.py").exists()
    assert not (place.work / "folder/.gitignore").exists()


@pytest.mark.slow
def test_what_hid_behind_new_rules_is_removed_with_them(snapshots: Snapshots, work: Path) -> None:
    tree, before = snapshots.take(), contents(work)
    write(work, {"made.bin": "1", "cache/.gitignore": "*\n", "cache/data": "2"})
    write(work, {".gitignore": "*.log\nbuilt/\n*.bin\n"})
    snapshots.restore(tree)
    assert contents(work) == before


@pytest.mark.slow
def test_the_sources_own_ignore_list_counts(place: Place) -> None:
    (place.source / ".git/info").mkdir(exist_ok=True)
    (place.source / ".git/info/exclude").write_text("private/\n")
    snapshots = place.snapshots()
    write(place.work, {"private/x": "1"})
    tree = snapshots.take()
    assert place.listed(tree) == [".gitignore", "a.py", "folder/b.py"]
    (place.source / ".git/info/exclude").write_text("")
    assert place.snapshots(2).take() == tree  # as it was at the first snapshot


@pytest.mark.slow
def test_a_nested_repository_is_named_and_removed_when_it_is_new(
    snapshots: Snapshots, place: Place
) -> None:
    tree, before = snapshots.take(), contents(place.work)
    nested = place.work / "deps/nested"
    nested.mkdir(parents=True)
    git(nested, "init", "-q")
    write(nested, {"inside": "x"})
    git(nested, "add", "-A")
    git(nested, "commit", "-q", "-m", "x")
    with_nested = snapshots.take()
    assert with_nested != tree
    assert "deps/nested/inside" not in place.listed(with_nested)
    assert not snapshots.holds("deps/nested/inside")
    write(nested, {"inside": "changed"})
    assert snapshots.take() == with_nested
    snapshots.restore(tree)
    assert contents(place.work) == before
    with pytest.raises(GitError, match=r"cannot restore deps/nested: .* nested repositories"):
        snapshots.restore(with_nested)
    write(place.work, {"a.py": "changed"})
    assert snapshots.restore(with_nested, leave_out=True) == tree
    assert contents(place.work) == before


@pytest.mark.slow
def test_a_submodules_commit_is_recorded_and_its_files_are_not(tmp_path: Path) -> None:
    place = make_place(tmp_path, FILES)
    write(place.work, {"sub/.keep": ""})
    other = "1" * 40
    git(place.work, "update-index", "--add", "--cacheinfo", f"160000,{other},sub")
    git(place.work, "commit", "-q", "-m", "sub")
    (place.work / "sub/.keep").unlink()
    place.base = git(place.work, "rev-parse", "HEAD")
    snapshots = place.snapshots()
    tree = snapshots.take()
    assert tree == git(place.work, "rev-parse", "HEAD^{tree}")
    write(place.work, {"sub/file": "x"})
    assert snapshots.take() == tree
    (place.work / "sub/file").unlink()
    (place.work / "sub").rmdir()
    assert snapshots.take() != tree
    snapshots.restore(tree)
    assert (place.work / "sub").is_dir()


@pytest.mark.slow
def test_a_submodule_at_another_commit_is_seen_and_not_put_back(place: Place) -> None:
    inner = place.work / "sub"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "commit", "-q", "--allow-empty", "-m", "1")
    git(place.work, "add", "sub")
    git(place.work, "commit", "-q", "-m", "sub")
    place.base = git(place.work, "rev-parse", "HEAD")
    snapshots = place.snapshots()
    tree = snapshots.take()
    assert tree == git(place.work, "rev-parse", "HEAD^{tree}")
    git(inner, "commit", "-q", "--allow-empty", "-m", "2")
    assert snapshots.take() != tree
    with pytest.raises(GitError, match="cannot restore sub: it is a submodule"):
        snapshots.restore(tree)


@pytest.mark.slow
def test_names_that_git_refuses_are_only_named(snapshots: Snapshots, place: Place) -> None:
    tree, before = snapshots.take(), contents(place.work)
    write(place.work, {".GIT/config": "x", "deep/.Git": "y", "git~1": "z", "new.py": "w"})
    assert set(place.listed(snapshots.take())) == {
        *(".runner-snapshot", ".gitignore", "a.py", "folder/b.py", "git~1", "new.py")
    }
    snapshots.restore(tree)
    assert contents(place.work) == before


@pytest.mark.slow
def test_a_file_named_like_a_manifest_is_none(tmp_path: Path) -> None:
    place = make_place(tmp_path, {**FILES, ".runner-snapshot": "mine"})
    snapshots = place.snapshots()
    tree = snapshots.take()
    assert place.listed(tree) == [".gitignore", "a.py", "folder/b.py"]
    write(place.work, {"a.py": "2\n"})
    snapshots.restore(tree)
    assert (place.work / ".runner-snapshot").read_text() == "mine"


def test_paths_that_no_snapshot_holds(snapshots: Snapshots, place: Place) -> None:
    write(place.work, {"folder/x.log": "1"})
    assert snapshots.holds("a.py")
    assert snapshots.holds("not/yet/there.py")
    assert snapshots.holds(place.work / "folder/b.py")
    assert not snapshots.holds("folder/x.log")
    assert not snapshots.holds("built/anything")
    assert not snapshots.holds("../elsewhere")
    assert not snapshots.holds(".git/config")
    assert not snapshots.holds(".runner-snapshot")
    assert not snapshots.holds("/etc/passwd")
