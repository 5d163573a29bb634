from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from runner.errors import UsageError
from runner.workspace import folders
from runner.workspace.folders import EXCLUDED, MARKER, has_id, identify, restore_id


def git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "file").write_text("x")
    git(folder, "add", "file")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def test_an_id_is_made_once_and_kept(tmp_path: Path) -> None:
    first = identify(tmp_path)
    assert re.fullmatch(r"ws_[a-z2-7]{26}", first)
    assert identify(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == [MARKER]


def test_two_folders_have_different_ids(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert identify(tmp_path / "a") != identify(tmp_path / "b")


@pytest.mark.slow
def test_processes_that_come_at_once_agree_on_one_id(tmp_path: Path) -> None:
    barrier = Barrier(8)

    def mark(folder: Path) -> str:
        barrier.wait()
        return folders.mark(folder)

    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            folder = tmp_path / str(number)
            folder.mkdir()
            assert len(set(pool.map(mark, [folder] * 8))) == 1
            assert [path.name for path in folder.iterdir()] == [MARKER]


def test_a_workspace_is_visible_only_where_its_own_id_is(tmp_path: Path) -> None:
    own = identify(tmp_path)
    assert has_id(tmp_path, own)
    assert not has_id(tmp_path, "ws_" + "a" * 26)
    assert not has_id(tmp_path / "none", own)
    (tmp_path / MARKER).unlink()
    assert not has_id(tmp_path, own)


@pytest.mark.parametrize("content", ["", "nonsense", "ws_" + "A" * 26, "ws_" + "a" * 27])
def test_what_is_no_id_is_refused_and_left_alone(content: str, tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text(content)
    with pytest.raises(UsageError, match="delete that file and try again"):
        identify(tmp_path)
    assert (tmp_path / MARKER).read_text() == content
    assert not has_id(tmp_path, content)


def test_a_link_in_the_place_of_the_id_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own = identify(elsewhere)
    (tmp_path / MARKER).symlink_to(elsewhere / MARKER)
    assert not has_id(tmp_path, own)
    with pytest.raises(UsageError, match="cannot keep the workspace's id"):
        identify(tmp_path)


def test_a_pipe_in_the_place_of_the_id_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MARKER)
    assert not has_id(tmp_path, "ws_" + "a" * 26)


def test_a_folder_that_is_not_there_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot keep the workspace's id"):
        identify(tmp_path / "none")


def test_git_overlooks_the_id(repository: Path) -> None:
    identify(repository)
    assert git(repository, "status", "--porcelain") == ""
    git(repository, "add", "-A")
    assert git(repository, "status", "--porcelain") == ""


def test_git_overlooks_the_id_in_a_folder_of_a_repository(repository: Path) -> None:
    (repository / "inner").mkdir()
    identify(repository / "inner")
    assert git(repository, "status", "--porcelain") == ""


def test_git_overlooks_the_id_in_a_worktree(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    identify(tmp_path / "tree")
    assert git(tmp_path / "tree", "status", "--porcelain") == ""


def test_a_list_of_ignored_files_keeps_what_it_has(repository: Path) -> None:
    listing = repository / ".git/info/exclude"
    listing.write_text("mine")
    identify(repository)
    (repository / MARKER).unlink()
    identify(repository)
    assert listing.read_text() == f"mine\n{EXCLUDED}\n"


@pytest.mark.parametrize("linked", ["exclude", "info"])
def test_a_link_in_a_repository_is_not_followed(
    repository: Path, tmp_path: Path, linked: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "exclude").write_text("mine\n")
    shutil.rmtree(repository / ".git/info")
    if linked == "info":
        (repository / ".git/info").symlink_to(elsewhere)
    else:
        (repository / ".git/info").mkdir()
        (repository / ".git/info/exclude").symlink_to(elsewhere / "exclude")
    assert has_id(repository, identify(repository))
    assert (elsewhere / "exclude").read_text() == "mine\n"
    (elsewhere / "exclude").unlink()
    (repository / MARKER).unlink()
    assert has_id(repository, identify(repository))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "link to a device", "huge"])
def test_what_is_no_list_of_ignored_files_is_left_alone(
    repository: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = repository / ".git/info/exclude"
    listing.unlink()
    match kind:
        case "pipe":
            os.mkfifo(listing)
        case "folder":
            listing.mkdir()
        case "socket":
            monkeypatch.chdir(listing.parent)  # a socket's address is short
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(listing.name)
        case "link to a device":
            listing.symlink_to("/dev/zero")
        case "huge":
            listing.touch()
            os.truncate(listing, 1 << 40)  # a terabyte, of which nothing is stored
    before = listing.lstat()
    assert has_id(repository, identify(repository))
    after = listing.lstat()
    assert (after.st_mode, after.st_size) == (before.st_mode, before.st_size)


@pytest.mark.slow
def test_a_repository_over_which_git_hangs_holds_nobody_up(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "GIT_SECONDS", 0.2)
    (repository / ".git/config").unlink()
    os.mkfifo(repository / ".git/config")
    assert has_id(repository, identify(repository))


def test_without_git_a_linked_repository_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, workspace = tmp_path / "elsewhere", tmp_path / "workspace"
    elsewhere.mkdir()
    workspace.mkdir()
    (workspace / ".git").symlink_to(elsewhere)
    monkeypatch.setenv("PATH", str(tmp_path))
    identify(workspace)
    assert list(elsewhere.iterdir()) == []


def test_an_id_that_was_removed_can_be_written_back(repository: Path) -> None:
    own = identify(repository)
    git(repository, "clean", "-fdxq")
    assert not has_id(repository, own)
    assert restore_id(repository, own)
    assert has_id(repository, own)
    assert identify(repository) == own
    assert git(repository, "status", "--porcelain") == ""


def test_nothing_is_written_over_or_where_no_folder_is(tmp_path: Path) -> None:
    own = identify(tmp_path)
    other = "ws_" + "a" * 26
    assert not restore_id(tmp_path, other)
    assert has_id(tmp_path, own)
    assert not restore_id(tmp_path, own)
    (tmp_path / MARKER).unlink()
    (tmp_path / MARKER).symlink_to("nowhere")
    assert not restore_id(tmp_path, own)
    assert (tmp_path / MARKER).is_symlink()
    assert not restore_id(tmp_path / "none", own)
    (tmp_path / "file").touch()
    assert not restore_id(tmp_path / "file", own)
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_of_ids_that_are_written_back_at_once_one_stays(tmp_path: Path) -> None:
    barrier = Barrier(8)
    known = [f"ws_{letter * 26}" for letter in "abcdefgh"]

    def write(folder: Path, own: str) -> bool:
        barrier.wait()
        return restore_id(folder, own)

    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            folder = tmp_path / str(number)
            folder.mkdir()
            written = list(pool.map(write, [folder] * 8, known))
            assert written.count(True) == 1
            assert has_id(folder, known[written.index(True)])
            assert [path.name for path in folder.iterdir()] == [MARKER]


def test_an_id_that_cannot_be_written_back_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 240)
    folder.mkdir()
    monkeypatch.setattr(folders, "MARKER", "y" * 240)  # with its draft's ending: too long a name
    with pytest.raises(UsageError, match="cannot keep the workspace's id"):
        restore_id(folder, "ws_" + "a" * 26)


def test_another_repository_named_by_the_environment_is_not_touched(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    before = (other / ".git/info/exclude").read_text()
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    identify(repository)
    assert (other / ".git/info/exclude").read_text() == before
    assert EXCLUDED in (repository / ".git/info/exclude").read_text()


def test_without_git_the_list_is_found_by_its_place(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        identify(repository)
    assert git(repository, "status", "--porcelain") == ""
