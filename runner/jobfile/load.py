"""Load a job file: check all of it and look up everything that it names; create nothing."""

from __future__ import annotations

import os
import re
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from runner.core import agents
from runner.core.agents import AGENT_TOOL, SPLIT_TOOL
from runner.core.budget import Budget, Limits
from runner.core.context import Context
from runner.core.conversation import Tool
from runner.core.hooks import Hook, is_rule
from runner.core.mcp import PREFIX as MCP_PREFIX
from runner.core.mcp import Choice
from runner.core.media import Media
from runner.core.notices import Notify
from runner.core.pauses import Breaker, Pilot
from runner.core.prices import PriceList
from runner.core.rate_limits import Caps
from runner.core.sandbox import Sandbox, seems_to_reach
from runner.core.spec import Asking, JobSpec, NewRun, Patience, Submission
from runner.core.times import Times
from runner.core.workspace import (
    RESULT_TOOL,
    Asked,
    LookAtRepository,
    Verify,
    Workspace,
    result_tool,
)
from runner.errors import Problem, SpecError, UsageError
from runner.jobfile import values
from runner.jobfile.check import check, note_misfits
from runner.jobfile.items import (
    MOST_TEXTS_REPORTED,
    Keyed,
    note_taken_keys,
    read_items,
    render_texts,
)
from runner.jobfile.keys import MOST_NAME
from runner.jobfile.mcp import ListMcpTools, choose_tools, read_servers
from runner.jobfile.overrides import Overrides
from runner.jobfile.script import read_script
from runner.jobfile.table import Node, Section, with_lines
from runner.jobfile.values import BadValueError, is_url, kind, line_problem, shown, text_problem
from runner.permissions import Effect, Rule
from runner.permissions.claude_settings import ImportedRules, from_settings
from runner.permissions.examples import as_call
from runner.permissions.modes import rules_of as mode_rules
from runner.permissions.rules import (
    AgentPattern,
    ArgumentPattern,
    concerns,
    covers,
    name_of,
    parse,
    with_copies,
)
from runner.settings import user_home

# Takes the names under ``tools`` and the job file's folder, from which own tools are imported.
# Returns the tools in the order of the names, and (name, what is wrong with it) for each other name.
ResolveTools = Callable[[Sequence[str], Path], tuple[tuple[Tool, ...], tuple[tuple[str, str], ...]]]
# Takes names of functions and the job file's folder, from which they are imported. Returns, by name,
# each as the job stores it, and (name, what is wrong with it) for each other name.
ResolveHooks = Callable[[Sequence[str], Path], tuple[Mapping[str, str], Sequence[tuple[str, str]]]]

# A function that returns the image or PDF in a file, and raises ``UsageError``.
ReadMedia = Callable[[Path], Media]

# Takes a job and its runs. Returns why this host cannot work it, or why it cannot begin.
Preflight = Callable[[JobSpec, Sequence[NewRun]], Iterable[Problem]]

# Deny rules are stored and listed first, because they are checked first.
EFFECTS: tuple[Effect, ...] = ("deny", "ask", "allow")
_IS_RESULT_TOOL = f"{RESULT_TOOL} is how results of output_schema are submitted: rename {{}} tool"
_MOST_MEDIA_BYTES = 500_000_000  # of all items: they are in memory together
_TOML_POSITION = re.compile(r" \(at line (\d+), column (\d+)\)$")


def load(
    path: Path,
    *,
    resolve_tools: ResolveTools,
    resolve_hooks: ResolveHooks,
    list_mcp_tools: ListMcpTools,
    read_media: ReadMedia,
    look_at_repository: LookAtRepository,
    prices: PriceList,
    preflight: Preflight | None = None,
    overrides: Overrides | None = None,
) -> Submission:
    """Read a job file and everything that it names: paths are relative to its folder.
    ``look_at_repository`` says what a repository holds and what is wrong with it; ``overrides`` change
    the file for this submission. Raises ``SpecError`` with every problem of the file, each with its
    place and line, or with the option that has it."""
    path, overrides = path.absolute(), overrides or Overrides()
    text, data = _read_toml(path)
    ill_typed: list[Problem] = []
    top = check(overrides.changed(data, ill_typed))
    top.problems.extend(ill_typed)
    name = top["name"] or path.stem
    if top["name"] is None and (problem := line_problem(path.stem, MOST_NAME)):
        top.note(f"is missing, and the file's own name {problem}", "name")
    job = _Job(top, name, path, resolve_tools, list_mcp_tools)
    source_notes = job.find_workspace(look_at_repository)
    keyed = overrides.chosen(job.items(), job.templates, top.problems)
    runs, media = job.runs(keyed, read_media)
    spec, notes = job.spec([key for key, _ in keyed], resolve_hooks)
    note_misfits(top, spec.agents, prices)
    if preflight is not None and not top.at("model").is_wrong() | top.at("provider").is_wrong():
        top.problems.extend(preflight(spec, runs))
    try:
        spec.times.at_submission(time.time())
    except UsageError as error:
        top.note(str(error).removeprefix("finish_by: "), "finish_by")
    if top.problems:
        raise SpecError(str(path), with_lines(overrides.placed(top.problems), text))
    spec = replace(spec, options=overrides.options)
    if spec.sandbox is not None:
        spec = replace(spec, sandbox=replace(spec.sandbox, file=str(path)))
    notes = (*notes, *source_notes, *job.mcp_notes, *_network_notes(top, spec))
    examples = tuple(_examples(top["permissions"]))
    return Submission(str(path), text, spec, runs, notes, examples, media, source_notes)


def _sandbox(section: Section) -> Sandbox:
    for key in ("mode", "caches", "writable_caches") if section["image"] else ():
        if section[key] == "off" or (key != "mode" and section[key]):
            section.note("does not go with image: leave one of them out", key)
    network = section["network"]
    return section.fill(Sandbox, network=None if network == "on" else network)


def _notify(section: Section | None) -> Notify | None:
    if section is None:
        return None
    found = section.fill(Notify)
    if not found.channels and not section.is_wrong():
        section.note("tells nobody: give command, webhook or desktop")
    return found


def _pilot(section: Section | None) -> Pilot | None:
    if section is None:
        return None
    goes_on = section["continue"]
    return section.fill(Pilot, **(goes_on.values if goes_on else {}))


def _examples(permissions: Section) -> Iterator[str]:
    """Yield the calls that rules without problems name as examples, once each."""
    rules = [rule for effect in EFFECTS for rule in permissions.written.get(effect, ())]
    told = [rule for rule in rules if isinstance(rule, Mapping)]
    yield from dict.fromkeys(
        as_call(example, rule["rule"])
        for rule in told
        for key in ("match", "not_match")
        for example in rule.get(key, ())
    )


def _network_notes(top: Section, spec: JobSpec) -> Iterator[str]:
    """Yield a note if calls of the job seem to need the network, and its file says nothing of it."""
    if "network" in top["sandbox"] or top["sandbox"]["mode"] == "off":
        return
    texts = [rule.text for rule in spec.rules if rule.effect == "allow"]
    allowed = [text[5:-1] for text in texts if text.startswith("Bash(")]
    needing = [text for text in (*top["verify"], *allowed) if seems_to_reach(text)]
    if needing:
        named = ", ".join(shown(text) for text in needing[:3]) + (" …" if needing[3:] else "")
        yield (
            f"calls have no network, and {named} may need it: list the hosts in [sandbox], as in "
            'network = ["example.com"], or say network = "on"'
        )


def _read_toml(path: Path) -> tuple[str, Mapping[str, Any]]:
    def broken(message: str, line: int | None = None) -> SpecError:
        return SpecError(str(path), (Problem("", message, line),))

    try:
        text = values.read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        near = ""
        if isinstance(error, FileNotFoundError):
            there = sorted(each.name for each in path.parent.glob("*.toml"))
            close = get_close_matches(path.with_suffix(".toml").name, there, n=1, cutoff=0.7)
            near = (
                f"; did you mean {close[0]!a}?" if close else "; `runner init` writes a first one"
            )
        raise broken(f"cannot read this job file: {error.strerror or error}{near}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise broken("is not UTF-8 text, which TOML files are", line) from error
    try:
        return text, tomllib.loads(text)
    except RecursionError as error:
        raise broken("is not TOML that can be read: nested too deeply") from error
    except ValueError as error:
        position = _TOML_POSITION.search(str(error))
        words = _TOML_POSITION.sub("", str(error))
        if position is None:
            raise broken(f"is not valid TOML: {words}") from error
        message = f"is not valid TOML at column {position[2]}: {words}"
        raise broken(message, int(position[1])) from error


def _existing_folder(path: Path) -> Path:
    try:
        path = path.resolve()
        if not path.is_dir():
            wrong = "is not a folder" if path.exists() else "does not exist"
            raise BadValueError(f"{path} {wrong}")
    except (OSError, RuntimeError) as error:
        raise BadValueError(f"cannot look at {path}: {error}") from error
    if problem := text_problem(str(path)):
        raise BadValueError(f"the folder's whole path {problem}")
    return path


class _Job:
    """Looks up everything that a checked job file names, and notes problems."""

    def __init__(
        self,
        top: Section,
        name: str,
        file: Path,
        resolve_tools: ResolveTools,
        list_mcp_tools: ListMcpTools,
    ) -> None:
        self.top = top
        self.name = name
        self.file = file
        self.folder = file.parent
        self.workspace: Workspace | None = None  # None also with a problem
        # Where items.glob looks: in a folder, or among these paths of files; None with a problem.
        self.root: Path | tuple[str, ...] | None = self.folder
        self.types = {
            name: agents.AgentType(name, section["description"] or "", snapshot=section["snapshot"])
            for name, section in top["agents"].items()
        }
        coordinator = top["coordinator"]
        self.coordinator = coordinator and coordinator.fill(agents.Coordinator)
        self.prompt: str | None = self._read(top, "prompt")
        self.named: dict[str, Node] = {}  # tools as they are written, with their places
        for at, name in top["tools"]:
            self.named.setdefault(name, at)
        self.mcp, self.mcp_notes = read_servers(top, self.folder)
        self.mcp_choice: Choice = ()
        self.silent: list[str] = []  # prefixes of the tools of servers that cannot be used
        self.tools = (*self._find_tools(resolve_tools), *self._find_mcp_tools(list_mcp_tools))
        found = {tool.name for tool in self.tools}
        self.listed = sorted(found.union(map(_own_name, self._named_otherwise())))

    def find_workspace(self, look_at: LookAtRepository) -> tuple[str, ...]:
        """Look at the folder or repository of ``[workspace]``, and return notes for whoever submits."""
        section = self.top["workspace"]
        notes: tuple[str, ...] = ()
        found: Mapping[str, Any] | None = {}
        if section is None:
            return ()
        if section.at("mode").is_wrong():
            self.root = None  # nobody knows where items.glob was to look
            return ()
        if section["mode"] in ("shared", "copy") and section["path"] is None:
            return ()
        if section["mode"] == "git":
            found, notes = self._find_repository(section, look_at)
        elif section["mode"] != "none":
            folder = self.folder / section["path"]
            self.root = section.at("path").attempt(_existing_folder, folder)
            found = {"path": str(self.root)} if self.root else None
        if found is not None:
            rules = tuple(rule for _, rule in section["external"])
            given = {"path": None, "base": section["base"] or "HEAD", "external": rules, **found}
            if section["mode"] in ("git", "copy") and found.get("path"):
                written = os.path.normpath(self.folder / (section["path"] or section["repo"]))
                given["other_name"] = None if written == found["path"] else written
            if section["mode"] != "copy":
                given["ignore"] = ()
            workspace = self.workspace = section.fill(Workspace, **given)
            # Its rules hold in copies too.
            self.workspace = replace(workspace, external=self._in_copies(rules))
        return notes

    def _find_repository(
        self, section: Section, look_at: LookAtRepository
    ) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
        """Return what a repository gives a workspace, None with a problem, and notes."""

        def absolute(place: str) -> str:
            return place if is_url(place) else os.path.normpath(self.folder / place)

        self.root = None
        if section["repo"] is None or section.is_wrong():
            return None, ()
        asked = Asked(
            job=self.name,
            source=absolute(section["repo"]),
            is_url=is_url(section["repo"]),
            base=section["base"],
            uncommitted=section["uncommitted"],
            remote=section["remote"] and absolute(section["remote"]),
            accepted=frozenset(section["accept"]),
            file=str(self.file),
        )
        found = look_at(asked)
        for key, message in found.problems:
            section.note(message, key)
        if found.path is not None and (wrong := text_problem(found.path)):
            section.note(f"the folder's whole path {wrong}", "repo")
        if section.is_wrong():
            return None, ()
        self.root = found.files
        url = asked.source if asked.is_url else None
        place = {"path": found.path, "url": url, "remote": asked.remote, "commit": found.commit}
        return place, found.notes

    def spec(
        self, keys: Sequence[str], resolve_hooks: ResolveHooks
    ) -> tuple[JobSpec, tuple[str, ...]]:
        """Return the spec with the items of these keys, and notes on its settings file."""
        top, script = self.top, None
        rules, notes = self._rules()
        if top["provider"]["name"] == "scripted" and top["script"]:
            at = top.at("script")
            script = read_script(self.folder / top["script"], at, keys, list(self.types))
        limits, asking = top["limits"], top["permissions"]
        if asking["trust"] and top["sandbox"]["mode"] != "required":
            asking.note('needs the sandbox: give mode = "required" in [sandbox] too', "trust")
        verify = Verify(
            top["verify"], top["on_failure"], top["verify_rounds"], top["verify_timeout"]
        )
        spec = top.fill(
            JobSpec,
            name=self.name,
            provider=top["provider"]["name"],
            region=top["provider"]["region"],
            project=top["provider"]["project"],
            caps=top["provider"].fill(Caps),
            system=self._read(top, "system"),
            tools=(*self.tools, *self._ending_tools()),
            rules=rules,
            asking=asking.fill(Asking, timeout=asking["ask_timeout"]),
            limits=limits.fill(Limits),
            budget=Budget(limits["budget_usd"], limits["budget_tokens"]),
            context=top["context"].fill(Context),
            retry=top["retry"].fill(Patience),
            times=top.fill(Times),
            model_options=top["model_options"].written,
            verify=verify if verify.commands else None,
            workspace=self.workspace,
            script=script,
            agents=self._agents(),
            coordinator=self.coordinator,
            hooks=self._hooks(resolve_hooks),
            mcp=self.mcp,
            mcp_choice=self.mcp_choice,
            pilot=_pilot(top["pilot"]),
            breaker=top["breaker"] and top["breaker"].fill(Breaker),
            notify=_notify(top["notify"]),
            sandbox=_sandbox(top["sandbox"]),
            record_reads=top["audit"]["record_reads"],
        )
        return spec, notes

    def _find_tools(self, resolve_tools: ResolveTools) -> tuple[Tool, ...]:
        names = self._named_otherwise()
        tools, unknown = resolve_tools([name for name in names if name != AGENT_TOOL], self.folder)
        for name, message in unknown:
            self.named[name].note(message)
        if AGENT_TOOL in names and self.types:
            at = names.index(AGENT_TOOL)
            agent = agents.agent_tool(list(self.types.values()), self.top["limits"].fill(Limits))
            tools = (*tools[:at], agent, *tools[at:])
        for name, number in Counter(tool.name for tool in tools).items():
            if number > 1:
                message = f"{number} tools are called {shown(name)}; the model could not choose"
                self.top.note(message, "tools")
        return tools

    def _find_mcp_tools(self, list_mcp_tools: ListMcpTools) -> tuple[Tool, ...]:
        """Return the tools of the job's MCP servers. No server is started for a file with problems."""
        names = {name: at for name, at in self.named.items() if name.startswith(MCP_PREFIX)}
        self.silent = [f"{MCP_PREFIX}{server.name}" for server in self.mcp]
        if self.top.problems or not (self.mcp or names):
            return ()
        listed = list_mcp_tools(self.mcp) if self.mcp else {}
        for server, why in listed.items():
            if isinstance(why, str):
                written = server in self.top["mcp"]
                at = self.top.at("mcp", server) if written else self.top.at("mcp_from", server)
                at.note(f"the server cannot be used: {why}")
        self.silent = [f"{MCP_PREFIX}{name}" for name in listed if isinstance(listed[name], str)]
        tools, self.mcp_choice, notes = choose_tools(self.mcp, listed, names)
        self.mcp_notes += notes
        return tools

    def _named_otherwise(self) -> list[str]:
        """Return the names under ``tools`` that are of no MCP server."""
        return [name for name in self.named if not name.startswith(MCP_PREFIX)]

    def _ending_tools(self) -> Iterator[Tool]:
        """Yield the tool that takes the job's result, and the one that splits a coordinator's task."""
        own_names = {_own_name(name): at for name, at in self.named.items()}
        if RESULT_TOOL in own_names and _has_schema(self.top):
            own_names[RESULT_TOOL].note(_IS_RESULT_TOOL.format("this"))
        if schema := self._read(self.top, "output_schema", _read_schema):
            yield result_tool(schema)
        if self.coordinator and self.coordinator.agent in self.types:
            yield agents.split_tool(self.coordinator, self.types[self.coordinator.agent])

    def items(self) -> list[Keyed]:
        """Return the items, each with the key that names its run; without items the job's name."""
        keyed: list[Keyed] = [(self.name, None)]
        at = self.top.at("name")
        if "items" in self.top:
            section, at = self.top["items"], self.top.at("items")
            if at.is_wrong() or ("glob" in section and self.root is None):
                return []
            at = at.at(*section.written)
            keyed = read_items(section, self.folder, self.root or ())
        if not at.is_wrong():
            scripted = self.top["provider"]["name"] == "scripted"
            note_taken_keys(at, keyed, scripted=scripted, has_agents=bool(self.types))
        return keyed

    @property
    def templates(self) -> list[str]:
        """The texts of the templates that can use an item."""
        workspace = self.top["workspace"]
        texts = (self.prompt, workspace and workspace["commit_message"], *self.top["images"])
        return [text for text in texts if text]

    def runs(
        self, keyed: Sequence[Keyed], read_media: ReadMedia
    ) -> tuple[tuple[NewRun, ...], tuple[Media, ...]]:
        """Return the runs, with rendered templates and images, and all images; empty with problems."""
        top, workspace = self.top, self.top["workspace"]
        render = partial(render_texts, keyed=keyed, has_items="items" in top)
        at = top.at("prompt_file" if "prompt_file" in top else "prompt")
        prompts = render(self.prompt, at)
        messages: Sequence[str] = [""] * len(keyed)
        if workspace and (message := workspace["commit_message"]):
            messages = render(message, workspace.at("commit_message"), what="commit message")
        at = top.at("images")
        paths = [render(text, at, what="path of an image") for text in top["images"]]
        if top.problems:
            return (), ()
        # By path: the folder that its template names before the first placeholder.
        folders = {
            path: self._placed(f"{text.partition('{')[0]}_").parent
            for text, some in zip(top["images"], paths, strict=True)
            for path in some
        }
        media = self._media(folders, read_media)
        if top.problems:
            return (), ()
        of_items = zip(*paths, strict=True) if paths else [()] * len(keyed)
        runs = tuple(
            NewRun(key, item, prompt, message, tuple(media[path].block() for path in attached))
            for (key, item), prompt, message, attached in zip(
                keyed, prompts, messages, of_items, strict=True
            )
        )
        return runs, tuple(media.values())

    def _placed(self, path: str) -> Path:
        return Path(os.path.normpath((self.folder / path).absolute()))

    def _media(self, folders: Mapping[str, Path], read_media: ReadMedia) -> dict[str, Media]:
        """Return the media of files by path, without files that have a problem. An item cannot name a file
        outside the folder of its path."""
        at, found, size = self.top.at("images"), dict[str, Media](), 0

        def read(path: str) -> Media:
            place, folder = self._placed(path), folders[path]
            if not place.is_relative_to(folder):
                raise BadValueError(
                    f"{shown(path)} leads out of {folder}: begin the template with the folder of the files"
                )
            try:
                return read_media(place)
            except UsageError as error:
                raise BadValueError(str(error)) from error

        with at.noting_at_most(MOST_TEXTS_REPORTED, "and {} more files"):
            for path in folders:
                if (media := at.attempt(read, path)) is not None:
                    found[path], size = media, size + len(media.data)
                if size > _MOST_MEDIA_BYTES:
                    at.note(
                        f"the files have more than {_MOST_MEDIA_BYTES:,} bytes: make several jobs"
                    )
                    break
        return found

    def _read(
        self, section: Section, key: str, read_file: Callable[[Path], Any] = values.read_text
    ) -> Any:
        """Return the value of a key, or the content of the file that the key ``KEY_file`` names."""
        file = section[f"{key}_file"]
        if file is None:
            return section[key]
        return section.at(f"{key}_file").attempt(read_file, self.folder / file)

    def _rules(self) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
        """Return the rules that the job begins with, and notes of what its settings file's lack."""
        section = self.top["permissions"]
        rules = self._rules_of(section)
        notes: tuple[str, ...] = ()
        if section["from"] is not None:
            at = section.at("from")
            if taken := at.attempt(_read_settings, self.folder / section["from"], self.listed):
                rules += taken.rules
                notes = (*taken.doubts, *(f"left out: {line}" for line in taken.left_out))
                for line in taken.problems:
                    at.note(line)
        if section["mode"] is not None:
            rules += mode_rules(section["mode"], [tool.name for tool in self.tools])
        workspace = self.top["workspace"]
        self._check_rules(workspace["external"] if workspace else ())
        return self._in_copies(rules), notes

    def _rules_of(self, permissions: Section) -> list[Rule]:
        placed = [pair for effect in EFFECTS for pair in permissions[effect]]
        self._check_rules(placed)
        return [rule for _, rule in placed]

    def _check_rules(self, rules: Iterable[tuple[Node, Rule]]) -> None:
        """Note each rule that is about no tool or type of sub-agent of the job."""

        def said(what: str, name: str, there: Collection[str]) -> str:
            near = get_close_matches(name, there, 1, 0.8)
            has = f"did you mean {near[0]}?" if near else f"it has {', '.join(there) or 'none'}"
            return f"this job has no {what} {shown(name)}; {has}"

        if self._lacks_tools_by_mistake():
            return

        for node, rule in rules:
            specifier, name = parse(rule.text).specifier, name_of(rule.text)
            if name.startswith(tuple(self.silent)) or (name == f"{MCP_PREFIX}*" and self.silent):
                continue
            if not any(concerns(rule.text, tool) for tool in self.listed):
                node.note(said("tool", name_of(rule.text), self.listed))
            elif isinstance(specifier, AgentPattern) and specifier.agent_type not in self.types:
                node.note(said("agent type", specifier.agent_type, self.types))
            elif isinstance(specifier, ArgumentPattern):
                tools = (tool for tool in self.tools if covers(name, tool.name))
                there = {key for tool in tools for key in tool.input_schema.get("properties", ())}
                if there and specifier.key not in there:
                    node.note(said(f"tool {name} with the argument", specifier.key, sorted(there)))

    def _lacks_tools_by_mistake(self) -> bool:
        """True if a problem with ``tools``, or a key that could be meant for it, is noted already."""
        top = self.top
        unknown = top.written.keys() - set(top.table.names)
        is_misspelled = "tools" not in top and get_close_matches("tools", unknown, 1)
        return bool(is_misspelled) or any(each.place == "tools" for each in top.problems)

    def _in_copies(self, rules: Iterable[Rule]) -> tuple[Rule, ...]:
        """Return the rules, with rules about the workspace's folder rewritten for a run's copy."""
        folders = self.workspace.copied if self.workspace is not None else ()
        return tuple(with_copies(tuple(rules), folders, user_home()))

    def _agents(self) -> tuple[agents.AgentType, ...]:
        if AGENT_TOOL in self.named and not self.types:
            message = f"{AGENT_TOOL} has nothing to start: add a section [agents.NAME]"
            self.named[AGENT_TOOL].note(message)
        if self.coordinator and any(tool.name == SPLIT_TOOL for tool in self.tools):
            message = f"{SPLIT_TOOL} is how a coordinator splits its task: rename this tool"
            self.top.note(message, "tools")
        return tuple(self._agent(name, each) for name, each in self.top["agents"].items())

    def _agent(self, name: str, section: Section) -> agents.AgentType:
        is_coordinated = self.coordinator and self.coordinator.agent == name
        if AGENT_TOOL not in self.named and not is_coordinated:
            section.note(
                f'nothing starts it: list "{AGENT_TOOL}" in tools, or name it as coordinator.agent'
            )
        if _has_schema(section) and any(tool.name == RESULT_TOOL for tool in self.tools):
            section.note(_IS_RESULT_TOOL.format("the"), "output_schema")
        rules = [
            replace(rule, origin=section.place) for rule in self._rules_of(section["permissions"])
        ]
        return section.fill(
            agents.AgentType,
            name=name,
            description=self.types[name].description,
            system=self._read(section, "system"),
            tools=self._tools_of(section),
            rules=self._in_copies(rules),
            result_schema=self._read(section, "output_schema", _read_schema),
            **section["limits"].values,
        )

    def _tools_of(self, section: Section) -> tuple[str, ...] | None:
        """Return the names of an agent's tools, and note the names that the job lacks."""
        if section["tools"] is None:
            return None
        names: dict[str, None] = {}
        for at, written in section["tools"]:
            if written.startswith(MCP_PREFIX):
                names[written] = None  # a tool that the server lists later may be of this name too
                is_there = any(covers(written, tool.name) for tool in self.tools)
                if not is_there and not written.startswith(tuple(self.silent)):
                    at.note(f"{shown(written)} is not a tool of this job's MCP servers")
                continue
            name = _own_name(written) if written in self.named else written
            if name not in map(_own_name, self.named):
                there = ", ".join(tool.name for tool in self.tools) or "none"
                at.note(f"{shown(written)} is not a tool of this job, which has {there}")
            elif name in names and not at.is_wrong():
                at.note(f"{shown(written)} is listed twice")
            names[name] = None
        return tuple(names)

    def _hooks(self, resolve_hooks: ResolveHooks) -> tuple[Hook, ...]:
        written = [
            (at, section, section.fill(Hook, event=event))
            for event, sections in self.top["hooks"].items()
            for at, section in sections
        ]
        names = dict.fromkeys(hook.function for *_, hook in written if hook.function)
        found, unknown = resolve_hooks(tuple(names), self.folder) if names else ({}, ())
        for name, message in unknown:
            places = {at.place: at for at, _, hook in written if hook.function == name}
            for at in places.values():
                at.note(message, *(() if "[" in at.place.split(".")[0] else ("function",)))
        hooks = []
        for at, section, hook in written:
            matcher, condition = (
                self._matcher(at.at(name), section[name]) for name in ("matcher", "if")
            )
            function = hook.function and found.get(hook.function)
            hooks.append(replace(hook, matcher=matcher, condition=condition, function=function))
        return tuple(hooks)

    def _matcher(self, at: Node, groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return the matchers of a hook, and note each rule that is about no tool of the job. A list such
        as ``Edit|MultiEdit``, written for Claude Code, may name tools that the job lacks if it has one."""
        found: list[str] = []
        for group in groups:
            known = [text for text in group if any(concerns(text, tool) for tool in self.listed)]
            found += known if known and len(group) > 1 else group
        rules = [Rule("ask", text) for text in found if is_rule(text)]
        self._check_rules((at, rule) for rule in rules)
        patterns = (text for text in found if not is_rule(text))
        return (*(rule.text for rule in self._in_copies(rules)), *patterns)


def _has_schema(section: Section) -> bool:
    return "output_schema" in section or "output_schema_file" in section


def _own_name(written: str) -> str:
    """Return the name of a tool; of ``package.module:function`` the function's."""
    return written.rpartition(":")[2]


def _read_schema(path: Path) -> Mapping[str, Any]:
    schema = values.read_json_file(path)
    if wrong := values.schema_problem(schema):
        raise BadValueError(f"{path} {wrong}")
    return dict(schema)


def _read_settings(path: Path, tools: Sequence[str]) -> ImportedRules:
    """Return a Claude Code settings file's rules about these tools. Raises ``BadValueError``."""
    # Absolute, so that no file can pass its rules off as a person's answers by its name.
    origin = str(path.absolute())
    if wrong := line_problem(origin, 4_096):
        raise BadValueError(f"the file's whole path {wrong}")
    data = values.read_json_file(path, once=True)
    if not isinstance(data, dict):
        raise BadValueError(f"{path} must hold an object, not {kind(data)}")
    return from_settings(data, origin, tools)
