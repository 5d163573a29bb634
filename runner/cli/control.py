"""``cancel``, ``pause``, ``resume``, ``retry`` and ``say``: changing what runs do.

``fork``: going on from an earlier turn of a run, as another run.

``budget``: what all runs of a job may use together, and what they wait for when it is used up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runner.app.humanize import cell
from runner.cli.costs import refuse_without_price
from runner.cli.options import Dollars, Duration, json_option, signed, stored, with_settings
from runner.cli.terminal import note, say_json, say_table
from runner.cli.terminal import say as say_line
from runner.core.run import Author
from runner.errors import UnreachableError
from runner.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.core.commands import Change, Target
    from runner.store.database import Database
from typing import TYPE_CHECKING

from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.store.database import Database
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from runner.app.humanize import dollars, plural
from runner.cli.terminal import say_fields
from runner.core.budget import JobBudget, billionths

if TYPE_CHECKING:
    from runner.core.commands import Change


_id_argument = click.argument("id", metavar="ID")
_limit = click.IntRange(1, 2**31 - 1)
_ceiling = click.IntRange(1, 2**63 - 1)
_TRIES = 5
# Serialization failure and deadlock, both rolled back whole
# (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_GAVE_WAY = ("40001", "40P01")

Changed = TypeVar("Changed")


@click.command()
@_id_argument
@signed
@json_option
@with_settings
def cancel(settings: Settings, id: str, author: Author, as_json: bool) -> None:
    """End a run, or all runs of a job that have not ended. What they stored stays.

    A running model call or tool is cut within two seconds.

    \b
    Example:
      runner cancel job_01jd9k --reason "The wrong branch."
    """
    from runner.store import control

    with _target(settings, id) as (database, target, now):
        act = partial(control.cancel, database, target, now, author=author)
        _print(target, patiently(act), as_json)


@click.command()
@_id_argument
@signed
@json_option
@with_settings
def pause(settings: Settings, id: str, author: Author, as_json: bool) -> None:
    """Let a run, or all runs of a job, wait until they are resumed.

    A running one finishes its step first.

    \b
    Example:
      runner pause job_01jd9k
    """
    from runner.store import control

    with _target(settings, id) as (database, target, now):
        act = partial(control.pause, database, target, now, author=author)
        _print(target, patiently(act), as_json)


@click.command()
@_id_argument
@signed
@json_option
@with_settings
def resume(settings: Settings, id: str, author: Author, as_json: bool) -> None:
    """Let a paused run, or all paused runs of a job, go on.

    Runs that wait for a person, or for their job's budget, go on with `runner approve` and
    `runner budget` instead.

    Where runs wait for a workspace whose folder is here and has lost its id (`git clean` removes it),
    the id is written into it again.

    \b
    Example:
      runner resume job_01jd9k
    """
    from runner.store import control
    from runner.wiring import mend_workspaces

    with _target(settings, id) as (database, target, now):
        for path in mend_workspaces(database, target.id):
            note(f"the workspace {path} had lost its id: it is written again")
        changes = patiently(partial(control.resume, database, target, now, author=author))
        _print(target, changes, as_json)
        say_who_works(database, _first_queued(changes), now)


@click.command()
@_id_argument
@click.option("--failed", is_flag=True, help="Of a job, only the runs that failed.")
@click.option(
    "--fresh", is_flag=True, help="Begin again as new runs, with nothing of the old ones."
)
@click.option("--max-turns", type=_limit, metavar="N", help="New limit of turns.")
@click.option("--token-ceiling", type=_ceiling, metavar="N", help="New limit of tokens.")
@click.option("--cost-ceiling", type=Dollars(), metavar="USD", help="New limit of cost.")
@click.option("--working-time", type=Duration(), metavar="D", help="New limit of working time: 8h.")
@signed
@json_option
@with_settings
def retry(
    settings: Settings,
    id: str,
    failed: bool,
    fresh: bool,
    max_turns: int | None,
    token_ceiling: int | None,
    cost_ceiling: float | None,
    working_time: float | None,
    author: Author,
    as_json: bool,
) -> None:
    """Let runs go on that failed, were cancelled or stopped by a limit.

    They go on from what is stored; a limit that stopped them must be raised.

    \b
    Example:
      runner retry job_01jd9k --failed
      runner retry k3x9f2 --max-turns 100
    """
    from runner.core.commands import Raised
    from runner.store.retry import retry as retry_runs

    with _target(settings, id) as (database, target, now):
        if cost_ceiling is not None:
            refuse_without_price(settings, database, target)
        raised = Raised(max_turns, token_ceiling, cost_ceiling, working_time)
        changes = patiently(
            partial(
                retry_runs,
                *(database, target, now),
                raised=raised,
                fresh=fresh,
                only_failed=failed,
                author=author,
            )
        )
        _print(target, changes, as_json)
        say_who_works(database, _first_queued(changes), now)


@click.command()
@click.argument("run")
@click.argument("text")
@signed
@json_option
@with_settings
def say(settings: Settings, run: str, text: str, author: Author, as_json: bool) -> None:
    """Send a message to a run. It reads it at its next turn; one that has ended starts again.

    \b
    Example:
      runner say k3x9f2 "Leave the tests as they are."
    """
    from runner.queries.find import find
    from runner.store.retry import say as queue_message

    with stored(settings) as database:
        now = measured_now(database)
        run_id = find(database, run, "run").id
        change = patiently(partial(queue_message, database, run_id, text, now, author=author))
        if as_json:
            say_json(asdict(change))
        else:
            say_line(f"{change.id}: {change.detail}")
        say_who_works(database, _first_queued([change]), now)


def patiently(change: Callable[[], Changed]) -> Changed:
    """Make a change, again when Postgres gave it up in favour of another transaction."""
    for _ in range(_TRIES - 1):
        try:
            return change()
        except UnreachableError as error:
            if getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) not in _GAVE_WAY:
                raise
    return change()


@contextmanager
def _target(settings: Settings, text: str) -> Iterator[tuple[Database, Target, float]]:
    from runner.core.commands import Target
    from runner.queries.find import find

    with stored(settings) as database:
        found = find(database, text, "job", "run")
        kind: Any = found.kind
        yield database, Target(kind, found.id), measured_now(database)


def measured_now(database: Database) -> float:
    """The database's time, in seconds since the epoch."""
    from runner.store.leases import DatabaseClock

    clock = DatabaseClock(database)
    clock.measure()
    return clock.now()


def _print(target: Target, changes: Sequence[Change], as_json: bool) -> None:
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


def say_who_works(database: Database, queued: str | None, now: float) -> None:
    """Say how to go on when a run was queued and no worker is there to work it.

    Args:
        queued: one of the runs that were queued, None for none.
    """
    from runner.queries.jobs import show_run
    from runner.store import leases

    if queued is not None and not leases.live(database, now):
        job_id = show_run(database, queued)["job_id"]
        note(f"no worker is running: go on with `runner run --resume {job_id}`")


def _first_queued(changes: Sequence[Change]) -> str | None:
    return next((each.id for each in changes if each.changed and each.state == "queued"), None)


_MOST_DIGITS = 9  # of what an INTEGER can hold


@click.command()
@click.argument("turn", metavar="RUN@TURN")
@click.option("--say", "text", metavar="TEXT", help="What to tell the new run.")
@click.option("--model", metavar="MODEL", help="The model that the new run calls.")
@signed
@json_option
@with_settings
def fork(
    settings: Settings,
    turn: str,
    text: str | None,
    model: str | None,
    author: Author,
    as_json: bool,
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
    from runner.queries.find import find
    from runner.store.fork import fork as fork_run

    name, number = _read(turn)
    with stored(settings) as database:
        run_id = find(database, name, "run").id
        if model is not None:
            _refuse_without_price(settings, database, run_id, model)
        now = measured_now(database)
        change = patiently(
            partial(fork_run, database, run_id, number, now, text=text, model=model, author=author)
        )
        if as_json:
            say_json({**asdict(change), "fork_of": run_id, "fork_turn": number})
        else:
            say_line(f"{change.id} ({cell(change.item_key)}): {change.detail}")
        if _is_shared(database, run_id):
            note("its workspace is shared with other runs: its files are as they are now")
        say_who_works(database, change.id, now)


def _read(text: str) -> tuple[str, int]:
    """The run and the turn that ``RUN@TURN`` names. Raises UsageError."""
    name, at, number = text.rpartition("@")
    if not (at and name and number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        raise UsageError(
            f"{text[:60]!a} names no turn of a run: write RUN@TURN, such as k3x9f2@12 (0 is before "
            "the first)"
        )
    return name, int(number)


def _refuse_without_price(settings: Settings, database: Database, run_id: str, model: str) -> None:
    """Refuse a model without a price where the cost of the run or its job is limited."""
    from runner import wiring
    from runner.core.spec import JobSpec
    from runner.jobfile.fit import missing_prices
    from runner.queries.jobs import show_job, show_run

    run = show_run(database, run_id)
    job = show_job(database, run["job_id"])
    if run["cost_ceiling_usd"] is None and job["budget_usd"] is None:
        return
    spec, prices = JobSpec.from_json(job["spec"]), wiring.load_prices(settings)
    for message in missing_prices(prices, spec.provider, model, spec.model_options, spec.context):
        raise UsageError(message)


def _is_shared(database: Database, run_id: str) -> bool:
    from runner.core.spec import JobSpec
    from runner.queries.jobs import show_job, show_run

    job = show_job(database, show_run(database, run_id)["job_id"])
    workspace = JobSpec.from_json(job["spec"]).workspace
    return workspace is not None and workspace.mode == "shared"


_tokens = click.IntRange(1, 10**12)


@click.command()
@click.argument("job")
@click.option("--usd", type=Dollars(), metavar="N", help="The new budget in USD.")
@click.option("--tokens", type=_tokens, metavar="N", help="The new budget in tokens.")
@signed
@json_option
@with_settings
def budget(
    settings: Settings,
    job: str,
    usd: float | None,
    tokens: int | None,
    author: Author,
    as_json: bool,
) -> None:
    """Show what a job may use, has used and has reserved, or raise it.

    Runs that wait for it go on when it is raised. What is reserved is the most that the calls in
    hand can use. A call of which nobody knows what it used counts with its reserve.

    \b
    Example:
      runner budget job_01jd9k
      runner budget job_01jd9k --usd 40
    """
    from runner.queries.find import find
    from runner.queries.jobs import list_runs
    from runner.store.control import budget_of, set_budget

    with stored(settings) as database:
        job_id = find(database, job, "job").id
        woken: Sequence[Change] = []
        now = measured_now(database)
        if usd is not None or tokens is not None:
            woken = patiently(
                lambda: set_budget(database, job_id, now, author=author, usd=usd, tokens=tokens)
            )
        job_budget = budget_of(database, job_id) or JobBudget()
        runs = list_runs(database, job_id, "waiting", whole_trees=True)
        waiting = sum(run["reason"] == "budget" for run in runs)
        if as_json:
            say_json(_budget_as_json(job_id, job_budget, waiting, woken))
        else:
            _say_budget(job_id, job_budget, waiting)
        _note_what_follows(job_budget, woken)
        if woken:
            say_who_works(database, woken[0].id, now)


def _budget_as_json(
    job_id: str, job_budget: JobBudget, waiting: int, woken: Sequence[Change]
) -> dict[str, Any]:
    return {
        "job": job_id,
        "budget_usd": None if job_budget.most_cost is None else job_budget.most_cost / 1e9,
        "spent_usd": None if job_budget.most_cost is None else job_budget.spent_cost / 1e9,
        "reserved_usd": None if job_budget.most_cost is None else job_budget.reserved_cost / 1e9,
        "budget_tokens": job_budget.most_tokens,
        "spent_tokens": None if job_budget == JobBudget() else job_budget.spent_tokens,
        "reserved_tokens": None if job_budget == JobBudget() else job_budget.reserved_tokens,
        "waiting_runs": waiting,
        "woken": [asdict(change) for change in woken],
    }


def _say_budget(job_id: str, job_budget: JobBudget, waiting: int) -> None:
    from runner.app.show import how_to_raise

    lines = dict(_lines(job_budget)) or {
        "budget": "none: each run has its own limits, the job has none"
    }
    waits = (
        f"{plural(waiting, 'run waits', 'runs wait')} for it: {how_to_raise(job_id, job_budget)}"
        if waiting
        else None
    )
    say_fields((("job", job_id), *lines.items(), ("waiting", waits)))


def _lines(job_budget: JobBudget) -> Iterable[tuple[str, str]]:
    if job_budget.most_cost is not None:
        reserved = (
            f", {usd_of(job_budget.reserved_cost)} reserved" if job_budget.reserved_cost else ""
        )
        spent = f"{usd_of(job_budget.spent_cost)} of {usd_of(job_budget.most_cost)} used"
        yield "budget", spent + reserved
    if job_budget.most_tokens is not None:
        reserved = (
            f", {job_budget.reserved_tokens:,} reserved" if job_budget.reserved_tokens else ""
        )
        spent = f"{job_budget.spent_tokens:,} of {job_budget.most_tokens:,} tokens used"
        yield "budget" if job_budget.most_cost is None else "and", spent + reserved


def _note_what_follows(job_budget: JobBudget, woken: Sequence[Change]) -> None:
    if woken:
        note(f"{len(woken)} {'run goes' if len(woken) == 1 else 'runs go'} on")
    cost, tokens = (
        job_budget.spent_cost + job_budget.reserved_cost,
        job_budget.spent_tokens + job_budget.reserved_tokens,
    )
    over_cost = job_budget.most_cost is not None and cost > job_budget.most_cost
    over_tokens = job_budget.most_tokens is not None and tokens > job_budget.most_tokens
    if over_cost or over_tokens:
        note("calls in hand may still use what they have reserved, over this budget; none begins")


def budget_fields(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A job's budget, in lines for people.

    Args:
        job: as ``queries.jobs.show_job`` gives it.
    """
    usd = job["budget_usd"]
    return list(
        _lines(
            JobBudget(
                job["budget_tokens"],
                None if usd is None else billionths(usd),
                job["spent_tokens"],
                job["spent_cost"],
                job["reserved_tokens"],
                job["reserved_cost"],
            )
        )
    )


def usd_of(billionths: int) -> str:
    """An amount in billionths of a USD, as it is said."""
    return dollars(Decimal(billionths).scaleb(-9))
