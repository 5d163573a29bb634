"""Options of ``run`` and ``submit`` that change a job file for one submission, and ``--dry-run``."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from runner.app import dry_run
from runner.app.humanize import cell, duration, plural
from runner.cli.terminal import MARGIN, note, say, say_content, say_fields, say_json, say_table
from runner.core.spec import Submission
from runner.errors import UsageError
from runner.jobfile.overrides import Overrides
from runner.settings import Settings

_MOST_KEYS = 10

dry_run_option = click.option(
    "--dry-run", "is_dry", is_flag=True, help="Print what would be done, and store nothing."
)


def with_overrides(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its ``overrides`` of a job file, from options."""

    @wraps(command)
    def run(
        *arguments: Any,
        only: tuple[str, ...],
        first: int | None,
        sample: int | None,
        model: str | None,
        limits: tuple[str, ...],
        fields: tuple[str, ...],
        **options: Any,
    ) -> Any:
        if sum((bool(only), first is not None, sample is not None)) > 1:
            raise UsageError("--only, --first and --sample each choose the items: give one of them")
        overrides = Overrides(only, first, sample, model, limits, fields)
        return command(*arguments, overrides=overrides, **options)

    count = click.IntRange(1, 1_000_000)
    field = "Set a field of every item (repeatable)."
    for option in (
        click.option("--set", "fields", multiple=True, metavar="item.NAME=VALUE", help=field),
        click.option("--model", metavar="ID", help="Call this model."),
        click.option(
            "--limits",
            multiple=True,
            metavar="NAME=VALUE",
            help="Set a limit, such as max_turns=5 (repeatable).",
        ),
        click.option(
            "--sample",
            type=count,
            metavar="N",
            help="Only N items, spread by their keys, the same each time.",
        ),
        click.option("--first", type=count, metavar="N", help="Only the first N items."),
        click.option("--only", multiple=True, metavar="KEY", help="Only this item (repeatable)."),
    ):
        run = option(run)
    return run


def say_plan(settings: Settings, submission: Submission, *, as_json: bool) -> None:
    """Print what a submission would do."""
    plan = dry_run.plan_of(settings, submission)
    if as_json:
        say_json(plan.as_json())
        return
    say_fields(_fields(plan))
    first = plan.runs[0]
    say(f"\nprompt of {cell(first.key)}:")
    say_content(textwrap.indent(first.prompt.rstrip(), MARGIN))
    say()
    if plan.decisions:
        columns = ("decision", "example", "because")
        say_table(columns, ((d["decision"], d["call"], d["reason"]) for d in plan.decisions))
    else:
        say("no rule has examples (match, not_match): try calls with `runner rules check`")
    note("\nnothing was stored or run: the same without --dry-run does it")


def _fields(plan: dry_run.Plan) -> list[tuple[str, Any]]:
    spec, keys = plan.spec, [run.key for run in plan.runs]
    workspace, limits = spec.workspace, spec.limits
    more = f", … {len(keys) - _MOST_KEYS:,} more" if len(keys) > _MOST_KEYS else ""
    where = workspace and (workspace.url or workspace.path)
    base = (
        f", at {workspace.base} ({workspace.commit[:10]})" if workspace and workspace.commit else ""
    )
    pilot = spec.pilot.chosen(len(keys)) if spec.pilot and spec.pilot.items < len(keys) else ()
    bounds = [plural(limits.max_turns, "turn"), f"{limits.token_ceiling:,} tokens"]
    bounds += [duration(limits.working_time)] if limits.working_time else []
    return [
        ("job", spec.name),
        ("file", plan.submission.source),
        ("options", " ".join(spec.options)),
        ("model", spec.model if spec.provider == "anthropic" else "scripted"),
        ("items", f"{len(keys):,}: {', '.join(keys[:_MOST_KEYS])}{more}"),
        ("pilot", ", ".join(keys[at] for at in pilot)),
        ("tools", ", ".join(tool.name for tool in spec.tools)),
        ("workspace", where and workspace and f"{where} ({workspace.mode}{base})"),
        ("setup", "; ".join(workspace.setup) if workspace else ""),
        ("sandbox", plan.contained_by),
        ("verify", "; ".join(spec.verify.commands) if spec.verify else ""),
        ("not before", spec.times.not_before),
        ("window", spec.times.window),
        ("finish by", spec.times.finish_by),
        ("limits", f"{', '.join(bounds)} a run"),
        ("at most", plan.cost_line),
    ]
