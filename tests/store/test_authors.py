"""Every change that a person makes is an event: who, why, and the values before and after."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, text

from runner.core.budget import Budget
from runner.core.commands import Raised, Reply, Target
from runner.core.events import Event, signed_event
from runner.core.run import RUNNER, UNKNOWN, Author
from runner.core.spec import Asking
from runner.permissions import Rule
from runner.queries.timeline import changes_of_job, events_after
from runner.store import control, rules, workspaces
from runner.store import retry as revive
from runner.store.approvals import answer, apply_new_rules, expire
from runner.store.budgets import set_budget
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.jobs import submit
from runner.store.tables import approvals, job_events, metadata
from tests.docs.happenings import play
from tests.store.asked import ASKING, add_rules, answer_events, ask, run_ids, submit_asking
from tests.store.attempts import claim, event_types, run_row, submit_one
from tests.store.attempts import text as said
from tests.store.examples import NOW, SPEC, submission

ADA = Author("ada", "it works on the wrong branch")

Change = Callable[[Database, Target], object]


def last_event(database: Database, run_id: str) -> dict[str, Any]:
    event_types(database, run_id)  # asserts that there are no gaps
    return events_after(database, run_id)[-1]


def of_job(database: Database, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    """The job's own events, which must be numbered without gaps."""
    query = select(job_events).where(job_events.c.job_id == job_id).order_by(job_events.c.number)
    rows = database.read(lambda connection: connection.execute(query).all())
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    return [(row.type, row.data) for row in rows]


def signed(author: Author, old: dict[str, Any] | None, new: dict[str, Any] | None) -> Any:
    return {"by": author.name, "why": author.why, "old": old, "new": new}


def pause(database: Database, target: Target) -> None:
    control.pause(database, target, NOW, author=ADA)


def resume(database: Database, target: Target) -> None:
    control.resume(database, target, NOW, author=ADA)


def cancel(database: Database, target: Target) -> None:
    control.cancel(database, target, NOW, author=ADA)


def retry(database: Database, target: Target) -> None:
    revive.retry(database, target, NOW, raised=Raised(max_turns=99), author=ADA)


def say(database: Database, target: Target) -> None:
    revive.say(database, target.id, "And the tests?", NOW, author=ADA)


PAUSED = {"state": "waiting", "reason": "paused"}
CANCELLED = {"state": "cancelled", "reason": "cancelled"}
QUEUED = {"state": "queued", "reason": ""}


@pytest.mark.parametrize(
    ("before", "change", "kind", "old", "new"),
    [
        ((), pause, "paused", QUEUED, PAUSED),
        ((pause,), resume, "resumed", PAUSED, QUEUED),
        ((), say, "message_queued", {"queued_count": 0}, {"queued_count": 1}),
        ((cancel,), retry, "retried", CANCELLED | {"max_turns": 50}, QUEUED | {"max_turns": 99}),
        (
            (cancel,),
            say,
            "message_queued",
            CANCELLED | {"queued_count": 0},
            QUEUED | {"queued_count": 1},
        ),
    ],
)
def test_change_of_a_run_says_who_why_and_what(
    database: Database,
    before: tuple[Change, ...],
    change: Change,
    kind: str,
    old: dict[str, Any],
    new: dict[str, Any],
) -> None:
    target = Target("run", submit_one(database))
    for earlier in before:
        earlier(database, target)
    change(database, target)
    event = last_event(database, target.id)
    assert event["type"] == kind
    told = {name: event["data"][name] for name in ("by", "why", "old", "new")}
    assert told == signed(ADA, old, new)


def test_cancel_says_who_also_of_the_questions_that_it_closes(database: Database) -> None:
    job_id = submit_asking(database, "a")
    (run_id,) = run_ids(database, job_id)
    ask(database, run_id, "uv lock")
    cancel(database, Target("job", job_id))
    (event,) = (e for e in events_after(database, run_id) if e["type"] == "cancelled")
    old = {"state": "waiting", "reason": "approval"}
    assert event["data"] == signed(ADA, old, CANCELLED)
    query = select(approvals.c.answered_by, approvals.c.answered_via, approvals.c.reason)
    assert database.read(lambda c: c.execute(query).one()) == ("ada", "cancel", ADA.why)


def test_pause_of_a_run_at_work_is_asked_by_a_person_and_done_by_runner(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    pause(database, Target("run", run_id))
    requested = last_event(database, run_id)
    old, new = {"pause_requested": False}, {"pause_requested": True}
    assert (requested["type"], requested["data"]) == ("pause_requested", signed(ADA, old, new))
    attempt.fail("invalid_request_error", "No.")  # it ends instead: nothing is to be paused
    again = submit_one(database, "two")
    attempt = claim(database, again)
    pause(database, Target("run", again))
    attempt.reply(said("Half."), stop="max_tokens")
    paused = last_event(database, again)
    assert (paused["type"], paused["data"]["by"]) == ("paused", "runner")


def test_run_begun_afresh_and_forked_says_who_in_both_runs(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(said("Done."))
    forked = fork(database, run_id, 1, NOW, text="Go on.", author=ADA)
    told = events_after(database, forked.id)
    assert [event["type"] for event in told] == ["run_submitted", "forked", "message_queued"]
    assert {(event["data"]["by"], event["data"]["why"]) for event in told} == {("ada", ADA.why)}
    (fresh,) = revive.retry(database, Target("run", run_id), NOW, fresh=True, author=ADA)
    for event in (events_after(database, fresh.id)[0], last_event(database, run_id)):
        assert (event["data"]["by"], event["data"]["why"]) == ("ada", ADA.why)


def test_job_says_who_submitted_it_and_what(database: Database) -> None:
    spec = replace(SPEC, budget=Budget(usd=2.0))
    job_id = submit(database, submission("a", "b", spec=spec), NOW, "nightly", author=ADA)
    new = {
        "name": "mend",
        "key": "nightly",
        "source": "jobs/mend.toml",
        "runs": 2,
        "rules": 2,
        "budget_usd": 2.0,
        "budget_tokens": None,
    }
    assert of_job(database, job_id) == [("submitted", signed(ADA, None, new))]
    for run_id in run_ids(database, job_id):
        assert last_event(database, run_id)["data"]["by"] == "ada"
    assert submit(database, submission("a"), NOW, "nightly", author=Author("bo")) == job_id
    assert len(of_job(database, job_id)) == 1


def test_nobody_known_is_nobody(database: Database) -> None:
    job_id = submit(database, submission(), NOW)
    ((_, data),) = of_job(database, job_id)
    assert (data["by"], data["why"]) == (None, "")


def test_rules_that_are_added_and_revoked_are_told_with_who_and_why(database: Database) -> None:
    job_id = submit_asking(database, "a")
    (asked,) = ask(database, run_ids(database, job_id)[0], "uv lock")
    answer(database, [asked], Reply("approved", "ada", "It is safe.", remember="job"), NOW)
    position = len(ASKING.rules)
    rules.revoke(database, job_id, position, Author("bo", "It was not."), NOW + 1)
    rule = {
        "position": position,
        "effect": "allow",
        "rule": "Bash(uv lock)",
        "origin": "remembered",
        "run_id": None,
        "snapshot": 2,
    }
    assert of_job(database, job_id)[1:] == [
        ("rule_added", signed(Author("ada", "It is safe."), None, rule)),
        ("rule_revoked", {"snapshot": 3, **signed(Author("bo", "It was not."), rule, None)}),
    ]


def test_budget_is_told_as_it_was_and_as_it_is(database: Database) -> None:
    run_id = submit_one(database, spec=replace(SPEC, budget=Budget(usd=1.0, tokens=1)))
    claim(database, run_id)
    job_id = run_row(database, run_id).job_id
    set_budget(database, job_id, NOW, author=ADA, tokens=10**9)
    old, new = {"budget_tokens": 1}, {"budget_tokens": 10**9}
    assert of_job(database, job_id)[1:] == [("budget_changed", signed(ADA, old, new))]
    woken = last_event(database, run_id)
    old = {"state": "waiting", "reason": "budget", **old}
    assert woken["data"] == {"reason": "budget", **signed(ADA, old, QUEUED | new)}


def test_answer_says_who_why_and_what_was_edited(database: Database) -> None:
    run_id = run_ids(database, submit_asking(database, "a"))[0]
    (asked,) = ask(database, run_id, "uv lock")
    reply = Reply("approved", "ada", "Offline will do.", {"command": "uv lock --offline"})
    answer(database, [asked], reply, NOW)
    (event,) = answer_events(database, run_id)
    old = {"answer": None, "input": "uv lock"}
    new = {"answer": "approved", "input": "uv lock --offline"}
    author = Author("ada", "Offline will do.")
    assert {name: event[name] for name in ("by", "why", "old", "new")} == signed(author, old, new)


def test_what_runner_does_by_itself_is_by_runner(database: Database) -> None:
    job_id = submit_asking(database, "late", "ruled", asking=Asking(default="ask"))
    late, ruled = run_ids(database, job_id)
    ask(database, late, "uv lock", expires_at=NOW + 1)
    ask(database, ruled, "uv sync")
    expire(database, NOW + 2)
    add_rules(database, job_id, Rule("deny", "Bash(uv sync)", "not today"))
    apply_new_rules(database, NOW + 2)
    for run_id, via, why in (
        (late, "timeout", "nobody answered in time"),
        (ruled, "rule", "not today"),
    ):
        (event,) = answer_events(database, run_id)
        assert (event["by"], event["via"], event["why"]) == (RUNNER.name, via, why)


def test_workspace_of_a_run_that_goes_on_is_not_removed_nor_told_of(database: Database) -> None:
    run_id = submit_one(database)
    lost = {"path": "/home/worktrees/1", "unsaved": ""}
    assert not workspaces.record_removal(database, run_id, lost, ADA, NOW)
    assert event_types(database, run_id) == ["run_submitted"]
    cancel(database, Target("run", run_id))
    assert workspaces.record_removal(database, run_id, lost, ADA, NOW)
    event = last_event(database, run_id)
    assert (event["type"], event["data"]) == ("workspace_pruned", signed(ADA, lost, None))


@pytest.mark.slow
def test_events_of_a_job_have_no_gaps_when_several_change_it_at_once(
    database: Database, open_database: Callable[[], Database]
) -> None:
    spec = replace(ASKING, budget=Budget(tokens=10**9))
    job_id = submit(database, submission("a", spec=spec), NOW)
    connections = [database, *(open_database() for _ in range(3))]

    def act(one: tuple[int, Database]) -> None:
        number, own = one
        for step in range(5):
            set_budget(own, job_id, NOW, author=ADA, tokens=10**9 + 10 * step + number)
        if number < len(ASKING.rules):
            rules.revoke(own, job_id, number, ADA, NOW, force=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, enumerate(connections)))
    kinds = [kind for kind, _ in of_job(database, job_id)]
    assert (kinds.count("budget_changed"), kinds.count("rule_revoked")) == (20, 3)


def test_changes_of_a_job_are_its_own_and_those_of_its_runs_in_order_of_time(
    database: Database,
) -> None:
    job_id = submit(database, submission("a", "b"), NOW, author=ADA)
    first, second = run_ids(database, job_id)
    control.pause(database, Target("run", second), NOW + 2, author=ADA)
    control.cancel(database, Target("run", first), NOW + 1, author=Author("bo"))
    control.pause(database, Target("run", submit_one(database, "c")), NOW, author=ADA)
    assert [
        (change["run_id"], change["type"], change["data"]["by"])
        for change in changes_of_job(database, job_id)
    ] == [(None, "submitted", "ada"), (first, "cancelled", "bo"), (second, "paused", "ada")]
    assert {change["job_id"] for change in changes_of_job(database, job_id)} == {job_id}


def test_what_is_not_signed_tells_no_values() -> None:
    assert signed_event("forked", UNKNOWN, {"turn": 1}) == Event(
        "forked", {"turn": 1, "by": None, "why": ""}
    )


def test_author_cannot_steer_a_terminal_nor_fill_the_record() -> None:
    data = signed_event("paused", Author("a\x1b[2J" + "x" * 500, "y\n" * 5_000)).data
    assert data["by"].isprintable()
    assert (len(data["by"]), len(data["why"])) == (100, 1_000)


_REFUSALS = {
    "sqlite": (
        "CREATE TRIGGER keep_{table} BEFORE DELETE ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'a row of {table} was deleted'); END",
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'a row of % was deleted', TG_TABLE_NAME; END $$",
        "CREATE TRIGGER keep_{table} BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION keep()",
    ),
}
# Rows that are made anew from others or from a file: no record.
DERIVED = {"prices"}


@pytest.mark.slow
def test_nothing_that_happens_deletes_a_row_of_the_record(database: Database) -> None:
    for table in sorted(set(metadata.tables) - DERIVED):
        if not table.startswith("search_"):  # the index, made anew from what is stored
            for statement in _REFUSALS[database.dialect]:
                forbid = text(statement.format(table=table))
                database.write(lambda connection, forbid=forbid: connection.execute(forbid))
    play(database)
    run_id = submit_one(database)
    lease = claim(database, run_id).lease
    for host in ("here", "there"):
        kept = workspaces.WorkspaceRecord(store_id=host, path=f"/{host}")
        workspaces.save_record(database, lease, kept, None, NOW)
    assert workspaces.workspace_of(database, run_id).record == kept
    with pytest.raises(Exception, match="a row of run_workspaces was deleted"):
        database.write(lambda connection: connection.execute(text("DELETE FROM run_workspaces")))
