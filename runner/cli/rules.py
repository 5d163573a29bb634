"""``rules``: what permission rules say, of a job file and of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from runner.app import handle
from runner.app import rules as app_rules
from runner.app.humanize import cell, moment
from runner.cli.options import JOB, changing, json_option, load_job, with_app, with_settings
from runner.cli.terminal import say, say_json, say_table
from runner.core.run import Author
from runner.settings import Settings


@click.group()
def rules() -> None:
    """Permission rules: check them against calls, list and revoke a job's.

    \b
    Example:
      runner rules check jobs/refactor.toml 'Bash(git push -f)'
      runner rules list job_01jd9k
    """


@rules.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.argument("calls", metavar="[CALL]...", nargs=-1)
@click.option(
    "--agent", metavar="TYPE", help="As a sub-agent of this type, started by an item's run."
)
@json_option
@with_settings
def check(
    settings: Settings, spec: Path, calls: tuple[str, ...], agent: str | None, as_json: bool
) -> None:
    """Say what a job file's rules would make of calls, and why; without calls, list the rules.

    A call is written as a rule is: a tool with what it is called with. Nothing is run or stored.

    \b
    Example:
      runner rules check jobs/refactor.toml
      runner rules check jobs/refactor.toml 'Bash(git push -f)' 'Read(src/x.py)'
      runner rules check jobs/team.toml --agent reviewer 'Bash(git stash)'
    """
    checking = app_rules.RuleCheck(load_job(settings, spec).spec, settings.home, agent)
    found = checking.decide_all(calls) if calls else checking.rules()
    if as_json:
        say_json(found)
    elif calls:
        for one in found:
            _say_decision(one["call"], one)
            for part in one["parts"]:
                _say_decision(part["part"], part, indent="  ")
    else:
        columns = ("position", "effect", "rule", "from", "why")
        say_table(columns, (tuple(rule.values()) for rule in found))
        say(f"what no rule matches: {checking.spec.asking.default}")
        if checking.allows_only:
            say(f"what no rule of {cell(checking.agent and checking.agent.name)} allows: deny")


def _say_decision(text: str, decided: dict[str, Any], indent: str = "") -> None:
    origin = decided["origin"]
    written_in = "" if origin in (None, "job") else f", from {cell(origin)}"
    say(f"{indent}{decided['decision']:<5}  {cell(text)}: {cell(decided['reason'])}{written_in}")


@rules.command("list")
@click.argument("job", type=JOB)
@json_option
@with_app
def list_(app: handle.App, job: str, as_json: bool) -> None:
    """List the rules that a job has or had, in order, with who added them and where from: for one
    that was remembered, the tool call whose answer it was.

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
    "--force", is_flag=True, help="Also a rule that the job was submitted with, a denial too."
)
@changing
def revoke(
    app: handle.App, job: str, position: int, force: bool, author: Author, as_json: bool
) -> None:
    """Let a remembered rule of a job hold no longer. What it has decided stands.

    POSITION is the one that `runner rules list` shows. Rules that the job was submitted with are
    revoked only with --force. None holds again. Questions that wait are looked at again with the
    rules that are left.

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
