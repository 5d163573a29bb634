"""``show``: a job, a run, or a tool call with all that is known of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import cell, cost_line, dollars, duration, lines, moment, verified
from runner.app.transcript import text_of
from runner.cli.control import budget_fields, usd_of, waits_for
from runner.cli.costs import cost_fields, spending_of
from runner.cli.look.family import (
    descent,
    family_fields,
    family_of,
    say_children,
    started_by,
    tree_line,
    words,
)
from runner.cli.look.listing import counts
from runner.cli.options import json_option, stored, with_settings
from runner.cli.terminal import say, say_fields, say_json
from runner.core.agents import place_of
from runner.core.run import ENDED
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.queries.jobs import Verification
    from runner.store.database import Database


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
    from runner.queries import decisions, transcript
    from runner.queries.find import find
    from runner.queries.jobs import show_job

    say_it: Callable[[dict[str, Any]], None]
    with stored(settings) as database:
        found = find(database, id, "job", "run", "call")
        match found.kind:
            case "job":
                shown, say_it = show_job(database, found.id), _say_job
                shown["spending"] = spending_of(settings, database, job_id=found.id)
            case "run":
                shown, say_it = _run(settings, database, found.id), _say_run
            case "call":
                shown, say_it = transcript.show_call(database, found.id), _say_call
                shown |= decisions.decision_on_call(database, found.id)
                shown["children"] = started_by(database, found.id)
        if not as_json:
            say_it(shown)
            return
        if found.kind == "run":
            shown = family_fields(shown)
        spending = shown.pop("spending", None)
        say_json(shown | (cost_fields(spending) if spending is not None else {}))


def _run(settings: Settings, database: Database, run_id: str) -> dict[str, Any]:
    """All that is known of a run, its conversation and events apart."""
    from runner.queries import decisions
    from runner.queries.files import snapshots_of_run
    from runner.queries.jobs import pruned_turns, result_of_run, show_run, verifications_of_run

    shown = show_run(database, run_id)
    trees = snapshots_of_run(database, run_id)
    return shown | {
        **place_of(run_id),
        **family_of(settings, database, run_id),
        "spending": spending_of(settings, database, run_id=run_id),
        "window": _window(settings, shown),
        "left_out": asdict(pruned_turns(database, shown["job_id"], run_id)),
        "waits_for": waits_for(database, [shown]).get(run_id),
        "denied_calls": decisions.denied_calls(database, run_id),
        "approvals": decisions.approvals_of_run(database, run_id),
        "branch": trees.branch,
        "start_commit": trees.start_commit,
        "commit": trees.commit,
        "tree": trees.tree,
        "verifications": verifications_of_run(database, run_id),
        "result": result_of_run(database, run_id),
    }


def _window(settings: Settings, run: dict[str, Any]) -> int:
    """The tokens of the window that a run was last held against; before its first call those of its
    model, as far as can be told without asking the API."""
    from runner import wiring
    from runner.core.context import DEFAULT_WINDOW

    known = (run["fullness"] or {}).get("window") or (run["context"] or {}).get("window")
    return known or wiring.load_prices(settings).window(run["model"]) or DEFAULT_WINDOW


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
            ("workspace", _source(workspace)),
            ("base", _base(workspace)),
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


def _source(workspace: dict[str, Any]) -> str | None:
    source = workspace.get("url") or workspace.get("path")
    own = workspace.get("mode") in ("git", "copy")
    return f"{source} ({workspace['mode']})" if source and own else source


def _base(workspace: dict[str, Any]) -> str | None:
    commit = workspace.get("commit")
    return f"{workspace['base']}, commit {commit}" if commit else None


def _say_run(run: dict[str, Any]) -> None:
    pausing = "pauses at its next step" if run["pause_requested"] else None
    say_fields(
        (
            ("run", run["id"]),
            ("item", run["item_key"]),
            *descent(run),
            ("job", f"{run['job_id']} {run['job_name']}"),
            ("state", run["state"]),
            ("reason", run["reason"]),
            ("detail", run["waits_for"] or run["detail"]),
            ("pausing", pausing),
            ("model", run["model"]),
            ("turns", f"{run['turns']} of {run['max_turns']}"),
            ("tokens", f"{_tokens(run)} of {run['token_ceiling']:,}"),
            ("cost", cost_line(run["spending"])),
            ("its tree", tree_line(run)),
            ("charged", _charged(run)),
            ("context", _fullness(run)),
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
    say_children(run)
    _say_decisions(run)
    say(f"\nWhat was said: runner transcript {run['id']}")
    if run["tree"]:
        say(f"What changed: runner diff {run['id']}")
    say(f"What happened: runner events {run['id']}")


def _verified(verifications: Sequence[Verification]) -> str | None:
    """What the newest verification said, and when."""
    if not verifications:
        return None
    newest = verifications[-1]
    which = f"verification {newest['number']}, after turn {newest['turn']}"
    return f"{verified(newest)} ({which})"


def _files(before: str | None, after: str | None) -> str | None:
    """The trees of the workspace, first and last."""
    return None if after is None else f"tree {before} became {after}"


def _one_line(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _charged(run: dict[str, Any]) -> str | None:
    """What counts against the cost ceiling, where there is one."""
    ceiling = run["cost_ceiling_usd"]
    if ceiling is None:
        return None
    return f"{usd_of(run['charged_cost'])} of {dollars(Decimal(str(ceiling)))}"


def _fullness(run: dict[str, Any]) -> str | None:
    full = run["fullness"]
    if full is None:
        return None
    return (
        f"about {full['tokens']:,} of {run['window']:,} tokens "
        f"({full['correction']:.2f} real ones for each that was estimated)"
    )


def _compactions(run: dict[str, Any]) -> str:
    told = ", ".join(f"{count} × {kind}" for kind, count in run["compactions"].items())
    why = run["left_out"]["why"]
    return f"{told} (no summary: {cell(why)})" if why else told


def _worked(run: dict[str, Any]) -> str | None:
    if not run["worked"] and run["working_time"] is None:
        return None
    most = f" of {duration(run['working_time'])}" if run["working_time"] is not None else ""
    return f"{duration(run['worked'])}{most}"


def _say_decisions(run: dict[str, Any]) -> None:
    from runner.app.humanize import denier

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
    return (
        f"{row['charged_tokens']:,} ({row['input_tokens']:,} in, "
        f"{row['cache_read_tokens']:,} read from the cache, "
        f"{row['cache_creation_tokens']:,} written to it, {row['output_tokens']:,} out)"
    )


def _say_call(call: dict[str, Any]) -> None:
    from runner.app.humanize import answer, decider

    approval = call["approval"]
    decided = call["decision"] and decider(call | {"why": call["rule_why"]})
    expires_at = approval["expires_at"] if approval and not approval["answer"] else None
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
            ("files", _files(call["tree_before"], call["tree_after"])),
            *(("sub-agent", words(child)) for child in call["children"]),
        )
    )
    say("\ninput:")
    say(lines(json.dumps(call["input"], indent=2, ensure_ascii=False)))
    if call["updated_input"] is not None:
        say("\nran with this input instead, by a hook:")
        say(lines(json.dumps(call["updated_input"], indent=2, ensure_ascii=False)))
    if approval and approval["edited_input"] is not None:
        say(f"\nran with this input instead, by {cell(approval['answered_by'])}:")
        say(lines(json.dumps(approval["edited_input"], indent=2, ensure_ascii=False)))
    if call["output"] is not None:
        say("\noutput:")
        say(lines(text_of(call["output"])))
