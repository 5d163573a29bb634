"""``cancel``, ``pause``, ``resume``, ``retry`` and ``say``: changing what runs do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runner.app.humanize import cell
from runner.cli.authors import signed
from runner.cli.money.costs import refuse_without_price
from runner.cli.options import Dollars, Duration, json_option, stored, with_settings
from runner.cli.terminal import note, say_json, say_table
from runner.cli.terminal import say as say_line
from runner.core.author import Author
from runner.errors import UnreachableError
from runner.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.store.connection.database import Database
    from runner.store.steer.control import Change, Target

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
    from runner.store.steer import control

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
    from runner.store.steer import control

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
    from runner.store.steer import control
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
    from runner.store.steer.revive import Raised
    from runner.store.steer.revive import retry as retry_runs

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
    from runner.store.steer.revive import say as queue_message

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
    from runner.queries.find import find
    from runner.store.steer.control import Target

    with stored(settings) as database:
        found = find(database, text, "job", "run")
        kind: Any = found.kind
        yield database, Target(kind, found.id), measured_now(database)


def measured_now(database: Database) -> float:
    """The database's time, in seconds since the epoch."""
    from runner.store.workers import DatabaseClock

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
    from runner.store import workers

    if queued is not None and not workers.live(database, now):
        job_id = show_run(database, queued)["job_id"]
        note(f"no worker is running: go on with `runner run --resume {job_id}`")


def _first_queued(changes: Sequence[Change]) -> str | None:
    return next((each.id for each in changes if each.changed and each.state == "queued"), None)
