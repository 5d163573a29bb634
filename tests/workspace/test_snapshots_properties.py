"""Whatever was done to a workspace, it can be put back to any tree that was recorded of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.workspace.folders import copy_folder
from runner.workspace.snapshots import Snapshots

from .places import Place, contents, git, git_bytes, make_place

FILES = {"a": "base\n", "d/a": "base\n", "d/e/b": "base\n", "x": "1"}
NAMES = [b"a", b"b", b"d", b"e", b"x.log", b"new\nline", b"\xff"]
RULES = [b"", b"*.log\n", b"d/\n", b"*\n!a\n", b"e\n", b".gitignore\n"]
MANY = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

names = st.sampled_from(NAMES)
paths = st.lists(names, min_size=1, max_size=3).map(b"/".join)
contents_of_files = st.sampled_from([b"", b"1", b"2", b"\r\n", b"$Id$\0", b"base\n", b"large" * 9])
edits = st.one_of(
    st.tuples(st.just("write"), paths, contents_of_files),
    st.tuples(st.just("mkdir"), paths, st.just(b"")),
    st.tuples(st.just("remove"), paths, st.just(b"")),
    st.tuples(st.just("link"), paths, names),
    st.tuples(st.just("program"), paths, st.just(b"")),
    st.tuples(st.just("move"), paths, paths),
    st.tuples(st.just("pipe"), paths, st.just(b"")),
    st.tuples(st.just("age"), paths, st.just(b"")),
)
rules = st.tuples(
    st.just("write"), st.sampled_from([b".gitignore", b"d/.gitignore"]), st.sampled_from(RULES)
)
Edit = tuple[str, bytes, bytes]


def apply(work: Path, made: Sequence[Edit]) -> None:
    """Do what can be done of some edits; what cannot (a file for a folder …) is passed over."""
    for what, path, detail in made:
        with suppress(OSError, shutil.Error):
            _apply(what, work, work / os.fsdecode(path), detail)


def _apply(what: str, work: Path, path: Path, detail: bytes) -> None:
    folder, there = path.is_dir() and not path.is_symlink(), os.path.lexists(path)
    if what == "remove" and folder:
        shutil.rmtree(path)
    elif what == "remove":
        path.unlink()
    elif what == "move":
        path.rename(work / os.fsdecode(detail))
    elif what == "age" and there:
        os.utime(path, (1_000_000_000, 1_000_000_000), follow_symlinks=False)
    elif what == "program" and path.is_file():
        path.chmod(path.stat().st_mode ^ 0o111)
    elif what in ("write", "mkdir", "link", "pipe"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if what == "mkdir":
            path.mkdir()
        elif what == "link":
            path.symlink_to(os.fsdecode(detail))
        elif what == "pipe":
            os.mkfifo(path)
        elif not there or path.is_file():
            path.write_bytes(detail)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("base"), FILES)


def opened(base: Place) -> tuple[Place, Snapshots]:
    """The same place again, for one example alone."""
    folder = Path(tempfile.mkdtemp(dir=base.home.parent))
    shutil.copytree(base.work, folder / "work", symlinks=True)
    place = Place(folder / "home", base.source, folder / "work", base.base)
    return place, place.snapshots()


@MANY
@given(first=st.lists(edits, max_size=8), second=st.lists(edits, max_size=8))
def test_a_restored_workspace_is_the_same_byte_for_byte(
    base: Place, first: list[Edit], second: list[Edit]
) -> None:
    place, snapshots = opened(base)
    apply(place.work, first)
    tree, before = snapshots.take(), contents(place.work)
    apply(place.work, second)
    after, changed = snapshots.take(), contents(place.work)
    assert (tree == after) == (before == changed)
    snapshots.restore(tree)
    assert contents(place.work) == before
    place.snapshots(2).restore(after)
    assert contents(place.work) == changed


@pytest.mark.slow
@MANY
@given(first=st.lists(edits | rules, max_size=8), second=st.lists(edits | rules, max_size=8))
def test_what_is_recorded_is_restored_whatever_is_ignored_meanwhile(
    base: Place, first: list[Edit], second: list[Edit]
) -> None:
    place, snapshots = opened(base)
    apply(place.work, first)
    tree, before = snapshots.take(), contents(place.work)
    apply(place.work, second)
    after, changed = snapshots.take(), contents(place.work)
    snapshots.restore(tree)  # which looks at the whole once more at its end
    assert held(place, tree) <= contents(place.work).items() & before.items()
    fresh = place.work.with_name("fresh")
    copy_folder(place.work, fresh, [])
    snapshots.restore(after)
    assert held(place, after) <= contents(place.work).items() & changed.items()
    # Another host knows the tree and nothing of how it came to be.
    place.work = fresh
    place.snapshots(1, "run_2").restore(after)
    assert held(place, after) <= contents(fresh).items()


def held(place: Place, tree: str) -> set[tuple[bytes, tuple[str, bytes]]]:
    """The files of a recorded tree with what git has of them."""
    variables = {
        "GIT_DIR": str(place.store),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(place.source / ".git/objects"),
    }
    found = set()
    for entry in git(place.work, "ls-tree", "-r", "-z", tree, **variables).split("\0")[:-1]:
        about, name = entry.split("\t", 1)
        mode, _, blob = about.split(" ")
        if name == ".runner-snapshot":
            continue
        content = git_bytes(place.work, "cat-file", "blob", blob, **variables)
        kind = {"100644": "file", "100755": "program", "120000": "link"}[mode]
        found.add((os.fsencode(name), (kind, content)))
    return found
