from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.errors import RunnerError
from runner.workspace.folders import MARKER, copy_folder, has_id, identify

from .test_identity import git, repository

__all__ = ["repository"]


def contents(folder: Path) -> dict[str, str]:
    """Every path under a folder with what it is, the id's file left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name == MARKER:
            continue
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = path.read_bytes().decode("latin-1")
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/file").write_text("text")
    (folder / "script").write_text("#!/bin/sh\n")
    (folder / "script").chmod(0o750)
    (folder / "inside").symlink_to("a/b/file")
    (folder / "folder").symlink_to("a")
    (folder / "broken").symlink_to("/nowhere")
    return folder


def test_a_copy_holds_the_same_and_has_an_id_of_its_own(source: Path, tmp_path: Path) -> None:
    original = identify(source)
    os.utime(source / "a/b/file", (1_000_000_000, 1_000_000_000))
    copied = copy_folder(source, tmp_path / "copies/one", [])
    target = tmp_path / "copies/one"
    assert contents(target) == contents(source)
    assert copied != original
    assert has_id(target, copied)
    assert has_id(source, original)
    assert stat.S_IMODE((target / "script").stat().st_mode) == 0o750
    assert (target / "a/b/file").stat().st_mtime == 1_000_000_000
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["one"]


def test_a_second_copy_to_the_same_place_is_the_first(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    first = copy_folder(source, target, [])
    (target / "work").touch()
    assert copy_folder(source, target, []) == first
    assert (target / "work").exists()


def test_runners_own_folders_are_left_out(source: Path) -> None:
    (source / ".runner/copies/old").mkdir(parents=True)
    (source / "a/secret").touch()
    target = source / ".runner/copies/new"
    copy_folder(source, target, [source / ".runner", source / "a/secret"])
    assert set(contents(target)) == {"a", "a/b", "a/b/file", "script", "inside", "folder", "broken"}


def test_a_copy_inside_its_source_does_not_hold_itself(source: Path) -> None:
    copy_folder(source, source / "a/copy", [])
    assert not (source / "a/copy/a/copy").exists()


def test_pipes_and_sockets_are_left_out(source: Path, tmp_path: Path) -> None:
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(source / "socket"))
        copy_folder(source, tmp_path / "copy", [])
    assert {"pipe", "socket"}.isdisjoint(contents(tmp_path / "copy"))


def test_folders_that_may_not_be_written_to_are_copied(source: Path, tmp_path: Path) -> None:
    (source / "a/b").chmod(0o555)
    (source / "a").chmod(0o500)
    copy_folder(source, tmp_path / "copy", [])
    assert stat.S_IMODE((tmp_path / "copy/a/b").stat().st_mode) == 0o555
    assert stat.S_IMODE((tmp_path / "copy/a").stat().st_mode) == 0o500
    for name in ("source/a", "source/a/b", "copy/a", "copy/a/b"):
        (tmp_path / name).chmod(0o700)


def test_file_names_that_are_no_text_are_copied(source: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\n")
    (source / name).touch()
    copy_folder(source, tmp_path / "copy", [])
    assert (tmp_path / "copy" / name).exists()


def test_a_repository_is_copied_with_its_history_and_stays_clean(
    repository: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    copy_folder(repository, target, [])
    assert git(target, "log", "--format=%s") == "one\n"
    assert git(target, "status", "--porcelain") == ""
    (target / "file").write_text("changed")
    git(target, "commit", "-q", "-a", "-m", "two")
    assert git(repository, "log", "--format=%s") == "one\n"


def test_a_copy_of_a_worktree_cannot_change_the_original(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    copy_folder(tmp_path / "tree", tmp_path / "copy", [])
    assert (tmp_path / "copy/file").exists()
    assert not (tmp_path / "copy/.git").exists()


@pytest.mark.slow
def test_a_submodule_is_copied_with_its_repository(repository: Path, tmp_path: Path) -> None:
    inner = ["-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repository), "inner"]
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, *inner)
    copy_folder(outer, tmp_path / "copy", [])
    assert git(tmp_path / "copy/inner", "log", "--format=%s") == "one\n"
    shown = git(tmp_path / "copy/inner", "rev-parse", "--show-toplevel").strip()
    assert Path(shown) == (tmp_path / "copy/inner").resolve()


def test_what_cannot_be_copied_leaves_nothing(source: Path, tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="cannot copy the workspace"):
        copy_folder(tmp_path / "none", tmp_path / "copies/one", [])
    (tmp_path / "file").touch()
    with pytest.raises(RunnerError, match="cannot copy the workspace"):
        copy_folder(source, tmp_path / "file/one", [])
    assert list((tmp_path / "copies").iterdir()) == []


class Stop(Exception):  # noqa: N818
    """What a check raises."""


@pytest.mark.slow
def test_a_copy_can_be_stopped_at_every_check_and_leaves_nothing(
    source: Path, tmp_path: Path
) -> None:
    for number in range(1_000):
        (source / "a/b" / str(number)).touch()
    checks = 0

    def check() -> None:
        nonlocal checks, left
        checks += 1
        left -= 1
        if left == 0:
            raise Stop

    left = -1
    copy_folder(source, tmp_path / "whole", [], check)
    assert checks >= len(["source", "a", "b"]) + 1_000 // 200
    for stop_at in range(1, checks + 1):
        left = stop_at
        with pytest.raises(Stop):
            copy_folder(source, tmp_path / "copies/one", [], check)
        assert list((tmp_path / "copies").iterdir()) == []


def test_every_folder_is_a_check(source: Path, tmp_path: Path) -> None:
    for number in range(50):
        (source / f"empty{number}").mkdir()
    checks = []
    copy_folder(source, tmp_path / "copy", [], lambda: checks.append(1))
    assert len(checks) >= 50


def test_a_git_link_is_judged_by_where_it_leads(repository: Path, tmp_path: Path) -> None:
    (repository / ".git").rename(repository / "kept")
    (repository / ".git").symlink_to("kept")
    copy_folder(repository, tmp_path / "inside", [])
    assert git(tmp_path / "inside", "log", "--format=%s") == "one\n"
    (repository / ".git").unlink()
    (repository / ".git").symlink_to(repository / "kept")
    copy_folder(repository, tmp_path / "outside", [])
    assert not os.path.lexists(tmp_path / "outside/.git")


@pytest.mark.parametrize("name", [".git", "link"])
def test_a_link_to_a_pipe_is_copied_and_holds_nobody_up(
    source: Path, tmp_path: Path, name: str
) -> None:
    os.mkfifo(source / "pipe")
    (source / "a" / name).symlink_to("../pipe")
    copy_folder(source, tmp_path / "copy", [])
    assert (tmp_path / "copy/a" / name).readlink() == Path("../pipe")


KILLED_MIDWAY = """
import os, shutil, sys
from pathlib import Path
from runner.workspace import folders

def copy_and_die(*arguments, **options):
    shutil.copy2_(*arguments, **options)
    os.kill(os.getpid(), 9)

shutil.copy2_, shutil.copy2 = shutil.copy2, copy_and_die
folders.copy_folder(Path(sys.argv[1]), Path(sys.argv[2]), [])
"""


def test_a_copy_that_was_killed_midway_is_no_copy_and_the_next_try_cleans_up(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copies/one"
    killed = subprocess.run([sys.executable, "-c", KILLED_MIDWAY, source, target], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists()
    leftover = list(target.parent.iterdir())
    assert len(leftover) == 1
    (leftover[0] / "locked").mkdir()
    (leftover[0] / "locked/file").touch()
    (leftover[0] / "locked").chmod(0o500)
    copied = copy_folder(source, target, [])
    assert has_id(target, copied)
    assert contents(target) == contents(source)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("step", ["scandir", "copystat"])
def test_a_folder_that_vanishes_for_a_moment_does_not_stop_the_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    module: Any = os if step == "scandir" else shutil
    real = getattr(module, step)

    def without_the_folder(path: str, *others: Any, **options: Any) -> Any:
        if path != str(source / "a"):
            return real(path, *others, **options)
        (source / "a").rename(tmp_path / "away")
        try:
            return real(path, *others, **options)
        finally:
            (tmp_path / "away").rename(source / "a")

    with monkeypatch.context() as patched:
        patched.setattr(module, step, without_the_folder)
        copy_folder(source, tmp_path / "copy", [])
    assert (tmp_path / "copy/script").exists()


@pytest.mark.slow
def test_files_that_vanish_while_they_are_copied_were_never_there(
    source: Path, tmp_path: Path
) -> None:
    """A folder in use: another process makes and removes files as fast as it can."""
    command = f"while :; do mkdir -p {source}/t/u; : > {source}/t/u/x; rm -rf {source}/t; done"
    busy = subprocess.Popen(["bash", "-c", command], stderr=subprocess.DEVNULL)
    try:
        for number in range(200):
            copy_folder(source, tmp_path / f"copy{number}", [])
    finally:
        busy.kill()
        busy.wait()
    assert (tmp_path / "copy0/a/b/file").read_text() == "text"
