"""``cancel``, ``pause``, ``resume``, ``retry``, ``say``, ``fork``, ``priority`` and ``lane``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, get_args

import click

from runner.app import control, handle, lanes
from runner.app.humanize import cell, plural
from runner.cli.options import JOB, JOB_OR_RUN, RUN, changing, seconds, state_option, tokens, usd
from runner.cli.terminal import note, say_fields, say_json, say_outcomes
from runner.cli.terminal import say as say_line
from runner.core.run import ENDED, Author, RunStatus
from runner.core.shares import LEAST_PRIORITY, MOST_PRIORITY, PRIORITIES
from runner.core.spec import Lane
from runner.errors import UsageError

_id_argument = click.argument("id", type=JOB_OR_RUN, metavar="ID")
_limit = click.IntRange(1, 2**31 - 1)
_MOST_DIGITS = 9  # that an INTEGER of the database can hold


@click.command()
@_id_argument
@changing
def cancel(app: handle.App, id: str, author: Author, as_json: bool) -> None:
    """End a run, or all runs of a job that have not ended. Everything stored stays.

    Model calls and tools that are running are cut off within two seconds.

    \b
    Example:
      runner cancel job_01jd9k --reason "The wrong branch."
    """
    _print(control.cancel(app, id, author), as_json)


@click.command()
@_id_argument
@changing
def pause(app: handle.App, id: str, author: Author, as_json: bool) -> None:
    """Pause a run, or all runs of a job, until `runner resume`.

    A run that is being worked on finishes its current step first.

    \b
    Example:
      runner pause job_01jd9k
    """
    _print(control.pause(app, id, author), as_json)


@click.command()
@_id_argument
@changing
def resume(app: handle.App, id: str, author: Author, as_json: bool) -> None:
    """Resume a paused run, or all paused runs of a job.

    For runs that wait for a person use `runner approve`; for runs that wait for their job's budget,
    `runner budget`.

    If a run waits because its workspace folder on this host has lost its id file (`git clean`
    removes it), this command writes the id again.

    \b
    Example:
      runner resume job_01jd9k
    """
    _print(control.resume(app, id, author), as_json)


@click.command()
@_id_argument
@state_option
@click.option("--failed", is_flag=True, help="The same as --state failed.")
@click.option("--fresh", is_flag=True, help="Start each item again, as a new run.")
@click.option("--max-turns", type=_limit, metavar="N", help="New limit of turns.")
@click.option(*("--tokens", "token_ceiling"), type=tokens, metavar="N", help="New limit of tokens.")
@click.option(*("--usd", "cost_ceiling_usd"), type=usd, metavar="N", help="New limit of cost.")
@click.option("--working-time", type=seconds, metavar="D", help="New limit of working time: 8h.")
@changing
def retry(
    app: handle.App,
    id: str,
    state: RunStatus | None,
    failed: bool,
    fresh: bool,
    author: Author,
    as_json: bool,
    **limits: Any,
) -> None:
    """Continue runs that failed, were cancelled or were stopped by a limit.

    A run continues after its last stored step. If a limit stopped it, raise that limit with an
    option.

    \b
    Example:
      runner retry job_01jd9k --failed
      runner retry job_01jd9k --state stopped --max-turns 100
      runner retry k3x9f2 --max-turns 100
    """
    if failed and state not in (None, "failed"):
        raise click.UsageError(f"--failed means --state failed, not {state}: give one of them")
    state = "failed" if failed else state
    outcome = control.retry(app, id, author, limits, fresh=fresh, state=state)
    what = f"is {state}" if state else "has failed, was cancelled or stopped at a limit"
    _print(outcome, as_json, f"none of its runs {what}", with_ended=True)


def _weight(text: str) -> float:
    """Return a priority as in a job file."""
    if text in PRIORITIES:
        return PRIORITIES[text]
    try:
        found = float(text)
    except ValueError:
        words = ", ".join(PRIORITIES)
        raise click.BadParameter(f"{text!r} is neither a number nor one of {words}") from None
    if not LEAST_PRIORITY <= found <= MOST_PRIORITY:
        raise click.BadParameter(f"{text!r} is not from {LEAST_PRIORITY} to {MOST_PRIORITY:,.0f}")
    return found


@click.command()
@click.argument("job", type=JOB)
@click.argument("weight", metavar="[N]", type=_weight, required=False)
@changing
def priority(
    app: handle.App, job: str, weight: float | None, author: Author, as_json: bool
) -> None:
    """Show a job's share of the workers' slots, or change it.

    N is low (1), normal (4), high (16) or another number. A job with twice the priority of another
    gets twice as many slots while both have work.

    \b
    Example:
      runner priority job_01jd9k high
      runner priority job_01jd9k 2.5 --reason "It can wait."
    """
    job_id, found = control.priority(app, job, author, weight)
    if as_json:
        say_json({"job_id": job_id, "priority": found})
        return
    word = next((f" ({name})" for name, each in PRIORITIES.items() if each == found), "")
    say_fields((("job", job_id), ("priority", f"{found:g}{word}")))


@click.command()
@click.argument("job")
@click.argument("to", metavar="[LANE]", type=click.Choice(get_args(Lane)), required=False)
@changing
def lane(app: handle.App, job: str, to: Lane | None, author: Author, as_json: bool) -> None:
    """Show how a job's model calls reach the API, or change it.

    LANE is realtime (one by one), batch (in Message Batches, at half the price) or auto (batch
    while there is time). Calls already in a batch stay there.

    \b
    Example:
      runner lane job_01jd9k batch
      runner lane last realtime --reason "It has to be done by noon."
    """
    job_id, line = lanes.lane(app, job, to, author)
    if as_json:
        say_json({"job_id": job_id, "lane": line.partition(";")[0], "detail": line})
    else:
        say_fields((("job", job_id), ("lane", line)))


def _print(
    outcome: control.Outcome,
    as_json: bool,
    empty: str = "it has no runs",
    *,
    with_ended: bool = False,
    **more: Any,
) -> None:
    for path in outcome.mended:
        note(f"the workspace {path} had lost its id file: Runner has written it again")
    target, changes = outcome.target, outcome.changes
    told = [each for each in changes if each.changed or with_ended or each.state not in ENDED]
    if as_json:
        found = [asdict(change) for change in changes]
        say_json(found[0] | more if target.kind == "run" else found)
    elif target.kind == "run":
        for change in changes:
            say_line(f"{change.id} ({cell(change.item_key)}): {change.detail}")
    elif told:
        columns = ("run", "item", "state", "")
        say_outcomes(columns, ((c.id, c.item_key, c.state, c.detail) for c in told))
        count, ended = sum(change.changed for change in changes), len(changes) - len(told)
        before = f"; {ended:,} had ended before" if ended else ""
        note(f"{count} of {len(changes)} runs changed{before}")
    elif changes:
        say_line(
            f"{target.id}: nothing to do, {plural(len(changes), 'run has', 'runs have')} ended"
        )
    else:
        note(f"{target.id}: {empty} (`runner list {target.id}`)")
    if outcome.is_shared:
        note("its workspace is shared with other runs: its files are as they are now")
    note_unworked(outcome.unworked_job)


def note_unworked(job_id: str | None) -> None:
    """Say how to go on with a job that has queued runs while no worker is alive, if there is one."""
    if job_id is not None:
        note(
            f"no worker is running: go on with `runner run --resume {job_id}`, or start `runner worker`"
        )


@click.command()
@click.argument("run", type=RUN)
@click.argument("text")
@changing
def say(app: handle.App, run: str, text: str, author: Author, as_json: bool) -> None:
    """Send a message to a run. The run reads the message at its next turn. A run that has ended
    continues.

    \b
    Example:
      runner say k3x9f2 "Leave the tests as they are."
    """
    outcome = control.say(app, run, text, author)
    (change,) = outcome.changes
    if as_json:
        say_json(asdict(change))
    else:
        say_line(f"{change.id} ({cell(change.item_key)}): {change.detail}")
    note_unworked(outcome.unworked_job)


@click.command()
@click.argument("turn", type=RUN, metavar="RUN@TURN")
@click.option("--say", "text", metavar="TEXT", help="Send this message to the new run.")
@click.option("--model", metavar="MODEL", help="The model that the new run calls.")
@changing
def fork(
    app: handle.App, turn: str, text: str | None, model: str | None, author: Author, as_json: bool
) -> None:
    """Start a new run of the same job that continues after a turn of another run.

    The new run starts with the messages and files of that turn (in a shared workspace: the files as
    they are now). It has the same limits; its tokens and cost start at zero. The other run does not
    change and may still be running. TURN is any turn that has ended; 0 is before the first. After a
    turn with a final answer, the new run needs --say.

    \b
    Example:
      runner fork k3x9f2@12 --say "Try it without a cache."
      runner fork k3x9f2@0 --model claude-opus-4-5
    """
    name, _, number = turn.rpartition("@")
    if not (name and number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        raise UsageError(
            f"{turn[:60]!a} is not a turn of a run: write RUN@TURN, such as k3x9f2@12 (0 is before "
            "the first)"
        )
    forked = control.fork(app, name, int(number), author, text=text, model=model)
    _print(forked, as_json, fork_of=forked.target.id, fork_turn=int(number))
