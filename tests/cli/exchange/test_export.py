"""``export``."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, update

from runner.store.database import Database
from runner.store.jobs import submit
from runner.store.tables import run_items, runs
from tests.cli.conftest import Result
from tests.cli.test_terminal import HOSTILE, steers
from tests.exchange.atif_rules import problems
from tests.store.asked import run_ids
from tests.store.attempts import claim, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC, submission

Command = Callable[..., Result]


def steered(result: Result) -> bool:
    """Whether anything that was printed moves a cursor."""
    return any(steers(character) for character in (result.out + result.err).replace("\n", ""))


def ended(database: Database, key: str = "one", said: str = "Done.") -> str:
    run_id = submit_one(database, key, spec=replace(SPEC, system=None))
    attempt = claim(database, run_id).reply(tool_use(1, file_path=key), stop="tool_use")
    attempt.finish(said).reply(text(said))
    return run_id


def test_a_run_is_written_to_stdout(command: Command, database: Database) -> None:
    run_id = ended(database)
    written = command("export", run_id[-8:])
    lines = [json.loads(line) for line in written.out.splitlines()]
    assert (written.code, lines[0]["run"]) == (0, run_id)
    assert lines[-1]["end"]["rows"] == len(lines) - 2
    assert "secrets included" in written.err


@pytest.mark.slow
def test_a_file_is_for_its_owner_alone_and_is_no_link_to_another(
    command: Command, database: Database, folder: Path
) -> None:
    run_id = ended(database)
    (folder / "theirs").write_text("precious")
    (folder / "run.jsonl").symlink_to(folder / "theirs")
    assert command("export", run_id, "-o", "run.jsonl").code == 0
    assert (folder / "theirs").read_text() == "precious"
    assert stat.S_IMODE((folder / "run.jsonl").stat().st_mode) == 0o600
    assert (folder / "run.jsonl").read_text() == command("export", run_id).out
    assert sorted(path.name for path in folder.glob("*run*")) == [".runner", "run.jsonl"]


def test_the_messages_are_those_of_the_api(command: Command, database: Database) -> None:
    run_id = ended(database)
    messages = command("export", run_id, "--format", "messages").json
    assert messages == command("transcript", run_id, "--json").json
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]


def test_a_trajectory_is_one_of_version_1_7(command: Command, database: Database) -> None:
    found = command("export", ended(database), "--format", "atif").json
    assert problems(found) == []


def test_a_session_is_named_as_claude_code_looks_for_it(
    command: Command, database: Database, folder: Path
) -> None:
    run_id = ended(database)
    (folder / "sessions").mkdir()
    assert command("export", run_id, "--format", "claude-code", "-o", "sessions").code == 0
    (file,) = (folder / "sessions").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert file.name == f"{lines[0]['sessionId']}.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["messages", "atif", "claude-code"])
def test_a_job_has_a_file_for_each_run(
    command: Command, database: Database, folder: Path, shape: str
) -> None:
    job_id = submit(database, submission("../a b", "../A B", ".", "-"), NOW)
    for run_id in run_ids(database, job_id):
        claim(database, run_id, NOW + 9).reply(text("Done."))
    assert command("export", job_id, "--format", shape).code == 2
    written = command("export", job_id, "--format", shape, "-o", "out/here")
    assert (written.code, written.out) == (0, "")
    assert "4 runs written to out/here" in written.err
    names = [path.name for path in (folder / "out" / "here").iterdir()]
    assert len({name.casefold() for name in names}) == 4
    assert all(name[0].isalnum() for name in names)
    assert not any(path.is_file() for path in (folder / "out").iterdir())


def in_session(database: Database, *run_ids: str, **change: Any) -> None:
    """As if the runs were of one session of Claude Code's."""
    item = {"claude_code": {"session_id": "0b3c8f0e-5a52-4d6b-9a0c-0d6a3c1f7e11"}}

    def work(connection: Connection) -> None:
        of_runs = run_items.c.run_id.in_(run_ids)
        connection.execute(update(run_items).where(of_runs).values(item=item))
        if change:
            connection.execute(update(runs).where(runs.c.id == run_ids[-1]).values(**change))

    database.write(work)


@pytest.mark.parametrize("name", ["fork", "fresh"])
def test_what_came_from_a_session_has_a_file_of_its_own(
    command: Command, database: Database, folder: Path, name: str
) -> None:
    job_id = submit(database, submission("a", "b"), NOW)
    one, other = run_ids(database, job_id)
    if name == "fork":
        in_session(database, one, other, fork_of=one, fork_turn=0)
    else:
        in_session(database, one, other, fresh_of=one)
    assert command("export", job_id, "--format", "claude-code", "-o", "out").code == 0
    files = list((folder / "out").iterdir())
    lines = [json.loads(file.read_text().splitlines()[0]) for file in files]
    assert sorted(f"{line['sessionId']}.jsonl" for line in lines) == sorted(f.name for f in files)
    assert len(files) == 2


def test_two_runs_that_say_they_are_one_session_do_not_replace_each_other(
    command: Command, database: Database
) -> None:
    job_id = submit(database, submission("a", "b"), NOW)
    in_session(database, *run_ids(database, job_id))
    refused = command("export", job_id, "--format", "claude-code", "-o", "out")
    assert (refused.code, "is the same session as another run" in refused.err) == (2, True)


def test_a_job_is_one_file_of_runners_own(
    command: Command, database: Database, folder: Path
) -> None:
    job_id = submit(database, submission("a", "b"), NOW)
    (folder / "out").mkdir()
    assert command("export", job_id, "-o", "out").code == 0
    (file,) = (folder / "out").iterdir()
    assert file.name == f"{job_id}.jsonl"
    assert file.read_text() == command("export", job_id).out


@pytest.mark.parametrize("shape", ["jsonl", "messages", "atif", "claude-code"])
def test_nothing_that_is_written_steers_a_terminal(
    command: Command, database: Database, shape: str
) -> None:
    written = command("export", ended(database, said=HOSTILE), "--format", shape)
    assert written.code == 0
    assert written.out.isascii()
    assert not steered(written)


def test_what_cannot_be_written_is_said_and_leaves_nothing(
    command: Command, database: Database, folder: Path
) -> None:
    run_id = ended(database)
    before = sorted(folder.rglob("*"))
    said = command("export", run_id, "-o", "missing/run.jsonl")
    assert (said.code, said.out) == (2, "")
    assert "missing/run.jsonl cannot be written: No such file or directory" in said.err
    assert command("export", "run_nowhere").code == 2
    assert sorted(folder.rglob("*")) == before


def test_an_export_that_fails_on_its_way_leaves_no_half_file(
    command: Command, database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = ended(database)
    (folder / "run.jsonl").write_text("the one before")

    def fail(*arguments: Any) -> Iterator[bytes]:
        yield b"{}\n"
        raise KeyboardInterrupt

    monkeypatch.setattr("runner.store.exports.section_lines", fail)
    assert command("export", run_id, "-o", "run.jsonl").code == 130
    assert (folder / "run.jsonl").read_text() == "the one before"
    assert [path.name for path in folder.iterdir() if path.name != ".runner"] == ["run.jsonl"]
