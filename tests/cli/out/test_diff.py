"""``diff``: what is recorded of a run's files, exact where it is piped and harmless where it is shown."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.workspace import Workspace
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.out.recorded import AtWork, begin, git, git_spec, put, submit
from tests.cli.test_terminal import steers
from tests.runner_process import RunnerProcess
from tests.store.attempts import submit_one, tool_use
from tests.store.examples import SPEC

BINARY = bytes(range(256))


@pytest.fixture
def run(database: Database, home: Path, repository: Path) -> AtWork:
    """A run that changed files in two of its three turns."""
    _, (run_id,) = submit(database, git_spec(repository), "one")
    work = begin(database, home, run_id)
    work.write({"a.txt": b"one\nzwei\n"}).call("Read", file_path="a.txt")
    return work.write({"b/new.bin": BINARY})


def apply(repository: Path, patch: bytes) -> None:
    subprocess.run(["git", "apply"], cwd=repository, input=patch, check=True)


def piped(start: Callable[..., RunnerProcess], *arguments: str) -> bytes:
    process = start(*arguments)
    assert process.stdout is not None
    content = process.stdout.buffer.read()
    assert process.wait() == 0
    return bytes(content)


@pytest.mark.slow
def test_the_diff_makes_the_run_s_files_of_the_base(
    start: Callable[..., RunnerProcess], run: AtWork, repository: Path
) -> None:
    run.write({"latin": "grün\n".encode("latin-1")})
    apply(repository, piped(start, "diff", run.id, "--binary"))
    assert (repository / "a.txt").read_bytes() == b"one\nzwei\n"
    assert (repository / "b/new.bin").read_bytes() == BINARY
    assert (repository / "latin").read_bytes() == "grün\n".encode("latin-1")


def test_a_summary_comes_first_and_a_binary_file_is_one_line(
    command: Callable[..., Result], run: AtWork, repository: Path
) -> None:
    shown = command("diff", run.id).out
    first, _, patch = shown.partition("diff --git ")
    assert " a.txt     |   2 +-\n" in first
    assert " 2 files changed, 1 insertion(+), 1 deletion(-)\n" in first
    assert patch.startswith("a/a.txt b/a.txt\n")
    assert [line for line in shown.splitlines() if "new.bin" in line] == [
        " b/new.bin | Bin 0 -> 256 bytes",
        " create mode 100644 b/new.bin",
    ]
    apply(repository, shown.encode())  # git takes the summary for the message of a mail
    assert (repository / "a.txt").read_bytes() == b"one\nzwei\n"
    both = command("diff", run.id, "--stat", "--binary")
    assert (both.code, both.out) == (2, "")


def test_a_terminal_shows_lines_in_colours_and_a_lookalike_as_what_it_is(
    command: Callable[..., Result], run: AtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write({"a.txt": b"one\n++ b/x\nBinary files a and b differ\ndiff --git a/x b/x\n"})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = command("diff", run.id).out
    assert "\x1b[1mdiff --git a/a.txt b/a.txt\x1b[0m" in shown
    assert "\x1b[31m-two\x1b[0m" in shown
    assert "\x1b[32m+++ b/x\x1b[0m" in shown
    assert "\x1b[32m+Binary files a and b differ\x1b[0m" in shown
    assert "\x1b[32m+diff --git a/x b/x\x1b[0m" in shown
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in command("diff", run.id).out


@pytest.mark.slow
def test_a_turn_s_diff_is_what_that_turn_changed(
    command: Callable[..., Result], run: AtWork
) -> None:
    first = command("diff", run.id, "--turn", "1")
    assert first.code == 0
    assert "+zwei" in first.out
    assert "new.bin" not in first.out
    second = command("diff", run.id, "--turn", "2")
    assert (second.code, second.out) == (0, "")
    assert "nothing was changed in turn 2" in second.err
    third = command("diff", run.id, "--turn", "3", "--stat").out
    assert "b/new.bin" in third
    assert "a.txt" not in third


@pytest.mark.slow
def test_a_turn_of_several_calls_is_one_change(
    command: Callable[..., Result], database: Database, home: Path, repository: Path
) -> None:
    _, (run_id,) = submit(database, git_spec(repository), "one")
    work = begin(database, home, run_id)
    works = [{f"{n}.txt": b"%d\n" % n} for n in range(3)]
    work.write_each(*works)
    for turn in ((), ("--turn", "1")):
        listed = command("diff", run_id, "--stat", *turn).out
        assert all(f"{n}.txt" in listed for n in range(3))


@pytest.mark.slow
def test_what_a_call_did_before_it_was_cut_off_is_not_told(
    command: Callable[..., Result], run: AtWork
) -> None:
    run.attempt.reply(tool_use(4, "Write", file_path="x"), stop="tool_use")
    put(run.worktree.path, {"x": b"half"})
    told = command("diff", run.id, "--turn", "4")
    assert (told.code, told.out) == (0, "")


@pytest.mark.slow
def test_what_a_person_changed_between_turns_is_in_the_whole_and_in_no_turn(
    command: Callable[..., Result], run: AtWork
) -> None:
    from runner.core.entries import SnapshotRecorded

    put(run.worktree.path, {"mine.txt": b"mine\n"})
    run.attempt.append(SnapshotRecorded(run.snapshots.take(), "changed"))
    run.write({"a.txt": b"one\n"})
    assert "mine.txt" in command("diff", run.id, "--stat").out
    assert "mine.txt" not in command("diff", run.id, "--stat", "--turn", "4").out


@pytest.mark.slow
def test_a_turn_that_is_not_there_is_a_usage_error(
    command: Callable[..., Result], run: AtWork
) -> None:
    told = command("diff", run.id, "--turn", "9")
    assert (told.code, told.out) == (2, "")
    assert f"{run.id[-8:]} has no turn 9: its last is 3" in told.err


@pytest.mark.slow
def test_a_terminal_obeys_nothing_in_a_diff(
    command: Callable[..., Result], run: AtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write({"\x1b[2J.txt": b"\x1b[31mred\x07\r\n\x9b2J\xe2\x80\xae\n"})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    for arguments in ((), ("--stat",), ("--turn", "4")):
        told = command("diff", run.id, *arguments)
        assert told.code == 0
        assert not any(map(steers, told.out.replace("\n", "")))
    assert "+␛[31mred" in told.out


@pytest.mark.slow
def test_the_workspace_may_be_gone(command: Callable[..., Result], run: AtWork) -> None:
    before = command("diff", run.id).out
    shutil.rmtree(run.worktree.path)
    assert command("diff", run.id).out == before != ""


@pytest.mark.slow
def test_the_host_that_has_the_files_is_named(
    command: Callable[..., Result], run: AtWork, home: Path
) -> None:
    (home / "snapshots").rename(home / "elsewhere")
    told = command("diff", run.id)
    assert (told.code, told.out) == (1, "")
    assert f"the files of {run.id[-8:]} are recorded on the host here: do this there" in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.slow
def test_snapshots_that_were_removed_are_told_of(
    command: Callable[..., Result], run: AtWork, home: Path
) -> None:
    for store in (home / "snapshots").glob("*.git"):
        shutil.rmtree(store)
    told = command("diff", run.id)
    assert told.code == 1
    assert "they were removed" in told.err


@pytest.mark.slow
def test_files_are_fetched_from_the_job_s_remote(
    command: Callable[..., Result], database: Database, home: Path, repository: Path, folder: Path
) -> None:
    remote = folder / "remote.git"
    git(folder, "init", "-q", "--bare", str(remote))
    spec = git_spec(repository)
    assert spec.workspace is not None
    spec = replace(spec, workspace=replace(spec.workspace, remote=str(remote)))
    _, (run_id,) = submit(database, spec, "one")
    work = begin(database, home, run_id).write({"a.txt": b"zwei\n"})
    work.snapshots.push(str(remote))
    expected = command("diff", run_id).out
    (home / "snapshots").rename(home / "elsewhere")
    shutil.rmtree(repository)
    assert command("diff", run_id).out == expected != ""
    shutil.rmtree(remote)
    shutil.rmtree(home / "snapshots")
    assert command("diff", run_id).code == 1


@pytest.mark.slow
def test_files_too_large_to_be_recorded_are_named(
    command: Callable[..., Result], run: AtWork
) -> None:
    run.snapshots = run.opened(largest_file=10)
    run.write({"big\x1b": b"x" * 11, "small": b"x"})
    told = command("diff", run.id, "--turn", "4")
    assert told.code == 0
    assert "small" in told.out
    assert "big" not in told.out
    assert told.err == "not shown: big\\x1b, which is too large to be recorded whole\n"
    run.write({"small": b"y"})
    assert command("diff", run.id, "--turn", "5").err == ""


@pytest.mark.slow
def test_what_is_recorded_nowhere_is_named(command: Callable[..., Result], run: AtWork) -> None:
    git(run.path, "init", "-q", "vendor\x1b")
    run.write({"vendor\x1b/a": b"x", "small": b"x"})
    for options in ((), ("--stat",)):
        told = command("diff", run.id, *options)
        assert told.code == 0
        assert told.err == "not shown: the content of vendor\\x1b, which is not recorded\n"


@pytest.mark.parametrize(
    ("workspace", "said"),
    [
        (None, "its job has no workspace"),
        (Workspace(path="/src"), 'its job works in mode "shared"'),
        (Workspace(path="/src", mode="git", commit="0" * 40), "no worker has begun it"),
    ],
)
def test_a_run_of_which_nothing_is_recorded_says_why(
    command: Callable[..., Result], database: Database, workspace: Workspace | None, said: str
) -> None:
    run_id = submit_one(database, spec=replace(SPEC, workspace=workspace))
    told = command("diff", run_id)
    assert (told.code, told.out) == (2, "")
    assert said in told.err
