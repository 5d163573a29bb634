"""``show``, ``list`` and ``transcript`` tell of files, verifications and forks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.workspace import Workspace
from runner.store.database import Database
from runner.store.fork import fork
from tests.cli.conftest import Result
from tests.cli.out.recorded import AtWork, begin, git, git_spec, submit, with_verify
from tests.cli.test_terminal import HOSTILE, steers
from tests.store.attempts import run_row, submit_one
from tests.store.examples import NOW, SPEC


@pytest.fixture
def work(database: Database, home: Path, repository: Path) -> AtWork:
    """A run whose first verification failed; it has ended."""
    _, (run_id,) = submit(database, with_verify(git_spec(repository)), "one")
    work = begin(database, home, run_id).write({"a.txt": b"zwei\n"}).end()
    work.verify("failed", f"1 failed\n{HOSTILE}")
    return work.write({"a.txt": b"drei\n"}).end().verify().deliver()


def fields(shown: str) -> dict[str, str]:
    """The lines of ``show`` with a name and a value."""
    found = (line.split("  ", 1) for line in shown.splitlines() if "  " in line)
    return {name.strip(): value.strip() for name, value in found}


@pytest.mark.slow
def test_a_run_is_shown_with_branch_commit_files_and_verdict(
    command: Callable[..., Result], work: AtWork, repository: Path
) -> None:
    shown = command("show", work.id)
    told = fields(shown.out)
    row = run_row(work.database, work.id)
    assert told["branch"] == "runner/mend/one"
    assert told["begun at"] == work.start_commit
    assert told["commit"] == git(repository, "rev-parse", "runner/mend/one")
    assert told["files"] == f"tree {row.start_tree} became {work.tree}"
    assert told["verified"] == "passed, 1.5s (verification 2, after turn 4)"
    assert f"runner diff {work.id[-8:]}" in shown.out
    as_json = command("show", work.id, "--json").json
    assert as_json["tree"] == work.tree
    assert as_json["commit"] == told["commit"]
    assert [each["outcome"] for each in as_json["verifications"]] == ["failed", "succeeded"]
    assert as_json["verifications"][0]["output"] == f"1 failed\n{HOSTILE}"


@pytest.mark.slow
def test_a_job_is_shown_with_base_and_verification(
    command: Callable[..., Result], work: AtWork, repository: Path
) -> None:
    told = fields(command("show", run_row(work.database, work.id).job_id).out)
    assert told["workspace"] == f"{repository} (git)"
    assert told["base"] == f"main, commit {work.start_commit}"
    assert told["verify"] == "pytest -q"


@pytest.mark.slow
def test_a_call_is_shown_with_the_trees_around_it(
    command: Callable[..., Result], work: AtWork
) -> None:
    told = fields(command("show", f"call_{work.id[4:]}_1_1").out)
    before = run_row(work.database, work.id).start_tree
    assert told["files"].startswith(f"tree {before} became ")


@pytest.mark.slow
def test_runs_are_listed_with_their_verdicts(command: Callable[..., Result], work: AtWork) -> None:
    job_id = run_row(work.database, work.id).job_id
    heads, line = command("list", job_id).out.splitlines()
    assert "verified" in heads
    assert line[heads.index("verified") :].startswith("passed ")
    (row,) = command("list", job_id, "--json").json
    assert (row["branch"], row["verified"]) == ("runner/mend/one", "passed")
    assert row["commit"]


def test_a_job_that_verifies_nothing_has_no_column_for_it(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = run_row(database, submit_one(database)).job_id
    assert "verified" not in command("list", job_id).out


@pytest.mark.slow
def test_a_transcript_has_verifications_where_they_happened(
    command: Callable[..., Result], work: AtWork
) -> None:
    said = command("transcript", work.id).out
    order = (
        "── assistant, turn 2",
        "── verification 1, after turn 2",
        "[failed: `pytest -q`, 1.5s]",
        "1 failed",
        "── user, turn 2",
        "── assistant, turn 3",
        "── assistant, turn 4",
        "── verification 2, after turn 4",
        "[passed, 1.5s]",
    )
    places = [said.index(words) for words in order]
    assert places == sorted(places)
    assert not any(map(steers, said.replace("\n", "")))


@pytest.mark.slow
def test_a_fork_is_shown_with_its_origin_and_its_model(
    command: Callable[..., Result], work: AtWork
) -> None:
    forked = fork(work.database, work.id, 1, NOW, text=None, model="claude-other")
    told = fields(command("show", forked.id).out)
    assert told["fork of"] == f"{work.id[-8:]}@1"
    assert told["model"] == "claude-other"
    job_id = run_row(work.database, work.id).job_id
    line = command("list", job_id, "--state", "queued").out.splitlines()[1]
    assert line.endswith(f"fork of {work.id[-8:]}@1")
    (row,) = command("list", job_id, "--state", "queued", "--json").json
    assert (row["model"], row["fork_of"], row["fork_turn"]) == ("claude-other", work.id, 1)
    assert "+zwei" in command("diff", forked.id).out
    assert "+zwei" in command("diff", forked.id, "--turn", "1").out


@pytest.mark.parametrize(
    "workspace", [None, Workspace(path="/src"), Workspace(path="/src", mode="copy")]
)
def test_a_run_without_files_is_shown_as_before(
    command: Callable[..., Result], database: Database, workspace: Workspace | None
) -> None:
    run_id = submit_one(database, spec=replace(SPEC, workspace=workspace))
    shown = command("show", run_id)
    assert shown.code == 0
    assert not {"branch", "commit", "files", "verified", "result"} & set(fields(shown.out))
    assert command("show", run_row(database, run_id).job_id).code == 0
