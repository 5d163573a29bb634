"""Hooks as people have them: scripts that read the transcript, the mode and results as Claude Code
writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from runner.app.session_files import whole_lines
from runner.core.commands import Reply
from runner.core.hook_decisions import payload
from runner.core.hooks import Hook, HookRun
from runner.core.run import Ended, Waiting
from runner.core.sandbox import Sandbox
from runner.exchange.sessions import Session
from runner.permissions import Rule
from runner.permissions.decisions import Policy
from runner.permissions.modes import rules_of
from runner.store.tables import tool_calls
from runner.tools.registry import resolve_tools
from tests.core.story import a_run
from tests.engine.hooks.bench import Bench, bash, telling
from tests.engine.test_asking import reply
from tests.tools.test_sandbox import HERE

SUCCEEDED = Ended("succeeded", "end_turn")
# Notes the last line of the transcript as the hook finds it, and the number of lines.
LOOKS = """
path=$(grep -o '"transcript_path": "[^"]*"' | cut -d '"' -f 4)
tail -n 1 "$path" >> last.jsonl; wc -l < "$path" >> count; echo "$path" > path"""


def use(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "input": given}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def transcript(bench: Bench) -> Path:
    return Path(bench.told[-1]["transcript_path"])


@pytest.mark.slow
def test_a_hook_finds_the_conversation_so_far_in_the_transcript(bench: Bench) -> None:
    hooks = [
        Hook(event, command=LOOKS) for event in ("RunStart", "PreToolUse", "PostToolUse", "TurnEnd")
    ]
    lease = bench.run_with([*hooks, telling("RunEnd")], bash("echo hi"))
    assert bench.work(lease) == SUCCEEDED
    asked, called, ran, ended = lines_of(bench.folder / "last.jsonl")
    assert asked["type"] == asked["message"]["role"] == "user"
    assert isinstance(asked["message"]["content"], str)
    assert called["type"] == "assistant"
    (block,) = called["message"]["content"]
    assert (block["name"], block["input"]) == ("Bash", {"command": "echo hi"})
    assert called["message"]["usage"]["output_tokens"] >= 0
    (result,) = ran["message"]["content"]
    assert (result["type"], result["tool_use_id"]) == ("tool_result", block["id"])
    assert ran["toolUseResult"]["stdout"] == "hi"
    assert ended == ran
    assert (bench.folder / "count").read_text().split() == ["1", "2", "3", "3"]

    path = transcript(bench)
    assert path.name == f"{lease.run_id}.jsonl"
    assert bench.folder not in path.parents
    lines = lines_of(path)
    assert {line["sessionId"] for line in lines} == {lease.run_id} == {bench.told[-1]["session_id"]}
    parents = [line["parentUuid"] for line in lines]
    assert parents == [None, *(line["uuid"] for line in lines[:-1])]
    assert lines[-1]["message"]["content"] == [{"type": "text", "text": "Done."}]
    with path.open("rb") as file:
        (session,) = Session({"": whole_lines(file)[0]}).runs({}, {})
    assert (session.turns, session.state, len(session.rows["tool_calls"])) == (2, "succeeded", 1)


@pytest.mark.slow
def test_a_transcript_is_appended_to_and_written_anew_where_a_command_changed_it(
    bench: Bench,
) -> None:
    """A command may be able to write where it lies: a guard must not be told lies by it."""
    tampers = [
        "true",
        "echo '{}' >> $p",
        "rm $p; ln -s $PWD/victim $p",
        "rm $p; mkfifo $p",
        "rm -r $(dirname $p)",
        "true",
    ]
    (bench.folder / "victim").write_text("precious")
    (bench.folder / "look.py").write_text("""
import json, os, sys
path = json.load(sys.stdin)["transcript_path"]
lines = [json.loads(line) for line in open(path)]
print(path, file=open("path", "w"))
print(os.stat(path).st_ino, len(lines), lines[-1]["type"], file=open("seen", "a"))
""")
    calls = [bash(f"p=$(cat path); {each}") for each in tampers]
    lease = bench.run_with([Hook("PreToolUse", command="python3 look.py")], *calls)
    assert bench.work(lease) == SUCCEEDED
    assert all(not result.startswith("Permission") for result in bench.model.results)
    seen = [line.split() for line in (bench.folder / "seen").read_text().splitlines()]
    assert [(count, kind) for _, count, kind in seen] == [
        (str(2 * number), "assistant") for number in range(1, len(tampers) + 1)
    ]
    assert seen[0][0] == seen[1][0] != seen[2][0]
    assert (bench.folder / "victim").read_text() == "precious"


@pytest.mark.slow
def test_a_transcript_is_whole_wherever_a_run_goes_on(bench: Bench) -> None:
    rules = [Rule("ask", "Bash(touch *)"), Rule("allow", "Bash")]
    lease = bench.run_with(
        [telling("PreToolUse"), telling("RunEnd")], bash("echo hi"), bash("touch made"), rules=rules
    )
    assert bench.work(lease) == Waiting("approval")
    before = lines_of(transcript(bench))
    transcript(bench).unlink()  # another host has none
    bench.answer(Reply("approved", "ann"))
    assert bench.work() == SUCCEEDED
    assert lines_of(transcript(bench))[: len(before)] == before
    assert len(lines_of(transcript(bench))) == 6


@pytest.mark.slow
@pytest.mark.skipif(
    HERE.kind != "bubblewrap", reason=f"this host has no bubblewrap: {HERE.missing}"
)
def test_a_transcript_is_read_in_the_sandbox_and_written_by_nothing_in_it(bench: Bench) -> None:
    commands = [bash("echo '{}' >> $(cat path); ls $(cat path)"), bash("true")]
    hooks = [Hook("PreToolUse", command=LOOKS)]
    lease = bench.run_with(hooks, *commands, sandbox=Sandbox(hooks=True))
    assert bench.work(lease) == SUCCEEDED
    assert (bench.folder / "count").read_text().split() == ["2", "4"]
    tried, _ = bench.model.results
    assert "Read-only file system" in tried
    assert tried.endswith(f"/{lease.run_id}.jsonl\n")


@pytest.mark.slow
def test_a_job_without_hooks_has_no_transcript(bench: Bench) -> None:
    lease = bench.run_with([], bash("echo hi"))
    assert bench.work(lease) == SUCCEEDED
    assert not list(bench.folder.parent.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("rules", "default", "mode"),
    [
        ((), "deny", "dontAsk"),
        ((), "ask", "default"),
        (rules_of("read_only", ["Read", "Bash"]), "deny", "plan"),
        (rules_of("workspace_write", ["Read", "Edit"]), "deny", "acceptEdits"),
        (rules_of("full_access", ["Read", "Bash"]), "deny", "bypassPermissions"),
    ],
)
def test_the_permission_mode_is_the_nearest_of_claude_code(
    rules: tuple[Rule, ...], default: Any, mode: str
) -> None:
    run = HookRun(1, 0, "RunStart", None, started_by=1)
    policy = Policy((Rule("deny", "Bash(rm *)"), *rules), default)
    assert payload(replace(a_run(), policy=policy), run)["permission_mode"] == mode


@pytest.mark.slow
def test_the_response_of_a_builtin_tool_has_claude_codes_shape(bench: Bench) -> None:
    """The shapes of sessions that Claude Code wrote."""
    calls = [
        use("Bash", command="printf 'a\\nb\\n'; false"),
        use("Bash", command="true"),
        use("Write", file_path="new.py", content="one\ntwo\n"),
        use("Write", file_path="new.py", content="one\n2\nthree\n"),
        use("Edit", file_path="new.py", old_string="2", new_string="two"),
        use("Read", file_path="new.py", offset=2),
        use("Glob", pattern="*.py"),
        use("Grep", pattern="t", glob="*.py"),
        use("Grep", pattern="t", glob="*.py", output_mode="content"),
        use("Grep", pattern="t", glob="*.py", output_mode="count"),
        use("Edit", file_path="new.py", old_string="gone", new_string="x"),
    ]
    tools = resolve_tools(("Bash", "Read", "Write", "Edit", "Glob", "Grep"), bench.folder)[0]
    lease = bench.run_with([telling("PostToolUse")], reply(*calls), tools=tools)
    assert bench.work(lease) == SUCCEEDED
    printed, silent, made, replaced, edited, read, globbed, files, lines, counts, failed = (
        told["tool_response"] for told in bench.told
    )
    of_bash = {"stderr": "", "interrupted": False, "isImage": False, "noOutputExpected": False}
    assert printed == of_bash | {
        "stdout": "a\nb",
        "content": "a\nb\nExit code 1",
        "is_error": True,
        "outcome": "failed",
    }
    fine = {"is_error": False, "outcome": "succeeded"}
    assert silent == of_bash | fine | {"stdout": "", "content": "(no output)"}
    path = str(bench.folder / "new.py")
    of_write = {"filePath": path, "originalFile": None, "userModified": False} | fine
    assert made == of_write | {"type": "create", "content": "one\ntwo\n", "structuredPatch": []}
    hunk = {"oldStart": 1, "oldLines": 2, "newStart": 1, "newLines": 3}
    assert replaced == of_write | {
        "type": "update",
        "content": "one\n2\nthree\n",
        "structuredPatch": [hunk | {"lines": [" one", "-two", "+2", "+three"]}],
    }
    hunk = {"oldStart": 1, "oldLines": 3, "newStart": 1, "newLines": 3}
    del edited["content"]
    assert edited == of_write | {
        "oldString": "2",
        "newString": "two",
        "replaceAll": False,
        "structuredPatch": [hunk | {"lines": [" one", "-2", "+two", " three"]}],
    }
    assert read["type"] == "text"
    assert read["file"] == {
        "filePath": path,
        "content": "two\nthree",
        "numLines": 2,
        "startLine": 2,
        "totalLines": 3,
    }
    assert (globbed["filenames"], globbed["numFiles"]) == (["new.py"], 1)
    assert (files["mode"], files["filenames"]) == ("files_with_matches", ["new.py"])
    assert lines["content"] == "new.py:2:two\nnew.py:3:three"
    assert (lines["mode"], lines["numLines"]) == ("content", 2)
    assert (counts["mode"], counts["numMatches"]) == ("count", 2)
    assert failed.keys() == {"content", "is_error", "outcome"}
    kept = {
        each.get("structuredPatch", [{}])[0].get("newLines")
        for line in lines_of(transcript(bench))
        if isinstance(each := line.get("toolUseResult"), dict) and each.get("structuredPatch")
    }
    assert kept == {3}


@pytest.mark.slow
def test_hooks_are_told_no_lines_of_a_file_that_the_run_may_not_read(bench: Bench) -> None:
    """The run can read its transcript."""
    (bench.folder / "secret").write_text("one\nthe key\nthree\n")
    rules = [Rule("allow", "*"), Rule("deny", "Read(secret)")]
    calls = [
        use("Edit", file_path="secret", old_string="one", new_string="1"),
        use("Write", file_path="secret", content="other\n"),
    ]
    lease = bench.run_with([telling("PostToolUse")], reply(*calls), rules=rules)
    assert bench.work(lease) == SUCCEEDED
    assert (bench.folder / "secret").read_text() == "other\n"
    assert [told["tool_response"]["structuredPatch"] for told in bench.told] == [[], []]
    assert "the key" not in transcript(bench).read_text()


def test_a_job_without_hooks_keeps_no_details_of_calls(bench: Bench) -> None:
    lease = bench.run_with([], reply(use("Write", file_path="a", content="a\n")))
    assert bench.work(lease) == SUCCEEDED
    query = select(tool_calls.c.details)
    assert bench.database.read(lambda c: c.execute(query).scalars().all()) == [None]


@pytest.mark.slow
def test_hooks_are_told_absolute_paths_and_may_give_them_back(bench: Bench) -> None:
    """Claude Code's file tools take no others: a guard looks for ``/tests/`` in them."""
    echo = """python3 -c '
import json, sys
told = json.load(sys.stdin)["tool_input"]
print(json.dumps({"hookSpecificOutput": {"updatedInput": told}}))
'"""
    calls = [
        use("Write", file_path="tests/a.py", content="a\n"),
        use("Write", file_path=str(bench.folder / "b.py"), content="b\n"),
        use("Bash", command="cat tests/a.py"),
    ]
    hooks = [telling("PreToolUse"), Hook("PreToolUse", command=echo), telling("PostToolUse")]
    assert bench.work(bench.run_with(hooks, reply(*calls))) == SUCCEEDED
    told = [told["tool_input"].get("file_path") for told in bench.told]
    paths = [str(bench.folder / "tests/a.py"), str(bench.folder / "b.py"), None]
    assert told == paths * 2
    made, again, shown = bench.model.results
    assert (made.partition(" (")[0], shown) == ("Made tests/a.py", "a\n")
    assert "changed its input" not in made + again + shown
