"""Watching a job: on a live screen at a terminal, else as lines; for ``run``, ``attach`` and ``submit``."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import IO, Literal

from runner.app import handle
from runner.app.humanize import cell, lines, short_ids
from runner.app.live import LiveTexts, Looks, live_texts
from runner.app.watch import Happening, Look, View, Watch, doing_now
from runner.cli.questions import Asker, Ends, Terminal, asker_at_terminal
from runner.cli.screen import Screen
from runner.errors import RunnerError, UnreachableError, UsageError

_LOOK_SECONDS = 0.5
_LOOK_SECONDS_PER_RUN = 0.001
_TICK_SECONDS = 0.1
_COUNTER_SECONDS = 10.0
_LONGEST_TEXT = 600

Form = Literal["auto", "json", "quiet"]


def form_of(as_json: bool, quiet: bool) -> Form:
    """Return the form that the options of a command ask for."""
    return "json" if as_json else "quiet" if quiet else "auto"


def display_on(stream: IO[str], form: Form, keys: str) -> Display:
    """Return the display for a stream: the live screen on a terminal, else lines."""
    if form == "auto" and stream.isatty() and os.environ.get("TERM") != "dumb":
        keyboard = sys.stdin.fileno() if sys.stdin.isatty() and _is_foreground() else None
        return Screen(stream, keyboard, keys)
    return Lines(stream, form)


def _is_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


class Lines(AbstractContextManager["Lines"]):
    """A line for each thing that matters, and one with the numbers every ten seconds; as JSON an object
    a line."""

    def __init__(self, stream: IO[str], form: Form) -> None:
        self._stream = stream
        self._form = form
        self._last = ""
        self._counted_at = time.monotonic()

    def __exit__(self, *error: object) -> None:
        return

    def show(self, view: View, now: Callable[[], float]) -> None:
        """Tell the numbers, if it is time."""
        if time.monotonic() - self._counted_at >= _COUNTER_SECONDS:
            self.tell(Happening("counter", view.line, {"items": view.counts, "total": view.total}))

    def tell(self, happening: Happening) -> None:
        if self._form == "quiet" or happening.words == self._last:
            return
        self._last, self._counted_at = happening.words, time.monotonic()
        told = lines(happening.words)
        if self._form == "json":
            told = json.dumps({"type": happening.type, "words": told, **happening.data})
        else:
            told = short_ids(told)
        self._stream.write(told + "\n")
        self._stream.flush()

    def notify(self, words: str) -> None:
        return

    def wait(self, seconds: float) -> str:
        time.sleep(seconds)
        return ""


Display = Screen | Lines  # what a job is shown on


class Session:
    """Shows a job on a display until it is left. ``ends`` is called in each pass: it is True once whoever
    watches has to stop. Runs that ended before ``since`` are not told of."""

    def __init__(
        self, app: handle.App, job_id: str, display: Display, ends: Ends, since: float
    ) -> None:
        self._job_id = job_id
        self._display = display
        self._ends = ends
        self._watch = Watch(since)
        self._looker = _Looker(app, job_id, with_texts=isinstance(display, Screen))
        self._clock = 0.0  # the database's less this process's monotonic one
        self._is_new = False
        self._is_asking = False
        self.detached = False  # by the person

    def run(self, rests: Callable[[Look], bool], asker: Asker | None) -> None:
        """Show the job until ``rests`` says so of a look, it is to end, or the person detaches. The
        asker, if any, asks the person what runs wait for."""
        with self._looker, self._display:
            while not (self._ends() or self.detached):
                key = self.tick()
                self.detached = key == "q"
                if asker is not None and key == "a":
                    asker.ask_again()
                look = self._watch.look
                if look is None or not self._is_new:
                    continue
                self._is_new = False
                if asker is not None and look.asking:
                    asker.ask(self._job_id, self._ends, self._panel)
                if rests(look):
                    if look.progress.has_ended:
                        self._display.notify(f"{cell(look.job['name'])} is done")
                    return

    def tick(self) -> str:
        """Show what is new, and wait a moment for a key. Returns the key, or nothing."""
        for found in self._looker.taken():
            if isinstance(found, RunnerError):
                self._display.tell(Happening("warning", f"waiting: {cell(found)}", {}, "wait"))
                continue
            self._is_new, self._clock = True, found.at - time.monotonic()
            for happening in self._watch.see(found):
                self._display.tell(happening)
        if (look := self._watch.look) is not None:
            self._display.show(self._watch.view(self._now(), self._looker.texts), self._now)
            if look.asking and not self._is_asking:
                self._display.notify(f"{cell(look.job['name'])} needs an approval")
            self._is_asking = bool(look.asking)
        return self._display.wait(_TICK_SECONDS)

    def _now(self) -> float:
        return time.monotonic() + self._clock

    def asker(self, app: handle.App, author: str) -> Asker | None:
        """Return who asks the person (``author``, for the record) at the terminal; None if nobody is
        there."""
        if not isinstance(self._display, Screen):
            return asker_at_terminal(app, author)
        if not self._display.has_keyboard:
            return None
        return Asker(app, _PanelTerminal(self._display, self.tick), author)

    def _panel(self) -> AbstractContextManager[None]:
        return self._display.panel() if isinstance(self._display, Screen) else nullcontext()


class _PanelTerminal(Terminal):
    """Reads lines that a person types into a panel of the screen, while the screen updates."""

    is_ours = True

    def __init__(self, screen: Screen, tick: Callable[[], str]) -> None:
        self._live = screen
        self._tick = tick

    def say(self, text: str, end: str = "\n") -> None:
        self._live.write_panel(text + end)

    def lent(self) -> AbstractContextManager[None]:
        return self._live.lent()

    def forget_typed(self) -> None:
        self._live.forget_typed()

    def read_line(self, until: Ends) -> str | None:
        while not until():
            if (line := self._live.take_line(self._tick())) is not None:
                return line
        return None


class _Looker:
    """Looks at a job and reads its runs' live text, on a thread of its own while inside, so that neither a
    slow database nor a slow Redis delays a key."""

    def __init__(self, app: handle.App, job_id: str, *, with_texts: bool) -> None:
        self._app = app
        self._looks = Looks(app, job_id)
        self._with_texts = with_texts
        self._found: deque[Look | RunnerError] = deque()
        self._closed = threading.Event()
        self._bug: BaseException | None = None
        self.texts: dict[str, str] = {}  # by run: the end of what it writes now
        self._calls: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="runner-looks", daemon=True)

    def __enter__(self) -> _Looker:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._thread.join()

    def taken(self) -> Iterator[Look | RunnerError]:
        """Take what was found since the last time. Raises the error that ended the thread."""
        while self._found:
            yield self._found.popleft()
        if self._bug is not None:
            raise self._bug

    def _run(self) -> None:
        try:
            with ExitStack() as opened:
                listener = None
                if self._with_texts:
                    with suppress(UnreachableError):  # a screen without live text
                        listener = opened.enter_context(live_texts(self._app))
                self._look_again_and_again(listener)
        except BaseException as error:
            self._bug = error

    def _look_again_and_again(self, listener: LiveTexts | None) -> None:
        due = 0.0
        while not self._closed.is_set():
            if time.monotonic() >= due:
                pause = _LOOK_SECONDS
                try:
                    look = self._looks.look()
                except (UnreachableError, UsageError) as error:  # the worker ends if it has to
                    self._found.append(error)
                else:
                    self._found.append(look)
                    self._begin_calls(look)
                    pause += len(look.progress.runs) * _LOOK_SECONDS_PER_RUN
                    if listener is not None:
                        listener.follow(look.events)
                due = time.monotonic() + pause
            if listener is None:
                self._closed.wait(_TICK_SECONDS)
            elif (text := listener.read(_TICK_SECONDS)) is not None:
                run_id, words = text
                self.texts[run_id] = (self.texts.get(run_id, "") + words)[-_LONGEST_TEXT:]

    def _begin_calls(self, look: Look) -> None:
        """Forget what a run wrote in an earlier call of the model."""
        for run_id, newest in look.events.items():
            call = doing_now(newest).call
            if call != self._calls.get(run_id, call):
                self.texts.pop(run_id, None)
            self._calls[run_id] = call
