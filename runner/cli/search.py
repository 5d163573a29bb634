"""``search``: full text over everything that runs said and did."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from runner.app import handle
from runner.app.humanize import cell, moment, short_ids
from runner.app.tables import MOST_ROWS
from runner.cli.audit import format_options, limit_option, say_rows
from runner.cli.options import search_options, with_app
from runner.cli.terminal import note, print_lines, progress
from runner.core.search import ROLES, SOURCES

if TYPE_CHECKING:
    from runner.audit import Hit


def _sources(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if wrong := [name for name in names if name not in SOURCES]:
        raise click.BadParameter(f"{wrong[0]!r} is not one of {', '.join(SOURCES)}")
    return names


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("text", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--without",
    multiple=True,
    metavar="WORD",
    help="Leave out texts with this word or phrase; repeatable.",
)
@click.option("--exact", metavar="TEXT", help="Only texts that contain this, letter by letter.")
@click.option(
    "--in",
    "sources",
    type=_sources,
    metavar="KINDS",
    help=f"Search only these: {','.join(SOURCES)}.",
)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    help="Only texts of this speaker; the last three are in imported sessions only.",
)
@search_options
@limit_option(20)
@click.option(
    "--offset",
    type=click.IntRange(0, MOST_ROWS),
    default=0,
    metavar="N",
    help="Skip the first N rows.",
)
@format_options
@with_app
def search(
    app: handle.App,
    text: tuple[str, ...],
    without: tuple[str, ...],
    exact: str | None,
    sources: Any,
    role: Any,
    only: Any,
    limit: int | None,
    offset: int,
    format: str,
) -> None:
    """Search conversations, thinking, and the inputs and outputs of tools; the best matches first.

    A match contains all words of TEXT, in any order. TEXT may also have "a phrase" in quotes of its
    own, the beginning of a word (time*), and NOT before a word that a match must not contain. Case
    and accents do not count. Words joined by _ / . or - are a phrase, and so is a command with
    options (rm -rf). --exact compares letter by letter.

    \b
    Example:
      runner search 'connection "timed out"' --without retry
      runner search 'git push --force'
      runner search 'migrat*' --in input,output --tool Bash --since 3d
      runner search --exact 'self.client_id =' --job job_01jd9k
    """
    from runner.audit import Audit

    words = _query(text, without)
    with progress("indexing") as show:
        options: Any = {"sources": sources or (), "role": role, "limit": limit, "offset": offset}
        options |= {"tell": lambda line: note(cell(line)), "progress": show}
        found = Audit.of(app).find(words, exact, only, **options)
    if format != "table":
        say_rows(found.rows(), format)
        return
    for hit in found.hits:
        _say_hit(hit)
    sys.stdout.flush()
    if found.hits:
        told = f"{offset + 1:,} to {offset + len(found.hits):,} of {found.count} matches"
    else:
        told = (
            f"no match for {cell(found.query)}"
            if not found.total and not offset
            else "no more matches"
        )
    note(f"{told}: {found.note}" if found.note else told)


def _query(text: Sequence[str], without: Iterable[str]) -> str:
    for word in text:  # one may begin with one dash, so that click lets through what is no option
        if word.startswith("--") and " " not in word:
            option = word.split("=")[0]
            raise click.UsageError(
                f"No such option: {option!a} (text goes in quotes, as 'git push -f')"
            )
    excluded = (f'NOT "{word.removesuffix("*")}"{"*" * word.endswith("*")}' for word in without)
    return " ".join((*text, *excluded))


def _say_hit(hit: Hit) -> None:
    """Print where a hit is, and the excerpt on one line, what was looked for in another style."""
    place = hit.place
    within = "" if place.kind in ("system", "session") else f"{place.kind} {place.message}"
    if hit.is_block:
        within = f"turn {hit.turn}, block {place.message}.{place.position}"
    source = hit.source if hit.role is None else f"{hit.role} {hit.source}"
    parts = (place.run_id or place.job_id, hit.item, within, source, hit.tool, hit.call_id)
    where = "  ".join(short_ids(cell(part)) for part in (*parts, moment(hit.at)) if part)
    shown, excerpt, at = [("    ", "")], hit.excerpt.text, 0
    for start, end in hit.excerpt.marks:
        shown += [(excerpt[at:start], ""), (excerpt[start:end], "bold yellow")]
        at = end
    print_lines([[(where, "bold")], [*shown, (excerpt[at:], "")]], paged=False)
