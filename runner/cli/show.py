"""``list``, ``show`` and ``events``: jobs, runs and tool calls, and what happened to them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import click

from runner.app.humanize import (
    answer,
    cell,
    cost,
    cost_line,
    decider,
    denier,
    dollars,
    duration,
    lines,
    moment,
    verified,
)
from runner.cli.control import budget_fields, usd_of
from runner.cli.options import json_option, opened, state_option, with_settings
from runner.cli.terminal import note, say, say_fields, say_json, say_table
from runner.core.agents import place_of
from runner.core.run import ENDED, RunStatus
from runner.settings import Settings


@click.command("list")
@click.argument("job", required=False)
@state_option
@click.option(
    "--tree",
    "whole_trees",
    is_flag=True,
    help="The runs of a job, or of the newest, with the sub-agents that they have started.",
)
@json_option
@with_settings
def list_(
    settings: Settings, job: str | None, state: RunStatus | None, whole_trees: bool, as_json: bool
) -> None:
    """List the jobs, or the runs of a job.

    Runs are those of items. What they have used and what was denied to them is told with all that the
    sub-agents below them have; with --tree these have lines of their own, and each run tells its own.

    \b
    Example:
      runner list
      runner list job_01jd9k --state failed
      runner list --tree
    """
    from runner.app import show as app

    with opened(settings) as handle:
        database = handle.database
        jobs = [] if job else app.list_jobs(database, None if whole_trees else state)
        if job is None and not (whole_trees and jobs):
            if as_json:
                say_json(app.with_costs(settings, database, "job", jobs))
            else:
                _say_jobs(jobs)
            return
        runs = app.list_runs(database, job or jobs[-1]["id"], state, whole_trees=whole_trees)
        if as_json:
            rows = app.with_costs(settings, database, "run" if whole_trees else "tree", runs)
            say_json(rows)
            return
        if whole_trees:  # those below a run have lines of their own
            own = {"tree_tokens": "charged_tokens", "tree_denials": "denials"}
            runs = [run | {name: run[of] for name, of in own.items()} for run in runs]
        _say_runs(runs, app.waits_for(database, runs))


def _say_jobs(jobs: Sequence[Mapping[str, Any]]) -> None:
    say_table(
        ("job", "name", "state", "runs", "turns", "tokens", "denied", "submitted"),
        (
            (
                job["id"],
                job["name"],
                job["state"],
                _counts(job["runs"]),
                f"{job['turns']:,}",
                f"{job['charged_tokens']:,}",
                job["denials"] or "",
                moment(job["created_at"]),
            )
            for job in jobs
        ),
    )


def _counts(by_state: Mapping[RunStatus, int]) -> str:
    """``2 running, 5 queued``."""
    return ", ".join(f"{count} {state}" for state, count in by_state.items())


def _say_runs(runs: Sequence[Mapping[str, Any]], waiting: Mapping[str, str]) -> None:
    """Print runs in lines; ``waiting`` says what to do about those that wait. Only a job that verifies
    has a column for it, and only one whose runs have started others."""
    is_verified = ("verified",) if any(run["verified"] for run in runs) else ()
    is_tree = ("below",) if any(run["below"] for run in runs) else ()
    say_table(
        (
            *("run", "item", "state", "reason", *is_verified, *is_tree),
            *("turns", "tokens", "denied", "detail"),
        ),
        (
            (
                run["id"],
                _name(run),
                run["state"],
                run["reason"],
                *(run["verified"] for _ in is_verified),
                *(run["below"] or "" for _ in is_tree),
                run["turns"],
                f"{run['tree_tokens']:,}",
                run["tree_denials"] or "",
                waiting.get(run["id"]) or run["detail"] or _origin(run),
            )
            for run in runs
        ),
    )


def _name(run: Mapping[str, Any]) -> str:
    """The item, or which sub-agent of it a run is, below its parent."""
    if not run["depth"]:
        return str(run["item_key"])
    return f"{'  ' * run['depth']}{run['label']} {run['agent_type'] or ''}".rstrip()


def _origin(run: Mapping[str, Any]) -> str:
    """Which run replaces this one, or which it comes from."""
    if run["fresh_run"]:
        return f"begun afresh as {run['fresh_run']}"
    return f"fork of {run['fork_of']}@{run['fork_turn']}" if run["fork_of"] else ""


@click.command()
@click.argument("id", metavar="ID")
@json_option
@with_settings
def show(settings: Settings, id: str, as_json: bool) -> None:
    """Show a job, a run, or a tool call with its whole input and output.

    An id may be shortened to its beginning or to its last six or more characters.

    \b
    Example:
      runner show k3x9f2
      runner show call_01jd9kqy5m8v0z3t7w2r4x6n1b_3_1
    """
    from runner.app.show import details_of

    with opened(settings) as handle:
        database = handle.database
        details = details_of(settings, database, id)
    if as_json:
        say_json(details.as_json())
    else:
        {"job": _say_job, "run": _say_run, "call": _say_call}[details.kind](details.values)


def _say_job(job: dict[str, Any]) -> None:
    spec = job["spec"]
    workspace = spec["workspace"] or {}
    source, commit = workspace.get("url") or workspace.get("path"), workspace.get("commit")
    is_own = workspace.get("mode") in ("git", "copy")
    say_fields(
        (
            ("job", job["id"]),
            ("name", job["name"]),
            ("key", job["key"]),
            ("state", job["state"]),
            ("runs", _counts(job["runs"])),
            ("model", spec["model"] if spec["provider"] == "anthropic" else "scripted"),
            ("tools", ", ".join(tool["name"] for tool in spec["tools"])),
            ("rules", ", ".join(f"{r['effect']} {r['rule']}" for r in job["permission_rules"])),
            ("workspace", f"{source} ({workspace['mode']})" if source and is_own else source),
            ("base", commit and f"{workspace['base']}, commit {commit}"),
            ("remote", workspace.get("remote")),
            ("verify", "; ".join((spec.get("verify") or {}).get("commands", ()))),
            ("turns", f"{job['turns']:,}"),
            ("tokens", _tokens(job)),
            ("cost", cost_line(job["spending"])),
            *budget_fields(job),
            ("denied", job["denials"] or None),
            ("submitted", moment(job["created_at"])),
            ("source", job["source"]),
            ("sha256", job["spec_digest"]),
        )
    )
    say(f"\nIts runs: runner list {job['id']}")


def _say_run(run: dict[str, Any]) -> None:
    from runner.app.show import descent, tree_line

    say_fields(
        (
            ("run", run["id"]),
            ("item", run["item_key"]),
            *descent(run),
            ("job", f"{run['job_id']} {run['job_name']}"),
            ("state", run["state"]),
            ("reason", run["reason"]),
            ("detail", run["waits_for"] or run["detail"]),
            ("pausing", "pauses at its next step" if run["pause_requested"] else None),
            ("model", run["model"]),
            ("turns", f"{run['turns']} of {run['max_turns']}"),
            ("tokens", f"{_tokens(run)} of {run['token_ceiling']:,}"),
            ("cost", cost_line(run["spending"])),
            ("its tree", tree_line(run)),
            ("charged", _charged(run)),
            ("context", _context(run)),
            ("compacted", _compactions(run)),
            ("worked", _worked(run)),
            ("denied", run["denials"] or None),
            ("attempts", run["attempt"]),
            ("worker", run["worker_id"]),
            ("workspace", run["workspace_path"]),
            ("branch", run["branch"]),
            ("begun at", run["start_commit"]),
            ("commit", run["commit"]),
            ("files", _files(run["start_tree"], run["tree"])),
            ("verified", _verified(run["verifications"])),
            ("result", _one_line(run["result"])),
            ("submitted", moment(run["created_at"])),
            ("started", moment(run["started_at"])),
            ("due", moment(run["due_at"])),
            ("ended", moment(run["ended_at"])),
            ("fresh of", run["fresh_of"]),
            ("afresh as", run["fresh_run"]),
            ("fork of", run["fork_of"] and f"{run['fork_of']}@{run['fork_turn']}"),
            ("queued", "; ".join(each["text"] for each in run["queued_messages"])),
        )
    )
    _say_children(run)
    _say_decisions(run)
    say(f"\nWhat was said: runner transcript {run['id']}")
    if run["tree"]:
        say(f"What changed: runner diff {run['id']}")
    say(f"What happened: runner events {run['id']}")


def _tokens(row: Mapping[str, Any]) -> str:
    return (
        f"{row['charged_tokens']:,} ({row['input_tokens']:,} in, "
        f"{row['cache_read_tokens']:,} read from the cache, "
        f"{row['cache_creation_tokens']:,} written to it, {row['output_tokens']:,} out)"
    )


def _charged(run: Mapping[str, Any]) -> str | None:
    """What counts against the cost ceiling, where there is one."""
    ceiling = run["cost_ceiling_usd"]
    if ceiling is None:
        return None
    return f"{usd_of(run['charged_cost'])} of {dollars(Decimal(str(ceiling)))}"


def _context(run: Mapping[str, Any]) -> str | None:
    full = run["fullness"]
    if full is None:
        return None
    return (
        f"about {full['tokens']:,} of {run['window']:,} tokens "
        f"({full['correction']:.2f} real ones for each that was estimated)"
    )


def _compactions(run: Mapping[str, Any]) -> str:
    told = ", ".join(f"{count} × {kind}" for kind, count in run["compactions"].items())
    why = run["left_out"]["why"]
    return f"{told} (no summary: {cell(why)})" if why else told


def _worked(run: Mapping[str, Any]) -> str | None:
    most = run["working_time"]
    if not run["worked"] and most is None:
        return None
    return duration(run["worked"]) + (f" of {duration(most)}" if most is not None else "")


def _files(before: str | None, after: str | None) -> str | None:
    """The first and the last snapshot of the workspace."""
    return None if after is None else f"tree {before} became {after}"


def _one_line(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _verified(verifications: Sequence[Any]) -> str | None:
    if not verifications:
        return None
    newest = verifications[-1]
    which = f"verification {newest['number']}, after turn {newest['turn']}"
    return f"{verified(newest)} ({which})"


def _say_children(run: Mapping[str, Any]) -> None:
    if not run["children"]:
        return
    say("\nsub-agents, each with all below it in its cost:")
    names = ("id", "agent_type", "state", "reason", "turns")
    say_table(
        ("run", "type", "state", "reason", "turns", "tokens", "cost", "description"),
        (
            (
                *(child[name] for name in names),
                f"{child['charged_tokens']:,}",
                cost(run["child_spending"][child["id"]]),
                child["description"],
            )
            for child in run["children"]
        ),
    )


def _say_decisions(run: Mapping[str, Any]) -> None:
    is_over = run["state"] in ENDED
    waiting = [] if is_over else [each for each in run["approvals"] if each["answer"] is None]
    if run["denied_calls"]:
        say("\ndenied:")
        for call in run["denied_calls"]:
            matched = f" {cell(call['matched'])}" if call["matched"] else ""
            say(f"  {call['id']}  {cell(call['tool'])}{matched}: {denier(call)}")
    if waiting:
        say("\nwaits for an answer:")
        for each in waiting:
            say(f"  {each['call_id']}  {cell(each['tool'])} {cell(each['summary'])}")
        say(f"Answer: runner approvals {run['id']}")


def _say_call(call: dict[str, Any]) -> None:
    from runner.app.show import child_line
    from runner.app.transcript import text_of

    approval = call["approval"]
    asked = approval or {"asked_at": None, "answered_at": None, "expires_at": None}
    say_fields(
        (
            ("call", call["id"]),
            ("label", call["label"]),
            ("run", call["run_id"]),
            ("turn", call["turn"]),
            ("tool", call["name"]),
            ("API id", call["tool_use_id"]),
            ("state", call["state"]),
            ("decision", call["decision"]),
            ("by", call["decision"] and decider(call | {"why": call["rule_why"]})),
            ("matched", call["matched"]),
            ("snapshot", call["decision_snapshot"]),
            ("asked", moment(asked["asked_at"])),
            ("approval", approval and approval["id"]),
            ("answer", approval and answer(approval)),
            ("answered", moment(asked["answered_at"])),
            ("expires", "" if asked.get("answer") else moment(asked["expires_at"])),
            ("started", moment(call["started_at"])),
            ("took", duration(call["duration"])),
            ("files", _files(call["tree_before"], call["tree_after"])),
            *(("sub-agent", child_line(child)) for child in call["children"]),
        )
    )
    inputs = [("input", call["input"])]
    if call["updated_input"] is not None:
        inputs.append(("ran with this input instead, by a hook", call["updated_input"]))
    if approval and approval["edited_input"] is not None:
        by = f"by {cell(approval['answered_by'])}"
        inputs.append((f"ran with this input instead, {by}", approval["edited_input"]))
    for heading, value in inputs:
        say(f"\n{heading}:\n{json.dumps(value, indent=2, ensure_ascii=False)}")
    if call["output"] is not None:
        say(f"\noutput:\n{text_of(call['output'])}")


@click.command()
@click.argument("id", metavar="RUN|JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends, with live text.")
@click.option("--tree", "whole_tree", is_flag=True, help="Of the run and its sub-agents together.")
@json_option
@with_settings
def events(settings: Settings, id: str, follow: bool, whole_tree: bool, as_json: bool) -> None:
    """Show what happened in a run, step by step; of a job, what was done to it and its runs.

    Of a job it shows who submitted it, and every change since: who made it (`runner` is what Runner
    does by itself), when, why, and the values before and after.

    With -f it goes on until the run has ended, and shows the model's text as it is written. With
    --json -f each line is an object.

    With --tree it is of the run and of all the sub-agents below it, in order of time. Before its type an
    event has whose it is: 3 is the third sub-agent that the run has started, 3.1 the first that this
    one has. Behind it, which tool call it is of: 3.2 is the second of the third sub-agent, 2 the
    second of the run itself. In JSON that is its label, of other events that of the run.

    \b
    Example:
      runner events k3x9f2 -f
      runner events k3x9f2 --tree
      runner events job_01jd9k
    """
    from runner.app.show import events_of

    with opened(settings) as handle:
        database = handle.database
        if follow:
            _follow(settings, database, id, whole_tree=whole_tree, as_json=as_json)
            return
        kind, found = events_of(database, id, whole_tree=whole_tree)
    if as_json:
        say_json(found)
        return
    for event in found:
        _say_event(event) if kind == "run" else _say_change(event)


def _follow(settings: Settings, database: Any, id: str, *, whole_tree: bool, as_json: bool) -> None:
    from runner.app.show import follow

    def tell(reason: str) -> None:
        note(f"runner: no live text: {cell(reason)}")

    in_text = False
    for event in follow(settings, database, id, whole_tree=whole_tree, tell=tell):
        if as_json:
            say_json(event, on_one_line=True)
        elif event["type"] == "text_delta":
            sys.stdout.write(lines(event["text"]))
            in_text = not event["text"].endswith("\n")
        else:
            if in_text:
                say()
            in_text = False
            _say_event(event)
        sys.stdout.flush()


def _say_event(event: Mapping[str, Any]) -> None:
    """Print an event of a run on a line: the label of its run before its type, that of its call behind."""
    at = datetime.fromtimestamp(event["at"]).astimezone().strftime("%H:%M:%S")
    run = place_of(event["run_id"])["label"]
    call = event["label"] if event["label"] != run else ""
    kind = cell(event["type"])
    told = f"{event['number']:>5}  {at}  #{event['attempt']}  {run:<4}  {kind:<18}"
    say(f"{told}  {call:<5}  {_data(event)}".rstrip())


def _say_change(event: Mapping[str, Any]) -> None:
    """Print what was done to a job or one of its runs on a line."""
    of = event["run_id"] or event["job_id"]
    say(f"{moment(event['at'])}  {of}  {cell(event['type']):<18}  {_data(event)}".rstrip())


def _data(event: Mapping[str, Any]) -> str:
    told = {name: value for name, value in event["data"].items() if value not in (None, "")}
    return " ".join(f"{name}={_short(value)}" for name, value in told.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + " ".join(f"{cell(name)}={_short(each)}" for name, each in value.items()) + ")"
    if isinstance(value, float):
        return f"{value:.10g}"
    text = cell(value)
    return f'"{text}"' if " " in text else text
