"""Hooks around runs whose workers are killed, shut down and told to stop."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, select

from runner import wiring
from runner.settings import Settings
from runner.store.tables import events, hook_runs, tool_calls
from tests.lifecycle.site import PATIENCE, Site, bash, done, wait_until
from tests.lifecycle.test_deaths import processes_with
from tests.messages_api import API_KEY, MessagesServer, Received, Reply, text, tool_use

EVENTS = ("RunStart", "PreToolUse", "PostToolUse", "TurnEnd", "RunEnd")
# It hangs when it runs for the first time, and notes each time that it runs.
HANGS = "echo hook >> log; [ -e begun ] || { touch begun; exec sleep 620.5; }"


def hooked(site: Site, script: Mapping[str, Any], hooks: str, **job: Any) -> str:
    """A job with hooks, submitted: ``hooks`` are tables as TOML."""
    path = site.job(script, **job)
    path.write_text(f"{path.read_text()}\n{hooks}")
    return site.submit(path)


def hook(event: str, command: str, **more: Any) -> str:
    lines = [f"[[hooks.{event}]]", f"command = {json.dumps(command)}"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    return "\n".join([*lines, ""])


def rows(site: Site, table: Table) -> list[Any]:
    with closing(wiring.open_database(Settings.load(site.environment))) as database:
        query = select(table).order_by(*table.primary_key)
        return list(database.read(lambda connection: connection.execute(query).all()))


@pytest.mark.parametrize("repeatable", [False, True], ids=["once", "repeatable"])
@pytest.mark.parametrize("event", EVENTS)
def test_a_hook_whose_worker_was_killed_runs_again_only_if_it_may(
    site: Site, event: str, repeatable: bool
) -> None:
    hooks = hook(event, HANGS, repeatable=repeatable)
    job = hooked(site, {"a": [bash("echo tool >> log"), done()]}, hooks)
    worker = site.start("worker")
    site.wait_for_file_made("begun")
    worker.kill()
    site.run("worker", "--burst")
    assert site.runs(job)["a"]["state"] == "succeeded"
    log = (site.workspace / "log").read_text().split()
    assert log.count("hook") == 1 + repeatable
    (ran,) = rows(site, hook_runs)
    assert ran.outcome == ("succeeded" if repeatable else "unknown")
    denied = event == "PreToolUse" and not repeatable
    assert log.count("tool") == (0 if denied else 1)
    (call,) = rows(site, tool_calls)
    assert call.outcome == ("denied" if denied else "succeeded")


@pytest.mark.parametrize("event", EVENTS)
def test_a_run_killed_in_its_tool_or_model_runs_no_hook_twice(
    site_of_either: Site, event: str
) -> None:
    """The hooks before the kill have ended; the next attempt goes on after them."""
    site = site_of_either
    slow = "[ -e begun ] || { touch begun; exec sleep 621.5; }"
    first = bash("echo tool >> log")
    replies = [first, bash(slow), done()]
    hooks = hook(event, "cat >> told; echo hook >> log")
    job = hooked(site, {"a": replies}, hooks)
    worker = site.start("worker")
    site.wait_for_file_made("begun")
    worker.kill()
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded"
    log = (site.workspace / "log").read_text().split()
    assert log.count("tool") == 1
    often = {"RunStart": 1, "PreToolUse": 2, "PostToolUse": 2, "TurnEnd": 2, "RunEnd": 1}
    assert log.count("hook") == often[event]
    assert [row.outcome for row in rows(site, hook_runs)] == ["succeeded"] * often[event]


def test_a_hook_cut_by_a_shutdown_is_closed_and_leaves_nothing_running(site: Site) -> None:
    hang = "echo hook >> log; exec sleep 622.5"
    job = hooked(site, {"a": [bash("echo tool >> log"), done()]}, hook("PreToolUse", hang))
    worker = site.start("worker")
    site.wait_for_file("log")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert processes_with("622.5") == []
    assert site.runs(job)["a"]["state"] == "queued"
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded"
    assert (site.workspace / "log").read_text().split() == ["hook"]
    assert "cut off by a shutdown" in site.tool_results(run["id"])[0]


def test_a_repeatable_hook_cut_by_a_shutdown_runs_again(site: Site) -> None:
    job = hooked(
        site, {"a": [bash("echo tool >> log"), done()]}, hook("PreToolUse", HANGS, repeatable=True)
    )
    worker = site.start("worker")
    site.wait_for_file_made("begun")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    site.run("worker", "--burst")
    assert site.runs(job)["a"]["state"] == "succeeded"
    assert (site.workspace / "log").read_text().split() == ["hook", "hook", "tool"]


def test_cancel_ends_a_hook_with_all_its_processes(site: Site) -> None:
    hang = "touch began; setsid sleep 623.5 & sleep 623.5"
    job = hooked(site, {"a": [bash("true"), done()]}, hook("PostToolUse", hang))
    site.start("worker")
    site.wait_for_file_made("began")
    site.run("cancel", job)
    assert site.runs(job)["a"]["state"] == "cancelled"
    wait_until(lambda: not processes_with("623.5"), "the hook's processes to be gone")
    (ran,) = rows(site, hook_runs)
    assert ran.ended_at is None
    site.run("retry", job)
    site.wait_for(job, "a", "succeeded")
    (ran,) = rows(site, hook_runs)
    assert ran.outcome == "unknown"


def test_pause_takes_effect_between_hooks(site: Site) -> None:
    held = "echo 1 >> log; while [ ! -e go ]; do sleep 0.1; done"
    hooks = hook("PreToolUse", held) + hook("PreToolUse", "echo 2 >> log")
    job = hooked(site, {"a": [bash("echo tool >> log"), done()]}, hooks)
    site.start("worker")
    site.wait_for_file("log")
    site.run("pause", job)
    (site.workspace / "go").touch()
    site.wait_for(job, "a", "waiting")
    assert (site.workspace / "log").read_text().split() == ["1"]
    site.run("resume", job)
    site.wait_for(job, "a", "succeeded")
    assert (site.workspace / "log").read_text().split() == ["1", "2", "tool"]


# --- in a workspace that is recorded ---

FORMAT = "sed -i s/two/TWO/ a.txt"


def repository(site: Site) -> None:
    git = ["git", "-C", str(site.workspace), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    (site.workspace / "a.txt").write_text("one\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)


def edit(old: str, new: str) -> dict[str, Any]:
    arguments = {"file_path": "a.txt", "old_string": old, "new_string": new}
    return {"text": "So.", "tools": [{"name": "Edit", "input": arguments}]}


def git_job(site: Site, script: Mapping[str, Any], hooks: str, verify: str = "") -> str:
    repository(site)
    path = site.job(script, tools=("Edit", "Bash", "Read"), allow=("Edit", "Bash", "Read"))
    body = path.read_text().replace('path = "workspace"', 'mode = "git"\nrepo = "workspace"')
    checked = f"verify = {json.dumps([verify])}\n" if verify else ""
    path.write_text(f"{checked}{body}\n{hooks}")
    return site.submit(path)


def delivered(site: Site, job: str) -> str:
    """The file as the run's commit has it."""
    (branch,) = subprocess.run(
        ["git", "-C", str(site.workspace), "branch", "--list", "runner/*", "--format=%(refname)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    shown = ["git", "-C", str(site.workspace), "show", f"{branch}:a.txt"]
    return subprocess.run(shown, capture_output=True, text=True, check=True).stdout


def test_what_a_formatter_makes_of_an_edit_is_recorded_and_delivered(site: Site) -> None:
    script = {"a": [edit("one", "one\ntwo"), bash("cat a.txt"), done()]}
    job = git_job(site, script, hook("PostToolUse", FORMAT, matcher="Edit"))
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded", run
    assert delivered(site, job) == "one\nTWO\n"
    (ran,) = rows(site, hook_runs)
    edited, shown = rows(site, tool_calls)
    assert ran.tree_before == edited.tree_after
    assert ran.tree_after == shown.tree_before
    assert ran.tree_after != ran.tree_before


def test_a_formatter_that_was_killed_begins_with_the_files_as_they_were(site: Site) -> None:
    marker = site.folder / "begun"
    half = f"echo half >> a.txt; [ -e {marker} ] || {{ touch {marker}; exec sleep 624.5; }}"
    script = {"a": [edit("one", "one\ntwo"), done()]}
    job = git_job(site, script, hook("PostToolUse", half, matcher="Edit", repeatable=True))
    worker = site.start("worker")
    wait_until(marker.exists, "the hook to begin")
    worker.kill()
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded", run
    assert delivered(site, job) == "one\ntwo\nhalf\n"


def test_what_a_hook_left_that_is_not_run_again_is_recorded_as_a_change(site: Site) -> None:
    marker = site.folder / "begun"
    half = f"echo half >> a.txt; touch {marker}; exec sleep 625.5"
    script = {"a": [edit("one", "one\ntwo"), done()]}
    job = git_job(site, script, hook("PostToolUse", half, matcher="Edit"))
    worker = site.start("worker")
    wait_until(marker.exists, "the hook to begin")
    worker.kill()
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded", run
    assert delivered(site, job) == "one\ntwo\nhalf\n"
    (ran,) = rows(site, hook_runs)
    assert ran.outcome == "unknown"


def test_what_a_person_mends_after_a_cancel_in_a_hook_before_a_call_stays(
    site_of_either: Site,
) -> None:
    """The call does not run any more, and so neither does the hook: nothing is put back for it."""
    site, marker = site_of_either, site_of_either.folder / "begun"
    half = f"[ -e {marker} ] || {{ touch {marker}; exec sleep 627.5; }}"
    script = {"a": [edit("one", "one\ntwo"), bash("true"), done()]}
    hooks = hook("PreToolUse", half, matcher="Bash", repeatable=True)
    job = git_job(site, script, hooks)
    worker = site.start("worker")
    wait_until(marker.exists, "the hook to begin")
    site.run("cancel", job)
    wait_until(lambda: not processes_with("627.5"), "the hook's processes to be gone")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    copy = site.home / "workspaces" / site.runs(job)["a"]["id"]
    (copy / "a.txt").write_text("one\ntwo\nmended\n")
    site.run("retry", job)
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded", run
    assert delivered(site, job) == "one\ntwo\nmended\n"
    (ran,) = rows(site, hook_runs)
    assert ran.outcome == "unknown"
    causes = [row.data["cause"] for row in rows(site, events) if row.type == "tree_recorded"]
    assert causes == ["created", "changed"]


def test_what_a_hook_of_the_end_changes_is_put_back(site: Site) -> None:
    hooks = hook("RunEnd", "cat > told.json; echo more >> a.txt")
    job = git_job(site, {"a": [edit("one", "one\ntwo"), done()]}, hooks)
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded", run
    assert delivered(site, job) == "one\ntwo\n"
    copy = Path(site.home / "workspaces" / run["id"])
    assert not (copy / "told.json").exists()
    assert (copy / "a.txt").read_text() == "one\ntwo\n"


@pytest.mark.parametrize("how", ["killed", "cancelled"])
@pytest.mark.parametrize("repeatable", [False, True], ids=["once", "repeatable"])
def test_what_a_hook_of_the_end_left_half_done_is_neither_verified_nor_committed(
    site_of_either: Site, repeatable: bool, how: str
) -> None:
    site, marker = site_of_either, site_of_either.folder / "begun"
    half = f"[ -e {marker} ] || {{ echo HALF >> a.txt; touch {marker}; exec sleep 626.5; }}"
    script = {"a": [edit("one", "one\ntwo"), done(), done()]}
    hooks = hook("RunEnd", half, repeatable=repeatable)
    job = git_job(site, script, hooks, verify="! grep -q HALF a.txt")
    worker = site.start("worker")
    wait_until(marker.exists, "the hook to begin")
    if how == "killed":
        worker.kill()
    else:
        site.run("cancel", job)
        wait_until(lambda: not processes_with("626.5"), "the hook's processes to be gone")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
        site.run("retry", job)
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert (run["state"], run["reason"]) == ("succeeded", "end_turn")
    assert delivered(site, job) == "one\ntwo\n"
    assert (site.home / "workspaces" / run["id"] / "a.txt").read_text() == "one\ntwo\n"
    ends = 1 if how == "killed" else 2
    told = rows(site, events)
    for kind in ("verified", "delivered"):
        assert sum(event.type == kind for event in told) == ends, kind
    assert [event.data["cause"] for event in told if event.type == "tree_recorded"] == [
        "created",
        "restored",
    ]
    outcomes = [ran.outcome for ran in rows(site, hook_runs)]
    if how == "killed":
        assert outcomes == ["succeeded" if repeatable else "unknown"]
    else:
        assert outcomes == ["unknown", "succeeded"]


# --- what the API is sent ---

SPEAKING = {"hookSpecificOutput": {"additionalContext": "line one\nline two \u2028 \u001b[31m"}}
OBJECTING = "if [ -e seen ]; then exit 0; fi; touch seen; echo mend this >&2; exit 2"


def test_a_strict_api_takes_all_that_hooks_make_of_a_conversation(tmp_path: Path) -> None:
    """Five calls side by side (allowed, denied, changed, unknown, without sense), hooks that say
    something wherever they can, instructions, and a reply that was cut off."""
    inputs = [("Bash", {"command": command}) for command in ("echo 1", "rm x", "ls", 7)]

    def model(request: Received) -> Reply:
        replies = sum(message["role"] == "assistant" for message in request.body["messages"])
        calls = [
            tool_use(f"toolu_{replies}_{number}", name, arguments)
            for number, (name, arguments) in enumerate([*inputs, ("Nothing", {})])
        ]
        return Reply([text("So."), *calls] if replies < 2 else [text("Done.")])

    says = f"printf %s '{json.dumps(SPEAKING)}'"
    change = json.dumps({"hookSpecificOutput": {"updatedInput": {"command": "echo changed"}}})
    hooks = [
        hook("RunStart", "echo hello from RunStart"),
        hook("PreToolUse", says),
        hook("PreToolUse", "echo no >&2; exit 2", matcher="Bash(rm *)"),
        hook("PreToolUse", f"printf %s '{change}'", matcher="Bash(ls)"),
        hook("PostToolUse", says),
        hook("PostToolUse", OBJECTING),
        hook("TurnEnd", says),
        hook("RunEnd", says),
    ]
    with MessagesServer(model) as server:
        site = Site(tmp_path / "site", ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY=API_KEY)
        (site.workspace / "AGENTS.md").write_text("Be kind.\n")
        try:
            path = site.live_job(["a"], options={"instructions": True, "system": "Be brief."})
            path.write_text("\n".join([path.read_text(), *hooks]))
            job = site.submit(path)
            site.run("worker", "--burst")
            run = site.runs(job)["a"]
            assert run["state"] == "succeeded", run
        finally:
            site.stop_all()
    assert server.refusals == []
    asked = [request for request in server.requests if request.path == "/v1/messages"]
    assert len(asked) == 3
    assert asked[0].body["system"][0]["text"].endswith("Be kind.")
    last = json.dumps(asked[-1].body["messages"])
    for said in ("hello from RunStart", "line one", "mend this", "echo changed", "objects: no"):
        assert said in last, said
