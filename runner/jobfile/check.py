"""Checks of a job file's values that need only the file and the price list, no disk or network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from runner.core.agents import AgentType
from runner.core.batches import BATCHES_REFUSE
from runner.core.budget import Limits
from runner.core.context import DEFAULT_WINDOW, Context
from runner.core.prices import PriceList, Terms
from runner.core.spec import PLATFORMS
from runner.jobfile.keys import PLATFORMS_REFUSE, TOP, WORKSPACE
from runner.jobfile.table import Node, Section
from runner.jobfile.values import is_url, json_problem, shown
from runner.permissions.rules import AGENT_NAME

TOOL_EVENTS = ("PreToolUse", "PostToolUse")
_WORKSPACE_TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep")
# With this beta the budget is that of a whole turn and may be larger than one reply:
# https://docs.claude.com/en/docs/build-with-claude/extended-thinking#interleaved-thinking
_WIDE_BUDGET_BETA = "interleaved-thinking"


def check(data: Mapping[str, Any]) -> Section:
    """Read a job file's values, as ``tomllib`` has them, and note every problem, without lines.
    Values with problems serve only to find further problems."""
    at_the_top = "at the top of the file, above the first [section]"
    top_keys = [key.name for key in TOP.keys if key.type.table is None]
    top = Section(TOP, data, Node((), [], dict.fromkeys(top_keys, at_the_top)))
    if top["provider"]["name"] == "scripted" and "script" not in top:
        top.note('is missing: provider = "scripted" plays the replies of a script file', "script")
    elif top["provider"]["name"] != "scripted" and "script" in top:
        top.note('is only for provider = "scripted"; take it out or set the provider', "script")
    _check_platform(top)
    _check_folder(top)
    if top["on_failure"] == "fail" and "verify_rounds" in top:
        top.note('does nothing with on_failure = "fail"; leave one of the two out', "verify_rounds")
    if top["workspace"]:
        _check_workspace(top["workspace"])
    _check_agents(top)
    if top["coordinator"]:
        _check_coordinator(top, top["coordinator"])
    placed_hooks = ((event, *placed) for event, hooks in top["hooks"].items() for placed in hooks)
    for event, at, hook in placed_hooks:
        for name in ("matcher", "if"):
            if hook[name] and event not in TOOL_EVENTS:
                wanted = " and ".join(TOOL_EVENTS)
                at.note(f"is only for {wanted}: no call is there to match", name)
        if "on_failure" in hook and event != "PreToolUse":
            at.note("is only for PreToolUse: nothing else can be denied", "on_failure")
    _check_options(top["model_options"], top["limits"]["max_output_tokens"])
    _check_lane(top)
    return top


def _check_platform(top: Section) -> None:
    provider = top["provider"]
    for key, users in {"region": PLATFORMS, "project": ("vertex",)}.items():
        if provider["name"] in users and key not in provider:
            provider.note(f'is missing: name = "{provider["name"]}" needs it under [provider]', key)
        elif provider["name"] not in (*users, None) and key in provider:
            only = " or ".join(f'"{each}"' for each in users)
            provider.note(f"is only for name = {only}; leave it out", key)
    if provider["name"] not in PLATFORMS:
        return
    for section in (top["model_options"], top["model_options"]["extra_body"]):
        for name in PLATFORMS_REFUSE:
            if section and name in section.written:
                section.note(f"{provider['name']} does not take it: leave it out", name)


def _check_lane(top: Section) -> None:
    if top["lane"] in ("realtime", None):
        if "batch_linger" in top and not top.at("lane").is_wrong():
            top.note('is only for lane = "batch" or "auto"', "batch_linger")
        return
    if (name := top["provider"]["name"]) not in ("anthropic", None):
        top.note(f'is only for provider = "anthropic": "{name}" has no batches', "lane")
    for section in (top["model_options"], top["model_options"]["extra_body"]):
        for name in BATCHES_REFUSE:
            if section and name in section.written:
                section.note('batches do not take it: leave it out, or set lane = "realtime"', name)


def _check_folder(top: Section) -> None:
    workspace = top.written.get("workspace")
    is_none = isinstance(workspace, Mapping) and workspace.get("mode") == "none"
    if workspace is not None and not is_none:
        return
    homeless = {name: at for at, name in reversed(top["tools"]) if name in _WORKSPACE_TOOLS}
    if homeless:
        names = list(homeless)[::-1]
        needs = "needs" if len(names) == 1 else "need"
        do = "give it another mode" if workspace else "add a [workspace] with its path"
        homeless[names[0]].note(f"{', '.join(names)} {needs} a folder to work in: {do}")
    if "verify" in top:
        top.note("needs a folder to run in: add a [workspace]", "verify")
    if top["instructions"]:
        top.note("needs a folder with AGENTS.md or CLAUDE.md: add a [workspace]", "instructions")


def _check_workspace(section: Section) -> None:
    mode = section["mode"]
    if section.at("mode").is_wrong():
        return
    modes = {key.name: key.modes for key in WORKSPACE.keys if key.modes}
    misplaced = [key for key in section.written if mode not in modes.get(key, (mode,))]
    for key in misplaced:
        wanted = " or ".join(f'mode = "{each}"' for each in modes[key])
        section.note(f'is only for {wanted}; this is mode = "{mode}"', key)
    if mode in ("shared", "copy") and "path" not in section and "repo" not in misplaced:
        section.note("the key path is missing: the folder that the tools work in")
    if mode == "git" and "repo" not in section and "path" not in misplaced:
        section.note("the key repo is missing: the path or URL of the repository")
    if section["uncommitted"] and "base" in section:
        section.note("is HEAD when uncommitted = true: leave one of the two out", "base")
    if section["uncommitted"] and is_url(section["repo"] or ""):
        section.note("has no meaning for a URL: nobody works in it", "uncommitted")


def _check_agents(top: Section) -> None:
    """Check the types of sub-agents, and drop types with invalid names."""
    agents: dict[str, Section] = top["agents"]
    workspace = top["workspace"]
    own_folder = workspace is not None and workspace.written.get("mode") in ("git", "copy")
    for name, agent in list(agents.items()):
        if not AGENT_NAME.fullmatch(name):
            agent.note(f"{shown(name)} cannot be a name: letters, digits, '_' and '-', at most 64")
            del agents[name]
        if agent["workspace"] == "own" and not own_folder:
            agent.note('"own" is only for a [workspace] with mode = "git" or "copy"', "workspace")
        has_schema = "output_schema" in agent or "output_schema_file" in agent
        if agent["snapshot"] and agent.written.get("tools") == [] and not has_schema:
            # https://github.com/BerriAI/litellm/issues/4689
            agent.note(
                "needs tools: the API refuses a conversation with tool calls if no tools are listed",
                "snapshot",
            )


def _check_coordinator(top: Section, section: Section) -> None:
    """Check who splits a task, and lower the default of ``most``: all parts start at once."""
    agent, agents = section["agent"], top.written.get("agents") or {}
    if agent is not None and agent not in agents:
        there = f"there are {', '.join(agents)}" if agents else f"add a section [agents.{agent}]"
        section.note(f"there is no agent type {shown(agent)}; {there}", "agent")
    limits = {key: top["limits"][key] for key in ("max_agents_at_once", "max_agents")}
    held_by, held = min(limits.items(), key=itemgetter(1))
    fewest, most = section["fewest"], section["most"]
    if "most" not in section:
        most = section.values["most"] = max(fewest, min(most, held))
    if most < fewest:
        section.note(f"must be at least as many as fewest ({fewest}), not {most}", "most")
    elif most > held and "most" in section:
        section.note(
            f"must be at most limits.{held_by} ({held}), not {most}: all parts start at once",
            "most",
        )
    elif fewest > held:
        section.note(
            f"needs limits.{held_by} to be at least {fewest}, not {held}: all parts start at once",
            *(["fewest"] if "fewest" in section else []),
        )


def _check_options(options: Section, most_output: int) -> None:
    for key, value in options.written.items():
        if problem := json_problem(value):
            options.note(problem, key)
    betas = str([options.written.get(key) for key in ("betas", "extra_headers")])
    for section in (options, options["extra_body"]):
        thinking = section["thinking"] if section else None
        budget = (thinking and thinking["budget_tokens"]) or 0
        if thinking and budget >= most_output and _WIDE_BUDGET_BETA not in betas:
            thinking.note(
                f"must be less than limits.max_output_tokens ({most_output:,}), not {shown(budget)}",
                "budget_tokens",
            )


def note_misfits(top: Section, agents: Iterable[AgentType], prices: PriceList) -> None:
    """Note keys that do not fit the job's models, unless they depend on keys with problems."""
    wrong = {problem.place for problem in top.problems}

    def is_sound(*places: str) -> bool:
        return not any(place.startswith(places) for place in wrong)

    def missing(model: str) -> list[str]:
        return missing_prices(
            prices, top["provider"]["name"], model, top["model_options"].written, context
        )

    limits, context = top["limits"].fill(Limits), top["context"].fill(Context)
    if not wrong & {"model", "context.window", "context.reserve", "limits.max_output_tokens"}:
        for place, message in window_problems(top["model"], limits, context, prices):
            top.note(message, *place)
    limited: list[tuple[str, ...]] = [
        ("limits", name)
        for name in ("cost_ceiling_usd", "budget_usd")
        if top["limits"][name] is not None
    ]
    goes_on = top["pilot"] and top["pilot"]["continue"]
    if goes_on and goes_on["forecast_usd"] is not None:
        limited.append(("pilot", "continue", "forecast_usd"))
    if limited and is_sound("model", "provider", "context"):
        for message in missing(top["model"]):
            for key in limited:
                top.note(message, *key)
    for agent in agents:
        at = top.at("agents", agent.name)
        if not is_sound(at.place, "model", "provider", "context", "limits"):
            continue
        model = agent.model or top["model"]
        window = prices.window(model) or DEFAULT_WINDOW
        reserve = context.reserve_in(window, limits.max_output_tokens)
        if model != top["model"] and reserve > window // 2:
            at.note(
                f"{shown(model)} has a window of {window:,} tokens, and {reserve:,} are to stay free "
                "for a reply, over half of it: lower limits.max_output_tokens or context.reserve",
                "model",
            )
        own_limit = agent.cost_ceiling_usd is not None
        if own_limit or (limited and model != top["model"]):
            for message in missing(model):
                at.note(message, *(("limits", "cost_ceiling_usd") if own_limit else ("model",)))


def window_problems(
    model: str, limits: Limits, context: Context, prices: PriceList
) -> list[tuple[tuple[str, str], str]]:
    """Return the place and message of a reserve over half of the window; else nothing."""
    window = context.window or prices.window(model) or DEFAULT_WINDOW
    reserve = context.reserve_in(window, limits.max_output_tokens)
    if reserve <= window // 2:
        return []
    whole = f"the window of {window:,} tokens"
    if context.window is None:
        whole += f" {'of' if prices.window(model) else 'assumed for'} {shown(model)}"
    if context.reserve is not None:
        return [(("context", "reserve"), f"must be at most half of {whole}, not {reserve:,}")]
    message = (
        f"a reply of {limits.max_output_tokens:,} tokens and 2,000 more take over half of {whole}: "
        "lower limits.max_output_tokens, or give context.window or context.reserve"
    )
    return [(("context", "window") if context.window else ("limits", "max_output_tokens"), message)]


def missing_prices(
    prices: PriceList, provider: str, model: str, options: Mapping[str, Any], context: Context
) -> list[str]:
    """Return why the cost of a job's calls cannot be limited: a line for each model without a price,
    the job's own and the one that writes summaries."""
    summary_model = context.summary_model if context.compaction != "off" else None
    missing = []
    for called in dict.fromkeys((model, summary_model or model)):
        terms = Terms.of(provider, options, own_model=called == model)
        if prices.tariff(called, terms) is None:
            mode = " in fast mode" if terms.fast and prices.price(called) is not None else ""
            missing.append(
                f"{shown(called)}{mode} has no price, so its cost cannot be limited: name one in the "
                "file of RUNNER_PRICES, or limit tokens instead (token_ceiling, budget_tokens)"
            )
    return missing
