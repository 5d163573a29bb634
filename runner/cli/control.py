"""``cancel``, ``pause``, ``resume``, ``retry``, ``say``, ``fork`` and ``budget``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import cell, dollars, plural
from runner.cli.options import Dollars, Duration, json_option, signed, with_app
from runner.cli.terminal import note, say_fields, say_json, say_table
from runner.cli.terminal import say as say_line
from runner.core.budget import JobBudget, billionths
from runner.core.run import Author
from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.app.control import BudgetStatus, Outcome
    from runner.app.handle import App

_id_argument = click.argument("id", metavar="ID")
_limit = click.IntRange(1, 2**31 - 1)
_ceiling = click.IntRange(1, 2**63 - 1)
_tokens = click.IntRange(1, 10**12)
_MOST_DIGITS = 9  # that an INTEGER of the database can hold


@click.command()
@_id_argument
@signed
@json_option
@with_app
def cancel(app: App, id: str, author: Author, as_json: bool) -> None:
    """End a run, or all runs of a job that have not ended. What they stored stays.

    A running model call or tool is cut within two seconds.

    \b
    Example:
      runner cancel job_01jd9k --reason "The wrong branch."
    """
    from runner.app import control

    _print(control.cancel(app, id, author), as_json)


@click.command()
@_id_argument
@signed
@json_option
@with_app
def pause(app: App, id: str, author: Author, as_json: bool) -> None:
    """Let a run, or all runs of a job, wait until they are resumed.

    A running one finishes its step first.

    \b
    Example:
      runner pause job_01jd9k
    """
    from runner.app import control

    _print(control.pause(app, id, author), as_json)


@click.command()
@_id_argument
@signed
@json_option
@with_app
def resume(app: App, id: str, author: Author, as_json: bool) -> None:
    """Let a paused run, or all paused runs of a job, go on.

    Runs that wait for a person, or for their job's budget, go on with `runner approve` and
    `runner budget` instead.

    Where runs wait for a workspace whose folder is here and has lost its id (`git clean` removes it),
    the id is written into it again.

    \b
    Example:
      runner resume job_01jd9k
    """
    from runner.app import control

    _print(control.resume(app, id, author), as_json)


@click.command()
@_id_argument
@click.option("--failed", is_flag=True, help="Of a job, only the runs that failed.")
@click.option(
    "--fresh", is_flag=True, help="Begin again as new runs, with nothing of the old ones."
)
@click.option("--max-turns", type=_limit, metavar="N", help="New limit of turns.")
@click.option("--token-ceiling", type=_ceiling, metavar="N", help="New limit of tokens.")
@click.option(
    "--cost-ceiling", "cost_ceiling_usd", type=Dollars(), metavar="USD", help="New limit of cost."
)
@click.option("--working-time", type=Duration(), metavar="D", help="New limit of working time: 8h.")
@signed
@json_option
@with_app
def retry(
    app: App, id: str, failed: bool, fresh: bool, author: Author, as_json: bool, **limits: Any
) -> None:
    """Let runs go on that failed, were cancelled or stopped by a limit.

    They go on from what is stored; a limit that stopped them must be raised.

    \b
    Example:
      runner retry job_01jd9k --failed
      runner retry k3x9f2 --max-turns 100
    """
    from runner.app import control
    from runner.core.commands import Raised

    raised = Raised(**limits)
    _print(control.retry(app, id, author, raised, fresh=fresh, only_failed=failed), as_json)


@click.command()
@click.argument("run")
@click.argument("text")
@signed
@json_option
@with_app
def say(app: App, run: str, text: str, author: Author, as_json: bool) -> None:
    """Send a message to a run. It reads it at its next turn; one that has ended starts again.

    \b
    Example:
      runner say k3x9f2 "Leave the tests as they are."
    """
    from runner.app import control

    outcome = control.say(app, run, text, author)
    (change,) = outcome.changes
    if as_json:
        say_json(asdict(change))
    else:
        say_line(f"{change.id}: {change.detail}")
    note_unworked(outcome.unworked_job)


def _print(outcome: Outcome, as_json: bool) -> None:
    for path in outcome.mended:
        note(f"the workspace {path} had lost its id: it is written again")
    target, changes = outcome.target, outcome.changes
    if as_json:
        found = [asdict(change) for change in changes]
        say_json(found[0] if target.kind == "run" else found)
    elif target.kind == "run":
        for change in changes:
            say_line(f"{change.id} ({cell(change.item_key)}): {change.detail}")
    elif changes:
        columns = ("run", "item", "state", "")
        say_table(columns, ((c.id, c.item_key, c.state, c.detail) for c in changes))
        count = sum(change.changed for change in changes)
        note(f"{count} of {len(changes)} runs changed")
    else:
        note(f"{target.id}: no run to do that to")
    note_unworked(outcome.unworked_job)


def note_unworked(job_id: str | None) -> None:
    """Say how to go on with a job that has queued runs while no worker is alive, if there is one."""
    if job_id is not None:
        note(f"no worker is running: go on with `runner run --resume {job_id}`")


@click.command()
@click.argument("turn", metavar="RUN@TURN")
@click.option("--say", "text", metavar="TEXT", help="What to tell the new run.")
@click.option("--model", metavar="MODEL", help="The model that the new run calls.")
@signed
@json_option
@with_app
def fork(
    app: App, turn: str, text: str | None, model: str | None, author: Author, as_json: bool
) -> None:
    """Go on from a turn of a run as another run, with its messages and its files.

    The new run is of the same job, and has the limits of the other to itself. The other stays as it
    is, and may still be running: any turn of it that has ended will do, and 0 is before the first.
    After a last word, --say what to do next. In a shared workspace the files are as they are now.

    \b
    Example:
      runner fork k3x9f2@12 --say "Try it without a cache."
      runner fork k3x9f2@0 --model claude-opus-4-5
    """
    from runner.app import control

    name, number = _run_and_turn(turn)
    forked = control.fork(app, name, number, author, text=text, model=model)
    change = forked.change
    if as_json:
        say_json(forked.as_json())
    else:
        say_line(f"{change.id} ({cell(change.item_key)}): {change.detail}")
    if forked.is_shared:
        note("its workspace is shared with other runs: its files are as they are now")
    note_unworked(forked.unworked_job)


def _run_and_turn(text: str) -> tuple[str, int]:
    """Return the run and the turn that ``RUN@TURN`` names. Raises ``UsageError``."""
    name, at, number = text.rpartition("@")
    if not (at and name and number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        raise UsageError(
            f"{text[:60]!a} names no turn of a run: write RUN@TURN, such as k3x9f2@12 (0 is before "
            "the first)"
        )
    return name, int(number)


@click.command()
@click.argument("job")
@click.option("--usd", type=Dollars(), metavar="N", help="The new budget in USD.")
@click.option("--tokens", type=_tokens, metavar="N", help="The new budget in tokens.")
@signed
@json_option
@with_app
def budget(
    app: App, job: str, usd: float | None, tokens: int | None, author: Author, as_json: bool
) -> None:
    """Show what a job may use, has used and has reserved, or raise it.

    Runs that wait for it go on when it is raised. What is reserved is the most that the calls in
    hand can use. A call of which nobody knows what it used counts with its reserve.

    \b
    Example:
      runner budget job_01jd9k
      runner budget job_01jd9k --usd 40
    """
    from runner.app import control

    status = control.budget(app, job, author, usd=usd, tokens=tokens)
    if as_json:
        say_json(status.as_json())
    else:
        _say_budget(status)
    if status.woken:
        note(plural(len(status.woken), "run goes on", "runs go on"))
    if status.is_overdrawn:
        note("calls in hand may still use what they have reserved, over this budget; none begins")
    note_unworked(status.unworked_job)


def _say_budget(status: BudgetStatus) -> None:
    from runner.app.show import how_to_raise

    lines = dict(_budget_lines(status.budget)) or {
        "budget": "none: each run has its own limits, the job has none"
    }
    waits = None
    if status.waiting:
        waits = plural(status.waiting, "run waits", "runs wait")
        waits += f" for it: {how_to_raise(status.job_id, status.budget)}"
    say_fields((("job", status.job_id), *lines.items(), ("waiting", waits)))


def _budget_lines(budget: JobBudget) -> Iterable[tuple[str, str]]:
    if budget.most_cost is not None:
        reserved = f", {usd_of(budget.reserved_cost)} reserved" if budget.reserved_cost else ""
        spent = f"{usd_of(budget.spent_cost)} of {usd_of(budget.most_cost)} used"
        yield "budget", spent + reserved
    if budget.most_tokens is not None:
        reserved = f", {budget.reserved_tokens:,} reserved" if budget.reserved_tokens else ""
        spent = f"{budget.spent_tokens:,} of {budget.most_tokens:,} tokens used"
        yield "budget" if budget.most_cost is None else "and", spent + reserved


def budget_fields(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the budget of a job in lines for people.

    Args:
        job: as ``queries.jobs.show_job`` returns it.
    """
    usd = job["budget_usd"]
    sums = (
        job[name] for name in ("spent_tokens", "spent_cost", "reserved_tokens", "reserved_cost")
    )
    most_cost = None if usd is None else billionths(usd)
    return list(_budget_lines(JobBudget(job["budget_tokens"], most_cost, *sums)))


def usd_of(billionths: int) -> str:
    """Return an amount in billionths of a USD, in words."""
    return dollars(Decimal(billionths).scaleb(-9))
