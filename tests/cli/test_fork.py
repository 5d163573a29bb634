"""``fork``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from runner.core.budget import Budget
from runner.core.workspace import Workspace
from runner.queries.jobs import list_runs
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.store.attempts import Attempt, claim, run_row, submit_one, text, tool_use
from tests.store.examples import SPEC

Command = Callable[..., Result]


def two_turns(database: Database, **options: object) -> Attempt:
    """A run with a tool call, and a last word."""
    attempt = claim(database, submit_one(database, **options))
    return attempt.reply(tool_use(1), stop="tool_use").finish("one").reply(text("Done."))


def test_fork_says_what_it_is_of(command: Command, database: Database) -> None:
    run_id = two_turns(database).lease.run_id
    result = command("fork", f"{run_id[-6:]}@1")
    fork_id = result.out.split()[0]
    assert result.out == f"{fork_id} (one): forked from {run_id[-8:]} after turn 1\n"
    row = run_row(database, command("show", fork_id, "--json").json["id"])
    assert (row.fork_of, row.fork_turn, row.state) == (run_id, 1, "queued")
    assert f"runner run --resume {row.job_id[-8:]}" in result.err


def test_fork_as_json_is_an_object(command: Command, database: Database) -> None:
    run_id = two_turns(database).lease.run_id
    arguments = ("--say", "And the tests?", "--model", "claude-other", "--json")
    change = command("fork", f"{run_id}@2", *arguments).json
    assert (change["fork_of"], change["fork_turn"], change["state"]) == (run_id, 2, "queued")
    row = run_row(database, change["id"])
    assert (row.model, row.queued_count) == ("claude-other", 1)


@pytest.mark.parametrize(
    ("turn", "options", "why"),
    [
        ("RUN", (), "is not a turn of a run: write RUN@TURN"),
        ("RUN@", (), "is not a turn"),
        ("@1", (), "is not a turn"),
        ("RUN@x", (), "is not a turn"),
        ("RUN@-1", (), "is not a turn"),
        ("RUN@1234567890", (), "is not a turn"),
        ("RUN@٣", (), "is not a turn"),
        ("RUN@9", (), "has no turn 9: its last is 2"),
        ("RUN@2", (), "was its last word: say what to do next with --say"),
        ("RUN@1", ("--say", " "), "the message is empty"),
        ("RUN@1", ("--model", ""), "the model's name is empty"),
        ("run_x@1", (), "no run is named 'run_x'"),
        ("\x1b[2J@1", (), "no run is named"),
    ],
)
def test_what_cannot_be_forked_is_one_line(
    command: Command, database: Database, turn: str, options: tuple[str, ...], why: str
) -> None:
    run_id = two_turns(database).lease.run_id
    job_id = run_row(database, run_id).job_id
    result = command("fork", turn.replace("RUN", run_id), *options)
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert why in result.err
    assert "\x1b" not in result.err
    assert len(list_runs(database, job_id)) == 1


def test_running_run_is_forked_at_a_turn_that_has_ended(
    command: Command, database: Database
) -> None:
    attempt = claim(database, submit_one(database)).reply(tool_use(1), stop="tool_use")
    run_id = attempt.lease.run_id
    result = command("fork", f"{run_id}@1")
    assert (result.code, "fork it at 0" in result.err) == (2, True)
    attempt.finish("one")
    assert command("fork", f"{run_id}@1").code == 0
    assert run_row(database, run_id).state == "running"


@pytest.mark.slow
def test_model_without_a_price_is_refused_where_the_cost_is_limited(
    command: Command, database: Database
) -> None:
    run_id = two_turns(database).lease.run_id
    assert command("fork", f"{run_id}@1", "--model", "claude-nameless").code == 0
    spec = replace(SPEC, budget=Budget(usd=5.0))
    limited = two_turns(database, spec=spec).lease.run_id
    result = command("fork", f"{limited}@1", "--model", "claude-nameless")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "'claude-nameless' has no price" in result.err
    assert command("fork", f"{limited}@1", "--model", "claude-sonnet-4-5").code == 0


@pytest.mark.slow
def test_fork_in_a_shared_workspace_says_so(command: Command, database: Database) -> None:
    shared = two_turns(database, spec=replace(SPEC, workspace=Workspace("/repo"))).lease.run_id
    assert "shared" in command("fork", f"{shared}@1").err
    alone = two_turns(database).lease.run_id
    assert "shared" not in command("fork", f"{alone}@1").err
