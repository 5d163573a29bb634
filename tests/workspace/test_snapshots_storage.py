"""What a snapshot keeps, and keeps safe from whom."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from runner.workspace.git import GitError
from runner.workspace.snapshot_store import make_store
from runner.workspace.survey import Digests

from .places import RUN, Place, contents, git, make_place, make_repository, write

FILES = {"a.py": "one\n", "folder/b.py": "two\n"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path, FILES)


@pytest.mark.slow
def test_bytes_are_kept_whatever_the_repository_says_of_line_ends_and_filters(
    tmp_path: Path,
) -> None:
    attributes = (
        "* text=auto eol=crlf ident filter=upper working-tree-encoding=UTF-16\n*.bin binary\n"
    )
    place = make_place(tmp_path, FILES)
    git(place.source, "config", "core.autocrlf", "true")
    git(place.source, "config", "filter.upper.clean", "tr a-z A-Z")
    git(place.source, "config", "filter.upper.smudge", "tr A-Z a-z")
    write(
        place.work,
        {
            ".gitattributes": attributes,
            "folder/.gitattributes": "*.py -text crlf=input\n",
            "mixed": b"a\r\nb\nc\r\n",
            "ident": b"$Id$ $Id: 0123 $\n",
            "folder/c.py": b"lower UPPER\r\n",
            "x.bin": b"\0\xff\r\n",
        },
    )
    snapshots, before = place.snapshots(), contents(place.work)
    tree = snapshots.take()
    for name in ("mixed", "ident", "folder/c.py", "x.bin", ".gitattributes", "a.py"):
        (place.work / name).unlink()
    snapshots.restore(tree)
    assert contents(place.work) == before


@pytest.mark.slow
def test_what_git_would_convert_is_recorded_as_it_lies_in_the_worktree(tmp_path: Path) -> None:
    place = make_place(tmp_path, {**FILES, ".gitattributes": "*.py text eol=crlf\n"})
    assert (place.work / "a.py").read_bytes() == b"one\r\n"
    snapshots, before = place.snapshots(), contents(place.work)
    tree = snapshots.take()
    (place.work / "a.py").unlink()
    snapshots.restore(tree)
    assert contents(place.work) == before


@pytest.mark.slow
def test_no_program_that_a_repository_names_is_run(place: Place, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {witness}\ncat\n")
    program.chmod(0o755)
    for repository in (place.source, place.work):
        for name in ("fsmonitor", "pager", "editor", "sshCommand", "askPass"):
            git(repository, "config", f"core.{name}", str(program))
        git(repository, "config", "core.hooksPath", str(tmp_path / "hooks"))
        git(repository, "config", "filter.x.clean", str(program))
        git(repository, "config", "filter.x.smudge", str(program))
        git(repository, "config", "diff.x.textconv", str(program))
        git(repository, "config", "diff.external", str(program))
    (tmp_path / "hooks").mkdir()
    hooks = ["post-index-change", "reference-transaction", "pre-push", "post-checkout"]
    for hook in hooks:
        shutil.copy(program, tmp_path / "hooks" / hook)
        shutil.copy(program, place.source / ".git/hooks" / hook)
    git(tmp_path, "init", "-q", "--bare", "remote.git")
    witness.unlink(missing_ok=True)
    snapshots = place.snapshots()
    write(place.work, {".gitattributes": "* filter=x diff=x\n", "a.py": "changed\n"})
    before = snapshots.take()
    write(place.work, {"a.py": "again\n"})
    after = snapshots.take()
    snapshots.restore(before)
    snapshots.push(str(tmp_path / "remote.git"))
    snapshots.fetch(str(tmp_path / "remote.git"))
    assert b"-changed" in place.diff(before, after)
    assert not witness.exists()


@pytest.mark.slow
def test_the_users_checkout_and_index_stay_as_they_are(place: Place) -> None:
    def state() -> list[object]:
        kept = {
            path: path.read_bytes()
            for path in sorted((place.source / ".git").rglob("*"))
            if path.is_file()
        }
        return [kept, contents(place.source), (place.work / ".git").read_bytes()]

    write(place.source, {"a.py": "not committed\n", "new": "x"})
    before = state()
    snapshots = place.snapshots()
    tree = snapshots.take()
    write(place.work, {"a.py": "2\n", "b/c": "3"})
    snapshots.take()
    snapshots.restore(tree)
    assert state() == before


@pytest.mark.slow
def test_a_snapshot_is_whole_when_the_source_loses_what_no_branch_has(place: Place) -> None:
    """Objects that an agent's own git commands made are the source's, until it collects them."""
    snapshots = place.snapshots()
    write(place.work, {"work/of/the/agent": "precious\n" * 50})
    git(place.work, "add", "-A")
    git(place.work, "commit", "-q", "-m", "by the agent")
    tree, before = snapshots.take(), contents(place.work)
    git(place.work, "reset", "-q", "--hard", place.base)
    for folder in (place.source, place.work):
        git(folder, "reflog", "expire", "--expire=now", "--all")
    git(place.source, "gc", "-q", "--prune=now")
    snapshots.restore(tree)
    assert contents(place.work) == before


@pytest.mark.slow
def test_a_large_file_is_recorded_by_its_digest_and_named(place: Place) -> None:
    snapshots = place.snapshots(largest_file=1000)
    start = snapshots.take()
    write(place.work, {"data/big": b"x" * 1001})
    tree, before = snapshots.take(), contents(place.work)
    assert tree != start
    assert "data/big" not in place.listed(tree)
    assert not snapshots.holds("data/big")
    write(place.work, {"a.py": "changed\n"})
    snapshots.restore(tree)
    assert contents(place.work) == before
    write(place.work, {"data/big": b"y" * 1001, "a.py": "changed\n"})
    changed = contents(place.work)
    with pytest.raises(GitError, match=r"cannot restore data/big: a file of 1001 bytes is over"):
        snapshots.restore(tree)
    assert contents(place.work) == changed
    snapshots.restore(start)
    assert not (place.work / "data").exists()
    with pytest.raises(GitError, match="cannot restore data/big"):
        snapshots.restore(tree)


@pytest.mark.slow
def test_a_large_file_of_the_base_can_be_put_back(tmp_path: Path) -> None:
    place = make_place(tmp_path, {"big": b"x" * 5000})
    snapshots, before = place.snapshots(largest_file=1000), contents(place.work)
    tree = snapshots.take()
    os.utime(place.work / "big", (1, 1))
    assert snapshots.take() == tree
    (place.work / "big").chmod(0o755)
    assert place.listed(snapshots.take()) == ["big"]
    write(place.work, {"big": b"y" * 5000})
    assert place.listed(snapshots.take()) == [".runner-snapshot"]
    snapshots.restore(tree)
    assert contents(place.work) == before


@pytest.mark.slow
def test_the_right_to_run_a_large_file_is_put_back(place: Place) -> None:
    write(place.work, {"big": b"x" * 5000})
    snapshots = place.snapshots(largest_file=1000)
    plain = snapshots.take()
    (place.work / "big").chmod(0o755)
    running = snapshots.take()
    snapshots.restore(plain)
    assert not os.access(place.work / "big", os.X_OK)
    snapshots.restore(running)
    assert os.access(place.work / "big", os.X_OK)


def test_a_large_file_is_read_once_and_again_when_it_changed(tmp_path: Path) -> None:
    write(tmp_path, {"big": b"x" * 5000})
    read: list[int] = []

    def sha256() -> str:
        digests = Digests(os.fsencode(tmp_path), tmp_path / "digests", settled_seconds=-1e9)
        return digests.sha256(b"big", lambda: read.append(1))[1]

    first = sha256()
    assert sha256() == first
    assert len(read) == 1
    write(tmp_path, {"big": b"y" * 5001})
    assert sha256() != first
    assert len(read) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with space", "new\nline", "quo\"te'$x:y", "ünïcode", "-x"])
def test_repositories_on_any_path_work(tmp_path: Path, name: str) -> None:
    place = make_place(tmp_path / name, FILES)
    snapshots, before = place.snapshots(), contents(place.work)
    tree = snapshots.take()
    assert tree == git(place.source, "rev-parse", "HEAD^{tree}")
    (place.work / "folder/b.py").unlink()
    write(place.work, {"x": "y"})
    after = snapshots.take()
    snapshots.restore(tree)
    assert contents(place.work) == before
    assert place.diff_stat(tree, after).files == 2


@pytest.mark.slow
def test_a_repository_with_sha256_ids_works(tmp_path: Path) -> None:
    place = make_place(tmp_path, {**FILES, "big": b"x" * 3000}, ["--object-format=sha256"])
    snapshots, before = place.snapshots(largest_file=1000), contents(place.work)
    tree = snapshots.take()
    assert tree == git(place.source, "rev-parse", "HEAD^{tree}")
    assert len(tree) == 64
    (place.work / "big").chmod(0o755)
    assert place.listed(snapshots.take()) == ["a.py", "big", "folder/b.py"]
    (place.work / "big").unlink()
    (place.work / "a.py").unlink()
    snapshots.restore(tree)
    assert contents(place.work) == before


def test_a_source_made_anew_with_other_ids_is_refused(place: Place) -> None:
    assert place.store
    shutil.rmtree(place.source)
    make_repository(place.source, FILES, "--object-format=sha256")
    with pytest.raises(GitError, match=r"has sha256 object ids now, .* move that folder away"):
        make_store(place.home, str(place.source), place.source / ".git")


@pytest.mark.slow
def test_locks_of_a_killed_git_are_no_obstacle(place: Place) -> None:
    snapshots = place.snapshots()
    snapshots.take()
    store = place.store
    for lock in (f"runs/{RUN}/index-1.lock", f"refs/runner/runs/{RUN}/1.lock"):
        (store / lock).touch()
    (store / f"refs/runner/runs/{RUN}/start").unlink()
    (store / f"refs/runner/runs/{RUN}/start.lock").touch()
    write(place.work, {"a.py": "2\n"})
    tree = snapshots.take()
    assert place.snapshots().last() == tree


@pytest.mark.slow
def test_attempts_and_runs_take_snapshots_at_once(tmp_path: Path) -> None:
    places = [make_place(tmp_path / "0", FILES)]
    source = places[0].source
    for number in range(1, 4):
        work = tmp_path / f"work{number}"
        git(source, "worktree", "add", "-q", "--detach", str(work), "HEAD")
        places.append(Place(places[0].home, source, work, places[0].base))
    barrier = Barrier(8)

    def take(number: int) -> str:
        place = places[number % 4]
        barrier.wait()
        snapshots = place.snapshots(1 + number // 4, f"run_{number % 4}")
        trees = []
        for turn in range(4):
            written = tmp_path / f"written{number}"
            written.write_text("x" * turn)
            written.replace(place.work / f"same{turn}")  # nobody sees it half written
            trees.append(snapshots.take())
        return trees[-1]

    with ThreadPoolExecutor(8) as pool:
        trees = set(pool.map(take, range(8)))
    assert len(trees) == 1
    write(places[0].work, {"a.py": "changed\n"})
    places[0].snapshots().restore(trees.pop())
    assert contents(places[0].work) == contents(places[1].work)
