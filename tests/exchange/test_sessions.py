"""Sessions of Claude Code's, read as runs."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.app.session_files import session_files, whole_lines
from runner.exchange import sessions
from runner.exchange.session_lines import UnreadableLineError
from runner.exchange.sessions import SessionRun
from tests.exchange.samples import CWD, SESSION, Line, Session, raw_of, text, use, usual


def runs_of(lines: list[Line]) -> tuple[SessionRun, ...]:
    return sessions.Session({"": raw_of(lines)}).runs({}, {})


def read(session: Session) -> SessionRun:
    """The one run of a session."""
    (run,) = runs_of(session.lines)
    return run


def told(run: SessionRun) -> Any:
    """All that is stored of it."""
    return run.id, run.state, run.rows, run.events, run.item


def said(run: SessionRun) -> list[tuple[int, int, str, str]]:
    """Message, position, role and type of each block, in order."""
    names = ("message", "position", "role", "type")
    return sorted(tuple(row[name] for name in names) for row in run.rows["blocks"])


def test_a_session_is_a_run_of_its_project() -> None:
    run = read(usual())
    assert run.project == CWD
    assert run.item["claude_code"]["session_id"] == SESSION
    assert run.item["claude_code"]["title"] == "Mending the cart"
    assert (run.state, run.reason, run.turns, run.message_count) == ("succeeded", "end_turn", 2, 4)
    assert run.model == "claude-opus-4-5-20251101"
    assert run.ended_at > run.started_at > 1.7e9


def test_lines_of_one_reply_are_one_message_and_results_follow_in_the_order_asked() -> None:
    assert said(read(usual())) == [
        (0, 0, "user", "text"),
        (1, 0, "assistant", "thinking"),
        (1, 1, "assistant", "tool_use"),
        (1, 2, "assistant", "tool_use"),
        (2, 0, "user", "tool_result"),
        (2, 1, "user", "tool_result"),
        (3, 0, "assistant", "text"),
    ]


def test_calls_have_their_outcome_time_and_whole_output() -> None:
    run = read(usual())
    first, second = run.rows["tool_calls"]
    assert (first["name"], first["outcome"], first["duration"]) == ("Read", "succeeded", 2.0)
    assert (second["name"], second["outcome"], second["duration"]) == ("Bash", "failed", 2.0)
    (output,) = run.rows["tool_outputs"]
    assert (output["message"], output["position"]) == (1, 1)
    assert zlib.decompress(output["compressed"]) == b"x" * 50 + b"\nmake: *** no rule"


def test_usage_that_each_line_of_a_reply_repeats_is_counted_once() -> None:
    run = read(usual())
    first, second = run.rows["model_calls"]
    assert (first["input_tokens"], first["output_tokens"], first["turn"]) == (5, 40, 1)
    assert (first["cache_creation_tokens"], first["cache_read_tokens"]) == (1000, 200)
    assert (first["request_id"], first["stop_reason"]) == ("req_msg_1", "tool_use")
    assert (second["stop_reason"], second["charged_tokens"]) == ("end_turn", 16)
    assert run.usage.total == 1245 + 16


def test_calls_that_were_streamed_between_results_stay_in_their_reply() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", use("toolu_1", "Read"))
    session.result("toolu_1", "one")
    session.reply("msg_1", use("toolu_2", "Read"))
    session.result("toolu_2", "two")
    run = read(session)
    assert [row["position"] for row in run.rows["tool_calls"]] == [0, 1]
    assert [place[:2] for place in said(run)] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert run.turns == 1


def test_words_that_follow_results_stand_behind_them() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", use("toolu_1", "Bash", command="sleep 9"))
    session.user([text("[Request interrupted by user for tool use]")])
    session.user("Try something else.")
    session.result("toolu_1", "late")
    assert [place[:2] for place in said(read(session))] == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2)]


def test_a_call_without_a_result_was_interrupted_and_the_session_did_not_end() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", use("toolu_1", "Bash", command="sleep 9"))
    run = read(session)
    (call,) = run.rows["tool_calls"]
    assert (call["interrupted"], call.get("outcome")) == (True, None)
    assert (run.state, run.reason) == ("cancelled", "cancelled")


@pytest.mark.parametrize(
    ("content", "fields", "outcome"),
    [
        (
            "Permission to use Bash has been denied.",
            {"toolDenialKind": "permission-rule"},
            "denied",
        ),
        ("no", {"toolDenialKind": "user-rejected"}, "denied"),
        ("no", {"toolDenialKind": "cancelled"}, "interrupted"),
        ("The user doesn't want to proceed with this tool use. STOP", {}, "denied"),
        ("[Request interrupted by user for tool use]", {}, "interrupted"),
        ("Exit code 1", {}, "failed"),
        ([text("Exit code 1")], {}, "failed"),
        (None, {}, "failed"),
    ],
)
def test_what_claude_code_did_not_let_run_was_denied(
    content: Any, fields: dict[str, Any], outcome: str
) -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", use("toolu_1", "Bash", command="rm"))
    session.result("toolu_1", content, is_error=True, **fields)
    run = read(session)
    (call,) = run.rows["tool_calls"]
    assert call["outcome"] == outcome
    is_started = outcome != "denied"
    assert (call["started_at"] is not None, call["duration"] > 0) == (is_started, is_started)
    assert is_started == any(each.event.type == "tool_started" for each in run.events)
    assert (call["denial"] is not None) == (outcome == "denied")


def test_agents_are_runs_of_their_own() -> None:
    session = usual()
    agent = Session(isSidechain=True, agentId="a9f4657")
    agent.user("Look for carts.")
    agent.reply("msg_9", text("There are two."), stop="end_turn", output_tokens=3)
    main, other = runs_of([*session.lines, *agent.lines])
    assert main.id == read(usual()).id != other.id
    assert other.item["claude_code"]["agent_id"] == "a9f4657"
    assert other.usage.output_tokens == 3


def test_agents_of_older_versions_are_told_apart_by_where_they_began() -> None:
    lines = usual().lines
    for number in range(2):
        agent = Session(isSidechain=True)
        agent.user(f"Task {number}.")
        agent.reply(f"msg_{number}", text("Done."), stop="end_turn")
        for line in agent.lines:
            line["uuid"] = f"{number}-{line['uuid']}"
            line["parentUuid"] = line["parentUuid"] and f"{number}-{line['parentUuid']}"
        lines += agent.lines
    runs = runs_of(lines)
    assert [run.turns for run in runs] == [2, 1, 1]
    assert len({run.id for run in runs}) == 3


def test_a_compaction_stands_in_for_what_was_said_before_it() -> None:
    session = usual()
    session.add(
        "system",
        subtype="compact_boundary",
        content="Conversation compacted",
        compactMetadata={"trigger": "auto", "preTokens": 155025},
    )
    session.user("This session is being continued …", isCompactSummary=True)
    session.user("Go on.")
    session.reply("msg_3", text("On it."), stop="end_turn")
    run = read(session)
    (compaction,) = run.rows["compactions"]
    assert (compaction["kind"], compaction["last_message"]) == ("summary", 3)
    assert (compaction["turn"], compaction["first_sent_in"]) == (3, 3)
    assert (compaction["tokens_before"], compaction["tokens_after"]) == (155025, 0)
    assert compaction["text"] == "This session is being continued …"
    assert [place[:3] for place in said(run)][-2:] == [(4, 0, "user"), (5, 0, "assistant")]


def test_a_summary_that_a_session_begins_with_is_said_by_the_user() -> None:
    session = Session()
    session.add("system", subtype="compact_boundary", compactMetadata={})
    session.user("This session is being continued …", isCompactSummary=True)
    session.reply("msg_1", text("On it."), stop="end_turn")
    run = read(session)
    assert said(run) == [(0, 0, "user", "text"), (1, 0, "assistant", "text")]
    assert run.rows["compactions"] == []


def test_words_of_claude_codes_own_are_no_model_call() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", text("API Error: overloaded"))
    session.lines[-1]["message"]["model"] = "<synthetic>"
    run = read(session)
    assert (run.model, run.turns, run.rows["model_calls"]) == ("unknown", 1, [])


def test_lines_that_are_there_twice_count_once() -> None:
    session = usual()
    doubled = [line for line in session.lines for _ in range(2)]
    (run,) = runs_of(doubled)
    assert told(run) == told(read(usual()))


def test_what_is_missing_is_done_without() -> None:
    (run,) = runs_of(
        [
            {"type": "user", "message": {"role": "user", "content": "hi"}},
            {"type": "assistant", "message": {"content": [text("ho")]}},
            {"type": "user", "message": None},
            {"type": "progress", "data": {}},
            {"type": "user", "timestamp": "yesterday", "message": {"content": ["plain", text("")]}},
        ]
    )
    assert said(run) == [
        (0, 0, "user", "text"),
        (1, 0, "assistant", "text"),
        (2, 0, "user", "text"),
    ]
    assert (run.project, run.model, run.started_at) == ("unknown", "unknown", 0.0)


def test_a_last_line_that_was_being_written_is_left_out() -> None:
    content = usual().file().getvalue() + b'{"type":"assistant","uui'
    lines, is_torn = whole_lines(BytesIO(content))
    assert (len(lines), is_torn) == (len(usual().lines), True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{broken\n", "it is not JSON"),
        (b"\xff\n", "it is not UTF-8"),
        (b"[1]\n", "it is no object"),
        (b'{"type":"user","message":"hi"}\n', "its message is no object"),
        (b'{"type":"user","message":{"content":7}}\n', "neither text nor a list of blocks"),
        (b'{"type":"user","message":{"content":[7]}}\n', "has no type"),
        (b'{"type":"user","message":{"content":[{"type":"text"}]}}\n', "has no valid text"),
        (
            b'{"type":"user","message":{"content":[{"type":"tool_result"}]}}\n',
            "has no valid tool_use_id",
        ),
        (b'{"type":"assistant","message":{"content":[{"type":"tool_use"}]}}\n', "has no valid id"),
        (
            b'{"type":"attachment","attachment":{"type":"queued_command","prompt":7}}\n',
            "neither text nor a list of blocks",
        ),
    ],
)
def test_a_line_that_cannot_be_read_is_refused(line: bytes, why: str) -> None:
    lines, _ = whole_lines(BytesIO(usual().file().getvalue() + line + b"{}\n"))
    with pytest.raises(UnreadableLineError, match=re.escape(why)) as raised:
        sessions.Session({"": lines})
    assert raised.value.number == len(usual().lines) + 1


def test_a_session_in_which_nothing_was_said_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was said"):
        runs_of([{"type": "summary", "summary": "Empty", "leafUuid": "x"}])


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def everything() -> list[Line]:
    """A line of each kind, and each attachment, that is read."""
    session = usual()
    session.user("Again.", forkedFrom={"sessionId": "s"}, origin={"kind": "human"})
    for kind in (
        "queued_command",
        "file",
        "hook_blocking_error",
        "prompt_snapshot",
        "hook_success",
    ):
        told = {"prompt": "And now?", "content": {"file": {"content": "x"}}, "toolUseID": "toolu_1"}
        told |= {"systemPrompt": ["You are brief."], "blockingError": {"blockingError": "no"}}
        rendered = [{"content": [text("As shown.")]}]
        session.add("attachment", attachment={"type": kind, **told}, rendered=rendered)
    for operation in ("enqueue", "enqueue", "remove", "dequeue", "popAll"):
        session.add("queue-operation", operation=operation, content="Wait.")
    said = {"type": "user", "uuid": "a", "message": {"role": "user", "content": "Part 1."}}
    data = {
        "type": "agent_progress",
        "agentId": "a1",
        "message": said,
        "normalizedMessages": [said],
    }
    session.add("progress", data=data, parentToolUseID="toolu_1")
    kept = {"preTokens": 9, "preservedMessages": {"uuids": ["u"]}, "preservedSegment": {}}
    session.add("system", subtype="compact_boundary", compactMetadata=kept)
    session.user("Summed up.", isCompactSummary=True)
    session.add("system", subtype="api_error", error={"cause": {"code": "x"}}, retryAttempt=1)
    session.add("ai-title", aiTitle="The cart")
    usage = {"claude-opus-4-5-20251101": {"inputTokens": 99}}
    denials = [{"tool_use_id": "toolu_1"}]
    session.add("result", modelUsage=usage, permission_denials=denials, total_cost_usd=1.5)
    return session.lines


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a value that have something in them, the outer ones first."""
    if isinstance(value, dict) and value:
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from objects_in(inner)


@pytest.mark.slow
@settings(deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 99), _anything), max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_whatever_a_session_holds_it_is_read_or_refused(
    places: list[tuple[int, int, Any]], order: Any
) -> None:
    lines = json.loads(json.dumps(everything()))
    for at, name, value in places:
        found = list(objects_in(lines))
        within = found[at % len(found)]
        within[sorted(within)[name % len(within)]] = value
    if places:
        order.shuffle(lines)
    try:
        runs = runs_of(lines)
    except ValueError:
        return
    for run in runs:
        keys = [(row["message"], row["position"]) for row in run.rows["blocks"]]
        assert len(keys) == len(set(keys))
        assert run.started_at >= 0


def test_folders_and_unreadable_files_beside_a_session_are_skipped(tmp_path: Path) -> None:
    session, deep = tmp_path / f"{SESSION}.jsonl", b"[" * 100_000
    lines = raw_of(usual().lines)
    session.write_bytes(b"\n".join(lines))
    (tmp_path / "agent-a.jsonl").write_bytes(deep)
    agents = tmp_path / SESSION / "subagents"
    agents.mkdir(parents=True)
    (agents / "agent-b.jsonl").write_bytes(b"\n".join(lines))
    (agents / "agent-b.meta.json").write_bytes(deep)
    (agents / "agent-c.jsonl").mkdir()
    (tmp_path / "agent-d.jsonl").mkdir()
    files = session_files(session, lines)
    assert sorted(files) == ["", "agent-b.jsonl", "agent-b.meta.json"]
    assert sessions.Session(files).id == SESSION
