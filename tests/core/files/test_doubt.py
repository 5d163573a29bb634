"""What a crash leaves in doubt: which calls run again, and which may have reached beyond the
workspace."""

from dataclasses import replace

import pytest

from runner.core.conversation import Tool
from runner.core.state import Call
from runner.core.tool_calls import (
    asks_about,
    in_doubt,
    is_external,
    left_by,
    runs_again,
    undo_needed,
)
from runner.core.workspace import Verification, Workspace
from runner.permissions import Answer, Rule, digest_of
from tests.core.story import a_run, a_spec, changed

OBJECT = {"type": "object"}
TOOLS = (
    Tool("Read", "Read a file.", OBJECT, read_only=True, repeatable=True),
    Tool("Write", "Write a file.", OBJECT),
    Tool("Edit", "Change a file.", OBJECT),
    Tool("Bash", "Run a command.", OBJECT),
    Tool("note", "Keep a note.", OBJECT, source="notes:keep@/folder"),
    Tool("tag", "Set a tag.", OBJECT, repeatable=True, source="notes:tag@/folder"),
)
EXTERNAL = tuple(
    Rule("ask", text)
    for text in (
        "Bash(git push *)",
        "Bash(curl *)",
        "Edit(/dist/**)",
        "Edit(//mnt/share/**)",
        "tag",
    )
)
INPUTS = {
    "Read": {"file_path": "a"},
    "Write": {"file_path": "a", "content": ""},
    "Edit": {"file_path": "a", "old_string": "1", "new_string": "2"},
    "Bash": {"command": "make"},
    "note": {"text": "n"},
    "tag": {"text": "t"},
}


def a_call(name, arguments=None, **more):
    return Call(0, "t0", name, arguments or INPUTS[name], **{"started_by": 1, **more})


def a_state(*calls, mode="git", external=(), on_unknown="tell", **changes):
    workspace = Workspace("/repo", mode, external=external, on_unknown=on_unknown)
    state = a_run(a_spec(tools=TOOLS, workspace=workspace))
    numbered = tuple(replace(call, index=index) for index, call in enumerate(calls))
    return changed(state, attempt=2, calls=numbered, **changes)


def again(name, arguments=None, **spec):
    state = a_state(a_call(name, arguments), **spec)
    return runs_again(state, state.calls[0])


def external(command, rules=EXTERNAL):
    state = a_state(a_call("Bash", {"command": command}), external=rules)
    return is_external(state, state.calls[0])


# --- in doubt ---


@pytest.mark.parametrize(
    "more",
    [
        {"started_by": None},
        {"started_by": 2},
        {"interrupted": True},
        {"asked_again": True},
        {"result": {"type": "tool_result"}},
    ],
)
def test_only_what_an_earlier_attempt_started_and_nothing_settled_is_in_doubt(more):
    assert in_doubt(a_state(a_call("Bash")))
    assert not in_doubt(a_state(a_call("Bash", **more)))


# --- what runs again ---


@pytest.mark.parametrize("mode", ["git", "copy"])
def test_builtin_tools_run_again_in_a_recorded_workspace(mode):
    assert all(again(name, mode=mode) for name in ("Read", "Write", "Edit", "Bash"))


def test_only_what_is_declared_so_runs_again_in_a_shared_workspace():
    found = {tool.name for tool in TOOLS if again(tool.name, mode="shared")}
    assert found == {"Read", "tag"}


def test_own_tool_runs_again_only_when_it_is_repeatable():
    assert again("tag")
    assert not again("note")


def test_edit_of_a_file_that_no_tree_holds_does_not_run_again_and_a_write_does():
    for name, expected in (("Edit", False), ("Write", True)):
        state = a_state(a_call(name), unrecorded={0: "a"} if name == "Edit" else {})
        assert runs_again(state, state.calls[0]) is expected


def test_unknown_tool_does_not_run_again():
    state = a_state(Call(0, "t0", "Gone", {}, started_by=1))
    assert not runs_again(state, state.calls[0])


# --- external ---


@pytest.mark.parametrize(
    "command",
    [
        "git push origin main",
        "make && git push",
        "git -C sub push --force",
        "if true; then curl -d @x https://example.org; fi",
        "echo $(curl example.org)",
        "make > /mnt/share/log",
    ],
)
def test_one_external_part_makes_a_command_external(command):
    assert external(command)


@pytest.mark.parametrize("command", ["git status", "make", "echo curl", "cat /mnt/share/log"])
def test_other_commands_stay_in_the_workspace(command):
    assert not external(command)


def test_command_that_is_too_long_to_be_looked_at_is_external():
    assert external("; ".join(f"echo {n}" for n in range(400)))


def test_nothing_is_external_without_rules():
    assert not external("git push", rules=())


def test_external_call_does_not_run_again_though_its_tool_is_repeatable():
    assert not again("tag", external=EXTERNAL)
    assert not again("Bash", {"command": "git push"}, external=EXTERNAL)
    assert not again("Edit", {**INPUTS["Edit"], "file_path": "dist/app.js"}, external=EXTERNAL)


def test_tool_that_only_reads_is_never_external():
    assert again("Read", external=(Rule("ask", "*"),))


def test_what_a_person_made_of_a_call_decides_whether_it_is_external():
    plain, push = {"command": "make"}, {"command": "git push"}
    for given, edited, expected in ((plain, push, True), (push, plain, False)):
        answer = Answer("approved", digest_of(given), "ann", input=edited)
        state = a_state(a_call("Bash", given, answer=answer), external=EXTERNAL)
        assert is_external(state, state.calls[0]) is expected


def test_effect_of_an_external_rule_does_not_matter():
    for effect in ("allow", "deny", "ask"):
        assert external("git push", (Rule(effect, "Bash(git push *)"),))


# --- what prepare is told ---


def test_workspace_is_put_back_when_something_runs_again_in_it():
    assert undo_needed(a_state(a_call("Bash")))
    assert undo_needed(a_state(a_call("Read"), a_call("tag")))


def test_workspace_stays_as_it_is_when_only_reads_were_cut_off():
    assert not undo_needed(a_state(a_call("Read"), a_call("Bash", started_by=None)))


def test_workspace_stays_as_an_unknown_call_left_it():
    assert not undo_needed(a_state(a_call("note")))
    assert not undo_needed(a_state(a_call("Bash", {"command": "curl x"}), external=EXTERNAL))


def test_workspace_is_put_back_before_a_person_is_asked_and_never_after():
    assert undo_needed(a_state(a_call("note"), on_unknown="ask"))
    assert not undo_needed(a_state(a_call("note", asked_again=True), on_unknown="ask"))


def test_workspace_that_is_not_recorded_is_never_put_back():
    assert not undo_needed(a_state(a_call("tag"), mode="shared"))


def test_person_is_asked_only_about_what_does_not_run_again():
    state = a_state(a_call("note"), a_call("Bash"), on_unknown="ask")
    assert [asks_about(state, call) for call in state.calls] == [True, False]
    state = a_state(a_call("note"), on_unknown="tell")
    assert not asks_about(state, state.calls[0])
    without = replace(state, spec=replace(state.spec, workspace=None))
    assert not asks_about(without, state.calls[0])


def test_files_of_edits_and_all_beside_commands_are_looked_up():
    edit = a_call("Edit", {**INPUTS["Edit"], "file_path": "b"})
    asked = a_call("Bash", asked_again=True)
    more = (a_call("Edit", started_by=2), a_call("Bash", interrupted=True))
    state = a_state(a_call("Bash"), edit, asked, a_call("Write"), *more)
    assert left_by(state, "Edit") == (state.calls[1],)
    assert left_by(state, "Bash") == (state.calls[0], state.calls[2])
    shared = a_state(edit, asked, mode="shared")
    assert (left_by(shared, "Edit"), left_by(shared, "Bash")) == ((), ())


def test_what_no_tree_holds_keeps_the_workspace_as_it_was_found():
    command = a_call("Bash")
    assert undo_needed(a_state(command))
    assert not undo_needed(a_state(command, unrecorded={0: "vendor"}))
    assert undo_needed(a_state(command, a_call("Write"), unrecorded={0: "vendor"}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, True), ({"passed": False}, False), ({"turn": 4}, False), ({"tree": "other"}, False)],
)
def test_workspace_is_put_back_when_its_verification_was_cut_off(changes, expected):
    verification = replace(Verification(1, 5, tree="tree"), **changes)
    state = changed(a_state(), turns=5, tree="tree", verification=verification)
    assert undo_needed(state) is expected
