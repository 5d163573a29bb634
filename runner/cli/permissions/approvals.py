"""``approvals``, ``approve`` and ``deny``: what waits for a person, and the person's answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import cell, duration
from runner.cli import exit_codes
from runner.cli.authors import signed_with
from runner.cli.control import measured_now, patiently, say_who_works
from runner.cli.options import json_option, stored, with_settings
from runner.cli.terminal import note, say, say_json, say_table
from runner.core.agents.place import is_within, place_of
from runner.core.author import Author
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.cli.permissions.groups import Group
    from runner.queries.decisions import Why
    from runner.store.connection.database import Database
    from runner.store.steer.approvals import Answered, Asked, Reply

_MOST_INPUTS = 5
_LONGEST_KEY = 80


@click.command()
@click.argument("id", metavar="[JOB|RUN]", required=False)
@json_option
@with_settings
def approvals(settings: Settings, id: str | None, as_json: bool) -> None:
    """List the tool calls that wait for a person, those that ask for the same together.

    Runs that wait for an answer take no worker, and wait as long as it takes. Of a run are also the
    calls of the sub-agents below it: "3.2 in its tree" is the second call of the third of these.

    One that asks whether to run again had started when its worker died, and may have taken effect
    outside the workspace (on_unknown = "ask"): `approve` runs it again from the files as they were
    before it, `deny` tells the model that its outcome is unknown, with your reason.

    \b
    Example:
      runner approvals
      runner approve grp_3f9c2a71d0 --remember job
    """
    from runner.cli.permissions.groups import grouped, labels_of
    from runner.queries import decisions

    with stored(settings) as database:
        asked = _waiting(database, id)
        groups, labels = grouped(asked), labels_of(database, asked)
        if as_json:
            say_json([group.to_json(labels) for group in groups])
            return
        reasons = decisions.whys(database, [group.asked[0].id for group in groups])
        now = measured_now(database)
    for group in groups:
        _say_group(group, labels, reasons.get(group.asked[0].id), now)
    if groups:
        note("answer: `runner approve ID` or `runner deny ID`; a call whole: `runner show CALL`")
    else:
        note("nothing waits for an answer")


def _waiting(database: Database, id: str | None) -> Sequence[Asked]:
    """What waits: all of it, or of a job, or of a run and all below it."""
    from runner.queries.find import find
    from runner.queries.jobs import show_run
    from runner.store.steer.approvals import waiting
    from runner.store.steer.control import Target

    if id is None:
        return waiting(database)
    found = find(database, id, "job", "run")
    if found.kind == "job":
        return waiting(database, Target("job", found.id))
    job_id = show_run(database, found.id)["job_id"]
    of_job = waiting(database, Target("job", job_id))
    return [each for each in of_job if is_within(each.run_id, found.id)]


def _say_group(group: Group, labels: Mapping[str, str], why: Why | None, now: float) -> None:
    from runner.app.humanize import decider
    from runner.cli.permissions.groups import call_id
    from runner.core.text.plain import shorten

    one = group.asked[0]
    runs = "1 run" if group.run_count == 1 else f"{group.run_count} runs"
    waited = duration(max(now - one.asked_at, 0))
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
    for name, value in fields:
        say(f"  {name:<8}  {value}")
    inputs = group.by_input
    for alike in inputs[:_MOST_INPUTS]:
        first = alike[0]
        more = f", and {len(alike) - 1} more" if len(alike) > 1 else ""
        say(f"  {'call':<8}  {cell(first.summary)}")
        place = f", {labels[first.id]} in its tree" if place_of(first.run_id)["depth"] else ""
        say(f"  {'':<8}    {call_id(first)} of {cell(first.item_key)}{place}{more}")
    if len(inputs) > _MOST_INPUTS:
        say(f"  {'':<8}  … and {len(inputs) - _MOST_INPUTS} other inputs (all: --json)")
    say()


def _answering(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options that ``approve`` and ``deny`` share."""
    for decorate in (
        with_settings,
        json_option,
        signed_with("Why; on a denial for the model."),
        click.option(
            "--rule", metavar="RULE", help="The rule to remember (default: the suggested one)."
        ),
        click.option(
            "--remember",
            type=click.Choice(["call", "run", "job"]),
            default="call",
            show_default=True,
            help="Answer this call only, or store a rule for its run or its job.",
        ),
        click.option(
            "--group", "group_key", metavar="TEXT", help="Only calls of this group: 'uv lock'."
        ),
        click.argument("ids", metavar="[ID]...", nargs=-1),
    ):
        command = decorate(command)
    return command


@click.command()
@click.option("--edit", metavar="INPUT", help="Run it with this input: JSON, or Bash's command.")
@_answering
def approve(
    settings: Settings,
    ids: tuple[str, ...],
    group_key: str | None,
    edit: str | None,
    author: Author,
    as_json: bool,
    **options: Any,
) -> int:
    """Let tool calls run that wait for a person: a call, a group, or all of a run or a job.

    A run is meant with the sub-agents below it. With --edit a call runs with another input, and the
    model is told. With --remember run or job the rule that is stored answers all others that it covers,
    at once. Exits with 1 when nothing was changed: somebody else had answered, or the run has ended.

    \b
    Example:
      runner approve call_01jd9kqy5m8v0z3t7w2r4x6n1b_3_1
      runner approve grp_3f9c2a71d0 --remember job --rule 'Bash(uv lock)'
      runner approve k3x9f2 --edit 'uv lock --offline'
    """

    def reply(database: Database, asked: Sequence[Asked]) -> Reply:
        from runner.store.steer.approvals import Reply

        edited = None if edit is None else _edited(database, asked, edit)
        return Reply("approved", str(author.name), author.why, edited, **options)

    return _answer(settings, ids, group_key, reply, as_json)


@click.command()
@_answering
def deny(
    settings: Settings,
    ids: tuple[str, ...],
    group_key: str | None,
    author: Author,
    as_json: bool,
    **options: Any,
) -> int:
    """Refuse tool calls that wait for a person. The model is told, with the reason.

    Exits with 1 when nothing was changed: somebody else had answered, or the run has ended.

    \b
    Example:
      runner deny grp_3f9c2a71d0 --reason "The lock file stays as it is."
      runner deny job_01jd9k --group 'git push' --remember job
    """

    def reply(database: Database, asked: Sequence[Asked]) -> Reply:
        from runner.store.steer.approvals import Reply

        return Reply("denied", str(author.name), author.why, **options)

    return _answer(settings, ids, group_key, reply, as_json)


def _answer(
    settings: Settings,
    ids: tuple[str, ...],
    group_key: str | None,
    reply_to: Callable[[Database, Sequence[Asked]], Reply],
    as_json: bool,
) -> int:
    from runner.cli.permissions.groups import chosen
    from runner.store.steer.approvals import answer, waiting

    with stored(settings) as database:
        now = measured_now(database)
        asked = waiting(database)
        approval_ids = chosen(database, asked, ids, group_key)
        by_id = {each.id: each for each in asked}
        reply = reply_to(database, [by_id[id] for id in approval_ids if id in by_id])
        # An edited input is for one call at a time.
        lots = [approval_ids] if reply.edited is None else [[id] for id in approval_ids]
        answered: list[Answered] = []
        for lot in filter(None, lots):
            answered += patiently(partial(answer, database, lot, reply, now))
        if as_json:
            say_json([asdict(each) for each in answered])
        else:
            _say_answered(answered)
        jobs = {by_id[each.id].job_id for each in answered if each.changed and each.id in by_id}
        _say_who_works(database, sorted(jobs), now)
    if any(each.changed for each in answered):
        return exit_codes.SUCCEEDED
    note("nothing was changed" if answered else "nothing there waits for an answer")
    return exit_codes.FAILED


def _edited(database: Database, asked: Sequence[Asked], text: str) -> dict[str, Any]:
    """The input that ``--edit`` gives calls that all have one and the same.

    Raises:
        UsageError: their inputs differ, or the text is no input for their tool.
    """
    if not asked:
        raise UsageError("no call that waits is named: there is nothing to edit")
    if len({(each.tool, each.input_digest) for each in asked}) > 1:
        raise UsageError(
            f"{len(asked)} calls with different inputs are not edited alike: name one of them"
        )
    one = asked[0]
    value = _read(text)
    if not isinstance(value, dict):
        if one.tool != "Bash" or not isinstance(value, str):
            raise UsageError(f"--edit: the input of {one.tool} is a JSON object")
        value = {**one.input, "command": value}
    _refuse_unfit(database, one, value)
    return value


def _read(text: str) -> Any:
    """The JSON that a text is, or the text itself where it is a command; None when it is neither."""
    try:
        value = json.loads(text)
    except ValueError:
        return text if text.strip() and not text.lstrip().startswith('{"') else None
    return text if isinstance(value, bool) else value if isinstance(value, dict) else None


def _refuse_unfit(database: Database, one: Asked, value: dict[str, Any]) -> None:
    from runner.queries.jobs import show_job
    from runner.tools.validation import InputCheck

    tools = show_job(database, one.job_id)["spec"]["tools"]
    schema = next(tool["input_schema"] for tool in tools if tool["name"] == one.tool)
    problem = InputCheck().problem(one.tool, schema, value)
    if problem is not None:
        raise UsageError(f"--edit: {problem}")


def _say_answered(answered: Sequence[Answered]) -> None:
    named = [each for each in answered if not each.by_rule]
    by_rule = [each for each in answered if each.by_rule]
    if len(answered) == 1:
        (one,) = answered
        say(f"{one.id} ({cell(one.item_key)}): {cell(one.detail)}")
    elif answered:
        columns = ("approval", "run", "item", "")
        say_table(
            columns, ((each.id, each.run_id, each.item_key, each.detail) for each in answered)
        )
        count = sum(each.changed for each in named)
        more = f", and {len(by_rule)} more by the rule" if by_rule else ""
        note(f"{count} of {len(named)} answered{more}")


def _say_who_works(database: Database, job_ids: Sequence[str], now: float) -> None:
    from runner.queries.jobs import list_runs

    queued = (list_runs(database, job_id, "queued", whole_trees=True) for job_id in job_ids)
    first = next((runs[0]["id"] for runs in queued if runs), None)
    say_who_works(database, first, now)
