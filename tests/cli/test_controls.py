"""``cancel``, ``pause``, ``resume``, ``retry`` and ``say``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import text as sql
from sqlalchemy import update

from runner.core.budget import Limits
from runner.core.commands import Target
from runner.queries.jobs import list_runs
from runner.queries.transcript import show_run
from runner.store import jobs as jobs_store
from runner.store import migrate
from runner.store.control import cancel as cancel_runs
from runner.store.database import Database
from runner.store.tables import runs
from tests.cli.conftest import Result
from tests.runner_process import RunnerProcess
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC, submission


def test_run_is_paused_resumed_and_cancelled(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database)
    for name, state in (("pause", "waiting"), ("resume", "queued"), ("cancel", "cancelled")):
        result = command(name, run_id[-6:])
        assert result.code == 0
        assert result.out.startswith(f"{run_id[-8:]} (one): ")
        assert run_row(database, run_id).state == state


@pytest.mark.parametrize(
    "arguments",
    [
        ("cancel", "last/prod"),
        ("pause", "last/prod"),
        ("resume", "last/prod"),
        ("retry", "last/prod"),
        ("say", "last/prod", "Stop."),
        ("fork", "last/prod@1"),
        ("approve", "last/prod"),
        ("deny", "last/prod", "--reason", "No."),
        ("patch", "last/prod", "-o", "patches"),
    ],
)
def test_a_piece_of_an_items_key_changes_no_run(
    command: Callable[..., Result], database: Database, arguments: tuple[str, ...]
) -> None:
    jobs_store.submit(database, submission("pre-production-db", "b"), NOW)
    refused = command(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert "did you mean last/pre-production-db?" in refused.err
    assert command("show", "last/prod").code == 0
    assert {run["state"] for run in command("list", "last", "--json").json} == {"queued"}


def test_change_of_a_run_is_an_object_and_of_a_job_an_array(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    first, second = list_runs(database, job_id)
    change = command("cancel", first["id"], "--json").json
    assert (change["id"], change["state"], change["changed"]) == (first["id"], "cancelled", True)
    changes = command("cancel", job_id, "--json").json
    assert [(each["id"], each["changed"]) for each in changes] == [
        (first["id"], False),
        (second["id"], True),
    ]


@pytest.mark.parametrize("typed", ["200k", "0", "9" * 99])
def test_what_is_no_number_of_tokens_is_told_with_an_example(
    command: Callable[..., Result], database: Database, typed: str
) -> None:
    run_id = submit_one(database)
    for arguments in (("retry", run_id), ("budget", run_row(database, run_id).job_id)):
        refused = command(*arguments, "--tokens", typed)
        assert refused.code == 2
        told = (
            f"'{typed[:60]}' is not a number of tokens from 1 to 1,000,000,000,000, such as 200000"
        )
        assert told in refused.err


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_change_that_postgres_gave_up_is_made_again(
    start: Callable[..., RunnerProcess], empty_url: str
) -> None:
    database = Database(empty_url)
    migrate.upgrade(database)
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    first, second = sorted(run["id"] for run in list_runs(database, job_id))
    with database.writer.connect() as other, database.writer.connect() as watching:
        # Whoever has waited for so long looks for a deadlock and gives up: the command, not this.
        watching.execute(sql(f"ALTER DATABASE {database.url.database} SET deadlock_timeout = '8s'"))
        watching.commit()
        other.execute(sql("SET deadlock_timeout = '1min'"))
        other.execute(
            sql("SET idle_in_transaction_session_timeout = 0")
        )  # the command starts slowly
        holder = other.scalar(sql("SELECT pg_backend_pid()"))
        lock = sql("SELECT id FROM runs WHERE id = :id FOR UPDATE")
        other.execute(lock, {"id": second})
        process = start("cancel", job_id, "--database-url", empty_url)
        # Other tests wait for locks of the same server.
        waiting = sql("SELECT count(*) FROM pg_locks WHERE :holder = ANY(pg_blocking_pids(pid))")
        while not watching.scalar(waiting, {"holder": holder}):
            assert process.poll() is None
        other.execute(lock, {"id": first})
        other.rollback()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "2 of 2 runs changed" in err
    database.close()


def test_job_says_what_changed_and_what_did_not(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    cancel_runs(database, Target("run", list_runs(database, job_id)[0]["id"]), NOW)
    result = command("pause", job_id)
    assert [line.split()[1] for line in result.out.splitlines()] == ["item", "b"]
    assert "1 of 2 runs changed; 1 had ended before" in result.err
    assert len(command("pause", job_id, "--json").json) == 2


def test_many_runs_with_the_same_outcome_share_a_line(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission(*map(str, range(10, 25))), NOW)
    for run in list_runs(database, job_id)[:2]:
        cancel_runs(database, Target("run", run["id"]), NOW)
    command("pause", list_runs(database, job_id)[2]["id"])
    result = command("pause", job_id, "--reason", "Not now.")
    head, *lines = (line.split() for line in result.out.splitlines())
    assert head == ["run", "item", "state"]
    assert lines[0][1:] == ["12", "waiting", "is", "paused", "already"]
    assert lines[1] == ["12", "runs", "13", "and", "11", "more", "waiting", "paused"]
    assert len(lines) == 2
    assert "12 of 15 runs changed; 2 had ended before" in result.err
    assert len(command("pause", job_id, "--json").json) == 15
    told = [line.split()[2:5] for line in command("events", job_id).out.splitlines()]
    assert [line for line in told if "runs" in line] == [["12", "runs", "paused"]]


def test_the_summary_counts_runs_that_have_not_begun(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission(*map(str, range(10, 25))), NOW)
    first, *_ = list_runs(database, job_id)
    claim(database, first["id"])
    cancel_runs(database, Target("job", job_id), NOW)
    told = command("attach", job_id).out
    assert [line.split()[0] for line in told.splitlines() if " cancelled  " in line] == [
        first["id"][-8:]
    ]
    assert "\n14 runs that have not begun are not listed\n" in told
    assert "denied" not in told


def test_the_summary_counts_many_runs_that_succeeded(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission(*map(str, range(102))), NOW)
    *others, last = (run["id"] for run in list_runs(database, job_id))
    cancel_runs(database, Target("job", job_id), NOW)
    done = update(runs).where(runs.c.id.in_(others)).values(state="succeeded", started_at=NOW)
    database.execute(done)
    table = command("attach", job_id).out.splitlines()[:4]
    assert [line.split()[:2] for line in table[:3]] == [
        ["run", "item"],
        [last[-8:], "101"],
        ["101", "runs"],
    ]
    assert table[3] == ""


def test_job_whose_runs_have_all_ended_is_one_line(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    cancel_runs(database, Target("job", job_id), NOW)
    for name in ("cancel", "pause", "resume"):
        result = command(name, job_id)
        assert (result.code, result.err) == (0, "")
        assert result.out == f"{job_id[-8:]}: nothing to do, 2 runs have ended\n"
        assert len(command(name, job_id, "--json").json) == 2


def test_cancelling_again_says_so_and_is_no_error(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database)
    command("cancel", run_id)
    again = command("cancel", run_id)
    assert again.code == 0
    assert "had ended before" in again.out


def test_resumed_run_that_nobody_works_says_how_to_go_on(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database)
    command("pause", run_id)
    job_id = run_row(database, run_id).job_id
    assert f"runner run --resume {job_id[-8:]}" in command("resume", run_id).err


def test_failed_runs_of_a_job_are_retried(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission("failed", "cancelled"), NOW)
    failed, cancelled = (run["id"] for run in list_runs(database, job_id))
    claim(database, failed).fail("invalid_request_error", "no")
    cancel_runs(database, Target("run", cancelled), NOW)
    assert "not retried" in command("retry", "--state", "queued", job_id).err
    assert command("retry", "--state", "stopped", job_id, "--json").json == []
    assert command("retry", "--failed", "--state", "stopped", job_id).code == 2
    assert [c["id"] for c in command("retry", "--failed", job_id, "--json").json] == [failed]
    retried = command("retry", "--state", "cancelled", job_id, "--json").json
    assert [c["id"] for c in retried] == [cancelled]
    nothing = command("retry", job_id)
    assert (nothing.code, nothing.out) == (0, "")
    assert "none of its runs has failed, was cancelled or stopped at a limit" in nothing.err


def test_limit_is_raised_by_a_retry(command: Callable[..., Result], database: Database) -> None:
    spec = replace(SPEC, limits=Limits(max_turns=1))
    run_id = submit_one(database, spec=spec)
    claim(database, run_id).reply(tool_use(1), stop="tool_use").finish("x")
    refused = command("retry", run_id)
    assert refused.code == 2
    assert "--max-turns" in refused.err
    assert command("retry", run_id, "--max-turns", "9").code == 0
    assert (run_row(database, run_id).state, run_row(database, run_id).max_turns) == ("queued", 9)


@pytest.mark.parametrize("limit", ["0", "-1", "x", str(2**31)])
def test_limit_that_cannot_be_is_refused(
    command: Callable[..., Result], database: Database, limit: str
) -> None:
    run_id = submit_one(database)
    result = command("retry", run_id, "--max-turns", limit)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1


def test_fresh_run_is_named(command: Callable[..., Result], database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    change = command("retry", run_id, "--fresh", "--json").json
    assert change["id"] != run_id
    assert run_row(database, change["id"]).fresh_of == run_id


def test_message_is_queued(command: Callable[..., Result], database: Database) -> None:
    run_id = submit_one(database)
    assert command("say", run_id, "Be quick.").out == f"{run_id[-8:]} (one): message queued\n"
    assert show_run(database, run_id)["queued_messages"][0]["text"] == "Be quick."


@pytest.mark.parametrize("words", ["", "   "])
def test_message_that_says_nothing_is_refused(
    command: Callable[..., Result], database: Database, words: str
) -> None:
    assert command("say", submit_one(database), words).code == 2


def test_say_refuses_a_job_with_several_items(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    result = command("say", job_id, "Hello.")
    assert result.code == 2
    assert "no run is named" in result.err


def test_priority_is_shown_and_set_by_a_word_or_a_number(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission(), NOW)
    assert "4 (normal)" in command("priority", job_id).out
    assert "16 (high)" in command("priority", job_id[-6:], "high").out
    assert command("priority", job_id, "2.5", "--json").json == {"job_id": job_id, "priority": 2.5}
    for wrong in ("higher", "0", "1e9", "nan"):
        assert command("priority", job_id, wrong).code == 2
    assert "2.5" in command("priority", job_id).out
