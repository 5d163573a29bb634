"""What becomes of calls that a crash cut off: run again, told to be unknown, or asked about; and of
calls that submit a result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.conversation import ModelReply, Tool, ToolResult, Usage
from runner.core.entries import CallsDecided, ModelReplied, OutcomeAsked, ToolFinished, ToolsStarted
from runner.core.mcp import McpServer
from runner.core.run import Ended, Waiting
from runner.core.spec import Asking
from runner.core.steps import CallModel, Done, LocateCalls, RunTools
from runner.core.tool_calls import OUTCOME_UNKNOWN, changes_files, left_by, runs_again, undo_needed
from runner.core.workspace import Workspace, result_tool
from runner.permissions import Answer, Rule, ToolContext, digest_of
from tests.core.sendable import faults
from tests.core.story import BASH, DEPLOY, GREP, READ, RULES, Story, changed, started, uses

EDIT = Tool("Edit", "Change a file.", {"type": "object"})
NOTE = Tool("note", "Keep a note.", {"type": "object"}, source="notes:keep@/folder")
RESULT = result_tool({"type": "object"})
TOOLS = (READ, GREP, EDIT, BASH, DEPLOY, NOTE, RESULT)
EXTERNAL = (Rule("ask", "Bash(git push *)"),)
PARKED = Done(Waiting("approval"))


def a_story(mode="git", on_unknown="tell", external=EXTERNAL, **spec):
    workspace = Workspace("/repo", mode, external=external, on_unknown=on_unknown)
    story = Story(**{"tools": TOOLS, "workspace": workspace, **spec})
    story.state = changed(story.state, tree="tree 1")
    return story


def bash(command, call_id="t0"):
    return uses("Bash", call_id, {"command": command})


def calls(*what):
    """Calls: a tool's name, or a command of Bash."""
    names = {tool.name for tool in TOOLS}
    return [
        uses(text, f"t{index}") if text in names else bash(text, f"t{index}")
        for index, text in enumerate(what)
    ]


def groups(story):
    return [entry.indexes for entry in story.entries if isinstance(entry, ToolsStarted)]


def results(story):
    return {e.index: e.result for e in story.entries if isinstance(e, ToolFinished)}


def run_groups(*what, **spec):
    story = a_story(**spec)
    story.reply("tool_use", *calls(*what))
    story.finish_all()
    assert not faults(story.state.messages)
    return groups(story)


def die(story, *, located=True):
    """The worker dies; another attempt takes the run up and looks where the calls in doubt lead."""
    effect = story.claim(calls=tuple(replace(c, tool_context=None) for c in story.state.calls))
    while located and isinstance(effect, LocateCalls):
        effect = locate(story)
    return effect


def locate(story):
    found = tuple(replace(call, tool_context=ToolContext("/w")) for call in story.state.calls)
    story.state = replace(story.state, calls=found)
    return story.go_on()


def answer(story, index, effect, reason="", **more):
    """A person answers; the run is taken up again."""
    call = story.state.calls[index]
    given = Answer(effect, digest_of(call.input), "ann", reason, **more)
    answered = replace(call, answer=given, tool_context=None)
    effect = story.claim(calls=tuple(answered if c is call else c for c in story.state.calls))
    return locate(story) if isinstance(effect, LocateCalls) else effect


# --- run again, or unknown ---


@pytest.mark.parametrize("tool", ["Bash", "Edit"])
def test_call_in_a_recorded_workspace_runs_again_and_has_one_clean_result(tool):
    story = a_story()
    story.reply("tool_use", *calls(tool))
    assert started(die(story)) == [0]
    assert isinstance(story.finish(0, "ran"), CallModel)
    assert results(story)[0].content == "ran"
    assert groups(story) == [(0,), (0,)]


@pytest.mark.parametrize("command", ["git push", "make && git push origin x"])
def test_external_call_is_never_run_again_by_itself(command):
    story = a_story()
    story.reply("tool_use", *calls(command))
    assert isinstance(die(story), CallModel)
    assert results(story)[0].outcome == "unknown"
    assert "check before doing it again" in results(story)[0].content
    assert groups(story) == [(0,)]


def test_call_that_stays_in_a_shared_workspace_is_not_run_again():
    story = a_story(mode="shared")
    story.reply("tool_use", *calls("make"))
    assert isinstance(die(story), CallModel)
    assert results(story)[0].outcome == "unknown"


def test_edit_of_a_file_that_no_tree_holds_is_unknown():
    story = a_story()
    story.reply("tool_use", *calls("Edit"))
    assert isinstance(story.claim(unrecorded={0: "built/a"}), CallModel)
    assert results(story)[0].outcome == "unknown"
    assert "It may have changed built/a, which is not recorded" in results(story)[0].content


def test_command_beside_what_no_tree_holds_is_unknown_and_nothing_is_put_back():
    story = a_story()
    story.reply("tool_use", *calls("make"))
    cut = changed(story.state, attempt=2, unrecorded={0: "vendor"})
    assert left_by(cut, "Bash") == cut.calls
    assert not undo_needed(cut)
    assert isinstance(story.claim(unrecorded={0: "vendor"}), CallModel)
    assert results(story)[0].outcome == "unknown"


def test_files_beside_what_no_tree_holds_are_not_said_to_be_put_back():
    story = a_story(on_unknown="ask")
    story.reply("tool_use", *calls("git push"))
    story.state = changed(story.state, unrecorded={0: "vendor"})
    assert die(story) == PARKED
    assert "its changes to vendor are not recorded" in story.state.calls[0].decision.reason
    answer(story, 0, "denied")
    assert "vendor" in results(story)[0].content
    assert "as they were" not in results(story)[0].content


def test_tree_after_an_unknown_call_is_the_one_that_was_found():
    story = a_story()
    story.reply("tool_use", *calls("git push", "Deploy"))
    story.state = changed(story.state, tree="tree 2")
    die(story)
    trees = {e.index: e.snapshot for e in story.entries if isinstance(e, ToolFinished)}
    assert trees == {0: "tree 2", 1: None}


# --- units ---


def test_external_calls_run_alone_and_the_others_together():
    what = ["Read", "make", "Edit", "git push", "git push -f", "make", "Read"]
    assert run_groups(*what, parallel_tools="all") == [(0, 1, 2), (3,), (4,), (5, 6)]


def test_all_runs_together_where_nothing_is_external():
    assert run_groups("Read", "make", "git push", parallel_tools="all", external=()) == [(0, 1, 2)]


def test_unit_that_was_cut_off_runs_again_as_a_whole():
    story = a_story(parallel_tools="all")
    story.reply("tool_use", *calls("Read", "make", "Edit", "git push"))
    assert started(die(story)) == [0, 1, 2]
    assert results(story) == {}


def test_calls_that_may_write_in_a_recorded_workspace_change_its_tree():
    story = a_story(parallel_tools="all")
    reads, writes = "Read", "make"
    story.reply("tool_use", *calls(reads, writes))
    read, write = story.state.calls
    assert changes_files(story.state, [read, write])
    assert not changes_files(story.state, [read])
    shared = a_story(mode="shared").state
    assert not changes_files(shared, [read, write])


# --- asked about ---


def asked_story(*what, **spec):
    """A story whose calls were cut off and are asked about, and what is next."""
    story = a_story(on_unknown="ask", **spec)
    story.reply("tool_use", *calls(*what))
    return story, die(story)


def test_person_is_asked_about_a_call_of_unknown_outcome():
    story, effect = asked_story("git push")
    assert effect == PARKED
    (call,) = story.state.calls
    assert (call.asked_again, call.started_by, call.answer) == (True, 1, None)
    assert call.decision.effect == "ask"
    assert call.decision.reason == OUTCOME_UNKNOWN
    assert results(story) == {}


def test_it_is_located_before_the_question():
    story = a_story(on_unknown="ask")
    story.reply("tool_use", *calls("git push"))
    effect = die(story, located=False)
    assert isinstance(effect, LocateCalls)
    assert not any(isinstance(entry, OutcomeAsked) for entry in story.entries)


def test_call_that_runs_again_by_itself_is_not_asked_about():
    _, effect = asked_story("make")
    assert started(effect) == [0]


def test_question_is_asked_once_and_waits_as_long_as_it_takes():
    story, _ = asked_story("git push")
    assert die(story) == PARKED
    assert len([e for e in story.entries if isinstance(e, OutcomeAsked)]) == 1


def test_approved_call_runs_again_with_its_result():
    story, _ = asked_story("git push")
    assert started(answer(story, 0, "approved")) == [0]
    assert story.state.calls[0].started_by == 3
    assert isinstance(story.finish(0, "pushed"), CallModel)
    assert results(story)[0].content == "pushed"


def test_call_that_is_cut_off_once_more_is_asked_about_once_more():
    story, _ = asked_story("git push")
    answer(story, 0, "approved")
    assert die(story) == PARKED
    assert story.state.calls[0].answer is None
    assert len([e for e in story.entries if isinstance(e, OutcomeAsked)]) == 2
    assert groups(story) == [(0,), (0,)]


def test_denial_leaves_the_outcome_unknown_in_the_words_of_the_person():
    story, _ = asked_story("git push")
    assert isinstance(answer(story, 0, "denied", "it went through"), CallModel)
    result = results(story)[0]
    assert result.outcome == "unknown"
    assert result.content.endswith(
        "The person who was asked does not want it run again: it went through."
    )
    assert "The files of the workspace are as they were before it." in result.content
    assert groups(story) == [(0,)]


def test_files_of_a_shared_workspace_are_not_said_to_be_put_back():
    story, _ = asked_story("make", mode="shared")
    answer(story, 0, "denied")
    assert "files" not in results(story)[0].content


def test_outcome_stays_unknown_when_nobody_answers_in_time():
    story, _ = asked_story("git push", asking=Asking(timeout=60.0))
    assert isinstance(answer(story, 0, "expired"), CallModel)
    assert results(story)[0].outcome == "unknown"
    assert "nobody answered in time" in results(story)[0].content


def test_run_stops_when_nobody_answers_in_time_and_the_job_says_so():
    asking = Asking(timeout=60.0, on_timeout="stop")
    story, _ = asked_story("git push", asking=asking, mode="copy")
    effect = answer(story, 0, "expired")
    assert isinstance(effect, Done)
    assert isinstance(effect.outcome, Ended)
    assert effect.outcome.reason == "approval_timeout"


def test_model_is_told_what_a_person_had_changed_of_a_call_of_unknown_outcome():
    story, _ = asked_story("git push")
    answer(story, 0, "denied", input={"command": "git push --dry-run"})
    assert results(story)[0].content.startswith("The person who approved this call changed")


def test_rule_that_denies_by_now_holds_for_what_a_person_lets_run_again():
    story, _ = asked_story("git push")
    policy = replace(story.state.policy, rules=(*RULES, Rule("deny", "Bash(git push *)")))
    story.state = replace(story.state, policy=policy)
    assert isinstance(answer(story, 0, "approved"), CallModel)
    assert results(story)[0].outcome == "unknown"
    assert "denied by the rule deny 'Bash(git push *)'" in results(story)[0].content
    assert groups(story) == [(0,)]


def test_calls_behind_the_question_wait_and_those_before_it_do_not():
    story = a_story(on_unknown="ask", parallel_tools="all")
    story.reply("tool_use", *calls("make", "note", "Edit"))
    assert groups(story) == [(0, 1, 2)]
    assert started(die(story)) == [0]
    assert story.finish(0) == PARKED
    assert started(answer(story, 1, "approved")) == [1, 2]


def test_asking_does_not_outlive_the_end_of_the_run():
    story, _ = asked_story("git push")
    cut = tuple(replace(call, interrupted=True) for call in story.state.calls)
    assert isinstance(story.claim(calls=cut), CallModel)
    assert results(story)[0].outcome == "interrupted"


# --- submitting a result ---


def test_result_is_accepted_without_a_rule_and_without_running():
    story = a_story(rules=())
    story.reply("tool_use", uses(RESULT.name, "t0", {"ok": True}))
    assert results(story) == {0: ToolResult("The result is accepted.")}
    assert not groups(story)
    assert not any(isinstance(entry, CallsDecided) for entry in story.entries)
    assert story.state.ending.submitted


def test_result_is_accepted_though_a_rule_denies_everything():
    story = a_story(rules=(Rule("deny", "*"),))
    story.reply("tool_use", uses(RESULT.name, "t0", {"ok": True}))
    assert not results(story)[0].is_error


def test_result_that_does_not_fit_the_schema_is_an_error_for_the_model():
    story = a_story()
    story.go_on()
    block = uses(RESULT.name, "t0", {"ok": 1})
    reply = ModelReply((block,), "tool_use", Usage(1, output_tokens=1), "a-model")
    effect = story.go_on(ModelReplied(reply))
    assert isinstance(effect, LocateCalls)
    assert results(story) == {}
    tool_context = ToolContext(problem="'ok' is not a boolean")
    story.state = replace(
        story.state, calls=tuple(replace(c, tool_context=tool_context) for c in story.state.calls)
    )
    assert isinstance(story.go_on(), CallModel)
    assert results(story)[0] == ToolResult("'ok' is not a boolean", "invalid_input")
    assert not story.state.ending.submitted


def test_calls_beside_a_submitted_result_still_run():
    story = a_story()
    effect = story.reply("tool_use", uses(RESULT.name, "t0", {}), bash("make", "t1"))
    assert isinstance(effect, RunTools)
    assert started(effect) == [1]


def test_first_of_two_submitted_results_stands():
    story = a_story()
    story.reply("tool_use", uses(RESULT.name, "t0", {"n": 1}), uses(RESULT.name, "t1", {"n": 2}))
    found = results(story)
    assert [found[0].outcome, found[1].outcome] == ["succeeded", "failed"]
    assert "that one stands" in found[1].content


def test_a_call_of_an_mcp_server_is_external_without_any_rule_unless_it_only_reads() -> None:
    server = McpServer("shop", "shop-mcp")
    buy = Tool("mcp__shop__buy", "Buy.", {"type": "object"}, source=server.source("buy"))
    look = replace(buy, name="mcp__shop__look", read_only=True, source=server.source("look"))
    rules = (Rule("allow", "mcp__shop"),)
    for mode in ("git", "shared", None):
        workspace = Workspace("/repo", mode) if mode else None
        story = Story(tools=(buy, look), workspace=workspace, rules=rules, mcp=(server,))
        story.state = changed(story.state, tree="tree 1")
        story.reply("tool_use", uses(buy.name, "t0", {}), uses(look.name, "t1", {}))
        bought, looked = story.state.calls
        assert not runs_again(story.state, bought)
        assert runs_again(story.state, looked)
