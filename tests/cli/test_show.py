"""``list``, ``show``, ``transcript`` and ``events``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import click
import pytest
from sqlalchemy import text as sql

from runner.app import listing
from runner.app.humanize import moment
from runner.app.show import follow
from runner.core.commands import Target
from runner.core.run import STATES
from runner.queries.jobs import list_jobs
from runner.queries.transcript import show_run
from runner.store import jobs as jobs_store
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.retry import retry
from tests.cli.conftest import Result
from tests.cli.questions import app_on
from tests.cli.test_terminal import HOSTILE, steers
from tests.runner_process import RunnerProcess
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, submission

STORABLE_HOSTILE = HOSTILE.replace("\x00", "").replace("\ud800", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "job_1"),
        ("show", "run_1"),
        ("transcript", "run_1"),
        ("transcript", "run_1", "--as-sent", "1"),
        ("events", "run_1"),
        ("diff", "run_1"),
        ("report", "job_1"),
        ("results", "job_1"),
        ("patch", "job_1", "-o", "patches"),
        ("budget", "job_1"),
        ("budget", "job_1", "--usd", "4"),
        ("cancel", "run_1"),
        ("say", "run_1", "Hello."),
        ("approve", "run_1"),
        ("deny", "--group", "uv lock"),
        ("rules", "list", "job_1"),
        ("rules", "revoke", "job_1", "0"),
        ("run", "--resume", "job_1"),
        ("worker", "--burst"),
    ],
)
def test_without_a_database_it_says_how_to_start_and_makes_none(
    command: Callable[..., Result], folder: Path, arguments: tuple[str, ...]
) -> None:
    result = command(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "runner run SPEC" in result.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ("costs",),
            ("costs", "--by", "day"),
            ("budget", "--all"),
            ("prune",),
            ("workspace", "prune"),
        ),
        *(("list",), ("workers",), ("approvals",), ("search", "x"), ("audit", "sql", "SELECT 1")),
        *(("users", "list"), ("schedule", "list"), ("workspace", "list"), ("audit", "tools")),
    ],
)
def test_without_a_database_a_listing_is_empty_and_says_how_to_start(
    command: Callable[..., Result], folder: Path, arguments: tuple[str, ...]
) -> None:
    shown, as_json = command(*arguments), command(*arguments, "--json")
    assert (shown.code, shown.out) == (0, "")
    assert (as_json.code, as_json.json) == (0, [])
    assert "runner run SPEC" in shown.err
    assert "runner init" in shown.err
    assert list(folder.iterdir()) == []


def test_jobs_are_listed(command: Callable[..., Result], database: Database) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    listed = command("list")
    assert listed.code == 0
    assert job_id[-8:] in listed.out
    assert "2 queued" in listed.out
    (job,) = command("list", "--json").json
    assert (job["id"], job["state"], job["runs"]) == (job_id, "queued", {"queued": 2})
    assert command("list", "--state", "failed", "--json").json == []


def test_jobs_are_listed_since_a_time(command: Callable[..., Result], database: Database) -> None:
    jobs_store.submit(database, submission("a"), NOW)
    new = jobs_store.submit(database, submission("a"), time.time())
    for since in ("yesterday", "today", "2h", "2 h ago", "2025-01-01T10:00"):
        (job,) = command("list", "--since", since, "--json").json
        assert job["id"] == new
        assert datetime.fromisoformat(job["created_at"]).tzinfo is not None
    assert len(command("list", "--until", "today", "--json").json) == 1
    none = command("list", "--since", "2h", "--state", "failed")
    assert (none.code, none.out) == (0, "")
    assert "runner list JOB --state failed" in none.err
    assert "runner run SPEC" in command("list", "--until", "2020-01-01").err
    assert command("list", new, "--since", "2h").code == 2


def test_runs_of_a_job_are_listed(command: Callable[..., Result], database: Database) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    runs = command("list", job_id[:12], "--json").json
    assert [(run["item_key"], run["state"]) for run in runs] == [("a", "queued"), ("b", "queued")]
    cancel(database, Target("run", runs[0]["id"]), NOW)
    listed = command("list", job_id, "--state", "cancelled")
    assert runs[0]["id"][-8:] in listed.out
    assert runs[1]["id"][-8:] not in listed.out


def test_state_must_be_one(command: Callable[..., Result], database: Database) -> None:
    result = command("list", "--state", "done")
    assert result.code == 2
    assert all(state in result.err for state in STATES)
    assert len(result.err.splitlines()) == 1


@pytest.mark.slow
def test_job_run_and_call_are_shown(command: Callable[..., Result], database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id).reply(tool_use(1, path="a.py"), stop="tool_use")
    attempt.finish("what is in it")
    job_id = show_run(database, run_id)["job_id"]
    call_id = f"call_{run_id[4:]}_1_1"
    for thing, said in ((job_id, "mend"), (run_id, "1 of 50"), (call_id, "what is in it")):
        shown = command("show", thing)
        assert shown.code == 0
        assert thing[-12 if thing.endswith("_1_1") else -8 :] in shown.out
        assert said in shown.out
        as_json = command("show", thing, "--json").json
        assert as_json["id"] == thing
        assert as_json["state"]
    assert command("show", call_id, "--json").json["input"] == {"path": "a.py"}


def test_id_that_names_nothing_is_a_usage_error(
    command: Callable[..., Result], database: Database
) -> None:
    result = command("show", "\x1b[2Jnothing")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("runner: no job or run or tool call is named")
    assert not any(map(steers, result.err.replace("\n", "")))


def test_transcript_reads_well_and_is_the_api_s_as_json(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    attempt.reply(text("Let me see."), tool_use(1, path="a"), stop="tool_use").finish("one\ntwo")
    attempt.reply(text("Done."))
    shown = command("transcript", run_id[-8:]).out
    for words in ("Mend one.", "Let me see.", "path: a", "succeeded", "  one\n  two\n", "Done."):
        assert words in shown
    messages = command("transcript", run_id, "--json").json
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[1]["content"][1] == tool_use(1, path="a")


def test_blocks_of_kinds_to_come_are_shown(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database)
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    claim(database, run_id).reply(thinking, {"type": "new_kind", "of": 1}, text("Done."))
    shown = command("transcript", run_id).out
    assert "[thinking]\n  Hm.\n" in shown
    assert '[new_kind]\n  {"type": "new_kind", "of": 1}\n' in shown


def test_events_are_shown_in_order(command: Callable[..., Result], database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    shown = command("events", run_id).out.splitlines()
    told = command("events", run_id, "--json").json
    assert [line.split()[4] for line in shown] == [event["type"] for event in told]
    assert [line[7:26] for line in shown] == [
        moment(datetime.fromisoformat(event["at"]).timestamp()) for event in told
    ]


def test_list_says_which_run_stands_for_a_failed_one(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database)
    claim(database, run_id).fail("invalid_request_error", "No such model: 7.")
    (change,) = retry(database, Target("run", run_id), NOW, fresh=True)
    job = run_row(database, run_id).job_id
    (failed,) = (row for row in command("list", job).out.splitlines() if "failed" in row)
    assert failed.endswith(f"No such model: 7. (request req_1); begun afresh as {change.id[-8:]}")


def test_following_a_run_that_has_ended_shows_it_and_ends(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    followed = command("events", run_id, "-f", "--json")
    assert followed.code == 0
    events = [json.loads(line) for line in followed.out.splitlines()]
    assert events == command("events", run_id, "--json").json


@pytest.mark.slow
def test_untrusted_content_steers_no_terminal(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database, STORABLE_HOSTILE)
    job_id = show_run(database, run_id)["job_id"]
    attempt = claim(database, run_id)
    attempt.reply(text(HOSTILE), tool_use(1, path=HOSTILE), stop="tool_use").finish(HOSTILE)
    call_id = f"call_{run_id[4:]}_1_1"
    for arguments in (
        ("list", job_id),
        ("show", run_id),
        ("show", call_id),
        ("transcript", run_id),
        ("events", run_id),
        ("cancel", run_id),
        ("events", run_id, "-f"),
        ("transcript", run_id, "-f"),
    ):
        result = command(*arguments)
        assert result.code == 0
        assert not any(map(steers, result.out.replace("\n", ""))), arguments
        assert not any(map(steers, result.err.replace("\n", ""))), arguments
    assert len(command("list", job_id).out.splitlines()) == 2
    assert command("transcript", run_id, "--json").json[1]["content"][0] == text(HOSTILE)


@pytest.mark.slow
def test_looking_never_imports_the_api_s_client_or_the_queue(
    folder: Path, database: Database
) -> None:
    run_id = submit_one(database)
    job_id = show_run(database, run_id)["job_id"]
    commands = [
        ["--help"],
        ["list"],
        ["workers"],
        ["show", run_id],
        ["transcript", run_id],
        ["events", run_id],
        ["approvals"],
        ["report", job_id],
        ["workspace", "list"],
        ["rules", "list", job_id],
        ["pause", run_id],
        ["export", run_id, "-o", "run.jsonl"],
    ]
    code = (
        "import json, sys\n"
        "from runner.cli.main import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as end: assert not end.code, end.code\n"
        "    slow = {'anthropic', 'pydantic', 'rq', 'redis', 'alembic', 'rich'} & set(sys.modules)\n"
        "    assert not slow, (arguments, slow)\n"
    )
    arguments = [sys.executable, "-c", code, json.dumps(commands)]
    subprocess.run(arguments, capture_output=True, text=True, cwd=folder, check=True)


def told_by(code: str, folder: Path) -> str:
    """Run some Python in a process of its own; its stderr."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True).stderr


@pytest.mark.slow
def test_a_command_loads_few_others_and_collects_garbage_of_its_own(
    folder: Path, database: Database
) -> None:
    job_id = jobs_store.submit(database, submission("a"), NOW)
    code = (
        "import gc, sys\n"
        "from runner.cli.main import main\n"
        f"for arguments in (['list'], ['list', '{job_id}']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as end: assert not end.code, end.code\n"
        "    assert len(arguments) == 2 or 'runner.core.spec' not in sys.modules\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 10_000\n"
        "others = 'approvals audit exchange outputs report search show system transcript work'.split()\n"
        "others = {f'runner.cli.{name}' for name in others}\n"
        "others |= {'tree_sitter', 'pathspec', 'runner.core.state', 'runner.store.jobs'}\n"
        "print(others & set(sys.modules) or '', file=sys.stderr)\n"
    )
    assert told_by(code, folder) == "\n"


@pytest.mark.slow
def test_help_needs_no_database_library(folder: Path) -> None:
    code = (
        "import sys\n"
        "from runner.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'sqlalchemy', 'asyncio', 'jinja2'} & set(sys.modules)), file=sys.stderr)\n"
    )
    assert told_by(code, folder) == "[]\n"


@pytest.mark.slow
def test_reader_that_has_enough_ends_it_quietly(
    start: Callable[..., RunnerProcess], database: Database
) -> None:
    jobs_store.submit(database, submission(*(f"{n} {'x' * 200}" for n in range(2000))), NOW)
    process = start("list", list_jobs(database)[0]["id"], "--all")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("run")
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")


def test_the_last_words_of_a_run_are_followed_although_they_come_after_its_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = submit_one(database)

    @contextmanager
    def texts(*_: object) -> Iterator[Iterator[str | None]]:
        def said() -> Iterator[str | None]:
            claim(database, run_id).reply(text("Done."))
            yield from (None, "Do", "ne.", None)

        yield said()

    monkeypatch.setattr("runner.wiring.follow_text", texts)
    found = [*follow(app_on(database), run_id, whole_tree=False, tell=lambda _line: None)]
    words = [event["text"] for event in found if event["type"] == "text_delta"]
    assert (words, found[-1]["type"]) == (["Do", "ne."], "done")


def test_database_that_is_behind_says_what_to_do(
    command: Callable[..., Result], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner.store import migrate

    monkeypatch.setattr(migrate, "REVISIONS", ("0000", migrate.HEAD))
    database.write(lambda c: c.execute(sql("UPDATE alembic_version SET version_num = '0000'")))
    result = command("list")
    assert result.code == 2
    assert "runner db upgrade" in result.err


def test_every_command_explains_itself_with_an_example(command: Callable[..., Result]) -> None:
    from runner.cli.main import cli

    names = [(name,) for name in cli.commands] + [()]
    for group, command_group in cli.commands.items():
        if isinstance(command_group, click.Group):
            names += [(group, name) for name in command_group.commands]
    assert ("rules", "revoke") in names
    for name in names:
        shown = command(*name, "--help")
        assert shown.code == 0
        assert "Example:\n" in shown.out, name


@pytest.mark.slow
def test_runs_are_listed_a_page_at_a_time_and_all_as_they_come(
    command: Callable[..., Result], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "RUNS_ON_A_PAGE", 2)
    job_id = jobs_store.submit(database, submission("a", "b", "c"), time.time())
    first = command("list", job_id)
    ids = [line.split()[0] for line in first.out.splitlines()[1:]]
    assert len(ids) == 2
    assert first.err.startswith("2 runs of 3 (3 queued (no worker alive)): go on with --after ")
    assert ids[-1] in first.err
    second = command("list", job_id, "--after", ids[-1])
    assert len(second.out.splitlines()) == 2
    assert second.err == ""
    assert [run["id"][-8:] for run in command("list", job_id, "--json").json] == ids
    every = command("list", job_id, "--all")
    assert (len(every.out.splitlines()), every.err) == (4, "")
    in_json = [
        json.loads(line) for line in command("list", job_id, "--all", "--json").out.splitlines()
    ]
    assert [run["item_key"] for run in in_json] == ["a", "b", "c"]
    assert {run["shown_state"] for run in in_json} == {"queued (no worker alive)"}


@pytest.mark.slow
def test_list_and_show_tell_when_no_worker_is_alive_for_what_is_due(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database)
    job_id = show_run(database, run_id)["job_id"]
    for arguments in (("list",), ("list", job_id), ("show", job_id), ("show", run_id)):
        assert "queued (no worker alive)" in command(*arguments).out, arguments
    claim(database, run_id)  # by a worker whose lease has expired for long
    for arguments in (("list",), ("list", job_id), ("show", job_id), ("show", run_id)):
        shown = command(*arguments).out
        assert "interrupted (no worker alive)" in shown, arguments
        assert "running" not in shown, arguments
    run = command("show", run_id, "--json").json
    assert (run["state"], run["shown_state"]) == ("running", "interrupted (no worker alive)")
