"""The live screen at a terminal: draws a job, takes keys, and asks a person in a panel of its own.

It is drawn on the alternate screen, whole and inside a synchronised update (DEC mode 2026), so that
neither tmux nor a new size of the window tears it.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, TextIO, cast

from runner.app.humanize import cell, lines, short_ids
from runner.app.watch import Happening, View
from runner.cli.drawing import TONES, frame, panel_room
from runner.cli.terminal import Line, console_on, wrapped

_BEGIN_UPDATE, _END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_LEAVE = f"{_END_UPDATE}{_WRAP}\x1b[?25h\x1b[?1049l"
_END_OSC = "\x1b\\"
_LONGEST_NOTIFICATION = 120
_LEAST_SECONDS = 0.1  # between two drawings
_COUNT_SECONDS = 1.0  # how often times and countdowns are drawn anew
_MOST_NOTES = 60
_LONGEST_READ = 4096
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
_CTRL_D, _CTRL_U = "\x04", "\x15"
_TOLD_AFTERWARDS = ("person", "runner", "workers", "warning")
_MOST_TOLD = 10


class Screen:
    """The live screen, while inside.

    Args:
        stream: the terminal that it is drawn on.
        keyboard: the descriptor that keys are read from; None if nobody is there.
        keys: what the keys do, for the footer.
    """

    def __init__(self, stream: IO[str], keyboard: int | None, keys: str) -> None:
        self._stream = stream
        self._keyboard = keyboard
        self._keys = keys
        self._console = console_on(cast("IO[str]", _Synchronised(stream)))
        self._modes: list[Any] | None = None
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._typed = ""
        self._notes: deque[Line] = deque(maxlen=_MOST_NOTES)
        self._told: deque[str] = deque(maxlen=_MOST_TOLD)
        self._last_note = ""
        self._view: View | None = None
        self._now: Callable[[], float] = time.time
        self._panel: list[str] | None = None
        self._entry = ""
        self._wrapped: list[Line] = []  # the rows of the panel's whole lines, at a width
        self._wrapped_at = 0
        self._drawn_at = -_LEAST_SECONDS
        self._drawn: tuple[Any, ...] = ()
        self._is_dirty = True
        self._is_to_stop = False
        self._percent: int | None = None

    # --- the terminal -----------------------------------------------------------------------------

    def __enter__(self) -> Screen:
        self._stderr, sys.stderr = sys.stderr, cast("TextIO", _Notes(self.note))
        self._on_stop = signal.signal(signal.SIGTSTP, self._ask_to_stop)
        self._open()
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
        sys.stderr = self._stderr
        signal.signal(signal.SIGTSTP, self._on_stop)
        for words in self._told:
            self._stream.write(f"{words}\n")
        self._stream.flush()

    def _open(self) -> None:
        from rich.live import Live

        if self._keyboard is not None:
            with suppress(termios.error):
                self._modes = termios.tcgetattr(self._keyboard)
                tty.setcbreak(self._keyboard, termios.TCSADRAIN)
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        self._write(_NO_WRAP)
        self._is_dirty = True

    def _close(self) -> None:
        self._live.stop()
        self._write(_WRAP + progress_sequence(os.environ, None))
        self._percent = None
        self._restore_keyboard()

    def _restore_keyboard(self) -> None:
        if self._keyboard is not None and self._modes is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def give_back(self) -> None:
        """Give the terminal back as it was, before the process quits. Safe in a signal handler."""
        os.write(self._stream.fileno(), _LEAVE.encode())
        self._restore_keyboard()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Leave the terminal to another program while inside."""
        self._close()
        try:
            yield
        finally:
            self._open()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _ask_to_stop(self, *_: object) -> None:
        self._is_to_stop = True

    def _stop(self) -> None:
        """Ctrl-Z: give the terminal back, stop, and take it again when the process goes on."""
        self._is_to_stop = False
        self._close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._open()

    @property
    def has_keyboard(self) -> bool:
        return self._keyboard is not None

    # --- what is shown ----------------------------------------------------------------------------

    def show(self, view: View, now: Callable[[], float]) -> None:
        """Show a job; ``now`` gives the time by the clock of its times."""
        self._is_dirty |= view != self._view
        self._view, self._now = view, now
        percent = round(100 * view.ended / view.total) if view.total else 100
        if percent != self._percent:
            self._percent = percent
            self._write(progress_sequence(os.environ, percent))

    def tell(self, happening: Happening) -> None:
        """Show a line of what happened, below the runs."""
        words = short_ids(happening.words)
        self._add_note(words, TONES[happening.tone])
        if happening.type in _TOLD_AFTERWARDS:
            self._told.append(words)

    def note(self, words: str) -> None:
        """Show a line of Runner's own, in the panel if a question is open."""
        if self._panel is not None:
            self.write_panel(words + "\n")
        else:
            self._add_note(words, "yellow")

    def notify(self, words: str) -> None:
        """Show a notification, if the terminal takes one."""
        self._write(notification_sequence(os.environ, words))

    def _add_note(self, words: str, style: str) -> None:
        if words != self._last_note:
            at = time.strftime("%H:%M:%S")
            self._notes.append([(f"{at}  ", "dim"), (cell(words), style)])
            self._is_dirty = True
        self._last_note = words

    def wait(self, seconds: float) -> str:
        """Wait for keys at most so long, and draw what is new. Returns the key; nothing if none came."""
        if self._is_to_stop:
            self._stop()
        self._draw()
        key, self._typed = self._typed[:1], self._typed[1:]
        if not key and self._read(seconds):
            key, self._typed = self._typed[:1], self._typed[1:]
        return key

    def _read(self, seconds: float) -> bool:
        if self._keyboard is None:
            time.sleep(seconds)
            return False
        try:
            if not select.select([self._keyboard], [], [], seconds)[0]:
                return False
            read = os.read(self._keyboard, _LONGEST_READ)
        except OSError:  # the terminal is gone
            read = b""
        if not read:
            self._typed += _CTRL_D
            self._keyboard = None
        self._typed += _ESCAPE_SEQUENCE.sub("", self._decode(read))
        return bool(self._typed)

    # --- drawing ----------------------------------------------------------------------------------

    @property
    def _size(self) -> tuple[int, int]:
        with suppress(OSError):
            columns, rows = os.get_terminal_size(self._stream.fileno())
            if columns and rows:
                return columns, rows
        return shutil.get_terminal_size()

    def _draw(self) -> None:
        now, size = time.monotonic(), self._size
        since = now - self._drawn_at
        is_due = self._is_dirty or size != self._drawn or since >= _COUNT_SECONDS
        if self._view is None or not is_due or since < _LEAST_SECONDS:
            return
        from rich.text import Text

        width, height = size
        self._console.width, self._console.height = size
        panel = [] if self._panel is None else self._panel_lines(width, height)
        found = frame(
            self._view,
            self._now(),
            width,
            height,
            notes=[*self._notes],
            panel=panel,
            footer=self._footer(),
        )
        text = Text(no_wrap=True, end="")
        for at, line in enumerate(found):
            text.append("\n" if at else "")
            for words, style in line:
                text.append(words, style)
        self._live.update(text, refresh=True)
        self._drawn_at, self._drawn, self._is_dirty = now, size, False

    def _footer(self) -> Line:
        if self._panel is not None:
            more = self._unseen(*self._size)
            said = f"Space shows {more} more lines" if more else "Enter answers · Ctrl-D later"
            return [(said, "reverse")]
        asking = self._view.asking if self._view is not None else 0
        waits = f" · a answers ({asking} waiting)" if asking else ""
        return [(f"{self._keys}{waits}", "dim")]

    # --- the panel --------------------------------------------------------------------------------

    @contextmanager
    def panel(self) -> Iterator[None]:
        """Show a panel for questions while inside."""
        self._panel, self._seen, self._wrapped_at = [""], 0, 0
        try:
            yield
        finally:
            told = [line for line in self._panel if line.strip()]
            self._panel = None
            self._is_dirty = True
            if told:
                self._add_note(told[-1].strip(), "")

    def write_panel(self, text: str) -> None:
        """Add text to the panel. A line break at its beginning begins the panel anew."""
        assert self._panel is not None
        if text.startswith("\n"):
            text = text.lstrip("\n")
            self._panel, self._seen = [""], 0
        first, *others = lines(text).split("\n")
        self._panel[-1] += first
        self._panel += others
        self._is_dirty, self._wrapped_at = True, 0

    def _panel_rows(self, width: int) -> list[Line]:
        assert self._panel is not None
        if width != self._wrapped_at:
            self._wrapped = [
                row for line in self._panel[:-1] for row in wrapped([(line, "")], width)
            ]
            self._wrapped_at = width
        return [*self._wrapped, *wrapped([(self._panel[-1] + self._entry, "")], width)]

    def _unseen(self, width: int, height: int) -> int:
        """Return how many lines of the panel are still to be paged through."""
        return max(0, len(self._panel_rows(width)) - max(self._seen, panel_room(height) - 1))

    def _panel_lines(self, width: int, height: int) -> Sequence[Line]:
        rows, room = self._panel_rows(width), panel_room(height) - 1
        until = max(self._seen, room)
        return [[("─" * width, "dim")], *rows[max(0, min(until, len(rows)) - room) : until]]

    def forget_typed(self) -> None:
        """Forget what was typed before a question was seen: it is no answer to it."""
        self._typed = self._entry = ""
        if self._keyboard is not None:
            with suppress(termios.error):
                termios.tcflush(self._keyboard, termios.TCIFLUSH)

    def take_line(self, key: str) -> str | None:
        """Take a key of a line that is typed into the panel. Returns the line once it is whole. Raises
        ``EOFError`` for Ctrl-D."""
        self._is_dirty |= bool(key)
        if unseen := self._unseen(*self._size):
            room = panel_room(self._size[1]) - 1
            if key in (" ", "\n", "\r"):
                self._seen = max(self._seen, room) + min(room, unseen)
            elif key == _CTRL_D:
                raise EOFError
        elif key in ("\n", "\r"):
            line, self._entry = self._entry, ""
            self.write_panel(f"{line}\n")
            self._seen = len(self._panel_rows(self._size[0]))
            return line.strip()
        elif key == _CTRL_D and not self._entry:
            raise EOFError
        elif key in ("\x7f", "\x08"):
            self._entry = self._entry[:-1]
        elif key == _CTRL_U:
            self._entry = ""
        elif key.isprintable():
            self._entry += key
        return None


class _Synchronised:
    """A stream whose writes a terminal shows at once: each is one drawing of rich's."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(f"{_BEGIN_UPDATE}{text}{_END_UPDATE}" if text else "")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Notes:
    """Takes what others write to stderr while the screen is drawn, a line at a time."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._line = ""

    def write(self, text: str) -> int:
        *whole, self._line = (self._line + text).split("\n")
        for line in filter(str.strip, whole):
            self._note(line)
        return len(text)

    def flush(self) -> None:
        return

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


# Taskbar progress and notifications, only for terminals known to support them. One that does not
# know the progress sequence (OSC 9;4) may show a notification each time it is sent.


def progress_sequence(environment: Mapping[str, str], percent: int | None) -> str:
    """Return the sequence that shows a job's progress (None: clears it); empty if the terminal has
    none."""
    if not _takes_progress(environment):
        return ""
    return f"\x1b]9;4;0{_END_OSC}" if percent is None else f"\x1b]9;4;1;{percent}{_END_OSC}"


def notification_sequence(environment: Mapping[str, str], words: str) -> str:
    """Return the sequence that shows a notification, without control characters; empty if the terminal
    has none."""
    if not _takes_notifications(environment):
        return ""
    plain = "".join(each for each in words if each.isprintable() and each != ";")
    return f"\x1b]9;{plain[:_LONGEST_NOTIFICATION]}{_END_OSC}"


def _takes_progress(environment: Mapping[str, str]) -> bool:
    """https://ghostty.org/docs/vt/osc/conemu, https://learn.microsoft.com/windows/terminal/tutorials/progress-bar-sequences"""
    if _is_multiplexed(environment):
        return False
    program, version = _program(environment)
    if program == "ghostty" or environment.get("WT_SESSION"):
        return True
    if environment.get("ConEmuANSI") == "ON":
        return True
    if program == "WezTerm":  # versions are dates
        return version >= (20250209,)
    return program == "iTerm.app" and version >= (3, 6, 6)


def _takes_notifications(environment: Mapping[str, str]) -> bool:
    if _is_multiplexed(environment):
        return False
    is_kitty = environment.get("TERM") == "xterm-kitty"
    return is_kitty or _program(environment)[0] in ("ghostty", "WezTerm", "iTerm.app")


def _is_multiplexed(environment: Mapping[str, str]) -> bool:
    """True inside tmux or screen, which swallow both."""
    return bool(environment.get("TMUX") or environment.get("STY"))


def _program(environment: Mapping[str, str]) -> tuple[str, tuple[int, ...]]:
    version = environment.get("TERM_PROGRAM_VERSION", "").replace("-", ".").split(".")
    numbers = tuple(int(part) for part in version[:3] if part.isdecimal() and part.isascii())
    return environment.get("TERM_PROGRAM", ""), numbers
