"""What a snapshot holds and puts back."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import Interrupted, ShutDown
from runner.workspace.git import GitError
from runner.workspace.snapshots import Snapshots

from .places import FILES, Place, contents, git, make_place, write


@pytest.mark.slow
def test_an_untouched_worktree_has_the_tree_of_its_commit(place: Place) -> None:
    assert place.snapshots().take() == git(place.source, "rev-parse", "HEAD^{tree}")


@pytest.mark.slow
def test_the_same_files_give_the_same_tree(snapshots: Snapshots, work: Path) -> None:
    first = snapshots.take()
    write(work, {"a.py": "other\n"})
    second = snapshots.take()
    write(work, {"a.py": "one\n"})
    assert second != first
    assert snapshots.take() == first


@pytest.mark.slow
def test_every_kind_of_change_is_undone(snapshots: Snapshots, work: Path) -> None:
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "link").symlink_to("a.py")
    (work / "empty/inner").mkdir(parents=True)
    before = contents(work)
    tree = snapshots.take()
    write(work, {"a.py": "changed\n", "new/deep/file": "x"})
    (work / "folder/b.py").unlink()
    (work / "run.sh").chmod(0o644)
    (work / "link").unlink()
    (work / "link").symlink_to("folder")
    (work / "empty/inner").rmdir()
    (work / "out").mkdir()
    changed = contents(work)
    after = snapshots.take()
    snapshots.restore(tree)
    assert contents(work) == before
    snapshots.restore(after)
    assert contents(work) == changed


@pytest.mark.slow
def test_a_folder_made_since_is_gone_so_that_mkdir_works_again(
    snapshots: Snapshots, work: Path
) -> None:
    tree = snapshots.take()
    script = "mkdir out && mkdir pkg && echo x > pkg/m.py && echo y > pkg/m.log && mkdir pkg/built"
    subprocess.run(["sh", "-c", script], cwd=work, check=True)
    snapshots.restore(tree)
    subprocess.run(["sh", "-c", script], cwd=work, check=True)
    assert (work / "pkg/m.log").exists()


@pytest.mark.slow
def test_a_file_and_a_folder_take_each_others_place(snapshots: Snapshots, work: Path) -> None:
    write(work, {"thing": "file", "other/x/y": "deep"})
    tree, before = snapshots.take(), contents(work)
    (work / "thing").unlink()
    write(work, {"thing/inside/z": "now a folder"})
    (work / "other/x/y").unlink()
    (work / "other/x").rmdir()
    write(work, {"other/x": "now a file"})
    swapped, changed = snapshots.take(), contents(work)
    snapshots.restore(tree)
    assert contents(work) == before
    snapshots.restore(swapped)
    assert contents(work) == changed


@pytest.mark.slow
def test_a_folder_that_became_a_link_to_itself_moved_is_undone(
    snapshots: Snapshots, work: Path
) -> None:
    tree, before = snapshots.take(), contents(work)
    (work / "folder").rename(work / "moved")  # its file keeps its status, and looks unchanged
    (work / "folder").symlink_to("moved")
    assert snapshots.take() != tree
    snapshots.restore(tree)
    assert contents(work) == before


@pytest.mark.slow
def test_nothing_outside_is_reached_through_a_link(
    snapshots: Snapshots, work: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    write(outside, {"b.py": "precious", "c.py": "precious"})
    tree = snapshots.take()
    write(work, {"folder/c.py": "x"})
    with_c = snapshots.take()
    (work / "folder/b.py").unlink()
    (work / "folder/c.py").unlink()
    (work / "folder").rmdir()
    (work / "folder").symlink_to(outside)
    linked = snapshots.take()
    snapshots.restore(tree)
    snapshots.restore(linked)
    snapshots.restore(with_c)
    assert (work / "folder/c.py").read_text() == "x"
    assert contents(outside) == {b"b.py": ("file", b"precious"), b"c.py": ("file", b"precious")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [b"new\nline", b"\xff\xfe", b"quote\"'$(x)", "ünïcode".encode(), b" ", b"-x", b":(top)"]
)
def test_any_name_is_recorded(snapshots: Snapshots, work: Path, name: bytes) -> None:
    start = snapshots.take()
    root = os.fsencode(work)
    os.mkdir(root + b"/in " + name)  # noqa: PTH102 - bytes
    for path in (root + b"/" + name, root + b"/in " + name + b"/" + name):
        with open(path, "wb") as file:
            file.write(b"content")
    os.mkdir(root + b"/empty" + name)  # noqa: PTH102 - bytes
    tree, before = snapshots.take(), contents(work)
    snapshots.restore(start)
    assert not any(name in path for path in contents(work))
    snapshots.restore(tree)
    assert contents(work) == before


@pytest.mark.slow
def test_a_change_of_the_same_size_and_second_is_seen(snapshots: Snapshots, work: Path) -> None:
    trees = set()
    for number in range(8):
        write(work, {"a.py": f"{number}\n"})
        trees.add(snapshots.take())
    assert len(trees) == 8


@pytest.mark.slow
def test_a_change_with_a_faked_time_is_seen(snapshots: Snapshots, work: Path) -> None:
    trees = set()
    for number in range(4):
        (work / "a.py").write_text(f"{number}\n")  # in place: the same inode
        os.utime(work / "a.py", (1_000_000_000, 1_000_000_000))
        trees.add(snapshots.take())
    assert len(trees) == 4


@pytest.mark.slow
def test_a_later_attempt_sees_a_change_of_the_same_second(place: Place) -> None:
    """The change came right after a snapshot, and the next one in another second."""
    file, attempt = place.work / "a.py", 0
    while True:
        attempt += 1
        wait_for_another_second()
        write(place.work, {"a.py": f"{attempt}\n"})
        tree = place.snapshots(attempt).take()
        before = file.stat()
        write(place.work, {"a.py": f"{attempt % 9 + 1}\n"})
        if int(file.stat().st_ctime) == int(before.st_ctime):
            break  # else the machine was too slow
    wait_for_another_second()
    assert place.snapshots(attempt + 1).take() != tree


@pytest.mark.slow
def test_pipes_and_sockets_are_not_recorded_and_do_no_harm(
    snapshots: Snapshots, work: Path
) -> None:
    tree, before = snapshots.take(), contents(work)
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(work / "s"))
        assert snapshots.take() == tree
        (work / "a.py").unlink()
        os.mkfifo(work / "a.py")  # where a file was
        (work / "fresh").mkdir()
        os.mkfifo(work / "fresh/pipe")
        assert "a.py" not in snapshots.take()
        snapshots.restore(tree)
    assert contents(work) == before
    assert not (work / "fresh").exists()


@pytest.mark.slow
def test_trees_are_last_in_the_order_of_attempts(place: Place) -> None:
    first, second = place.snapshots(1), place.snapshots(2)
    assert first.last() is None
    begun = first.take()
    write(place.work, {"a.py": "2\n"})
    newer = second.take()
    write(place.work, {"a.py": "3\n"})
    late = first.take()  # an attempt that only slept
    assert late not in (begun, newer)
    assert second.last() == newer
    tenth = place.snapshots(10).take()
    write(place.work, {"a.py": "9\n"})
    assert place.snapshots(9).take() != tenth
    assert second.last() == tenth


@pytest.mark.slow
def test_a_restore_leaves_both_trees_in_the_store(snapshots: Snapshots, place: Place) -> None:
    tree = snapshots.take()
    write(place.work, {"new": "found"})
    snapshots.restore(tree)
    assert snapshots.last() == tree
    found = git(place.work, "log", "--format=%T", "refs/runner/runs/run_1/1", **located(place))
    assert len(found.split()) == 4  # the start, its snapshot, what was found, what was put back
    assert "new" in place.listed(found.split()[1])


@pytest.mark.slow
def test_another_process_may_restore_in_between(place: Place) -> None:
    ours = place.snapshots()
    first = ours.take()
    write(place.work, {"a.py": "2\n"})
    ours.take()
    place.snapshots().restore(first)
    assert ours.take() == first
    assert ours.last() == first


@pytest.mark.slow
def test_a_note_is_part_of_the_tree_and_not_of_the_files(
    snapshots: Snapshots, place: Place
) -> None:
    plain, before = snapshots.take(), contents(place.work)
    noted = snapshots.take(note="HEAD is here")
    assert noted != plain
    assert snapshots.note_of(noted) == "HEAD is here"
    assert snapshots.note_of(plain) == ""
    write(place.work, {"a.py": "2\n"})
    snapshots.take(note="HEAD is there")
    snapshots.restore(noted)
    assert contents(place.work) == before
    assert snapshots.last() == noted


@pytest.mark.slow
def test_kept_commits_are_parents_of_the_snapshot(snapshots: Snapshots, place: Place) -> None:
    write(place.work, {"a.py": "2\n"})
    git(place.work, "commit", "-q", "-a", "-m", "by the agent")
    commit = git(place.work, "rev-parse", "HEAD")
    snapshots.take(keep=[commit])
    parents = git(
        place.work, "log", "-1", "--format=%P", "refs/runner/runs/run_1/1", **located(place)
    )
    assert parents.split() == [place.base, commit]


@pytest.mark.slow
def test_an_attempt_after_weeks_does_without_what_git_cleaned_up(place: Place) -> None:
    write(place.work, {"a.py": "2\n"})
    tree = place.snapshots().take()
    for shared in place.store.glob("sharedindex.*"):
        shared.unlink()
    assert place.snapshots(2).take() == tree


def test_an_unknown_tree_is_refused(snapshots: Snapshots) -> None:
    assert not snapshots.has("0" * 40)
    with pytest.raises(GitError, match="is not among the snapshots of this host"):
        snapshots.restore("0" * 40)


@pytest.mark.slow
def test_a_workspace_that_is_gone_is_said_to_be(snapshots: Snapshots, place: Place) -> None:
    tree = snapshots.take()
    git(place.source, "worktree", "remove", "--force", str(place.work))
    with pytest.raises(GitError, match="is gone"):
        snapshots.take()
    assert snapshots.has(tree)
    assert snapshots.last() == tree


@pytest.mark.slow
def test_a_snapshot_that_is_cut_off_leaves_nothing_in_the_way(place: Place) -> None:
    def cut() -> None:
        raise ShutDown

    write(place.work, {f"many/{number}": str(number) for number in range(600)})
    snapshots = place.snapshots()
    with pytest.raises(Interrupted):
        snapshots.take(cut)
    tree = snapshots.take()
    assert tree == place.snapshots(2).take()


@pytest.mark.slow
def test_a_restore_that_was_cut_off_anywhere_is_finished_by_the_next_attempt(
    tmp_path: Path,
) -> None:
    place = make_place(tmp_path, FILES)
    write(place.work, {"d/.gitignore": "*.tmp\n", "d/kept.tmp": "ignored", "swap/inner": "x"})
    (place.work / "empty").mkdir()
    tree, before = place.snapshots().take(), contents(place.work)
    attempt, cut = 2, True
    while cut:
        write(place.work, {"new/file": "x", "a.py": "changed\n", "d/.gitignore": ""})
        (place.work / "swap/inner").unlink()
        (place.work / "swap").rmdir()
        write(place.work, {"swap": "a file", "d/made.txt": "1"})
        (place.work / "empty").rmdir()
        steps = iter(range(attempt))

        def check(steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise Interrupted

        cut = False
        try:
            place.snapshots(attempt).restore(tree, check)
        except Interrupted:
            cut = True
            place.snapshots(attempt + 1).restore(tree)
        assert contents(place.work) == before
        attempt += 2
    assert attempt > 12


def wait_for_another_second() -> None:
    now = int(time.time())
    while int(time.time()) == now:
        pass


def located(place: Place) -> dict[str, str]:
    """Where git finds the snapshots and what they share with the source."""
    return {
        "GIT_DIR": str(place.store),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(place.source / ".git/objects"),
    }
