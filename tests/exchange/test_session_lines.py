"""What lines of Claude Code's sessions say beside the conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.core.text import as_ascii
from runner.exchange import sessions
from runner.exchange.sessions import Files, SessionRun
from runner.store.import_checks import check_row
from tests.exchange.samples import SESSION, Line, Session, raw_of, text, use, usual
from tests.exchange.test_sessions import read, runs_of


def words_of(run: SessionRun) -> list[tuple[str, str, str | None]]:
    """The role, the text and the speaker of each block that is a text."""
    rows = sorted(run.rows["blocks"], key=lambda row: (row["message"], row["position"]))
    texts = [row for row in rows if row["type"] == "text"]
    return [(row["role"], row["content"]["text"], row["spoken_by"]) for row in texts]


def places_of(run: SessionRun) -> list[tuple[int, str]]:
    return sorted((row["message"], row["role"]) for row in run.rows["blocks"])


def notes_of(run: SessionRun) -> list[tuple[str, str]]:
    events = [each.event for each in run.events if each.event.type == "session_note"]
    return [(event.data["kind"], event.data["text"]) for event in events]


def working() -> Session:
    """A session in the middle of a turn."""
    session = Session()
    session.user("Mend the cart.", origin={"kind": "human"}, promptSource="typed")
    session.reply("msg_1", use("toolu_1", "Bash", command="make"))
    session.result("toolu_1", "ok")
    return session


def queue(session: Session, operation: str, **fields: Any) -> None:
    session.lines.append(
        {"type": "queue-operation", "operation": operation, "sessionId": SESSION, **fields}
    )


def test_what_a_person_typed_during_a_turn_joins_it_where_it_was_delivered() -> None:
    session = working()
    queue(session, "enqueue", content="And the tests.")
    queue(session, "remove", content="And the tests.")
    attachment = {"type": "queued_command", "prompt": "And the tests.", "commandMode": "prompt"}
    session.add("attachment", attachment=attachment)
    session.reply("msg_2", text("Both."), stop="end_turn")
    assert words_of(read(session)) == [
        ("user", "Mend the cart.", "person"),
        ("user", "And the tests.", "person"),
        ("assistant", "Both.", None),
    ]
    rows = read(session).rows["blocks"]
    assert [(row["message"], row["position"]) for row in rows if row["role"] == "user"] == [
        (0, 0),
        (2, 0),
        (2, 1),
    ]


def test_what_only_the_queue_tells_joins_too_and_what_never_came_is_noted() -> None:
    session = working()
    for words in ("First.", "Second.", "Third."):
        queue(session, "enqueue", content=words)
    queue(session, "remove")
    queue(session, "dequeue")
    session.user("Second.")
    run = read(session)
    assert [words for _, words, _ in words_of(run)] == ["Mend the cart.", "First.", "Second."]
    assert notes_of(run) == [("never delivered", "Third.")]
    assert run.rows["sessions"][0]["notes"] == "never delivered: Third."


def test_a_typed_text_that_leaves_the_queue_is_not_confused_with_a_later_one() -> None:
    session = working()
    queue(session, "enqueue", content="And the test.")
    queue(session, "popAll", content="And the test.")
    queue(session, "enqueue", content="/config")
    queue(session, "dequeue")
    queue(session, "enqueue", content="And the tests.")
    queue(session, "remove")
    session.reply("msg_2", text("Both."), stop="end_turn")
    run = read(session)
    assert words_of(run)[1] == ("user", "And the tests.", "person")
    assert notes_of(run) == [("never delivered", "And the test."), ("command", "/config")]


def test_files_that_a_person_named_and_words_of_hooks_join_the_conversation() -> None:
    session = working()
    content = {"type": "text", "file": {"filePath": "/a/cart.py", "content": "def add(): ..."}}
    session.add(
        "attachment", attachment={"type": "file", "filename": "cart.py", "content": content}
    )
    blocking = {"blockingError": "[guard]: run the tests first", "command": "guard"}
    hook = {"type": "hook_blocking_error", "hookName": "Stop", "blockingError": blocking}
    session.add("attachment", attachment=hook)
    session.add("attachment", attachment={"type": "total_tokens_reminder", "used": 9})
    shown = {"type": "hook_system_message", "hookName": "Stop", "content": "Mind the gap."}
    session.add("attachment", attachment=shown)
    run = read(session)
    assert [(words, by) for _, words, by in words_of(run)][1:] == [
        ("cart.py\ndef add(): ...", "machine"),
        ("Stop\n[guard]: run the tests first", "machine"),
    ]
    assert notes_of(run) == [("hook_system_message", "Stop⏎Mind the gap.")]


def test_what_the_model_was_shown_of_a_file_comes_first() -> None:
    session = working()
    rendered = [{"content": "<system-reminder>as it was shown</system-reminder>"}]
    file = {"type": "file", "filename": "cart.py", "content": "as it is"}
    session.add("attachment", attachment=file, rendered=rendered)
    assert words_of(read(session))[-1][1] == "<system-reminder>as it was shown</system-reminder>"


def test_local_commands_links_modes_and_errors_of_the_api_are_noted() -> None:
    session = working()
    session.add("system", subtype="local_command", content="<command-name>/model</command-name>")
    session.lines.append({"type": "pr-link", "prUrl": "https://example.org/pull/7"})
    for mode in ("default", "plan", "plan"):
        session.lines.append({"type": "permission-mode", "permissionMode": mode})
    session.add("system", subtype="api_error", error={"message": "overloaded"})
    assert notes_of(read(session)) == [
        ("local_command", "<command-name>/model</command-name>"),
        ("pr-link", "https://example.org/pull/7"),
        ("permission-mode", "default"),
        ("permission-mode", "plan"),
        ("api_error", "overloaded"),
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"error": {"message": "529 {…}", "formatted": "529 Overloaded"}}, "529 Overloaded"),
        ({"error": {"status": 529, "headers": {}}}, "status 529"),
        ({"error": {"cause": {"code": "ConnectionRefused"}}}, "ConnectionRefused"),
        ({"error": {}}, "an unknown error"),
        ({"error": {}, "retryAttempt": 3, "maxRetries": 10}, "an unknown error (try 3 of 10)"),
    ],
)
def test_api_errors_of_all_versions_are_noted(fields: Line, said: str) -> None:
    session = working()
    session.add("system", subtype="api_error", **fields)
    ((kind, noted),) = notes_of(read(session))
    assert (kind, noted.endswith(said)) == ("api_error", True)


def test_a_session_has_the_system_prompt_of_its_last_snapshot() -> None:
    session = working()
    for number in range(2):
        prompt = [f"You are {number}.", {"type": "text", "text": "Be brief."}]
        snapshot = {"type": "prompt_snapshot", "systemPrompt": prompt, "tools": []}
        session.add("attachment", attachment=snapshot)
    assert read(session).rows["sessions"][0]["system"] == "You are 1.\nBe brief."


@pytest.mark.parametrize(
    ("fields", "words", "by"),
    [
        ({"origin": {"kind": "human"}}, "Go on.", "person"),
        ({"origin": {"kind": "peer"}}, "Go on.", "peer"),
        ({"origin": {"kind": "task-notification"}}, "Done.", "machine"),
        ({"promptSource": "queued"}, "Go on.", "person"),
        ({"promptSource": "system"}, "Go on.", "machine"),
        ({"isMeta": True}, "Continue from where you left off.", "machine"),
        ({}, "<task-notification>\n<task-id>a</task-id>", "machine"),
        ({}, "[Request interrupted by user]", "machine"),
        ({}, "Unknown slash command: theme", "machine"),
        ({}, '<teammate-message teammate_id="x">Look.', "peer"),
        ({}, "Go on.", "person"),
    ],
)
def test_who_spoke_is_told(fields: dict[str, Any], words: str, by: str) -> None:
    session = working()
    session.user(words, **fields)
    assert words_of(read(session))[-1][2] == by


_UNREACHED = "auto mode: its classifier could not be reached"
_ASKS_NOBODY = "the permission mode: it asks nobody"
_UNGRANTED = "Claude requested permissions to use Bash, but you haven't granted it yet."


@pytest.mark.parametrize(
    ("shown", "fields", "denier"),
    [
        ("Blocked.", {"toolDenialKind": "automode-blocked"}, "the classifier of auto mode"),
        ("Later.", {"toolDenialKind": "automode-unavailable"}, _UNREACHED),
        ("No.", {"toolDenialKind": "sandbox-denied"}, "the sandbox"),
        ("No.", {"toolDenialKind": "of-a-later-version"}, "of-a-later-version"),
        (_UNGRANTED, {}, "the permission mode: nobody had granted it"),
        ("Permission to use Bash with command rm has been denied.", {}, "a permission rule"),
        ("Permission to use mcp__a-b has been auto-denied in dontAsk mode.", {}, _ASKS_NOBODY),
        ("PreToolUse:Bash hook error: [guard]: no", {}, "a hook"),
        ("Bash operation blocked by hook:\n- [guard]: no", {}, "a hook"),
        ("Error: The user doesn't want to proceed with this tool use.", {}, "the user"),
        ("cat: Permission to use it has been denied.", {}, None),
    ],
)  # fmt: skip
def test_a_denied_call_says_who_denied_it(
    shown: str, fields: dict[str, Any], denier: str | None
) -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", use("toolu_1", "Bash", command="rm"))
    session.result("toolu_1", shown, is_error=True, **fields)
    (call,) = read(session).rows["tool_calls"]
    if denier is None:
        assert (call["outcome"], call["denial"], call.get("decision")) == ("failed", None, None)
    else:
        assert (call["outcome"], call["decision"]) == ("denied", "deny")
        assert call["decision_reason"] == f"denied by {denier}"
        assert call["denial"] == f"by {denier}: {shown}".replace("\n", "⏎")


def test_words_of_a_denial_in_a_result_that_is_no_error_deny_nothing() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", use("toolu_1", "Bash", command="cat log"))
    session.result("toolu_1", _UNGRANTED)
    assert read(session).rows["tool_calls"][0]["outcome"] == "succeeded"


def test_a_call_whose_question_was_aborted_is_interrupted() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", use("toolu_1", "Bash", command="rm"))
    session.result("toolu_1", "Permission prompt was aborted.", is_error=True)
    assert read(session).rows["tool_calls"][0]["outcome"] == "interrupted"


def test_a_hook_that_blocked_a_call_is_named() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", use("toolu_1", "Bash", command="rm"))
    blocking = {"blockingError": "no", "command": "guard"}
    hook = {"type": "hook_blocking_error", "hookName": "PreToolUse:Bash", "blockingError": blocking}
    session.add("attachment", attachment=hook | {"toolUseID": "toolu_1"})
    session.result("toolu_1", "no", is_error=True)
    assert (
        read(session).rows["tool_calls"][0]["decision_reason"]
        == "denied by the hook PreToolUse:Bash"
    )


def test_a_session_that_ends_in_an_error_of_the_api_has_failed() -> None:
    session = working()
    session.reply("msg_2", text("API Error: overloaded"), stop="stop_sequence")
    session.lines[-1] |= {"isApiErrorMessage": True, "error": "rate_limit"}
    session.lines[-1]["message"]["model"] = "<synthetic>"
    run = read(session)
    assert (run.state, run.reason, run.detail) == ("failed", "api_error", "API Error: overloaded")
    assert run.model == "claude-opus-4-5-20251101"


@pytest.mark.parametrize(("ends", "state"), [(True, "succeeded"), (False, "cancelled")])
def test_a_session_that_ends_with_a_structured_result_has_succeeded(ends: bool, state: str) -> None:
    session = Session()
    session.user("List the faults.")
    session.reply("msg_1", use("toolu_1", "StructuredOutput", faults=[]), stop="tool_use")
    told = {"toolEndsTurn": True} if ends else {}
    session.result("toolu_1", "Structured output provided successfully", **told)
    assert read(session).state == state


def test_a_session_that_ends_by_exit_has_succeeded() -> None:
    session = usual()
    session.user("Caveat: The messages below were generated by the user.", isMeta=True)
    session.user("<command-name>/exit</command-name>\n<command-message>exit</command-message>")
    session.user("<local-command-stdout>Bye!</local-command-stdout>")
    assert (read(session).state, read(session).reason) == ("succeeded", "end_turn")
    session.user("Wait.")
    assert read(session).state == "cancelled"


def test_a_compaction_leaves_the_messages_that_were_preserved_and_no_count_that_was_not_said() -> (
    None
):
    session = usual()
    kept = [line["uuid"] for line in session.lines if line["type"] == "assistant"][-1]
    about = {"trigger": "auto", "preTokens": 900, "preservedMessages": {"uuids": [kept]}}
    session.add("system", subtype="compact_boundary", compactMetadata=about)
    session.user("This session is being continued …", isCompactSummary=True)
    session.user("Go on.")
    (row,) = read(session).rows["compactions"]
    assert (row["first_message"], row["last_message"], row["tokens_after"]) == (0, 2, 0)
    (event,) = [each.event for each in read(session).events if "compacted" in each.event.type]
    assert event.data == {"kind": "summary", "first": 0, "last": 2, "tokens_before": 900}


# --- Agents ---


def agent_lines(agent: str, words: str, **fields: Any) -> list[Line]:
    agent_session = Session(isSidechain=True, agentId=agent, **fields)
    agent_session.user(words)
    agent_session.reply(f"msg_{agent}", text("There are two."), stop="end_turn", output_tokens=3)
    for line in agent_session.lines:
        line["uuid"] = f"{agent}-{line['uuid']}"
    return agent_session.lines


def with_agents() -> Files:
    """A session whose two calls started an agent each, one of which started a third."""
    session = Session()
    session.user("Count the carts.")
    calls = [
        use(f"toolu_{n}", "Agent", prompt=f"Part {n}.", subagent_type="Explore") for n in (1, 2)
    ]
    session.reply("msg_1", *calls)
    for number in (1, 2):
        told = {"status": "completed", "agentId": f"a{number}"}
        session.result(f"toolu_{number}", "two", toolUseResult=told)
    session.reply("msg_2", text("Four."), stop="end_turn")
    return {
        "": session.raw(),
        **{
            f"agent-a{n}.jsonl": raw_of(agent_lines(f"a{n}", f"As told, part {n}."))
            for n in (1, 2, 3)
        },
        "agent-a3.meta.json": [b'{"agentType":"Plan","parentAgentId":"a2"}'],
    }


def test_agents_are_linked_to_the_calls_that_started_them() -> None:
    main, first, second, third = sessions.Session(with_agents()).runs({}, {})
    assert [run.id for run in (first, second)] == [f"{main.id}.1", f"{main.id}.2"]
    assert third.id == f"{second.id}.1"
    places = [
        (run.place["parent_message"], run.place["parent_position"]) for run in (first, second)
    ]
    assert places == [(1, 0), (1, 1)]
    assert (first.place["agent_type"], third.place["agent_type"]) == ("Explore", "Plan")
    assert (third.place["parent_run"], third.place["root_run"]) == (second.id, main.id)
    assert third.place["parent_message"] is None
    started = [e.event.data for e in main.events if e.event.type == "child_started"]
    assert [data["child"] for data in started] == [first.id, second.id]


def repeating(files: Files) -> list[bytes]:
    """The lines of a session that repeats those of its first agent, as versions up to 2.1.39 wrote it."""
    asked, *rest = (json.loads(line) for line in files["agent-a1.jsonl"])
    lines = list(files[""])
    call = next(n for n, line in enumerate(lines) if b'"toolu_1"' in line) + 1
    common = {"type": "progress", "sessionId": SESSION, "parentToolUseID": "toolu_1"}
    for number, said in enumerate((asked, *rest), 1):
        normalized = [asked, *rest][:number] if number > 1 else []
        data = {"type": "agent_progress", "agentId": "a1", "message": said}
        data["normalizedMessages"] = normalized
        line = {**common, "uuid": f"p{number}", "timestamp": said["timestamp"], "data": data}
        lines.insert(call + number - 1, json.dumps(line).encode())
    return lines


def test_an_agent_without_a_file_is_read_from_its_session() -> None:
    files = dict(with_agents())
    whole = {run.agent: run for run in sessions.Session(files).runs({}, {})}
    main = repeating(files)
    (both,) = (
        run for run in sessions.Session({**files, "": main}).runs({}, {}) if run.agent == "a1"
    )
    assert (both.rows, both.place) == (whole["a1"].rows, whole["a1"].place)
    del files["agent-a1.jsonl"]
    (repeated,) = (
        run for run in sessions.Session({**files, "": main}).runs({}, {}) if run.agent == "a1"
    )
    for name in ("blocks", "model_calls", "tool_calls"):
        assert repeated.rows[name] == whole["a1"].rows[name]
    assert repeated.place == whole["a1"].place


def test_an_agent_that_only_its_prompt_links_is_found_by_it() -> None:
    session = Session()
    session.user("Count the carts.")
    session.reply("msg_1", use("toolu_1", "Task", prompt="Look.", description="look"))
    session.result("toolu_1", "two")
    _, agent = runs_of([*session.lines, *agent_lines("a1", "Look.")])
    assert (agent.place["parent_message"], agent.place["parent_position"]) == (1, 0)


def test_agents_keep_their_ids_when_another_one_comes_before_them() -> None:
    files = with_agents()
    known = {None: "run_" + "0" * 26, "a2": "run_" + "0" * 26 + ".1"}
    found = {run.agent: run.id for run in sessions.Session(files).runs(known, {})}
    assert found["a2"] == known["a2"]
    assert found["a1"] == f"{known[None]}.2"


# --- What `claude -p --output-format stream-json` prints ---


def streamed() -> list[Line]:
    usage = {"input_tokens": 4, "output_tokens": 1}
    model = "claude-opus-4-5-20251101"
    said = {"session_id": SESSION, "parent_tool_use_id": None}
    inner = said | {"parent_tool_use_id": "toolu_2"}

    def reply(id_: str, *blocks: Line, **fields: Any) -> Line:
        message = {"id": id_, "role": "assistant", "model": model, "usage": usage}
        return {"type": "assistant", "message": message | {"content": blocks}, **fields}

    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}
    init = {"type": "system", "subtype": "init", "cwd": "/a", "claude_code_version": "2.1.9"}
    end = {"type": "result", "subtype": "success", "is_error": False, "duration_ms": 9_000}
    return [
        init | {"session_id": SESSION},
        reply("msg_1", use("toolu_1", "Bash", command="make"), uuid="u1", **said),
        {"type": "user", "message": {"role": "user", "content": [result]}, "uuid": "u2", **said},
        reply("msg_2", use("toolu_2", "Task", prompt="Look."), uuid="u3", **said),
        {"type": "user", "message": {"role": "user", "content": "Look."}, "uuid": "u4", **inner},
        reply("msg_3", text("Two."), uuid="u5", **inner),
        end
        | {
            "total_cost_usd": 0.25,
            "session_id": SESSION,
            "modelUsage": {model: {"inputTokens": 20, "outputTokens": 500}},
            "permission_denials": [{"tool_name": "Bash", "tool_use_id": "toolu_1"}],
        },
    ]


def test_printed_sessions_have_their_id_date_version_and_cost() -> None:
    main, agent = sessions.Session({"": raw_of(streamed())}, modified=1_000_009.0).runs({}, {})
    assert main.item["claude_code"]["session_id"] == SESSION
    assert (main.item["claude_code"]["version"], main.project) == ("2.1.9", "/a")
    assert (main.started_at, main.ended_at) == (1_000_000.0, 1_000_009.0)
    assert main.rows["sessions"][0]["stated_usd"] == 0.25
    assert (agent.place["parent_message"], agent.turns) == (2, 1)


def test_what_a_printed_session_states_beyond_its_replies_is_counted() -> None:
    main, agent = sessions.Session({"": raw_of(streamed())}).runs({}, {})
    whole = main.usage + agent.usage
    assert (whole.input_tokens, whole.output_tokens) == (20, 500)
    assert main.rows["model_calls"][-1]["purpose"] == "summary"


def test_tokens_of_a_model_with_a_longer_window_are_counted_once() -> None:
    lines = streamed()
    (model,) = lines[-1]["modelUsage"]
    stated = {f"{model}[1m]": {"inputTokens": 20}, model: {"outputTokens": 500}}
    lines[-1]["modelUsage"] = stated
    main, agent = runs_of(lines)
    whole = main.usage + agent.usage
    assert (whole.input_tokens, whole.output_tokens) == (20, 500)
    assert {row["model"] for row in main.rows["model_calls"]} == {model}


def test_blocks_of_a_type_that_nobody_knows_fit_into_an_export() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", {"type": "odd\x1b[1m\n"}, stop="end_turn")
    rows = read(session).rows["blocks"]
    assert rows[1]["type"] == "odd␛[1m⏎"
    for row in rows:
        check_row("blocks", row)


def test_the_tokens_of_a_reply_without_a_block_are_counted() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", use("toolu_1", "Bash", command="make"), input_tokens=10)
    session.result("toolu_1", "ok")
    message = {"id": "msg_2", "role": "assistant", "model": "claude-opus-4-5-20251101"}
    message |= {"content": [], "stop_reason": "end_turn", "usage": {"input_tokens": 315}}
    session.add("assistant", message=message)
    session.user("And now?")
    run = read(session)
    assert (run.usage.input_tokens, run.turns) == (325, 2)
    assert [call["turn"] for call in run.rows["model_calls"]] == [1, 2]
    assert places_of(run) == [(0, "user"), (1, "assistant"), (2, "user"), (3, "user")]


def test_a_call_that_only_the_last_word_says_was_denied_was_denied() -> None:
    main, _ = sessions.Session({"": raw_of(streamed())}).runs({}, {})
    assert [call.get("outcome") for call in main.rows["tool_calls"]] == ["denied", None]


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, ("succeeded", "end_turn")),
        ({"subtype": "error_max_turns", "is_error": True}, ("stopped", "max_turns")),
        ({"subtype": "error_during_execution", "is_error": True}, ("failed", "api_error")),
    ],
)
def test_a_printed_session_ended_as_it_says(fields: Line, end: tuple[str, str]) -> None:
    lines = streamed()
    lines[-1] |= fields
    run, _ = runs_of(lines)
    assert (run.state, run.reason) == end


def test_replies_that_state_too_few_tokens_are_counted() -> None:
    session = Session()
    session.user("Go on.")
    session.reply("msg_1", text("word " * 500), stop="end_turn", output_tokens=2)
    session.reply("msg_2", text("word " * 500), stop="end_turn", output_tokens=600)
    run = read(session)
    assert run.rows["sessions"][0]["under_reported"] == 1
    assert "1 of its replies" in next(run.warnings)


def test_lines_are_written_in_ascii_and_else_as_they_were() -> None:
    line = '{"a":1e-7,"b":"é \x7f 😀 \\u00e9","c":1.0}'
    assert as_ascii(line.encode()) == (
        b'{"a":1e-7,"b":"\\u00e9 \\u007f \\ud83d\\ude00 \\u00e9","c":1.0}\n'
    )
