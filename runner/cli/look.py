"""``list``, ``show``, ``transcript`` and ``events``: looking at what there is and what was done."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from runner.cli.costs import cost_fields, cost_line, spending_of, with_costs
from runner.cli.display import (
    cell,
    duration,
    lines,
    moment,
    say,
    say_fields,
    say_json,
    say_table,
)
from runner.cli.options import json_option, state_option, stored, with_settings
from runner.core.run import ENDED, RunState
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.store.look.decisions import DeniedCall
    from runner.store.look.queries import JobSummary, RunSummary
    from runner.store.look.transcript import Line


@click.command("list")
@click.argument("job", required=False)
@state_option
@json_option
@with_settings
def list_(settings: Settings, job: str | None, state: RunState | None, as_json: bool) -> None:
    """List the jobs, or the runs of a job.

    \b
    Example:
      runner list
      runner list job_01jd9k --state failed
    """
    from runner.store.look import queries
    from runner.store.look.find import find

    with stored(settings) as database:
        if job is None:
            jobs = queries.list_jobs(database, state)
            say_json(with_costs(settings, database, "job", jobs)) if as_json else _say_jobs(jobs)
        else:
            job_id = find(database, job, "job").id
            runs = queries.list_runs(database, job_id, state)
            if as_json:
                say_json(with_costs(settings, database, "run", runs, job_id=job_id))
            else:
                _say_runs(runs)


def _say_jobs(jobs: list[JobSummary]) -> None:
    say_table(
        ("job", "name", "state", "runs", "turns", "tokens", "denied", "submitted"),
        (
            (
                job["id"],
                job["name"],
                job["state"],
                counts(job["runs"]),
                f"{job['turns']:,}",
                f"{job['charged_tokens']:,}",
                job["denials"] or "",
                moment(job["created_at"]),
            )
            for job in jobs
        ),
    )


def counts(by_state: dict[RunState, int]) -> str:
    """Runs by state in words: ``2 running, 5 queued``."""
    return ", ".join(f"{count} {state}" for state, count in by_state.items())


def _say_runs(runs: list[RunSummary]) -> None:
    say_table(
        ("run", "item", "state", "reason", "turns", "tokens", "denied", "detail"),
        (
            (
                run["id"],
                run["item_key"],
                run["state"],
                run["reason"],
                run["turns"],
                f"{run['charged_tokens']:,}",
                run["denials"] or "",
                run["detail"]
                or (f"begun afresh as {run['fresh_run']}" if run["fresh_run"] else ""),
            )
            for run in runs
        ),
    )


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
    from runner.store.look import decisions, queries, transcript
    from runner.store.look.find import find

    say_it: Callable[[dict[str, Any]], None]
    with stored(settings) as database:
        found = find(database, id, "job", "run", "call")
        match found.kind:
            case "job":
                shown, say_it = queries.show_job(database, found.id), _say_job
                shown["spending"] = spending_of(settings, database, job_id=found.id)
            case "run":
                shown, say_it = queries.show_run(database, found.id), _say_run
                shown["spending"] = spending_of(settings, database, run_id=found.id)
                shown["denied_calls"] = decisions.denied_calls(database, found.id)
                shown["approvals"] = decisions.approvals_of(database, found.id)
            case "call":
                shown, say_it = transcript.show_call(database, found.id), _say_call
                shown |= decisions.why_of(database, found.id)
        if not as_json:
            say_it(shown)
            return
        spending = shown.pop("spending", None)
        say_json(shown | (cost_fields(spending) if spending is not None else {}))


def _say_job(job: dict[str, Any]) -> None:
    spec = job["spec"]
    workspace = spec["workspace"] or {}
    say_fields(
        (
            ("job", job["id"]),
            ("name", job["name"]),
            ("key", job["key"]),
            ("state", job["state"]),
            ("runs", counts(job["runs"])),
            ("model", spec["model"] if spec["provider"] == "anthropic" else "scripted"),
            ("tools", ", ".join(tool["name"] for tool in spec["tools"])),
            ("rules", ", ".join(f"{r['effect']} {r['rule']}" for r in job["permission_rules"])),
            ("workspace", workspace.get("path")),
            ("turns", f"{job['turns']:,}"),
            ("tokens", _tokens(job)),
            ("cost", cost_line(job["spending"])),
            ("denied", job["denials"] or None),
            ("submitted", moment(job["created_at"])),
            ("source", job["source"]),
            ("sha256", job["spec_digest"]),
        )
    )
    say(f"\nIts runs: runner list {job['id']}")


def _say_run(run: dict[str, Any]) -> None:
    pausing = "pauses at its next step" if run["pause_requested"] else None
    say_fields(
        (
            ("run", run["id"]),
            ("item", run["item_key"]),
            ("job", f"{run['job_id']} {run['job_name']}"),
            ("state", run["state"]),
            ("reason", run["reason"]),
            ("detail", run["detail"]),
            ("pausing", pausing),
            ("model", run["model"]),
            ("turns", f"{run['turns']} of {run['max_turns']}"),
            ("tokens", f"{_tokens(run)} of {run['token_ceiling']:,}"),
            ("cost", cost_line(run["spending"])),
            ("denied", run["denials"] or None),
            ("attempts", run["attempt"]),
            ("worker", run["worker_id"]),
            ("workspace", run["workspace_path"]),
            ("submitted", moment(run["created_at"])),
            ("started", moment(run["started_at"])),
            ("due", moment(run["due_at"])),
            ("ended", moment(run["ended_at"])),
            ("fresh of", run["fresh_of"]),
            ("afresh as", run["fresh_run"]),
            ("queued", "; ".join(each["text"] for each in run["queued_messages"])),
        )
    )
    _say_decisions(run)
    say(f"\nWhat was said: runner transcript {run['id']}")
    say(f"What happened: runner events {run['id']}")


def _say_decisions(run: dict[str, Any]) -> None:
    from runner.cli.permissions.words import denier

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


def _tokens(row: dict[str, Any]) -> str:
    cached = row["cache_read_tokens"] + row["cache_creation_tokens"]
    return (
        f"{row['charged_tokens']:,} ({row['input_tokens']:,} in, {cached:,} cached, "
        f"{row['output_tokens']:,} out)"
    )


def _say_call(call: dict[str, Any]) -> None:
    from runner.cli.permissions.words import answer, decider

    approval = call["approval"]
    decided = call["decision"] and decider(call | {"why": call["rule_why"]})
    expires_at = approval["expires_at"] if approval and not approval["answer"] else None
    say_fields(
        (
            ("call", call["id"]),
            ("run", call["run_id"]),
            ("turn", call["turn"]),
            ("tool", call["name"]),
            ("API id", call["tool_use_id"]),
            ("state", call["state"]),
            ("decision", call["decision"]),
            ("by", decided),
            ("matched", call["matched"]),
            ("snapshot", call["decision_snapshot"]),
            ("asked", approval and moment(approval["asked_at"])),
            ("approval", approval and approval["id"]),
            ("answer", approval and answer(approval)),
            ("answered", approval and moment(approval["answered_at"])),
            ("expires", moment(expires_at)),
            ("started", moment(call["started_at"])),
            ("took", duration(call["duration"])),
        )
    )
    say("\ninput:")
    say(lines(json.dumps(call["input"], indent=2, ensure_ascii=False)))
    if approval and approval["edited_input"] is not None:
        say(f"\nran with this input instead, by {cell(approval['answered_by'])}:")
        say(lines(json.dumps(approval["edited_input"], indent=2, ensure_ascii=False)))
    if call["output"] is not None:
        say("\noutput:")
        say(lines(text_of(call["output"])))


def text_of(content: Any) -> str:
    """A tool result's content as text; blocks that are no text are shown as JSON."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    return "\n".join(
        block["text"]
        if isinstance(block, dict) and isinstance(block.get("text"), str)
        else json.dumps(block, ensure_ascii=False)
        for block in blocks
    )


@click.command()
@click.argument("run")
@json_option
@with_settings
def transcript(settings: Settings, run: str, as_json: bool) -> None:
    """Show the conversation of a run. With --json: the messages exactly as in the API.

    \b
    Example:
      runner transcript k3x9f2
    """
    from runner.store.look import decisions
    from runner.store.look import transcript as stored_transcript
    from runner.store.look.find import find

    with stored(settings) as database:
        run_id = find(database, run, "run").id
        if as_json:
            say_json(stored_transcript.messages(database, run_id))
            return
        denied = {call["id"]: call for call in decisions.denied_calls(database, run_id)}
        asked = {each["call_id"]: each for each in decisions.approvals_of(database, run_id)}
        last = -1
        for line in stored_transcript.lines(database, run_id):
            if line["message"] != last:
                last = line["message"]
                turn = f", turn {line['turn']}" if line["turn"] else ""
                say(f"── {line['role']}{turn} · {moment(line['created_at'])}")
            say(_readable(line))
            if line["call"] is not None and line["content"]["type"] == "tool_use":
                call_id = line["call"]["id"]
                _say_decision(denied.get(call_id), asked.get(call_id))


def _say_decision(denied: DeniedCall | None, asked: dict[str, Any] | None) -> None:
    """Why a call was denied, or what became of the question about it."""
    from runner.cli.permissions.words import answer, denier

    if denied is not None:
        said = denier(denied)
        say(f"[{said if denied['answer'] else f'denied: {said}'}]")
    elif asked is not None:
        edited = ", with another input" if asked["edited_input"] is not None else ""
        say(f"[{answer(asked)}{edited}]")


def _readable(line: Line) -> str:
    content, call = line["content"], line["call"]
    match content["type"]:
        case "text":
            return lines(content["text"])
        case "thinking":
            return "[thinking] " + lines(content.get("thinking", ""))
        case "tool_use" if call is not None:
            arguments = json.dumps(content["input"], ensure_ascii=False)
            return f"[{cell(content['name'])} {call['id']}] {cell(arguments)}"
        case "tool_result" if call is not None:
            outcome = f"{call['state']}, {duration(call['duration'])}"
            return f"[result {call['id']}: {outcome}]\n" + lines(text_of(content["content"]))
        case kind:
            return f"[{cell(kind)}] " + cell(json.dumps(content, ensure_ascii=False))


@click.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends, with live text.")
@json_option
@with_settings
def events(settings: Settings, run: str, follow: bool, as_json: bool) -> None:
    """Show what happened in a run, step by step.

    With -f it goes on until the run has ended, and shows the model's text as it is written. With
    --json -f each line is an object.

    \b
    Example:
      runner events k3x9f2 -f
    """
    from runner.cli.following import follow_run, say_event
    from runner.store.look import queries
    from runner.store.look.find import find

    with stored(settings) as database:
        run_id = find(database, run, "run").id
        if follow:
            follow_run(settings, database, run_id, as_json=as_json)
            return
        found = queries.events_after(database, run_id, 0)
        if as_json:
            say_json(found)
            return
        for event in found:
            say_event(event)
