"""``run``, ``submit`` and ``worker``: submitting jobs, working them, and showing the progress."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

import click

from runner.app import handle, work
from runner.app import submit as app_submit
from runner.app.humanize import cell
from runner.cli import exit_codes
from runner.cli.attach import Interruption, watch_job, work_here
from runner.cli.attach import detach as leave_to_worker
from runner.cli.control import note_unworked
from runner.cli.job_options import NewJob, new_job_options, say_plan
from runner.cli.log import log_to_stderr
from runner.cli.options import (
    JOB,
    address,
    log_format_option,
    open_app,
    signed,
    slots_option,
    uncollected,
    with_app,
    with_settings,
)
from runner.cli.terminal import note, say_json, say_whole
from runner.cli.watching import Form
from runner.core.run import Assignment, Author
from runner.errors import RunnerError, UsageError
from runner.settings import Settings

logger = logging.getLogger(__name__)


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@click.option(
    "--resume",
    "resumed",
    type=JOB,
    metavar="JOB",
    help="Continue this job instead of submitting a new one.",
)
@click.option("--no-input", is_flag=True, help="Ask nothing here: calls wait for `runner approve`.")
@click.option(
    "--detach", is_flag=True, help="Leave the job to a worker that outlives this terminal."
)
@new_job_options
@slots_option
@signed
@with_settings
def run(
    settings: Settings,
    spec: Path | None,
    resumed: str | None,
    no_input: bool,
    detach: bool,
    new: NewJob,
    form: Form,
    slots: int,
    author: Author,
) -> int:
    """Submit a job and work on it here until every run has ended or waits.

    At a terminal, `run` asks you about tool calls that need approval, and works on other runs
    meanwhile. Without a terminal such runs wait (see `runner approvals --help`).

    Ctrl-C ends the current steps safely, pauses the job if no other worker works on it, and says
    how to continue; a second Ctrl-C quits at once. q detaches: a worker in the background
    continues.

    \b
    Exit codes: 0 every run succeeded, 1 a run failed or was cancelled, 2 bad
    job file, 3 a run waits, 4 a run was stopped by a limit, 5 a part could not
    be reached, 130 interrupted.

    \b
    Example:
      runner run jobs/quickstart.toml
      runner run jobs/refactor.toml --pilot 5
      runner run jobs/refactor.toml --only src/a.py --limits max_turns=5 --dry-run
      runner run --resume job_01jd9k
    """
    if (spec is None) == (resumed is None):
        raise UsageError("give a job file, or --resume and a job")
    if resumed is not None and author.why:
        raise UsageError("--reason says why a job is submitted: leave it out with --resume")
    if resumed is not None and new.options:
        raise UsageError(f"{new.options[0]} is for a new job: leave it out with --resume")
    handle.check_prices(settings)
    submission = None if spec is None else new.load(settings, spec, "run")
    if submission is not None and new.is_dry:
        say_plan(settings, submission, as_json=form == "json")
        return exit_codes.SUCCEEDED
    with open_app(settings, create=submission is not None, slots=slots) as app:
        if submission is not None:
            job_id = app_submit.submit(app, submission, author)
        else:
            job_id, mended = work.take_up(app, str(resumed), author)
            for path in mended:
                note(f"the workspace {path} had lost its id file: Runner has written it again")
        if detach:
            return leave_to_worker(app, job_id, slots)
        return work_here(app, job_id, slots, form, author, asks=not no_input)


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option(
    "--key",
    metavar="KEY",
    help="Name the job with this key; submitting the same file with the same key again does nothing.",
)
@click.option("--watch", is_flag=True, help="Watch the job afterwards, as `runner attach` does.")
@new_job_options
@signed
@with_settings
def submit(
    settings: Settings,
    spec: Path,
    key: str | None,
    watch: bool,
    new: NewJob,
    form: Form,
    author: Author,
) -> int:
    """Submit a job, which workers then work on, and print its id.

    \b
    Example:
      runner submit jobs/refactor.toml --key nightly-2026-11-22
    """
    submission = new.load(settings, spec, "submission")
    if new.is_dry:
        say_plan(settings, submission, as_json=form == "json")
        return exit_codes.SUCCEEDED
    with open_app(settings, create=True) as app:
        was_there = app_submit.is_submitted(app, key)
        job_id = app_submit.submit(app, submission, author, key)
        if key is not None and (differs := app_submit.difference(app, job_id, submission)):
            for line in differs:
                note(cell(line))
            raise UsageError(
                f"nothing was submitted: {job_id} has the key {key!a} and another job file or other "
                "items, as said above: give another key"
            )
        if was_there:
            note(f"{job_id} was submitted with the key {key!a} before: nothing new was submitted")
        if form == "json":
            say_json(app_submit.submitted(app, job_id), on_one_line=watch)
        else:
            say_whole(job_id)
        if watch:
            return watch_job(app, job_id, form, author, sys.stderr)
        if not work.workers_of(app, job_id) and not work.has_ended(app, job_id):
            note_unworked(job_id)
        return exit_codes.SUCCEEDED


@click.command()
@slots_option
@click.option("--burst", is_flag=True, help="Exit when no run is due.")
@click.option(
    "--job", type=JOB, metavar="JOB", help="Work on this job only, until its runs have ended."
)
@click.option("--only", metavar="RUN", hidden=True, help="Work this one run and end.")
@click.option(
    "--metrics",
    type=address,
    metavar="[ADDR:]PORT",
    help="Serve /metrics, /healthz and /readyz on this port (default ADDR: 127.0.0.1).",
)
@log_format_option
@with_app
def worker(
    app: handle.App,
    slots: int,
    burst: bool,
    job: str | None,
    only: str | None,
    metrics: tuple[str, int] | None,
) -> int:
    """Work on the due runs of all jobs, or of one, until told to stop.

    On SIGTERM or Ctrl-C the worker takes no new runs, ends its current steps (it cuts them after
    ten seconds), gives its runs back and exits with 0.

    \b
    Example:
      runner worker -c 32 --metrics 9100
    """
    log_to_stderr(app.settings, logging.INFO)
    job_id = None if job is None else app.find_job(job)
    assigned = Assignment(burst, only, job_id)
    try:
        with Interruption() as interruption:
            with uncollected():
                working = work.start_worker(app, slots, assigned, metrics)
            interruption.watch(working)
            is_done = (lambda: False) if job_id is None else partial(work.has_ended, app, job_id)
            work.wait_for_end(working, is_done)
    except RunnerError as error:  # in the format of the log
        logger.error("%s", error)
        return exit_codes.error_code(error)
    return exit_codes.SUCCEEDED
