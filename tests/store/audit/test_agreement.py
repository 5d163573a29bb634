"""What the questions say is what every other command says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from runner.app.report import ReportedRun, failure_groups
from runner.core.commands import Target
from runner.core.conversation import ToolOutcome
from runner.core.prices import BY, By, Spending
from runner.core.spec import Asking
from runner.queries.costs import cost_rows, costs_by, model_rows, usd
from runner.queries.decisions import (
    approval_rows,
    approvals_of_run,
    decision_rows,
    denied_calls,
    denied_counts,
)
from runner.queries.filters import Filters
from runner.queries.jobs import list_runs
from runner.queries.outcomes import last_verifications
from runner.queries.problems import error_rows, limit_rows
from runner.queries.timeline import events_after, timeline_rows
from runner.queries.tool_calls import tool_rows
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.questions import waiting
from runner.store.workspaces import workspaces_of_job
from tests.store.attempts import claim
from tests.store.audit.played import PLAYED, bash, call_model_otherwise, play, submit, turn
from tests.store.examples import NOW
from tests.store.test_costs import PRICES

pytestmark = pytest.mark.dialect

ALL = Filters()


@pytest.mark.slow
def test_denied_calls_are_those_that_the_report_counts(database: Database) -> None:
    job = play(database)
    other = submit(database, "c.py")
    # The last was allowed, and denied when it was about to run.
    results: list[tuple[str, ToolOutcome]] = [("No.", "denied")]
    turn(claim(database, other.runs[0]), *bash("rm x", "rm y", "ls z"), results=results)
    for of in (job, other):
        only = Filters(job_id=of.id)
        denied = [row for row in decision_rows(database, only) if row["verdict"] == "denied"]
        assert sum(row["calls"] for row in denied) == denied_counts(database, of.id)[0]
        for run_id in of.runs:
            each = decision_rows(database, Filters(run_id=run_id), each=True)
            found = {row["call_id"] for row in each if row["verdict"] == "denied"}
            assert found == {call["id"] for call in denied_calls(database, run_id)}


@pytest.mark.slow
def test_approvals_are_those_that_each_run_shows(database: Database) -> None:
    job = play(database)
    other = submit(database, "c.py")
    turn(claim(database, other.runs[0]), *bash("make x", "make y"))
    for run_id in (*job.runs, *other.runs):
        found = list(approval_rows(database, Filters(run_id=run_id)))
        shown = {each["id"]: each for each in approvals_of_run(database, run_id)}
        assert {row["approval_id"] for row in found} == set(shown)
        for row in found:
            asked = shown[row["approval_id"]]
            assert (row["answered_by"], row["call_id"]) == (asked["answered_by"], asked["call_id"])
            assert row["answer"] == (asked["answer"] or "waiting")
    open_now = {
        row["approval_id"] for row in approval_rows(database, ALL) if row["answer"] == "waiting"
    }
    assert open_now == {asked.id for asked in waiting(database, None)}
    assert len(open_now) == 2


@pytest.mark.slow
@pytest.mark.parametrize("by", BY)
def test_costs_are_those_of_runner_costs(database: Database, by: By) -> None:
    job = play(database)
    call_model_otherwise(database, job.runs[0], 1, "claude-unknown")
    found = list(cost_rows(database, ALL, PRICES, by))
    spent = {each.key: each.spending for each in costs_by(database, PRICES, by)}
    assert {next(iter(row.values())) for row in found} == set(spent)
    for row in found:
        spending = spent[next(iter(row.values()))]
        assert row["calls"] == spending.calls
        assert row["output_tokens"] == spending.usage.output_tokens
        assert row["cost_usd"] == (None if spending.unpriced else usd(spending.usd))
        assert row["unpriced"] == (", ".join(spending.unpriced) or None)


@pytest.mark.slow
def test_models_cost_what_runner_costs_says(database: Database) -> None:
    job = play(database)
    call_model_otherwise(database, job.runs[0], 1, "claude-unknown")
    found = {row["model"]: row for row in model_rows(database, ALL, PRICES)}
    spent = {each.key: each.spending for each in costs_by(database, PRICES, "model")}
    assert {name: row["calls"] for name, row in found.items()} == {
        name: spending.calls for name, spending in spent.items()
    }
    assert (found["claude-test"]["replies"], found["claude-test"]["failed"]) == (3, 1)
    assert found["claude-unknown"]["cost_usd"] is None
    assert found["claude-unknown"]["unpriced"] == "claude-unknown"


def test_errors_of_runs_are_the_groups_of_the_report(database: Database) -> None:
    job = submit(database, "one.py", "two.py", "three.py", "four.py", spec=replace(PLAYED))
    for run_id, said in zip(job.runs, ("No a.", "No one.py.", "No two.py.", "No a."), strict=True):
        claim(database, run_id).fail("invalid_request_error", said)
    verified = last_verifications(database, job.id)
    trees = {each.run_id: each for each in workspaces_of_job(database, job.id)}
    reported = [
        ReportedRun(run, trees[run["id"]], Spending(), verified=verified.get(run["id"]))
        for run in list_runs(database, job.id)
    ]
    groups = failure_groups((each, each.run, each.failed_output) for each in reported)
    told = {(f"{g.state} {g.reason}", g.signature): len(g.runs) for g in groups}
    found = [row for row in error_rows(database, Filters(job_id=job.id)) if row["kind"] == "run"]
    assert {(row["what"], row["error"]): row["times"] for row in found} == told
    assert sorted(told.values()) == [1, 1, 2]


def test_limits_are_the_runs_that_are_stopped(database: Database) -> None:
    spec = replace(PLAYED, limits=replace(PLAYED.limits, max_turns=1))
    job = submit(database, "a.py", "b.py", spec=spec)
    for run_id in job.runs:
        turn(claim(database, run_id), *bash("ls -l"))
    stopped = list_runs(database, job.id, "stopped")
    found = list(limit_rows(database, ALL))
    assert {row["run_id"]: row["limit"] for row in found} == {
        run["id"]: run["reason"] for run in stopped
    }
    assert {row["state"] for row in found} == {"stopped"}


@pytest.mark.slow
def test_timeline_has_every_event_of_a_run_in_the_order_of_the_record(database: Database) -> None:
    job = play(database)
    for run_id in job.runs:
        found = list(timeline_rows(database, ALL, run_id, PRICES))
        record = events_after(database, run_id)
        assert [(row["at"], row["event"]) for row in found] == [
            (event["at"], event["type"]) for event in record
        ]
        known = [row["cost_usd"] for row in found if row["cost_usd"] is not None]
        spent = costs_by(database, PRICES, "run", run_id=run_id)
        assert sum(known) == pytest.approx(float(sum(each.spending.usd for each in spent)))


@pytest.mark.slow
def test_copies_of_calls_that_a_fork_began_with_are_nobodys(database: Database) -> None:
    job = play(database)
    questions: dict[str, Any] = {
        "tools": tool_rows,
        "decisions": decision_rows,
        "errors": error_rows,
    }
    before = {name: list(ask(database, ALL)) for name, ask in questions.items()}
    change = fork(database, job.runs[0], 2, NOW + 200, text="Go on.")
    assert {name: list(ask(database, ALL)) for name, ask in questions.items()} == before
    turn(claim(database, change.id, NOW + 210), *bash("ls -a"), at=NOW + 220)
    own = list(tool_rows(database, Filters(run_id=change.id)))
    assert [(row["tool"], row["calls"]) for row in own] == [("Bash", 1)]


@pytest.mark.slow
def test_each_decision_is_counted_once(database: Database) -> None:
    play(database)
    names = ("verdict", "decision", "tool", "answer", "answered_by", "rule", "rule_by", "why")
    each = Counter(
        tuple(row[name] for name in names) for row in decision_rows(database, ALL, each=True)
    )
    assert {
        tuple(row[n] for n in names): row["calls"] for row in decision_rows(database, ALL)
    } == each


def test_calls_that_no_rule_allows_are_one_group_that_says_so(database: Database) -> None:
    spec = replace(PLAYED, asking=Asking(default="deny"))
    job = submit(database, "a.py", spec=spec)
    turn(claim(database, job.runs[0]), *bash("curl a && ls b", "ls b; wget c", "nmap", "eval $x"))
    told = {row["why"]: row["calls"] for row in decision_rows(database, ALL)}
    why = "the command hides what it runs: eval runs what is not literal"
    assert told == {"no permission rule of this job allows it": 3, why: 1}
    each = {row["why"] for row in decision_rows(database, ALL, each=True)}
    assert len(each) == 4
    assert "no permission rule of this job allows 'curl a'" in each


@pytest.mark.slow
def test_open_questions_of_a_cancelled_run_do_not_wait(database: Database) -> None:
    job = submit(database, "a.py")
    turn(claim(database, job.runs[0]), *bash("make x"))
    assert [row["verdict"] for row in decision_rows(database, ALL)] == ["waiting"]
    cancel(database, Target("job", job.id), NOW + 5)
    assert [row["verdict"] for row in decision_rows(database, ALL)] == ["interrupted"]
    (asked,) = approval_rows(database, ALL)
    assert (asked["answer"], asked["via"]) == ("cancelled", "cancel")
