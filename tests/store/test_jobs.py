"""Submitting a job."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row, select

from runner.core.fold import opening
from runner.core.run import Lease
from runner.core.spec import JobSpec, NewRun
from runner.core.workspace import Workspace
from runner.errors import UsageError
from runner.permissions import Rule
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.run_state import progress_from_row
from runner.store.tables import blocks, events, jobs, permission_rules, run_items, runs
from tests.store.attempts import free
from tests.store.examples import NOW, SPEC, submission

pytestmark = pytest.mark.dialect


def rows_of(database: Database, table: Any) -> list[Row[Any]]:
    """In the order of their keys: the ids of a job's runs grow in that of its items."""
    query = select(table).order_by(*table.primary_key.columns)
    return database.read(lambda connection: list(connection.execute(query)))


def test_submitted_text_is_stored_as_it_was_with_its_digest(database: Database) -> None:
    example = submission()
    job_id = jobs_store.submit(database, example, NOW)
    (job,) = rows_of(database, jobs)
    assert job_id == job.id
    assert job.id.startswith("job_")
    assert job.spec_text == example.text
    assert job.spec_digest == hashlib.sha256(example.text.encode()).hexdigest()
    assert JobSpec.from_json(job.spec) == example.spec
    assert job.created_at == NOW


def test_runs_are_queued_and_due_at_once_with_the_job_s_limits(database: Database) -> None:
    example = submission("a", "b")
    jobs_store.submit(database, example, NOW)
    stored = rows_of(database, runs)
    assert [row.item_key for row in stored] == ["a", "b"]
    assert {row.state for row in stored} == {"queued"}
    assert {row.due_at for row in stored} == {NOW}
    assert {row.max_turns for row in stored} == {example.spec.limits.max_turns}
    assert {row.token_ceiling for row in stored} == {example.spec.limits.token_ceiling}
    assert {(row.message_count, row.event_count) for row in stored} == {(1, 1)}


@pytest.mark.slow
def test_many_runs_are_stored_in_the_order_of_their_items(database: Database) -> None:
    keys = [f"item {number}" for number in range(1_203)]
    jobs_store.submit(database, submission(*keys), NOW)
    stored = rows_of(database, runs)
    assert [row.item_key for row in stored] == keys
    for table in (run_items, blocks, events):
        assert [row.run_id for row in rows_of(database, table)] == [row.id for row in stored]
    (_, progress) = opening(SPEC, "Mend item 7.")
    assert progress_from_row(stored[7]) == progress


def test_runs_know_their_workspace(database: Database) -> None:
    spec = replace(SPEC, workspace=Workspace("/src/project"))
    jobs_store.submit(database, submission(spec=spec), NOW, workspace_id="ws_1")
    (run,) = rows_of(database, runs)
    assert (run.workspace_path, run.workspace_id) == ("/src/project", "ws_1")
    assert rows_of(database, jobs)[0].workspace_id == "ws_1"


def test_prompt_is_the_first_message_and_submission_the_first_event(database: Database) -> None:
    jobs_store.submit(database, submission("a"), NOW)
    (run,) = rows_of(database, runs)
    (block,) = rows_of(database, blocks)
    assert (block.run_id, block.message, block.position) == (run.id, 0, 0)
    assert (block.role, block.type, block.turn) == ("user", "text", 0)
    assert block.content == {"type": "text", "text": "Mend a."}
    (event,) = rows_of(database, events)
    assert (event.run_id, event.number, event.type) == (run.id, 1, "run_submitted")


def test_rules_are_stored_in_order(database: Database) -> None:
    jobs_store.submit(database, submission(), NOW)
    stored = [(row.position, row.effect, row.rule) for row in rows_of(database, permission_rules)]
    assert stored == [(0, "allow", "Read"), (1, "deny", "Bash")]


def test_submitted_run_can_be_loaded_as_a_view(database: Database) -> None:
    jobs_store.submit(database, submission("a"), NOW)
    (run,) = rows_of(database, runs)

    def claim(connection: Any) -> None:
        connection.execute(
            runs.update().values(state="running", worker_id="worker_1", due_at=None, attempt=1)
        )

    database.write(claim)
    state = StoredJournal(database, lambda: NOW, free).load(Lease(run.id, 1, "worker_1"))
    assert [message.as_api() for message in state.messages] == [
        {"role": "user", "content": [{"type": "text", "text": "Mend a."}]}
    ]
    assert state.context == opening(SPEC, "Mend a.")[1].context
    assert (state.limits, state.money.budget) == (SPEC.limits, None)


def test_first_call_is_bounded_by_the_bytes_of_the_run_s_own_prompt(database: Database) -> None:
    jobs_store.submit(database, submission("a", "é" * 100), NOW)
    short, long = (run.progress["context"]["appended_bytes"] for run in rows_of(database, runs))
    assert short == opening(SPEC, "Mend a.")[1].context.appended_bytes
    assert long == short + 199


@pytest.mark.parametrize("rules", [(), (Rule("allow", "*"),)])
def test_job_may_have_no_rules(database: Database, rules: tuple[Rule, ...]) -> None:
    example = submission()
    jobs_store.submit(database, replace(example, spec=replace(example.spec, rules=rules)), NOW)
    assert len(rows_of(database, permission_rules)) == len(rules)


def test_second_submit_with_the_same_key_gives_the_first_job(database: Database) -> None:
    first = jobs_store.submit(database, submission("a"), NOW, "nightly")
    again = jobs_store.submit(database, submission("b", "c"), NOW + 1, "nightly")
    assert again == first
    assert [row.item_key for row in rows_of(database, runs)] == ["a"]


def test_jobs_without_a_key_are_all_stored(database: Database) -> None:
    jobs_store.submit(database, submission(), NOW)
    jobs_store.submit(database, submission(), NOW)
    assert len(rows_of(database, jobs)) == 2


@pytest.mark.slow
def test_submits_with_one_key_at_the_same_time_make_one_job(
    database: Database, open_database: Callable[[], Database]
) -> None:
    connections = [database, *(open_database() for _ in range(3))]
    with ThreadPoolExecutor(4) as pool:
        submitted = pool.map(
            lambda one: jobs_store.submit(one, submission("a", "b"), NOW, "nightly"), connections
        )
        assert len(set(submitted)) == 1
    assert len(rows_of(database, jobs)) == 1
    assert len(rows_of(database, runs)) == 2


def test_content_that_is_hard_to_store_comes_back_as_it_was(database: Database) -> None:
    example = submission("line\nbreak", "\x1b[31m", "é‮")
    item = {"nul": "\0", "half": "\ud800", "huge": 10**40, "z": 1, "a": 2}
    hard = NewRun("hard", item, "NUL \0 and half \ud800 a pair")
    jobs_store.submit(database, replace(example, runs=(*example.runs, hard)), NOW)
    items = {row.run_id: row.item for row in rows_of(database, run_items)}
    stored = {row.item_key: items[row.id] for row in rows_of(database, runs)}
    assert set(stored) == {"line\nbreak", "\x1b[31m", "é‮", "hard"}
    assert stored["hard"] == item
    assert list(stored["hard"]) == list(item)
    assert hard.prompt in {row.content["text"] for row in rows_of(database, blocks)}


@pytest.mark.parametrize("key", ["a\0b", "\ud800"])
def test_item_key_that_cannot_be_stored_is_refused(database: Database, key: str) -> None:
    with pytest.raises(UsageError, match=r"item key .* cannot be stored"):
        jobs_store.submit(database, submission("a", key), NOW)
    assert rows_of(database, jobs) == []


def test_source_path_that_is_not_utf_8_is_stored_readably(database: Database) -> None:
    jobs_store.submit(database, replace(submission(), source="jobs/caf\udce9.toml"), NOW)
    assert rows_of(database, jobs)[0].source == "jobs/caf\\udce9.toml"
