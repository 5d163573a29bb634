"""``fork``: going on from an earlier turn of a run, as another run."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from runner.app.humanize import cell
from runner.cli.authors import signed
from runner.cli.control import measured_now, patiently, say_who_works
from runner.cli.options import json_option, stored, with_settings
from runner.cli.terminal import note, say_json
from runner.cli.terminal import say as say_line
from runner.core.author import Author
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.store.connection.database import Database

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
    from runner.store.steer.fork import fork as fork_run

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
    from runner.jobfile.sections.bounds import missing_prices
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
