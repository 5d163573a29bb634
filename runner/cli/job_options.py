"""Options of ``run`` and ``submit`` that change a job file for one submission, and ``--dry-run``."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from runner.app import dry_run
from runner.app.humanize import cell, duration, plural
from runner.app.submit import Before
from runner.cli.options import json_option, load_job, quiet_option
from runner.cli.terminal import MARGIN, note, say, say_content, say_fields, say_json, say_table
from runner.cli.watching import form_of
from runner.core.spec import Submission
from runner.errors import UsageError
from runner.jobfile.overrides import Overrides
from runner.settings import Settings

_MOST_KEYS = 10
# Options of other programs, and what they mean here.
_MEANT = {
    "--budget": "--limits budget_usd=",
    "--max-budget-usd": "--limits budget_usd=",
    "--max-turns": "--limits max_turns=",
    "--limit": "--first ",
    "-n": "--first ",
}
_OVERRIDES = ("only", "first", "sample", "model", "limits", "fields")  # as in ``Overrides``


@dataclass(frozen=True, slots=True)
class NewJob:
    """The options of ``run`` and ``submit`` for a new job."""

    overrides: Overrides
    pilot: int | None
    is_dry: bool

    @property
    def options(self) -> list[str]:
        """The options that were given, as a person writes them."""
        others = {"--pilot": self.pilot is not None, "--dry-run": self.is_dry}
        named = [name for name, is_given in others.items() if is_given]
        return [*named, *(option.split()[0] for option in self.overrides.options)]

    def load(self, settings: Settings, path: Path, before: Before) -> Submission:
        """Warn of each note on a job file, and return its submission."""
        before = "submission" if self.is_dry else before
        return load_job(settings, path, self.pilot, before=before, overrides=self.overrides)


def new_job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a command ``new``, the options of a new job, and ``form``, the form in which to show the job."""

    @wraps(command)
    def run(
        *arguments: Any, pilot: int | None, is_dry: bool, quiet: bool, as_json: bool, **options: Any
    ) -> Any:
        changes = [options.pop(name) for name in _OVERRIDES]
        only, first, sample = changes[:3]
        if sum((bool(only), first is not None, sample is not None)) > 1:
            raise UsageError("--only, --first and --sample each choose the items: give one of them")
        new = NewJob(Overrides(*changes), pilot, is_dry)
        return command(*arguments, new=new, form=form_of(as_json, quiet), **options)

    def refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            name = parameter.opts[0]
            meant = f"No such option {name!r}. Did you mean '{_MEANT[name]}{value}'?"
            raise click.UsageError(meant, context)

    count = click.IntRange(1, 1_000_000)
    limit, spread = "a limit, such as max_turns=5", "spread by their keys, the same each time"
    for option in (
        json_option,
        click.option(
            "--dry-run", "is_dry", is_flag=True, help="Print what would be done, and store nothing."
        ),
        click.option(
            *("--set", "fields"),
            multiple=True,
            metavar="item.NAME=VALUE",
            help="Set a field of every item (repeatable).",
        ),
        click.option("--model", metavar="ID", help="Call this model."),
        click.option(
            "--limits", multiple=True, metavar="NAME=VALUE", help=f"Set {limit} (repeatable)."
        ),
        *(click.option(name, hidden=True, expose_value=False, callback=refuse) for name in _MEANT),
        click.option("--sample", type=count, metavar="N", help=f"Only N items, {spread}."),
        click.option("--first", type=count, metavar="N", help="Only the first N items."),
        click.option(
            "--only", multiple=True, metavar="KEY", help="Only the item with this key (repeatable)."
        ),
        click.option(
            "--pilot",
            type=count,
            metavar="N",
            help="Work on N items first, spread over all; the others wait for `runner resume JOB`.",
        ),
        quiet_option,
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
    note("\nnothing was stored or run: leave out --dry-run to do it")


def _fields(plan: dry_run.Plan) -> list[tuple[str, Any]]:
    spec, keys = plan.spec, [run.key for run in plan.runs]
    workspace, limits = spec.workspace, spec.limits
    more = f", … {len(keys) - _MOST_KEYS:,} more" if len(keys) > _MOST_KEYS else ""
    where = workspace and (workspace.url or workspace.path)
    base = (
        f", at {workspace.base}, {workspace.commit[:10]}" if workspace and workspace.commit else ""
    )
    pilot = spec.pilot.chosen(len(keys)) if spec.pilot and spec.pilot.items < len(keys) else ()
    bounds = [plural(limits.max_turns, "turn"), f"{limits.token_ceiling:,} tokens"]
    bounds += [duration(limits.working_time)] if limits.working_time else []
    return [
        ("job", spec.name),
        ("file", plan.submission.source),
        ("options", " ".join(spec.options)),
        ("model", "scripted" if spec.provider == "scripted" else spec.model),
        ("account", spec.account),
        ("items", f"{len(keys):,}: {', '.join(keys[:_MOST_KEYS])}{more}"),
        ("pilot", ", ".join(keys[at] for at in pilot)),
        ("tools", ", ".join(tool.name for tool in spec.tools)),
        ("workspace", where and workspace and f"{where} ({workspace.mode}{base})"),
        ("standing rules", ", ".join(f"{r.effect} {r.text}" for r in plan.standing_rules)),
        ("setup", "; ".join(workspace.setup) if workspace else ""),
        ("sandbox", plan.contained_by),
        ("verify", "; ".join(spec.verify.commands) if spec.verify else ""),
        ("not before", spec.times.not_before),
        ("window", spec.times.window),
        ("finish by", spec.times.finish_by),
        ("limits", f"{', '.join(bounds)} a run"),
        ("at most", plan.cost_line),
    ]
