"""What is stored of runs' files, verifications and answers, as it is looked at afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.commands import Reply, Target
from runner.core.spec import Asking
from runner.core.workspace import RESULT_TOOL
from runner.errors import NotFoundError
from runner.queries.decisions import answer_counts, unknown_outcome_counts
from runner.queries.outcomes import (
    items_of_runs,
    last_verifications,
    result_of_run,
    results_of_job,
    verifications_of_run,
)
from runner.store import leases
from runner.store.approvals import answer
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.retry import retry
from runner.store.workspaces import snapshots_around_turn, workspace_of, workspaces_of_job
from tests.cli.out.recorded import (
    AtWork,
    begin,
    git,
    git_spec,
    repository_in,
    submit,
    with_result,
    with_verify,
)
from tests.store.asked import ask, run_ids, submit_asking
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return repository_in(tmp_path)


@pytest.fixture
def work(database: Database, repository: Path, tmp_path: Path) -> AtWork:
    """A run that is verified and has to submit a result."""
    spec = with_result(with_verify(git_spec(repository)))
    _, (run_id,) = submit(database, spec, "one")
    return begin(database, tmp_path / "home", run_id)


@pytest.mark.slow
def test_a_run_s_trees_are_found_with_where_they_are(work: AtWork, repository: Path) -> None:
    start = work.tree
    work.write({"a.txt": b"zwei\n"})
    found = workspace_of(work.database, work.id)
    assert (found.start_tree, found.tree, found.commit) == (start, work.tree, None)
    assert found.asked is not None
    assert (found.asked.mode, found.asked.source, found.asked.remote) == (
        "git",
        str(repository),
        None,
    )
    assert (found.branch, found.start_commit) == (work.branch, work.start_commit)
    assert (found.hostname, found.model) == ("here", "claude-test")
    assert found.record is not None
    assert found.record.path == str(work.path)
    assert workspaces_of_job(work.database, found.job_id) == [found]
    assert snapshots_around_turn(work.database, work.id, 1) == (start, work.tree)
    with pytest.raises(NotFoundError, match="no turn 2: its last is 1"):
        snapshots_around_turn(work.database, work.id, 2)


@pytest.mark.slow
def test_the_commit_is_known_once_the_run_has_ended_so(work: AtWork, repository: Path) -> None:
    submit_result(work, {"title": "Good"}).verify().deliver()
    commit = git(repository, "rev-parse", work.branch)
    assert workspace_of(work.database, work.id).commit == commit


def submit_result(work: AtWork, result: dict[str, object]) -> AtWork:
    number = work.attempt.state.turns + 1
    work.attempt.reply(tool_use(number, RESULT_TOOL, **result), stop="tool_use")
    return work


@pytest.mark.slow
def test_verifications_are_told_in_order_and_the_last_by_run(work: AtWork) -> None:
    submit_result(work, {"title": "Bad"}).verify("failed", "1 failed")
    submit_result(work, {"title": "Good"}).verify()
    first, second = verifications_of_run(work.database, work.id)
    assert (first["number"], first["turn"], first["outcome"]) == (1, 1, "failed")
    assert (first["command"], first["output"], first["duration"]) == ("pytest -q", "1 failed", 1.5)
    assert second["outcome"] == "succeeded"
    job_id = run_row(work.database, work.id).job_id
    assert last_verifications(work.database, job_id) == {work.id: second}


@pytest.mark.slow
def test_results_are_those_that_were_submitted_last(work: AtWork) -> None:
    job_id = run_row(work.database, work.id).job_id
    assert result_of_run(work.database, work.id) is None
    submit_result(work, {"title": "Bad"}).verify("failed", "1 failed")
    submit_result(work, {"title": "Good\x00"})
    assert result_of_run(work.database, work.id) == {"title": "Good\x00"}
    forked = fork(work.database, work.id, 1, NOW, text="Go on.", model="claude-other")
    found = {each.run_id: each for each in results_of_job(work.database, job_id)}
    assert found[work.id].result == {"title": "Good\x00"}
    assert (found[forked.id].result, found[forked.id].fork_of) == (None, work.id)
    assert workspace_of(work.database, forked.id).model == "claude-other"


def test_runs_that_were_begun_afresh_are_left_out_unless_they_are_wanted(
    database: Database,
) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    cancel(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW, fresh=True)
    (current,) = workspaces_of_job(database, job_id)
    assert current.run_id != run_id
    every = [
        each.run_id for each in workspaces_of_job(database, job_id, among=[run_id, current.run_id])
    ]
    assert every == [run_id, current.run_id]
    assert [each.run_id for each in results_of_job(database, job_id)] == [current.run_id]
    assert current.asked is None
    assert items_of_runs(database, every) == {each: {"file": "one"} for each in every}


def test_answers_are_counted_by_run(database: Database) -> None:
    job_id = submit_asking(database, "one", "two", asking=Asking("ask"))
    first, second = run_ids(database, job_id)
    answer(database, ask(database, first, "uv lock"), Reply("approved", "ada"), NOW)
    answer(database, ask(database, second, "uv lock"), Reply("denied", "ada"), NOW)
    assert answer_counts(database, job_id) == {
        first: {("approved", "person"): 1},
        second: {("denied", "person"): 1},
    }


def test_unknown_outcomes_are_counted_by_run_and_not_again_in_its_fork(
    database: Database, repository: Path, tmp_path: Path
) -> None:
    spec = git_spec(repository)
    assert spec.workspace is not None
    bash = replace(spec.tools[-1], name="Bash", repeatable=False)
    external = replace(spec.workspace, mode="shared")
    spec = replace(spec, tools=(*spec.tools, bash), workspace=external)
    run_id = submit_one(database, spec=spec)
    attempt = claim(database, run_id).reply(tool_use(1, "Bash", command="push"), stop="tool_use")
    leases.give_back(database, attempt.lease, NOW)
    claim(database, run_id).reply(text("Done."))
    job_id = run_row(database, run_id).job_id
    assert unknown_outcome_counts(database, job_id) == {run_id: 1}
    fork(database, run_id, 1, NOW, text="Go on.", model=None)
    assert unknown_outcome_counts(database, job_id) == {run_id: 1}
