"""``--as`` and ``--reason``, and what is recorded of who did what."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from sqlalchemy import select

from runner.cli.main import cli
from runner.core.commands import Target
from runner.core.run import LONGEST_WHY
from runner.core.times import Moment, Times
from runner.queries.timeline import changes_of_job
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.tables import metadata
from tests.cli.conftest import Result
from tests.cli.out.recorded import begin, git_spec, put, submit
from tests.cli.questions import ask, call_id, job_of, submit_runs
from tests.cli.test_budget import waiting
from tests.cli.test_terminal import HOSTILE, steers
from tests.cli.test_work import DONE, Start, finish, write_job
from tests.store.attempts import claim, run_row, submit_one, text
from tests.store.examples import NOW, SPEC

Command = Callable[..., Result]

# Commands that change nothing of what is stored, and so need nobody's name. The last words of each
# are what it is tried with: J is a job, R a run, F a file that is there.
READING = {
    "approvals": "",
    "audit approvals": "",
    "audit commands": "",
    "completion": "",
    "init": "",
    "audit connections": "",
    "audit decisions": "",
    "audit errors": "",
    "audit files": "",
    "audit limits": "",
    "audit models": "",
    "audit sql": "SELECT 1",
    "audit tools": "",
    "audit views": "",
    "costs": "J",
    "db check": "",
    "diff": "R",
    "doctor": "",
    "events": "J",
    "export": "R",
    "list": "",
    "notify list": "J",
    "notify test": "F",
    "patch": "J -o patches",
    "report": "J",
    "results": "J",
    "rules check": "F",
    "rules list": "J",
    "rules standing list": "",
    "schema": "",
    "schedule list": "",
    "search": "mend",
    "show": "J",
    "transcript": "R",
    "users list": "",
    "workers": "",
    "workspace list": "",
}

# Commands that write what no person decides.
WRITING_BY_THEMSELVES = {
    "worker": "it works what was submitted",
    "db upgrade": "it changes how things are stored, not what",
    "db reindex": "the index is made of what is stored",
}
# They change nothing but what the person who watches says there, with --as and the reason that they type.
ANSWERING = {"attach", "web"}


def commands(group: click.Group = cli, *names: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield " ".join((*names, name)), command


def options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


COMMANDS = dict(commands())
WRITING = sorted(set(COMMANDS) - set(READING) - set(WRITING_BY_THEMSELVES) - ANSWERING)


@pytest.mark.parametrize("name", WRITING)
def test_every_command_that_changes_something_asks_who_and_why(name: str) -> None:
    assert {"--as", "--reason"} <= options(COMMANDS[name]), (
        f"`runner {name}` has no --as and --reason: decorate it with cli.options.signed, or if it "
        "changes nothing that is stored, list it here as reading"
    )


@pytest.mark.parametrize("name", sorted({*READING, *WRITING_BY_THEMSELVES}))
def test_no_other_command_asks_who_and_why(name: str) -> None:
    assert not {"--as", "--reason"} & options(COMMANDS[name])


def contents(database: Database) -> dict[str, list[Any]]:
    def work(connection: Any) -> dict[str, list[Any]]:
        return {
            name: sorted(map(repr, connection.execute(select(table))))
            for name, table in metadata.tables.items()
            if not name.startswith("search_") and name != "prices"
        }

    return database.read(work)


@pytest.mark.parametrize("name", sorted(READING))
def test_command_that_reads_changes_nothing(
    command: Command, database: Database, folder: Path, name: str
) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    (folder / "job.toml").write_text('name = "x"\nmodel = "claude-sonnet-4-5"\nprompt = "Go."\n')
    named = {"J": run_row(database, run_id).job_id, "R": run_id, "F": "job.toml"}
    words = [READING[name]] if name == "audit sql" else READING[name].split()
    before = contents(database)
    result = command(*name.split(), *(named.get(word, word) for word in words))
    assert "see `runner" not in result.err, "it was not called as it is to be"
    assert contents(database) == before


# Tried below, each with what it records; `import` in the tests of exchange.
TRIED = {
    *("approve", "budget", "cancel", "deny", "finish-by", "fork", "import", "lane", "pause"),
    *("priority", "prune", "resume"),
    *("retry", "schedule add", "schedule pause", "schedule resume", "schedule rm", "rules revoke"),
    *("rules standing add", "rules standing rm"),
    *("run", "say", "submit", "users add", "users remove", "workspace prune"),
}


def test_every_command_that_changes_something_is_tried() -> None:
    assert set(WRITING) == TRIED


def test_who_may_log_in_is_recorded_with_who_said_so(command: Command, database: Database) -> None:
    assert command(*signing("users", "add", "bo", "--role", "answer")).code == 0
    assert command("users", "add", "bo").code == 2
    assert command(*signing("users", "remove", "bo")).code == 0
    (bo,) = command("users", "list", "--all", "--json").json
    said = [(each["type"], each["data"]["by"], each["data"]["why"]) for each in bo["changes"]]
    why = "The wrong branch."
    assert said == [("added", "lena", why), ("removed", "lena", why)]
    assert command("users", "list", "--json").json == []


def test_a_standing_rule_is_recorded_with_who_and_why(command: Command, database: Database) -> None:
    assert command(*signing("rules", "standing", "add", "deny", "Bash(git push *)")).code == 0
    assert command(*signing("rules", "standing", "rm", "1")).code == 0
    (rule,) = command("rules", "standing", "list", "--all", "--json").json
    assert (rule["author"], rule["why"]) == ("lena", "The wrong branch.")
    assert (rule["removed_by"], rule["removed_why"]) == ("lena", "The wrong branch.")


def last_change(database: Database, job_id: str) -> tuple[str, str | None, str]:
    change = changes_of_job(database, job_id)[-1]
    return change["type"], change["data"]["by"], change["data"]["why"]


def signing(*words: str) -> tuple[str, ...]:
    return (*words, "--as", "lena", "--reason", "The wrong branch.")


@pytest.mark.parametrize(
    ("words", "kind"),
    [(("pause",), "paused"), (("cancel",), "cancelled"), (("say", "Go on."), "message_queued")],
)
def test_change_is_recorded_with_who_and_why(
    command: Command, database: Database, words: tuple[str, ...], kind: str
) -> None:
    run_id = submit_one(database)
    name, *more = words
    result = command(*signing(name, run_id, *more))
    assert result.code == 0, result.err
    job_id = run_row(database, run_id).job_id
    assert last_change(database, job_id) == (kind, "lena", "The wrong branch.")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("retry",), "retried"),
        (("retry", "--fresh"), "begun_afresh"),
        (("fork", "--say", "Again."), "message_queued"),
        (("fork",), "forked"),
    ],
)
def test_ended_run_is_taken_up_again_with_who_and_why(
    command: Command, database: Database, words: tuple[str, ...], kind: str
) -> None:
    run_id = submit_one(database)
    cancel(database, Target("run", run_id), NOW)
    name, *more = words
    result = command(*signing(name, f"{run_id}@0" if name == "fork" else run_id, *more))
    assert result.code == 0, result.err
    job_id = run_row(database, run_id).job_id
    assert last_change(database, job_id) == (kind, "lena", "The wrong branch.")


def test_resume_is_recorded_with_who_and_why(command: Command, database: Database) -> None:
    run_id = submit_one(database)
    command("pause", run_id)
    command(*signing("resume", run_id))
    job_id = run_row(database, run_id).job_id
    assert last_change(database, job_id) == ("resumed", "lena", "The wrong branch.")


def test_priority_is_recorded_with_who_and_why(command: Command, database: Database) -> None:
    job_id = run_row(database, submit_one(database)).job_id
    assert command(*signing("priority", job_id, "high")).code == 0
    assert last_change(database, job_id) == ("priority_changed", "lena", "The wrong branch.")


def test_lane_is_recorded_with_who_and_why(command: Command, database: Database) -> None:
    job_id = run_row(database, submit_one(database)).job_id
    assert command(*signing("lane", job_id, "batch")).code == 0
    assert last_change(database, job_id) == ("lane_changed", "lena", "The wrong branch.")


def test_budget_is_recorded_with_who_and_why(command: Command, database: Database) -> None:
    job_id, _ = waiting(database)
    assert command(*signing("budget", job_id, "--tokens", "100000")).code == 0
    kinds = [change["type"] for change in changes_of_job(database, job_id)]
    assert "budget_changed" in kinds
    assert last_change(database, job_id) == ("resumed", "lena", "The wrong branch.")


def test_finish_by_is_recorded_with_who_and_why(command: Command, database: Database) -> None:
    times = Times(finish_by=Moment("07:00", "UTC"))
    run_id = submit_one(database, spec=replace(SPEC, times=times))
    claim(database, run_id, NOW + 86_400)
    job_id = run_row(database, run_id).job_id
    assert command(*signing("finish-by", job_id, "2099-01-01 07:00 UTC")).code == 0
    kinds = [change["type"] for change in changes_of_job(database, job_id)]
    assert "finish_by_moved" in kinds
    assert last_change(database, job_id) == ("resumed", "lena", "The wrong branch.")


@pytest.mark.slow
def test_changes_of_a_schedule_are_recorded_with_who_and_why(
    command: Command, folder: Path
) -> None:
    (folder / "job.toml").write_text('name = "x"\nmodel = "m"\nprompt = "Go."\n')
    options = ("job.toml", "--cron", "0 22 * * *", "--tz", "UTC")
    schedule_id = command(*signing("schedule", "add", *options)).out.strip()
    for name in ("pause", "resume", "rm"):
        assert command(*signing("schedule", name, schedule_id)).code == 0
    (found,) = command("schedule", "list", "--all", "--json").json
    assert {(each["by"], each["why"]) for each in found["changes"]} == {
        ("lena", "The wrong branch.")
    }
    kinds = [each["type"] for each in found["changes"]]
    assert kinds == ["added", "paused", "resumed", "removed"]


@pytest.mark.parametrize("name", ["approve", "deny"])
def test_answer_and_its_rule_are_recorded_with_who_and_why(
    command: Command, database: Database, name: str
) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id)
    job_id = job_of(database, run_id)
    assert command(*signing(name, run_id, "--remember", "job")).code == 0
    changes = {change["type"]: change["data"] for change in changes_of_job(database, job_id)}
    for kind in ("approval_answered", "rule_added"):
        assert (changes[kind]["by"], changes[kind]["why"]) == ("lena", "The wrong branch.")
    position = str(changes["rule_added"]["new"]["position"])
    assert command(*signing("rules", "revoke", job_id, position)).code == 0
    assert last_change(database, job_id) == ("rule_revoked", "lena", "The wrong branch.")


def test_question_that_a_cancel_closed_says_by_whom(command: Command, database: Database) -> None:
    (run_id,) = submit_runs(database, "a")
    ask(database, run_id)
    command("cancel", run_id, "--as", "lena")
    shown = command("show", call_id(run_id)).out
    assert "the run was cancelled by lena before an answer came" in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["submit", "run"])
def test_job_is_recorded_with_who_and_why(
    start: Start, database: Database, folder: Path, name: str
) -> None:
    result = finish(start(*signing(name, write_job(folder, {"a": [DONE]}))))
    assert result.code == 0, result.err
    query = select(metadata.tables["jobs"].c.id)
    job_id = database.read(lambda connection: connection.execute(query).scalar_one())
    first = changes_of_job(database, job_id)[0]
    told = first["type"], first["data"]["by"], first["data"]["why"]
    assert told == ("submitted", "lena", "The wrong branch.")


def test_pruned_job_is_recorded_with_who_and_why(command: Command, database: Database) -> None:
    run_id = submit_one(database)
    cancel(database, Target("run", run_id), NOW)
    job_id = job_of(database, run_id)
    assert command(*signing("prune", "--older-than", "1d")).code == 0
    query = select(metadata.tables["pruned_jobs"])
    (pruned,) = database.read(lambda connection: connection.execute(query).all())
    assert (pruned.job_id, pruned.pruned_by, pruned.why) == (job_id, "lena", "The wrong branch.")


@pytest.mark.slow
def test_removed_workspace_is_recorded_with_who_why_and_what_was_lost(
    command: Command, database: Database, home: Path, repository: Path
) -> None:
    job_id, run_ids = submit(database, git_spec(repository), "done", "cut")
    done, cut = (begin(database, home, run_id) for run_id in run_ids)
    for work in (done, cut):
        work.write({"a.txt": b"changed\n"})
    done.end()
    put(cut.worktree.path, {"a.txt": b"not recorded\n"})
    cancel(database, Target("run", cut.id), NOW)
    lost = []
    for force in ((), ("--force",)):
        assert "1 of" in command(*signing("workspace", "prune", *force)).err
        assert last_change(database, job_id) == ("workspace_pruned", "lena", "The wrong branch.")
        change = changes_of_job(database, job_id)[-1]
        lost.append((change["run_id"], change["data"]["old"]))
    unsaved = "its files were changed since they were recorded last"
    assert lost == [
        (done.id, {"path": str(done.path), "unsaved": ""}),
        (cut.id, {"path": str(cut.path), "unsaved": unsaved}),
    ]


def test_who_it_is_without_a_name_is_the_user_of_the_system(
    command: Command, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    for user, by in (("ada", "ada"), ("runner", "user runner"), ("Runner", "user Runner")):
        monkeypatch.setattr(getpass, "getuser", lambda user=user: user)
        command("say", run_id, "Hello.")
        assert last_change(database, job_id) == ("message_queued", by, "")


@pytest.mark.parametrize(
    "name", ["runner", "Runner", "RUNNER", "ｒｕｎｎｅｒ", " ", "a\x1b[2J", "x" * 101]
)
def test_name_that_is_none_is_refused_in_a_line(
    command: Command, database: Database, name: str
) -> None:
    run_id = submit_one(database)
    result = command("cancel", run_id, "--as", name)
    assert (result.code, result.out) == (2, "")
    assert "--as NAME" in result.err
    assert not any(map(steers, result.err.rstrip("\n")))
    assert run_row(database, run_id).state == "queued"


def test_reason_that_is_too_long_is_refused(command: Command, database: Database) -> None:
    run_id = submit_one(database)
    result = command("cancel", run_id, "--reason", "x" * (LONGEST_WHY + 1))
    assert (result.code, "give at most 1,000 (--reason)" in result.err) == (2, True)
    assert run_row(database, run_id).state == "queued"


def test_reason_of_a_job_that_goes_on_is_refused(command: Command, database: Database) -> None:
    job_id = run_row(database, submit_one(database)).job_id
    result = command("run", "--resume", job_id, "--reason", "Why not.")
    assert (result.code, "leave it out with --resume" in result.err) == (2, True)


def test_events_of_a_job_are_who_did_what(command: Command, database: Database) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    command(*signing("cancel", run_id))
    shown = command("events", job_id)
    assert shown.code == 0, shown.err
    submitted, cancelled = shown.out.splitlines()
    assert f"{job_id[-8:]}  submitted" in submitted
    assert f"{run_id[-8:]}  cancelled" in cancelled
    assert 'by=lena why="The wrong branch."' in cancelled
    assert "old=(state=queued" in cancelled
    told = command("events", job_id, "--json").json
    assert [(each["run_id"], each["type"]) for each in told] == [
        (None, "submitted"),
        (run_id, "cancelled"),
    ]
    assert set(told[0]) == {"job_id", "run_id", "number", "at", "attempt", "type", "data"}


def test_events_of_a_job_steer_no_terminal(command: Command, database: Database) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    command("say", run_id, HOSTILE.replace("\0", "").replace("\ud800", ""))
    command("cancel", run_id, "--reason", HOSTILE.replace("\0", "").replace("\ud800", ""))
    assert not any(map(steers, command("events", job_id).out.replace("\n", "")))
    assert "\x1b" not in command("events", job_id, "--json").out


def test_only_a_run_is_followed(command: Command, database: Database) -> None:
    job_id = run_row(database, submit_one(database)).job_id
    result = command("events", job_id, "-f")
    assert (result.code, "-f needs one run" in result.err) == (2, True)
    assert len(result.err.splitlines()) == 1
