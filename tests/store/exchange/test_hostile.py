"""Exports that someone else wrote, and damaged ones: what is wrong is named, and nothing is stored."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from io import BytesIO
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, func, select

from runner.core.media import media_tokens
from runner.core.run import Author
from runner.errors import UsageError
from runner.llm.requests import with_media
from runner.queries import decisions
from runner.queries.transcript import api_messages
from runner.store.database import Database
from runner.store.exports import export
from runner.store.imports import import_file
from runner.store.tables import jobs, runs
from tests.store.asked import ask, run_ids, submit_asking
from tests.store.attempts import claim, text
from tests.store.compacting import compact, stand_in, use_tool
from tests.store.examples import NOW
from tests.store.exchange.conftest import MakeDatabase
from tests.store.exchange.files import Lines, lines_of, look_everywhere, renamed, signed
from tests.store.exchange.stories import values
from tests.upgraded import Upgraded

ANN = Author("ann")


@pytest.fixture
def target(make_database: MakeDatabase) -> Database:
    return make_database("sqlite")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, upgraded: Upgraded) -> Lines:
    """The rows of a job with a run that has ended and one that waits for an answer."""
    url = f"sqlite:///{tmp_path_factory.mktemp('exported') / 'runner.db'}"
    upgraded.copy_to(url)
    with closing(Database(url)) as database:
        job_id = submit_asking(database, "a", "b")
        one, other = run_ids(database, job_id)
        attempt = use_tool(claim(database, one), "read")
        compact(attempt, stand_in(1)).reply(text("Done."))
        ask(database, other, "uv lock")
        lines = lines_of(database, job_id)
    keep_an_output(lines)
    keep_a_session(lines)
    return lines


@pytest.fixture
def sample(exported: Lines) -> Lines:
    """The same rows, to be changed."""
    return deepcopy(exported)


def keep(row: dict[str, Any], content: bytes) -> None:
    """Give a row content, compressed."""
    row.update(size=len(content), compressed=b64encode(zlib.compress(content)).decode())


def keep_a_session(lines: Lines) -> None:
    """As if the first run were imported from Claude Code."""
    at = [line.get("table") for line in lines].index("events")
    row = {"run_id": lines[at]["row"]["run_id"]}
    session = {"session_id": "s", "agent_id": None, "title": None, "system": "", "notes": ""}
    session |= {"stated_usd": None, "under_reported": 0, "files_digest": None}
    kept: dict[str, Any] = {"file": "", "part": 1}
    keep(kept, b'{"type":"user"}')
    lines[at:at] = [
        {"table": "sessions", "row": row | session},
        {"table": "session_lines", "row": row | kept},
    ]


def keep_an_output(lines: Lines) -> None:
    """As a tool's that was too long to show."""
    output = b"all of it" * 100
    stored = {"size": len(output), "compressed": b64encode(zlib.compress(output)).decode()}
    calls = [number for number, line in enumerate(lines) if line.get("table") == "tool_calls"]
    call = lines[calls[0]]["row"]
    place = {name: call[name] for name in ("run_id", "message", "position")}
    of_run = [n for n in calls if lines[n]["row"]["run_id"] == call["run_id"]]
    lines.insert(max(of_run) + 1, {"table": "tool_outputs", "row": place | stored})


def row(lines: Lines, table: str, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = [line["row"] for line in lines if line.get("table") == table][number]
    return found


def line_of(lines: Lines, table: str) -> int:
    """The number of a table's first line in the file."""
    return 1 + [line.get("table") for line in lines].index(table)


def count(database: Database, table: Table) -> int:
    query = select(func.count()).select_from(table)
    return int(database.read(lambda connection: connection.execute(query).scalar_one()))


def refusal(database: Database, content: bytes) -> str:
    """Why a file is refused; nothing of it may have been stored."""
    with pytest.raises(UsageError) as refused:
        import_file(database, BytesIO(content), "theirs.jsonl", ANN, NOW)
    assert (count(database, jobs), count(database, runs)) == (0, 0)
    return str(refused.value)


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("table", "change", "why"),
    [
        (
            "jobs",
            lambda row: row.update(id="job_../../etc/passwd"),
            "id: string should match pattern",
        ),
        ("jobs", lambda row: row.update(spec={"name": 1}), "jobs.spec is no job's"),
        ("jobs", lambda row: row.pop("name"), "jobs.name: field required"),
        ("jobs", lambda row: row.update(colour="red"), "not permitted: the file may be of a newer"),
        (
            "jobs",
            lambda row: row.update(created_at=-1),
            "jobs.created_at: input should be greater than",
        ),
        ("jobs", lambda row: row.update(name="a\0b"), "it has a character that no database"),
        ("jobs", lambda row: row.update(name="\ud800"), "jobs.name: it has a character"),
        (
            "permission_rules",
            lambda row: row.update(effect="maybe"),
            "input should be 'allow', 'ask' or 'deny'",
        ),
        ("permission_rules", lambda row: row.update(job_id="x"), "permission_rules.job_id is not"),
        (
            "job_events",
            lambda row: row.update(data=[]),
            "job_events.data: input should be a valid dict",
        ),
        ("runs", lambda row: row.update(id="run_" + "/" * 26), "id: string should match pattern"),
        ("runs", lambda row: row.update(job_id="job_1"), "runs.job_id is not"),
        ("runs", lambda row: row.update(state="asleep"), "runs.state: input should be 'queued', "),
        ("runs", lambda row: row.update(state="running"), "runs.worker_id is for a run"),
        ("runs", lambda row: row.update(state="queued"), "runs.due_at is for a run"),
        ("runs", lambda row: row.update(turns=True), "runs.turns: input should be a valid integer"),
        ("runs", lambda row: row.update(turns=2**31), "runs.turns: input should be less than"),
        ("runs", lambda row: row.update(turns=-1), "runs.turns: input should be greater than"),
        (
            "runs",
            lambda row: row.update(pause_requested=1),
            "requested: input should be a valid boolean",
        ),
        ("runs", lambda row: row.update(progress={}), "runs.progress is no run's"),
        ("runs", lambda row: row["progress"]["model"].update(tries="1"), "(model.tries: input"),
        (
            "runs",
            lambda row: row["progress"]["money"].update(charged_cost=2**61),
            "(money.charged_cost: number is too large)",
        ),
        (
            "runs",
            lambda row: row.update(input_tokens=2**51),
            "runs.input_tokens: input should be less than",
        ),
        ("jobs", lambda row: row["spec"].update(name=7), "no job's (name: input should"),
        (
            "jobs",
            lambda row: row["spec"]["tools"][0].update(name=7),
            "(tools[0].name: input should",
        ),
        (
            "jobs",
            lambda row: row["spec"]["limits"].update(max_agent_depth=11),
            "jobs.spec is no job's (limits.max_agent_depth is over 10)",
        ),
        (
            "jobs",
            lambda row: row["spec"]["limits"].update(max_turns="9"),
            "(limits.max_turns: input should be a valid int",
        ),
        (
            "approvals",
            lambda row: row["setting"].update(home=1),
            "(home: input should be a valid str",
        ),
        ("approvals", lambda row: row.update(answered_via="owl"), "answered_via: input should be"),
        ("runs", lambda row: row.update(fresh_of=row["id"]), "runs.fresh_of names no run"),
        ("runs", lambda row: row.update(fork_turn=1), "runs.fork_turn goes with runs.fork_of"),
        ("runs", lambda row: row.update(event_count=99), "events, and its row says 99"),
        ("run_items", lambda row: row.update(run_id="run_1"), "run_items.run_id is not run_"),
        ("blocks", lambda row: row.update(content="x"), "blocks.content: a block has no type"),
        ("blocks", lambda row: row.update(role="system"), "input should be 'user' or 'assistant'"),
        ("blocks", lambda row: row["content"].pop("text"), "has no valid text"),
        ("blocks", lambda row: row.update(type="image"), "blocks.content is no block of that type"),
        ("tool_calls", lambda row: row.update(name="Bash2"), "names another call than its block"),
        ("tool_calls", lambda row: row.update(message=40), "no block of message 40 asks for"),
        (
            "tool_outputs",
            lambda row: row.update(compressed="?"),
            "compressed: only base64 data is allowed",
        ),
        ("tool_outputs", lambda row: row.update(compressed="AAAA"), "compressed is damaged"),
        ("tool_outputs", lambda row: row.update(size=1), "does not hold the 1 bytes"),
        ("tool_outputs", lambda row: row.update(size=2**40), "no size of an output"),
        ("tool_outputs", lambda row: row.update(position=7), "has a row of no tool call"),
        ("approvals", lambda row: row.update(setting=[]), "approvals.setting is none"),
        ("approvals", lambda row: row.update(id="apr_1"), "id: string should match pattern"),
        ("approvals", lambda row: row.update(answer="approved"), "goes with approvals.answer"),
        (
            "model_calls",
            lambda row: row.update(purpose="fun"),
            "input should be 'turn' or 'summary'",
        ),
        ("model_calls", lambda row: row.update(cut=[1]), "calls.cut[0]: input should be"),
        ("compactions", lambda row: row.update(kind="squash"), "input should be 'clip', "),
        (
            "compactions",
            lambda row: row.update(clips=[[1]]),
            "compactions.clips[0][1]: field required",
        ),
        ("session_lines", lambda row: row.update(compressed="AAAA"), "compressed is damaged"),
        ("session_lines", lambda row: row.update(size=1), "does not hold the 1 bytes"),
        ("session_lines", lambda row: row.update(size=2**40), "no size of an output"),
        ("session_lines", lambda row: keep(row, b"{}\n[1]"), "line 2 is no object of JSON"),
        ("session_lines", lambda row: keep(row, b'{"a": "\xff"}'), "line 1 is no object of JSON"),
        (
            "sessions",
            lambda row: row.update(notes=7),
            "sessions.notes: input should be a valid string",
        ),
        ("events", lambda row: row.update(number=7), "they are numbered without gaps"),
        ("events", lambda row: row.update(data=None), "events.data: input should be a valid dict"),
        (
            "events",
            lambda row: row.update(type="\x1b]0;x\x07"),
            "events.type: string should match pattern",
        ),
        (
            "events",
            lambda row: row.update(type="done\ndone"),
            "events.type: string should match pattern",
        ),
        (
            "events",
            lambda row: row.update(type="ab" * 40),
            "events.type: string should match pattern",
        ),
        (
            "job_events",
            lambda row: row.update(type=""),
            "job_events.type: string should match pattern",
        ),
        (
            "job_events",
            lambda row: row["data"].update(old=[1]),
            "old: input should be a valid dict",
        ),
    ],
)
def test_a_bad_row_is_refused_with_its_line_and_nothing_is_stored(
    target: Database, sample: Lines, table: str, change: Change, why: str
) -> None:
    change(row(sample, table))
    said = refusal(target, signed(sample))
    assert why in said
    assert said.startswith("theirs.jsonl, line ")
    assert said.endswith("; nothing was imported")
    if "events, and its row" not in why:
        assert f"line {line_of(sample, table)}:" in said


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("turn_ended", {}, "turn is missing"),
        ("turn_ended", {"turn": "x"}, "turn: input should be a valid integer"),
        ("turn_ended", {"turn": True}, "turn: input should be a valid integer"),
        ("turn_ended", {"turn": 2**31}, "turn: input should be less than"),
        ("tool_started", {"call_index": 0, "name": "Bash"}, "turn is missing"),
        (
            "tool_done",
            {"turn": 1, "call_index": 0, "name": "B", "duration": "x"},
            "duration: input should be a valid number",
        ),
        ("model_call_ended", {"call": [1]}, "call: input should be a valid integer"),
        ("model_call_ended", {"call": 1, "stop_reason": "end_turn"}, "turn is missing"),
        ("model_call_ended", {"call": 1, "latency": 1e300}, "latency: input should be less than"),
        ("model_call_started", {"turn": 1}, "call is missing"),
        ("message_added", {}, "messages is missing"),
        ("message_queued", {}, "text is missing"),
        ("approval_answered", {"turn": 1, "call_index": 0, "name": "B"}, "answer is missing"),
        ("retry_scheduled", {"at": 1e12}, "at: input should be less than"),
        ("retry_scheduled", {}, "at is missing"),
        ("waiting", {}, "reason is missing"),
        ("done", {}, "state is missing"),
        ("done", {"state": ["x"]}, "state: input should be a valid string"),
        ("cancelled", {"by": ["x"], "why": ""}, "by: input should be a valid string"),
        ("limit_reached", {"reason": [1]}, "reason: input should be a valid string"),
        ("of_a_newer_runner", {"call_index": 0}, "turn is missing"),
        ("of_a_newer_runner", {"why": 7}, "why: input should be a valid string"),
    ],
)
def test_an_event_that_no_runner_wrote_is_refused(
    target: Database, sample: Lines, kind: str, data: dict[str, Any], why: str
) -> None:
    row(sample, "events").update(type=kind, data=data)
    said = refusal(target, signed(sample))
    assert f"events.data of '{kind}': {why}" in said
    assert said.startswith(f"theirs.jsonl, line {line_of(sample, 'events')}:")


@pytest.mark.slow
def test_an_event_of_a_newer_runner_is_read_like_any_other(target: Database, sample: Lines) -> None:
    row(sample, "events").update(type="of_a_newer_runner", data={"new": {}, "colour": ["red"]})
    for each in import_file(target, BytesIO(signed(sample)), "theirs.jsonl", ANN, NOW):
        look_everywhere(target, each.run_id)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda content: b"", "line 1: it is missing or cut off"),
        (lambda content: content[:-2], "cut off: the export is not whole"),
        (lambda content: content.replace(b"Done.", b"Gone."), "the file was changed or damaged"),
        (lambda content: content + b"{}\n", "comes after the end"),
        (
            lambda content: content.replace(b'"runner_export":2', b'"runner_export":3'),
            "Runner that wrote it",
        ),
        (
            lambda content: content.replace(b'"runner_export":2', b'"runner_export":1'),
            "line 1: it is of version '1', and this Runner knows 2: import it with the Runner",
        ),
        (lambda content: content.replace(b"{", b"\xff", 1), "line 1: it is not UTF-8"),
        (lambda content: b"[" * 200_000 + b"\n", "line 1: it is nested too deeply"),
        (lambda content: content.replace(b"\n", b"\n\n", 1), "line 2: it is not JSON"),
        (lambda content: content.replace(b'"turn":1', b'"turn":NaN', 1), "NaN is not JSON"),
        (lambda content: content.replace(b'"at":1', b'"at":1e999', 1), "too large a number"),
        (lambda content: content.replace(b'"turn":1', b'"turn":' + b"9" * 5000, 1), "not JSON"),
        (lambda content: content.replace(b'"table":"blocks"', b'"table":"users"', 1), "no table"),
        (
            lambda content: content.replace(b'"table":"blocks"', b'"table":[]', 1),
            "there is no table '[]'",
        ),
    ],
)
def test_a_damaged_file_is_refused_with_its_line_and_nothing_is_stored(
    target: Database, sample: Lines, damage: Callable[[bytes], bytes], why: str
) -> None:
    assert why in refusal(target, damage(signed(sample)))


def test_a_line_that_is_longer_than_any_is_not_read_whole(
    target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reads in ("core.text", "store.imports"):
        monkeypatch.setattr(f"runner.{reads}.LONGEST_LINE", 1_000)
    assert "longer than 1,000 bytes" in refusal(target, b" " * 5_000 + b"\n")


@pytest.mark.slow
def test_what_unpacks_to_more_than_it_says_is_not_unpacked(target: Database, sample: Lines) -> None:
    bomb = b64encode(zlib.compress(bytes(50_000_000))).decode()
    row(sample, "tool_outputs").update(compressed=bomb, size=10)
    assert "does not hold the 10 bytes" in refusal(target, signed(sample))


def test_a_row_that_is_there_twice_or_not_in_its_place_is_refused(
    target: Database, sample: Lines
) -> None:
    at = line_of(sample, "blocks") - 1
    twice = [*sample[:at], sample[at], *sample[at:]]
    assert "is there twice, or is not in its place" in refusal(target, signed(twice))
    swapped = [*sample[:at], sample[at + 1], sample[at], *sample[at + 2 :]]
    assert "is there twice, or is not in its place" in refusal(target, signed(swapped))
    run = line_of(sample, "runs") - 1
    assert "its row comes first" in refusal(target, signed([sample[0], *sample[run:]]))


def rows_of(lines: Lines, table: str) -> Lines:
    return [line for line in lines if line.get("table") == table]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: lines[:1], "there is no row in it"),
        (lambda lines: [lines[0], *lines[2:]], "the first row is not the job's"),
        (
            lambda lines: [*lines, rows_of(lines, "job_events")[0]],
            "job_events does not belong here",
        ),
        (lambda lines: [*lines, rows_of(lines, "runs")[0]], "is in the file twice"),
        (
            lambda lines: [line for line in lines if line.get("table") != "run_items"],
            "the run has no row in run_items",
        ),
    ],
)
def test_a_file_without_a_row_that_it_needs_or_with_one_too_many_is_refused(
    target: Database, sample: Lines, change: Callable[[Lines], Lines], why: str
) -> None:
    assert why in refusal(target, signed(change(sample)))


def test_an_ended_run_with_an_open_question_asks_nobody(target: Database, sample: Lines) -> None:
    row(sample, "runs", 1).update(state="stopped")
    import_file(target, BytesIO(signed(sample)), "theirs.jsonl", ANN, NOW)
    (asked,) = decisions.approvals_of_run(target, row(sample, "runs", 1)["id"])
    assert (asked["answer"], asked["answered_by"]) == ("cancelled", "ann")


BLOB = {"type": "blob", "sha256": "0" * 64, "media_type": "image/png"}
IMAGE = {"type": "image", "source": BLOB}


@pytest.mark.parametrize(
    "content",
    [[1], ["text"], [None, []], [IMAGE], [{**IMAGE, "content": []}]],
    ids=["a number", "a text", "a list", "an image", "an image with content"],
)
def test_an_imported_result_with_any_content_is_readable_and_names_no_bytes(
    target: Database, sample: Lines, content: list[Any]
) -> None:
    results = [
        line["row"]["content"]
        for line in sample
        if line.get("table") == "blocks" and line["row"]["type"] == "tool_result"
    ]
    results[0]["content"] = content
    for each in import_file(target, BytesIO(signed(sample)), "theirs.jsonl", ANN, NOW):
        look_everywhere(target, each.run_id)
        conversation = api_messages(target, each.run_id)
        sent = with_media(conversation, lambda digest: b"another job's")
        assert BLOB["sha256"] not in str(sent)
        for message in conversation:
            assert sum(media_tokens(block)[0] for block in message["content"]) == 0
    export(target, job_id=row(sample, "jobs")["id"], write=BytesIO().write)


def test_a_question_of_another_run_here_is_refused(target: Database, sample: Lines) -> None:
    import_file(target, BytesIO(signed(sample)), "theirs.jsonl", ANN, NOW)
    known = row(sample, "approvals")["id"]
    again = renamed(sample)
    row(again, "approvals").update(id=known)
    with pytest.raises(UsageError, match=f"{known} is a question of another run here"):
        import_file(target, BytesIO(signed(again)), "theirs.jsonl", ANN, NOW)
    assert (count(target, jobs), count(target, runs)) == (1, 2)


class Changing(BytesIO):
    """A file that someone writes to between the first look and the second."""

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset > 0:
            view = self.getbuffer()
            at = bytes(view).find(b"Mend b")
            if at >= 0:
                view[at : at + 4] = b"Rend"
            view.release()
        return super().seek(offset, whence)


def test_a_file_that_changes_while_it_is_imported_leaves_no_half_run(
    target: Database, sample: Lines
) -> None:
    with pytest.raises(UsageError, match="the file changed while it was imported"):
        import_file(target, Changing(signed(sample)), "theirs.jsonl", ANN, NOW)
    query = select(runs.c.item_key)
    keys = target.read(lambda connection: connection.execute(query).scalars().all())
    assert keys == ["a"]


def test_an_import_that_was_cut_off_goes_on_where_it_stopped(
    target: Database, sample: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("runner.store.imports.cancel_locked", die)
        with pytest.raises(KeyboardInterrupt):
            import_file(target, BytesIO(signed(sample)), "theirs.jsonl", ANN, NOW)
    assert (count(target, jobs), count(target, runs)) == (1, 1)
    found = import_file(target, BytesIO(signed(sample)), "theirs.jsonl", ANN, NOW)
    assert [each.what for each in found] == ["there", "imported"]


@st.composite
def changes(draw: st.DrawFn) -> Callable[[Lines], None]:
    """Something that someone may have done to a file."""
    place = draw(st.integers(1, 10_000))
    way = draw(st.sampled_from(("drop", "again", "swap", "lose", "set", "set", "set", "deep")))
    value, choice = draw(values | st.integers(0, 40)), draw(st.integers(0, 100))

    def change(lines: Lines) -> None:
        at = 1 + place % (len(lines) - 1)
        if way == "drop":
            del lines[at]
        elif way == "again":
            lines.insert(at, lines[at])
        elif way == "swap":
            lines[at - 1], lines[at] = lines[at], lines[at - 1]
        else:
            within = lines[at].get("row")
            while within and way == "deep":
                inner = [each for each in within.values() if isinstance(each, dict) and each]
                if not inner:
                    break
                within = inner[choice % len(inner)]
            if isinstance(within, dict) and within:
                name = sorted(within)[choice % len(within)]
                if way == "lose":
                    del within[name]
                else:
                    within[name] = value

    return change


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changed=st.lists(changes(), min_size=1, max_size=3))
def test_whatever_is_changed_in_a_file_it_is_refused_whole_or_can_be_read_like_any_other(
    target: Database, sample: Lines, changed: list[Callable[[Lines], None]]
) -> None:
    before = (count(target, jobs), count(target, runs))
    lines = renamed(sample)
    for change in changed:
        change(lines)
    try:
        found = import_file(target, BytesIO(signed(lines)), "theirs.jsonl", ANN, NOW)
    except UsageError:
        assert (count(target, jobs), count(target, runs)) == before
        return
    for each in found:
        look_everywhere(target, each.run_id)
    again = BytesIO()
    export(target, job_id=found[0].job_id, write=again.write) if found else None
