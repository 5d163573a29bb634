"""What a person who watches a job is told, by looks at it."""

from __future__ import annotations

from typing import Any

import pytest

from runner.app.watch import Happening, Watch, doing_now
from tests.app.watched import JOB_ID, NOW, event, look, run


def words(happenings: list[Happening]) -> list[str]:
    return [each.words for each in happenings]


def test_a_run_that_ends_is_told_once_with_how_many_have_ended() -> None:
    watch = Watch()
    assert watch.see(look([run("a"), run("b")])) == []
    ended = [run("a", "succeeded"), run("b")]
    assert words(watch.see(look(ended))) == ["[1/2] succeeded  a  4 turns, 1m00s"]
    assert watch.see(look(ended)) == []
    failed = [run("a", "succeeded"), run("b", "failed", reason="verify")]
    (told,) = watch.see(look(failed))
    assert told.words == "[2/2] failed (verify)  b  4 turns, 1m00s"
    assert (told.type, told.data["item"], told.tone) == ("ended", "b", "bad")


def test_what_a_person_did_is_told_with_who_why_and_how_to_go_on() -> None:
    watch = Watch()
    watch.see(look([run("a"), run("b")]))
    paused = [run(key, "waiting", reason="paused") for key in "ab"]
    did = event(2, "paused", by="lena", why="too dear", new={"reason": "person"})
    of_runs = {f"run_{key}": [event(9, "paused", by="lena", why="too dear")] for key in "ab"}
    told = watch.see(look(paused, job_events=[did], events=of_runs))
    go_on = f"; `runner resume {JOB_ID}` goes on"
    assert words(told)[0] == f"lena paused the job: too dear{go_on}"
    assert [each.type for each in told] == ["person", "waits", "waits"]


@pytest.mark.parametrize(
    ("type_", "data", "said"),
    [
        ("cancelled", {}, f"lena cancelled 2 runs: wrong; `runner retry {JOB_ID}` begins again"),
        ("resumed", {}, "lena resumed 2 runs: wrong"),
        ("approval_answered", {"answer": "denied"}, "lena denied a call of 2 runs: wrong"),
    ],
)
def test_the_same_done_to_several_runs_is_one_line(
    type_: str, data: dict[str, Any], said: str
) -> None:
    watch = Watch()
    watch.see(look([run("a"), run("b")]))
    happened = {f"run_{key}": [event(9, type_, by="lena", why="wrong", **data)] for key in "ab"}
    assert words(watch.see(look([run("a"), run("b")], events=happened))) == [said]
    assert watch.see(look([run("a"), run("b")], events=happened)) == []


def test_what_happened_before_is_not_told() -> None:
    watch = Watch()
    old = {"run_a": [event(3, "resumed", NOW - 30, by="lena", why="")]}
    assert watch.see(look([run("a")], events=old)) == []


def test_what_ended_before_is_told_to_nobody_who_comes_later() -> None:
    runs = [
        run("a", "succeeded", ended_at=NOW - 9),
        run("b", "waiting", reason="approval"),
        run("c"),
    ]
    late = Watch(NOW - 5)
    assert words(late.see(look(runs))) == ["[1/3] waiting (approval)  b  4 turns"]
    ended = [runs[0], runs[1], run("c", "succeeded")]
    assert words(late.see(look(ended))) == ["[2/3] succeeded  c  4 turns, 1m00s"]
    early = Watch(NOW - 10)
    assert words(early.see(look(runs)))[0] == "[1/3] succeeded  a  4 turns, 51s"


def test_a_job_that_nobody_works_is_told_once_and_until_a_worker_comes() -> None:
    watch = Watch()
    (told,) = watch.see(look([run("a", "queued")], workers=0))
    assert told.words.startswith("no worker is alive: start one with `runner run --resume")
    assert watch.see(look([run("a", "queued")], workers=0)) == []
    assert watch.view(NOW).unworked
    assert words(watch.see(look([run("a", "queued")]))) == ["1 worker alive"]
    assert not watch.view(NOW).unworked


def test_a_fault_of_a_host_is_told_once() -> None:
    back = {"reason": "host_fault", "detail": "b1: no space left"}
    watch, runs = Watch(), [run(key, "queued", **back) for key in "ab"]
    assert words(watch.see(look(runs))) == ["given back by host b1: no space left"]
    assert watch.see(look(runs)) == []


def test_runs_are_shown_longest_first_and_at_most_twelve() -> None:
    watch = Watch()
    runs = [run(f"i{n:02}", started_at=NOW - n) for n in range(20)]
    watch.see(look(runs))
    view = watch.view(NOW)
    assert [line.name for line in view.runs] == [f"i{n:02}" for n in range(19, 7, -1)]
    assert view.more_runs == 8


def test_a_run_is_slow_that_takes_twice_as_long_as_half_of_the_others_took() -> None:
    watch = Watch()
    ended = [run(key, "succeeded", started_at=NOW - 60) for key in "xyz"]
    runs = [run("a", started_at=NOW - 121), run("b", started_at=NOW - 119)]
    watch.see(look([*ended, *runs]))
    assert [(line.name, line.is_slow) for line in watch.view(NOW).runs] == [
        ("a", True),
        ("b", False),
    ]
    few = Watch()
    few.see(look([*ended[:2], *runs]))
    assert not any(line.is_slow for line in few.view(NOW).runs)


@pytest.mark.parametrize(
    ("events", "doing", "until"),
    [
        ([event(1, "attempt_started")], "begins", None),
        ([event(1, "model_call_started")], "model", None),
        ([event(1, "model_call_started", purpose="summary")], "summary", None),
        (
            [
                event(1, "tool_started", turn=1, call_index=0, name="Bash", input="pytest -q"),
                event(2, "tool_started", turn=1, call_index=1, name="Read", input="a.py"),
            ],
            "Bash pytest -q (+1)",
            None,
        ),
        (
            [
                event(1, "tool_started", turn=1, call_index=0, name="Bash", input="pytest -q"),
                event(2, "tool_done", turn=1, call_index=0),
            ],
            "",
            None,
        ),
        (
            [
                event(1, "model_call_ended", kind="overloaded_error", message="Over\x1b[2Jloaded"),
                event(2, "retry_scheduled", at=NOW + 40),
            ],
            "tries again: overloaded_error: Over␛[2Jloaded",
            NOW + 40,
        ),
        ([event(1, "verification_started")], "verifies", None),
        ([event(1, "tool_started", name="\x1b]0;x\x07")], "␛]0;x␇", None),
    ],
)
def test_what_a_run_does_follows_from_its_newest_events(
    events: list[Any], doing: str, until: float | None
) -> None:
    found = doing_now(events)
    assert (found.words, found.until) == (doing, until)


def test_a_run_in_a_back_off_is_shown_with_its_reason_and_until_when() -> None:
    watch = Watch()
    back_off = run("a", "queued", reason="backoff", due_at=NOW + 40, started_at=NOW - 5)
    failed = event(1, "model_call_ended", kind="overloaded_error")
    again = event(2, "retry_scheduled", at=NOW + 40)
    watch.see(look([back_off, run("b", "queued")], events={"run_a": [failed, again]}))
    (line,) = watch.view(NOW).runs
    assert (line.doing.words, line.doing.until) == ("tries again: overloaded_error", NOW + 40)


def test_a_run_whose_worker_has_died_is_not_shown_as_working() -> None:
    watch = Watch()
    watch.see(look([run("a")], lost=frozenset({"run_a"})))
    (line,) = watch.view(NOW).runs
    assert line.doing.words == "interrupted: its worker is gone"
    assert watch.view(NOW).counts == {"interrupted": 1}


def test_no_text_of_a_model_or_an_item_keeps_its_control_characters() -> None:
    watch = Watch()
    hostile = "x\x1b]0;owned\x07\x9b2J\u202e"
    runs = [run("a", item_key=hostile, turns=3), run("b", "failed", detail=hostile, reason=hostile)]
    told = watch.see(look(runs, job={"name": hostile}, texts={"run_a": hostile}))
    view = watch.view(NOW, {"run_a": hostile})
    shown = [
        view.name,
        *words(told),
        *(text for line in view.runs for text in (line.name, line.text)),
    ]
    assert all(text.isprintable() for text in shown)
