"""A session is stored once, whatever file it comes in."""

from __future__ import annotations

from io import BytesIO
from itertools import permutations
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import delete, select, update

from runner.app.exchange import export_runs
from runner.app.handle import App
from runner.core.run import Author
from runner.errors import NotFoundError, UsageError
from runner.exchange.atif import trajectory
from runner.exchange.claude_code import session_lines
from runner.exchange.sessions import Files
from runner.llm.prices import load_prices
from runner.queries.costs import costs_by
from runner.queries.names import Found, find
from runner.queries.outcomes import children_of
from runner.queries.transcript import sent_request, system_prompt
from runner.store.database import Database
from runner.store.exports import export, load_recorded
from runner.store.imports import import_file
from runner.store.sessions import ImportedSession, import_session
from runner.store.tables import model_calls, runs, sessions, tool_calls
from runner.store.tables import session_lines as kept_lines
from tests.exchange.samples import SESSION, Line, Session, raw_of, text, usual
from tests.exchange.test_session_lines import with_agents
from tests.store.attempts import claim, run_row, submit_one
from tests.store.examples import NOW
from tests.store.exchange.conftest import MakeDatabase
from tests.store.exchange.files import SETTINGS

ANN = Author("ann")
PRICES = load_prices()


def bring(database: Database, files: Files | list[Line]) -> list[ImportedSession]:
    if isinstance(files, list):
        files = {"": raw_of(files)}
    return import_session(database, files, "session.jsonl", ANN, NOW)


def exported(database: Database, run_id: str) -> dict[str, bytes]:
    """The files that an imported session is exported as."""
    found = find(database, run_id, "run")
    job = Found("job", run_row(database, found.id).job_id)
    parts = export_runs(App(SETTINGS, database), job, "claude-code")
    return {name: b"".join(content) for _, name, content in parts}


def tokens(database: Database) -> int:
    return sum(each.spending.usage.total for each in costs_by(database, PRICES, "model"))


def count(database: Database) -> int:
    return len(database.rows(select(runs.c.id)))


def test_an_export_is_the_file_that_was_imported(database: Database) -> None:
    session = usual()
    session.lines[-1] |= {"slug": "zesty-owl", "odd": 1e-7, "isMeta": False}
    session.user("Grüße 😀", isMeta=True, permissionMode="plan")
    raw = session.raw()
    (run,) = bring(database, {"": raw})
    assert exported(database, run.run_id) == {f"{SESSION}.jsonl": b"\n".join(raw) + b"\n"}


def test_an_export_that_is_imported_again_adds_nothing(database: Database) -> None:
    (run,) = bring(database, usual().lines)
    (content,) = exported(database, run.run_id).values()
    before = tokens(database)
    (again,) = bring(database, {"": content.splitlines()})
    assert (again.what, again.run_id) == ("there", run.run_id)
    assert (tokens(database), count(database)) == (before, 1)


def test_a_file_without_its_first_lines_adds_nothing_but_what_is_new(database: Database) -> None:
    session = usual()
    (run,) = bring(database, session.lines)
    assert [each.what for each in bring(database, session.lines[6:])] == ["there"]
    session.user("And the tests?")
    session.reply("msg_3", text("They pass."), stop="end_turn", output_tokens=4)
    (more,) = bring(database, session.lines[8:])
    assert (more.what, more.run_id) == ("continued", run.run_id)
    assert run_row(database, run.run_id).turns == 3
    (whole,) = bring(database, session.lines)
    assert whole.what == "there"


def test_a_whole_file_after_one_without_its_first_lines_is_in_its_own_order(
    database: Database,
) -> None:
    session = usual()
    (run,) = bring(database, session.lines[5:])
    (again,) = bring(database, session.lines)
    assert (again.run_id, again.what, run_row(database, run.run_id).turns) == (
        run.run_id,
        "continued",
        2,
    )
    lines = load_recorded(database, run.run_id).lines
    assert list(lines) == session.raw()


def test_a_fork_shares_what_it_shares_and_says_so(database: Database) -> None:
    session = usual()
    (origin,) = bring(database, session.lines)
    spent = tokens(database)
    fork = Session(sessionId=(fork_id := str(uuid4())))
    about = {"sessionId": fork_id, "forkedFrom": {"sessionId": SESSION}}
    fork.lines = [line | about for line in session.lines]
    fork.user("Another way.")
    fork.reply("msg_9", text("Done."), stop="end_turn", output_tokens=7)
    (forked,) = bring(database, fork.lines)
    row = run_row(database, forked.run_id)
    assert (row.fork_of, row.fork_turn, row.turns) == (origin.run_id, 2, 3)
    assert tokens(database) == spent + 7
    assert exported(database, forked.run_id) == {
        f"{SESSION}.jsonl": b"\n".join(session.raw()) + b"\n",
        f"{fork_id}.jsonl": b"\n".join(fork.raw()) + b"\n",
    }
    # Its origin comes before it in an export.
    file = BytesIO()
    export(database, run_id=forked.run_id, write=file.write)
    assert count(database) == 2


def forks_of_forks() -> dict[str, list[Line]]:
    """A session, a fork of it, and a fork of the fork, each with a turn of its own."""
    found = {"origin": usual().lines}
    for place, name in enumerate(("fork", "fork of it"), 1):
        before = list(found.values())[-1]
        session_id = str(UUID(int=place))
        about = {
            "sessionId": session_id,
            "forkedFrom": {"sessionId": before[-1]["sessionId"], "messageUuid": "u"},
        }
        fork = Session(sessionId=session_id)
        fork.lines = [{**line, **about} for line in before]
        fork.user(f"Another way, {place}.", timestamp=f"2026-02-18T12:0{place}:00.000Z")
        fork.reply(f"msg_{name}", text("Done."), stop="end_turn", output_tokens=place)
        fork.lines[-1]["timestamp"] = f"2026-02-18T12:0{place}:01.000Z"
        found[name] = fork.lines
    return found


ORDERS = list(permutations(("origin", "fork", "fork of it")))


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_forks_count_the_same_in_whatever_order_they_come(
    make_database: MakeDatabase, order: tuple[str, ...]
) -> None:
    database = make_database("sqlite")
    files = forks_of_forks()
    found = {name: bring(database, files[name])[0].run_id for name in order}
    names = {run_id: name for name, run_id in found.items()}
    counted = [
        (name, call["turn"], call["output_tokens"])
        for name in files
        for call in load_recorded(database, found[name]).model_calls
    ]
    assert counted == [("origin", 1, 40), ("origin", 2, 9), ("fork", 3, 1), ("fork of it", 4, 2)]
    places = {name: run_row(database, run_id) for name, run_id in found.items()}
    assert {
        name: (names.get(row.fork_of or ""), row.fork_turn, row.output_tokens)
        for name, row in places.items()
    } == {"origin": (None, None, 49), "fork": ("origin", 2, 1), "fork of it": ("origin", 3, 2)}
    for name, lines in files.items():
        assert [each.what for each in bring(database, lines)] == ["there"], name
    # An export has the origin before its forks, and can be imported.
    file = BytesIO()
    export(database, run_id=found["fork of it"], write=file.write)


def test_a_session_that_an_older_runner_imported_is_recognised(database: Database) -> None:
    session = usual()
    (run,) = bring(database, session.lines)

    def forget(connection: Any) -> None:
        connection.execute(delete(kept_lines))
        connection.execute(update(sessions).values(files_digest=None))
        connection.execute(update(model_calls).values(message_id=None))

    database.write(forget)
    (again,) = bring(database, session.lines)
    assert (again.run_id, count(database)) == (run.run_id, 1)
    database.write(forget)
    with pytest.raises(UsageError, match="says something else"):
        bring(database, session.lines[6:])


def test_a_session_that_an_older_reader_read_is_read_again(database: Database) -> None:
    session = usual()
    bring(database, session.lines)

    def be_older(connection: Any) -> None:
        connection.execute(update(tool_calls).values(outcome="failed"))
        connection.execute(update(sessions).values(files_digest="2:0"))

    database.write(be_older)
    assert [each.what for each in bring(database, session.lines)] == ["continued"]
    outcomes = database.rows(select(tool_calls.c.outcome).order_by(tool_calls.c.position))
    assert [row.outcome for row in outcomes] == ["succeeded", "failed"]
    assert [each.what for each in bring(database, session.lines[6:])] == ["there"]


def test_a_run_of_ours_that_is_imported_here_is_there(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    lines = list(session_lines(load_recorded(database, run_id), "1"))
    assert [(each.what, each.run_id) for each in bring(database, lines)] == [("there", run_id)]
    assert count(database) == 1


def test_a_session_is_found_by_its_title_and_its_own_id(database: Database) -> None:
    (run,) = bring(database, usual().lines)
    for name in (SESSION, SESSION[:8], "Mending the cart"):
        assert find(database, name, "run").id == run.run_id
    with pytest.raises(NotFoundError):
        find(database, "Mending the carts", "run")


def test_what_was_sent_in_a_session_is_not_made_up(database: Database) -> None:
    session = usual()
    prompt = {"type": "prompt_snapshot", "systemPrompt": ["You are brief."]}
    session.add("attachment", attachment=prompt)
    (run,) = bring(database, session.lines)
    with pytest.raises(UsageError, match="does not say what Claude Code sent"):
        sent_request(database, run.run_id, 1)
    assert system_prompt(database, run.run_id) == "You are brief."
    first, *_ = trajectory(load_recorded(database, run.run_id), "1")["steps"]
    assert (first["source"], first["message"]) == ("system", "You are brief.")


def test_agents_are_children_and_come_back_with_their_files(
    database: Database, make_database: MakeDatabase
) -> None:
    files = with_agents()
    main, *_ = found = bring(database, files)
    assert [each.run_id.removeprefix(main.run_id) for each in found] == ["", ".1", ".2", ".2.1"]
    children = children_of(database, main.run_id)
    assert [child["agent_type"] for child in children] == ["Explore", "Explore"]
    assert all(child["call_id"] for child in children)
    written = exported(database, main.run_id)
    assert written["agent-a1.jsonl"] == b"\n".join(files["agent-a1.jsonl"]) + b"\n"
    assert len(written) == 4
    assert {each.what for each in bring(database, files)} == {"there"}
    # Runner's own format has them all, with their lines.
    file = BytesIO()
    export(database, run_id=main.run_id, write=file.write)
    other = make_database("sqlite")
    import_file(other, BytesIO(file.getvalue()), "runs.jsonl", ANN, NOW)
    again = BytesIO()
    export(other, run_id=main.run_id, write=again.write)
    assert again.getvalue() == file.getvalue()


def test_an_agent_that_comes_later_is_added(database: Database) -> None:
    files = dict(with_agents())
    last = {name: files.pop(name) for name in ("agent-a2.jsonl", "agent-a3.jsonl")}
    main, first = bring(database, files)
    found = bring(database, files | last)
    assert [(each.run_id, each.what) for each in found][:2] == [
        (main.run_id, "continued"),
        (first.run_id, "there"),
    ]
    assert len(found) == 4
