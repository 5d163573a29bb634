"""``approvals``, ``approve`` and ``deny``: the tool calls that wait for a person, and the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

import click

from runner.app import approvals as app_approvals
from runner.app import handle
from runner.app.humanize import cell, decider, duration, plural
from runner.cli import exit_codes
from runner.cli.control import note_unworked
from runner.cli.options import JOB_OR_RUN, json_option, signed_with, with_app
from runner.cli.terminal import note, say, say_json, say_outcomes
from runner.core.commands import Reply
from runner.core.run import Author
from runner.core.text import shorten

_MOST_INPUTS = 5
_LONGEST_KEY = 80


@click.command()
@click.argument("id", type=JOB_OR_RUN, metavar="[JOB|RUN]", required=False)
@json_option
@with_app
def approvals(app: handle.App, id: str | None, as_json: bool) -> None:
    """List tool calls waiting for approval, grouped by request.

    A run that waits for an answer occupies no worker and waits as long as it takes, unless the job
    file sets a limit. The calls of a run include those of its sub-agents: "3.2 in its tree" is the
    second call of its third sub-agent.

    "run it again?" means that the worker died during the call, and that the call may have had
    effects outside the workspace (on_unknown = "ask"). `approve` restores the files and runs the
    call again. `deny` tells the model that the outcome is unknown, with your reason.

    \b
    Example:
      runner approvals
      runner approve grp_3f9c2a71d0 --remember job
    """
    groups = app_approvals.waiting_groups(app, id)
    if as_json:
        say_json([group.as_json() for group in groups])
        return
    now = app.now()
    for group in groups:
        _say_group(group, now)
    if groups:
        note("answer: `runner approve ID` or `runner deny ID`; a call whole: `runner show CALL`")
    else:
        note("nothing waits for an answer")


def _say_group(group: app_approvals.Group, now: float) -> None:
    one, why = group.questions[0], group.why
    runs, waited = plural(group.run_count, "run"), duration(max(now - one.asked_at, 0))
    say(f"{shorten(group.key, _LONGEST_KEY)} — {runs} of {one.job_id} — waiting {waited}")
    fields = [("group", group.id), ("job", cell(one.job_name)), ("tool", cell(one.tool))]
    if why is not None and one.asked_again:
        fields.append(("asks", f"run it again? {decider(why)}"))
    elif why is not None:
        fields.append(("asked by", decider(why)))
    if group.expires_at is not None:
        fields.append(("expires", f"in {duration(max(group.expires_at - now, 0))}"))
    if group.suggested_rule:
        fields.append(("rule", f"{cell(group.suggested_rule)}  (with --remember)"))
    inputs = group.by_input
    for first, *others in inputs[:_MOST_INPUTS]:
        more = f", and {len(others)} more" if others else ""
        place = f", {label} in its tree" if (label := group.label(first)) else ""
        call_id = app_approvals.call_id_of(first)
        fields.append(("call", cell(first.summary)))
        fields.append(("", f"  {call_id} of {cell(first.item_key)}{place}{more}"))
    if len(inputs) > _MOST_INPUTS:
        fields.append(("", f"… and {len(inputs) - _MOST_INPUTS} other inputs (all: --json)"))
    for name, value in fields:
        say(f"  {name:<8}  {value}")
    say()


def _answering(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take the arguments and options that ``approve`` and ``deny`` share."""
    rule = "The rule to remember (default: the suggested one)."
    for decorate in (
        with_app,
        json_option,
        signed_with("Why; the model reads it if you deny."),
        click.option("--rule", metavar="RULE", help=rule),
        click.option(
            "--remember",
            type=click.Choice(["call", "run", "job", "always"]),
            default="call",
            show_default=True,
            help="Answer this call only, or store a rule: for its run, its job, or also all new jobs.",
        ),
        click.option(
            "--group",
            "group_key",
            metavar="TEXT",
            help="Only calls of this group, such as 'uv lock'.",
        ),
        click.argument("ids", type=JOB_OR_RUN, metavar="[ID]...", nargs=-1),
    ):
        command = decorate(command)
    return command


@click.command()
@click.option("--edit", metavar="INPUT", help="New input: JSON, or the command for Bash.")
@_answering
def approve(app: handle.App, **options: Any) -> int:
    """Approve waiting tool calls: a call, a group, or all of a run or a job.

    A run includes its sub-agents. With --edit the call runs with another input, and the model is
    told so. With --remember run or job, Runner stores a rule, which at once answers all waiting
    calls that it matches; with --remember always, it is also a standing rule (`runner rules
    standing`). Exits with 1 if nothing changed, because somebody else answered first or the run has ended.

    \b
    Example:
      runner approve call_01jd9kqy5m8v0z3t7w2r4x6n1b_3_1
      runner approve grp_3f9c2a71d0 --remember job --rule 'Bash(uv lock)'
      runner approve k3x9f2 --edit 'uv lock --offline'
    """
    return _answer(app, "approved", **options)


@click.command()
@_answering
def deny(app: handle.App, **options: Any) -> int:
    """Deny waiting tool calls. The model is told, with the reason.

    Exits with 1 if nothing changed, because somebody else answered first or the run has ended.

    \b
    Example:
      runner deny grp_3f9c2a71d0 --reason "The lock file stays as it is."
      runner deny job_01jd9k --group 'git push' --remember job
    """
    return _answer(app, "denied", **options)


def _answer(
    app: handle.App,
    effect: Literal["approved", "denied"],
    ids: tuple[str, ...],
    group_key: str | None,
    author: Author,
    as_json: bool,
    edit: str | None = None,
    **remembered: Any,
) -> int:
    reply = Reply(effect, str(author.name), author.why, **remembered)
    answered, unworked_job = app_approvals.answer_named(app, ids, group_key, reply, edit)
    if as_json:
        say_json([asdict(each) for each in answered])
    elif len(answered) == 1:
        (one,) = answered
        say(f"{one.run_id} ({cell(one.item_key)}): {cell(one.detail)}")
    elif answered:
        columns = ("run", "item", "")
        say_outcomes(columns, ((e.run_id, e.item_key, e.detail) for e in answered))
        named = [each for each in answered if not each.by_rule]
        by_rule = len(answered) - len(named)
        more = f", and {by_rule} more by the rule" if by_rule else ""
        note(f"{sum(each.changed for each in named)} of {len(named)} answered{more}")
    note_unworked(unworked_job)
    if any(each.changed for each in answered):
        return exit_codes.SUCCEEDED
    note("nothing was changed" if answered else "nothing there waits for an answer")
    return exit_codes.FAILED
