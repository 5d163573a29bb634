"""What a job file says, checked as far as the file alone can tell: no clock, no disk, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

from runner.core.budget import Budget, Limits
from runner.core.context import Context
from runner.core.spec import ParallelTools, Patience, Provider
from runner.core.workspace import Verify
from runner.errors import Problem
from runner.jobfile.section import Section, shown
from runner.jobfile.sections.agents import (
    AGENT_KEYS,
    AGENT_LIMITS,
    COORDINATOR_KEYS,
    AgentDrafts,
    check_agents,
)
from runner.jobfile.sections.bounds import (
    CONTEXT_KEYS,
    LIMIT_KEYS,
    Bounds,
    budget_of,
    context_of,
    limits_of,
)
from runner.jobfile.sections.ending import (
    SCHEMA_KEYS,
    VERIFY_KEYS,
    SchemaDraft,
    check_schema,
    check_verify,
)
from runner.jobfile.sections.hooks import HOOK_KEYS, HookDraft, check_hooks
from runner.jobfile.sections.options import check_options
from runner.jobfile.sections.permissions import (
    EFFECTS,
    PERMISSION_KEYS,
    Permissions,
    check_permissions,
)
from runner.jobfile.sections.workspace import WORKSPACE_KEYS, WorkspaceDraft, check_workspace
from runner.jobfile.texts import Text, system_of, text_of

ItemSource = Literal["list", "glob", "jsonl", "command"]

# Every key that a job file may hold, by section ("" is the top; NAME and EVENT are the file's own). The
# reference in docs/job-file.md lists the same; a test compares the two. [model_options] is looked at in
# jobfile.sections.options.
KEYS: dict[str, tuple[str, ...]] = {
    "": (
        "name",
        "provider",
        "model",
        "script",
        "prompt",
        "prompt_file",
        "system",
        "system_file",
        "tools",
        "parallel_tools",
        "items",
        "workspace",
        "permissions",
        "agents",
        "coordinator",
        "hooks",
        "instructions",
        "limits",
        "context",
        "retry",
        "model_options",
        *VERIFY_KEYS,
        *SCHEMA_KEYS,
    ),
    "items": get_args(ItemSource),
    "workspace": WORKSPACE_KEYS,
    "permissions": PERMISSION_KEYS,
    "agents.NAME": AGENT_KEYS,
    "agents.NAME.permissions": EFFECTS,
    "agents.NAME.limits": AGENT_LIMITS,
    "coordinator": COORDINATOR_KEYS,
    "hooks.EVENT": HOOK_KEYS,
    "limits": LIMIT_KEYS,
    "context": CONTEXT_KEYS,
    "retry": tuple(bound.name for bound in fields(Patience)),
}
WORKSPACE_TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep")
MOST_NAME_CHARACTERS = 200
MOST_ATTEMPTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Items:
    """Where the items come from: the one key of ``[items]`` and its value."""

    source: ItemSource
    value: Any


@dataclass(frozen=True, slots=True)
class Draft:
    """A job file's values with defaults filled in, before anything that they name is looked at.

    What had a problem holds its default or None. Names of tools and rules keep their index in the
    file, so that a later problem can say where they stand.
    """

    name: str | None
    model: str
    provider: Provider
    script: str | None
    prompt: Text | None
    system: Text | None
    items: Items | None
    workspace: WorkspaceDraft | None
    verify: Verify | None
    schema: SchemaDraft | None
    tools: tuple[tuple[int, str], ...]
    permissions: Permissions
    agents: AgentDrafts
    hooks: tuple[HookDraft, ...]
    instructions: bool
    parallel_tools: ParallelTools
    limits: Limits
    budget: Budget
    context: Context
    retry: Patience
    model_options: Mapping[str, Any]

    @property
    def bounds(self) -> Bounds:
        """What has to fit the models that the job calls."""
        return Bounds(
            self.provider, self.model, self.model_options, self.limits, self.budget, self.context
        )


def check(data: Mapping[str, Any]) -> tuple[Draft, list[Problem]]:
    """Check everything that a job file says of itself.

    Args:
        data: the file as ``tomllib`` reads it.

    Returns:
        The draft, and every problem (without lines); with problems the draft is good only for
        finding more of them.
    """
    problems: list[Problem] = []
    top = Section(data, (), problems)
    top.expect_keys(KEYS[""], _elsewhere(""))
    provider = top.choice("provider", get_args(Provider), "anthropic")
    workspace = _section(top, "workspace")
    if not top.has("model"):
        top.note("is missing: the id of the model to call, such as claude-sonnet-5-5", "model")
    permissions = _section(top, "permissions")
    limits = _section(top, "limits")
    is_recorded = workspace is not None and workspace.values.get("mode") in ("git", "copy")
    context = _section(top, "context")
    run_limits = limits_of(limits) if limits else Limits()
    draft = Draft(
        name=top.line("name", MOST_NAME_CHARACTERS),
        model=top.line("model", MOST_NAME_CHARACTERS) or "",
        provider=cast(Provider, provider),
        script=_script(top, provider),
        prompt=_prompt(top),
        system=system_of(top),
        items=_items(top),
        workspace=check_workspace(workspace) if workspace else None,
        verify=check_verify(top, has_folder=_has_folder(top)),
        schema=check_schema(top),
        tools=tuple(_tools(top)),
        permissions=check_permissions(permissions) if permissions else Permissions(),
        agents=check_agents(top, run_limits, own_folder=is_recorded),
        hooks=check_hooks(top),
        instructions=_instructions(top),
        parallel_tools=cast(
            ParallelTools, top.choice("parallel_tools", get_args(ParallelTools), "safe")
        ),
        limits=run_limits,
        budget=budget_of(limits) if limits else Budget(),
        context=context_of(context) if context else Context(),
        retry=_retry(top),
        model_options=check_options(top, run_limits),
    )
    return draft, problems


def _section(top: Section, name: str) -> Section | None:
    section = top.section(name)
    if section:
        section.expect_keys(KEYS[name], _elsewhere(name))
    return section


def _elsewhere(name: str) -> dict[str, str]:
    """Keys of the other sections, and where they belong."""
    places: dict[str, str] = {}
    for section, keys in KEYS.items():
        if "." in section:  # their keys are those of other sections, for a part of the job
            continue
        place = (
            f"in [{section}]" if section else "at the top of the file, above the first [section]"
        )
        for key in keys:
            if section != name and key not in KEYS:
                places[key] = f"{places[key]} or {place}" if key in places else place
    return places


def _script(top: Section, provider: str) -> str | None:
    script = top.text("script")
    if provider == "scripted" and not top.has("script"):
        top.note('is missing: provider = "scripted" plays the replies of a script file', "script")
    elif provider != "scripted" and top.has("script"):
        top.note('is only for provider = "scripted"; take it out or set the provider', "script")
    return script


def _prompt(top: Section) -> Text | None:
    meaning = "what each run is asked to do"
    match top.exactly_one(("prompt", "prompt_file"), meaning):
        case None:
            return None
        case key:
            return text_of(top, key)


def _items(top: Section) -> Items | None:
    items = _section(top, "items")
    if items is None:
        return None
    sources: tuple[ItemSource, ...] = get_args(ItemSource)
    source = items.exactly_one(sources, "where the items come from")
    if source is None:
        return None
    value: Any
    if source == "list":
        value = items.values["list"]
        if not isinstance(value, list):
            items.note("must be a list of strings or tables", "list")
            return None
        if not value:
            items.note("is empty: give at least one item", "list")
            return None
    elif source == "command" and isinstance(items.values["command"], list):
        value = [word for _, word in items.texts("command")]
        if not items.values["command"]:
            items.note("is empty: give the program and its arguments", "command")
        if len(value) != len(items.values["command"]) or not value:
            return None
    else:
        value = items.text(source)
    return None if value is None else Items(cast(ItemSource, source), value)


def _tools(top: Section) -> list[tuple[int, str]]:
    tools: dict[str, int] = {}
    for index, name in top.texts("tools"):
        if name in tools:
            top.note(f"{shown(name)} is listed twice", "tools", index)
        tools.setdefault(name, index)
    homeless = [name for name in tools if name in WORKSPACE_TOOLS]
    if homeless and not _has_folder(top):
        needs = "needs" if len(homeless) == 1 else "need"
        do = "give it another mode" if top.has("workspace") else "add a [workspace] with its path"
        top.note(
            f"{', '.join(homeless)} {needs} a folder to work in: {do}", "tools", tools[homeless[0]]
        )
    return [(index, name) for name, index in tools.items()]


def _instructions(top: Section) -> bool:
    wanted = top.flag("instructions")
    if wanted and not _has_folder(top):
        top.note("needs a folder with AGENTS.md or CLAUDE.md: add a [workspace]", "instructions")
    return wanted


def _has_folder(top: Section) -> bool:
    """Whether the job has a workspace, and not one that is no folder."""
    workspace = top.values.get("workspace")
    return workspace is not None and not (
        isinstance(workspace, Mapping) and workspace.get("mode") == "none"
    )


def _retry(top: Section) -> Patience:
    retry = _section(top, "retry")
    default = Patience()
    if retry is None:
        return default
    return Patience(
        max_attempts=retry.integer("max_attempts", default.max_attempts, most=MOST_ATTEMPTS),
        max_seconds=retry.seconds("max_seconds") or default.max_seconds,
    )
