"""Every key of a job file: its type and bounds, its default, and one line that says what it does.

The checks, the tables of docs/ and the JSON Schema all follow from here. A link without a page leads
into docs/job-file.md. Defaults are written as in TOML and equal the defaults of the core's value
objects (a test compares them).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args

from runner.core.agents import DEEPEST, AgentWorkspace
from runner.core.conversation import Usage
from runner.core.hooks import HookEvent, OnHookFailure, is_rule, matchers_in
from runner.core.mcp import Scope, Transport
from runner.core.notices import EVENTS as NOTICE_EVENTS
from runner.core.notices import NoticeFormat
from runner.core.pauses import Rate
from runner.core.sandbox import CACHES, SandboxMode, host_problem, image_problem
from runner.core.shares import LEAST_PRIORITY, MOST_PRIORITY, PRIORITIES
from runner.core.spec import Lane, OnMaxTokens, OnTimeout, ParallelTools, Provider, Trust
from runner.core.workspace import TOOL_CACHES, OnFailure, OnUnknown, WorkspaceMode
from runner.jobfile import values
from runner.jobfile.table import (
    Key,
    Node,
    Section,
    Table,
    Type,
    checked,
    choice,
    duration,
    either,
    flag,
    integer,
    list_of,
    mapping,
    number,
    schema_of,
    size,
    table_of,
    tables_by_name,
    text,
)
from runner.jobfile.times import read_moment, read_window
from runner.jobfile.values import BadValueError, kind, shown
from runner.permissions import Default, Effect, Rule
from runner.permissions.examples import matches
from runner.permissions.modes import Mode
from runner.permissions.rules import problem

LEAST_USD, MOST_USD = 0.000001, 1_000_000_000.0
MOST_TOKENS = 1_000_000_000_000
MOST_NAME = 200  # characters
RESERVED_OPTIONS = {
    "model": "set the key model at the top of the file",
    "messages": "Runner sends the run's own conversation",
    "system": "set the key system at the top of the file",
    "tools": "set the key tools at the top of the file",
    "max_tokens": "set limits.max_output_tokens",
    "stream": "Runner always streams",
}
PLATFORMS_REFUSE = ("container", "inference_geo", "service_tier", "speed", "workspace_id")
_ANYTHING = Table("", (), is_open=True)


def _reserved(why: str) -> Type:
    return checked("", {"not": {}}, lambda value: f"is set by Runner: {why}")


def _pairs(problem_of: Callable[[str, Any], str | None]) -> Type:
    """A table whose keys anybody chooses; ``problem_of`` says what is wrong with one or its value."""

    def read(value: Any, node: Node) -> Mapping[str, Any]:
        pairs = mapping(value, node)
        for name, each in pairs.items():
            if wrong := problem_of(name, each):
                node.note(wrong, name)
        return pairs

    return Type("table", {"type": "object"}, read)


def _read_result_schema(value: Any, node: Node) -> Mapping[str, Any]:
    schema = mapping(value, node)
    if wrong := values.schema_problem(schema):
        raise BadValueError(wrong)
    return schema


def _read_hooks(value: Any, node: Node) -> Mapping[str, Any]:
    """Return the hooks by event; each function of a list is a hook of every event."""
    if not isinstance(value, list):
        events: Section = table_of(EVENTS).read(value, node)
        return events.values
    if any(isinstance(each, Mapping) for each in value):
        raise BadValueError("name the event of each, as in [[hooks.PreToolUse]]")
    functions = [
        (at, Section(HOOK, {"function": name}, at)) for at, name in _names.read(value, node)
    ]
    return dict.fromkeys(EVENTS.names, functions)


def _priority() -> Type:
    """A word or a number, read as a weight."""
    word, weight = choice(*PRIORITIES), number(LEAST_PRIORITY, MOST_PRIORITY)

    def read(value: Any, node: Node) -> float:
        if isinstance(value, str):
            return PRIORITIES[word.read(value, node)]
        found: float = weight.read(value, node)
        return found

    return Type(f"{word.words}, or a number", {"anyOf": [word.schema, weight.schema]}, read)


def rules_of(effect: Effect) -> Type:
    """A list of rules, each a string or a table with examples."""

    def read(value: Any, node: Node) -> Rule | None:
        if isinstance(value, str):
            if wrong := problem(value, effect):
                raise BadValueError(wrong)
            return Rule(effect, value)
        if not isinstance(value, dict):
            raise BadValueError(f"must be a rule, a string or a table, not {kind(value)}")
        section = Section(RULE, value, node)
        if section["rule"] is None:
            return None
        if wrong := problem(section["rule"], effect):
            section.note(wrong, "rule")
            return None
        rule = Rule(effect, section["rule"], section["why"] or "")
        for key, does in {"match": "does not match", "not_match": "matches"}.items():
            for at, example in section[key]:
                try:
                    if matches(rule, example) != (key == "match"):
                        at.note(f"the rule {shown(rule.text)} {does} the example {shown(example)}")
                except ValueError as error:
                    at.note(str(error))
        return rule

    one = Type("", {"$ref": "#/definitions/rule"}, read)
    return list_of(one, "rules", words="[rules](#rules)", placed=True)


def matcher() -> Type:
    """A matcher of Claude Code's, a rule without its effect, or a list of them: a tuple for each text of
    the matchers in it."""

    def read(value: Any, node: Node) -> tuple[tuple[str, ...], ...]:
        if value == "":
            return ()
        if isinstance(value, str):
            pairs = [(node, text().read(value, node))]
        else:
            pairs = list_of(text(500), placed=True).read(value, node)
        good = []
        for at, given in pairs:
            found = matchers_in(given)
            if not found:
                return ()
            problems = [
                problem(each) if is_rule(each) else _pattern_problem(each) for each in found
            ]
            for wrong in filter(None, problems):
                at.note(wrong)
            good.append(
                tuple(each for each, wrong in zip(found, problems, strict=True) if not wrong)
            )
        return tuple(good)

    strings = {"type": "string"}
    schema = {"anyOf": [strings, {"type": "array", "items": strings}]}
    return Type("[matcher](hooks.md#matchers), or a list of them", schema, read)


def _pattern_problem(pattern: str) -> str | None:
    try:
        re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        return (
            f"{shown(pattern)} is neither a rule nor a regular expression for tools' names: {error}"
        )
    return None


def _network() -> Type:
    """Read the hosts that can be reached: none (an empty list), those of a list, or all (``"on"``)."""
    word, hosts = choice("off", "on"), list_of(text(300, check=host_problem), "hosts")

    def read(value: Any, node: Node) -> Any:
        if isinstance(value, list):
            return hosts.read(value, node)
        return () if word.read(value, node) == "off" else value

    schema = {"anyOf": [word.schema, hosts.schema]}
    return Type(f"{word.words}, or a {hosts.words}", schema, read)


def time_as(read_text: Callable[[str], Any], words: str, pattern: str) -> Type:
    """A string that names a time."""

    def read(value: Any, node: Node) -> Any:
        if not isinstance(value, str):
            raise BadValueError(f"must be a string, in quotes, not {kind(value)}")
        return read_text(value)

    return Type(words, {"type": "string", "pattern": pattern}, read)


_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%\s*of\s*([0-9]+)", re.ASCII)
_MOST_COUNTED = 1_000  # runs that a breaker looks at


def _rate() -> Type:
    """So many percent of the newest runs."""

    def read(value: Any, node: Node) -> Rate:
        found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            got = shown(value) if isinstance(value, str) else kind(value)
            raise BadValueError(f'must be a string such as "50 % of 20", not {got}')
        percent, of = float(found[1]), int(found[2][:9])
        if not 0 < percent <= 100:
            raise BadValueError(f"must be more than 0 % and at most 100 %, not {shown(value)}")
        if not 1 <= of <= _MOST_COUNTED:
            raise BadValueError(f"must count 1 to {_MOST_COUNTED:,} runs, not {shown(value)}")
        return Rate(percent, of)

    pattern = rf"^\s*{_RATE.pattern}\s*$"
    return Type("rate", {"type": "string", "pattern": pattern}, read)


_moment = time_as(read_moment, "time", r"[0-9]:[0-9]{2}")
_window = time_as(read_window, "window", r"[0-9]:[0-9]{2}\s*-\s*[0-9]{1,2}:[0-9]{2}")
_path = text(words="path")
_template = text(words="[template](#prompts)")
_templates = list_of(text(), words="[templates](#prompts)")
_line = text(MOST_NAME)
_mcp_text = checked("string", {"type": "string"}, values.mcp_text_problem)
_script_text = checked("string", {"type": "string"}, values.script_text_problem)
_count = integer(1_000_000)
_region = text(60, "name", values.region_problem)
_project = text(100, "name", values.project_problem)
_variable = text(200, "name of a variable", values.variable_problem)
_tokens = integer(MOST_TOKENS)
_usd = number(LEAST_USD, MOST_USD)
_seconds = number(0, 1_000_000)
_names = list_of(text(500), placed=True, unique=True)
_calls = list_of(text(), words="calls", placed=True)
_commands = list_of(
    text(), words="commands", empty="give at least one shell command, or leave it out"
)
_patterns = list_of(text(500, check=values.pattern_problem), words="patterns")
_ignore_list = list_of(text(500), words="patterns")
_accepted = list_of(
    checked("", {"enum": list(values.ACCEPTED)}, values.accepted_problem),
    words=", ".join(f'`"{word}"`' for word in values.ACCEPTED),
)
_ref = text(500, "ref", values.ref_problem)
_repository = text(2_000, "path or URL", values.repository_problem)
_items = checked(
    "list of strings and tables", {"type": "array", "minItems": 1}, values.items_problem
)
_command = either(text(), list_of(text(500), empty="give the program and its arguments"))
_instructions = checked(
    '`true`, `false` or `"follow"`', {"enum": [True, False, "follow"]}, values.instructions_problem
)
_result_schema = Type("table", {"type": "object"}, _read_result_schema)
_header_value = checked("string", {"type": "string"}, values.header_value_problem)

# fmt: off
RULE = Table("rule", (
    Key("rule", text(), None, "The rule.", needed="the rule itself, such as 'Bash(git diff *)'"),
    Key("why", text(500), None, "One line, shown with each of its decisions, also to the model."),
    Key("match", _calls, [], "Examples that the rule has to match."),
    Key("not_match", _calls, [], "Examples that the rule must not match."),
))
PERMISSIONS = Table("permissions", (
    Key("deny", rules_of("deny"), [], "Calls that may not run, whatever else is said."),
    Key("ask", rules_of("ask"), [],
        "Calls that a person is asked about. The run waits, and takes up no worker meanwhile."),
    Key("allow", rules_of("allow"), [], "Calls that may run."),
    Key("default", choice(*get_args(Default)), "deny", "What happens to a call that no rule matches."),
    Key("trust", choice(*get_args(Trust)), None, "With `\"contained\"` commands of Bash that no rule "
        "mentions may run, because they cannot leave [the sandbox](sandbox.md), which has to be "
        "`required`. Not commands that cannot be analysed. Each decision says so.", "nothing"),
    Key("mode", choice(*get_args(Mode)), None, "[A set of rules](#modes), added to the job's own."),
    Key("from", _path, None, example=".claude/settings.json", doc=
        "A [settings file](#rules-of-a-settings-file) of Claude Code, whose rules are added."),
    Key("standing", flag, True, "Whether the job gets a copy of the [standing "
        "rules](operations.md#standing-rules) that allow. Those that deny or ask always apply."),
    Key("ask_timeout", duration(), None, "How long a question waits for its answer.", "unlimited",
        example="8h"),
    Key("on_timeout", choice(*get_args(OnTimeout)), "deny", needs="ask_timeout", doc=
        "What happens then: the call is denied and the run goes on, or the run stops."),
))
_SYSTEM = (("system", "system_file"), "")
_RESULT = (("output_schema", "output_schema_file"), "")
AGENT_PERMISSIONS = Table("agents.NAME.permissions", (
    Key("deny", rules_of("deny"), [], "Calls that it may not make."),
    Key("ask", rules_of("ask"), [], "Calls that a person is asked about."),
    Key("allow", rules_of("allow"), [], "The only calls that it may make, if the job's rules allow "
        "them too. Nobody can approve another one. Without any, the job's rules decide alone."),
))
AGENT_LIMITS = Table("agents.NAME.limits", (
    Key("max_turns", _count, None, "Its model replies.", "the job's"),
    Key("token_ceiling", _tokens, None, "Tokens of all its calls, its own sub-agents' included.",
        "the job's"),
    Key("cost_ceiling_usd", _usd, None, "USD of the same calls.", "the job's"),
    Key("working_time", duration(), None, "Time of its model calls and tools together.", "the job's"),
    Key("deadline", duration(), None, "Time from its start, waiting included.", "the job's"),
))
AGENT = Table("agents.NAME", (
    Key("description", text(1_000), None, "What the model is told of the type: what it is good for. "
        "One line.", needed="what the model is told of the type"),
    Key("system", text(), None, "The system prompt.", "the job's"),
    Key("system_file", _path, None, "The same from a file; at most one of the two.", ""),
    Key("model", _line, None, "The model's id.", "the job's"),
    Key("tools", _names, None, "Its tools, out of its parent's. With `Agent` it may start sub-agents "
        "itself.", "all of the job's"),
    Key("permissions", table_of(AGENT_PERMISSIONS), {},
        "[Rules of its own](sub-agents.md#agentsnamepermissions)."),
    Key("workspace", choice(*get_args(AgentWorkspace)), "parent", "Where it works: in its parent's "
        "folder, or in its own worktree or copy, which starts with the newest recorded files of its "
        'parent. `"own"` needs a `[workspace]` with mode `"git"` or `"copy"`.'),
    Key("snapshot", flag, False, "Whether it starts with its parent's conversation, unless the call "
        "says otherwise. Without it, it starts with its prompt alone."),
    Key("output_schema", _result_schema, None,
        "[The structured result](#structured-results) that it has to submit."),
    Key("output_schema_file", _path, None, "The same from a JSON file; at most one of the two.", ""),
    Key("limits", table_of(AGENT_LIMITS), {}, "[Limits of its own](sub-agents.md#agentsnamelimits)."),
), (_SYSTEM, _RESULT))
COORDINATOR = Table("coordinator", (
    Key("agent", text(), None, "The type of sub-agent that works on a part.",
        needed="the type of sub-agent that works on a part"),
    Key("fewest", integer(8, 2), 2, "The fewest parts."),
    Key("most", integer(8), 8, "The most parts: no more than [`max_agents_at_once` and "
        "`max_agents`](#limits), as all parts start at once. Where these are lower, so is the default."),
))
HOOK = Table("hooks.EVENT", (
    Key("matcher", matcher(), [], "Which calls it is run for: one part of the call that one of the "
        "rules matches is enough. Only for `PreToolUse` and `PostToolUse`. "
        '`"Edit\\|Write"` is a list of two, `"mcp__.*"` a regular expression.', "every call"),
    Key("if", matcher(), [], "A second matcher, as in Claude Code's settings: both must match.",
        "every call"),
    Key("command", text(), None, "A command for bash.", ""),
    Key("function", text(500), None, "A function of your own, `package.module:function`, called with "
        "the event. Exactly one of the two.", ""),
    Key("timeout", duration(3_600.0), 60, "How long it may take; at most an hour."),
    Key("on_failure", choice(*get_args(OnHookFailure)), "deny", "What happens to the call when the "
        "hook fails or takes too long. Only for `PreToolUse`."),
    Key("repeatable", flag, False, "Whether it runs again if its worker died while it ran."),
), ((("command", "function"), "what the hook runs"),))
MCP = Table("mcp.NAME", (
    Key("command", text(), None, "The program that is the server, talked to over its stdin and "
        "stdout. A relative path begins at the job file's folder.", ""),
    Key("args", list_of(_mcp_text, "strings"), [], "Its arguments."),
    Key("env", _pairs(values.mcp_variable_problem), {}, "Variables added to [what tools "
        "see](security.md#secrets-and-the-environment-of-tools)."),
    Key("url", text(2_000), None, "The URL of a server that is talked to over HTTP. Exactly one of "
        "`command` and `url`.", ""),
    Key("headers", _pairs(values.mcp_header_problem), {}, "HTTP headers that are sent "
        "with each request."),
    Key("type", choice(*get_args(Transport)), "http", "The transport to a `url`: Streamable HTTP, or the "
        "older SSE."),
    Key("scope", choice(*get_args(Scope)), None, "Who shares one server: all runs of the job in a worker, "
        "outside the sandbox; or each run has its own, in its sandbox and workspace.",
        "`run` with a sandbox, else `job`"),
    Key("trust_hints", flag, False, "Whether to believe the server's `readOnlyHint` of a tool. Only "
        "calls of read-only tools run again by themselves, and beside others."),
    Key("start_timeout", duration(), 30, "How long the server may take to start and answer."),
))
EVENTS = Table("hooks", tuple(
    Key(event, list_of(table_of(HOOK), "tables", placed=True), []) for event in get_args(HookEvent)
), noun="event")
_hooks = Type("tables, or a list of strings", {"anyOf": [schema_of(EVENTS), _names.schema]}, _read_hooks)
ITEMS = Table("items", (
    Key("list", _items, None, "The items themselves.", ""),
    Key("glob", text(words="pattern"), None, "One item for each file that matches, sorted: its path "
        "relative to the workspace's folder (without a workspace, to the job file's). In mode `\"git\"` "
        "these are the files of the commit that runs begin at. `**` stands for folders of any depth; "
        "hidden files and folders are passed over unless a part of the pattern begins with a dot.", ""),
    Key("jsonl", _path, None, "One item for each line that isn't blank: a JSON string or object.", ""),
    Key("command", _command, None, "One item for each line of the command's output: the JSON object or "
        "string that it holds, else the line. A string is run with `bash -c`, a list as it is, in the "
        "job file's folder, for 60 seconds at most. If it fails, so does the submission.", ""),
), ((("list", "glob", "jsonl", "command"), "where the items come from"),))
_COPIED, _GIT, _RECORDED = ("shared", "copy"), ("git",), ("git", "copy")
WORKSPACE = Table("workspace", (
    Key("mode", choice(*get_args(WorkspaceMode)), "shared", "[Whose folder it is](#modes-of-a-workspace)."),
    Key("path", _path, None, "A folder that exists.", "needed in `shared` and `copy`", modes=_COPIED),
    Key("repo", _repository, None, "A git repository: the folder of a checkout, or what `git clone` "
        "takes.", "needed in `git`", modes=_GIT),
    Key("base", _ref, None, "Where all runs begin: a branch, a tag or a commit, looked up at the "
        "submission.", "the branch checked out", modes=_GIT),
    Key("uncommitted", flag, False, modes=_GIT, doc=
        "Begin at what is checked out, with uncommitted changes and new files, without ignored ones."),
    Key("accept", _accepted, [], modes=_GIT, doc=
        "What to accept in [a repository](#what-is-refused) although runs see it differently from you."),
    Key("remote", _repository, None, modes=_GIT, doc=
        "A git repository that snapshots are pushed to, so that a run can continue on another machine."),
    Key("setup", _commands, [], modes=_RECORDED, doc=
        "Shell commands that prepare each new workspace, once."),
    Key("setup_timeout", duration(), "30m", "How long each of them may take.", needs="setup",
        modes=_RECORDED),
    Key("snapshot_ignored", _patterns, [], "Files to record although git ignores them: "
        "[patterns of paths](https://git-scm.com/docs/gitglossary#Documentation/gitglossary.txt-pathspec) "
        "in the workspace, without `..`.", modes=_RECORDED),
    Key("ignore", _ignore_list, list(TOOL_CACHES), modes=("copy",), doc=
        "Lines as in a [.gitignore](https://git-scm.com/docs/gitignore): files to leave out of snapshots, "
        "diffs and patches. The folder's own `.gitignore` files can take them in again."),
    Key("largest_file", integer(1_000_000_000_000), 20_000_000, modes=_RECORDED, doc=
        "Bytes; of a larger file only the digest is recorded."),
    Key("external", rules_of("ask"), [], modes=_RECORDED, doc=
        "Calls whose effects leave the workspace: [never repeated unasked](#calls-that-were-cut-off)."),
    Key("on_unknown", choice(*get_args(OnUnknown)), "tell", "Who deals with a call of unknown outcome: "
        "the model, which is told of it, or [a person](#calls-that-were-cut-off)."),
    Key("max_concurrency", _count, None, "How many runs may be worked on at once in this folder, runs of "
        "other jobs included.", "unlimited", modes=("shared",), example=1),
    Key("commit_message", _template, None, "The message of the commit that a run ends with.",
        "see below", modes=_GIT),
))
SANDBOX = Table("sandbox", (
    Key("mode", choice(*get_args(SandboxMode)), "auto", "Whether calls run in a sandbox: in what the "
        "host has for it, only in bubblewrap, or never."),
    Key("network", _network(), "off", "Which hosts calls can reach.",
        example=["packages.example.org", "*.example.com"]),
    Key("memory", size(2**20), None, "Memory of all processes of a call together.", "unlimited",
        example="4G"),
    Key("processes", integer(1_000_000), None, "Processes of a call at once, threads included.",
        "unlimited", example=512),
    Key("cpu", number(0.01, 10_000), None, "Cores that a call can use.", "unlimited", example=2),
    Key("disk", size(2**20), None, "How large the workspace may grow. The call that makes it larger is "
        "ended.", "unlimited", example="10G"),
    Key("hooks", flag, False, "Whether [hooks](#hooksevent) run in it too."),
    Key("image", text(300, check=image_problem), None, "[Image of the container]"
        "(sandbox.md#container-images) that calls run in.", "none: they run this host's programs",
        example="python:3.12"),
    Key("caches", list_of(choice(*CACHES), unique=True), [], "Caches of the home that calls can read: "
        + ", ".join(f'`"{name}"`' for name in CACHES) + "."),
    Key("writable_caches", list_of(choice(*CACHES), unique=True), [], "Caches, named so, that calls can "
        "read and change: in a [copy of the job's own](sandbox.md#caches)."),
))
PILOT_CONTINUE = Table("pilot.continue", (
    Key("success", number(0, 1), None, "At least this share of the pilot's items has succeeded.",
        "any", example=0.8),
    Key("forecast_usd", _usd, None, "All items are expected to cost at most so many USD.", "any",
        example=20),
))
PILOT = Table("pilot", (
    Key("items", _count, None, "How many items are worked first, spread evenly over all of them.",
        needed="how many items are worked first", example=5),
    Key("continue", table_of(PILOT_CONTINUE), None, "[When the others follow by themselves]"
        "(costs.md#pilot).", "never: they wait for `runner resume`"),
))
NOTIFY = Table("notify", (
    Key("on", list_of(choice(*NOTICE_EVENTS), unique=True), list(NOTICE_EVENTS), "The events to tell of."),
    Key("command", text(2_000), None, "A shell command of one line, which gets the notice as JSON on its "
        "input.", example="mail -s Runner lena"),
    Key("webhook", _variable, None, "The workers' environment variable that holds the address to post "
        "the notice to.", example="RUNNER_SLACK_WEBHOOK"),
    Key("secret", _variable, None, "The environment variable that holds the key to "
        "sign requests with.", needs="webhook", example="RUNNER_WEBHOOK_KEY"),
    Key("format", choice(*get_args(NoticeFormat)), "json", "The body: the notice, or a message for Slack.",
        needs="webhook"),
    Key("desktop", flag, False, "Whether to show it on the desktop of the worker's host."),
))
BREAKER = Table("breaker", (
    Key("same_failure", integer(_MOST_COUNTED), None, "So many runs in a row failed in the same way, as "
        "`runner report` groups failures.", "no limit", example=5),
    Key("failure_rate", _rate(), None, "So many percent of the newest runs failed.", "no limit",
        example="50 % of 20"),
    Key("denied_rate", _rate(), None, "So many percent of the newest runs had calls denied.", "no limit",
        example="80 % of 10"),
))
LIMITS = Table("limits", (
    Key("max_turns", _count, 50, "Model replies of a run. Parallel tool calls are one turn; retries and "
        "summaries don't count."),
    Key("token_ceiling", _tokens, 20_000_000, "Tokens of all calls of a run: input, cache reads and "
        "writes, output. Never crossed: a call that could cross it is not made."),
    Key("cost_ceiling_usd", _usd, None, "USD of all calls of a run, by the price list. Never crossed."),
    Key("max_output_tokens", _count, 32_000, "Tokens of one reply, thinking included."),
    Key("tool_timeout", duration(86_400.0), 120, "How long a tool call may take, at most a day. A call of "
        "Bash can ask for another time, up to 600 seconds."),
    Key("deadline", duration(), None, "Time of a run from its submission, waiting included.", example="8h"),
    Key("working_time", duration(), None, "Time of a run's model calls and tools together. Waiting for a "
        "person, for a worker or between two tries is not counted.", example="30m"),
    Key("max_agent_depth", integer(DEEPEST), 3, "How deep [sub-agents](sub-agents.md) may nest: those "
        "that an item's run starts are at depth 1."),
    Key("max_agents_at_once", integer(100), 8, "Unended sub-agents of one run, not counting their "
        "own. A call past it waits until one has ended."),
    Key("max_agents", integer(1_000), 50, "All sub-agents in the tree of an item's run, ever."),
    Key("budget_usd", _usd, None, "USD of all runs of the job together. [Never "
        "crossed](concepts.md#budgets-of-a-job).", example=40),
    Key("budget_tokens", _tokens, None, "Tokens of all runs of the job together. Never crossed."),
))
CONTEXT = Table("context", (
    Key("window", integer(1_000_000_000), None, "Tokens that a prompt and its reply may have. A smaller "
        "one than the model's is compacted earlier.", "the model's"),
    Key("reserve", integer(1_000_000_000), None, "Tokens of the window that stay free for the reply; at "
        "most half of it.", "see below"),
    Key("chars_per_token", number(1.0, 32.0), 4.0, "Characters of a token, for "
        "estimates. Real counts correct these as the run goes on."),
    Key("keep_messages", _count, 8, "Newest messages that a compaction leaves as they are, if "
        "that pays: else half as many, a quarter …"),
    Key("compaction", choice("auto", "reactive", "off"), "auto", 'With `"reactive"` only what '
        'the API has found too long is made shorter. With `"off"` everything is sent as it is, and the '
        "run stops when it no longer fits."),
    Key("summary_model", _line, None, "The model that writes summaries.", "the job's model"),
    Key("summary_instructions", text(), None, "What a summary has to keep in this job: added to what "
        "the model is asked for one."),
))
RETRY = Table("retry", (
    Key("max_attempts", _count, 1_000, "Tries of one call."),
    Key("max_seconds", duration(), "6h", "Time from the first failure of a call."),
))
_BODY = (
    *(Key(name, _reserved(why)) for name, why in RESERVED_OPTIONS.items()),
    *(Key(name, table_of(_ANYTHING)) for name in ("output_config", "cache_control")),
    Key("thinking", table_of(Table("", (Key("budget_tokens", integer(10**12, 0)),), is_open=True))),
)
MODEL_OPTIONS = Table("model_options", (
    *_BODY,
    Key("extra_body", table_of(Table("", _BODY, is_open=True))),
    Key("extra_headers", _pairs(values.header_problem)),
    Key("betas", list_of(text(500, check=values.beta_problem))),
    Key("user_profile_id", _header_value),
    Key("workspace_id", _header_value),
), is_open=True)
_provider_name = choice(*get_args(Provider))
PROVIDER = Table("provider", (
    Key("name", _provider_name, "anthropic", "Who answers, as `provider = …` says it."),
    Key("region", _region, None, "The region to call. Needed on Bedrock and Vertex AI; on Vertex "
        "AI it may be `global`.", "none", example="eu-central-1"),
    Key("project", _project, None, "The project of Google Cloud. Needed on Vertex AI.", "none"),
    Key("max_requests_per_minute", integer(1_000_000), None, "Model calls of the job that may begin in a "
        "minute.", "unlimited"),
    Key("max_input_tokens_per_minute", integer(10**12), None, "Input tokens of its calls in a minute, "
        "without reads from the cache. They are estimated as a call begins, and corrected as it ends.",
        "unlimited"),
    Key("max_concurrent", _count, None, "Calls of the job under way at once.", "unlimited"),
))


def _provider() -> Type:
    """A name, or a table with one and with limits: read as the table."""
    words = f"{_provider_name.words}, or a table"

    def read(value: Any, node: Node) -> Section:
        if isinstance(value, str):
            return Section(PROVIDER, {"name": _provider_name.read(value, node)}, node)
        if not isinstance(value, Mapping):
            raise BadValueError(f"must be {words.replace('`', '')}, not {kind(value)}")
        return Section(PROVIDER, value, node)

    return Type(words, {"anyOf": [_provider_name.schema, schema_of(PROVIDER)]}, read)


AUDIT = Table("audit", (
    Key("record_reads", flag, False, "Whether an event of the run says who read its transcript in "
        "[`runner web`](web.md)."),
))
TOP = Table("", (
    Key("name", _line, None, "Names the job in lists: one line.", "the file's name without `.toml`"),
    Key("provider", _provider(), "anthropic", "Who answers: the Messages API, Amazon Bedrock, Google "
        "Vertex AI, or a [script](#scripted-jobs). [A table](platforms.md#provider) sets region and "
        "limits."),
    Key("model", _line, None, "The model's id, passed on as it is. A scripted job may call it anything.",
        needed="the id of the model to call, such as claude-sonnet-5-5", example="claude-sonnet-5-5"),
    Key("script", _path, None, 'The script\'s file, `.toml` or `.json`. Only for `provider = "scripted"`.',
        "needed when scripted"),
    Key("prompt", _template, None, "What each run is asked to do.", "one of the two is needed"),
    Key("prompt_file", _path, None, "The same from a file.", ""),
    Key("images", _templates, [], "Files that follow each prompt, relative to the job file: images, and "
        "PDF documents of at most 20 pages.", example=["{{ item.shot }}"]),
    Key("system", text(), None, "The system prompt of every run: not a template, but the same for all, "
        "so that it is cached."),
    Key("system_file", _path, None, "The same from a file; at most one of the two.", ""),
    Key("tools", _names, [], "The [tools](#tools) that the model is offered, in this order."),
    Key("parallel_tools", choice(*get_args(ParallelTools)), "safe",
        "Which calls of one reply run together: neighbouring read-only ones, all, none."),
    Key("on_max_tokens", choice(*get_args(OnMaxTokens)), "continue", "What becomes of a reply that "
        "`limits.max_output_tokens` cut off: the model is asked to go on, or it is taken as it is."),
    Key("items", table_of(ITEMS), None, "[What the runs are about](#items).", "none: one run"),
    Key("workspace", table_of(WORKSPACE), None, "[Where the tools work](#workspace)."),
    Key("verify", _commands, [], "[Commands that decide whether a run has succeeded](#verifying)."),
    Key("on_failure", choice(*get_args(OnFailure)), "feedback", needs="verify", doc=
        "What a failed verification does: its output goes back to the model, or the run fails."),
    Key("verify_rounds", integer(1_000), 3, "How often the output goes back; then the run fails.",
        needs="verify"),
    Key("verify_timeout", duration(), "30m", "How long each of the commands may take.", needs="verify"),
    Key("output_schema", _result_schema, None,
        "[The result that each run has to submit](#structured-results): a JSON Schema of an object."),
    Key("output_schema_file", _path, None, "The same from a JSON file; at most one of the two.", ""),
    Key("permissions", table_of(PERMISSIONS), {}, "[Which tool calls may run, and which a person is "
        "asked about](#permissions).", "everything is denied"),
    Key("agents", tables_by_name(AGENT), {}, "[Types of sub-agents](sub-agents.md) that a run may start."),
    Key("coordinator", table_of(COORDINATOR), None,
        "[Splits each task](sub-agents.md#a-coordinator) among sub-agents."),
    Key("hooks", _hooks, {}, "[What runs on events of a run](#hooksevent), and may tighten its rules."),
    Key("mcp", tables_by_name(MCP), {}, "[MCP servers](mcp.md) whose tools the model is offered."),
    Key("mcp_from", _path, None, "A file of MCP servers as Claude Code has them, added to `[mcp.NAME]`.",
        example=".mcp.json"),
    Key("sandbox", table_of(SANDBOX), {}, "[What contains tool calls](sandbox.md)."),
    Key("priority", _priority(), "normal", "The job's [share of the slots](schedules.md#order-of-work), "
        "next to other jobs that have work: `low` is 1, `normal` 4 and `high` 16."),
    Key("max_concurrency", _count, None, "How many of the job's runs may be worked on at once.",
        "unlimited", example=4),
    Key("instructions", _instructions, False, "Whether the system prompt ends with `AGENTS.md` and "
        "`CLAUDE.md` of the workspace's top folder, as they are when the run begins. With `\"follow\"` a "
        "message gives their new text [when they change](#instructions-of-the-workspace)."),
    Key("limits", table_of(LIMITS), {}, "[When a run stops, and what the job may spend](#limits)."),
    Key("pilot", table_of(PILOT), None, "[How many items are worked first](costs.md#pilot).", "none"),
    Key("breaker", table_of(BREAKER), None, "[When the job pauses by itself](costs.md#breaker).", "none"),
    Key("notify", table_of(NOTIFY), None, "[What people are told of](notices.md), and how.", "nothing"),
    Key("not_before", _moment, None, "[When the first model call may begin](schedules.md#times).",
        "at once", example="22:00"),
    Key("window", _window, None, "[The part of each day](schedules.md#times) in which model calls may "
        "begin.", "the whole day", example="22:00-07:00 Europe/Berlin"),
    Key("finish_by", _moment, None, "[From then on no model call begins](schedules.md#times): runs wait "
        "until a person moves it.", "unlimited", example="07:00"),
    Key("lane", choice(*get_args(Lane)), "realtime", "[How calls reach the API](schedules.md#batches): one "
        "by one, or in Message Batches at half the price, whose replies may take hours."),
    Key("batch_linger", duration(), "60s", "How long a call waits for others that share its batch."),
    Key("context", table_of(CONTEXT), {}, "[How to shorten a long conversation](#context)."),
    Key("audit", table_of(AUDIT), {}, "[What is recorded beside the work](#audit)."),
    Key("retry", table_of(RETRY), {}, "[How long to try a model that does not answer](#retry)."),
    Key("model_options", table_of(MODEL_OPTIONS), {}, "[Further parameters of the API](#model_options)."),
), ((("prompt", "prompt_file"), "what each run is asked to do"), _SYSTEM, _RESULT))
CALL = Table("call", (
    Key("name", _script_text, needed="the name of a tool"), Key("input", table_of(_ANYTHING)),
))
ERROR = Table("error", (
    Key("kind", _script_text, needed='an error type of the API, such as "overloaded_error"'),
    Key("status", integer(599, 400)), Key("message", _script_text), Key("retry_after", _seconds),
))
REPLY = Table("reply", (
    Key("text", _script_text, None, "What the model says."),
    Key("thinking", _script_text, None, "What it thinks first."),
    Key("stop_reason", _script_text, None, "Why it stops.", '`"tool_use"` with tools, else `"end_turn"`'),
    Key("delay", _seconds, 0, "Seconds before it answers."),
    Key("tools", list_of(table_of(CALL), "calls"), [], "Its tool calls, each with `name` and `input`."),
    Key("usage", table_of(Table("usage", tuple(
        Key(field.name, integer(10**12, 0)) for field in fields(Usage)
    ))), None, "Any of " + ", ".join(f"`{field.name}`" for field in fields(Usage)) + ".", "counted"),
    Key("error", table_of(ERROR), None, "Each try of the call fails instead: `kind`, and "
        "if wanted `status`, `message` and `retry_after` (seconds)."),
))
TABLES = (TOP, ITEMS, WORKSPACE, PERMISSIONS, RULE, AGENT, AGENT_PERMISSIONS, AGENT_LIMITS, COORDINATOR,
          HOOK, MCP, SANDBOX, LIMITS, PILOT, PILOT_CONTINUE, BREAKER, NOTIFY, PROVIDER, CONTEXT, AUDIT,
          RETRY, REPLY)
# fmt: on


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, in draft 4, which editors' TOML plugins read."""
    return {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "title": "Job file of Runner",
        **schema_of(TOP),
        "definitions": {"rule": {"anyOf": [{"type": "string"}, schema_of(RULE)]}},
    }
