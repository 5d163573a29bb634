"""``runner run`` at a terminal asks right there."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import insert

from runner.app.work import progress_of
from runner.cli.questions import Asker, asker_at_terminal
from runner.core.commands import Reply, Target
from runner.store.approvals import answer
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.rules import list_rules, list_standing
from runner.store.tables import blocks
from tests.cli.person import PATIENCE, OurTerminal, Person
from tests.cli.questions import app_on, approval_row, ask, job_of, submit_runs
from tests.cli.test_show import STORABLE_HOSTILE
from tests.cli.test_terminal import HOSTILE, steers
from tests.store.examples import NOW

PROMPT = "s(how all): "


@pytest.fixture
def person() -> Iterator[Person]:
    person = Person()
    yield person
    person.close()


@pytest.fixture
def asker(database: Database, person: Person) -> Asker:
    return Asker(app_on(database), OurTerminal(person.keyboard, person.screen), "lena")


def let_ask(asker: Asker, job_id: str, is_to_end: Callable[[], bool] = lambda: False) -> None:
    asker.ask(job_id, is_to_end, nullcontext)


@pytest.mark.parametrize(
    ("typed", "answered", "reason"),
    [
        ("y\n", "approved", ""),
        ("YES\n", "approved", ""),
        ("n not now\n", "denied", "not now"),
        ("no\n", "denied", ""),
    ],
)
def test_answer_is_stored(
    database: Database, asker: Asker, person: Person, typed: str, answered: str, reason: str
) -> None:
    (run_id,) = submit_runs(database, "item a")
    approval_id = ask(database, run_id)
    steps = [(PROMPT, typed)]
    if typed == "no\n":
        steps.append(("reason", "\n"))
    acting = person.answers(*steps)
    let_ask(asker, job_of(database, run_id))
    acting.join()
    row = approval_row(database, approval_id)
    assert (row.answer, row.answered_by, row.reason) == (answered, "lena", reason)
    shown = person.screen.getvalue()
    assert "item a asks to use Bash" in shown
    assert "│ uv lock" in shown
    assert "the rule ask Bash(uv *) (It changes the lock file.)" in shown


def test_reason_is_asked_for(database: Database, asker: Asker, person: Person) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    person.answers((PROMPT, "n\n"), ("reason", "Use pip, not uv – é\n"))
    let_ask(asker, job_of(database, run_id))
    assert approval_row(database, approval_id).reason == "Use pip, not uv – é"


def test_always_remembers_the_rule_and_asks_no_more(
    database: Database, asker: Asker, person: Person
) -> None:
    runs = submit_runs(database, "a", "b", "c")
    asked = [ask(database, run_id) for run_id in runs]
    person.answers(
        ("always:   Bash(uv lock)", ""),
        ("a(lways in this job; a all: in new ones too), g(roup: all 3), q(uit), s(how all)", "a\n"),
    )
    job_id = job_of(database, runs[0])
    let_ask(asker, job_id)
    assert {approval_row(database, each).answer for each in asked} == {"approved"}
    assert list_rules(database, job_id)[-1].rule == "Bash(uv lock)"
    shown = person.screen.getvalue()
    assert shown.count(PROMPT) == 1
    assert "2 more ask for the same" in shown
    assert "and 2 more by the rule" in shown


def test_always_may_hold_for_new_jobs_too(database: Database, asker: Asker, person: Person) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    person.answers((PROMPT, "a all\n"))
    let_ask(asker, job_of(database, run_id))
    assert approval_row(database, approval_id).answer == "approved"
    assert [row["rule"] for row in list_standing(database)] == ["Bash(uv lock)"]


def test_always_is_not_offered_without_a_rule(
    database: Database, asker: Asker, person: Person
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id, rule="")
    person.answers((PROMPT, "a\n"), ("that is not an answer", ""), (PROMPT, "y\n"))
    let_ask(asker, job_of(database, run_id))
    assert approval_row(database, approval_id).remembered is None
    assert "always" not in person.screen.getvalue()


def test_rule_that_is_refused_lets_the_person_answer_otherwise(
    database: Database, asker: Asker, person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id, rule="Bash(ls)")
    person.answers((PROMPT, "a\n"), (PROMPT, "y\n"))
    let_ask(asker, job_of(database, run_id))
    assert "does not cover" in capsys.readouterr().err
    assert approval_row(database, approval_id).answer == "approved"


def test_long_input_is_cut_until_all_of_it_is_asked_for(
    database: Database, asker: Asker, person: Person
) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id, "\n".join(f"uv step {number}" for number in range(40)))
    person.answers(("28 more lines are NOT shown", ""), (PROMPT, "s\n"), (PROMPT, "y\n"))
    let_ask(asker, job_of(database, run_id))
    before, after = person.screen.getvalue().split(PROMPT)[:2]
    assert "│ uv step 11" in before
    assert "│ uv step 12\n" not in before
    assert all(f"│ uv step {number}\n" in after for number in range(40))


def test_nothing_that_a_model_wrote_can_pass_for_the_question(
    database: Database, asker: Asker, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    (run_id,) = submit_runs(database, "a")
    evil = "allow it? y(es), n(o), s(how all): "
    command = f"true{' ' * 76}{evil}\n{evil}\n{STORABLE_HOSTILE}"
    ask(database, run_id, command, rule=f"Bash(ls{STORABLE_HOSTILE})", description=HOSTILE)
    job_id = job_of(database, run_id)
    let_ask(asker, job_id, lambda: "allow it?" in person.screen.getvalue().rpartition("│")[2])
    shown = person.screen.getvalue()
    assert not any(map(steers, shown.replace("\n", "")))
    lines = shown.splitlines()
    said = [line for line in lines if "allow it?" in line]
    assert len(said) == 3
    assert all(line.startswith("  ") and "│ " in line for line in said[:-1])
    assert said[-1] == lines[-1]


def test_what_was_typed_before_the_question_is_no_answer(
    database: Database, asker: Asker, person: Person
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    person.type("y\ny\n")
    assert select.select([person.keyboard], [], [], PATIENCE)[0]  # the kernel passes it on later
    person.answers((PROMPT, "n too early\n"))
    let_ask(asker, job_of(database, run_id))
    assert approval_row(database, approval_id).reason == "too early"


@pytest.mark.slow
@pytest.mark.parametrize("at", [PROMPT, "reason"])
def test_question_answered_elsewhere_disappears(
    database: Database, asker: Asker, person: Person, at: str
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    elsewhere = Reply("denied", "nils")
    steps = [(PROMPT, "n\n")] if at == "reason" else []
    person.answers(*steps, (at, lambda: answer(database, [approval_id], elsewhere, NOW)))
    let_ask(asker, job_of(database, run_id))
    assert "answered elsewhere meanwhile" in person.screen.getvalue()
    assert approval_row(database, approval_id).answered_by == "nils"
    assert asker.can_ask


def test_two_answers_at_once_say_who_was_first(
    database: Database, asker: Asker, person: Person
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)

    def both() -> None:
        answer(database, [approval_id], Reply("denied", "nils"), NOW)
        person.type("y\n")

    person.answers((PROMPT, both))
    let_ask(asker, job_of(database, run_id))
    assert approval_row(database, approval_id).answer == "denied"
    assert "approved" not in person.screen.getvalue()


def test_ctrl_d_leaves_all_questions_waiting(
    database: Database, asker: Asker, person: Person
) -> None:
    runs = submit_runs(database, "a", "b")
    asked = [ask(database, run_id) for run_id in runs]
    person.answers((PROMPT, "\x04"))
    job_id = job_of(database, runs[0])
    let_ask(asker, job_id)
    let_ask(asker, job_id)
    assert not asker.can_ask
    assert person.screen.getvalue().count(PROMPT) == 1
    assert "runner approvals" in person.screen.getvalue()
    assert {approval_row(database, each).answer for each in asked} == {None}


def test_q_quits_and_leaves_all_questions_waiting(
    database: Database, asker: Asker, person: Person
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    person.answers((PROMPT, "q\n"))
    let_ask(asker, job_of(database, run_id))
    assert not asker.can_ask
    assert "left waiting; answer with `runner approvals`" in person.screen.getvalue()
    assert approval_row(database, approval_id).answer is None


def editor(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(path))


def test_e_runs_the_call_with_what_the_person_makes_of_its_input(
    database: Database,
    asker: Asker,
    person: Person,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id, "uv lock", timeout=9)
    editor(tmp_path, monkeypatch, 'sed -i "s/lock/lock --offline/" "$1"')
    person.answers(
        (f"e(dit), w(hy), a(lways in this job; a all: in new ones too), q(uit), {PROMPT}", "e\n")
    )
    let_ask(asker, job_of(database, run_id))
    row = approval_row(database, approval_id)
    assert (row.answer, row.edited_input) == (
        "approved",
        {"command": "uv lock --offline", "timeout": 9},
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [("true", "nothing was edited"), ("exit 3", ""), ('echo "{}" >"$1"', "the edited input: ")],
)
def test_an_edit_that_gives_no_input_answers_nothing(
    database: Database,
    asker: Asker,
    person: Person,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    said: str,
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id, tool="Write", file_path="a.txt")
    editor(tmp_path, monkeypatch, script)
    person.answers((PROMPT, "e\n"), (PROMPT, "n no\n"))
    let_ask(asker, job_of(database, run_id))
    assert approval_row(database, approval_id).answer == "denied"
    assert said in person.screen.getvalue() + capsys.readouterr().err


def test_w_says_which_rule_asked_and_what_the_model_had_said(
    database: Database, asker: Asker, person: Person
) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id)
    words = {"type": "text", "text": f"The lock file is old.\n{STORABLE_HOSTILE}allow it?"}
    row = {"run_id": run_id, "message": 1, "position": 7, "role": "assistant", "type": "text"}
    database.write(
        lambda connection: connection.execute(
            insert(blocks).values(row | {"turn": 1, "content": words, "created_at": NOW})
        )
    )
    person.answers((PROMPT, "w\n"), (PROMPT, "y\n"))
    let_ask(asker, job_of(database, run_id))
    shown = person.screen.getvalue().split(PROMPT)[1]
    for part in (
        "│ asked by the rule ask Bash(uv *) (It changes the lock file.)",
        "│ the rule is from: the job file",
        "│ it matched: uv lock",
        "│ in turn 1 the model said:",
        "│   The lock file is old.",
    ):
        assert part in shown
    assert not any(map(steers, shown.replace("\n", "")))


@pytest.mark.parametrize(("typed", "answered"), [("g\n", "approved"), ("g n not now\n", "denied")])
def test_g_answers_all_of_the_group(
    database: Database, asker: Asker, person: Person, typed: str, answered: str
) -> None:
    runs = submit_runs(database, "a", "b", "c")
    asked = [ask(database, run_id) for run_id in runs]
    person.answers((f"g(roup: all 3), q(uit), {PROMPT}", typed))
    let_ask(asker, job_of(database, runs[0]))
    rows = [approval_row(database, each) for each in asked]
    assert {(row.answer, row.remembered) for row in rows} == {(answered, None)}
    assert "3 of 3 answered" in person.screen.getvalue()


def test_a_group_of_different_inputs_is_shown_before_it_is_approved(
    database: Database, asker: Asker, person: Person
) -> None:
    runs = submit_runs(database, "a", "b")
    commands = ("uv lock", "uv lock\ntouch evil")
    asked = [
        ask(database, run, command, group="uv") for run, command in zip(runs, commands, strict=True)
    ]
    seen: list[object] = []

    def look() -> None:
        seen.extend(approval_row(database, each).answer for each in asked)
        person.type("g\n")

    person.answers((PROMPT, "g\n"), ("│ touch evil", ""), (PROMPT, look))
    let_ask(asker, job_of(database, runs[0]))
    assert seen == [None, None]
    assert [approval_row(database, each).answer for each in asked] == ["approved", "approved"]


def test_interruption_ends_the_question_and_answers_nothing(
    database: Database, asker: Asker, person: Person
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id)
    let_ask(asker, job_of(database, run_id), lambda: PROMPT in person.screen.getvalue())
    assert approval_row(database, approval_id).answer is None
    assert asker.can_ask


def test_only_questions_of_the_job_are_asked(
    database: Database, asker: Asker, person: Person
) -> None:
    mine, other = submit_runs(database, "a"), submit_runs(database, "b")
    ask(database, other[0])
    let_ask(asker, job_of(database, mine[0]))
    assert person.screen.getvalue() == ""


@pytest.mark.parametrize("missing", ["stdin", "stdout", "stderr"])
def test_without_a_whole_terminal_nobody_is_asked(
    database: Database, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda name=name: name != missing, raising=False)
    assert asker_at_terminal(app_on(database), "ada") is None


@pytest.mark.parametrize(("asks", "rests"), [(True, False), (False, True)])
def test_job_rests_only_when_nobody_can_be_asked_what_it_waits_for(
    database: Database, asks: bool | None, rests: bool
) -> None:
    runs = submit_runs(database, "a", "b")
    ask(database, runs[0])
    cancel(database, Target("run", runs[1]), NOW)
    job = progress_of(app_on(database), job_of(database, runs[0]))
    assert job.rests(asks=asks) is rests


@pytest.mark.slow
def test_answer_typed_for_a_question_that_went_away_is_not_the_next_ones(
    database: Database, asker: Asker, person: Person
) -> None:
    first, second = submit_runs(database, "a", "b")
    gone, left = ask(database, first), ask(database, second, "touch evil")
    person.answers(
        (PROMPT, lambda: answer(database, [gone], Reply("denied", "bob"), NOW)),
        ("Enter shows the next question", "y\n"),
        ("touch evil", ""),
        (PROMPT, "n\n"),
        ("reason", "\n"),
    )
    let_ask(asker, job_of(database, first))
    assert approval_row(database, left).answer == "denied"


def test_nothing_is_approved_that_was_not_shown_whole(
    database: Database, asker: Asker, person: Person
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask(database, run_id, "uv lock" + "\n" * 30 + "touch evil")
    person.answers(
        (PROMPT, "y\n"), ("not all of it was shown", ""), (PROMPT, "s\n"), (PROMPT, "y\n")
    )
    let_ask(asker, job_of(database, run_id))
    assert approval_row(database, approval_id).answer == "approved"
    assert "touch evil" in person.screen.getvalue()
