"""``transcript``: the conversation of a run, and the requests that the model got.

Untrusted text is indented, so that none of it looks like a heading (``terminal.wrapped`` also
indents the rest of long lines).
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from runner.app import handle
from runner.app import transcript as told
from runner.app import transcript_page as pages
from runner.app.humanize import Note, Tone, cell, edit_of, input_lines, moment, short_ids
from runner.cli.options import RUN, json_option, with_app
from runner.cli.terminal import (
    MARGIN,
    Line,
    diff_lines,
    note,
    output,
    print_lines,
    say_bytes,
    say_json,
)
from runner.errors import UsageError

_TURNS = re.compile(r"([0-9]{1,9})?(-)?([0-9]{1,9})?", re.ASCII)
_LAST_TURN = 999_999_999
_MOST_LINES = 20
_FIRST_LINES = 12
_LAST_LINES = 4
_LONGEST_LINE = 1_000
_TONES: dict[Tone, str] = {"plain": "dim", "good": "green", "bad": "red", "wait": "yellow"}
_HEADING = "bold yellow"
_ROLES = {"user": "bold green", "assistant": "bold cyan"}


def _turns(text: str) -> tuple[int, int]:
    """Return the first and the last of ``3-9``, ``3-``, ``-9`` or ``3``."""
    found = _TURNS.fullmatch(text)
    first = last = 0
    if found is not None and any(found.group(1, 3)):
        first = int(found[1] or 1)
        last = int(found[3] or (_LAST_TURN if found[2] else first))
    if not 1 <= first <= last:
        raise click.BadParameter(f"{text[:40]!a} is not a range of turns such as 3-9, 3-, -9 or 3")
    return first, last


@click.command()
@click.argument("run", type=RUN)
@click.option("--turns", type=_turns, metavar="A-B", help="Only these turns, as 3-9, 3-, -9 or 3.")
@click.option(
    "--full/--folded",
    "full",
    default=None,
    help="Show long outputs whole, or fold them (default: folded at a terminal).",
)
@click.option("--no-pager", is_flag=True, help="Use no pager at a terminal.")
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
    help="Print the request that turn TURN sent to the API.",
)
@click.option(
    "--tree", "whole_tree", is_flag=True, help="Include the conversations of the run's sub-agents."
)
@click.option("-f", "--follow", is_flag=True, help="Follow the run until it ends, with live text.")
@json_option
@with_app
def transcript(
    app: handle.App,
    run: str,
    turns: tuple[int, int] | None,
    full: bool | None,
    whole_tree: bool,
    no_pager: bool,
    follow: bool,
    page: Path | None,
    turn: int | None,
    as_json: bool,
) -> None:
    """Show the conversation of a run, with decisions, costs, compactions, verifications and
    people's actions where they happened. --json prints the messages exactly as in the API.

    Parts that requests truncated or summarised are shown whole. At a terminal there are colours
    (NO_COLOR: none) and a pager (PAGER, else less), and long outputs are folded. --html writes one
    file that needs no network. --as-sent prints the body of a turn's request byte for byte (at a
    terminal: broken into lines). -f follows the run as `runner events -f` does.

    A call that started a sub-agent shows the sub-agent's outcome. With --tree the sub-agent's
    conversation follows, each line behind its label: 3 is the third sub-agent of the run, 3.1 the
    first sub-agent of 3; the call 3.2 is the second call of sub-agent 3.

    \b
    Example:
      runner transcript k3x9f2
      runner transcript k3x9f2 -f
      runner transcript k3x9f2 --turns 10-20 --full
      runner transcript k3x9f2 --html run.html
      runner transcript k3x9f2 --as-sent 12
    """
    if follow and (page or turn or turns or as_json):
        raise UsageError("-f cannot be combined with --html, --as-sent, --turns or --json")
    forms = {"--html": page is not None, "--as-sent": turn is not None, "--json": as_json}
    _refuse_misfits(forms, {"--turns": turns is not None, "--tree": whole_tree}, full)
    if turn is not None:
        _say_request(told.request_as_sent(app, run, turn))
        return
    if as_json:
        say_json(told.api_messages(app, run))
        return
    found = told.transcript_of(app, run, time.time(), turns, whole_tree=whole_tree)
    if page is None:
        is_folded = sys.stdout.isatty() if full is None else not full
        paged = not (no_pager or follow)
        print_lines(lines_of(found, is_folded=is_folded), paged=paged)
        if follow:
            from runner.cli.show import follow_in_words  # late: most transcripts are not followed

            follow_in_words(app, run, whole_tree=whole_tree, only_new=True)
        return
    to_stdout = str(page) == "-"
    with output(None if to_stdout else page) as write:
        for piece in pages.page(found):
            write(piece.encode())
    if not to_stdout:
        note(f"written: {cell(page)}")


def _refuse_misfits(
    forms: Mapping[str, bool], parts: Mapping[str, bool], full: bool | None
) -> None:
    """Refuse options that do not go together, of those given."""
    given = [name for name, is_given in forms.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} ask for different things: give one of them")
    for name, is_given in parts.items():
        if given and is_given and given != ["--html"]:
            raise UsageError(f"{name} goes with the conversation, not with {given[0]}")
    if given and full is not None:
        raise UsageError(f"--full and --folded go with the terminal, not with {given[0]}")


def _say_request(body: bytes) -> None:
    if sys.stdout.isatty():
        say_json(json.loads(body))
    else:
        say_bytes(body)


# The conversation as lines of text


def lines_of(transcript: told.Transcript, *, is_folded: bool) -> Iterator[Line]:
    """Yield a transcript's lines as its parts are read; folded, long outputs lose their middle."""
    width = max((len(name) for name, _ in transcript.facts), default=0)
    for name, value in transcript.facts:
        words = moment(value) if isinstance(value, float) else short_ids(value)
        style = _TONES[transcript.state.tone] if name == "state" else ""
        yield [(name.ljust(width), "dim"), ("  ", ""), (words, style)]
    yield []
    if transcript.system:
        yield [("[system prompt]", "dim")]
        yield from _text(transcript.system, is_folded, "dim")
        yield []
    after_event = False
    for part in transcript.parts:
        if after_event and not isinstance(part, told.Event):
            yield []
        yield from _part(part, is_folded)
        after_event = isinstance(part, told.Event)


def _part(part: told.Part, is_folded: bool) -> Iterator[Line]:
    match part:
        case told.Message():
            turn = f", turn {part.turn}" if part.turn else ""
            style = _ROLES.get(part.role, _HEADING)
            yield _heading(f"{part.role}{turn}", part.at, part.words, style)
            for index, piece in enumerate(part.pieces):
                if index and told.ToolResult in (type(piece), type(part.pieces[index - 1])):
                    yield []
                yield from _piece(piece, is_folded)
        case told.Compaction():
            yield _heading(f"compacted before turn {part.turn}", part.at, part.words)
            yield from map(_noted, part.notes)
            if part.text:
                yield from _text(part.text, is_folded)
        case told.Verification():
            yield _heading(f"verification {part.number}, after turn {part.turn}", part.at)
            yield _noted(part.verdict)
            if part.output:
                yield from _text(part.output, is_folded)
        case told.Changes():
            yield [("── what it changed", _HEADING)]
            yield from diff_lines(part.lines, MARGIN)
        case told.SubAgent():
            # Its label precedes all lines, so that none looks like a part of its parent.
            name = (f"── sub-agent {part.label}", "bold magenta")
            yield [name, (" · ", ""), (part.note.words, _TONES[part.note.tone])]
            for line in lines_of(part.transcript, is_folded=is_folded):
                yield [(f"{part.label} │{' ' if line else ''}", "dim"), *line]
        case told.Event():
            style = "bold magenta" if part.is_by_person else _TONES[part.note.tone]
            yield [("• ", "dim"), (part.note.words, style), (f" · {moment(part.at)}", "dim")]
            return
    yield []


def _piece(piece: told.Piece, is_folded: bool) -> Iterator[Line]:
    match piece:
        case told.Text():
            if piece.by:
                yield [(f"[by a {piece.by}]", "dim")]
            yield from _text(piece.text, is_folded and piece.by not in ("", "person"))
        case told.Thinking():
            yield [("[thinking]", "dim")]
            yield from _text(piece.text or "(kept by the API)", is_folded, "dim")
        case told.ToolCall():
            label = f" {piece.label}" if piece.label else ""
            yield [("[", "dim"), (piece.tool, _HEADING), (f"{label} {short_ids(piece.id)}]", "dim")]
            yield from _input(piece.arguments, is_folded)
            if piece.edited is not None:
                yield [("[ran with this input instead]", "yellow")]
                yield from _input(piece.edited, is_folded)
            yield from map(_noted, (*piece.decided, *piece.started))
        case told.ToolResult():
            outcome = (piece.outcome.words, _TONES[piece.outcome.tone])
            yield [(f"[result {short_ids(piece.call_id)}: ", "dim"), outcome, ("]", "dim")]
            content = piece.content
            blocks = content if isinstance(content, list) else []
            texts = [_encoded(block) or told.text_of([block]) for block in blocks]
            yield from _text("\n".join(texts) if texts else told.text_of(content), is_folded)
            if piece.original is not None:
                yield [("[a hook replaced this]", "dim")]
                yield from _text(piece.original, is_folded)
            if piece.whole_bytes is not None:
                whole = f"[all {piece.whole_bytes:,} bytes: runner show {short_ids(piece.call_id)}]"
                yield [(whole, "dim")]
        case told.OtherBlock():
            yield [(f"[{piece.kind}]", "dim")]
            words = _encoded(piece.content) or told.text_of([piece.content])
            yield from _text(words, is_folded)


def _input(arguments: Any, is_folded: bool) -> Iterator[Line]:
    """Yield the input of a call; of one that replaces a text, both texts as a diff."""
    others, diff = edit_of(arguments) or (arguments, [])
    yield from _folded(list(input_lines(others)), is_folded)
    yield from _without_middle([*diff_lines(diff, MARGIN)], is_folded)


def _text(text: str, is_folded: bool, style: str = "") -> Iterator[Line]:
    return _folded(text.removesuffix("\n").expandtabs(8).split("\n"), is_folded, style)


def _folded(lines: Sequence[str], is_folded: bool, style: str = "") -> Iterator[Line]:
    """Yield lines behind the margin; of many, when folded, the first and the last."""
    shown = [*lines]
    for at, line in enumerate(lines if is_folded else ()):
        if (more := len(line) - _LONGEST_LINE) > 0:
            shown[at] = f"{line[:_LONGEST_LINE]} … {more:,} characters more"
    yield from _without_middle([_margined(line, style) for line in shown], is_folded)


def _without_middle(rows: Sequence[Line], is_folded: bool) -> Iterator[Line]:
    """Yield rows; of many, when folded, the first and the last."""
    if not is_folded or len(rows) <= _MOST_LINES:
        yield from rows
        return
    more = len(rows) - _FIRST_LINES - _LAST_LINES
    yield from rows[:_FIRST_LINES]
    yield [(f"{MARGIN}… {more:,} lines more (--full shows them)", "dim")]
    yield from rows[-_LAST_LINES:]


def _heading(name: str, at: float, words: str = "", style: str = _HEADING) -> Line:
    more = f" · {moment(at)}" + (f" · {words}" if words else "")
    return [(f"── {name}", style), (more, "dim")]


def _noted(note: Note) -> Line:
    return [(f"[{note.words}]", _TONES[note.tone])]


def _margined(line: str, style: str = "") -> Line:
    return [((MARGIN + line).rstrip(), style)]


def _encoded(block: Any) -> str:
    """Return the kind and size of a block that no terminal shows; empty for others."""
    source = block.get("source") if isinstance(block, dict) else None
    if not isinstance(source, dict) or source.get("type") != "base64":
        return ""
    kind, size = source.get("media_type"), len(str(source.get("data"))) * 3 // 4
    return f"({block.get('type')}, {kind}, about {size:,} bytes)"
