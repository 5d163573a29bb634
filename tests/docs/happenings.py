"""Runs to which everything happens that the docs tell of: every event, every reason of the store."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

from sqlalchemy import select

from runner.core.batches import WITHDRAWN
from runner.core.budget import Budget, Limits
from runner.core.commands import Reply, Target
from runner.core.conversation import ToolResult
from runner.core.entries import (
    Delivered,
    HookFinished,
    InstructionsRead,
    ModelCallFailed,
    RunSettled,
    SnapshotRecorded,
    ToolFinished,
    ToolsListed,
    Verified,
)
from runner.core.hooks import Hook, HookAnswer, HookResult
from runner.core.network import Connection
from runner.core.pauses import Breaker, Pilot
from runner.core.run import Author, Ended, Requeued
from runner.core.times import Moment, Times
from runner.core.workspace import Instructions, Verify, Workspace
from runner.permissions import Rule
from runner.store import (
    batches,
    budgets,
    caps,
    due_runs,
    jobs,
    leases,
    pauses,
    retry,
    rules,
    schedules,
    tables,
    workspaces,
)
from runner.store.approvals import answer
from runner.store.changes import record_read
from runner.store.control import cancel, pause, resume
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.imports import import_file
from runner.store.questions import waiting
from runner.store.schedules import Cron
from runner.store.sessions import import_session
from runner.store.times import move_finish_by
from runner.store.write_offs import charge_by_results, write_off
from tests.exchange.samples import usual
from tests.store.asked import ASKING, BASH, priced, run_ids, submit_budgeted
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.children import family
from tests.store.compacting import ask_for_summary, compact, stand_in, summarise, truncation
from tests.store.examples import NOW, SPEC, submission
from tests.store.exchange.files import lines_of, renamed, signed

RECORDED = replace(
    SPEC,
    tools=(*SPEC.tools, BASH),
    rules=(Rule("allow", "*"),),
    workspace=Workspace(
        "/repo", "git", external=(Rule("ask", "Bash(git push *)"),), on_unknown="ask"
    ),
    verify=Verify(("make test",)),
)
ASKED_FOR = Connection("example.com", 443, NOW, "allowed")


def play(database: Database) -> None:
    """Let all of it happen."""
    take_turns(database)
    be_compacted(database)
    use_up_the_budget(database)
    begin_under_a_cap(database)
    wait_for_a_batch(database)
    reach_its_times(database)
    change_the_priority(database)
    be_paused_by_runner(database)
    ask_a_person(database)
    end(database)
    be_controlled(database)
    begin_again(database)
    lose_the_workspace(database)
    lose_workers(database)
    meet_a_bug(database)
    meet_a_full_disk(database)
    work_on_a_branch(database)
    be_cut_off(database)
    have_children(database)
    have_hooks(database)
    change_rules(database)
    lose_its_folder(database)
    be_read(database)
    be_imported(database)
    be_a_session(database)


def take_turns(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    attempt.append(ModelCallFailed("overloaded_error", "busy", 529, "req_1", 0, NOW, retry_at=NOW))
    attempt.reply(tool_use(1), tool_use(2, "Bash"), stop="tool_use").finish("one")
    attempt.append(ToolsListed(()))
    attempt.reply(text("Done."))


def be_compacted(database: Database) -> None:
    attempt = compact(claim(database, submit_one(database)), truncation(2))
    summarise(ask_for_summary(attempt), stand_in(4))
    summarise(ask_for_summary(attempt), None, why="the summary is empty")


def use_up_the_budget(database: Database) -> None:
    run_id = submit_one(database, spec=replace(SPEC, budget=Budget(tokens=1)))
    claim(database, run_id)
    job_id = run_row(database, run_id).job_id
    budgets.set_budget(database, job_id, NOW, author=Author("lena"), tokens=10**9)


def begin_under_a_cap(database: Database) -> None:
    caps.set_cap(database, NOW, 50.0, "UTC", 0, author=Author("lena"))
    _, (run_id,) = submit_budgeted(database, "a")
    claim(database, run_id, NOW, priced).reply(text("Done."))
    caps.set_cap(database, NOW, None, "UTC", 0, author=Author("lena"))


def wait_for_a_batch(database: Database) -> None:
    # The first call of a job is in no batch.
    job_id = jobs.submit(database, submission("a", "b", "c", spec=replace(SPEC, lane="batch")), NOW)
    first, second, third = run_ids(database, job_id)
    claim(database, first).reply(text("Done."))
    claim(database, third)
    bodies = dict.fromkeys(batches.waiting_calls(database), b"{}")
    intended = batches.intend(database, "org", "", bodies, NOW)
    assert intended is not None
    cancel(database, Target("run", third), NOW)
    batches.refused(database, intended[0], WITHDRAWN, "", NOW)
    charge_by_results(database, third, lambda spec: {}, NOW)
    claim(database, second)
    batches.set_lane(database, job_id, "realtime", NOW, author=Author("lena"))


def reach_its_times(database: Database) -> None:
    times = Times(finish_by=Moment("07:00", "UTC"))
    cron = Cron("0 22 * * *", "UTC")
    spec = replace(SPEC, times=times)
    schedules.add(database, submission(spec=spec), cron, None, NOW, Author("lena"))
    due = cron.next_after(NOW)
    (job_id,) = schedules.fire_due(database, due)
    late = due + 86_400
    (run,) = database.rows(select(tables.runs.c.id).where(tables.runs.c.job_id == job_id))
    claim(database, run.id, late)
    moved = Moment("2099-01-01 07:00", "UTC", late + 60)
    move_finish_by(database, job_id, moved, late, author=Author("lena"))


def change_the_priority(database: Database) -> None:
    job_id = run_row(database, submit_one(database)).job_id
    jobs.set_priority(database, job_id, 16.0, NOW, Author("lena"))


def be_paused_by_runner(database: Database) -> None:
    spec = replace(SPEC, breaker=Breaker(same_failure=1))
    for pilot in (Pilot(1), None):
        job_id = jobs.submit(database, submission("a", "b", spec=replace(spec, pilot=pilot)), NOW)
        query = select(tables.runs.c.id).where(tables.runs.c.job_id == job_id)
        claim(database, min(run.id for run in database.rows(query))).fail("not_found_error", "No.")
        pauses.attend(database, NOW)
        if pilot is None:
            pauses.Breakers(database).look(job_id, NOW)
        pauses.resume(database, Target("job", job_id), NOW, author=Author("lena"))


def ask_a_person(database: Database) -> None:
    spec = replace(ASKING, rules=(Rule("ask", "Bash(uv *)", why="it changes the lock file"),))
    run_id = submit_one(database, spec=spec)
    asked = tool_use(1, "Bash", command="uv lock")
    claim(database, run_id).reply(asked, tool_use(2, "Bash", command="$tool x"), stop="tool_use")
    for question in waiting(database, Target("run", run_id)):
        answer(database, [question.id], Reply("approved", "ada"), NOW)


def end(database: Database) -> None:
    claim(database, submit_one(database)).fail("invalid_request_error", "No.")
    for outcome in (Ended("stopped", "max_turns", "the limit"), Requeued(NOW + 60, "backoff")):
        claim(database, submit_one(database)).append(RunSettled(outcome))


def be_controlled(database: Database) -> None:
    run_id = submit_one(database)
    target = Target("run", run_id)
    pause(database, target, NOW)
    resume(database, target, NOW)
    claim(database, run_id)
    pause(database, target, NOW)
    cancel(database, target, NOW)


def begin_again(database: Database) -> None:
    run_id = submit_one(database)
    target = Target("run", run_id)
    cancel(database, target, NOW)
    retry.retry(database, target, NOW)
    retry.say(database, run_id, "And the tests?", NOW)
    claim(database, run_id)
    cancel(database, target, NOW)
    retry.retry(database, target, NOW, fresh=True)


def lose_the_workspace(database: Database) -> None:
    spec = replace(SPEC, workspace=Workspace("/src"))
    job_id = jobs.submit(database, submission(spec=spec), NOW, None, "ws_1")
    due = [
        due_runs.look_at(database, run_id, NOW)
        for run_id in due_runs.due_to_notify(database, 9, NOW)
    ]
    (run,) = [one for one in due if one and run_row(database, one.id).job_id == job_id]
    due_runs.wait_for_workspace(database, run, NOW)
    assert due_runs.workspace_found(database, "/src", "ws_1", 9, NOW) == [run.id]


def lose_workers(database: Database) -> None:
    run_id = submit_one(database, spec=replace(SPEC, limits=Limits(max_turns=1)))
    lease = claim(database, run_id).lease
    leases.take_from(database, [lease.worker_id], NOW)
    write_off(database, run_row(database, run_id).job_id, NOW, author=Author("lena"))
    claim(database, run_id).reply(text("Done."))
    run_id = submit_one(database)
    leases.give_back(database, claim(database, run_id).lease, NOW)
    for _ in range(leases.LOST_LEASES_BEFORE_FAILED):
        lease = claim(database, run_id).lease
        leases.take_from(database, [lease.worker_id], NOW)


def meet_a_bug(database: Database) -> None:
    run_id = submit_one(database)
    for _ in range(2):
        leases.give_up(database, claim(database, run_id).lease, "Traceback …\nKeyError: 1", NOW)


def meet_a_full_disk(database: Database) -> None:
    run_id = submit_one(database)
    for host in "abc":
        fault = leases.HostFault(f"id_{host}", host, "no space left")
        leases.give_back_for_host(database, claim(database, run_id).lease, fault, (), NOW)


def work_on_a_branch(database: Database) -> None:
    run_id = submit_one(database, spec=RECORDED)
    attempt = claim(database, run_id).append(SnapshotRecorded("tree 1", "created"))
    attempt.reply(tool_use(1, "Bash", command="make"), stop="tool_use")
    contained = ToolResult("ok", containment="bubblewrap", connections=(ASKED_FOR,))
    attempt.append(ToolFinished(0, contained, "tree 2")).reply(text("Done."))
    attempt.append(Verified(1, "make test", contained), Delivered("c0ffee"))
    fork(database, run_id, 1, NOW)


def be_cut_off(database: Database) -> None:
    run_id = submit_one(database, spec=RECORDED)
    attempt = claim(database, run_id).append(SnapshotRecorded("tree 1", "created"))
    attempt.reply(tool_use(1, "Bash", command="git push"), stop="tool_use")
    leases.give_back(database, attempt.lease, NOW)
    claim(database, run_id).append(SnapshotRecorded("tree 1", "restored", "tree 2")).locate()


def have_children(database: Database) -> None:
    run_id = family.start(database).lease.run_id
    family.end(database, f"{run_id}.1")


def have_hooks(database: Database) -> None:
    hooks = (Hook("RunStart", command="./begin"), Hook("PreToolUse", command="./check"))
    run_id = submit_one(database, spec=replace(RECORDED, hooks=hooks, instructions=True))
    attempt = claim(database, run_id).append(SnapshotRecorded("tree 1", "created"))
    attempt.append(InstructionsRead((Instructions("AGENTS.md", "c0ffee", "Be kind."),)))
    contained = HookResult(
        HookAnswer("succeeded"), containment="bubblewrap", connections=(ASKED_FOR,)
    )
    attempt.append(HookFinished(1, contained, "tree 2"))
    attempt.reply(tool_use(1, "Bash", command="make"), stop="tool_use")
    stopped = HookAnswer("succeeded", "deny", "not on a Friday", stops=True)
    attempt.append(HookFinished(2, HookResult(stopped, message="Ask Lena.")), Delivered("c0ffee"))


def change_rules(database: Database) -> None:
    run_id = submit_one(database, spec=ASKING)
    claim(database, run_id).reply(tool_use(1, "Bash", command="uv lock"), stop="tool_use")
    (question,) = waiting(database, Target("run", run_id))
    answer(database, [question.id], Reply("approved", "ada", remember="job"), NOW)
    job_id = run_row(database, run_id).job_id
    rules.revoke(database, job_id, len(ASKING.rules), Author("bo"), NOW)


def be_read(database: Database) -> None:
    run_id = submit_one(database, spec=replace(RECORDED, record_reads=True))
    record_read(database, run_id, NOW, Author("ada"))


def lose_its_folder(database: Database) -> None:
    run_id = submit_one(database, spec=RECORDED)
    cancel(database, Target("run", run_id), NOW)
    lost = {"path": "/home/worktrees/1", "unsaved": ""}
    assert workspaces.record_removal(database, run_id, lost, Author("ada"), NOW)


def be_imported(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id)
    file = signed(renamed(lines_of(database, run_row(database, run_id).job_id)))
    import_file(database, BytesIO(file), "run.jsonl", Author("ada"), NOW)


def be_a_session(database: Database) -> None:
    session = usual()
    for _ in range(2):
        import_session(database, {"": session.raw()}, "session.jsonl", Author("ada"), NOW)
        session.user("And now?")
        session.lines.append({"type": "pr-link", "prUrl": "https://example.org/pull/7"})
