"""``show`` and ``events``: a job, a run or a tool call, and what happened to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import click

from runner.app import handle, humanize, transcript
from runner.app import show as app_show
from runner.app.event_words import event_note
from runner.app.humanize import cell, cost_line, counts, duration, lines, moment, usd_of
from runner.cli.audit import format_option, say_rows
from runner.cli.costs import budget_fields
from runner.cli.drawing import TONES
from runner.cli.options import JOB_OR_RUN, filters, json_option, with_app
from runner.cli.terminal import (
    MARGIN,
    MOST_ALIKE,
    Line,
    note,
    print_lines,
    say,
    say_content,
    say_fields,
    say_json,
    say_table,
)
from runner.core.agents import place_of
from runner.core.conversation import Usage
from runner.core.run import ENDED
from runner.core.spec import JobSpec
from runner.errors import UsageError
from runner.permissions import STANDING

# Values shown as stored: names with columns.
_WHERE = {
    "attempts": "attempt",
    "worker": "worker_id",
    "workspace": "workspace_path",
    "branch": "branch",
    "begun at": "start_commit",
    "commit": "commit",
}
_TIMES = {"submitted": "created_at", "started": "started_at", "due": "due_at", "ended": "ended_at"}
_CALLED = {
    "call": "id",
    "label": "label",
    "run": "run_id",
    "turn": "turn",
    "tool": "name",
    "API id": "tool_use_id",
    "state": "state",
    "decision": "decision",
}


@click.command()
@click.argument("id", type=JOB_OR_RUN, metavar="ID")
@json_option
@with_app
def show(app: handle.App, id: str, as_json: bool) -> None:
    """Show a job, a run, or a tool call with its whole input and output.

    \b
    Example:
      runner show last
      runner show k3x9f2
      runner show call_01jd9kqy5m8v0z3t7w2r4x6n1b_3_1
    """
    kind, details = app_show.details_of(app, id)
    if as_json:
        say_json(app_show.details_as_json(details))
    else:
        {"job": _say_job, "run": _say_run, "call": _say_call}[kind](details)


def _say_job(job: dict[str, Any]) -> None:
    spec = job["spec"]
    times = JobSpec.from_json(spec).times
    workspace = spec["workspace"] or {}
    source, commit = workspace.get("url") or workspace.get("path"), workspace.get("commit")
    is_own = workspace.get("mode") in ("git", "copy")
    say_fields(
        (
            ("job", job["id"]),
            *((name, job[name]) for name in ("name", "key")),
            ("state", job["shown_state"]),
            ("runs", counts(job["shown_runs"])),
            ("waits", (job["waits_for"] or "").removeprefix("waits ")),
            ("model", "scripted" if spec["provider"] == "scripted" else spec["model"]),
            ("account", JobSpec.from_json(spec).account),
            ("tools", ", ".join(tool["name"] for tool in spec["tools"])),
            ("rules", ", ".join(map(_rule, job["permission_rules"]))),
            ("workspace", f"{source} ({workspace['mode']})" if source and is_own else source),
            ("base", commit and f"{workspace['base']}, commit {commit}"),
            ("remote", workspace.get("remote")),
            ("sandbox", _sandbox(job)),
            ("verify", "; ".join((spec.get("verify") or {}).get("commands", ()))),
            ("turns", f"{job['turns']:,}"),
            ("tokens", _tokens(job)),
            ("cost", cost_line(job["spending"])),
            *budget_fields(job),
            ("forecast", job["forecast"] and job["forecast"].line),
            ("not before", times.not_before),
            ("window", times.window),
            ("finish by", job["finish_by_text"]),
            ("lane", job["lane"]),
            ("denied", job["denials"] or None),
            ("submitted", moment(job["created_at"])),
            ("source", job["source"]),
            ("options", " ".join(spec.get("options", ()))),
            ("sha256", job["spec_digest"]),
            ("page", job["page"]),
        )
    )
    say(f"\nIts runs: runner list {job['id']}")


def _rule(rule: Mapping[str, Any]) -> str:
    of = " (standing)" if rule["origin"] == STANDING else ""
    return f"{rule['effect']} {rule['rule']}{of}"


def _sandbox(job: Mapping[str, Any]) -> str:
    """Return what a job asks for, and what its calls had."""
    asked = (job["spec"].get("sandbox") or {"mode": "off"})["mode"]
    had = humanize.containment_line(job["containment"])
    return f"{asked}: {had}" if had else asked


def _say_run(run: dict[str, Any]) -> None:
    limits = f" of {run['max_turns']}", f" of {run['token_ceiling']:,}"
    of_turns, of_tokens = limits if run["session"] is None else ("", "")  # a session had none
    told = {
        "run": run["id"],
        "item": run["item_key"],
        **dict(app_show.descent(run)),
        "job": f"{run['job_id']} {run['job_name']}",
        "state": run["shown_state"],
        "reason": run["reason"],
        "detail": run["waits_for"] or run["detail"],
        "pausing": "pauses at its next step" if run["pause_requested"] else None,
        "model": run["model"],
        **dict(transcript.session_facts(run["session"])),
        "turns": f"{run['turns']}{of_turns}",
        "tokens": f"{_tokens(run)}{of_tokens}",
        "cost": cost_line(run["spending"]),
        "its tree": app_show.tree_line(run),
        **_used(run),
        "denied": run["denials"] or None,
        **{name: run[column] for name, column in _WHERE.items()},
        "files": _files(run["start_tree"], run["tree"]),
    }
    if run["verifications"]:
        newest = run["verifications"][-1]
        which = f"verification {newest['number']}, after turn {newest['turn']}"
        told["verified"] = f"{humanize.verified(newest)} ({which})"
    if run["result"] is not None:
        told["result"] = json.dumps(run["result"], ensure_ascii=False)
    told |= {
        **{name: moment(run[column]) for name, column in _TIMES.items()},
        "fresh of": run["fresh_of"],
        "afresh as": run["fresh_run"],
        "fork of": run["fork_of"] and f"{run['fork_of']}@{run['fork_turn']}",
        "queued": "; ".join(each["text"] for each in run["queued_messages"]),
        "page": run["page"],
    }
    say_fields(told.items())
    _say_children(run)
    _say_decisions(run)
    say(f"\nWhat was said: runner transcript {run['id']}")
    if run["tree"]:
        say(f"What changed: runner diff {run['id']}")
    say(f"What happened: runner events {run['id']}")


def _tokens(row: Mapping[str, Any]) -> str:
    unknown = row["charged_tokens"] - sum(row[kind] for kind in Usage.__slots__)
    return (
        f"{row['charged_tokens']:,} ({row['input_tokens']:,} in, "
        f"{row['cache_read_tokens']:,} read from the cache, "
        f"{row['cache_creation_tokens']:,} written to it, {row['output_tokens']:,} out"
        f"{f', {unknown:,} for calls of unknown usage' if unknown else ''})"
    )


def _used(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the shares of its limits and context window that a run has used."""
    used, ceiling, full = {}, run["cost_ceiling_usd"], run["fullness"]
    if ceiling is not None:
        used["charged"] = (
            f"{usd_of(run['charged_cost'])} of {humanize.dollars(Decimal(str(ceiling)))}"
        )
    if full is not None:
        used["context"] = (
            f"about {full['tokens']:,} of {run['window']:,} tokens "
            f"({full['correction']:.2f} real tokens for each estimated one)"
        )
    why = f" (no summary: {cell(run['left_out']['why'])})" if run["left_out"]["why"] else ""
    kinds = ", ".join(f"{count} × {kind}" for kind, count in run["compactions"].items())
    used["compacted"] = kinds + why
    most = run["working_time"]
    if run["worked"] or most is not None:
        limit = f" of {duration(most)}" if most is not None else ""
        used["worked"] = duration(run["worked"]) + limit
    return used


def _files(before: str | None, after: str | None) -> str | None:
    return None if after is None else f"tree {before} became {after}"


def _say_children(run: Mapping[str, Any]) -> None:
    if not run["children"]:
        return
    say("\nsub-agents (the cost of each includes its own sub-agents):")
    names = ("id", "agent_type", "shown_state", "reason", "turns")
    say_table(
        ("run", "type", "state", "reason", "turns", "tokens", "cost", "description"),
        (
            (
                *(child[name] for name in names),
                humanize.tokens_of(child["charged_tokens"], child["unknown_tokens"]),
                humanize.cost(run["child_spending"][child["id"]]),
                child["description"],
            )
            for child in run["children"]
        ),
        spare=("turns", "tokens", "reason"),
    )


def _say_decisions(run: Mapping[str, Any]) -> None:
    is_over = run["state"] in ENDED
    waiting = [] if is_over else [each for each in run["approvals"] if each["answer"] is None]
    if run["denied_calls"]:
        say("\ndenied:")
        for call in run["denied_calls"]:
            matched = f" {cell(call['matched'])}" if call["matched"] else ""
            say(f"  {call['id']}  {cell(call['tool'])}{matched}: {humanize.denier(call)}")
    if waiting:
        say("\nwaits for an answer:")
        for each in waiting:
            say(f"  {each['call_id']}  {cell(each['tool'])} {cell(each['summary'])}")
        say(f"Answer: runner approvals {run['id']}")


def _say_call(call: dict[str, Any]) -> None:
    approval = call["approval"]
    asked = approval or {"asked_at": None, "answered_at": None, "expires_at": None}
    say_fields(
        (
            *((name, call[column]) for name, column in _CALLED.items()),
            ("by", call["decision"] and humanize.decider(call | {"why": call["rule_why"]})),
            ("matched", call["matched"]),
            ("snapshot", call["decision_snapshot"]),
            ("asked", moment(asked["asked_at"])),
            ("approval", approval and approval["id"]),
            ("answer", approval and humanize.answer(approval)),
            ("answered", moment(asked["answered_at"])),
            ("expires", "" if asked.get("answer") else moment(asked["expires_at"])),
            ("started", moment(call["started_at"])),
            ("took", duration(call["duration"])),
            ("contained by", call["containment"]),
            ("files", _files(call["tree_before"], call["tree_after"])),
            *(("sub-agent", app_show.child_line(child)) for child in call["children"]),
        )
    )
    inputs = {"input": call["input"]}
    if call["updated_input"] is not None:
        inputs["ran with this input instead, by a hook"] = call["updated_input"]
    if approval and approval["edited_input"] is not None:
        by = f"by {cell(approval['answered_by'])}"
        inputs[f"ran with this input instead, {by}"] = approval["edited_input"]
    for heading, value in inputs.items():
        say(f"\n{heading}:")
        say_content(json.dumps(value, indent=2, ensure_ascii=False))
    if call["original"] is not None:
        say("\na hook showed the model this instead:")
        say_content(transcript.text_of(call["result"]))
    if call["output"] is not None:
        say("\noutput:")
        say_content(transcript.text_of(call["output"]))


@click.command()
@click.argument("id", type=JOB_OR_RUN, metavar="RUN|JOB")
@click.option("-f", "--follow", is_flag=True, help="Follow the run until it ends, with live text.")
@click.option("--tree", "whole_tree", is_flag=True, help="Include the run's sub-agents.")
@filters("since", "until", "tool", "model")
@format_option
@json_option
@with_app
def events(
    app: handle.App,
    id: str,
    follow: bool,
    whole_tree: bool,
    only: Any,
    format: str | None,
    as_json: bool,
) -> None:
    """Show what happened in a run, step by step, or what people and Runner did to a job and its
    runs.

    For a job it shows who submitted it, and each change since: who made it (`runner` is Runner
    itself), when, why, and the old and new values.

    -f follows a run until it ends, with a line for each important event and the model's text as it
    is written. With --json -f, each line is an object, and no event is left out.

    --tree shows the run and its sub-agents in order of time. The label before an event's type is
    the sub-agent: 3 is the third sub-agent of the run, 3.1 the first sub-agent of 3. The label
    after the type is the tool call: 3.2 is the second call of sub-agent 3. In JSON the label of the
    call, or else of the sub-agent, is `label`.

    With a filter or a format, the output is a table of the events of one run and the changes of its
    job, with the cost of model calls and the length of waits.

    \b
    Example:
      runner events k3x9f2 -f
      runner events k3x9f2 --tree
      runner events last/slugs --tool Bash --format csv
      runner events job_01jd9k
    """
    if only or format:
        from runner.audit import Audit

        if follow or whole_tree:
            raise UsageError("-f and --tree take no filter and no --format: leave them out")
        rows = Audit.of(app).timeline(id, **only)
        say_rows(rows, "json" if as_json else format or "table")
        return
    if follow:
        _follow(app, id, whole_tree=whole_tree, as_json=as_json)
        return
    kind, found = app_show.events_of(app, id, whole_tree=whole_tree)
    if as_json:
        say_json(found)
        return
    if kind == "run":
        for event in found:
            _say_event(event)
        return
    alike: dict[tuple[str, str, str], list[str]] = {}  # the ids of runs, by the rest of the line
    for event in found:
        key = moment(event["at"]), cell(event["type"]), _data(event)
        alike.setdefault(key, []).append(event["run_id"] or event["job_id"])
    for (at, type_, data), ids in alike.items():
        for of in ids if len(ids) <= MOST_ALIKE else [f"{len(ids):,} runs"]:
            say(f"{at}  {of:<8}  {type_:<18}  {data}".rstrip())


def _follow(app: handle.App, id: str, *, whole_tree: bool, as_json: bool) -> None:
    if not as_json:
        follow_in_words(app, id, whole_tree=whole_tree)
        return

    def tell(reason: str) -> None:
        note(f"runner: {cell(reason)}")

    for event in app_show.follow(app, id, whole_tree=whole_tree, tell=tell):
        say_json(event, on_one_line=True)
        sys.stdout.flush()


def _say_event(event: Mapping[str, Any]) -> None:
    """Print an event of a run on a line: the label of its run before its type, that of its call behind."""
    run = place_of(event["run_id"])["label"]
    call = event["label"] if event["label"] != run else ""
    kind = cell(event["type"])
    told = f"{event['number']:>5}  {moment(event['at'])}  #{event['attempt']}  {run:<4}  {kind:<18}"
    say(f"{told}  {call:<5}  {_data(event)}".rstrip())


def _data(event: Mapping[str, Any]) -> str:
    told = {name: value for name, value in event["data"].items() if value not in (None, "")}
    return " ".join(f"{name}={_short(value)}" for name, value in told.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + " ".join(f"{cell(name)}={_short(each)}" for name, each in value.items()) + ")"
    if isinstance(value, list):
        return "[" + " ".join(map(_short, value)) + "]"
    if isinstance(value, float):
        return f"{value:.10g}"
    text = cell(value)
    return f'"{text}"' if " " in text else text


def follow_in_words(
    app: handle.App, id: str, *, whole_tree: bool = False, only_new: bool = False
) -> None:
    """Print what happens in a run until it has ended (``only_new``: from now on). Raises
    ``UnreachableError``. The model's text is indented, so that none of it looks like Runner's lines."""
    writing = ""  # the run whose text stands on the last line

    def tell(line: Line) -> None:
        nonlocal writing
        if writing:
            sys.stdout.write("\n")
        writing = ""
        print_lines([line], paged=False)

    def warn(reason: str) -> None:
        tell([(cell(reason), TONES["wait"])])

    found = app_show.follow(app, id, tell=warn, whole_tree=whole_tree, only_new=only_new)
    for event in found:
        label = place_of(event["run_id"])["label"]
        whose = [(f"{label}  ", "magenta")] if label else []
        if event["type"] == "text_delta":
            if writing != event["run_id"]:
                sys.stdout.write("\n" + MARGIN if writing else MARGIN)
            sys.stdout.write(lines(event["text"]).replace("\n", f"\n{MARGIN}"))
            writing = event["run_id"]
        elif said := event_note(event["type"], event["data"], event["attempt"]):
            at = datetime.fromtimestamp(event["at"]).astimezone().strftime("%H:%M:%S")
            tell([(f"{at}  ", "dim"), *whose, (said.words, TONES[said.tone])])
        sys.stdout.flush()
    if writing:
        sys.stdout.write("\n")
