"""``patch``: what runs leave lands in a repository with `git am`, or is a prediction."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from runner.app.outputs import file_names
from runner.core.commands import Target
from runner.core.conversation import ToolResult
from runner.core.entries import SnapshotRecorded, ToolFinished
from runner.core.workspace import Workspace
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.retry import say
from runner.store.tables import run_items, runs
from runner.store.workspaces import WorkspaceRecord, save_record
from runner.workspace.snapshot_store import make_store, store_id
from runner.workspace.snapshots import Snapshots
from tests.cli.conftest import Result
from tests.cli.out.recorded import AtWork, begin, git, git_spec, put, repository_in, submit
from tests.cli.test_terminal import HOSTILE, steers
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC

CRLF = b"one\r\nzwei\r\n"
BINARY = bytes(range(256))


@pytest.fixture
def clone(repository: Path, folder: Path) -> Path:
    """Where a reviewer lands patches: the base, and nothing else."""
    git(folder, "clone", "-q", str(repository), "clone")
    return folder / "clone"


def job_of(database: Database, home: Path, repository: Path, *keys: str) -> list[AtWork]:
    _, found = submit(database, git_spec(repository), *keys)
    return [begin(database, home, run_id) for run_id in found]


def job_id(work: AtWork) -> str:
    return str(run_row(work.database, work.id).job_id)


def land(clone: Path, patch: Path) -> str:
    """The tree that a reviewer has after `git am` on the base."""
    git(clone, "checkout", "-q", "--detach", "origin/main")
    git(clone, "am", "-q", str(patch))
    return git(clone, "rev-parse", "HEAD^{tree}")


@pytest.mark.slow
def test_git_am_makes_the_commit_that_the_run_was_delivered_in(
    command: Callable[..., Result],
    database: Database,
    home: Path,
    repository: Path,
    clone: Path,
    folder: Path,
) -> None:
    git(repository, "config", "user.name", "Ada Löwe")
    git(repository, "config", "user.email", "ada@example.org")
    (work,) = job_of(database, home, repository, "src/a b.py")
    work.write({"a.txt": CRLF, "new/data.bin": BINARY, "latin": "grün\n".encode("latin-1")}).end()
    told = command("patch", work.id, "-o", "out/patches")
    assert told.code == 0
    assert "1 file written to out/patches" in told.err
    (patch,) = (folder / "out/patches").iterdir()
    assert patch.name == "src-a-b.py.patch"
    tree = land(clone, patch)
    assert tree == git(repository, "rev-parse", f"{work.branch}^{{tree}}")
    form = "--format=%an <%ae>%n%at%n%B"
    delivered = git(repository, "log", "-1", form, work.branch)
    assert git(clone, "log", "-1", form) == delivered
    assert delivered.startswith("Ada Löwe <ada@example.org>\n")
    trailers = git(clone, "log", "-1", "--format=%(trailers:key=Runner-Run,valueonly)")
    assert trailers == work.id


@pytest.mark.slow
def test_a_patch_is_by_the_repository_s_own_rules(
    command: Callable[..., Result], database: Database, home: Path, folder: Path
) -> None:
    """The work tree has other line ends than the repository, and files that are ignored but
    recorded."""
    attributes = {".gitattributes": b"*.txt text eol=crlf\n", ".gitignore": b"*.log\n"}
    repository = repository_in(folder, {**attributes, "a.txt": b"one\ntwo\n"})
    (work,) = job_of(database, home, repository, "one")
    work.snapshots = work.opened(ignored=["*.log"])
    work.write({"a.txt": b"one\r\nzwei\r\n", "x.log": b"x\n"}).end()
    assert "x.log" in command("diff", work.id).out
    assert command("patch", work.id, "-o", "out").code == 0
    patch = (folder / "out/one.patch").read_text()
    assert "+zwei\n" in patch
    assert "x.log" not in patch
    git(folder, "clone", "-q", str(repository), "clone")
    assert land(folder / "clone", folder / "out/one.patch") == git(
        repository, "rev-parse", f"{work.branch}^{{tree}}"
    )


@pytest.mark.slow
def test_what_the_agent_committed_itself_is_in_the_one_patch(
    command: Callable[..., Result],
    database: Database,
    home: Path,
    repository: Path,
    clone: Path,
    folder: Path,
) -> None:
    (work,) = job_of(database, home, repository, "one")
    work.write({"a.txt": b"mine\n"})
    work.call("Write", lambda: git(work.worktree.path, "commit", "-qam", "mine"))
    work.write({"b.txt": b"more\n"}).end()
    assert command("patch", work.id, "-o", "out").code == 0
    assert land(clone, folder / "out/one.patch") == git(
        repository, "rev-parse", f"{work.branch}^{{tree}}"
    )


@pytest.mark.slow
def test_a_run_in_a_copy_has_a_patch_of_its_recorded_files(
    command: Callable[..., Result],
    database: Database,
    home: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    source = folder / "source"
    put(source, {"a.txt": b"one\n"})
    spec = git_spec(repository_in(folder), workspace=Workspace(path=str(source), mode="copy"))
    _, (run_id,) = submit(database, spec, "one")
    attempt = claim(database, run_id)
    path = home / "workspaces" / run_id
    shutil.copytree(source, path)
    save_record(database, attempt.lease, WorkspaceRecord(store_id(home), str(path)), "snap_1", NOW)
    store = make_store(home, str(source), None)
    snapshots = Snapshots(store, path, run_id, 1, environment=os.environ)
    attempt.append(SnapshotRecorded(snapshots.take(), "created"))
    attempt.reply(tool_use(1, "Write", file_path="a.txt"), stop="tool_use")
    put(path, {"a.txt": b"two\n"})
    attempt.append(ToolFinished(0, ToolResult("ok"), snapshots.take())).reply(text("Done."))
    shutil.rmtree(path)
    assert command("patch", run_id, "-o", "out").code == 0
    patch = (folder / "out/one.patch").read_text()
    assert "-one\n+two\n" in patch
    assert "From: Runner <runner@localhost>\n" in patch
    git(source, "init", "-q")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "begin")
    git(source, "am", "-q", str(folder / "out/one.patch"))
    assert (source / "a.txt").read_text() == "two\n"


@pytest.mark.slow
def test_each_run_of_a_job_that_has_ended_has_a_file_unless_it_changed_nothing(
    command: Callable[..., Result], database: Database, home: Path, repository: Path, folder: Path
) -> None:
    works = job_of(database, home, repository, "a", "b", "c", "d")
    first, nothing, cancelled, going = works
    first.write({"a.txt": b"a\n"}).end()
    nothing.end()
    cancelled.write({"c.txt": b"c\n"})
    cancel(database, Target("run", cancelled.id), NOW)
    going.write({"d.txt": b"d\n"})
    told = command("patch", job_id(first), "-o", "out", "--json", "--all")
    assert told.code == 0
    assert [(each["item_key"], each["file"], each["why"]) for each in told.json] == [
        ("a", "a.patch", ""),
        ("b", None, "nothing was changed"),
        ("c", "c.patch", ""),
    ]
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["a.patch", "c.patch"]
    assert "Runner-Outcome: cancelled" in (folder / "out/c.patch").read_text()
    (only,) = command("patch", job_id(first), "-o", "x", "--json", "--state", "running").json
    assert only["item_key"] == "d"
    assert "Runner-Outcome" not in (folder / "x/d.patch").read_text()


@pytest.mark.slow
def test_a_job_gives_patches_of_its_succeeded_runs_and_names_older_files(
    command: Callable[..., Result], database: Database, home: Path, repository: Path, folder: Path
) -> None:
    good, cancelled = job_of(database, home, repository, "good", "cancelled")
    good.write({"a.txt": b"a\n"}).end()
    cancelled.write({"c.txt": b"c\n"})
    cancel(database, Target("run", cancelled.id), NOW)
    (folder / "out").mkdir()
    for name in ("old.patch", "preds.json", "notes.txt"):
        (folder / "out" / name).touch()
    (folder / "out" / "kept.patch").mkdir()
    told = command("patch", job_id(good), "-o", "out")
    assert told.code == 0
    assert "2 files from an earlier time (--clean removes them): old.patch, preds.json" in told.err
    told = command("patch", job_id(good), "-o", "out", "--clean")
    assert "2 files removed: old.patch, preds.json" in told.err
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        *("good.patch", "kept.patch", "notes.txt")
    ]


@pytest.mark.slow
def test_for_a_run_only_its_own_older_patches_are_removed(
    command: Callable[..., Result], database: Database, home: Path, repository: Path, folder: Path
) -> None:
    good, other = job_of(database, home, repository, "good", "other")
    for work in (good, other):
        work.write({"a.txt": b"a\n"}).end()
    command("patch", job_id(good), "-o", "out")
    shutil.copy(folder / "out/good.patch", folder / "out/old.patch")
    told = command("patch", good.id, "-o", "out", "--clean")
    assert "1 file removed: old.patch" in told.err
    left = ["good.patch", "other.patch"]
    assert sorted(path.name for path in (folder / "out").iterdir()) == left


@pytest.mark.slow
def test_a_run_that_was_not_delivered_has_its_recorded_files_in_the_patch(
    command: Callable[..., Result],
    database: Database,
    home: Path,
    repository: Path,
    clone: Path,
    folder: Path,
) -> None:
    (work,) = job_of(database, home, repository, "one")
    message = "[mend] it\n\nFrom: here on"
    change = update(run_items).where(run_items.c.run_id == work.id)
    database.write(lambda c: c.execute(change.values(commit_message=message)))
    work.write({"a.txt": b"delivered\n"}).end()
    say(database, work.id, "More.", NOW)
    work.attempt = claim(database, work.id)
    work.write({"a.txt": CRLF})
    put(work.worktree.path, {"a.txt": b"not recorded\n"})
    cancel(database, Target("run", work.id), NOW)
    assert command("patch", work.id, "-o", "out").code == 0
    land(clone, folder / "out/one.patch")
    assert (clone / "a.txt").read_bytes() == CRLF
    told = git(clone, "log", "-1", "--format=%B")
    assert told.startswith(f"{message}\n\nRunner-Job: mend {job_id(work)}\n")
    assert "Runner-Outcome: cancelled cancelled" in told


@pytest.mark.slow
def test_a_run_whose_files_are_elsewhere_keeps_no_other_back(
    command: Callable[..., Result], database: Database, home: Path, repository: Path, folder: Path
) -> None:
    here, away = job_of(database, home, repository, "here", "away")
    for work in (here, away):
        work.write({"a.txt": b"changed\n"}).end()
    change = update(runs).where(runs.c.id == away.id)
    stored = run_row(database, away.id).progress
    stored["files"]["tree"], stored["ending"]["delivered"] = "1" * 40, None
    database.write(lambda c: c.execute(change.values(progress=stored)))
    told = command("patch", job_id(here), "-o", "out", "--json")
    assert told.code == 1
    assert [each["file"] for each in told.json] == ["here.patch", None]
    assert "no longer in" in told.json[1]["why"]


@pytest.mark.slow
def test_predictions_are_what_swe_bench_reads(
    command: Callable[..., Result], database: Database, home: Path, repository: Path, folder: Path
) -> None:
    named, nothing, odd = job_of(database, home, repository, "a", "b", "c")
    item = {"instance_id": "django__django-1", "problem": "…"}
    change = update(run_items).where(run_items.c.run_id == named.id).values(item=item)
    database.write(lambda c: c.execute(change))
    named.write({"a.txt": "ä\n".encode()}).end()
    nothing.end()
    odd.write({"latin": "grün\n".encode("latin-1")}).end()
    told = command("patch", job_id(named), "-o", "out", "--format", "preds", "--json")
    assert told.code == 1
    assert "not UTF-8" in told.json[2]["why"]
    (file,) = (folder / "out").iterdir()
    predictions = json.loads(file.read_text())
    assert file.name == "preds.json"
    assert [sorted(each) for each in predictions] == [
        ["instance_id", "model_name_or_path", "model_patch"]
    ] * 2
    assert [each["instance_id"] for each in predictions] == ["django__django-1", "b"]
    assert predictions[0]["model_name_or_path"] == "claude-test"
    assert predictions[0]["model_patch"] == command("diff", named.id, "--binary").out
    assert "+ä" in predictions[0]["model_patch"]
    assert predictions[1]["model_patch"] == ""


@pytest.mark.slow
def test_a_fork_has_no_prediction_beside_its_origin_s(
    command: Callable[..., Result], database: Database, home: Path, repository: Path, folder: Path
) -> None:
    origin, fork = job_of(database, home, repository, "a", "b")
    change = update(runs).where(runs.c.id == origin.id)
    # The fork has the smaller id here, and yet the original's is the one.
    origin, fork = fork, origin
    values = {"fork_of": origin.id, "fork_turn": 1, "item_key": "b", "model": "claude-other"}
    database.write(lambda c: c.execute(change.values(**values)))
    fork.write({"a.txt": b"fork\n"}).end()
    assert command("patch", fork.id, "-o", "fork", "--format", "preds").code == 0
    (alone,) = json.loads((folder / "fork/preds.json").read_text())
    assert (alone["model_name_or_path"], "+fork" in alone["model_patch"]) == ("claude-other", True)
    origin.write({"a.txt": b"origin\n"}).end()
    told = command("patch", job_id(origin), "-o", "out", "--format", "preds", "--json")
    assert "has a prediction already" in told.json[1]["why"]
    (prediction,) = json.loads((folder / "out/preds.json").read_text())
    assert "+origin" in prediction["model_patch"]


@pytest.mark.slow
def test_patches_are_written_anew_and_no_link_is_followed(
    command: Callable[..., Result], database: Database, home: Path, repository: Path, folder: Path
) -> None:
    (work,) = job_of(database, home, repository, "one")
    work.write({"a.txt": b"a\n"}).end()
    (folder / "out").mkdir()
    (folder / "precious").write_text("precious")
    (folder / "out/one.patch").symlink_to(folder / "precious")
    for _ in range(2):
        assert command("patch", work.id, "-o", "out").code == 0
        assert (folder / "precious").read_text() == "precious"
        assert "+a" in (folder / "out/one.patch").read_text()
    assert [path.name for path in (folder / "out").iterdir()] == ["one.patch"]


def test_keys_of_items_name_files_in_the_folder_alone() -> None:
    keys = (
        "../../etc/passwd",
        "/abs",
        "a/b",
        "A-b",
        ".hidden",
        "",
        "…",
        "x" * 500,
        "con\x00\n",
        "-o",
    )
    names = file_names([(f"run_0000000{n}", key) for n, key in enumerate(keys)], ".patch")
    assert names == {
        "run_00000000": "etc-passwd.patch",
        "run_00000001": "abs.patch",
        "run_00000002": "a-b-00000002.patch",
        "run_00000003": "A-b-00000003.patch",
        "run_00000004": "hidden.patch",
        "run_00000005": "run-00000005.patch",
        "run_00000006": "run-00000006.patch",
        "run_00000007": "x" * 100 + ".patch",
        "run_00000008": "con.patch",
        "run_00000009": "o.patch",
    }


@pytest.mark.slow
def test_a_hostile_item_steers_no_terminal(
    command: Callable[..., Result], database: Database, home: Path, repository: Path
) -> None:
    key = HOSTILE.replace("\x00", "").replace("\ud800", "")
    (work,) = job_of(database, home, repository, key)
    work.write({"a.txt": b"a\n"}).end()
    told = command("patch", work.id, "-o", "out")
    assert told.code == 0
    assert not any(map(steers, (told.out + told.err).replace("\n", "")))


@pytest.mark.parametrize(
    ("workspace", "said"),
    [
        (Workspace(path="/src"), 'its job works in mode "shared"'),
        (Workspace(path="/src", mode="git", commit="0" * 40), "no run of"),
    ],
)
def test_a_job_without_files_of_its_own_says_why(
    command: Callable[..., Result],
    database: Database,
    folder: Path,
    workspace: Workspace,
    said: str,
) -> None:
    run_id = submit_one(database, spec=replace(SPEC, workspace=workspace))
    told = command("patch", run_row(database, run_id).job_id, "-o", "out")
    assert (told.code, told.out) == (2, "")
    assert said in told.err
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_told(
    command: Callable[..., Result], database: Database, home: Path, repository: Path, folder: Path
) -> None:
    (work,) = job_of(database, home, repository, "one")
    work.write({"a.txt": b"a\n"}).end()
    (folder / "file").touch()
    told = command("patch", work.id, "-o", "file/out")
    assert told.code == 2
    assert "file/out cannot be made" in told.err
    shutil.rmtree(home / "workspaces")
    assert command("patch", work.id, "-o", "out").code == 0
