"""What a snapshot keeps, and keeps safe from whom."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from runner.workspace.git import GitError
from runner.workspace.trees.stores import diff, diff_stat, make_store

from .places import RUN, Place, contents, git, make_place, make_repository, write

FILES = {"a.py": "one\n", "folder/b.py": "two\n"}
AS_OWNER = """
import os, sys
sys.path[:0] = [{code!r}]
from pathlib import Path
from runner.workspace.snapshots import Snapshots
snapshots = Snapshots(Path({store!r}), Path({work!r}), "run_1", 1, environment=os.environ)
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path, FILES)


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


def test_what_git_would_convert_is_recorded_as_it_lies_in_the_worktree(tmp_path: Path) -> None:
    place = make_place(tmp_path, {**FILES, ".gitattributes": "*.py text eol=crlf\n"})
    assert (place.work / "a.py").read_bytes() == b"one\r\n"
    snapshots, before = place.snapshots(), contents(place.work)
    tree = snapshots.take()
    (place.work / "a.py").unlink()
    snapshots.restore(tree)
    assert contents(place.work) == before


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
    assert b"-changed" in diff(place.store, before, after)
    assert not witness.exists()


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
    snapshots.forget()
    assert state() == before


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
    with pytest.raises(GitError, match=r"cannot put data/big back: a file of 1001 bytes is over"):
        snapshots.restore(tree)
    assert contents(place.work) == changed
    snapshots.restore(start)
    assert not (place.work / "data").exists()
    with pytest.raises(GitError, match="cannot put data/big back"):
        snapshots.restore(tree)


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


def test_a_large_file_is_read_once_and_again_when_it_changed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place.work, {"big": b"x" * 5000})
    settled = (1_000_000_000, 1_000_000_000)
    os.utime(place.work / "big", settled)
    monkeypatch.setattr("runner.workspace.trees.digests._SETTLED_SECONDS", -1e9)
    read: list[int] = []
    snapshots = place.snapshots(largest_file=1000)
    first = snapshots.take()
    again = place.snapshots(2, largest_file=1000)
    monkeypatch.setattr(
        "runner.workspace.trees.digests.digest", lambda *_: read.append(1) or (0, "")
    )
    assert again.take() == first
    assert read == []
    write(place.work, {"big": b"y" * 5001})
    assert again.take() != first
    assert read == [1]


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
    assert diff_stat(place.store, tree, after).files == 2


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


def test_a_remote_without_snapshots_gives_none(place: Place, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "remote.git")
    snapshots = place.snapshots()
    snapshots.fetch(str(tmp_path / "remote.git"))
    assert snapshots.last() is None


def test_a_remote_that_is_not_there_is_an_error_of_one_line(place: Place, tmp_path: Path) -> None:
    snapshots = place.snapshots()
    snapshots.take()
    with pytest.raises(GitError, match=r"git push failed: .* does not appear") as caught:
        snapshots.push(str(tmp_path / "no\x1bsuch"))
    assert str(caught.value).isprintable()
    with pytest.raises(GitError, match="git fetch failed"):
        snapshots.fetch(str(tmp_path / "nothing"))


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
            write(place.work, {f"same{turn}": "x" * turn})
            trees.append(snapshots.take())
        return trees[-1]

    with ThreadPoolExecutor(8) as pool:
        trees = set(pool.map(take, range(8)))
    assert len(trees) == 1
    write(places[0].work, {"a.py": "changed\n"})
    places[0].snapshots().restore(trees.pop())
    assert contents(places[0].work) == contents(places[1].work)


def test_what_cannot_be_read_is_named_and_the_rest_recorded(place: Place) -> None:
    write(place.work, {"secret": "x", "locked/inside": "y"})
    script = (
        AS_OWNER
        + """
os.chmod({work!r} + "/secret", 0)
os.chmod({work!r} + "/locked", 0)
os.chmod({work!r} + "/folder", 0)
first = snapshots.take()
assert snapshots.take() == first
print(first)
os.chmod({work!r} + "/folder", 0o755)
os.mkdir({work!r} + "/empty")
second = snapshots.take()
for name in ("a.py", "folder", "empty"):
    os.chmod({work!r} + "/" + name, 0)
snapshots.restore(second)
print(second)
"""
    )
    first, second = as_owner(place, script).split()
    assert place.listed(first) == [".runner-snapshot", "a.py", "folder/b.py"], "as it was"
    assert place.listed(second) == [".runner-snapshot", "a.py", "folder/b.py"]
    manifest = git(place.work, "show", f"{first}:.runner-snapshot", GIT_DIR=str(place.store))
    assert json.loads(manifest)["unrecorded"] == ["folder", "locked", "secret"]
    assert stat.S_IMODE((place.work / "folder").stat().st_mode) == 0o700
    assert stat.S_IMODE((place.work / "empty").stat().st_mode) == 0o700
    assert (place.work / "a.py").read_text() == "one\n"


def test_a_tracked_file_that_cannot_be_read_keeps_its_recorded_content(place: Place) -> None:
    script = (
        AS_OWNER
        + """
before = snapshots.take()
os.chmod({work!r} + "/a.py", 0)
os.chmod({work!r} + "/folder", 0)
os.utime({work!r} + "/a.py", (1, 1))
closed = snapshots.take()
print(before)
print(closed)
print(snapshots.restore(before))
print(snapshots.restore(closed))
"""
    )
    before, closed, opened, again = as_owner(place, script).split()
    assert closed != before, "it is named"
    assert diff(place.store, before, closed) == b""
    assert opened == again == before, "what can be read again is all there"
    assert contents(place.work) == contents(place.source)


def test_a_folder_that_may_not_be_written_is_removed_all_the_same(place: Place) -> None:
    script = (
        AS_OWNER
        + """
tree = snapshots.take()
work = Path({work!r})
(work / "new/deep").mkdir(parents=True)
(work / "new/deep/file").touch()
(work / "new/deep").chmod(0o555)
(work / "new").chmod(0o555)
(work / "folder/b.py").unlink()
(work / "folder").chmod(0o555)
snapshots.restore(tree)
print(tree)
"""
    )
    assert as_owner(place, script)
    assert contents(place.work) == contents(place.source)


def test_a_full_disk_is_an_error_of_one_line(place: Place) -> None:
    snapshots = place.snapshots()
    snapshots.take()
    write(place.work, {"much": os.urandom(3_000_000)})
    script = f"""
import os, resource, sys
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
from pathlib import Path
from runner.workspace.git import GitError
from runner.workspace.snapshots import Snapshots
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
place = Path({str(place.store)!r}), Path({str(place.work)!r})
try:
    Snapshots(*place, "run_1", 2, environment=os.environ).take()
except GitError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "git update-index failed: " in done.stdout
    assert len(done.stdout.splitlines()) == 1


def as_owner(place: Place, script: str) -> str:
    """What a program says that has no more rights to the files than their owner, which root has."""
    place.snapshots()
    values = {
        "code": str(Path(__file__).parents[2]),
        "store": str(place.store),
        "work": str(place.work),
    }
    program = [sys.executable, "-c", script.format(**values)]
    if os.geteuid() == 0:
        program = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--", *program]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
