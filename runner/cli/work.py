"""``run``, ``submit`` and ``worker``: submitting jobs, working them, and showing the progress."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from runner.app import forecast, handle, report, times, work
from runner.app.humanize import cell, duration, moment, tokens_of
from runner.cli import exit_codes
from runner.cli.job_options import dry_run_option, say_plan, with_overrides
from runner.cli.log import log_to_stderr
from runner.cli.options import (
    JOB,
    address,
    json_option,
    load_job,
    log_format_option,
    open_app,
    pilot_option,
    signed,
    slots_option,
    with_app,
    with_settings,
)
from runner.cli.questions import Asker, asker_at_terminal
from runner.cli.report import summarise
from runner.cli.terminal import console_on, note, refuse, say, say_json
from runner.core.run import ENDED, Author
from runner.errors import RunnerError, UnreachableError, UsageError
from runner.jobfile.overrides import Overrides
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.engine.worker import Worker

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_LOOK_SECONDS_PER_RUN = 0.001
_QUIT_SECONDS = 2.0
_STILL_ALIVE_SECONDS = 60.0
_MOST_SHOWN = 12
_FORECAST_SECONDS = 5.0

Run = Mapping[str, Any]  # a run, as ``queries.jobs.RunSummary`` describes it


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@click.option(
    "--resume", "resumed", type=JOB, metavar="JOB", help="Go on with a job instead of a new one."
)
@click.option("--no-input", is_flag=True, help="Ask nothing here: runs wait for their answers.")
@pilot_option
@with_overrides
@dry_run_option
@slots_option
@signed
@json_option
@with_settings
def run(
    settings: Settings,
    spec: Path | None,
    resumed: str | None,
    no_input: bool,
    pilot: int | None,
    overrides: Overrides,
    is_dry: bool,
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
      runner run jobs/refactor.toml --pilot 5
      runner run jobs/refactor.toml --only src/a.py --limits max_turns=5 --dry-run
      runner run --resume job_01jd9k
    """
    if (spec is None) == (resumed is None):
        raise UsageError("give a job file, or --resume and a job")
    if resumed is not None and author.why:
        raise UsageError("--reason says why a job is submitted: leave it out with --resume")
    if resumed is not None and (pilot is not None or is_dry or overrides.options):
        given = "--pilot" if pilot else "--dry-run" if is_dry else overrides.options[0].split()[0]
        raise UsageError(f"{given} is for a new job: leave it out with --resume")
    handle.check_prices(settings)
    submission = None
    if spec is not None:
        before: work.Before = "submission" if is_dry else "run"
        submission = load_job(settings, spec, pilot, before=before, overrides=overrides)
    if submission is not None and is_dry:
        say_plan(settings, submission, as_json=as_json)
        return exit_codes.SUCCEEDED
    with open_app(settings, create=submission is not None, slots=slots) as app:
        if submission is not None:
            job_id = work.submit(app, submission, author)
        else:
            job_id, mended = work.take_up(app, str(resumed))
            for path in mended:
                note(f"the workspace {path} had lost its id: it is written again")
        return _work(app, job_id, slots, as_json, None if no_input else author.name)


def _work(app: handle.App, job_id: str, slots: int, as_json: bool, asked: str | None) -> int:
    """Work a job to its end, and ask the person who is ``asked``, if anybody is."""
    log_to_stderr(app.settings, logging.WARNING)
    note(f"working {job_id}")
    how_to_go_on = f"interrupted; go on with `runner run --resume {job_id}`"
    interruption = Interruption(how_to_go_on)
    try:
        asker = None if asked is None else asker_at_terminal(app, asked)
        work_job(app, job_id, slots, interruption, asker)
        outcome = report.report_on(app, job_id, time.time(), with_changes=None)
        code = summarise(outcome, interrupted=interruption.cut_short, as_json=as_json)
    except UnreachableError as error:
        refuse(error)
        code = exit_codes.exit_code((), interrupted=interruption.cut_short, unreachable=True)
    if interruption.cut_short:
        note(how_to_go_on)
    return code


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--key", metavar="KEY", help="Names the job: the same file and key again do nothing.")
@pilot_option
@with_overrides
@dry_run_option
@signed
@json_option
@with_settings
def submit(
    settings: Settings,
    spec: Path,
    key: str | None,
    pilot: int | None,
    overrides: Overrides,
    is_dry: bool,
    author: Author,
    as_json: bool,
) -> None:
    """Submit a job for workers to work, and print its id.

    \b
    Example:
      runner submit jobs/refactor.toml --key nightly-2026-11-22
    """
    submission = load_job(settings, spec, pilot, before="submission", overrides=overrides)
    if is_dry:
        say_plan(settings, submission, as_json=as_json)
        return
    with open_app(settings, create=True) as app:
        job_id = work.submit(app, submission, author, key)
        if key is not None and (differs := work.difference(app, job_id, submission)):
            for line in differs:
                note(cell(line))
            raise UsageError(
                f"nothing was submitted: {job_id} has the key {key!a} and another job file or other "
                "items, as said above: give another key"
            )
        if as_json:
            say_json(work.submitted(app, job_id))
        else:
            say(job_id)


@click.command()
@slots_option
@click.option("--burst", is_flag=True, help="End when nothing is due.")
@click.option("--only", metavar="RUN", hidden=True, help="Work this one run and end.")
@click.option(
    "--metrics",
    type=address,
    metavar="[ADDR:]PORT",
    help="Serve /metrics, /healthz and /readyz there (ADDR by default: 127.0.0.1).",
)
@log_format_option
@with_app
def worker(
    app: handle.App, slots: int, burst: bool, only: str | None, metrics: tuple[str, int] | None
) -> int:
    """Work what is due, of all jobs, until told to stop.

    SIGTERM or Ctrl-C: it takes nothing new, ends the steps in hand (ten seconds at most, then leaves
    them to resume), gives its runs back and exits with 0.

    \b
    Example:
      runner worker -c 32 --metrics 9100
    """
    log_to_stderr(app.settings, logging.INFO)
    try:
        with Interruption() as interruption:
            working = work.start_worker(app, slots=slots, burst=burst, only=only, metrics=metrics)
            interruption.watch(working)
            work.wait_for_end(working)
    except RunnerError as error:  # in the format of the log
        logger.error("%s", error)
        return exit_codes.error_code(error)
    return exit_codes.SUCCEEDED


class Interruption:
    """Ctrl-C and SIGTERM, while inside: the first drains the worker, a second Ctrl-C quits at once,
    after printing ``how_to_go_on``."""

    def __init__(self, how_to_go_on: str = "") -> None:
        self.happened = False
        self._how_to_go_on = how_to_go_on
        self.came_too_late = False  # the job had come to rest before
        self._worker: Worker | None = None
        self._before: dict[int, Any] = {}

    @property
    def cut_short(self) -> bool:
        """True if the interruption came before the job's end."""
        return self.happened and not self.came_too_late

    def watch(self, worker: Worker) -> None:
        """Drain this worker when it happens, or now when it has happened."""
        self._worker = worker
        if self.happened:
            worker.drain()

    def __enter__(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = self.happened and number == signal.SIGINT
        self.happened = True
        if not is_second:
            if self._worker is not None:
                self._worker.drain()
            return
        if self._worker is not None:
            # On a thread: this handler may have interrupted whoever holds a lock that it needs.
            killing = threading.Thread(target=self._worker.kill, daemon=True)
            killing.start()
            killing.join(_QUIT_SECONDS)
        if self._how_to_go_on:
            # Not through sys.stderr: this handler may have interrupted a write to it.
            os.write(sys.stderr.fileno(), f"{self._how_to_go_on}\n".encode())
        os._exit(exit_codes.INTERRUPTED)


def work_job(
    app: handle.App, job_id: str, slots: int, interruption: Interruption, asker: Asker | None = None
) -> None:
    """Work a job in this process until every run of it has ended or waits, or it is interrupted.
    The asker, if any, asks the person at the terminal what runs wait for. Raises
    ``UnreachableError`` if a part was away when the worker started or had to end."""
    with interruption:
        worker = work.start_worker(app, slots=slots, job_id=job_id)
        interruption.watch(worker)
        with _Drawing() if sys.stderr.isatty() else Progress() as progress:
            pause, expected, forecast_at = _LOOK_SECONDS, "", 0.0

            def is_to_end(pause: float = 0) -> bool:
                return interruption.happened or worker.wait(pause)

            while not is_to_end(pause):
                try:
                    if asker is not None:
                        asker.ask(job_id, is_to_end, progress.paused)
                    job = work.progress_of(app, job_id)
                    if time.monotonic() - forecast_at > _FORECAST_SECONDS:
                        found = forecast.forecast_of(app, job_id)
                        expected, forecast_at = found.line if found else "", time.monotonic()
                except (UnreachableError, UsageError) as error:  # the worker ends if it has to
                    progress.say(f"waiting: {cell(error)}")
                    continue
                progress.update(job.items, expected)
                asks = asker is not None and asker.can_ask
                if job.rests(asks=asks) and work.settled_progress_of(app, job_id).rests(asks=asks):
                    interruption.came_too_late = True
                    break
                pause = _LOOK_SECONDS + len(job.runs) * _LOOK_SECONDS_PER_RUN
            worker.drain()
            if interruption.cut_short:
                progress.say("stopping: the steps in hand are ended or left to resume")
            work.wait_for_end(worker)


class Progress(AbstractContextManager["Progress"]):
    """Shows on stderr how far a job is: a line for each end of a run."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._spoke = time.monotonic()
        self._last_words = ""
        self._begins: set[float] = set()  # when runs go on that wait for their job's times

    def __exit__(self, *error: object) -> None:
        return

    def update(self, runs: Sequence[Run], expected: str = "") -> None:
        """Show the runs of the job's items, and what the job is expected to need."""
        for run in runs:
            before, self._states[run["id"]] = self._states.get(run["id"]), run["state"]
            rests = run["state"] in ENDED or (run["state"] == "waiting" and not _goes_on(run))
            if before != run["state"] and rests:
                ended = sum(state in ENDED for state in self._states.values())
                self.say(f"[{ended}/{len(runs)}] {_run_in_words(run)}")
        begins = {run["due_at"] for run in runs if times.begins_later(run)}
        if begins - self._begins:
            self.say(_job_in_words(runs))
        self._begins = begins
        if time.monotonic() - self._spoke > _STILL_ALIVE_SECONDS:
            self.say("; expected: ".join(filter(None, (_job_in_words(runs), expected))))

    def say(self, text: str) -> None:
        """Show a line."""
        if text != self._last_words:
            note(text)
        self._last_words, self._spoke = text, time.monotonic()

    def paused(self) -> AbstractContextManager[None]:
        """Draw nothing while inside: somebody else has the terminal."""
        return nullcontext()


class _Drawing(Progress):
    def __init__(self) -> None:
        self._console = console_on(sys.stderr)

    def __enter__(self) -> _Drawing:
        from rich.live import Live

        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def update(self, runs: Sequence[Run], expected: str = "") -> None:
        from rich.text import Text

        running = [run for run in runs if run["state"] == "running" or _goes_on(run)]
        words = [_job_in_words(runs), *([f"expected: {expected}"] if expected else [])]
        words += [f"  {_run_in_words(run)}" for run in running[:_MOST_SHOWN]]
        if len(running) > _MOST_SHOWN:
            words.append(f"  … and {len(running) - _MOST_SHOWN} more")
        self._live.update(Text("\n".join(words), no_wrap=True, overflow="ellipsis"), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._live.stop()
        try:
            yield
        finally:
            self.__enter__()  # a new one: the old one would draw over as many lines as it had before


def _goes_on(run: Run) -> bool:
    """True if a run waits only for its sub-agents."""
    return (run["state"], run["reason"]) == ("waiting", "children")


def _job_in_words(runs: Sequence[Run]) -> str:
    by_state = Counter(run["state"] for run in runs)
    words = [f"{sum(by_state[state] for state in ENDED)}/{len(runs)} ended"]
    words += [f"{count} {state}" for state, count in sorted(by_state.items())]
    if later := [run for run in runs if times.begins_later(run)]:
        first = min(later, key=lambda run: run["due_at"])
        words.append(f"{len(later)} until {moment(first['due_at'])} ({first['reason']})")
    sums = (sum(run[name] for run in runs) for name in ("tree_tokens", "tree_unknown_tokens"))
    return ", ".join(words) + f"; {tokens_of(*sums)} tokens"


def _run_in_words(run: Run) -> str:
    why = f" ({cell(run['reason'])})" if run["reason"] not in ("", "end_turn") else ""
    took = ""
    if run["ended_at"] is not None and run["started_at"] is not None:
        took = f", {duration(run['ended_at'] - run['started_at'])}"
    turns = "1 turn" if run["turns"] == 1 else f"{run['turns']} turns"
    below = f", {run['below']} below" if run["below"] else ""
    return f"{run['state']}{why}  {cell(run['item_key'])}  {turns}{below}{took}"
