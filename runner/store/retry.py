"""Continue ended runs: retry, restart, and send a message.

All continue from what is stored; nothing is changed or done twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from runner.core import budget
from runner.core.commands import Change, Raised, Target
from runner.core.events import INPUT_SUMMARY_LENGTH
from runner.core.fold import rested
from runner.core.run import ENDED, UNKNOWN, Author
from runner.core.spec import JobSpec, NewRun
from runner.core.state import Progress
from runner.core.text import shorten
from runner.errors import UsageError
from runner.store import jobs as job_rows
from runner.store.children import family_of
from runner.store.control import (
    batches,
    change_event,
    changed,
    locked_runs,
    refuse_child,
    store_change,
    unchanged,
)
from runner.store.database import Database
from runner.store.run_state import progress_from_row, progress_to_json
from runner.store.tables import blocks, jobs, queued_messages, run_items, runs


def retry(
    database: Database,
    target: Target,
    now: float,
    *,
    raised: Raised | None = None,
    fresh: bool = False,
    only_failed: bool = False,
    author: Author = UNKNOWN,
) -> list[Change]:
    """Let ended runs go on from where they stopped, or (``fresh``) begin them again as new runs.

    Of a job, those are taken that failed, were stopped or cancelled (``only_failed``: only the first)
    and have not been begun afresh; what stands in the way of one does not stop the others.

    Args:
        now: seconds since the epoch.
        author: who says so, for the record.

    Raises:
        UsageError: the target is one run, and it cannot be retried (a sub-agent never can), or its
            runs are sessions of Claude Code's.
    """
    raised = raised or Raised()

    def work(connection: Connection, run_ids: Sequence[str]) -> list[Change]:
        found, changes = locked_runs(connection, run_ids), []
        afresh = _begun_afresh(connection, [run.id for run in found])
        specs: dict[str, JobSpec] = {}
        for run in found:
            if target.kind == "job" and not _is_retried_with_job(run, afresh, only_failed):
                continue
            spec = specs.get(run.job_id) or specs.setdefault(
                run.job_id, job_rows.spec_to_go_on(connection, run.job_id)
            )
            try:
                _refuse_retry(run, afresh, fresh)
                act = _begin_afresh if fresh else _retry
                changes.append(act(connection, run, spec, raised, now, author))
            except UsageError as error:
                if target.kind == "run":
                    raise
                changes.append(unchanged(run, str(error)))
        return changes

    return [
        change
        for run_ids in batches(database, target, runs.c.parent_run.is_(None))
        for change in database.write(partial(work, run_ids=run_ids))
    ]


def say(
    database: Database, run_id: str, text: str, now: float, *, author: Author = UNKNOWN
) -> Change:
    """Queue a user message for a run; one that has ended starts again to answer it.

    Args:
        now: seconds since the epoch.
        author: who says it, for the record.

    Raises:
        UsageError: the text is blank or cannot be stored, or a limit of an ended run is used up, or
            it is a session of Claude Code's, or a sub-agent.
    """
    if not text.strip():
        raise UsageError("the message is empty: say something")
    if not job_rows.is_storable(text):
        raise UsageError("the message has a character that cannot be stored: leave it out")

    def work(connection: Connection) -> Change:
        (run,) = locked_runs(connection, [run_id])
        refuse_child(run.id, "spoken to")
        changes: dict[str, Any] = {"queued_count": run.queued_count + 1}
        if run.state in ENDED:
            spec = job_rows.spec_to_go_on(connection, run.job_id)
            changes |= _taken_up(connection, run, spec, Raised(), now)
        connection.execute(insert(queued_messages).values(run_id=run.id, text=text, created_at=now))
        summary = {"text": shorten(text, INPUT_SUMMARY_LENGTH)}
        event = change_event("message_queued", author, run, changes, summary)
        store_change(connection, run, now, [event], **changes)
        detail = "goes on with the message" if run.state in ENDED else "message queued"
        return changed(run, changes.get("state", run.state), detail)

    return database.write(work)


def _begun_afresh(connection: Connection, run_ids: Sequence[str]) -> dict[str, str]:
    """The runs that were begun afresh, and as which."""
    query = select(runs.c.fresh_of, runs.c.id).where(
        runs.c.job_id.in_(select(runs.c.job_id).where(runs.c.id.in_(run_ids[:1]))),
        runs.c.fresh_of.is_not(None),
    )
    return {row.fresh_of: row.id for row in connection.execute(query)}


def _is_retried_with_job(run: Row[Any], afresh: dict[str, str], only_failed: bool) -> bool:
    states = ("failed",) if only_failed else ("failed", "stopped", "cancelled")
    return run.state in states and run.id not in afresh


def _refuse_retry(run: Row[Any], afresh: dict[str, str], fresh: bool) -> None:
    refuse_child(run.id, "retried")
    if run.state not in ENDED:
        raise UsageError(
            f"{run.id} has not ended (it is {run.state}): cancel it first, or let it go on"
        )
    if run.id in afresh:
        raise UsageError(f"{run.id} was begun afresh as {afresh[run.id]}: retry that one")
    if fresh and run.fork_of is not None:
        raise UsageError(f"{run.id} is a fork: {_how_to_begin_anew(run)}")
    if run.state == "succeeded" and not fresh:
        raise UsageError(
            f"{run.id} has succeeded: do it again with --fresh, or go on with `runner say`"
        )


def _retry(
    connection: Connection, run: Row[Any], spec: JobSpec, raised: Raised, now: float, author: Author
) -> Change:
    changes = _taken_up(connection, run, spec, raised, now)
    event = change_event("retried", author, run, changes)
    store_change(connection, run, now, [event], **changes)
    return changed(run, "queued", "queued again")


def _taken_up(
    connection: Connection, run: Row[Any], spec: JobSpec, raised: Raised, now: float
) -> dict[str, Any]:
    """What changes in the row of an ended run that goes on.

    Raises:
        UsageError: a limit is used up, and how to raise it.
    """
    progress = progress_from_row(run)
    own = raised.of(run)
    used = progress.money.charged
    if progress.children.started:
        used += family_of(connection, run.id).reserved
    _refuse_used_up(run, progress, used, replace(spec.limits, **own), now)
    progress = rested(progress)
    progress = replace(progress, ending=replace(progress.ending, delivered=None))
    return {
        "state": "queued",
        "reason": "",
        "detail": "",
        "due_at": now,
        "rung_at": None,
        "ended_at": None,
        "lost_leases": 0,
        "bugs": 0,
        **own,
        "progress": progress_to_json(progress),
    }


def _refuse_used_up(
    run: Row[Any], progress: Progress, used: budget.Charged, limits: budget.Limits, now: float
) -> None:
    """``used`` is what the run was charged, with what those that it has started were or may be."""
    if limits.deadline is not None and now >= run.created_at + limits.deadline:
        raise UsageError(
            f"{run.id} is past its deadline of {limits.deadline:g} s: {_how_to_begin_anew(run)}"
        )
    if progress.turns >= limits.max_turns:
        raise UsageError(
            f"{run.id} has used {progress.turns} of {limits.max_turns} turns: "
            + _how_to_raise(run, "--max-turns N", f"at least {progress.turns + 1}")
        )
    if limits.working_time is not None and progress.worked >= limits.working_time:
        raise UsageError(
            f"{run.id} has worked {progress.worked:,.0f} s of {limits.working_time:g} s: "
            + _how_to_raise(run, "--working-time D", f"more than {math.ceil(progress.worked)}s")
        )
    _refuse_used_tokens(run, progress, used.tokens, limits)
    _refuse_used_cost(run, used.cost, limits)


def _refuse_used_tokens(
    run: Row[Any], progress: Progress, charged: int, limits: budget.Limits
) -> None:
    if progress.model.open_call is not None:
        charged += progress.model.open_call.reservation.worst_case
    limits = replace(limits, cost_ceiling_usd=None)
    prompt = budget.prompt_bound(
        progress.context.last_prompt_tokens, progress.context.appended_bytes
    )
    cut_before = run.reason == "token_ceiling" and limits.token_ceiling <= run.token_ceiling
    if cut_before or not isinstance(
        budget.reserve(
            limits, budget.Charged(charged), prompt, most_output=limits.max_output_tokens
        ),
        budget.Reservation,
    ):
        least = charged + prompt + min(budget.LEAST_OUTPUT_TOKENS, limits.max_output_tokens)
        raise UsageError(
            f"{run.id} has used {charged:,} of {limits.token_ceiling:,} tokens: "
            + _how_to_raise(
                run, "--token-ceiling N", f"at least {max(least, run.token_ceiling + 1)}"
            )
        )


def _refuse_used_cost(run: Row[Any], cost: int, limits: budget.Limits) -> None:
    """What the next call costs is not known here: a higher ceiling may stop the run again."""
    ceiling = limits.cost_ceiling
    if ceiling is None:
        return
    was = None if run.cost_ceiling_usd is None else budget.billionths(run.cost_ceiling_usd)
    cut_before = run.reason == "cost_ceiling" and was is not None and ceiling <= was
    if cut_before or cost >= ceiling:
        most = budget.in_usd(max(was or 0, cost))
        raise UsageError(
            f"{run.id} has used {budget.in_usd(cost)} of {budget.in_usd(ceiling)}: "
            + _how_to_raise(run, "--cost-ceiling USD", f"more than {most}")
        )


def _how_to_raise(run: Row[Any], option: str, least: str) -> str:
    if run.state == "succeeded":
        return _how_to_begin_anew(run)
    return f"raise it with `runner retry {run.id} {option}` ({least})"


def _how_to_begin_anew(run: Row[Any]) -> str:
    if run.fork_of is not None:
        return f"fork anew with `runner fork {run.fork_of}@{run.fork_turn}`"
    return f"begin it anew with `runner retry {run.id} --fresh`"


def _begin_afresh(
    connection: Connection, run: Row[Any], spec: JobSpec, raised: Raised, now: float, author: Author
) -> Change:
    prompt = select(blocks.c.content).where(
        blocks.c.run_id == run.id, blocks.c.message == 0, blocks.c.position == 0
    )
    # The run's own row names its copy of the workspace by now.
    source = select(jobs.c.workspace_id).where(jobs.c.id == run.job_id)
    of_run = select(run_items.c.item, run_items.c.commit_message)
    item = connection.execute(of_run.where(run_items.c.run_id == run.id)).one()
    text = connection.execute(prompt).scalar_one()["text"]
    new = NewRun(run.item_key, item.item, text, item.commit_message or "")
    workspace_id = connection.execute(source).scalar_one()
    opened = job_rows.open_run(run.job_id, new, spec, workspace_id, now, author)
    opened.run.update(fresh_of=run.id, **raised.of(run))
    job_rows.insert_runs(connection, [opened])
    fresh_id = opened.run["id"]
    event = change_event("begun_afresh", author, run, raised.given, {"run_id": fresh_id})
    store_change(connection, run, now, [event])
    return Change(fresh_id, run.item_key, "queued", True, f"begun afresh (was {run.id})")
