"""How questions about calls of unknown outcome are shown and answered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any

import pytest
from sqlalchemy import update

from runner.cli.questions import Asker
from runner.core.tool_calls import OUTCOME_UNKNOWN
from runner.store.database import Database
from runner.store.tables import tool_calls
from tests.cli.conftest import Result
from tests.cli.person import OurTerminal, Person
from tests.cli.questions import app_on, approval_row, ask, job_of, submit_runs

Command = Callable[..., Result]


def ask_again(database: Database, run_id: str, command: str = "git push") -> str:
    """A push was cut off, and it is asked whether it runs again; the approval's id."""
    approval_id = ask(database, run_id, command, group=f"{command} (outcome unknown)", rule="")
    unknown: dict[str, Any] = {
        "asked_again": True,
        "rule": None,
        "rule_position": None,
        "matched": None,
        "decision_reason": OUTCOME_UNKNOWN,
    }
    this = tool_calls.c.run_id == run_id
    database.write(lambda c: c.execute(update(tool_calls).where(this).values(**unknown)))
    return approval_id


def test_question_is_shown_as_one_about_running_again(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    ask_again(database, run_id)
    shown = command("approvals").out
    assert shown.startswith("git push (outcome unknown) — 1 run of")
    assert f"  asks      run it again? {OUTCOME_UNKNOWN}\n" in shown
    assert "asked by" not in shown
    (group,) = command("approvals", "--json").json
    assert [call["asked_again"] for call in group["calls"]] == [True]


def test_question_whether_an_equal_call_may_run_is_another_group(
    command: Command, database: Database
) -> None:
    first, second = submit_runs(database, "a", "b")
    ask_again(database, first)
    ask(database, second, "git push")
    groups = command("approvals", "--json").json
    assert [group["group_key"] for group in groups] == ["git push (outcome unknown)", "git push"]
    assert [group["calls"][0]["asked_again"] for group in groups] == [True, False]


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_question_is_answered_by_its_call_run_or_group(
    command: Command, database: Database, answer: str
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask_again(database, run_id)
    result = command(answer, run_id, "--reason", "it went through")
    assert result.code == 0
    row = approval_row(database, approval_id)
    assert (row.answer, row.reason) == (
        {"approve": "approved", "deny": "denied"}[answer],
        "it went through",
    )


@pytest.mark.parametrize("more", [(), ("--rule", "Bash(git push)")])
def test_no_rule_is_remembered_with_it(
    command: Command, database: Database, more: tuple[str, ...]
) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask_again(database, run_id)
    result = command("approve", run_id, "--remember", "job", *more)
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "a rule cannot say how `git push` ended" in result.err
    assert approval_row(database, approval_id).answer is None


def test_person_at_the_terminal_is_asked_whether_it_runs_again(database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    approval_id = ask_again(database, run_id)
    with closing(Person()) as person:
        acting = person.answers(
            ("run it again? y(es), n(o), w(hy), q(uit), s(how all): ", "n it went through\n")
        )
        asker = Asker(app_on(database), OurTerminal(person.keyboard, person.screen), "ada")
        asker.ask(job_of(database, run_id), lambda: False, nullcontext)
        acting.join()
    assert "a was cut off in the middle of Bash" in person.screen.getvalue()
    row = approval_row(database, approval_id)
    assert (row.answer, row.reason) == ("denied", "it went through")
