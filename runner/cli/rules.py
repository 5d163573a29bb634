"""``rules``: what permission rules say, of a job file and of a job.

Where a run of a job would make its calls, before there is a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import cell, moment
from runner.cli.options import json_option, loaded, signed, stored, with_settings
from runner.cli.terminal import say, say_json, say_table
from runner.core.run import Author
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.core.agents import AgentType
    from runner.core.spec import JobSpec
    from runner.permissions import Decision, Policy, Request
    from runner.permissions.accesses import Access
    from runner.store.rules import StoredRule
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.permissions import Request, ResolvedPath, paths_of
from runner.permissions.rules import READING, WRITING
from runner.ports import Surroundings
from runner.tools.file_access import Places, ToolFailure, inside, locate

if TYPE_CHECKING:
    from runner.core.workspace import Workspace


@click.group()
def rules() -> None:
    """Permission rules: what they would say of a call, and those that a job has.

    \b
    Example:
      runner rules check jobs/refactor.toml 'Bash(git push -f)'
      runner rules list job_01jd9k
    """


@rules.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.argument("calls", metavar="[CALL]...", nargs=-1)
@click.option(
    "--agent",
    "agent",
    metavar="TYPE",
    help="As a sub-agent of this type, started by an item's run.",
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
    job = loaded(settings, spec).spec
    type_ = None if agent is None else _type(job, agent)
    if not calls:
        _list(job, type_, as_json)
        return
    checked = [_check(job, type_, settings.home, *call) for call in _read(calls)]
    if as_json:
        say_json(checked)
        return
    for one in checked:
        _say_decision(one["call"], one)
        for part in one["parts"]:
            _say_decision(part["part"], part, indent="  ")


def _type(spec: JobSpec, name: str) -> AgentType:
    """A type of sub-agent of a job. Raises ``UsageError``: it has none of that name."""
    found = spec.agent(name)
    if found is None:
        there = ", ".join(agent.name for agent in spec.agents) or "none"
        raise UsageError(f"the job has no type of sub-agent {name[:60]!a}; it has {there}")
    return found


def _list(spec: JobSpec, type_: AgentType | None, as_json: bool) -> None:
    own = () if type_ is None else type_.rules
    listed = [
        {
            "position": position,
            "effect": rule.effect,
            "rule": rule.text,
            "origin": rule.origin,
            "why": rule.why,
        }
        for position, rule in [*enumerate(spec.rules), *((None, rule) for rule in own)]
    ]
    if as_json:
        say_json(listed)
        return
    say_table(
        ("position", "effect", "rule", "from", "why"), (tuple(rule.values()) for rule in listed)
    )
    say(f"what no rule matches: {spec.asking.default}")
    if any(rule.effect == "allow" for rule in own):
        say(f"what no rule of {cell(type_ and type_.name)} allows: deny")


def _read(calls: Sequence[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Each call as it was written, with its tool and input. Raises UsageError."""
    from runner.permissions.examples import call_of

    read = []
    for text in calls:
        try:
            read.append((text, *call_of(text)))
        except ValueError as error:
            raise UsageError(str(error)) from error
    return read


def _check(
    spec: JobSpec,
    type_: AgentType | None,
    home: Path,
    text: str,
    tool: str,
    arguments: dict[str, Any],
) -> dict[str, Any]:
    """What would become of a call, as it is printed in JSON.

    Args:
        type_: the type of the sub-agent that makes it, None for the run of an item.
        text: the call as it was written.
        home: RUNNER_HOME.
    """
    from runner.core.children import spec_of
    from runner.permissions import Decision, Policy, evaluate

    policy = Policy(spec.rules, spec.asking.default)
    tools = spec.tools
    if type_ is not None:
        policy = policy.restricted(type_.name, type_.rules)
        tools = spec_of(spec, type_.name).tools
    parts: list[dict[str, Any]] = []
    if tool not in {each.name for each in tools}:
        who = "the job" if type_ is None else type_.name
        there = f"it has {', '.join(each.name for each in tools)}" if tools else "it has none"
        decision = Decision("deny", reason=f"{who} has no tool {tool!r}; {there}")
    else:
        scene = Scene.of(spec.workspace, home)
        request = scene.request(tool, arguments)
        decision = evaluate(policy, request)
        refusal = scene.refusal(tool, arguments)
        if refusal is not None and decision.effect != "deny":
            decision = Decision("deny", reason=f"whatever the rules say, {tool} refuses: {refusal}")
        parts = _parts(policy, request)
    return {"call": text, "tool": tool, **_decision_to_json(decision), "parts": parts}


def _parts(policy: Policy, request: Request) -> list[dict[str, Any]]:
    """What the rules say of each command and each redirect of a compound command by itself."""
    from runner.permissions.decisions import evaluate_each

    if request.tool != "Bash":
        return []
    decided = evaluate_each(policy, request)
    each = dict.fromkeys((_shown(access), decision) for access, decision in decided)
    if len(each) < 2:
        return []
    return [{"part": part, **_decision_to_json(decision)} for part, decision in each]


def _shown(access: Access) -> str:
    from runner.permissions.accesses import File

    if not isinstance(access, File):
        return access.shown
    return f"{'>' if access.tool == 'Edit' else '<'} {access.text or '(a path not known here)'}"


def _decision_to_json(decision: Decision) -> dict[str, Any]:
    matched = decision.matched_rules[0] if decision.matched_rules else None
    return {
        "decision": decision.effect,
        "rule": matched.rule.text if matched else None,
        "origin": matched.rule.origin if matched else None,
        "matched": matched.matched if matched else None,
        "reason": decision.explain(),
    }


def _say_decision(text: str, decided: dict[str, Any], indent: str = "") -> None:
    origin = decided["origin"]
    written_in = "" if origin in (None, "job") else f", from {cell(origin)}"
    say(f"{indent}{decided['decision']:<5}  {cell(text)}: {cell(decided['reason'])}{written_in}")


@rules.command("list")
@click.argument("job")
@json_option
@with_settings
def list_(settings: Settings, job: str, as_json: bool) -> None:
    """List the rules that a job has or had, in order, with who added them and where from: for one
    that was remembered, the tool call whose answer it was.

    \b
    Example:
      runner rules list job_01jd9k
    """
    from runner.queries.find import find
    from runner.store.rules import asked_for, list_rules

    with stored(settings) as database:
        job_id = find(database, job, "job").id
        found = list_rules(database, job_id)
        calls = asked_for(database, job_id)
    if as_json:
        say_json([{**asdict(rule), "call_id": calls.get(rule.position)} for rule in found])
        return
    columns = (
        "position",
        "effect",
        "rule",
        "from",
        "by",
        "when",
        "snapshot",
        "revoked",
        "run",
        "why",
    )
    say_table(columns, (_row(rule, calls.get(rule.position)) for rule in found))


def _row(rule: StoredRule, call_id: str | None) -> tuple[Any, ...]:
    origin = rule.origin if call_id is None else f"{rule.origin}, asked for {call_id}"
    revoked = ""
    if rule.revoked_in is not None:
        revoked = f"in {rule.revoked_in} by {rule.revoked_by} {moment(rule.revoked_at)}"
    return (
        *(rule.position, rule.effect, rule.rule, origin, rule.author),
        *(moment(rule.created_at), rule.added_in, revoked, rule.run_id, rule.why),
    )


@rules.command()
@click.argument("job")
@click.argument("position", type=click.IntRange(0, 2**31 - 1))
@click.option(
    "--force", is_flag=True, help="Also a rule that the job was submitted with, a denial too."
)
@signed
@json_option
@with_settings
def revoke(
    settings: Settings, job: str, position: int, force: bool, author: Author, as_json: bool
) -> None:
    """Let a remembered rule of a job hold no longer. What it has decided stands.

    POSITION is the one that `runner rules list` shows. Rules that the job was submitted with are
    revoked only with --force. None holds again. Questions that wait are looked at again with the
    rules that are left.

    \b
    Example:
      runner rules revoke job_01jd9k 12
    """
    from runner.cli.control import measured_now, patiently
    from runner.queries.find import find
    from runner.store.rules import revoke as revoke_rule

    with stored(settings) as database:
        job_id = find(database, job, "job").id
        now = measured_now(database)
        rule = patiently(lambda: revoke_rule(database, job_id, position, author, now, force=force))
    if as_json:
        say_json(asdict(rule))
    else:
        say(
            f"{job_id}: {rule.effect} {cell(rule.rule)} no longer holds (snapshot {rule.revoked_in})"
        )


_RUN = "run"  # stands for the id of the run


@dataclass(frozen=True, slots=True)
class Scene:
    """``copy`` is where a run's own copy or worktree of the workspace would be, None when runs share
    the workspace. Links are looked at in the workspace: one that leads back into it by an
    absolute path leads out of a copy, which is not seen here."""

    surroundings: Surroundings
    home: Path
    copy: str | None

    @classmethod
    def of(cls, workspace: Workspace | None, home: Path) -> Scene:
        """The scene of a job's runs. Args: home: RUNNER_HOME."""
        from runner.workspace.making import COPIES

        outputs = home / "outputs" / _RUN
        own = str(home.resolve() / COPIES / _RUN)
        if workspace is not None and workspace.url is not None:  # there are no files of it here
            return cls(Surroundings(Path(own), outputs), home, None)
        path = Path(workspace.path) if workspace and workspace.path else None
        is_own = workspace is not None and workspace.is_recorded
        return cls(Surroundings(path, outputs), home, own if is_own else None)

    def request(self, tool: str, arguments: Mapping[str, Any]) -> Request:
        """The call as a run would make it."""
        places = Places.of(self.surroundings, self.home)
        context = locate(paths_of(tool, arguments), self.surroundings, places)
        if self.copy is not None:
            found = {text: self._in_copy(text, place) for text, place in context.places.items()}
            context = replace(context, workspace=self.copy, places=found)
        return Request(tool, arguments, context)

    def refusal(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Why a file tool would not go where the call leads, whatever rules there are."""
        if tool not in READING | WRITING:
            return None
        places = Places.of(self.surroundings, self.home)
        for path in paths_of(tool, arguments):
            if self.copy is not None and path.startswith("/"):
                return f"{path} is not in the run's own copy of the workspace"
            try:
                places.find(path, writing=tool in WRITING)
            except ToolFailure as failure:
                return str(failure)
        return None

    def _in_copy(self, text: str, place: ResolvedPath) -> ResolvedPath:
        """Where a place of the workspace is in the copy, unless it was named by an absolute path."""
        if text.startswith(("/", "~")):
            return place
        return ResolvedPath(self._copied(place.named), self._copied(place.real))

    def _copied(self, path: str) -> str:
        workspace = str(self.surroundings.workspace)
        if self.copy is None or not inside(path, workspace):
            return path
        return self.copy + path[len(workspace.rstrip("/")) :]
