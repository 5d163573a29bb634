"""``transcript``: what was said in a run, and what the model was sent of it."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import cell
from runner.cli.options import json_option, opened, with_settings
from runner.cli.terminal import note, print_lines, say_json
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.app.transcript import Transcript

_TURNS = re.compile(r"([0-9]{1,9})?(-)?([0-9]{1,9})?", re.ASCII)
_LAST_TURN = 999_999_999


class TurnRange(click.ParamType[tuple[int, int]]):
    """Turns as ``3-9``, ``3-``, ``-9`` or ``3``."""

    name = "A-B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        found = _TURNS.fullmatch(str(value))
        first = last = 0
        if found is not None and any(found.group(1, 3)):
            first = int(found[1] or 1)
            last = int(found[3] or (_LAST_TURN if found[2] else first))
        if not 1 <= first <= last:
            self.fail(f"{str(value)[:40]!a} are not turns such as 3-9, 3-, -9 or 3", param, ctx)
        return first, last


@click.command()
@click.argument("run")
@click.option("--turns", type=TurnRange(), help="Only these turns, as 3-9, 3-, -9 or 3.")
@click.option(
    "--full/--folded",
    "full",
    default=None,
    help="Show long outputs whole, or fold them (default: folded at a terminal).",
)
@click.option("--no-pager", is_flag=True, help="Print it at once, also at a terminal.")
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Write a page that can be read and searched in a browser (-: to stdout).",
)
@click.option(
    "--as-sent",
    "turn",
    type=click.IntRange(1),
    metavar="TURN",
    help="Print the request of that turn as it was sent.",
)
@click.option(
    "--tree",
    "whole_tree",
    is_flag=True,
    help="With the conversations of the sub-agents it started.",
)
@json_option
@with_settings
def transcript(
    settings: Settings,
    run: str,
    turns: tuple[int, int] | None,
    full: bool | None,
    whole_tree: bool,
    no_pager: bool,
    page: Path | None,
    turn: int | None,
    as_json: bool,
) -> None:
    """Show the conversation of a run, with decisions, costs, compactions, verifications and what people
    did where they happened. With --json: the messages exactly as in the API.

    It is shown whole, also what was shortened or summarised when it was sent. At a terminal it is in
    colours (NO_COLOR: without), goes through a pager (PAGER, else less), and long outputs are
    folded. With --html it is one file that needs no network. With --as-sent it is the body of the
    request that the model got in a turn, byte for byte (at a terminal: on more lines).

    A call that started a sub-agent says what became of it. With --tree its conversation follows, each
    line behind what it is called in its tree: 3 is the third sub-agent of the run, 3.1 the first of
    that one; a call 3.2 is the second of the third sub-agent.

    \b
    Example:
      runner transcript k3x9f2
      runner transcript k3x9f2 --turns 10-20 --full
      runner transcript k3x9f2 --html run.html
      runner transcript k3x9f2 --as-sent 12
    """
    from runner.app import transcript as app

    _refuse_mixed(turns, full, page, turn, whole_tree, as_json)
    with opened(settings) as handle:
        database = handle.database
        if turn is not None:
            _say_request(app.request_as_sent(database, run, turn))
            return
        if as_json:
            say_json(app.api_messages(database, run))
            return
        found = app.transcript_of(
            settings, database, run, time.time(), turns, whole_tree=whole_tree
        )
        if page is not None:
            _write_page(found, page)
            return
        from runner.cli.transcript_text import lines_of

        is_folded = sys.stdout.isatty() if full is None else not full
        print_lines(lines_of(found, is_folded=is_folded), paged=not no_pager)


def _refuse_mixed(
    turns: tuple[int, int] | None,
    full: bool | None,
    page: Path | None,
    turn: int | None,
    whole_tree: bool,
    as_json: bool,
) -> None:
    """Refuse options that ask for different things."""
    wanted = {"--html": page is not None, "--as-sent": turn is not None, "--json": as_json}
    given = [name for name, is_given in wanted.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} ask for different things: give one of them")
    if given and turns is not None and page is None:
        raise UsageError(f"--turns goes with the conversation, not with {given[0]}")
    if given and whole_tree and page is None:
        raise UsageError(f"--tree goes with the conversation, not with {given[0]}")
    if given and full is not None:
        raise UsageError(f"--full and --folded go with the terminal, not with {given[0]}")


def _say_request(body: bytes) -> None:
    if sys.stdout.isatty():
        say_json(json.loads(body))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(body)


def _write_page(found: Transcript, path: Path) -> None:
    from runner.app.page import page
    from runner.cli.files import output

    with output(None if str(path) == "-" else path) as write:
        for piece in page(found):
            write(piece.encode())
    if str(path) != "-":
        note(f"written: {cell(path)}")
