"""``attach`` shows a job until it ends, and ``work_here`` also works it in this process."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

import click

from runner.app import handle, report, work
from runner.app.humanize import cell, plural, short_ids
from runner.app.watch import Look
from runner.cli import exit_codes
from runner.cli.log import log_to_stderr
from runner.cli.options import JOB, json_option, quiet_option, signed_as, uncollected, with_app
from runner.cli.report import summarise
from runner.cli.screen import Screen
from runner.cli.terminal import note, refuse, say_json
from runner.cli.watching import Form, Session, display_on, form_of
from runner.core.run import RUNNERS_NAME, Assignment, Author
from runner.errors import RunnerError, UnreachableError

if TYPE_CHECKING:
    from runner.engine.worker import Worker

_KEYS = "q detaches"
_QUIT_SECONDS = 2.0
_BY_CTRL_C = "Ctrl-C in `runner run`"


@click.command()
@click.argument("job", type=JOB)
@quiet_option
@signed_as
@json_option
@with_app
def attach(app: handle.App, job: str, quiet: bool, author: Author, as_json: bool) -> int:
    """Watch a job until every run has ended, without working on it.

    At a terminal, a live screen shows the job and asks about tool calls that wait for approval. q
    leaves the screen; the job continues if a worker is alive. Without a terminal, `attach` prints a
    line for each important event and a summary every ten seconds, until every run has ended or
    waits.

    Exit codes are those of `runner run`; 0 after q.

    \b
    Example:
      runner attach refactor
      runner attach last --json
    """
    return watch_job(app, app.find_job(job), form_of(as_json, quiet), author, sys.stdout)


def watch_job(app: handle.App, job_id: str, form: Form, author: Author, stream: IO[str]) -> int:
    """Show a job that workers elsewhere work, until it has come to rest or the person detaches, and
    print its results. Returns the exit code."""
    display = display_on(stream, form, _KEYS)
    session = Session(app, job_id, display, lambda: False, app.now())
    asker = session.asker(app, str(author.name)) if form == "auto" else None

    def rests(look: Look) -> bool:
        stays = isinstance(display, Screen)
        return look.progress.has_ended if stays else look.progress.rests(asks=False)

    try:
        session.run(rests, asker)
    except KeyboardInterrupt:
        _say_what_goes_on(app, job_id)
        return exit_codes.INTERRUPTED
    if session.detached:
        _say_what_goes_on(app, job_id)
        return exit_codes.SUCCEEDED
    return _summarise(app, job_id, form, interrupted=False, lines=stream is sys.stdout)


def _say_what_goes_on(app: handle.App, job_id: str) -> None:
    if workers := work.workers_of(app, job_id):
        goes = plural(workers, "worker goes", "workers go")
        note(f"detached: {goes} on with the job; `runner attach {job_id}` shows it again")
    else:
        note(f"detached: no worker is alive, go on with `runner run --resume {job_id}`")


def _summarise(
    app: handle.App, job_id: str, form: Form, *, interrupted: bool, lines: bool = False
) -> int:
    outcome = report.report_on(app, job_id, time.time(), with_changes=None)
    if form == "json" and lines:
        states = [each.run["state"] for each in outcome.runs]
        say_json({"type": "result", **outcome.as_json()}, on_one_line=True)
        return exit_codes.exit_code(states)
    return summarise(outcome, interrupted=interrupted, as_json=form == "json")


def work_here(
    app: handle.App, job_id: str, slots: int, form: Form, author: Author, *, asks: bool
) -> int:
    """Work a job in this process until every run has ended or waits, show it on stderr, and print its
    results. A person at the terminal is asked what runs wait for if it ``asks``. Returns the exit code."""
    log_to_stderr(app.settings, logging.WARNING)
    if form != "json":
        note(f"working {job_id}")
    how_to_go_on = f"interrupted; go on with `runner run --resume {job_id}`"
    interruption = Interruption(how_to_go_on)
    try:
        detached = _work(app, job_id, slots, form, interruption, author if asks else None)
        if detached:
            return _leave_behind(app, job_id, slots)
        if interruption.cut_short and interruption.by_person:
            how_to_go_on = _pause(app, job_id, author)
        code = _summarise(app, job_id, form, interrupted=interruption.cut_short)
    except UnreachableError as error:
        refuse(error)
        code = exit_codes.exit_code((), interrupted=interruption.cut_short, unreachable=True)
    if interruption.cut_short:
        note(how_to_go_on)
    return code


def _work(
    app: handle.App,
    job_id: str,
    slots: int,
    form: Form,
    interruption: Interruption,
    asked: Author | None,
) -> bool:
    """Work a job until it has come to rest, it is interrupted, or the person detaches: then it is True.
    Raises ``UnreachableError`` if a part was away when the worker started or had to end, and
    ``RunnerError`` if the API refuses the key: the job is paused then."""
    with interruption:
        since = app.now()
        with uncollected():
            worker = work.start_worker(app, slots, Assignment(job_id=job_id))
        interruption.watch(worker)
        # A refused key is said once, by the error.
        watching = logging.getLogger("runner.engine.host_watch")
        watching.addFilter(lambda record: not worker.refused_key)
        display = display_on(sys.stderr, form, f"{_KEYS} · Ctrl-C stops")
        interruption.give_back = display.give_back if isinstance(display, Screen) else None
        session = Session(
            app,
            job_id,
            display,
            lambda: interruption.happened or bool(worker.refused_key) or worker.wait(0),
            since,
        )
        asker = None if asked is None else session.asker(app, str(asked.name))

        def rests(look: Look) -> bool:
            asks = asker is not None and asker.can_ask
            if not look.progress.rests(asks=asks):
                return False
            return work.settled_progress_of(app, job_id).rests(asks=asks)

        try:
            session.run(rests, asker)
            interruption.came_too_late = not (interruption.happened or session.detached)
        finally:
            interruption.give_back = None
            worker.drain()
            if interruption.cut_short:
                note("stopping: steps end now, or resume later")
            work.wait_for_end(worker)
    if worker.refused_key and not interruption.happened:
        work.pause_unworked(app, job_id, Author(RUNNERS_NAME, worker.refused_key))
        raise RunnerError(f"{worker.refused_key}: `runner run --resume {job_id}`")
    return session.detached


def _pause(app: handle.App, job_id: str, author: Author) -> str:
    """Pause a job that a person has stopped, if no other worker works it. Returns how to go on."""
    if others := work.pause_unworked(app, job_id, Author(author.name, _BY_CTRL_C)):
        goes = plural(others, "other worker goes", "other workers go")
        return f"interrupted; {goes} on with the job: `runner attach {job_id}`"
    return f"interrupted; the job is paused: go on with `runner run --resume {job_id}`"


def _leave_behind(app: handle.App, job_id: str, slots: int) -> int:
    """Leave a worker behind that goes on with a job, unless another one is alive."""
    if work.workers_of(app, job_id):
        _say_what_goes_on(app, job_id)
        return exit_codes.SUCCEEDED
    return detach(app, job_id, slots)


def detach(app: handle.App, job_id: str, slots: int) -> int:
    """Start a worker that outlives the terminal and works this job, and say how to see and stop it."""
    left = work.leave_worker(app, job_id, slots)
    if left is None:
        note(f"the worker has ended already: `runner attach {job_id}` shows the job")
        return exit_codes.SUCCEEDED
    pid, log = left
    note(f"worker {pid} goes on with {job_id}, also when this terminal closes")
    note(f"  watch it:  runner attach {job_id}")
    note(f"  its log:   {cell(log)}")
    note(f"  stop it:   kill {pid}   (runner workers lists it)")
    return exit_codes.SUCCEEDED


class Interruption:
    """Handles Ctrl-C, SIGTERM and SIGHUP while inside: the first one drains the worker, a second
    Ctrl-C prints ``how_to_go_on`` and quits at once."""

    def __init__(self, how_to_go_on: str = "") -> None:
        self.happened = False
        self.by_person = False  # it was Ctrl-C
        self._how_to_go_on = how_to_go_on
        self.came_too_late = False  # the job had come to rest before
        self.give_back: Callable[[], None] | None = None  # restores the terminal before it quits
        self._worker: Worker | None = None
        self._before: dict[int, Any] = {}

    @property
    def cut_short(self) -> bool:
        """True if the interruption came before the job's end."""
        return self.happened and not self.came_too_late

    def watch(self, worker: Worker) -> None:
        """Drain this worker on the interruption; now, if it has already come."""
        self._worker = worker
        if self.happened:
            worker.drain()

    def __enter__(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            is_under_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            if number != signal.SIGHUP or not is_under_nohup:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = self.happened and number == signal.SIGINT
        self.happened = True
        self.by_person |= number == signal.SIGINT
        if not is_second:
            if self._worker is not None:
                self._worker.drain()
            return
        if self._worker is not None:
            # On a thread: this handler may have interrupted whoever holds a lock that it needs.
            killing = threading.Thread(target=self._worker.kill, daemon=True)
            killing.start()
            killing.join(_QUIT_SECONDS)
        with suppress(OSError):  # the terminal is gone
            if self.give_back is not None:
                self.give_back()
            if self._how_to_go_on:
                # Not through sys.stderr: this handler may have interrupted a write to it.
                os.write(sys.stderr.fileno(), f"{short_ids(self._how_to_go_on)}\n".encode())
        os._exit(exit_codes.INTERRUPTED)
