"""A stored job: everything that its runs need, resolved and immutable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cache
from itertools import chain
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from runner.core.agents import AGENT_SOURCE, SPLIT_SOURCE, AgentType, Coordinator
from runner.core.budget import Budget, Limits
from runner.core.context import Context, estimate_text
from runner.core.conversation import Block, Message, Tool, content_bytes, content_text, text_bytes
from runner.core.hooks import Hook
from runner.core.mcp import Choice, McpServer, chosen, source_parts
from runner.core.media import Media
from runner.core.notices import Notify
from runner.core.pauses import Breaker, Pilot
from runner.core.rate_limits import Caps
from runner.core.sandbox import Sandbox
from runner.core.shares import NORMAL
from runner.core.times import Times
from runner.core.workspace import RESULT_SOURCE, Verify, Workspace, result_tool
from runner.permissions import Default, Rule


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits on retrying a job's model calls."""

    max_attempts: int = 1_000  # in a row
    max_seconds: float = 6 * 3600.0  # from the first failure in a row


Provider = Literal["anthropic", "bedrock", "vertex", "scripted"]
LEAST_CACHED_TOKENS = 1_024  # no model caches a shorter prefix
PLATFORMS: tuple[Provider, ...] = ("bedrock", "vertex")  # that serve Anthropic's models
ParallelTools = Literal["safe", "all", "off"]
Lane = Literal["realtime", "batch", "auto"]
OnTimeout = Literal["deny", "stop"]
OnMaxTokens = Literal["continue", "accept"]
Trust = Literal["contained"]  # because they run in a sandbox

# Keys of a script: for items without replies of their own; for a type of sub-agent, followed by its
# name; for the summary of a conversation.
ANY_ITEM, OF_AGENT, SUMMARY = "*", "@", "summary"


@dataclass(frozen=True, slots=True)
class Asking:
    """The default decision without a matching rule, and the handling of questions."""

    default: Default = "deny"
    timeout: float | None = None  # seconds; None: the run waits as long as it takes
    on_timeout: OnTimeout = "deny"
    trust: Trust | None = None  # commands that no rule mentions may run
    standing: bool = True  # the job gets copies of standing allow rules


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The part of a job that its runs share. Rendered prompts and items are the runs' own."""

    name: str
    model: str
    provider: Provider = "anthropic"
    region: str | None = None  # of a platform
    project: str | None = None  # of Google Cloud
    system: str | None = None
    tools: tuple[Tool, ...] = ()
    rules: tuple[Rule, ...] = ()  # that the job began with: those in force are rows of their own
    asking: Asking = field(default_factory=Asking)
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    context: Context = field(default_factory=Context)
    retry: Patience = field(default_factory=Patience)
    times: Times = field(default_factory=Times)
    caps: Caps = field(default_factory=Caps)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    parallel_tools: ParallelTools = "safe"
    on_max_tokens: OnMaxTokens = "continue"  # what becomes of a reply that was cut off
    workspace: Workspace | None = None
    verify: Verify | None = None
    script: Mapping[str, Any] | None = None  # scripted replies by item key (provider "scripted")
    agents: tuple[AgentType, ...] = ()
    coordinator: Coordinator | None = None
    hooks: tuple[Hook, ...] = ()
    mcp: tuple[McpServer, ...] = ()
    # Which tools of the servers the runs have, of those that a server lists later too. Empty: the job
    # was stored before its runs followed the lists, and keeps its tools.
    mcp_choice: Choice = ()
    priority: float = NORMAL  # the job's weight when it was submitted
    max_concurrency: int | None = None  # runs of the job that are worked on at once
    # AGENTS.md and CLAUDE.md of the workspace join the system prompt; "follow": when they change, a
    # message with the new text precedes the next turn.
    instructions: bool | Literal["follow"] = False
    pilot: Pilot | None = None
    breaker: Breaker | None = None
    notify: Notify | None = None
    sandbox: Sandbox | None = None  # None: stored before there was one; nothing contains its calls
    options: tuple[str, ...] = ()  # of the command, that changed the job file: "--first 3"
    lane: Lane = "realtime"  # as submitted: people may change it, so the job's row has it
    batch_linger: float = 60.0  # seconds that a call waits for others to share its batch
    record_reads: bool = False  # who reads a transcript in a browser is an event of the run

    @property
    def announces_questions(self) -> bool:
        """True if people are told of new questions."""
        return self.notify is not None and "needs_approval" in self.notify.on

    @property
    def trusts_contained(self) -> bool:
        """True if commands that no rule mentions may run: each of them in a sandbox."""
        is_contained = self.sandbox is not None and self.sandbox.mode == "required"
        return self.asking.trust == "contained" and is_contained

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def agent(self, name: str) -> AgentType | None:
        return next((agent for agent in self.agents if agent.name == name), None)

    def source_of(self, name: str) -> str:
        """Return the source of the job's tool of that name; empty if it has none."""
        tool = self.tool(name)
        return tool.source if tool is not None else ""

    def only_reads(self, name: str) -> bool:
        """True if the job has a tool of that name, which changes nothing."""
        tool = self.tool(name)
        return tool is not None and tool.read_only

    def server_of(self, tool: Tool) -> McpServer | None:
        """Return the MCP server that a tool belongs to, if it belongs to one."""
        parts = source_parts(tool.source)
        return next((each for each in self.mcp if parts and each.name == parts[0]), None)

    def tools_when(self, listed: Mapping[str, Iterable[Tool]]) -> tuple[Tool, ...]:
        """Return the tools, in the order of a new job, when MCP servers (by name) list these."""
        if not self.mcp_choice:
            return self.tools
        before, kept, last = list[Tool](), list[Tool](), list[Tool]()
        for tool in self.tools:
            if (parts := source_parts(tool.source)) is None:
                is_last = tool.source in (SPLIT_SOURCE, RESULT_SOURCE)
                (last if is_last else before).append(tool)
            elif parts[0] not in listed:
                kept.append(tool)
        now = chosen(self.mcp_choice, [*kept, *chain.from_iterable(listed.values())])
        return (*before, *now, *last)

    def splits(self, name: str) -> bool:
        """True if the tool of that name takes the parts of a coordinator's task."""
        return self.source_of(name) == SPLIT_SOURCE

    def starts_children(self, name: str) -> bool:
        """True if the tool of that name starts sub-agents: no process runs for a call of it."""
        return self.source_of(name) in (AGENT_SOURCE, SPLIT_SOURCE)

    @property
    def is_recorded(self) -> bool:
        """True if snapshots of the runs' workspaces are recorded."""
        return self.workspace is not None and self.workspace.is_recorded

    @property
    def result_tool(self) -> Tool | None:
        """The tool that takes the runs' structured results; None when none is asked for."""
        return next((tool for tool in self.tools if tool.source == RESULT_SOURCE), None)

    @property
    def account(self) -> str:
        """The platform account whose limits the calls share; empty if the API's replies name it."""
        if self.provider not in PLATFORMS:
            return ""
        return "/".join(filter(None, (self.provider, self.project, self.region)))

    def billed_as(self, model: str) -> str:
        """Return the name that prices go by: on Vertex AI it needs the region."""
        return f"{self.region}/{model}" if self.provider == "vertex" else model

    @property
    def summary_model(self) -> str:
        """The model that writes summaries."""
        return self.context.summary_model or self.model

    @property
    def shared_texts(self) -> tuple[str, ...]:
        """The texts before the messages of every request: system prompt and tools."""
        return (self.system or "", *(content_text(tool.definition()) for tool in self.tools))

    @property
    def shared_tokens(self) -> int:
        per_token = self.context.chars_per_token
        return sum(estimate_text(text, per_token) for text in self.shared_texts)

    def request_bytes(self, messages: Iterable[Message]) -> int:
        """UTF-8 bytes of a turn's request: shared texts, messages and model options."""
        blocks = (block for message in messages for block in message.blocks)
        texts = (*self.shared_texts, content_text(dict(self.model_options)))
        return sum(map(text_bytes, texts)) + sum(map(content_bytes, blocks))

    @property
    def thinking_tokens(self) -> int:
        """The tokens that ``model_options`` reserve for thinking (``budget_tokens``), 0 without."""
        extra = self.model_options.get("extra_body", {})
        thinking = self.model_options.get("thinking") or extra.get("thinking") or {}
        return int(thinking.get("budget_tokens") or 0)

    @property
    def hour_cache(self) -> bool | None:
        """True if ``model_options`` ask for a cache of an hour; None if they say nothing of it."""
        given = {**self.model_options, **(self.model_options.get("extra_body") or {})}
        cache = given.get("cache_control")
        return None if cache is None else cache.get("ttl") == "1h"

    def to_json(self) -> dict[str, Any]:
        """The spec as a JSON object; ``from_json`` gives the same value back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobSpec:
        kind: Any = cls
        spec: JobSpec = decoder(kind)(data)
        return spec


@cache
def decoder(kind: Any) -> Any:
    """Return a function from JSON to a dataclass or a tuple; None if a type needs no decoding."""
    if get_origin(kind) is UnionType:  # with None
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        each = decoder(get_args(kind)[0])
        return tuple if each is None else lambda data: tuple(map(each, data))
    if not is_dataclass(kind):
        return None
    make: Any = kind
    hints = get_type_hints(make)
    decoders = {name: part for name in hints if (part := decoder(hints[name])) is not None}

    def decode(data: Any) -> Any:
        given = {n: decoders[n](data[n]) for n in decoders if data.get(n) is not None}
        return make(**{**data, **given})

    return decode


@dataclass(frozen=True, slots=True)
class NewRun:
    key: str  # of its item, unique in the job
    item: Any
    prompt: str  # rendered
    commit_message: str = ""  # rendered, of the commit that it ends with; empty: one is made up
    attached: Sequence[Block] = ()  # media blocks after the prompt


@dataclass(frozen=True, slots=True)
class Submission:
    """A job file, read and checked whole."""

    source: str
    text: str  # as submitted
    spec: JobSpec
    runs: tuple[NewRun, ...]
    notes: tuple[str, ...] = ()  # for the person who submits it: what was left out, a line each
    examples: tuple[str, ...] = ()  # calls that its rules name as examples
    media: tuple[Media, ...] = ()  # the media that its runs' attached blocks name
    workspace_notes: tuple[str, ...] = ()  # those of its notes that are about its workspace


# The limits that a type of sub-agent can set.
_LIMITS = ("max_turns", "token_ceiling", "cost_ceiling_usd", "working_time", "deadline")


def spec_of(spec: JobSpec, *types: str) -> JobSpec:
    """Return the spec of a sub-agent. ``types`` are the agent types from the child of an item's run down
    to the sub-agent itself, which has only the tools that all of them have. Without types: the job's
    spec."""
    if not spec.agents:  # an imported session's agents have no types in its job
        return spec
    if unknown := [name for name in types if spec.agent(name) is None]:
        raise LookupError(f"the job {spec.name!r} has no agent type {unknown[0]!r}")
    lineage = [agent for name in types if (agent := spec.agent(name)) is not None]
    if not lineage:
        return spec
    agent, context, workspace = lineage[-1], spec.context, spec.workspace
    tools = tuple(
        tool
        for tool in spec.tools
        if tool.source not in (SPLIT_SOURCE, RESULT_SOURCE)  # they are for the job's own task
        and all(each.has(tool.name) for each in lineage)
    )
    choice = spec.mcp_choice
    if choice:
        choice += tuple(each.tools for each in lineage if each.tools is not None)
    if agent.result_schema is not None:
        tools += (result_tool(agent.result_schema),)
    if agent.model not in (None, spec.model):
        context = replace(context, window=None)
    if workspace is not None and workspace.is_recorded and agent.workspace == "parent":
        workspace = replace(workspace, mode="shared")  # the parent records what is done there
    limits = {name: getattr(agent, name) for name in _LIMITS}
    return replace(
        spec,
        model=spec.model if agent.model is None else agent.model,
        system=spec.system if agent.system is None else agent.system,
        tools=tools,
        mcp_choice=choice,
        limits=replace(spec.limits, **{n: own for n, own in limits.items() if own is not None}),
        context=context,
        workspace=workspace,
        verify=None,
        coordinator=None,
    )
