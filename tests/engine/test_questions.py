"""What the dispatcher's pass does for calls that wait for an answer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, update

from runner.core.commands import Reply, Target
from runner.core.notices import Notify
from runner.core.run import Author
from runner.core.spec import Asking
from runner.engine.dispatcher import Notices
from runner.permissions import Rule
from runner.store import control
from runner.store.approvals import answer, expire
from runner.store.database import Database
from runner.store.notices import DueNotice
from runner.store.rules import list_rules, revoke
from runner.store.tables import approvals
from tests.engine.test_dispatcher import Post, Time
from tests.store.asked import (
    add_rules,
    answer_events,
    answers,
    approval_row,
    ask,
    ask_all,
    run_ids,
    submit_asking,
)
from tests.store.attempts import event_types, run_row
from tests.store.examples import NOW

ASKING, TOLD = Asking("ask"), Notify(on=("needs_approval",), command="tell me")


@pytest.fixture
def post(database: Database, tmp_path: Path) -> Post:
    return Post(database, tmp_path / "locks")


def told(post: Post) -> list[str]:
    """The questions that people were told of, once the threads that tell have ended."""
    for thread in threading.enumerate():
        if thread.name == "runner-notices":
            thread.join()
    return [asked["id"] for notice in post.told for asked in notice.data["questions"]]


def test_a_late_question_expires_and_its_run_is_notified_of(post: Post) -> None:
    (run_id,) = run_ids(post.database, submit_asking(post.database))
    (asked,) = ask(post.database, run_id, "uv lock", expires_at=NOW + 10)
    post.pass_at(9)
    assert (post.state(run_id), answers(post.database, [asked])) == ("waiting", [None])
    post.pass_at(10)
    assert answers(post.database, [asked]) == ["expired"]
    assert (post.state(run_id), post.notifier.notified) == ("queued", [run_id])
    post.pass_at(11)
    assert len(answer_events(post.database, run_id)) == 1


def test_late_questions_of_a_run_expire_together(database: Database) -> None:
    (run_id,) = run_ids(database, submit_asking(database))
    asked = ask(database, run_id, "uv lock", "git push", expires_at=NOW)
    assert expire(database, NOW, most=1) == [run_id]
    assert answers(database, asked) == ["expired", "expired"]
    assert event_types(database, run_id).count("approval_answered") == 2


def test_a_new_rule_answers_and_the_run_is_notified_of(post: Post) -> None:
    job_id = submit_asking(post.database, "a", "b")
    allowed, denied = run_ids(post.database, job_id)
    asked = ask(post.database, allowed, "uv lock") + ask(post.database, denied, "git push")
    post.pass_at(0)
    assert answers(post.database, asked) == [None, None]
    add_rules(
        post.database,
        job_id,
        Rule("allow", "Bash(uv lock)", origin="remembered"),
        Rule("deny", "Bash(git push)"),
    )
    post.pass_at(1)
    assert answers(post.database, asked) == ["approved", "denied"]
    assert sorted(post.notifier.notified) == [allowed, denied]


def test_a_question_of_a_rule_that_was_revoked_is_answered_by_what_is_left(post: Post) -> None:
    job_id = submit_asking(post.database, asking=Asking("deny"))
    (run_id,) = run_ids(post.database, job_id)
    (asked,) = ask(post.database, run_id, "uv lock")
    (rule,) = (rule for rule in list_rules(post.database, job_id) if rule.effect == "ask")
    revoke(post.database, job_id, rule.position, Author("bo"), NOW, force=True)
    post.pass_at(1)
    row = approval_row(post.database, asked)
    assert (row.answer, row.answered_via, row.answered_by) == (
        "denied",
        "rule",
        "the job's default",
    )
    assert post.state(run_id) == "queued"


def test_rules_that_still_ask_are_looked_at_once(post: Post) -> None:
    job_id = submit_asking(post.database)
    (run_id,) = run_ids(post.database, job_id)
    (asked,) = ask(post.database, run_id, "uv lock")
    snapshot = add_rules(post.database, job_id, Rule("allow", "Bash(ls)", origin="remembered"))
    post.pass_at(1)
    row = approval_row(post.database, asked)
    assert (row.answer, row.checked_snapshot, post.state(run_id)) == (None, snapshot, "waiting")


@pytest.mark.slow
def test_people_are_told_once_and_of_nothing_that_no_longer_waits(post: Post) -> None:
    job_id = submit_asking(post.database, "a", "b", "c", "d", asking=ASKING, notify=TOLD)
    first, *others = ask_all(post.database, job_id, "uv lock")
    answered, cancelled, late = others
    answer(post.database, [answered], Reply("approved", "ada"), NOW)
    gone = Target("run", approval_row(post.database, cancelled).run_id)
    control.cancel(post.database, gone, NOW)
    _expire_at(post.database, late, NOW)
    post.pass_at(1)
    post.pass_at(2)
    assert told(post) == [first]


@pytest.mark.slow
def test_two_workers_announce_each_question_once(database: Database) -> None:
    job_id = submit_asking(database, *"abcdefgh", asking=ASKING, notify=TOLD)
    asked = ask_all(database, job_id, "uv lock")
    sent: list[DueNotice] = []
    both = [Notices(database, Time(), sent.append) for _ in range(2)]
    threads = [threading.Thread(target=notices.attend) for notices in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for notices in both:
        notices.leave()
    assert sorted(one["id"] for notice in sent for one in notice.data["questions"]) == sorted(asked)


def test_a_command_that_takes_long_does_not_hold_up_the_pass(database: Database) -> None:
    ask_all(database, submit_asking(database, asking=ASKING, notify=TOLD), "uv lock")
    may_end, ended = threading.Event(), threading.Event()

    def send(notice: DueNotice) -> None:
        may_end.wait()
        ended.set()

    notices = Notices(database, Time(), send)
    notices.attend()
    assert not ended.is_set()
    may_end.set()
    notices.leave()
    assert ended.is_set()


def test_a_worker_that_leaves_tells_of_what_was_asked_last(database: Database) -> None:
    asked = ask_all(database, submit_asking(database, asking=ASKING, notify=TOLD), "uv lock")
    sent: list[DueNotice] = []
    Notices(database, Time(), sent.append).leave()
    assert [one["id"] for notice in sent for one in notice.data["questions"]] == asked


def test_a_paused_runs_late_question_expires_and_it_stays_paused(post: Post) -> None:
    job_id = submit_asking(post.database)
    (run_id,) = run_ids(post.database, job_id)
    (asked,) = ask(post.database, run_id, "uv lock", expires_at=NOW)
    control.pause(post.database, Target("run", run_id), NOW)
    post.pass_at(1)
    run = run_row(post.database, run_id)
    assert answers(post.database, [asked]) == ["expired"]
    assert (run.state, run.pause_requested) == ("queued", True), "it pauses at its next step"


def _expire_at(database: Database, approval_id: str, at: float) -> None:
    def work(connection: Connection) -> Any:
        change = update(approvals).where(approvals.c.id == approval_id)
        return connection.execute(change.values(expires_at=at))

    database.write(work)
