"""A run as one page that needs nothing but itself: no network, and no script but its own.

Content-Security-Policy names the page's style and script by their hashes, so that not even a mistake here
could let a script of somebody else run. Source: https://www.w3.org/TR/CSP3/.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from runner.core.text.plain import visible
from runner.page.blocks import folded, note, piece
from runner.page.characters import shown
from runner.page.parts import (
    Compaction,
    Event,
    Message,
    Part,
    Reading,
    SubAgent,
    ToolResult,
    Verification,
)

_BAR = """\
<div class="bar" role="search" hidden>
<input id="search" type="search" placeholder="Search: press /" aria-label="Search in this run" \
autocomplete="off" spellcheck="false">
<output id="count" for="search" aria-live="polite"></output>
<button id="previous" title="Previous match (Shift+Enter)" aria-label="Previous match">↑</button>
<button id="next" title="Next match (Enter)" aria-label="Next match">↓</button>
<span class="gap"></span>
<input id="turn" inputmode="numeric" placeholder="Turn" aria-label="Go to turn" autocomplete="off">
<label><input type="checkbox" data-shows="thinking" checked> Thinking</label>
<label><input type="checkbox" data-shows="tools" checked> Tools</label>
<label><input type="checkbox" data-shows="events" checked> Events</label>
<button id="unfold" aria-pressed="false" title="Unfold everything (u)">Unfold</button>
</div>
"""
_FOOT = """\
<footer><p class="keys" hidden><kbd>/</kbd> search <kbd>Enter</kbd> <kbd>Shift</kbd>+<kbd>Enter</kbd> \
next and previous match <kbd>j</kbd> <kbd>k</kbd> next and previous turn <kbd>u</kbd> unfold \
<kbd>Esc</kbd> leave the search</p><p>Times are UTC. Control characters of others are shown as \
<span class="control">␛</span>.</p></footer>
"""


def page(reading: Reading) -> Iterator[str]:
    """The page, a piece at a time, as the reading's parts come."""
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    title = f"{reading.title} · {reading.run_id}"
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(visible(title))}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n{_BAR}<main>\n"
    )
    yield _head(reading)
    yield from _parts(reading.parts, "")
    yield f"</main>\n{_FOOT}<script>{script}</script>\n</body>\n</html>\n"


def _asset(name: str) -> str:
    return (files("runner.page") / "assets" / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"sha256-{digest}"


def _head(reading: Reading) -> str:
    return (
        f'<header class="run"><h1><bdi>{shown(reading.title)}</bdi></h1>'
        f'<p class="state">{note(reading.state)}</p>{_facts(reading)}</header>\n'
    )


def _facts(reading: Reading) -> str:
    facts = "".join(
        f"<div><dt>{shown(name)}</dt><dd>{_fact(value)}</dd></div>"
        for name, value in reading.facts
        if name not in ("state", "item")  # told above them
    )
    system = ""
    if reading.system:
        text = folded(reading.system)
        system = f"<details><summary>System prompt</summary>{text}</details>"
    return f'<dl class="facts">{facts}</dl>{system}'


def _fact(value: str | float) -> str:
    return _time(value) if isinstance(value, float) else f"<bdi>{shown(value)}</bdi>"


def _time(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return f'<time datetime="{at.isoformat()}">{at:%Y-%m-%d %H:%M:%S}</time>'


def _parts(parts: Iterable[Part], label: str) -> Iterator[str]:
    """What was said and done in a run, a piece at a time.

    Args:
        label: what the run is called in its tree.
    """
    seen: set[str] = set()
    for part in parts:
        if isinstance(part, SubAgent):
            head = f"Sub-agent {shown(part.label)} {note(part.note)}"
            yield f'<details class="agent"><summary>{head}</summary>\n{_facts(part.reading)}\n'
            yield from _parts(part.reading.parts, part.label)
            yield "</details>\n"
        else:
            yield _part(part, seen, label)


def _part(part: Message | Compaction | Verification | Event, seen: set[str], label: str) -> str:
    match part:
        case Message():
            return _message(part, seen, label)
        case Compaction():
            notes = "".join(f"<p>{note(each)}</p>" for each in part.notes)
            text = folded(part.text) if part.text else ""
            head = _heading(f"Compacted before turn {part.turn}", part.at, part.words)
            return f'<article class="compaction">{head}{notes}{text}</article>\n'
        case Verification():
            head = _heading(f"Verification {part.number}", part.at, f"after turn {part.turn}")
            output = folded(part.output) if part.output else ""
            verdict = f"<p>{note(part.verdict)}</p>"
            return f'<article class="verification">{head}{verdict}{output}</article>\n'
        case Event():
            who = " person" if part.is_by_person else ""
            return f'<p class="event{who}">{note(part.note)} {_time(part.at)}</p>\n'


def _message(message: Message, seen: set[str], label: str) -> str:
    is_results = all(isinstance(each, ToolResult) for each in message.pieces)
    name, kind = message.role.capitalize(), message.role
    if message.role == "user" and is_results:
        name, kind = "Results", "results"
    anchor = ""
    turn = f"turn {message.turn}" if message.turn else ""
    if turn and f"turn-{message.turn}" not in seen:
        seen.add(f"turn-{message.turn}")
        name_of_turn = escape(f"{f'agent-{label}-' if label else ''}turn-{message.turn}")
        anchor = f' id="{name_of_turn}"'
        turn = f'<a href="#{name_of_turn}">{turn}</a>'
    head = _heading(f"{name} {turn}".rstrip(), message.at, message.words)
    body = "".join(map(piece, message.pieces))
    return f'<article class="{kind}"{anchor}>{head}{body}</article>\n'


def _heading(title: str, at: float, words: str) -> str:
    """Args: title: HTML of Runner's own."""
    return f'<h2>{title} {_time(at)}<span class="words">{shown(words)}</span></h2>'
