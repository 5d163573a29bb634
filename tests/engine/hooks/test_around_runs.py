"""PostToolUse, TurnEnd, RunStart and RunEnd hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from runner.core.commands import Reply, Target
from runner.core.hooks import WITHHELD, Hook
from runner.core.run import Ended, Lease, Waiting
from runner.core.spec import Asking
from runner.core.workspace import RESULT_TOOL, result_tool
from runner.errors import LeaseLost
from runner.permissions import Rule
from runner.store.control import cancel
from runner.store.fork import fork
from runner.store.leases import give_back
from runner.store.retry import retry
from runner.store.tables import hook_runs, runs, tool_calls
from runner.tools.registry import resolve_tools
from tests.engine.hooks.bench import TOLD, Bench, bash, function, says, telling, texts
from tests.engine.test_asking import DONE, reply, write
from tests.queries.search.record import find

SUCCEEDED = Ended("succeeded", "end_turn")


def context(event: str, text: str) -> dict[str, object]:
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


@pytest.mark.slow
def test_hooks_after_a_call_run_in_reverse_and_are_told_of_its_result(bench: Bench) -> None:
    hooks = [Hook("PostToolUse", command=f"echo {name} >> order.txt") for name in "abc"]
    lease = bench.run_with([*hooks, telling("PostToolUse")], bash("echo hi; exit 3"))
    assert bench.work(lease) == SUCCEEDED
    assert (bench.folder / "order.txt").read_text().split() == ["c", "b", "a"]
    (told,) = bench.told
    assert told["tool_response"]["outcome"] == "failed"
    assert told["tool_response"]["is_error"] is True
    assert told["tool_response"]["content"].startswith("hi\n")
    bench.check_requests()


@pytest.mark.slow
def test_hooks_after_a_call_run_before_the_next_one_starts(bench: Bench) -> None:
    hook = Hook("PostToolUse", command="echo hook >> order.txt")
    calls = reply(*(bash(f"echo {n} >> order.txt")["tools"][0] for n in (1, 2)))
    lease = bench.run_with([hook], calls)
    assert bench.work(lease) == SUCCEEDED
    assert (bench.folder / "order.txt").read_text().split() == ["1", "hook", "2", "hook"]
    bench.check_requests()


@pytest.mark.slow
def test_what_hooks_say_after_a_call_goes_to_the_model(bench: Bench) -> None:
    hooks = [
        says("PostToolUse", context("PostToolUse", "two lines\nare long")),
        says("PostToolUse", {"decision": "block", "reason": "tests are missing"}),
        Hook("PostToolUse", command="echo oh >&2; exit 2"),
        Hook("PostToolUse", command="echo not for the model"),
        Hook("PostToolUse", command="exit 1"),
    ]
    lease = bench.run_with(hooks, bash("echo hi"))
    assert bench.work(lease) == SUCCEEDED
    assert bench.model.results == ["hi\n"]
    heard = bench.heard
    assert [text.partition("\n")[2] for text in heard] == [
        "oh",
        "tests are missing",
        "two lines\nare long",
    ]
    assert heard[0].startswith("The PostToolUse hook `echo oh >&2; exit 2` of call 1")
    outcomes = [row.outcome for row in bench.rows()]
    assert outcomes == ["failed", "succeeded", "succeeded", "succeeded", "succeeded"]
    bench.check_requests()


@pytest.mark.slow
def test_there_are_no_hooks_after_calls_that_never_ran(bench: Bench) -> None:
    rules = [Rule("allow", "Bash(echo *)")]
    calls = reply(
        *bash("touch made")["tools"],
        {"name": "Bash", "input": {}},
        {"name": "Nothing", "input": {}},
        *bash("echo hi")["tools"],
    )
    lease = bench.run_with([telling("PostToolUse")], calls, rules=rules)
    assert bench.work(lease) == SUCCEEDED
    assert [told["tool_input"] for told in bench.told] == [{"command": "echo hi"}]
    bench.check_requests()


@pytest.mark.slow
def test_a_matcher_about_a_path_holds_after_the_call_too(bench: Bench) -> None:
    hook = telling("PostToolUse", matcher=("Edit(docs/**)",))
    lease = bench.run_with([hook], reply(write("docs/a"), write("b")))
    assert bench.work(lease) == SUCCEEDED
    paths = [told["tool_input"]["file_path"] for told in bench.told]
    assert paths == [str(bench.folder / "docs/a")]


@pytest.mark.slow
def test_hooks_are_told_of_the_input_that_ran(bench: Bench) -> None:
    hook = telling("PostToolUse", matcher=("Bash(touch edited)",))
    rules = [Rule("ask", "Bash")]
    lease = bench.run_with([hook], bash("touch made"), rules=rules, asking=Asking("ask"))
    assert bench.work(lease) == Waiting("approval")
    bench.answer(Reply("approved", "ann", edited={"command": "touch edited"}))
    assert bench.work() == SUCCEEDED
    (told,) = bench.told
    assert told["tool_input"] == {"command": "touch edited"}


@pytest.mark.slow
def test_the_end_of_a_turn_comes_when_all_its_results_are_there(bench: Bench) -> None:
    hook = says("TurnEnd", context("TurnEnd", "that was a turn"))
    calls = reply(*bash("echo 1")["tools"], *bash("echo 2")["tools"])
    lease = bench.run_with([hook, telling("PostToolUse")], calls, bash("echo 3"))
    assert bench.work(lease) == SUCCEEDED
    assert [told["hook_event_name"] for told in bench.told] == [
        "PostToolUse",
        "PostToolUse",
        "TurnEnd",
        "PostToolUse",
        "TurnEnd",
    ]
    assert [told["turn"] for told in bench.told] == [1, 1, 1, 2, 2]
    assert bench.heard == [bench.heard[0]]
    assert bench.heard[0].endswith("says:\nthat was a turn")
    assert [event["turn"] for event in bench.happened("turn_ended")] == [1, 2, 3]
    bench.check_requests()


@pytest.mark.slow
def test_what_a_hook_says_when_the_run_starts_comes_after_the_prompt(bench: Bench) -> None:
    hooks = [Hook("RunStart", command="echo It is Monday."), telling("RunStart")]
    lease = bench.run_with(hooks, bash("echo hi"))
    assert bench.work(lease) == SUCCEEDED
    (told,) = bench.told
    assert told["turn"] == 0
    first = bench.model.requests[0].messages[0].blocks
    assert [block["text"].splitlines()[-1] for block in first] == ["Mend one.", "It is Monday."]
    assert len(bench.rows()) == 2
    bench.check_requests()


@pytest.mark.slow
def test_a_hook_can_keep_a_run_from_starting(bench: Bench) -> None:
    hook = telling("RunStart", "test -e ready || { echo not yet >&2; exit 2; }")
    lease = bench.run_with([hook])
    outcome = bench.work(lease)
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", "hook")
    assert outcome.detail.endswith("objects: not yet")
    assert bench.model.requests == []
    (bench.folder / "ready").touch()
    retry(bench.database, Target("run", lease.run_id), bench.ports.clock.now())
    assert bench.work() == SUCCEEDED
    assert len(bench.told) == 2


@pytest.mark.slow
def test_the_end_of_a_run_is_told_last_and_holds_nothing_up(bench: Bench) -> None:
    objecting = telling("RunEnd", "echo no >&2; exit 2")
    stopping = says("RunEnd", {"continue": False})
    lease = bench.run_with([objecting, stopping], bash("echo hi"))
    assert bench.work(lease) == SUCCEEDED
    assert [(told["state"], told["reason"]) for told in bench.told] == [
        ("succeeded", "end_turn")
    ] * 2
    assert [row.decision for row in bench.rows()] == ["block", None]
    assert len(bench.model.requests) == 2


@pytest.mark.slow
def test_each_end_of_a_run_is_told_once(bench: Bench) -> None:
    broken = {"error": {"kind": "invalid_request_error", "status": 400}}
    lease = bench.run_with([telling("RunEnd")], broken)
    outcome = bench.work(lease)
    assert isinstance(outcome, Ended)
    assert outcome.state == "failed"
    retry(bench.database, Target("run", lease.run_id), bench.ports.clock.now())
    assert bench.work() == outcome
    assert [told["state"] for told in bench.told] == ["failed", "failed"]


@pytest.mark.slow
def test_an_objection_holds_up_a_result_and_a_remark_does_not(bench: Bench) -> None:
    script = "test -e seen && exit 0; touch seen; echo look again >&2; exit 2"
    hooks = [
        Hook("TurnEnd", command=script),
        Hook("TurnEnd", command='echo \'{"hookSpecificOutput": {"additionalContext": "so"}}\''),
    ]
    submit = {"name": RESULT_TOOL, "input": {"n": 1}}
    tools = (*resolve_tools(("Bash",), bench.folder)[0], result_tool({"type": "object"}))
    lease = bench.run_with(hooks, reply(submit), reply(submit), tools=tools)
    assert bench.work(lease) == Ended("succeeded", "submitted")
    assert len(bench.model.requests) == 2
    assert "look again" in texts(bench.model.requests[1])
    bench.check_requests()


def test_there_are_no_hooks_around_the_submission_of_a_result(bench: Bench) -> None:
    hooks = [Hook("PreToolUse", command="exit 2"), telling("PostToolUse")]
    submit = {"name": RESULT_TOOL, "input": {"n": 1}}
    tools = (*resolve_tools(("Bash",), bench.folder)[0], result_tool({"type": "object"}))
    lease = bench.run_with(hooks, reply(submit), tools=tools)
    assert bench.work(lease) == Ended("succeeded", "submitted")
    assert bench.rows() == []


@pytest.mark.slow
def test_a_job_without_a_workspace_can_have_hooks(bench: Bench, tmp_path: Path) -> None:
    hook = function(tmp_path, "RunStart", "return {'stopReason': event['cwd'], 'continue': False}")
    lease = bench.run_with([hook], workspace=None)
    outcome = bench.work(lease)
    assert isinstance(outcome, Ended)
    assert outcome.detail.endswith(lease.run_id)


@pytest.mark.slow
def test_all_five_events_of_a_run_are_recorded_in_order(bench: Bench, tmp_path: Path) -> None:
    events = ("RunStart", "PreToolUse", "PostToolUse", "TurnEnd", "RunEnd")
    hooks = [function(tmp_path, event, "return None") for event in events]
    lease = bench.run_with(hooks, bash("echo hi"))
    assert bench.work(lease) == SUCCEEDED
    assert [(row.number, row.event, row.turn) for row in bench.rows()] == [
        (1, "RunStart", 0),
        (2, "PreToolUse", 1),
        (3, "PostToolUse", 1),
        (4, "TurnEnd", 1),
        (5, "RunEnd", 2),
    ]
    started = bench.happened("hook_started")
    assert [event["event"] for event in started] == [*events]
    assert started[1]["tool_use_id"]
    finished = bench.happened("hook_finished")
    assert {event["outcome"] for event in finished} == {"succeeded"}
    assert [event["hook"] for event in finished] == [f"hooks_{n}:hook" for n in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("event", ["PostToolUse", "TurnEnd"])
def test_a_run_that_waited_with_such_hooks_goes_on(bench: Bench, event: str) -> None:
    """The calls are read back while some have results and others wait."""
    hook = Hook(event, command="echo hook >> order.txt")  # type: ignore[arg-type]
    calls = reply(*(bash(f"echo {n} >> order.txt")["tools"][0] for n in (1, 2)))
    rules = [Rule("allow", "Bash(echo 1 *)"), Rule("ask", "Bash(echo 2 *)")]
    lease = bench.run_with([hook], calls, DONE, rules=rules, asking=Asking("ask"))
    assert bench.work(lease) == Waiting("approval")
    bench.answer(Reply("approved", "ann"))
    assert bench.work() == SUCCEEDED
    order = (bench.folder / "order.txt").read_text().split()
    assert order == (["1", "hook", "2", "hook"] if event == "PostToolUse" else ["1", "2", "hook"])
    bench.check_requests()


@pytest.mark.slow
def test_a_fork_runs_no_hook_for_what_it_has_copied(bench: Bench) -> None:
    hooks = [telling("RunStart"), telling("PostToolUse"), telling("TurnEnd")]
    lease = bench.run_with(hooks, bash("echo 1"), bash("echo 2"))
    assert bench.work(lease) == SUCCEEDED
    (bench.folder / TOLD).unlink()
    fork(bench.database, lease.run_id, 1, bench.ports.clock.now())
    assert bench.work() == SUCCEEDED
    assert [(told["hook_event_name"], told["turn"]) for told in bench.told] == [
        ("RunStart", 1),
        ("PostToolUse", 2),
        ("TurnEnd", 2),
    ]
    bench.check_requests()


def replaces(text: Any) -> Hook:
    more = {"hookEventName": "PostToolUse", "updatedToolOutput": text}
    return says("PostToolUse", {"hookSpecificOutput": more})


def test_what_a_hook_puts_in_the_place_of_a_result_is_what_the_model_sees(bench: Bench) -> None:
    hooks = [telling("PostToolUse"), replaces({"secret": None}), replaces("first")]
    lease = bench.run_with(hooks, bash("echo hunter2"))
    assert bench.work(lease) == SUCCEEDED
    (result,) = bench.model.results
    assert result == '{"secret": null}'
    told = bench.told[-1]  # hooks run in reverse order, and each sees what is there by then
    assert told["tool_response"]["content"] == '{"secret": null}'
    query = select(tool_calls.c.original)
    assert bench.database.read(lambda connection: connection.execute(query).scalar()) == "hunter2\n"
    assert "hunter2" not in str(bench.model.requests[-1].messages[2:])
    assert [each["replaced"] for each in bench.happened("hook_finished")] == [True, True, False]
    bench.check_requests()


def end_at(bench: Bench, lease: Lease, end: Callable[[], object], moment: str) -> None:
    """Let something end the attempt in the commit that stores the first result, or that starts the first
    hook."""
    commit = bench.ports.journal.commit
    column = {"result": tool_calls.c.ended_at, "hook": hook_runs.c.started_at}[moment]
    ends = iter([end])

    def commit_and_end(*given: Any) -> Any:
        done = commit(*given)
        count = select(func.count(column))
        if bench.database.read(lambda connection: connection.execute(count).scalar()):
            for each in ends:
                each()
        return done

    bench.ports.journal.commit = commit_and_end  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        bench.work(lease)
    bench.ports.journal.commit = commit  # type: ignore[method-assign]


@pytest.mark.parametrize("moment", ["result", "hook"])
@pytest.mark.parametrize("repeatable", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["retry", pytest.param("takeover", marks=pytest.mark.slow)])
def test_a_run_that_goes_on_shows_the_model_no_result_that_a_hook_has_not_seen(
    bench: Bench, how: str, repeatable: bool, moment: str
) -> None:
    hook = replace(replaces("a walnut"), repeatable=repeatable)
    (bench.folder / "secret").write_text("hunter2")
    reads = reply(*({"name": "Read", "input": {"file_path": "secret"}} for _ in range(2)))
    lease = bench.run_with([hook], reads)
    this, now = Target("run", lease.run_id), bench.ports.clock.now()
    if how == "retry":
        end_at(bench, lease, lambda: cancel(bench.database, this, now), moment)
        retry(bench.database, this, now)
    else:
        end_at(bench, lease, partial(give_back, bench.database, lease, now), moment)
    assert bench.work() == SUCCEEDED
    cut_off = moment == "hook" and not repeatable
    assert bench.model.results == [WITHHELD if cut_off else "a walnut", "a walnut"]
    assert "hunter2" not in "".join(map(texts, bench.model.requests))
    query = select(tool_calls.c.original)  # a cancel interrupts one of two that run side by side
    found = bench.database.read(lambda connection: connection.scalars(query).all())
    assert "hunter2" in str(found)
    assert [row.outcome for row in bench.rows()] == ["unknown"] * cut_off + ["succeeded"] * (
        2 - cut_off
    )
    bench.check_requests()


@pytest.mark.slow
def test_a_hook_that_takes_too_long_leaves_the_model_no_result(bench: Bench) -> None:
    hook = Hook("PostToolUse", command="sleep 60", timeout=0.1)
    assert bench.work(bench.run_with([hook], bash("echo hunter2"))) == SUCCEEDED
    assert bench.model.results == [WITHHELD]


def test_a_search_at_any_commit_finds_only_what_a_hook_has_put_in_the_place_of_a_result(
    bench: Bench,
) -> None:
    lease = bench.run_with([replaces("a walnut")], bash("printf hun; printf ter2"))
    commit, found = bench.ports.journal.commit, set[int]()

    def commit_and_search(*given: Any) -> Any:
        done = commit(*given)
        found.add(find(bench.database, "hunter2").total)
        return done

    bench.ports.journal.commit = commit_and_search  # type: ignore[method-assign]
    assert bench.work(lease) == SUCCEEDED
    assert found == {0}
    assert find(bench.database, "walnut").total == 1


@pytest.mark.slow
def test_a_replaced_result_counts_in_the_context_as_it_is_sent(bench: Bench) -> None:
    def estimate(*hooks: Hook) -> int:
        lease = bench.run_with(hooks, bash("seq 1000"))
        bench.work(lease)
        query = select(runs.c.progress).where(runs.c.id == lease.run_id)
        progress = bench.database.read(lambda connection: connection.execute(query).scalar())
        return int(progress["context"]["estimate"])

    saved = estimate() - estimate(replaces("much"))
    assert saved == pytest.approx((4_893 - 4) / 4, abs=3)  # JSON has each line's end as two
