"""``import``."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from runner.store.database import Database
from runner.store.tables import events, job_events
from tests.cli.conftest import Result
from tests.cli.exchange.test_export import ended, steered
from tests.cli.test_terminal import HOSTILE
from tests.exchange.samples import CWD, SESSION, Session, text, use, usual
from tests.exchange.test_session_lines import with_agents
from tests.store.attempts import claim, run_row, submit_one

Command = Callable[..., Result]

ELSEWHERE = ("--home", "elsewhere")


@pytest.fixture
def exported(command: Command, database: Database, folder: Path) -> str:
    """The id of a run that has ended, which run.jsonl has."""
    run_id = ended(database)
    assert command("export", run_id, "-o", "run.jsonl").code == 0
    return run_id


@pytest.fixture
def session(folder: Path) -> Path:
    """A session of Claude Code's."""
    path = folder / "session.jsonl"
    path.write_bytes(usual().file().getvalue())
    return path


@pytest.mark.slow
def test_a_run_is_brought_into_a_database_that_is_made_for_it(
    command: Command, exported: str
) -> None:
    found = command("import", "run.jsonl", *ELSEWHERE, "--json")
    ((run,), refused) = found.json["runs"], found.json["refused"]
    assert (found.code, refused) == (0, [])
    assert (run["run_id"], run["what"], run["state"]) == (exported, "imported", "succeeded")
    assert command("transcript", exported, *ELSEWHERE, "--json").json == (
        command("transcript", exported, "--json").json
    )
    assert command("export", exported, *ELSEWHERE).out == command("export", exported).out


@pytest.mark.slow
def test_what_is_there_is_said_to_be_there(command: Command, exported: str) -> None:
    said = command("import", "run.jsonl")
    assert (said.code, " there " in said.out) == (0, True)


@pytest.mark.slow
def test_a_run_that_had_not_ended_does_not_run(command: Command, database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id)
    command("export", run_id, "-o", "run.jsonl")
    options = ("--as", "ann", "--reason", "an audit")
    (run,) = command("import", "run.jsonl", *ELSEWHERE, *options, "--json").json["runs"]
    assert run["state"] == "cancelled"
    events = command("events", run_id, *ELSEWHERE, "--json").json
    (imported,) = [event for event in events if event["type"] == "imported"]
    assert (imported["data"]["by"], imported["data"]["why"]) == ("ann", "an audit")


@pytest.mark.slow
def test_an_export_is_read_from_a_pipe(
    command: Command, exported: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (folder / "run.jsonl").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert command("import", "-", *ELSEWHERE).code == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content[:-9])))
    cut = command("import", "-", *ELSEWHERE)
    assert (cut.code, "stdin, line" in cut.err) == (2, True)


@pytest.mark.slow
def test_an_export_is_read_from_a_file_that_can_be_read_once(
    command: Command, exported: str, folder: Path
) -> None:
    content = (folder / "run.jsonl").read_bytes()
    os.mkfifo(folder / "pipe")
    writing = threading.Thread(target=(folder / "pipe").write_bytes, args=(content,), daemon=True)
    writing.start()
    ((run,), refused) = command("import", "pipe", *ELSEWHERE, "--json").json.values()
    writing.join()
    assert (run["run_id"], run["file"], refused) == (exported, "pipe", [])


@pytest.mark.slow
def test_a_session_of_claude_codes_is_found_like_any_run(command: Command, session: Path) -> None:
    (run,) = command("import", str(session), "--json").json["runs"]
    assert (run["what"], run["state"], run["project"]) == ("imported", "succeeded", CWD)
    (listed,) = command("list", run["job_id"], "--json").json
    assert (listed["id"], listed["item_key"]) == (run["run_id"], CWD)
    shown = command("transcript", run["run_id"])
    assert (shown.code, "Mend the cart." in shown.out) == (0, True)
    costs = command("costs", "--by", "model", "--json")
    assert "claude-opus-4-5-20251101" in costs.out


@pytest.mark.slow
def test_files_of_both_kinds_are_told_apart(command: Command, exported: str, session: Path) -> None:
    found = command("import", "run.jsonl", str(session), *ELSEWHERE, "--json").json
    assert [run["file"] for run in found["runs"]] == ["run.jsonl", str(session)]


@pytest.mark.slow
def test_one_bad_file_is_refused_and_the_others_are_brought_in(
    command: Command, exported: str, session: Path, folder: Path
) -> None:
    (folder / "bad.jsonl").write_text('{"type":"user"}\n{\n\n')
    (folder / "text.txt").write_text("Dear Ann\n")
    (folder / "empty").write_text("")
    names = ("bad.jsonl", "text.txt", "empty", "missing", str(session))
    found = command("import", *names, *ELSEWHERE, "--json")
    assert found.code == 2
    assert [run["file"] for run in found.json["runs"]] == [str(session)]
    assert [refused["file"] for refused in found.json["refused"]] == [*names[:4]]
    assert "bad.jsonl, line 2: it is not JSON" in found.err
    assert "text.txt is neither an export of Runner's nor a session of Claude Code's" in found.err
    assert "missing cannot be read: No such file" in found.err
    assert len(found.err.splitlines()) == 4


def test_last_is_an_imported_job_only_if_there_is_no_other(
    command: Command, database: Database, session: Path, folder: Path
) -> None:
    own = run_row(database, submit_one(database))
    (imported,) = command("import", str(session), "--json").json["runs"]
    assert command("show", "last", "--json").json["id"] == own.job_id
    assert command("show", "last/one", "--json").json["id"] == own.id
    assert command("audit", "tools", "--job", "last", "--json").json == []
    assert command("cancel", "last/one").code == 0
    assert run_row(database, own.id).state == "cancelled"
    newest = run_row(database, imported["run_id"]).job_id
    database.write(lambda c: c.execute(insert(job_events).values(**_imported(own.job_id))))
    assert command("show", "last", "--json").json["id"] == newest


def _imported(job_id: str) -> dict[str, Any]:
    return {"job_id": job_id, "number": 9, "at": 0.0, "type": "imported", "data": {}}


@pytest.mark.slow
def test_the_format_can_be_said(command: Command, session: Path) -> None:
    said = command("import", str(session), "--format", "jsonl")
    assert (said.code, "line 1: it is not the first line of an export" in said.err) == (2, True)
    assert command("import", str(session), "--format", "claude-code").code == 0


@pytest.mark.slow
def test_a_line_that_was_being_written_is_told_of(command: Command, session: Path) -> None:
    session.write_bytes(session.read_bytes() + b'{"type":"assis')
    said = command("import", str(session))
    assert (said.code, "its last line is not whole" in said.err) == (0, True)


@pytest.mark.slow
def test_nothing_that_is_imported_steers_a_terminal(command: Command, folder: Path) -> None:
    hostile = Session(cwd=HOSTILE.replace("\ud800", ""), sessionId=HOSTILE.replace("\ud800", ""))
    hostile.user(HOSTILE)
    hostile.reply(HOSTILE, text(HOSTILE), use(HOSTILE, HOSTILE, command=HOSTILE))
    hostile.result(HOSTILE, HOSTILE)
    content = "".join(json.dumps(line) + "\n" for line in hostile.lines)
    (folder / "session.jsonl").write_text(content)
    said = command("import", "session.jsonl")
    assert (said.code, steered(said)) == (0, False)
    (run,) = command("import", "session.jsonl", "--json").json["runs"]
    for arguments in (("show",), ("transcript",), ("events",), ("export", "--format", "atif")):
        shown = command(arguments[0], run["run_id"], *arguments[1:])
        assert (shown.code, steered(shown)) == (0, False)


def test_a_type_of_event_that_another_runner_let_in_steers_no_terminal(
    command: Command, database: Database
) -> None:
    run_id = submit_one(database)
    hostile = HOSTILE.replace("\0", "").replace("\ud800", "") + "\n"
    for table in (events, job_events):
        changed = update(table).values(type=hostile)
        database.write(lambda connection, query=changed: connection.execute(query))
    for of in (run_id, run_row(database, run_id).job_id):
        shown = command("events", of)
        assert (shown.code, len(shown.out.splitlines()), steered(shown)) == (0, 1, False)


def test_a_folder_is_imported_with_a_line_for_each_project(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects = folder / "config" / "projects"
    files = with_agents()
    for number, project in enumerate(("one", "two")):
        (projects / project).mkdir(parents=True)
        session = usual()
        for line in session.lines:
            line["sessionId"] = f"{number}{SESSION[1:]}"
            line["cwd"] = f"/home/ann/{project}"
            if line["type"] == "assistant":
                line["message"]["id"] += project
        (projects / project / f"{number}.jsonl").write_bytes(session.file().getvalue())
    (projects / "two" / f"{SESSION}.jsonl").write_bytes(b"\n".join(files[""]) + b"\n")
    agents = projects / "two" / SESSION / "subagents"
    agents.mkdir(parents=True)
    for name in filter(None, files):
        (agents / name).write_bytes(b"\n".join(files[name]) + b"\n")
    # A session in which nothing was said is passed over.
    (projects / "one" / "empty.jsonl").write_text('{"type":"summary","summary":"x"}\n')
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder / "config"))
    said = command("import", "--all")
    assert said.code == 0
    rows = sorted(line.split() for line in said.out.splitlines()[1:])
    assert rows == [
        ["/home/ann/one", "1", "0", "0", "0"],
        ["/home/ann/storefront", "1", "0", "0", "3"],
        ["/home/ann/two", "1", "0", "0", "0"],
    ]
    again = command("import", str(projects), "--json").json["runs"]
    assert {run["what"] for run in again} == {"there"}
    # An agent's file stands for its session.
    one = command("import", str(agents / "agent-a1.jsonl"), "--json").json["runs"]
    assert len(one) == 4
    assert command("import").code == 2
