"""Permission rules of a job, and their decisions on calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.app.handle import App, open_app
from runner.core.run import Author
from runner.core.spec import JobSpec, spec_of
from runner.errors import NoDatabaseError, UsageError
from runner.permissions import Decision, Request, ResolvedPath, Rule
from runner.permissions.accesses import Access, File, paths_of
from runner.permissions.decisions import Policy, evaluate, evaluate_each
from runner.permissions.examples import call_of
from runner.permissions.rules import READING, WRITING
from runner.ports import Surroundings
from runner.settings import Settings
from runner.store import rules as stored
from runner.store.jobs import refuse_unstorable
from runner.tools.file_access import Places, ToolFailure, inside, locate
from runner.workspace.folders import COPIES

_RUN = "run"  # stands for the id of the run


def list_rules(app: App, job: str) -> list[dict[str, Any]]:
    """Return the rules that a job has or had, in order; ``call_id`` is the tool call whose answer
    stored the rule, if it was remembered."""
    job_id = app.find_job(job)
    calls = stored.asked_for(app.database, job_id)
    rules = stored.list_rules(app.database, job_id)
    return [{**rule._mapping, "call_id": calls.get(rule.position)} for rule in rules]


def revoke_rule(
    app: App, job: str, position: int, author: Author, *, force: bool
) -> tuple[str, dict[str, Any]]:
    """End a rule of a job, and return the id of the job and the rule. What it has decided stands.
    Raises ``UsageError`` if there is no such rule, it was revoked before, or the job was submitted
    with it and there is no ``force``."""
    job_id = app.find_job(job)
    rule = app.change(
        lambda now: stored.revoke(app.database, job_id, position, author, now, force=force)
    )
    return job_id, dict(rule._mapping)


def add_standing(app: App, rule: Rule, author: Author) -> int:
    """Add a standing rule and return its id. Raises ``UsageError`` if a job file could not have the
    rule, or it is a standing rule already."""
    refuse_unstorable("the rule", rule.text)

    def add(now: float) -> int | None:
        return app.database.write(
            lambda connection: stored.add_standing(connection, rule, author, now)
        )

    if (added := app.change(add)) is None:
        raise UsageError(f"{rule.effect} {rule.text!r} is already a standing rule")
    return added


def remove_standing(app: App, id: int, author: Author) -> dict[str, Any]:
    """Remove a standing rule and return it; jobs that have a copy keep it. Raises ``UsageError`` if
    it was removed before."""
    return app.change(lambda now: stored.remove_standing(app.database, id, author, now))


def list_standing(app: App, *, removed: bool) -> list[dict[str, Any]]:
    """Return the standing rules, with ``removed`` also those that were removed."""
    return stored.list_standing(app.database, removed=removed)


def with_standing(settings: Settings, spec: JobSpec) -> JobSpec:
    """Return a spec with the standing rules that a job submitted now would get: none without a
    database. Raises ``UsageError`` if its schema is not current, and ``UnreachableError``."""
    try:
        with open_app(settings) as app:
            found = app.database.read(lambda each: stored.standing_for(each, spec))
    except NoDatabaseError:
        return spec
    return replace(spec, rules=(*spec.rules, *(rule for _, rules in found for rule in rules)))


class RuleCheck:
    """The rules of a job file, for an item's run or a type of sub-agent (``agent``), before there
    is a run. Raises ``UsageError`` without such a type. Links are resolved in the workspace itself,
    not in a copy."""

    def __init__(self, spec: JobSpec, home: Path, agent: str | None) -> None:
        self.spec = spec
        self.agent = None if agent is None else spec.agent(agent)
        if agent is not None and self.agent is None:
            there = ", ".join(each.name for each in spec.agents) or "none"
            raise UsageError(f"the job has no agent type {agent[:60]!a}; it has {there}")
        workspace, self._copy = spec.workspace, str(home.resolve() / COPIES / _RUN)
        path = Path(workspace.path) if workspace and workspace.path else None
        self._in_copy = workspace is not None and workspace.is_recorded
        if workspace is not None and workspace.url is not None:  # there are no files of it here
            path, self._in_copy = Path(self._copy), False
        self._surroundings = Surroundings(path, home / "outputs" / _RUN)
        self._places = Places.of(self._surroundings, home)

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules; rules of the type of sub-agent have no position."""
        own = () if self.agent is None else self.agent.rules
        names = ("position", "effect", "rule", "origin", "why")
        rows = [
            (position, rule.effect, rule.text, rule.origin, rule.why)
            for position, rule in [*enumerate(self.spec.rules), *((None, rule) for rule in own)]
        ]
        return [dict(zip(names, row, strict=True)) for row in rows]

    @property
    def allows_only(self) -> bool:
        """True if the type of sub-agent may do only what its own rules allow."""
        return self.agent is not None and any(rule.effect == "allow" for rule in self.agent.rules)

    def decide_all(self, calls: Sequence[str]) -> list[dict[str, Any]]:
        """Return the decisions on calls and on each command of a compound command. Raises
        ``UsageError`` unless calls look like ``Bash(git push)``."""
        try:
            parsed = [(text, *call_of(text)) for text in calls]
        except ValueError as error:
            raise UsageError(str(error)) from error
        return [self._decide(*call) for call in parsed]

    def _decide(self, text: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        spec, tools = self.spec, self.spec.tools
        policy = Policy(spec.rules, spec.asking.default, trusts_contained=spec.trusts_contained)
        if self.agent is not None:
            policy = policy.restricted(self.agent.name, self.agent.rules)
            tools = spec_of(self.spec, self.agent.name).tools
        parts: list[tuple[str, Decision]] = []
        if tool not in {each.name for each in tools}:
            who = "the job" if self.agent is None else self.agent.name
            there = f"it has {', '.join(each.name for each in tools)}" if tools else "it has none"
            decision = Decision("deny", reason=f"{who} has no tool {tool!r}; {there}")
        else:
            request = self._request(tool, arguments)
            decision = evaluate(policy, request)
            refusal = self._refusal(tool, arguments)
            if refusal is not None and decision.effect != "deny":
                why = f"whatever the rules say, {tool} refuses: {refusal}"
                decision = Decision("deny", reason=why)
            if tool == "Bash":  # each command and each redirect of a compound command by itself
                each_part = evaluate_each(policy, request)
                parts = list(dict.fromkeys((_shown(access), each) for access, each in each_part))
        return {
            "call": text,
            "tool": tool,
            **_as_json(decision),
            "parts": [{"part": part, **_as_json(each)} for part, each in parts if len(parts) > 1],
        }

    def _request(self, tool: str, arguments: Mapping[str, Any]) -> Request:
        context = locate(paths_of(tool, arguments), self._surroundings, self._places)
        if self._in_copy:  # but for what was named by an absolute path
            found = {
                text: place
                if text.startswith(("/", "~"))
                else ResolvedPath(self._copied(place.named), self._copied(place.real))
                for text, place in context.places.items()
            }
            context = replace(context, workspace=self._copy, places=found)
        return Request(tool, arguments, context)

    def _copied(self, path: str) -> str:
        workspace = str(self._surroundings.workspace)
        is_inside = inside(path, workspace)
        return self._copy + path[len(workspace.rstrip("/")) :] if is_inside else path

    def _refusal(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why a file tool refuses a call's path regardless of the rules; else None."""
        for path in paths_of(tool, arguments) if tool in READING | WRITING else ():
            if self._in_copy and path.startswith("/"):
                return f"{path} is not in the run's own copy of the workspace"
            try:
                self._places.find(path, writing=tool in WRITING)
            except ToolFailure as failure:
                return str(failure)
        return None


def _shown(access: Access) -> str:
    if not isinstance(access, File):
        return access.shown
    return f"{'>' if access.tool == 'Edit' else '<'} {access.text or '(a path not known here)'}"


def _as_json(decision: Decision) -> dict[str, Any]:
    matched = decision.matched_rules[0] if decision.matched_rules else None
    return {
        "decision": decision.effect,
        "rule": matched.rule.text if matched else None,
        "origin": matched.rule.origin if matched else None,
        "matched": matched.matched if matched else None,
        "reason": decision.explain(),
    }
