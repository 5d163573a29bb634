from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from runner.errors import HostFaultError, Interrupted, WorkspaceError
from runner.workspace.git import Git, GitError, one_line, shown

from .places import git as user_git
from .places import make_repository


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    make_repository(tmp_path / "repository", {"a": "1\n"})
    return tmp_path / "repository"


@pytest.fixture
def here(repository: Path) -> Git:
    return Git(repository, os.environ)


def fake_git(folder: Path, script: str) -> Git:
    """git replaced by a shell script."""
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "git").chmod(stat.S_IRWXU)
    return Git(folder, {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})


def test_output_and_input_are_bytes(here: Git) -> None:
    blob = here.run("hash-object", "-w", "--stdin", given=b"\xff\0\n").strip()
    assert here.run("cat-file", "blob", blob) == b"\xff\0\n"


def test_much_output_and_much_input_do_not_wait_for_each_other(here: Git) -> None:
    paths = b"".join(b"name%d\0" % number for number in range(30_000))
    listed = here.run(
        "check-ignore", "-z", "--stdin", "--no-index", "-v", "-n", given=paths, accept=(0, 1)
    )
    assert len(listed) > len(paths)


@pytest.mark.slow
def test_a_git_that_is_slow_to_read_is_given_all_of_its_input(tmp_path: Path) -> None:
    git = fake_git(
        tmp_path / "bin", "touch began; until [ -e checked ]; do sleep 0.05; done; wc -c"
    )

    def check() -> None:
        if (git.folder / "began").exists():
            (git.folder / "checked").touch()

    paths = b"name\0" * 100_000
    counted = git.run("check-ignore", given=paths, check=check, seconds=60.0)
    assert int(counted) == len(paths)


def test_a_failure_is_one_line_that_says_what_git_said(here: Git) -> None:
    with pytest.raises(WorkspaceError, match=r"git cat-file failed: .*nothing-like-it") as caught:
        here.run("cat-file", "blob", "nothing-like-it")
    assert "\n" not in str(caught.value)


def test_an_exit_code_that_was_expected_is_no_failure(here: Git) -> None:
    assert here.run("check-ignore", "a", accept=(0, 1)) == b""


def test_a_missing_git_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostFaultError, match="git is not on the PATH: install it"):
        Git(tmp_path, {"PATH": str(tmp_path)}).run("version")


@pytest.mark.parametrize(
    "said",
    [
        "fatal: write error: No space left on device",
        "error: unable to create temporary file: Read-only file system",
        "fatal: Out of memory, malloc failed (tried to allocate 8 bytes)",
        "fatal: unable to create thread: Resource temporarily unavailable",
        "error: cannot open .git/x: Too many open files; fatal: it went on",
    ],
)
def test_a_failure_for_want_of_what_the_host_has_is_told_from_others(
    tmp_path: Path, said: str
) -> None:
    git = fake_git(tmp_path / "bin", f"echo '{said}' >&2; exit 128")
    with pytest.raises(HostFaultError, match="git add failed: "):
        git.run("add")


def test_a_git_that_was_killed_for_its_memory_is_the_hosts_trouble(tmp_path: Path) -> None:
    with pytest.raises(HostFaultError, match="git add failed: signal 9"):
        fake_git(tmp_path / "bin", "kill -9 $$").run("add")


def test_a_path_that_says_the_same_in_a_longer_text_is_no_fault_of_the_host(tmp_path: Path) -> None:
    git = fake_git(tmp_path / "bin", "echo 'fatal: no path No space left on device/x' >&2; exit 1")
    with pytest.raises(GitError, match="git add failed: "):
        git.run("add")


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(GitError, match=r"git cannot be started in .*gone: No such file"):
        Git(tmp_path / "gone", os.environ).run("version")


@pytest.mark.slow
def test_a_git_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    git = fake_git(tmp_path / "bin", "sleep 300 & echo $! > child; wait")
    with pytest.raises(GitError, match="git fetch did not end within 5 seconds"):
        git.run("fetch", seconds=5.0)
    wait_until_gone(tmp_path / "bin" / "child")


@pytest.mark.slow
def test_whoever_checks_ends_git(tmp_path: Path) -> None:
    git = fake_git(tmp_path / "bin", "sleep 300 & echo $! > child; wait")

    def check() -> None:
        child = tmp_path / "bin" / "child"
        if child.exists() and child.read_text().endswith("\n"):
            raise Interrupted

    with pytest.raises(Interrupted):
        git.run("fetch", check=check)
    wait_until_gone(tmp_path / "bin" / "child")


def test_a_signal_that_ended_git_is_named(tmp_path: Path) -> None:
    git = fake_git(tmp_path / "bin", f"kill -{int(signal.SIGTERM)} $$")
    with pytest.raises(GitError, match="git gc failed: signal 15, and it said nothing"):
        git.run("gc")


def test_variables_of_git_around_it_lead_nowhere(here: Git, tmp_path: Path) -> None:
    make_repository(tmp_path / "other", {"b": "1\n"})
    steered = {
        **os.environ,
        "GIT_DIR": str(tmp_path / "other/.git"),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "alias.x",
        "GIT_CONFIG_VALUE_0": "!true",
        "GIT_SSH_COMMAND": "ours",
    }
    local = Git(here.folder, steered)
    assert local.run("ls-files") == b"a\n"
    assert b"ours" not in local.run("-c", "alias.e=!env", "e")
    remote = Git(here.folder, steered, user_settings=True)
    told = remote.run("-c", "alias.e=!env", "e").splitlines()
    assert b"GIT_SSH_COMMAND=ours" in told
    assert not any(line.startswith(b"GIT_CONFIG_KEY_0") for line in told)


def test_the_users_settings_count_only_when_asked_for(here: Git, tmp_path: Path) -> None:
    user_git(tmp_path, "config", "--file", str(tmp_path / ".gitconfig"), "x.y", "mine")
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment.pop("XDG_CONFIG_HOME", None)
    assert Git(here.folder, environment).run("config", "x.y", accept=(0, 1)) == b""
    assert Git(here.folder, environment, user_settings=True).run("config", "x.y") == b"mine\n"


def test_hooks_and_monitors_of_a_repository_never_run(here: Git, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/witness\n")
    program.chmod(0o755)
    hook = here.folder / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.symlink_to(program)
    user_git(here.folder, "config", "core.fsmonitor", str(program))
    (here.folder / "b").touch()
    here.run("status")
    here.run("add", "b")
    assert not (tmp_path / "witness").exists()


def test_text_for_a_terminal_is_one_printable_line() -> None:
    assert one_line("a\nb\x1b[31m\tc") == "a b\\x1b[31m c"
    assert shown(b"a\nb\xff\x1b") == "a\\nb\\xff\\x1b"


def wait_until_gone(file: Path) -> None:
    child = int(file.read_text())
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
    raise AssertionError(f"process {child} lives")
