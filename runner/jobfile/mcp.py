"""The MCP servers that a job file names, and which of their tools the job has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from runner.core.conversation import Tool
from runner.core.mcp import (
    PREFIX,
    Choice,
    McpServer,
    Scope,
    chosen,
    is_named,
    is_server_name,
    usable,
    variables_in,
)
from runner.jobfile import values
from runner.jobfile.keys import MCP
from runner.jobfile.table import Node, Section
from runner.jobfile.values import BadValueError, kind, shown
from runner.settings import looks_secret

# Takes servers. Returns, by name, the tools of each, sorted, or why they cannot be told.
ListMcpTools = Callable[[Sequence[McpServer]], Mapping[str, tuple[Tool, ...] | str]]

_TRANSPORTS = ("stdio", "http", "streamable-http", "sse")
# The keys that a file may give: it may be a stranger's, and gets no trust and no way out of a sandbox.
_IN_A_FILE = ("command", "args", "env", "url", "headers")
_CREDENTIALS = ("oauth", "headersHelper")  # Claude Code's ways to get them


def read_servers(top: Section, folder: Path) -> tuple[tuple[McpServer, ...], list[str]]:
    """Return the servers of ``[mcp.NAME]`` and of the file that ``mcp_from`` names, sorted by name, and
    notes on what is not taken of them. A section adds to the server of the same name in the file, and
    wins. The file may be a stranger's: it may name a variable that looks secret only if the section
    does. ``folder`` is the job file's."""
    homes, notes = dict[str, Path](), list[str]()
    taken = top["mcp_from"] and top.at("mcp_from").attempt(_read_file, folder / top["mcp_from"])
    sections: dict[str, Section] = dict(top["mcp"])
    for name, entry in (taken or {}).items():
        own = sections.get(name)
        ours = own.written if own is not None else {}
        lost = [key for key in _CREDENTIALS if entry.pop(key, None) and "headers" not in ours]
        if lost:
            notes.append(
                f"{top['mcp_from']}: {shown(name)} has {' and '.join(lost)}, which Runner does not use: "
                f"give it credentials as headers in [mcp.{name}]"
            )
        written = {**entry, **ours}
        homes[name] = folder if "command" in ours else (folder / top["mcp_from"]).parent
        at = Node(("mcp_from", name), top.problems, {}) if own is None else own
        sections[name] = Section(MCP, written, at)
        for variable in sorted(filter(looks_secret, variables_in(written) - variables_in(ours))):
            at.note(
                f"{top['mcp_from']} gives this server ${{{variable}}}, which looks secret: if it may have "
                f"that, write the text that names it in [mcp.{name}] of the job file too"
            )
    scope: Scope = "job" if top["sandbox"]["mode"] == "off" else "run"
    servers = tuple(
        _server(sections[name], name, homes.get(name, folder), scope, is_required=_is_required(top))
        for name in sorted(sections)
    )
    return servers, notes


def _is_required(top: Section) -> bool:
    return top["sandbox"]["mode"] == "required" or top["sandbox"]["image"] is not None


def _server(
    section: Section, name: str, folder: Path, scope: Scope, *, is_required: bool
) -> McpServer:
    if not is_server_name(name):
        section.note(
            f"{shown(name)} cannot be a name: letters, digits, '-' and single '_', at most 32"
        )
    if (section["command"] is None) == (section["url"] is None) and not section.is_wrong():
        section.note("needs either a command or a url")
    if section["url"] is None:  # which mcp_from may give
        for key in ("headers", "type"):
            if section.written.get(key):
                section.note("does nothing without url; give that too", key)
    scope = section["scope"] or scope
    if section["url"] is not None:
        if scope == "run" and section["scope"] is not None:
            section.note("is for servers with a command: this one is reached over HTTP", "scope")
        scope = "job"
    elif scope == "job" and is_required:
        section.note('must be "run": this job requires a sandbox', "scope")
    return section.fill(McpServer, name=name, scope=scope, folder=str(folder))


def _read_file(path: Path) -> Mapping[str, dict[str, Any]]:
    """Return the servers of a file as Claude Code has it (.mcp.json), with the keys of ``[mcp.NAME]``
    and those of credentials."""
    data = values.read_json_file(path)
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        raise BadValueError(f'{path} must hold an object with "mcpServers"')
    found = {}
    for name, entry in servers.items():
        if not isinstance(entry, dict):
            raise BadValueError(f"{path}: {shown(name)} must be an object, not {kind(entry)}")
        if (transport := str(entry.get("type") or _TRANSPORTS[0])) not in _TRANSPORTS:
            raise BadValueError(
                f"{path}: {shown(name)} is of the type {shown(transport)}, and Runner speaks only "
                "stdio, http and sse: write those that the job needs as [mcp.NAME], without mcp_from"
            )
        taken = (*_IN_A_FILE, *_CREDENTIALS)
        found[name] = {key: entry[key] for key in taken if entry.get(key) is not None}
        if transport == "sse":
            found[name]["type"] = transport
    return found


def choose_tools(
    servers: Sequence[McpServer],
    listed: Mapping[str, tuple[Tool, ...] | str],
    names: Mapping[str, Node],
) -> tuple[tuple[Tool, ...], Choice, list[str]]:
    """Return the tools of the servers that the job has, its choice of those that a server lists later,
    and notes of tools that the API does not take. ``names`` of the key ``tools``, with their places,
    choose some of a server, in their order; of a server that is not mentioned there come all."""
    mentioned = {name: _server_of(name) for name in names}
    found = {
        each.name: usable(here, values.schema_problem)
        for each in servers
        if (here := listed.get(each.name)) is not None and not isinstance(here, str)
    }
    for name, at in names.items():
        if (server := mentioned[name]) not in listed:
            there = ", ".join(listed) or "none"
            at.note(f"the job has no MCP server called {shown(server)}; it has {there}")
        elif server in found:
            tools, refused = found[server]
            if name in refused:
                at.note(refused[name])
            elif not any(is_named([name], tool.name) for tool in tools):
                there = ", ".join(tool.name for tool in tools) or "none"
                at.note(f"the server has no such tool; it has {there}")
    notes = [
        f"left out: {shown(name)} {wrong}"
        for _, refused in found.values()
        for name, wrong in refused.items()
    ]
    others = (each.name for each in servers if each.name not in mentioned.values())
    choice = ((*names, *(f"{PREFIX}{name}" for name in others)),)
    return chosen(choice, chain.from_iterable(tools for tools, _ in found.values())), choice, notes


def _server_of(name: str) -> str:
    return name.removeprefix(PREFIX).partition("__")[0]
