"""``search``: full text over everything that runs said and did."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from runner.app.humanize import cell, moment
from runner.cli.audit import MOST_ROWS, filter_options, format_options, limit_option, say_rows
from runner.cli.options import opened, with_settings
from runner.cli.terminal import console_on, note, say
from runner.core.search import ROLES, SOURCES
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.audit import Found, Hit


_PATIENCE_SECONDS = 1.0
_BETWEEN_SECONDS = 0.2
_ERASE_LINE = "\r\x1b[K"


class _Sources(click.ParamType[tuple[str, ...]]):
    """Kinds of texts, with commas between them."""

    name = "KINDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = tuple(name.strip() for name in str(value).split(","))
        if wrong := [name for name in names if name not in SOURCES]:
            self.fail(f"{wrong[0]!r} is none of {', '.join(SOURCES)}", param, ctx)
        return names


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("text", nargs=-1, type=click.UNPROCESSED)
@click.option("--exact", metavar="TEXT", help="This text too, letter by letter, anywhere.")
@click.option("--in", "sources", type=_Sources(), help=f"Only in these: {','.join(SOURCES)}.")
@click.option("--role", type=click.Choice(ROLES), help="Only what the model or its user said.")
@filter_options
@limit_option(20)
@click.option(
    "--offset",
    type=click.IntRange(0, MOST_ROWS),
    default=0,
    metavar="N",
    help="Leave out so many at first.",
)
@format_options
@with_settings
def search(
    settings: Settings,
    text: tuple[str, ...],
    exact: str | None,
    sources: Any,
    role: Any,
    only: Any,
    limit: int | None,
    offset: int,
    format: str,
) -> None:
    """Search everything that runs said, thought, ran and were answered, the best matches first.

    TEXT is words that must all be there, in any order; "a phrase" in quotes of its own; the beginning
    of words as in time*; and -word for what must not be there. Case and accents do not count. Words
    with _ / . or - between them are a phrase. An --exact text counts letter by letter.

    \b
    Example:
      runner search 'connection "timed out" -retry'
      runner search 'migrat*' --in input,output --tool Bash --since 3d
      runner search --exact 'self.client_id =' --job job_01jd9k
    """
    from runner.audit import Audit

    _refuse_options(text)
    with opened(settings) as handle, Indexing() as indexing:
        database = handle.database
        found = Audit.of(settings, database).find(
            " ".join(text),
            exact,
            sources or (),
            role,
            limit,
            offset,
            only,
            tell=lambda line: note(cell(line)),
            progress=indexing.show,
        )
    if format == "table":
        _say_found(found, offset)
    else:
        say_rows(found.rows(), format)


def _refuse_options(text: tuple[str, ...]) -> None:
    """A word may begin with one dash, so that click lets through what is no option."""
    for word in text:
        if word.startswith("--"):
            raise click.UsageError(f"No such option: {word.split('=')[0]!a}")


def _say_found(found: Found, offset: int) -> None:
    for hit in found.hits:
        _say_hit(hit)
    sys.stdout.flush()
    note(_summary(found, offset))


def _summary(found: Found, offset: int) -> str:
    more = f": {found.note}" if found.note else ""
    if not found.hits:
        none = "no match" if found.total == 0 and not offset else "no more matches"
        return f"{none}{more}"
    shown = f"{offset + 1:,} to {offset + len(found.hits):,}"
    return f"{shown} of {found.count} matches{more}"


def _say_hit(hit: Hit) -> None:
    from rich.text import Text

    where, text = _place(hit), _marked(hit)
    if not sys.stdout.isatty():
        say(where)
        say(f"    {text.plain}")
        return
    console = console_on(sys.stdout)
    console.print(Text(where, style="bold"), soft_wrap=True)
    console.print(Text("    ") + text, soft_wrap=True)


def _place(hit: Hit) -> str:
    place = hit.place
    parts = [place.run_id or place.job_id, hit.item, _within(hit)]
    parts += [hit.source if hit.role is None else f"{hit.role} {hit.source}", hit.tool, hit.call_id]
    parts.append(moment(hit.at))
    return "  ".join(cell(part) for part in parts if part)


def _within(hit: Hit) -> str:
    place = hit.place
    if hit.is_block:
        return f"turn {hit.turn}, block {place.message}.{place.position}"
    return "" if place.kind == "system" else f"{place.kind} {place.message}"


def _marked(hit: Hit) -> Any:
    """The excerpt on one line, what was looked for in another style."""
    from rich.text import Text

    shown, text, at = Text(), hit.excerpt.text, 0
    for start, end in hit.excerpt.marks:
        shown.append(cell(text[at:start]))
        shown.append(cell(text[start:end]), style="bold yellow")
        at = end
    return shown.append(cell(text[at:]))


class Indexing:
    """Shows progress on stderr once it takes long: in place at a terminal, else one line."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PATIENCE_SECONDS
        self._has_begun = False

    def __enter__(self) -> Self:
        return self

    def show(self, done: int, all_: int) -> None:
        """Say how far it is, now and then.

        Args:
            done, all_: rows.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _BETWEEN_SECONDS
        if sys.stderr.isatty():
            percent = 100 * done // max(all_, 1)
            sys.stderr.write(f"{_ERASE_LINE}indexing: {done:,} of {all_:,} texts ({percent}%)")
            sys.stderr.flush()
        elif not self._has_begun:
            note(f"indexing {all_:,} texts first")
        self._has_begun = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_begun and sys.stderr.isatty():
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
