"""``run``, ``submit`` and ``worker``: getting jobs worked."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli import exit_codes
from runner.cli.authors import signed
from runner.cli.options import json_option, loaded, slots_option, stored, with_settings
from runner.cli.terminal import note, refuse, say, say_json
from runner.core.author import Author
from runner.errors import UnreachableError, UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.core.money.prices import PriceList
    from runner.store.connection.database import Database

_spec_argument = click.argument("spec", type=click.Path(path_type=Path), required=False)


@click.command()
@_spec_argument
@click.option("--resume", "resumed", metavar="JOB", help="Go on with a job instead of a new one.")
@click.option("--no-input", is_flag=True, help="Ask nothing here: runs wait for their answers.")
@slots_option
@signed
@json_option
@with_settings
def run(
    settings: Settings,
    spec: Path | None,
    resumed: str | None,
    no_input: bool,
    slots: int,
    author: Author,
    as_json: bool,
) -> int:
    """Submit a job and work it here until every run has ended or waits.

    At a terminal it asks right there about tool calls that need a person's approval, and goes on
    with other runs meanwhile. Elsewhere such runs wait (see `runner approvals --help`).

    Ctrl-C once leaves the steps in hand safely and says how to go on; twice quits at once.

    \b
    Exit codes: 0 every run succeeded, 1 a run failed or was cancelled, 2 bad job file, 3 a run
    waits, 4 a run was stopped by a limit, 5 a part could not be reached, 130 interrupted.

    \b
    Example:
      runner run jobs/quickstart.toml
      runner run --resume job_01jd9k
    """
    from runner import wiring

    if (spec is None) == (resumed is None):
        raise UsageError("give a job file, or --resume and a job")
    if resumed is not None and author.why:
        raise UsageError("--reason says why a job is submitted: leave it out with --resume")
    asked = None if no_input else author.name
    prices = wiring.load_prices(settings)
    if spec is None:
        from runner.queries.find import find

        with stored(settings) as database:
            job_id = find(database, str(resumed), "job").id
            for path in wiring.mend_workspaces(database, job_id):
                note(f"the workspace {path} had lost its id: it is written again")
            return _work(settings, database, prices, job_id, slots, as_json, asked)
    submission = loaded(settings, spec)
    database = wiring.open_database(settings, upgrade=True)
    try:
        job_id = wiring.submit(database, submission, author=author)
        return _work(settings, database, prices, job_id, slots, as_json, asked)
    finally:
        database.close()


def _work(
    settings: Settings,
    database: Database,
    prices: PriceList,
    job_id: str,
    slots: int,
    as_json: bool,
    asked: str | None,
) -> int:
    """Work a job to its end, and ask the person who is ``asked``, if anybody is."""
    from runner.cli.logs import log_to_stderr
    from runner.cli.permissions.asking import asker_at_terminal
    from runner.cli.progress import Interruption, work_job
    from runner.cli.summary import summarise

    log_to_stderr(settings, logging.WARNING)
    note(f"working {job_id}")
    how_to_go_on = f"interrupted; go on with `runner run --resume {job_id}`"
    interruption = Interruption(how_to_go_on)
    try:
        asker = None if asked is None else asker_at_terminal(database, asked)
        work_job(settings, database, job_id, slots, interruption, asker)
        cut_short = interruption.cut_short
        code = summarise(database, prices, job_id, interrupted=cut_short, as_json=as_json)
    except UnreachableError as error:
        refuse(error)
        code = exit_codes.exit_code((), interrupted=interruption.cut_short, unreachable=True)
    if interruption.cut_short:
        note(how_to_go_on)
    return code


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--key", metavar="KEY", help="A second submit with the same key does nothing.")
@signed
@json_option
@with_settings
def submit(settings: Settings, spec: Path, key: str | None, author: Author, as_json: bool) -> None:
    """Submit a job for workers to work, and print its id.

    \b
    Example:
      runner submit jobs/refactor.toml --key nightly-2026-11-22
    """
    from runner import wiring
    from runner.queries.jobs import show_job

    submission = loaded(settings, spec)
    database = wiring.open_database(settings, upgrade=True)
    try:
        job_id = wiring.submit(database, submission, key, author=author)
        if as_json:
            say_json(show_job(database, job_id))
        else:
            say(job_id)
    finally:
        database.close()


@click.command()
@slots_option
@click.option("--burst", is_flag=True, help="End when nothing is due.")
@click.option("--only", metavar="RUN", hidden=True, help="Work this one run and end.")
@with_settings
def worker(settings: Settings, slots: int, burst: bool, only: str | None) -> int:
    """Work what is due, of all jobs, until told to stop.

    SIGTERM or Ctrl-C: it takes nothing new, ends the steps in hand (ten seconds at most, then leaves
    them to resume), gives its runs back and exits with 0.

    \b
    Example:
      runner worker -c 32
    """
    from runner import wiring
    from runner.cli.logs import log_to_stderr
    from runner.cli.progress import Interruption, wait_for_end

    log_to_stderr(settings, logging.INFO)
    with stored(settings) as database:
        with Interruption() as interruption:
            working = wiring.start_worker(settings, database, slots=slots, burst=burst, only=only)
            interruption.watch(working)
            wait_for_end(working)
        return exit_codes.SUCCEEDED
