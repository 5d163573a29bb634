"""PreToolUse hooks: they see what is about to run, and can refuse it, ask about it or change it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.core.commands import Reply
from runner.core.hooks import Hook
from runner.core.run import Ended, Waiting
from runner.errors import UsageError
from runner.permissions import Rule, digest_of
from runner.store.approvals import apply_new_rules
from tests.engine.hooks.bench import Bench, bash, decides, function, says, telling
from tests.engine.test_asking import reply, write
from tests.engine.test_attempt import row
from tests.store.asked import add_rules

SUCCEEDED = Ended("succeeded", "end_turn")


@pytest.mark.slow
def test_a_hook_is_told_of_the_call_as_claude_code_tells_it(bench: Bench) -> None:
    lease = bench.run_with([telling("PreToolUse")], bash("echo hi"))
    assert bench.work(lease) == SUCCEEDED
    (told,) = bench.told
    assert told["hook_event_name"] == "PreToolUse"
    assert told["session_id"] == told["run"] == told["root"] == lease.run_id
    assert Path(told["cwd"]).samefile(bench.folder)
    assert (told["tool_name"], told["tool_input"]) == ("Bash", {"command": "echo hi"})
    assert told["tool_use_id"]
    assert "tool_response" not in told
    assert (told["item"], told["turn"], told["depth"], told["parent"]) == ("one", 1, 0, None)
    assert bench.model.results == ["hi\n"]
    bench.check_requests()


@pytest.mark.slow
@pytest.mark.parametrize(
    "hook",
    [
        says("PreToolUse", decides("deny", "no echoes")),
        says("PreToolUse", {"decision": "block", "reason": "no echoes"}),
        telling("PreToolUse", "echo no echoes >&2; exit 2"),
    ],
    ids=["decision", "block", "exit 2"],
)
def test_a_call_that_a_hook_denies_does_not_run(bench: Bench, hook: Hook) -> None:
    later = telling("PreToolUse")
    lease = bench.run_with([hook, later], bash("touch made"))
    assert bench.work(lease) == SUCCEEDED
    assert not (bench.folder / "made").exists()
    (result,) = bench.model.results
    assert result.startswith("Permission denied: the PreToolUse hook `tee ")
    assert result.endswith("objects: no echoes.")
    assert len(bench.told) == 1  # the first denial ends it
    (decided,) = bench.happened("permission_decided")
    assert (decided["decision"], decided["rule"]) == ("deny", None)
    (ran,) = bench.rows()
    assert (ran.outcome, ran.decision, ran.reason) == ("succeeded", "deny", "no echoes")
    bench.check_requests()


@pytest.mark.slow
def test_a_hook_that_allows_loosens_nothing(bench: Bench) -> None:
    hook = says("PreToolUse", decides("allow"))
    rules = [Rule("allow", "Bash(echo *)"), Rule("ask", "Bash(touch *)")]
    calls = reply(*bash("rm -r x")["tools"], *bash("touch made")["tools"])
    lease = bench.run_with([hook], calls, rules=rules)
    assert bench.work(lease) == Waiting("approval")
    decisions = [event["decision"] for event in bench.happened("permission_decided")]
    assert decisions == ["deny", "ask"]
    # What the rules deny, no hook is asked about.
    assert [told["tool_input"] for told in bench.told] == [{"command": "touch made"}]


@pytest.mark.slow
def test_a_hook_that_asks_has_a_person_asked(bench: Bench) -> None:
    hook = says("PreToolUse", decides("ask", "it makes a file"))
    lease = bench.run_with([hook], bash("touch made"))
    assert bench.work(lease) == Waiting("approval")
    (asked,) = bench.asked()
    assert (asked.input, asked.by_hook) == ({"command": "touch made"}, True)
    (decided,) = bench.happened("permission_decided")
    assert decided["reason"].endswith("asks: it makes a file")
    bench.answer(Reply("approved", "ann"))
    assert bench.work() == SUCCEEDED
    assert (bench.folder / "made").exists()
    assert len(bench.told) == 1
    bench.check_requests()


NO_TOUCHING = telling("PreToolUse", "echo nothing is made >&2; exit 2", matcher=("Bash(touch *)",))


def edited(
    bench: Bench, *hooks: Hook, asked: str = "echo hi", command: str = "touch made"
) -> Ended:
    """What becomes of a run whose only call a person approves as another command."""
    lease = bench.run_with(hooks, bash(asked), rules=[Rule("ask", "Bash")])
    assert bench.work(lease) == Waiting("approval")
    bench.answer(Reply("approved", "ann", edited={"command": command}))
    outcome = bench.work()
    assert isinstance(outcome, Ended)
    bench.check_requests()
    return outcome


@pytest.mark.slow
def test_a_hook_denies_what_a_person_has_made_of_a_call(bench: Bench) -> None:
    looks = telling("PreToolUse")
    assert edited(bench, looks, NO_TOUCHING) == SUCCEEDED
    assert not (bench.folder / "made").exists()
    (result,) = bench.model.results
    assert result.startswith(
        "Permission denied as a person has edited it: the PreToolUse hook `tee "
    )
    assert result.endswith("objects: nothing is made.")
    # Who has looked at what the model gave looks at what a person gave as well.
    commands = [told["tool_input"]["command"] for told in bench.told]
    assert commands == ["echo hi", "touch made", "touch made"]
    assert [ran.decision for ran in bench.rows()] == [None, None, "deny"]


@pytest.mark.slow
def test_what_a_person_has_made_of_a_call_runs_if_no_hook_denies_it(bench: Bench) -> None:
    asks = says("PreToolUse", decides("ask", "it makes a file"))
    keeps = says("PreToolUse", decides("allow", updatedInput={"command": "touch made"}))
    assert edited(bench, asks, keeps) == SUCCEEDED  # a person has just said that it may
    assert (bench.folder / "made").exists()
    assert len(bench.told) == 4


@pytest.mark.slow
def test_a_hook_has_no_say_in_what_a_person_has_made_of_a_call(bench: Bench) -> None:
    changes = says("PreToolUse", decides("allow", updatedInput={"command": "touch other"}))
    assert edited(bench, changes) == SUCCEEDED
    assert not any((bench.folder / name).exists() for name in ("made", "other"))
    (result,) = bench.model.results
    assert "it would have another input run than the person who approved this call" in result


@pytest.mark.slow
def test_no_rule_answers_what_a_hook_asks(bench: Bench) -> None:
    hook = says("PreToolUse", decides("ask"))
    lease = bench.run_with([hook], bash("touch made"))
    bench.work(lease)
    add_rules(bench.database, row(bench.database, lease).job_id, Rule("allow", "Bash(touch *)"))
    assert not apply_new_rules(bench.database, bench.ports.clock.now()).queued
    (asked,) = bench.asked()
    with pytest.raises(UsageError, match="a hook asks about"):
        bench.answer(Reply("approved", "ann", remember="job"))
    with pytest.raises(UsageError, match="a hook asks about"):
        bench.answer(Reply("approved", "ann", remember="job", rule="Bash"))
    assert bench.asked() == [asked]
    bench.answer(Reply("denied", "ann", "not now"))
    assert bench.work() == SUCCEEDED
    assert bench.model.results == ["Permission denied by the person who was asked: not now."]


@pytest.mark.slow
def test_an_updated_input_is_what_runs_and_the_model_is_told(bench: Bench) -> None:
    change = decides("allow", updatedInput={"command": "echo changed"})
    later = telling("PreToolUse")
    lease = bench.run_with([says("PreToolUse", change), later], bash("echo first"))
    assert bench.work(lease) == SUCCEEDED
    (result,) = bench.model.results
    assert result.endswith("changed\n")
    assert '{"command": "echo changed"}' in result.splitlines()[0]
    assert [told["tool_input"]["command"] for told in bench.told] == ["echo first", "echo changed"]
    bench.check_requests()


@pytest.mark.slow
def test_an_updated_input_is_decided_on_by_the_rules_again(bench: Bench) -> None:
    change = {"hookSpecificOutput": {"updatedInput": {"command": "rm -r x"}}}
    rules = [Rule("allow", "Bash(echo *)"), Rule("deny", "Bash(rm *)")]
    lease = bench.run_with([says("PreToolUse", change)], bash("echo hi"), rules=rules)
    assert bench.work(lease) == SUCCEEDED
    (result,) = bench.model.results
    assert "denied by the rule deny 'Bash(rm *)'" in result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("updated", "sent"),
    [({"command": 7}, '{"command": 7}'), ("touch made", '"touch made"')],
    ids=["not the tool's", "no object"],
)
def test_the_operator_reads_an_unusable_updated_input_and_the_model_does_not(
    bench: Bench, updated: Any, sent: str
) -> None:
    """The model sent another input, and would try to mend what it did not write."""
    answer = json.dumps({"hookSpecificOutput": {"updatedInput": updated}})
    (bench.folder / "answer").write_text(answer)
    hook = Hook("PreToolUse", command="cat answer")
    lease = bench.run_with([hook], bash("touch made"))
    assert bench.work(lease) == SUCCEEDED
    assert not (bench.folder / "made").exists()
    (ran,) = bench.rows()
    assert ran.outcome == "failed"
    assert ran.reason.startswith("updatedInput is not ")
    assert ran.reason.endswith(f"; it sent {sent}")
    assert bench.happened("hook_finished")[0]["reason"] == ran.reason
    assert bench.model.results == [
        "Permission denied: the PreToolUse hook `cat answer` gave no answer: "
        "its updatedInput cannot be used."
    ]
    bench.check_requests()


@pytest.mark.slow
def test_a_call_goes_on_as_it_was_if_a_hook_that_may_fail_sends_an_unusable_input(
    bench: Bench,
) -> None:
    change = {"hookSpecificOutput": {"updatedInput": {"command": 7}}}
    hook = says("PreToolUse", change, on_failure="continue")
    lease = bench.run_with([hook], bash("echo hi"))
    assert bench.work(lease) == SUCCEEDED
    assert bench.model.results == ["hi\n"]


@pytest.mark.slow
def test_where_an_updated_path_leads_is_looked_up_before_it_is_decided(bench: Bench) -> None:
    (bench.folder / "secret").mkdir()
    (bench.folder / "link").symlink_to("secret")
    change = {"hookSpecificOutput": {"updatedInput": {"file_path": "link/x", "content": "no"}}}
    rules = [Rule("allow", "Write"), Rule("deny", "Edit(secret/**)")]
    lease = bench.run_with([says("PreToolUse", change)], reply(write("fine")), rules=rules)
    assert bench.work(lease) == SUCCEEDED
    assert not (bench.folder / "secret/x").exists()
    assert not (bench.folder / "fine").exists()
    (result,) = bench.model.results
    assert "secret" in result


@pytest.mark.slow
def test_an_updated_command_gets_nowhere_by_a_path_of_its_own_process(bench: Bench) -> None:
    (bench.folder / "secret").mkdir()
    command = "echo no > /proc/self/cwd/secret/x"
    change = {"hookSpecificOutput": {"updatedInput": {"command": command}}}
    rules = [Rule("allow", "Bash"), Rule("allow", "Edit"), Rule("deny", "Edit(secret/**)")]
    lease = bench.run_with([says("PreToolUse", change)], bash("echo hi"), rules=rules)
    assert bench.work(lease) == SUCCEEDED
    assert not (bench.folder / "secret/x").exists()
    (result,) = bench.model.results
    assert "may be about that file" in result


@pytest.mark.slow
def test_an_approval_is_bound_to_the_input_that_runs(bench: Bench) -> None:
    updated = {"command": "touch changed"}
    hook = says("PreToolUse", decides("ask", updatedInput=updated))
    lease = bench.run_with([hook], bash("touch made"))
    assert bench.work(lease) == Waiting("approval")
    (asked,) = bench.asked()
    assert (asked.input, asked.input_digest) == (updated, digest_of(updated))
    assert asked.summary == "touch changed"
    bench.answer(Reply("approved", "ann"))
    assert bench.work() == SUCCEEDED
    assert (bench.folder / "changed").exists()
    assert not (bench.folder / "made").exists()


@pytest.mark.slow
def test_a_hook_that_an_updated_input_is_about_sees_it_wherever_it_stands(bench: Bench) -> None:
    guard = telling("PreToolUse", "echo never >&2; exit 2", matcher=("Bash(touch *)",))
    change = {"hookSpecificOutput": {"updatedInput": {"command": "touch made"}}}
    lease = bench.run_with([guard, says("PreToolUse", change)], bash("echo hi"))
    assert bench.work(lease) == SUCCEEDED
    assert not (bench.folder / "made").exists()
    assert len(bench.told) == 2


@pytest.mark.slow
def test_a_matcher_says_which_calls_a_hook_is_about(bench: Bench) -> None:
    hooks = [telling("PreToolUse", "exit 2", matcher=("Edit(docs/**)", "Bash(git *)"))]
    calls = reply(
        write("docs/a"), write("b"), *bash("git status")["tools"], *bash("echo git")["tools"]
    )
    lease = bench.run_with(hooks, calls)
    assert bench.work(lease) == SUCCEEDED
    denied = [result.startswith("Permission denied") for result in bench.model.results]
    assert denied == [True, False, True, False]


FAILING = {
    "exit 1": ("echo oh >&2; exit 1", "failed", "exit code 1 oh"),
    "not JSON": ("echo '{no'", "failed", "is not JSON"),
    "unknown decision": (
        'echo \'{"hookSpecificOutput": {"permissionDecision": "defer"}}\'',
        "failed",
        "permissionDecision is none of allow, ask, deny",
    ),
    "signal": ("kill -9 $$", "failed", "signal 9"),
    "timeout": ("sleep 60", "timed_out", "it took more than 0.3 s"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FAILING.values(), ids=FAILING)
@pytest.mark.parametrize("on_failure", ["deny", "continue"])
def test_a_hook_that_fails_is_closed_unless_the_job_says_otherwise(
    bench: Bench, case: tuple[str, str, str], on_failure: Any
) -> None:
    command, outcome, reason = case
    timeout = 0.3 if outcome == "timed_out" else 60.0
    hook = Hook("PreToolUse", command=command, timeout=timeout, on_failure=on_failure)
    lease = bench.run_with([hook], bash("touch made"))
    assert bench.work(lease) == SUCCEEDED
    assert (bench.folder / "made").exists() == (on_failure == "continue")
    (ran,) = bench.rows()
    assert ran.outcome == outcome
    assert reason in ran.reason
    (result,) = bench.model.results
    assert ("gave no answer" in result) == (on_failure == "deny")
    bench.check_requests()


@pytest.mark.slow
def test_a_function_is_a_hook(bench: Bench, tmp_path: Path) -> None:
    hook = function(
        tmp_path,
        "PreToolUse",
        'return {"decision": "block", "reason": event["tool_input"]["command"]}',
        matcher=("Bash(touch *)",),
    )
    silent = function(tmp_path, "PreToolUse", "print('noted')")
    calls = reply(*bash("echo hi")["tools"], *bash("touch made")["tools"])
    lease = bench.run_with([hook, silent], calls)
    assert bench.work(lease) == SUCCEEDED
    assert bench.model.results[0] == "hi\n"
    assert bench.model.results[1].endswith("hook `hooks_0:hook` objects: touch made.")
    assert not (bench.folder / "made").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise RuntimeError('oh')", "exit code 1 RuntimeError: oh"),
        ("return 'yes'", "a hook returns a dict or None"),
        ("import os; os._exit(3)", "exit code 3"),
        ("return {'x': object()}", "neither text nor JSON"),
    ],
)
def test_a_function_that_fails_is_closed(
    bench: Bench, tmp_path: Path, body: str, reason: str
) -> None:
    lease = bench.run_with([function(tmp_path, "PreToolUse", body)], bash("touch made"))
    assert bench.work(lease) == SUCCEEDED
    assert not (bench.folder / "made").exists()
    (ran,) = bench.rows()
    assert (ran.outcome, ran.decision) == ("failed", None)
    assert reason in ran.reason


@pytest.mark.slow
def test_a_function_is_told_where_it_works_and_what_it_prints_is_no_answer(
    bench: Bench, tmp_path: Path
) -> None:
    body = """
    import os
    for _ in range(1_100):
        print("x" * 10_000)
    return {"decision": "block", "reason": os.environ["CLAUDE_PROJECT_DIR"]}"""
    hook = function(tmp_path, "PreToolUse", body, on_failure="continue")
    lease = bench.run_with([hook], bash("touch made"))
    assert bench.work(lease) == SUCCEEDED
    assert not (bench.folder / "made").exists()
    (ran,) = bench.rows()
    assert (ran.outcome, ran.decision, ran.reason) == ("succeeded", "deny", str(bench.folder))
    assert len(ran.errors) < 11_000


@pytest.mark.slow
def test_a_function_may_hand_half_a_character_through(bench: Bench, tmp_path: Path) -> None:
    hook = function(tmp_path, "PreToolUse", r'return {"decision": "block", "reason": "no \ud800"}')
    changes = function(
        tmp_path,
        "PreToolUse",
        r'return {"hookSpecificOutput": {"updatedInput": {"command": "echo \ud800"}}}',
    )
    for each, word in ((hook, "no \ufffd"), (changes, "lone surrogate")):
        assert bench.work(bench.run_with([each], bash("touch made"))) == SUCCEEDED
        assert {ran.outcome for ran in bench.rows()} == {"succeeded"}
        assert word in bench.model.results[0]
    assert not (bench.folder / "made").exists()


@pytest.mark.slow
def test_an_answer_holds_whatever_is_printed_beside_it(bench: Bench) -> None:
    long = "head -c 11000000 /dev/zero | tr '\\0' x >&2"
    answer = json.dumps(decides("deny", "no"))
    hook = Hook("PreToolUse", command=f"{long}; echo '{answer}'", on_failure="continue")
    assert bench.work(bench.run_with([hook], bash("touch made"))) == SUCCEEDED
    (ran,) = bench.rows()
    assert (ran.outcome, ran.decision, ran.reason) == ("succeeded", "deny", "no")
    assert not (bench.folder / "made").exists()


@pytest.mark.slow
def test_an_answer_that_was_cut_is_none(bench: Bench) -> None:
    """Of what is kept of it, the end is missing: nobody knows what else it says."""
    long = "head -c 11000000 /dev/zero | tr '\\0' ' '"
    hook = Hook("PreToolUse", command=f"echo '{{}}'; {long}; echo x")
    assert bench.work(bench.run_with([hook], bash("touch made"))) == SUCCEEDED
    (ran,) = bench.rows()
    assert (ran.outcome, ran.decision) == ("failed", None)
    assert "more than the 1,000,000 bytes" in ran.reason


@pytest.mark.slow
def test_what_a_hook_prints_cannot_steer_a_terminal(bench: Bench) -> None:
    hook = Hook("PreToolUse", command="printf 'a\\033[31m\\0\\nb' >&2; exit 2")
    lease = bench.run_with([hook], bash("touch made"))
    assert bench.work(lease) == SUCCEEDED
    (ran,) = bench.rows()
    assert ran.reason == "a\\x1b[31m\\x00\nb"
    assert "\x1b" not in json.dumps(bench.happened("hook_finished"), ensure_ascii=False)


@pytest.mark.slow
def test_hooks_see_no_more_of_the_environment_than_tools(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Hook("PreToolUse", command="env > seen.txt; pwd >> seen.txt")
    lease = bench.run_with([hook], bash("env > tool.txt"))
    assert bench.work(lease) == SUCCEEDED

    def names(file: str) -> set[str]:
        lines = (bench.folder / file).read_text().splitlines()
        return {line.partition("=")[0] for line in lines if "=" in line}

    assert names("seen.txt") - names("tool.txt") == {"CLAUDE_PROJECT_DIR"}


def test_a_hook_can_stop_the_run(bench: Bench) -> None:
    hook = says("PreToolUse", {"continue": False, "stopReason": "enough"})
    lease = bench.run_with([hook], bash("touch made"))
    outcome = bench.work(lease)
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", "hook")
    assert outcome.detail.endswith("stops the run: enough")
    assert not (bench.folder / "made").exists()
