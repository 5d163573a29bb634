"""Permission rules: what they make of a call, and those of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.app.handle import App
from runner.core.agents import AgentType
from runner.core.children import spec_of
from runner.core.run import Author
from runner.core.spec import JobSpec
from runner.core.workspace import Workspace
from runner.errors import UsageError
from runner.permissions import Decision, Policy, Request, ResolvedPath, evaluate, paths_of
from runner.permissions.accesses import Access, File
from runner.permissions.decisions import evaluate_each
from runner.permissions.examples import call_of
from runner.permissions.rules import READING, WRITING
from runner.ports import Surroundings
from runner.store import rules as stored
from runner.tools.file_access import Places, ToolFailure, inside, locate
from runner.workspace.making import COPIES

_RUN = "run"  # stands for the id of the run


def list_rules(app: App, job: str) -> list[dict[str, Any]]:
    """Return the rules that a job has or had, in order; ``call_id`` is the tool call whose answer
    stored the rule, if it was remembered."""
    job_id = app.find_job(job)
    calls = stored.asked_for(app.database, job_id)
    return [
        {**rule._mapping, "call_id": calls.get(rule.position)}
        for rule in stored.list_rules(app.database, job_id)
    ]


def revoke_rule(
    app: App, job: str, position: int, author: Author, *, force: bool
) -> tuple[str, dict[str, Any]]:
    """End a rule of a job. What it has decided stands.

    Args:
        force: even one that the job was submitted with.

    Returns:
        The id of the job, and the rule.

    Raises:
        UsageError: there is no such rule, it was revoked before, or it needs ``force``.
    """
    job_id = app.find_job(job)
    rule = app.change(
        lambda now: stored.revoke(app.database, job_id, position, author, now, force=force)
    )
    return job_id, dict(rule._mapping)


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """The rules of a job file, for the run of an item or (``agent``) for a sub-agent."""

    spec: JobSpec
    home: Path  # RUNNER_HOME
    agent: AgentType | None = None

    @classmethod
    def of(cls, spec: JobSpec, home: Path, agent: str | None) -> RuleCheck:
        """Return the check for a type of sub-agent. Raises ``UsageError`` if there is none."""
        if agent is None:
            return cls(spec, home)
        found = spec.agent(agent)
        if found is None:
            there = ", ".join(each.name for each in spec.agents) or "none"
            raise UsageError(f"the job has no type of sub-agent {agent[:60]!a}; it has {there}")
        return cls(spec, home, found)

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules; those of the type of sub-agent have no position."""
        own = () if self.agent is None else self.agent.rules
        return [
            {
                "position": position,
                "effect": rule.effect,
                "rule": rule.text,
                "origin": rule.origin,
                "why": rule.why,
            }
            for position, rule in [*enumerate(self.spec.rules), *((None, rule) for rule in own)]
        ]

    @property
    def allows_only(self) -> bool:
        """True if the type of sub-agent may do only what its own rules allow."""
        return self.agent is not None and any(rule.effect == "allow" for rule in self.agent.rules)

    def decide_all(self, calls: Sequence[str]) -> list[dict[str, Any]]:
        """Return what becomes of calls, and of each command of a compound command.

        Args:
            calls: each is written as a rule is: ``Bash(git push)``.

        Raises:
            UsageError: one is not written so.
        """
        try:
            parsed = [(text, *call_of(text)) for text in calls]
        except ValueError as error:
            raise UsageError(str(error)) from error
        return [self._decide(*call) for call in parsed]

    def _decide(self, text: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        policy, tools = Policy(self.spec.rules, self.spec.asking.default), self.spec.tools
        if self.agent is not None:
            policy = policy.restricted(self.agent.name, self.agent.rules)
            tools = spec_of(self.spec, self.agent.name).tools
        parts: list[dict[str, Any]] = []
        if tool not in {each.name for each in tools}:
            who = "the job" if self.agent is None else self.agent.name
            there = f"it has {', '.join(each.name for each in tools)}" if tools else "it has none"
            decision = Decision("deny", reason=f"{who} has no tool {tool!r}; {there}")
        else:
            scene = _Scene.of(self.spec.workspace, self.home)
            request = scene.request(tool, arguments)
            decision = evaluate(policy, request)
            refusal = scene.refusal(tool, arguments)
            if refusal is not None and decision.effect != "deny":
                why = f"whatever the rules say, {tool} refuses: {refusal}"
                decision = Decision("deny", reason=why)
            parts = _parts(policy, request)
        return {"call": text, "tool": tool, **_decision_as_json(decision), "parts": parts}


def _parts(policy: Policy, request: Request) -> list[dict[str, Any]]:
    """The decision on each command and each redirect of a compound command by itself."""
    if request.tool != "Bash":
        return []
    decided = evaluate_each(policy, request)
    each = dict.fromkeys((_shown(access), decision) for access, decision in decided)
    if len(each) < 2:
        return []
    return [{"part": part, **_decision_as_json(decision)} for part, decision in each]


def _shown(access: Access) -> str:
    if not isinstance(access, File):
        return access.shown
    return f"{'>' if access.tool == 'Edit' else '<'} {access.text or '(a path not known here)'}"


def _decision_as_json(decision: Decision) -> dict[str, Any]:
    matched = decision.matched_rules[0] if decision.matched_rules else None
    return {
        "decision": decision.effect,
        "rule": matched.rule.text if matched else None,
        "origin": matched.rule.origin if matched else None,
        "matched": matched.matched if matched else None,
        "reason": decision.explain(),
    }


@dataclass(frozen=True, slots=True)
class _Scene:
    """Where a run of a job would make its calls, before there is a run.

    Links are resolved in the workspace itself: one that leads back into it by an absolute path
    would lead out of a copy, which is not seen here.
    """

    surroundings: Surroundings
    home: Path  # RUNNER_HOME
    copy: str | None  # the run's own copy or worktree; None if runs share the workspace

    @classmethod
    def of(cls, workspace: Workspace | None, home: Path) -> _Scene:
        """Return the scene of a job's runs."""
        outputs = home / "outputs" / _RUN
        own = str(home.resolve() / COPIES / _RUN)
        if workspace is not None and workspace.url is not None:  # there are no files of it here
            return cls(Surroundings(Path(own), outputs), home, None)
        path = Path(workspace.path) if workspace and workspace.path else None
        is_own = workspace is not None and workspace.is_recorded
        return cls(Surroundings(path, outputs), home, own if is_own else None)

    def request(self, tool: str, arguments: Mapping[str, Any]) -> Request:
        """Return the call as a run would make it."""
        places = Places.of(self.surroundings, self.home)
        context = locate(paths_of(tool, arguments), self.surroundings, places)
        if self.copy is not None:
            found = {text: self._in_copy(text, place) for text, place in context.places.items()}
            context = replace(context, workspace=self.copy, places=found)
        return Request(tool, arguments, context)

    def refusal(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why a file tool refuses the path of a call, whatever the rules are; else None."""
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
        """The path of the copy for one of the workspace, unless it was named by an absolute path."""
        if text.startswith(("/", "~")):
            return place
        return ResolvedPath(self._copied(place.named), self._copied(place.real))

    def _copied(self, path: str) -> str:
        workspace = str(self.surroundings.workspace)
        if self.copy is None or not inside(path, workspace):
            return path
        return self.copy + path[len(workspace.rstrip("/")) :]
