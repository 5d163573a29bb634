"""What a worker does with notices: sends what has come up, and what could not be sent, again."""

from __future__ import annotations

import threading

import pytest

from runner.core.commands import Target
from runner.core.notices import Notify
from runner.engine.dispatcher import Notices
from runner.errors import RunnerError
from runner.store import control
from runner.store.database import Database
from runner.store.notices import DueNotice, list_notices, take_due
from tests.engine.test_dispatcher import Time
from tests.store.examples import NOW
from tests.store.test_notices import submit_told

TOLD = Notify(on=("done",), command="tell")


def ended_job(database: Database) -> str:
    job_id = submit_told(database, "a", notify=TOLD)
    control.cancel(database, Target("job", job_id), NOW)
    return job_id


def test_a_worker_that_leaves_sends_what_has_come_up_last(database: Database) -> None:
    job_id = ended_job(database)
    sent: list[DueNotice] = []
    Notices(database, Time(), sent.append).leave()
    assert [one.id for one in sent] == [f"{job_id}/done"]
    (stored,) = list_notices(database, job_id)
    assert (stored["state"], stored["tries"]) == ("sent", 1)


def test_a_notice_that_could_not_be_sent_is_logged_and_sent_later(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = ended_job(database)
    answers = [RunnerError("the webhook answered 500"), None]

    def send(notice: DueNotice) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    time = Time()
    notices = Notices(database, time, send)
    with caplog.at_level("INFO", "runner"):  # a command of an earlier test may have set it
        notices.leave()
    (stored,) = list_notices(database, job_id)
    assert (stored["state"], stored["error"]) == ("due", "the webhook answered 500")
    assert "a notice was not sent" in caplog.text
    time.seconds = stored["due_at"]
    notices.leave()
    (stored,) = list_notices(database, job_id)
    assert (stored["state"], stored["tries"], answers) == ("sent", 2, [])


def test_a_slow_receiver_does_not_hold_up_the_pass(database: Database) -> None:
    job_id = ended_job(database)
    may_end = threading.Event()
    notices = Notices(database, Time(), lambda notice: may_end.wait() and None)
    notices.attend()
    notices.attend()
    (stored,) = list_notices(database, job_id)
    assert stored["state"] == "due"
    may_end.set()
    notices.leave()
    (stored,) = list_notices(database, job_id)
    assert stored["state"] == "sent"


def test_a_bug_in_one_notice_is_a_failed_try_and_holds_up_no_other(database: Database) -> None:
    broken, other = ended_job(database), ended_job(database)

    def send(notice: DueNotice) -> None:
        if notice.job_id == broken:
            raise ZeroDivisionError("https://hooks.example/secret")

    Notices(database, Time(), send).leave()
    (stored,) = list_notices(database, broken)
    assert (stored["state"], stored["tries"], stored["error"]) == ("due", 1, "ZeroDivisionError")
    (stored,) = list_notices(database, other)
    assert stored["state"] == "sent"


def test_a_notice_that_waited_behind_slow_ones_is_sent_by_one_worker(database: Database) -> None:
    for _ in range(3):
        ended_job(database)
    mine, others, time = [], [], Time()

    def send(notice: DueNotice) -> None:
        mine.append(notice.id)
        time.seconds += 70
        if len(mine) < 3:
            others.extend(one.id for one in take_due(database, time.seconds))

    Notices(database, time, send).leave()
    assert len({*mine, *others}) == len(mine) + len(others) == 3
