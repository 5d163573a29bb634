"""``rules``: what permission rules say, of a job file and of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from runner.app import handle
from runner.app import rules as app_rules
from runner.app.humanize import cell, moment
from runner.cli.options import JOB, changing, json_option, load_job, with_app, with_settings
from runner.cli.terminal import say, say_json, say_listing, say_table
from runner.core.run import Author
from runner.permissions import Effect, Rule
from runner.settings import Settings


@click.group()
def rules() -> None:
    """Check, list and revoke the permission rules of a job, and set standing rules for all new
    jobs.

    \b
    Example:
      runner rules check jobs/refactor.toml 'Bash(git push -f)'
      runner rules list job_01jd9k
      runner rules standing add deny 'Bash(git push *)'
    """


@rules.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.argument("calls", metavar="[CALL]...", nargs=-1)
@click.option("--agent", metavar="TYPE", help="Check calls of an item's sub-agent of this type.")
@json_option
@with_settings
def check(
    settings: Settings, spec: Path, calls: tuple[str, ...], agent: str | None, as_json: bool
) -> None:
    """Print how a job file's rules decide tool calls.

    Without CALL, lists the rules. Standing rules that the job would get are included. Write a CALL
    like a rule: the tool, then its input in parentheses. Nothing is run or stored.

    \b
    Example:
      runner rules check jobs/refactor.toml
      runner rules check jobs/refactor.toml 'Bash(git push -f)' 'Read(src/x.py)'
      runner rules check jobs/team.toml --agent reviewer 'Bash(git stash)'
    """
    found = app_rules.with_standing(settings, load_job(settings, spec).spec)
    checking = app_rules.RuleCheck(found, settings.home, agent)
    rows = checking.decide_all(calls) if calls else checking.rules()
    if as_json:
        say_json(rows)
    elif calls:
        for one in rows:
            _say_decision(one["call"], one)
            for part in one["parts"]:
                _say_decision(part["part"], part, indent="  ")
    else:
        columns = ("position", "effect", "rule", "from", "why")
        say_table(columns, (tuple(rule.values()) for rule in rows))
        say(f"calls that no rule matches: {checking.spec.asking.default}")
        if checking.allows_only:
            say(f"calls that no rule of {cell(agent)} allows: deny")


def _say_decision(text: str, decided: dict[str, Any], indent: str = "") -> None:
    origin = decided["origin"]
    written_in = "" if origin in (None, "job") else f", from {cell(origin)}"
    say(f"{indent}{decided['decision']:<5}  {cell(text)}: {cell(decided['reason'])}{written_in}")


@rules.command("list")
@click.argument("job", type=JOB)
@json_option
@with_app
def list_(app: handle.App, job: str, as_json: bool) -> None:
    """List the present and past rules of a job in order.

    Shows who added each rule and where it comes from; for a remembered rule, the tool call that was
    answered.

    \b
    Example:
      runner rules list job_01jd9k
    """
    found = app_rules.list_rules(app, job)
    if as_json:
        say_json(found)
        return
    rows = []
    for rule in found:
        asked = f", asked for {rule['call_id']}" if rule["call_id"] is not None else ""
        revoked = ""
        if rule["revoked_in"] is not None:
            when = moment(rule["revoked_at"])
            revoked = f"in {rule['revoked_in']} by {rule['revoked_by']} {when}"
        rows.append(
            (
                *(rule["position"], rule["effect"], rule["rule"], rule["origin"] + asked),
                *(rule["author"], moment(rule["created_at"]), rule["added_in"], revoked),
                *(rule["run_id"], rule["why"]),
            )
        )
    columns = "position effect rule from by when snapshot revoked run why"
    say_table(columns.split(), rows)


@rules.command()
@click.argument("job", type=JOB)
@click.argument("position", type=click.IntRange(0, 2**31 - 1))
@click.option(
    "--force", is_flag=True, help="Also revoke a rule of the submitted job, even a denial."
)
@changing
def revoke(
    app: handle.App, job: str, position: int, force: bool, author: Author, as_json: bool
) -> None:
    """Revoke a remembered rule of a job. Its past decisions stand.

    POSITION is the one that `runner rules list` shows. Rules that the job was submitted with are
    revoked only with --force. You cannot undo this. Waiting calls are decided again by the
    remaining rules.

    \b
    Example:
      runner rules revoke job_01jd9k 12
    """
    job_id, rule = app_rules.revoke_rule(app, job, position, author, force=force)
    if as_json:
        say_json(rule)
        return
    ended = f"no longer holds (snapshot {rule['revoked_in']})"
    say(f"{job_id}: {rule['effect']} {cell(rule['rule'])} {ended}")


@rules.group()
def standing() -> None:
    """Manage standing rules: each new job gets a copy. Jobs submitted before do not change.

    \b
    Example:
      runner rules standing add allow 'Bash(uv lock)' --reason "It only locks."
    """


@standing.command("add")
@click.argument("effect", type=click.Choice(get_args(Effect)))
@click.argument("rule")
@changing
def add(app: handle.App, effect: Effect, rule: str, author: Author, as_json: bool) -> None:
    """Copy a rule into each job that is submitted from now on.

    People and the model see the reason with each decision of the rule. An allow rule ranks above
    the ask rules of a job, as a remembered rule does, and below every deny rule.

    \b
    Example:
      runner rules standing add deny 'Bash(git push *)' --reason "By hand."
    """
    added = app_rules.add_standing(app, Rule(effect, rule, author.why), author)
    if as_json:
        say_json({"id": added, "effect": effect, "rule": rule})
    else:
        say(f"standing rule {added}: {effect} {cell(rule)}")


@standing.command("list")
@click.option("--all", "removed", is_flag=True, help="Include removed rules.")
@json_option
@with_app
def list_standing(app: handle.App, removed: bool, as_json: bool) -> None:
    """List the standing rules.

    Shows who added each rule, when and why; for a remembered rule, the tool call that was answered.

    \b
    Example:
      runner rules standing list
    """
    heads = ("id", "effect", "rule", "by", "when", "why", "call", "removed")[: 8 if removed else 7]

    def row(each: Mapping[str, Any]) -> Sequence[Any]:
        gone = ""
        if each["removed_at"] is not None:
            why = f": {each['removed_why']}" if each["removed_why"] else ""
            gone = f"by {each['removed_by']} {moment(each['removed_at'])}{why}"
        named = (each[name] for name in ("id", "effect", "rule", "author"))
        return (*named, moment(each["created_at"]), each["why"], each["call_id"], gone)[
            : len(heads)
        ]

    say_listing(app_rules.list_standing(app, removed=removed), as_json, heads, row)


@standing.command("rm")
@click.argument("id", type=click.IntRange(1, 2**31 - 1))
@changing
def remove(app: handle.App, id: int, author: Author, as_json: bool) -> None:
    """Stop copying a standing rule into new jobs. It stays on record.

    ID is the one that `runner rules standing list` shows. Jobs that have a copy keep it: see
    `runner rules revoke`.

    \b
    Example:
      runner rules standing rm 3 --reason "The lock file is reviewed now."
    """
    rule = app_rules.remove_standing(app, id, author)
    if as_json:
        say_json(rule)
    else:
        say(f"standing rule {id} was removed: {rule['effect']} {cell(rule['rule'])}")
