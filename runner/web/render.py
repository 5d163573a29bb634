"""Templates of pages, and the values that they show.

An expression in a template is text: ``shown`` escapes it and makes characters visible that hide or steer.
In an attribute it stands behind ``|attr``, which escapes it and changes nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup, escape
from starlette.responses import Response

from runner.app import approvals, humanize, tables, transcript_page
from runner.core.run import STATES
from runner.web import charts

STATIC = Path(__file__).parent / "static"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


@cache
def templates() -> Environment:
    base = transcript_page.html_environment()
    loader = ChoiceLoader([PackageLoader("runner.web"), PackageLoader("runner.app")])
    found = base.overlay(loader=loader)
    found.filters = {
        **base.filters,
        "answer": humanize.answer,
        "asks": lambda why: f"asked by {humanize.decider(why)}",
        "attr": attr,
        "cheaper_lines": humanize.cheaper_lines,
        "contained": humanize.contained,
        "containment": humanize.containment_line,
        "cost": humanize.cost,
        "cost_line": humanize.cost_line,
        "denier": humanize.denier,
        "duration": humanize.duration,
        "editable": approvals.editable,
        "number": "{:,}".format,
        "first_line": humanize.first_line,
        "loss_line": humanize.loss_line,
        "marked": marked,
        "said": tables.shown,
        "short": humanize.short_ids,
        "share": lambda share: f"{share:.0%}",
        "tone": lambda state: humanize.TONES.get(str(state).split(" (")[0], "plain"),
        "usd": lambda usd: humanize.dollars(Decimal(str(usd))),
        "usd_of": humanize.usd_of,
    }
    found.globals |= {
        "STATES": STATES,
        "asset": asset,
        "charts": charts,
        "plural": humanize.plural,
        "url": url,
    }
    return found


def html(name: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """Return a page. A lone half of a surrogate pair, which UTF-8 cannot encode, is escaped."""
    text = templates().get_template(name).render(values)
    return Response(
        text.encode("utf-8", "backslashreplace"), status, media_type="text/html; charset=utf-8"
    )


def bare(status: int, words: str) -> Response:
    """Return a page without navigation that only shows a message."""
    return html("bare.html", {"words": words}, status)


def attr(value: Any) -> Markup:
    """Return a value for an attribute or a ``<textarea>``: escaped, and nothing else is changed."""
    return escape(str(value))


def marked(excerpt: Any) -> Iterator[tuple[bool, str]]:
    """Yield the parts of an excerpt, each with True if it is what was searched for."""
    at = 0
    for start, end in excerpt.marks:
        yield False, excerpt.text[at:start]
        yield True, excerpt.text[start:end]
        at = end
    yield False, excerpt.text[at:]


def url(path: str, *parts: str, **query: Any) -> str:
    """Return an address on this site, with the parts in place of ``{}`` in the path. Empty values are
    left out."""
    whole = path.format(*(quote(part, safe="") for part in parts))
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    return f"{whole}?{urlencode(given, errors='replace')}" if given else whole


@cache
def _asset(name: str) -> tuple[bytes, str]:
    content = (STATIC / name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:12]


def asset(name: str) -> str:
    """Return the address of a style or a script, which changes with its content."""
    return f"/static/{_asset(name)[1]}/{name}"


def static(name: str) -> Response | None:
    """Return a style or a script; None if there is none of this name."""
    if name not in {path.name for path in STATIC.iterdir() if path.suffix in _KINDS}:
        return None
    forever = {"cache-control": "private, max-age=31536000, immutable"}
    return Response(_asset(name)[0], headers=forever, media_type=_KINDS[Path(name).suffix])
