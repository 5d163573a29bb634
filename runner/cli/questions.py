"""Ask the person at the terminal of ``runner run`` about the calls that wait for an approval."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import IO, Literal

import click

from runner.app import approvals, handle
from runner.app.humanize import cell, decider, duration, input_lines, short_ids
from runner.cli.terminal import refuse
from runner.core.commands import Question, Reply
from runner.core.text import shorten
from runner.errors import UsageError

_LOOK_SECONDS = 0.25
_STILL_OPEN_SECONDS = 1.0
_MOST_LINES = 12
_LONGEST_NAME = 60
_MARGIN = "  │ "
_LONGEST_READ = 4096

Ends = Callable[[], bool]


class Terminal:
    """Lines from a person, one at a time, without holding up the process for them."""

    def __init__(self, keyboard: int, screen: IO[str]) -> None:
        self._keyboard = keyboard
        self._screen = screen
        self._typed = b""

    @property
    def is_ours(self) -> bool:
        """The process is in the foreground: another one would be stopped for reading."""
        try:
            return os.tcgetpgrp(self._keyboard) == os.getpgrp()
        except OSError:  # the terminal is gone
            return False

    def say(self, text: str, end: str = "\n") -> None:
        """Print a text in which nothing steers a terminal."""
        self._screen.write(text + end)
        self._screen.flush()

    def lent(self) -> AbstractContextManager[None]:
        """Leave the terminal to another program while inside."""
        return nullcontext()

    def forget_typed(self) -> None:
        """Forget what was typed before a question was seen: it is no answer to it."""
        self._typed = b""
        with suppress(termios.error):  # the terminal is gone
            termios.tcflush(self._keyboard, termios.TCIFLUSH)

    def read_line(self, until: Ends) -> str | None:
        """Return the next line that the person enters, or None once ``until`` says so. Raises
        ``EOFError`` if there will be none (Ctrl-D, or the terminal is gone)."""
        while b"\n" not in self._typed:
            if until():
                return None
            if select.select([self._keyboard], [], [], _LOOK_SECONDS)[0]:
                try:
                    read = os.read(self._keyboard, _LONGEST_READ)
                except OSError:  # the terminal is gone
                    read = b""
                if not read:
                    raise EOFError
                self._typed += read
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode(errors="replace").strip()


def asker_at_terminal(app: handle.App, author: str) -> Asker | None:
    """Return who asks the person (``author``, for the record) at the terminal of this process; None
    unless standard input, output and error are a terminal."""
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return None
    return Asker(app, Terminal(sys.stdin.fileno(), sys.stderr), author)


class Asker:
    """Asks one person about a job's calls, one after the other, the oldest first."""

    def __init__(self, app: handle.App, terminal: Terminal, author: str) -> None:
        self._app = app
        self._terminal = terminal
        self._author = author
        self._gave_up = False

    @property
    def can_ask(self) -> bool:
        """True if a person is there who has not put the questions off."""
        return not self._gave_up and self._terminal.is_ours

    def ask_again(self) -> None:
        """Ask again what the person had left waiting."""
        self._gave_up = False

    def ask(
        self, job_id: str, is_to_end: Ends, paused: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Ask until the job has no open question, the person quits, or ``is_to_end`` returns True. While
        ``paused``, nothing else writes to the terminal. Raises ``UnreachableError``."""
        if not self.can_ask or not (waiting := self._waiting(job_id)):
            return
        with paused():
            while waiting and not is_to_end():
                try:
                    if not self._ask(waiting[0], is_to_end):
                        self._wait_for_enter(job_id, is_to_end)
                except EOFError:
                    self._gave_up = True
                    self._terminal.say("\nleft waiting; answer with `runner approvals`")
                    return
                waiting = self._waiting(job_id)

    def _waiting(self, job_id: str) -> Sequence[approvals.Group]:
        return approvals.waiting_groups(self._app, job_id)

    def _wait_for_enter(self, job_id: str, is_to_end: Ends) -> None:
        """Wait for Enter after somebody else has answered a question: keys typed for it must not answer
        the next one."""
        if self._waiting(job_id) and not is_to_end():
            self._terminal.say("Enter shows the next question: ", end="")
            self._terminal.read_line(
                _once_a_second(lambda: is_to_end() or not self._waiting(job_id))
            )

    def _ask(self, group: approvals.Group, is_to_end: Ends) -> bool:
        """Ask the group's first question until it has an answer. Returns False if the answer came from
        elsewhere. Raises ``EOFError`` if the person quits."""
        one = group.questions[0]
        shown = _wrapped(input_lines(one.input))
        is_unseen, is_group_unseen = len(shown) > _MOST_LINES, len(group.by_input) > 1
        gone = _once_a_second(lambda: not approvals.is_open(self._app, one))
        self._terminal.say("\n".join(self._question(group, shown)))

        def until() -> bool:
            return is_to_end() or gone()

        while True:
            self._terminal.forget_typed()
            self._terminal.say(_choices(group), end="")
            line = self._terminal.read_line(until)
            if line is None:
                self._terminal.say("" if is_to_end() else "\nanswered elsewhere meanwhile")
                return False
            word, _, rest = line.partition(" ")
            asked = [one]
            match word.lower():
                case "q" | "quit" if not rest:
                    raise EOFError
                case "s" | "show" if rest in ("", "all"):
                    self._terminal.say("\n".join(_wrapped(input_lines(one.input))))
                    is_unseen = False
                    continue
                case "w" | "why" if not rest:
                    self._terminal.say("\n".join(_wrapped(approvals.why_asked(self._app, group))))
                    continue
                case "g" | "group" if len(group.questions) > 1:
                    asked, line = [*group.questions], rest or "yes"
                    if is_group_unseen:
                        self._show_inputs(group)
                        is_unseen = is_group_unseen = False
                        continue
            reply = self._reply(line, one, until)
            if reply is not None and reply.effect == "approved" and not reply.edited and is_unseen:
                self._terminal.say("not all of it was shown: s shows all")
            elif reply is not None and self._answer(asked, reply):
                return True

    def _show_inputs(self, group: approvals.Group) -> None:
        """Show all that the group's calls would run with."""
        for first, *same in group.by_input:
            more = f" and {len(same)} more" if same else ""
            self._terminal.say(f"{shorten(first.item_key, _LONGEST_NAME)}{more}:")
            self._terminal.say("\n".join(_wrapped(input_lines(first.input))))
        self._terminal.say("these are the inputs of the group: answer again for all of them")

    def _question(self, group: approvals.Group, shown: Sequence[str]) -> Iterator[str]:
        one, others = group.questions[0], len(group.questions) - 1
        waited = duration(max(self._app.now() - one.asked_at, 0))
        item, tool = shorten(one.item_key, _LONGEST_NAME), shorten(one.tool, _LONGEST_NAME)
        wish = f"was cut off in the middle of {tool}" if one.asked_again else f"asks to use {tool}"
        place = f" as {label} of its tree" if (label := group.label(one)) else ""
        yield f"\n{item}{place} {wish} ({short_ids(one.run_id)}, waiting {waited})"
        yield from shown[:_MOST_LINES]
        if len(shown) > _MOST_LINES:
            yield f"  … {len(shown) - _MOST_LINES} more lines are NOT shown: s shows all"
        if group.why is not None:
            yield from _wrapped([decider(group.why)], "  asked by: ")
        if one.suggested_rule:
            yield from _wrapped([cell(one.suggested_rule)], "  always:   ")
        if others:
            yield f"  {others} more {'asks' if others == 1 else 'ask'} for the same"

    def _reply(self, line: str, one: Question, until: Ends) -> Reply | None:
        """The reply that a line means; None if it means none."""
        word, _, rest = line.partition(" ")
        match word.lower().rstrip(",.:;!"):
            case "y" | "yes" if not rest:
                return Reply("approved", self._author)
            case "n" | "no":
                reason: str | None = rest.strip()
                if not reason:
                    self._terminal.say("reason, for the model (Enter: none): ", end="")
                    reason = self._terminal.read_line(until)
                return None if reason is None else Reply("denied", self._author, reason)
            case "a" | "always" if rest in ("", "all") and one.suggested_rule:
                far: Literal["job", "always"] = "always" if rest else "job"
                return Reply("approved", self._author, remember=far, rule=one.suggested_rule)
            case "e" | "edit" if not rest and not one.asked_again:
                return self._edited(one)
        if line:
            self._terminal.say("that is not an answer: type a letter, or n and a reason for it")
        return None

    def _edited(self, one: Question) -> Reply | None:
        """The approval of a call with the input that the person has written in an editor; None if it did
        not change or is not valid."""
        before = approvals.editable(one)
        try:
            with self._terminal.lent():
                after = click.edit(before, extension=".sh" if one.tool == "Bash" else ".json")
            if after is None or after.strip() == before.strip():
                self._terminal.say("nothing was edited")
                return None
            edited = approvals.edited_input(self._app, [one], after.rstrip("\n"))
        except (UsageError, click.ClickException) as error:
            refuse(error)
            return None
        return Reply("approved", self._author, edited=edited)

    def _answer(self, asked: Sequence[Question], reply: Reply) -> bool:
        try:
            answered = approvals.answer(self._app, [one.id for one in asked], reply)
        except UsageError as error:
            refuse(error)
            return False
        named = [each for each in answered if not each.by_rule]
        if len(named) > 1:
            self._terminal.say(f"  {sum(each.changed for each in named)} of {len(named)} answered")
        for each in named if len(named) == 1 else ():
            self._terminal.say(f"  {cell(each.detail)}")
        by_rule = sum(each.by_rule and each.changed for each in answered)
        if by_rule:
            self._terminal.say(f"  and {by_rule} more by the rule")
        return True


def _choices(group: approvals.Group) -> str:
    """The prompt with all possible answers."""
    one, count = group.questions[0], len(group.questions)
    answers = (
        "y(es), n(o)",
        "" if one.asked_again else "e(dit)",
        "w(hy)",
        "a(lways in this job; a all: in new ones too)" if one.suggested_rule else "",
        f"g(roup: all {count})" if count > 1 else "",
        "q(uit), s(how all): ",
    )
    wish = "run it again?" if one.asked_again else "allow it?"
    return f"{wish} {', '.join(filter(None, answers))}"


def _once_a_second(look: Ends) -> Ends:
    """Return a function that calls ``look`` at most once a second, and returns False in between."""
    looked = time.monotonic()

    def ends() -> bool:
        nonlocal looked
        if time.monotonic() - looked < _STILL_OPEN_SECONDS:
            return False
        looked = time.monotonic()
        return look()

    return ends


def _wrapped(lines: Iterable[str], first_margin: str = _MARGIN) -> list[str]:
    """Lines behind a margin, wrapped at the terminal's width, so that none can pass for one of
    Runner's."""
    from rich.cells import chop_cells

    width = max(shutil.get_terminal_size().columns - len(first_margin) - 1, 20)
    parts = [part for line in lines for part in (chop_cells(line, width) or [""])]
    return [
        (first_margin if index == 0 else _MARGIN.rjust(len(first_margin))) + part
        for index, part in enumerate(parts)
    ]
