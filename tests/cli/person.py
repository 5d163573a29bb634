"""A person at a terminal: waits for words on the screen, and types."""

from __future__ import annotations

import codecs
import io
import os
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.cli.questions import Terminal
from tests.runner_process import RunnerAtTerminal

PATIENCE = 120.0


class OurTerminal(Terminal):
    """A terminal that is not the one that controls the tests."""

    is_ours = True


class Person:
    """``keyboard`` is the side of the terminal that a program reads; ``screen`` what it wrote."""

    def __init__(self) -> None:
        self.hand, self.keyboard = os.openpty()
        self.screen = io.StringIO()
        self._seen = 0
        self._acting: list[threading.Thread] = []

    def type(self, text: str) -> None:
        os.write(self.hand, text.encode())

    def wait_for(self, words: str) -> None:
        """Wait until ``words`` are on the screen, below those that were waited for before."""
        deadline = time.monotonic() + PATIENCE
        while (at := self.screen.getvalue().find(words, self._seen)) < 0:
            assert time.monotonic() < deadline, (words, self.screen.getvalue()[self._seen :])
            threading.Event().wait(0.01)
        self._seen = at + len(words)

    def answers(self, *steps: tuple[str, str | Callable[[], object]]) -> threading.Thread:
        """Wait and type (or do), in turn, while the test goes on."""

        def act() -> None:
            for words, what in steps:
                self.wait_for(words)
                self.type(what) if isinstance(what, str) else what()

        acting = threading.Thread(target=act, daemon=True)
        acting.start()
        self._acting.append(acting)
        return acting

    def close(self) -> None:
        for acting in self._acting:  # one may still be in the middle of what it does
            acting.join()
        os.close(self.hand)
        os.close(self.keyboard)


@contextmanager
def at_terminal(
    folder: Path, *arguments: str, columns: int = 0, **environment: str
) -> Iterator[tuple[RunnerAtTerminal, Person]]:
    """The command in a process of its own whose terminal is the person's; one of no width unless
    ``columns`` says it."""
    person = Person()
    if columns:
        termios.tcsetwinsize(person.keyboard, (24, columns))
    whole = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "100", **environment}
    process = RunnerAtTerminal(arguments, folder, whole, person.keyboard)
    os.close(person.keyboard)
    looking = threading.Thread(target=_look, args=(person,), daemon=True)
    looking.start()
    try:
        yield process, person
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        looking.join()
        os.close(person.hand)


def _look(person: Person) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        try:
            shown = os.read(person.hand, 4096)
        except OSError:  # EIO: the last process that had the terminal has ended
            return
        person.screen.write(decoder.decode(shown))
