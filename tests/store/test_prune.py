"""Pruning the rows of jobs that ended long ago."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from sqlalchemy import func, select, update
from sqlalchemy import text as sql

from runner.core.commands import Target
from runner.core.rate_limits import Caps, News, PoolKey, Report, pool_of
from runner.core.run import Author
from runner.queries.jobs import list_jobs
from runner.queries.search.search import open_index
from runner.queries.search.sqlite import path_of
from runner.store import jobs as jobs_store
from runner.store import prune
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.prune import OldJob, erase, old_jobs
from runner.store.rate_limits import StoredRateLimits
from runner.store.retry import retry
from runner.store.tables import metadata, pruned_jobs, runs, workers
from tests.queries.search.record import find
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, submission

LATER = NOW + 90 * 86_400.0
ANN = Author("ann", "retention")


def end(database: Database, key: str = "one") -> str:
    """A job of a run that has called a tool and has ended; the job's id."""
    run_id = submit_one(database, key)
    attempt = claim(database, run_id)
    attempt.reply(tool_use(1, path="a.py"), stop="tool_use").finish("what is in it")
    attempt.reply(text("The llama is mended."))
    job_id: str = run_row(database, run_id).job_id
    return job_id


def old(database: Database, before: float = LATER) -> list[OldJob]:
    return list(old_jobs(database, before, "this host"))


def counts(database: Database) -> dict[str, int]:
    """How many rows there are in each table that has any."""
    tables = [table for table in metadata.tables.values() if table not in (workers, pruned_jobs)]
    found = {
        table.name: database.rows(select(func.count()).select_from(table))[0][0] for table in tables
    }
    return {name: count for name, count in found.items() if count}


def test_a_job_is_erased_whole_and_who_did_it_is_kept(database: Database) -> None:
    before = counts(database)
    job_id = end(database)
    limits, key = StoredRateLimits(database), PoolKey("", job_id)  # of the job's file
    limits.exchange("w", key, Report(), News(), pool_of(Caps(max_concurrent=1), NOW), NOW)
    (job,) = old(database)
    assert (job.id, job.runs, job.undelivered, job.elsewhere) == (job_id, 1, 0, 0)
    assert erase(database, job, LATER, ANN, LATER)
    assert counts(database) == before
    (row,) = database.rows(select(pruned_jobs))
    assert (row.job_id, row.runs, row.pruned_by, row.why) == (job_id, 1, "ann", "retention")
    assert row.pruned_at == LATER


def test_only_jobs_whose_runs_all_ended_before_the_time_are_old(database: Database) -> None:
    job_id = end(database)
    going_on = jobs_store.submit(database, submission("a", "b"), NOW)
    first = database.rows(select(runs.c.id).where(runs.c.job_id == going_on))[0][0]
    cancel(database, Target("run", first), NOW)
    assert [job.id for job in old(database)] == [job_id]
    assert old(database, NOW) == []


def test_a_family_of_forks_and_fresh_runs_goes_together(database: Database) -> None:
    job_id = end(database)
    (run_id,) = database.rows(select(runs.c.id).where(runs.c.job_id == job_id))[0]
    fork(database, run_id, 1, NOW)
    retry(database, Target("run", run_id), NOW, fresh=True)
    assert old(database) == [], "they have not ended"
    cancel(database, Target("job", job_id), NOW)
    (job,) = old(database)
    assert job.runs == 3
    assert erase(database, job, LATER, ANN, LATER)
    assert list_jobs(database) == []


def test_a_run_that_is_taken_up_again_meanwhile_is_kept(database: Database) -> None:
    end(database)
    (job,) = old(database)
    (run_id,) = database.rows(select(runs.c.id))[0]
    fork(database, run_id, 1, NOW)
    assert not erase(database, job, LATER, ANN, LATER)
    assert len(database.rows(select(runs.c.id))) == 2


def test_killed_in_between_it_leaves_what_the_next_one_removes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "_RUNS_AT_ONCE", 2)
    jobs_store.submit(database, submission(*"abcde"), NOW)
    cancel(database, Target("job", list_jobs(database)[0]["id"]), NOW)
    (job,) = old(database)
    write, written = database.write, list[object]()

    def dying(work: Callable[..., object]) -> object:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(write(work))
        return written[-1]

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", dying)
        with pytest.raises(KeyboardInterrupt):
            erase(database, job, LATER, ANN, LATER)
    (rest,) = old(database)
    assert rest.run_ids == job.run_ids[:1], "the newest went first"
    assert erase(database, rest, LATER, Author("bob"), LATER)
    (row,) = database.rows(select(pruned_jobs))
    assert (row.runs, row.pruned_by) == (5, "ann")


@pytest.mark.slow
def test_search_finds_nothing_of_a_job_that_is_gone(database: Database) -> None:
    end(database)
    (job,) = old(database)
    end(database, "two")
    assert find(database, "llama").total == 2
    assert erase(database, job, LATER, ANN, LATER)
    open_index(database).drop_gone()
    if database.dialect == "sqlite":
        with closing(sqlite3.connect(path_of(database))) as file:
            assert file.execute("SELECT count(*) FROM search_runs").fetchone() == (0,)
    else:
        held = sql("SELECT count(*), count(DISTINCT run) FROM search_documents")
        documents, held_runs = database.read(lambda c: c.execute(held).one())
        assert (documents > 0, held_runs) == (True, 2), "a run, and its job's system prompt"
    assert find(database, "llama").total == 1


def test_workers_that_no_run_names_are_forgotten(database: Database) -> None:
    end(database)
    database.execute(update(workers).values(ended_at=NOW))
    prune.forget_workers(database, LATER)
    assert len(database.rows(select(workers.c.id))) == 1
    erase(database, old(database)[0], LATER, ANN, LATER)
    prune.forget_workers(database, NOW)
    assert len(database.rows(select(workers.c.id))) == 1, "it ended later"
    prune.forget_workers(database, LATER)
    assert database.rows(select(workers.c.id)) == []
