"""A transcript as one self-contained HTML page: no network, no script but its own.

Its markup is in ``templates/``. The Content-Security-Policy names the page's style and script by their
hashes, so that even a mistake here lets no other script run (https://www.w3.org/TR/CSP3/).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cache, partial
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from runner.app.humanize import edit_of
from runner.app.transcript import Media, Message, Part, SubAgent, Transcript, text_of
from runner.core.text import visible

_FIRST_LINES = 12
_FIRST_CHARACTERS = 2_000
_WORTH_FOLDING = 400
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_MARKED = re.compile(r"(?P<code>`[^`\n]+`)|\*\*[^*\n]+\*\*|^#{1,6} .*", re.MULTILINE)
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # none can hold a script
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)
# A whole control sequence (ECMA-48 5.4), or a joiner inside an emoji such as a family, which hides nothing.
_EMOJI = "\u2600-\u27bf\U0001f300-\U0001faff"
_JOINER = "\u200d"
_UNITS = re.compile(rf"(\x1b\[[0-?]*[ -/]*[@-~]?|(?<=[{_EMOJI}\ufe0f]){_JOINER}(?=[{_EMOJI}]))")


def page(transcript: Transcript) -> Iterator[str]:
    """Yield the page a piece at a time, while the transcript's parts are read."""
    html = html_environment()
    assert html.loader is not None
    names = ("transcript.css", "transcript.js")
    style, script = (html.loader.get_source(html, name)[0] for name in names)
    return html.get_template("transcript.html").generate(
        transcript=transcript, parts=_flat(transcript.parts), style=style, script=script
    )


def _flat(parts: Iterable[Part], label: str = "") -> Iterator[tuple[Part | None, str]]:
    """Yield parts with their link ids; a sub-agent's parts follow it and end with None. The label
    is the run's in its tree."""
    turns: set[int] = set()
    for part in parts:
        anchor = ""
        if isinstance(part, Message) and part.turn and part.turn not in turns:
            turns.add(part.turn)
            anchor = f"{f'agent-{label}-' if label else ''}turn-{part.turn}"
        yield part, anchor
        if isinstance(part, SubAgent):
            yield from _flat(part.transcript.parts, part.label)
            yield None, ""


def environment(finalize: Callable[[Any], Markup], **options: Any) -> Environment:
    """Return an environment of templates in which an expression becomes what ``finalize`` makes of it."""
    return Environment(
        loader=PackageLoader("runner.app"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


@cache
def html_environment() -> Environment:
    """Return the environment of HTML templates: an expression is text unless it is marked as safe."""
    found = environment(shown, keep_trailing_newline=True)
    found.filters |= {
        "contents": _contents,
        "digest": digest,
        "edit": edit_of,
        "fold": _fold,
        "json": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
        "kind": lambda value: type(value).__name__,
        "paragraphs": _paragraphs,
        "spans": _spans,
        "utc": partial(datetime.fromtimestamp, tz=UTC),
        "visible": visible,
    }
    return found


def shown(value: Any) -> Markup:
    """Return a value as HTML in which nothing of it is markup, and characters that would hide or reorder
    text are visible. Line ends and tabs stay as they are."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    if text.replace("\n", "").replace("\t", "").isprintable():
        return escape(text)
    found = []
    for index, part in enumerate(_UNITS.split(text)):
        if index % 2:  # what the pattern matches
            found.append((part != _JOINER, part))
        else:
            runs = groupby(part, key=lambda each: each not in "\n\t" and visible(each) != each)
            found += [(is_hidden, "".join(some)) for is_hidden, some in runs]
    control = Markup('<span class="control">{}</span>')
    return Markup().join(
        control.format(visible(some)) if is_hidden else escape(some) for is_hidden, some in found
    )


def digest(content: str) -> str:
    """Return the hash that a Content-Security-Policy names a style or script by."""
    hashed = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"sha256-{hashed}"


def _fold(text: str) -> tuple[str, str, str]:
    """Split a long text, if possible at a line's end: beginning, rest, length of the rest."""
    text = text.removesuffix("\n")
    at = 0
    for _ in range(_FIRST_LINES):
        at = text.find("\n", at) + 1 or len(text) + 1
    if at > _FIRST_CHARACTERS:
        at = text.rfind("\n", 0, _FIRST_CHARACTERS) + 1 or _FIRST_CHARACTERS
    rest = text[at:]
    if len(rest) < _WORTH_FOLDING and rest.count("\n") < _FIRST_LINES:
        return text, "", ""
    more = rest.count("\n") + 1
    told = f"{more:,} more lines" if more > 1 else f"{len(rest):,} more characters"
    return text[:at].removesuffix("\n"), rest, told


def _paragraphs(text: str) -> Iterator[tuple[str, str]]:
    """Split a text into fenced code ("code") and what is around it ("p"), fences included."""
    fence = ""
    held: list[str] = []
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if not fence and found:
            yield "p", "\n".join(held)
            fence, held = found[1], [line]
        elif fence and found and line.strip() == fence:
            yield "code", "\n".join([*held, line])
            fence, held = "", []
        else:
            held.append(line)
    yield "code" if fence else "p", "\n".join(held)


def _spans(text: str) -> Iterator[tuple[str, str]]:
    """Split a paragraph into tags and texts: code in ticks "code", bold and headings "b"."""
    at = 0
    for found in _MARKED.finditer(text):
        yield "", text[at : found.start()]
        yield "code" if found["code"] else "b", found[0]
        at = found.end()
    yield "", text[at:]


def _contents(content: Any) -> Iterator[tuple[str, str]]:
    """Yield the blocks of a tool result, each as the data URL of a harmless picture or as text."""
    if not isinstance(content, list):
        yield "", text_of(content)
        return
    for block in content:
        match block:
            case {"source": {"type": "base64", "media_type": str(kind), "data": str(data)}} if (
                kind in _PICTURES and _BASE64.fullmatch(data)
            ):
                yield f"data:{kind};base64,{data}", ""
            case Media(media_type=kind, load=load) if kind in _PICTURES:
                yield f"data:{kind};base64,{base64.b64encode(load()).decode()}", ""
            case _:
                yield "", text_of([block])
