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
from runner.core.run import BEGUN, ENDED, UNKNOWN, Author, RunStatus
from runner.core.spec import JobSpec, NewRun
from runner.core.state import Progress
from runner.core.text import shorten
from runner.errors import UsageError
from runner.store.changes import (
    change_event,
    changed,
    locked_runs,
    queued_again,
    refuse_child,
    signed_change,
    store_change,
    unchanged,
)
from runner.store.children import family_of
from runner.store.conditions import IS_ATTACHED, IS_ITEM_RUN
from runner.store.database import Database, in_lots, writes
from runner.store.jobs import insert_runs, open_run, refuse_unstorable, spec_to_go_on
from runner.store.notices import arm
from runner.store.run_state import progress_from_row, progress_to_json
from runner.store.tables import blocks, jobs, queued_messages, run_items, runs

# The states of the runs that are retried with their job.
_RETRIED = ("failed", "stopped", "cancelled")


def retry(
    database: Database,
    target: Target,
    now: float,
    *,
    raised: Raised | None = None,
    fresh: bool = False,
    state: RunStatus | None = None,
    author: Author = UNKNOWN,
    among: Sequence[str] | None = None,
) -> list[Change]:
    """Let ended runs go on from where they stopped, or (``fresh``) begin them again as new runs.

    Of a job, takes runs that failed, were stopped or were cancelled (or only those in ``state``),
    have not been begun afresh, and are ``among`` these if given. A run that cannot be retried
    does not stop the others.

    Raises:
        UsageError: runs in the state are never retried; or the target is one run, and it cannot be
            retried (a sub-agent never can), or its runs are sessions of Claude Code's.
    """
    raised, states = raised or Raised(), (state,) if state else _RETRIED
    if state and state not in _RETRIED:
        raise UsageError(
            f"runs that are {state} are not retried: name one of {', '.join(_RETRIED)}"
        )
    is_job, act = target.kind == "job", _begin_afresh if fresh else _retry

    def work(connection: Connection, run_ids: Sequence[str]) -> list[Change]:
        found = locked_runs(connection, run_ids)
        of_job = runs.c.job_id.in_([run.job_id for run in found[:1]])
        query = select(runs.c.fresh_of, runs.c.id).where(of_job, runs.c.fresh_of.is_not(None))
        begun = {row.fresh_of: row.id for row in connection.execute(query)}
        if is_job:
            found = [run for run in found if run.state in states and run.id not in begun]
        if not found:
            return []
        spec, changes = spec_to_go_on(connection, found[0].job_id), []
        for run in found:
            try:
                _refuse_retry(run, begun.get(run.id), fresh)
                changes.append(act(connection, run, spec, raised, now, author))
            except UsageError as error:
                if not is_job:
                    raise
                changes.append(unchanged(run, str(error)))
        if any(change.changed for change in changes):
            arm(connection, found[0].job_id, spec.notify, now)
        return changes

    query = select(runs.c.id).where(runs.c.job_id == target.id, IS_ITEM_RUN).order_by(runs.c.id)
    run_ids: Sequence[str] = [target.id]
    if is_job:
        run_ids = [run.id for run in database.rows(query)] if among is None else among
    return [
        change for lot in in_lots(run_ids) for change in database.write(partial(work, run_ids=lot))
    ]


@writes
def say(
    connection: Connection, run_id: str, text: str, now: float, *, author: Author = UNKNOWN
) -> Change:
    """Queue a user message for a run; one that has ended starts again to answer it. Raises
    ``UsageError`` for an unfit text, a used-up limit, a session of Claude Code's and a
    sub-agent."""
    if not text.strip():
        raise UsageError("the message is empty: say something")
    refuse_unstorable("the message", text)
    (run,) = locked_runs(connection, [run_id])
    refuse_child(run.id, "spoken to")
    changes: dict[str, Any] = {"queued_count": run.queued_count + 1}
    if run.state in ENDED:
        spec = spec_to_go_on(connection, run.job_id)
        changes |= _taken_up(connection, run, spec, Raised(), now)
    connection.execute(insert(queued_messages).values(run_id=run.id, text=text, created_at=now))
    summary = {"text": shorten(text, INPUT_SUMMARY_LENGTH)}
    signed_change(connection, run, now, "message_queued", author, changes, summary)
    if run.state in ENDED:
        arm(connection, run.job_id, spec.notify, now)
    detail = "goes on with the message" if run.state in ENDED else "message queued"
    return changed(run, changes.get("state", run.state), detail)


def _refuse_retry(run: Row[Any], begun_as: str | None, fresh: bool) -> None:
    refuse_child(run.id, "retried")
    if run.state not in ENDED:
        raise UsageError(
            f"{run.id} has not ended (it is {run.state}): cancel it first, or let it go on"
        )
    if begun_as is not None:
        raise UsageError(f"{run.id} was begun afresh as {begun_as}: retry that one")
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
    signed_change(connection, run, now, "retried", author, changes)
    return changed(run, "queued", "queued again")


def _taken_up(
    connection: Connection, run: Row[Any], spec: JobSpec, raised: Raised, now: float
) -> dict[str, Any]:
    """The changed columns of an ended run that goes on. Raises ``UsageError`` if a limit is used
    up."""
    progress, own = progress_from_row(run), raised.of(run)
    used = progress.money.charged
    if progress.children.started:
        used += family_of(connection, run.id).reserved
    limits = replace(spec.limits, **own)
    if limits.deadline is not None and now >= run.created_at + limits.deadline:
        raise UsageError(
            f"{run.id} is past its deadline of {limits.deadline:g} s: {_how_to_begin_anew(run)}"
        )
    _refuse_used_work(run, progress, limits)
    _refuse_used_tokens(run, progress, used.tokens, limits)
    _refuse_used_cost(run, used.cost, limits)
    progress = rested(progress)
    progress = replace(progress, ending=replace(progress.ending, delivered=None))
    counts = {"lost_leases": 0, "bugs": 0, "host_faults": None}
    reset = {"ended_at": None, **counts, "progress": progress_to_json(progress)}
    return {**queued_again(run, now, BEGUN), **reset, **own}


def _refuse_used_work(run: Row[Any], progress: Progress, limits: budget.Limits) -> None:
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


def _refuse_used_tokens(
    run: Row[Any], progress: Progress, charged: int, limits: budget.Limits
) -> None:
    """``charged`` includes what the run's sub-agents were charged, or may still use."""
    if progress.model.open_call is not None:
        charged += progress.model.open_call.reservation.worst_case
    most_output, context = limits.max_output_tokens, progress.context
    prompt = budget.prompt_bound(context.last_prompt_tokens, context.appended_bytes)
    without_cost = replace(limits, cost_ceiling_usd=None)
    next_call = budget.reserve(
        without_cost, budget.Charged(charged), prompt, most_output=most_output
    )
    cut_before = run.reason == "token_ceiling" and limits.token_ceiling <= run.token_ceiling
    if cut_before or not isinstance(next_call, budget.Reservation):
        least = charged + prompt + min(budget.LEAST_OUTPUT_TOKENS, most_output)
        least = max(least, run.token_ceiling + 1)
        raise UsageError(
            f"{run.id} has used {charged:,} of {limits.token_ceiling:,} tokens: "
            + _how_to_raise(run, "--tokens N", f"at least {least}")
        )


def _refuse_used_cost(run: Row[Any], cost: int, limits: budget.Limits) -> None:
    """The cost of the next call is not known here: a higher ceiling may stop the run again."""
    ceiling = limits.cost_ceiling
    if ceiling is None:
        return
    was = None if run.cost_ceiling_usd is None else budget.billionths(run.cost_ceiling_usd)
    cut_before = run.reason == "cost_ceiling" and was is not None and ceiling <= was
    if cut_before or cost >= ceiling:
        most = budget.in_usd(max(was or 0, cost))
        raise UsageError(
            f"{run.id} has used {budget.in_usd(cost)} of {budget.in_usd(ceiling)}: "
            + _how_to_raise(run, "--usd N", f"more than {most}")
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
    # The run's own row names its copy of the workspace by now: the job's row names the source.
    is_prompt = (blocks.c.message == 0) & (blocks.c.position == 0)
    query = (
        select(run_items.c.item, run_items.c.commit_message, blocks.c.content, jobs.c.workspace_id)
        .join(blocks, (blocks.c.run_id == run_items.c.run_id) & is_prompt)
        .join(jobs, jobs.c.id == run.job_id)
        .where(run_items.c.run_id == run.id)
    )
    stored = connection.execute(query).one()
    attached = select(blocks.c.content).where(blocks.c.run_id == run.id, IS_ATTACHED)
    new = NewRun(
        run.item_key,
        stored.item,
        stored.content["text"],
        stored.commit_message or "",
        connection.scalars(attached.order_by(blocks.c.position)).all(),
    )
    opened = open_run(run.job_id, new, spec, stored.workspace_id, now, author)
    opened.run.update(fresh_of=run.id, **raised.of(run))
    insert_runs(connection, [opened])
    fresh_id = opened.run["id"]
    event = change_event("begun_afresh", author, run, raised.given, {"run_id": fresh_id})
    store_change(connection, run, now, [event])
    return Change(fresh_id, run.item_key, "queued", True, f"begun afresh (was {run.id})")
