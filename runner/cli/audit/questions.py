"""The ready questions of ``runner audit``, as commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from runner.cli.audit.formats import format_options, say_rows
from runner.cli.audit.options import Narrowed, filter_options, limit_option
from runner.cli.costs import BY
from runner.cli.options import stored, with_settings
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.audit import Audit, Only, Rows
    from runner.queries.costs import By


def question(limit: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of every question, and its settings as first argument.

    Args:
        limit: how many rows it gives when nobody says how many.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for take in (with_settings, format_options, limit_option(limit), filter_options):
            command = take(command)
        return command

    return decorate


def answer(
    settings: Settings, narrowed: Narrowed, format: str, ask: Callable[[Audit, Only], Rows]
) -> None:
    """Ask as from Python, and print what comes of it.

    Raises:
        NotFoundError: a filter names nothing, or several things.
    """
    from runner import wiring
    from runner.app.snapshots import differences_in
    from runner.audit import Audit

    with stored(settings) as database:
        audit = Audit(database, wiring.load_prices(settings), differences_in(settings, database))
        say_rows(ask(audit, narrowed.only), format)


@click.command()
@question(100)
def tools(settings: Settings, narrowed: Narrowed, format: str, limit: int | None) -> None:
    """Count tool calls by what came of them.

    With how long they took, in all, on average and at most. The copies of calls that a fork began
    with are not counted.

    \b
    Example:
      runner audit tools --since 7d
      runner audit tools --job job_01jd9k --format csv
    """
    answer(settings, narrowed, format, lambda audit, only: audit.tools(limit=limit, **only))


@click.command()
@click.argument("pattern", required=False)
@question(100)
def commands(
    settings: Settings,
    pattern: str | None,
    narrowed: Narrowed,
    format: str,
    limit: int | None,
) -> None:
    """List commands, and who let them run.

    All that Bash was called with, the newest first, whether it ran or not. PATTERN is one as in
    Bash(…) rules if it has a *, and is tried on each command of a script: 'git push *' finds `cd
    app && git push origin`. Else it is words, all of which must be in the command. What a command
    hides (g\\it, $cmd) is found by ':opaque' alone, which is tried on the newest 1,000 commands.

    \b
    Example:
      runner audit commands --since 12h
      runner audit commands 'git push *'
      runner audit commands 'rm -rf' --format jsonl --limit 0
    """
    answer(
        settings, narrowed, format, lambda audit, only: audit.commands(pattern, limit=limit, **only)
    )


@click.command()
@click.argument("pattern", required=False)
@question(100)
def files(
    settings: Settings,
    pattern: str | None,
    narrowed: Narrowed,
    format: str,
    limit: int | None,
) -> None:
    """List who read or changed which file.

    A line for each call and file, the newest first. It is known from the inputs of tools, from what
    commands say that they write and read, and from the trees that were recorded of a workspace,
    where these are on this host. PATTERN is a path, in which * stands for anything; a part from one
    of its folders on will do.

    \b
    Example:
      runner audit files src/billing.py
      runner audit files '*.env' --since 30d
      runner audit files --run k3x9f2 --format json
    """
    answer(
        settings, narrowed, format, lambda audit, only: audit.files(pattern, limit=limit, **only)
    )


@click.command()
@question(100)
def errors(settings: Settings, narrowed: Narrowed, format: str, limit: int | None) -> None:
    """Count what went wrong, the same together.

    Runs that failed or were stopped, calls of models, calls of tools. Those are counted together
    that say the same but for numbers, ids, paths and items, as in `runner report`. The newest of
    each is named: look at it with `runner show`.

    \b
    Example:
      runner audit errors --since 24h
      runner audit errors --job job_01jd9k --tool Bash
    """
    answer(settings, narrowed, format, lambda audit, only: audit.errors(limit=limit, **only))


@click.command()
@click.option("--each", is_flag=True, help="List every call by itself, the newest first.")
@question(100)
def decisions(
    settings: Settings, each: bool, narrowed: Narrowed, format: str, limit: int | None
) -> None:
    """Count what was allowed or denied, and by whom.

    By which rule a call was decided on, who wrote it, and who answered what was asked. The verdict
    is what became of a call: allowed, denied, waiting (for an answer), undecided, or interrupted
    (its run ended first). A call that no rule matched went by the job's default.

    \b
    Example:
      runner audit decisions --job job_01jd9k
      runner audit decisions --each --tool Bash --since 3d
    """
    answer(
        settings,
        narrowed,
        format,
        lambda audit, only: audit.decisions(each=each, limit=limit, **only),
    )


@click.command()
@question(100)
def approvals(settings: Settings, narrowed: Narrowed, format: str, limit: int | None) -> None:
    """List what people were asked and answered.

    With who answered what, and how long that took, the newest first. What waits for an answer now
    is in it, too; `runner approvals` shows how to give one.

    \b
    Example:
      runner audit approvals --since 30d
      runner audit approvals --job job_01jd9k --format csv > approvals.csv
    """
    answer(settings, narrowed, format, lambda audit, only: audit.approvals(limit=limit, **only))


@click.command()
@question(100)
def limits(settings: Settings, narrowed: Narrowed, format: str, limit: int | None) -> None:
    """List the limits that runs have reached.

    With who let them go on, and with which limits; the newest first. Runs that wait for their job's
    budget now are in it, too.

    \b
    Example:
      runner audit limits --since 7d
      runner audit limits --job job_01jd9k
    """
    answer(settings, narrowed, format, lambda audit, only: audit.limits(limit=limit, **only))


@click.command()
@click.option(
    "--by",
    type=click.Choice(BY),
    default="job",
    show_default=True,
    help="A row for each of these. Days are UTC.",
)
@question(100)
def costs(settings: Settings, by: By, narrowed: Narrowed, format: str, limit: int | None) -> None:
    """Say what model calls cost.

    The dearest first, with the same sums as in `runner costs`. Costs are list prices times tokens,
    in USD. Calls of which nobody knows what they used are apart, with what they can have cost at
    most. With --tool it is the turns that called it.

    \b
    Example:
      runner audit costs --by day --since 30d
      runner audit costs --by run --job job_01jd9k --limit 10
    """
    answer(settings, narrowed, format, lambda audit, only: audit.costs(by, limit=limit, **only))


@click.command()
@question(100)
def models(settings: Settings, narrowed: Narrowed, format: str, limit: int | None) -> None:
    """Say how each model did, and what it cost.

    How often it was called and failed, how long its replies took, what it used.

    \b
    Example:
      runner audit models --since 30d
      runner audit models --job job_01jd9k --json
    """
    answer(settings, narrowed, format, lambda audit, only: audit.models(limit=limit, **only))


@click.command()
@click.argument("id", metavar="RUN")
@question(0)
def timeline(
    settings: Settings, id: str, narrowed: Narrowed, format: str, limit: int | None
) -> None:
    """List all that happened to a run.

    Turns, calls, decisions, waits, what people did, and what it cost, in order. What people did to
    its job while it was there is in it, too.

    \b
    Example:
      runner audit timeline k3x9f2
      runner audit timeline k3x9f2 --tool Bash --format csv
    """

    answer(settings, narrowed, format, lambda audit, only: audit.timeline(id, limit=limit, **only))
