"""Calls in job files and on the command line: ``Bash(git push -f)``."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Policy, evaluate, evaluate_each, may_touch
from runner.permissions.rules import READING, WRITING, covers, name_of, quoted
from runner.permissions.values import Request, ResolvedPath, Rule, ToolContext

_CALL = re.compile(r"\s*([A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?:\((.*)\)\s*)?", re.DOTALL)
_WORKSPACE, _HOME = "/workspace", "/home/user"  # nothing is looked up there


def call_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return the tool and the input of a call written as ``Tool(argument)``. Raises ValueError if
    the text has another form or no argument."""
    found = _CALL.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{quoted(text, 100)} is not a call: write a tool and its input, as in Bash(ls -l)"
        )
    tool, what = found.group(1), found.group(2) or ""
    if tool in ("Grep", "Glob"):
        return tool, {"path": what} if what else {}
    if tool not in ("Read", "Edit", "Write", "Bash", "WebFetch", "Agent"):
        key, colon, text = what.partition(":")
        return tool, {key.strip(): text} if colon else {}
    if not what.strip():
        raise ValueError(f"{quoted(text, 100)} does not say what {tool} works on: write {tool}(…)")
    if tool == "Bash":
        return tool, {"command": what}
    if tool == "WebFetch":
        is_host = what.startswith("domain:")
        return tool, {"url": f"https://{what.removeprefix('domain:')}/" if is_host else what}
    return tool, {"agent_type" if tool == "Agent" else "file_path": what}


def as_call(example: str, rule: str) -> str:
    """Return an example of a rule as a call; for a rule of Bash it may be the bare command."""
    is_bare = covers(name_of(rule), "Bash") and not example.startswith("Bash(")
    return f"Bash({example})" if is_bare else example


def matches(rule: Rule, example: str) -> bool:
    """True if the rule alone decides the example (a call, or for a rule of Bash the bare command).
    Paths count as written: relative ones are in the workspace, without symlinks. Raises ValueError
    if the example is not a call."""
    tool, arguments = call_of(as_call(example, rule.text))
    policy, context = Policy((rule,)), context_of(tool, arguments)
    if tool in READING or tool in WRITING:
        places = context.places.values()
        decisions = [may_touch(policy, tool, place, context) for place in places]
    elif rule.effect == "allow":  # all of the call must be allowed, and any part denies or asks
        decisions = [evaluate(policy, Request(tool, arguments, context))]
    else:
        each = evaluate_each(policy, Request(tool, arguments, context))
        decisions = [decision for _, decision in each]
    return any(decision.matched_rules for decision in decisions)


def context_of(tool: str, arguments: Mapping[str, Any]) -> ToolContext:
    """Return the surroundings of an example's call, in which paths count as written."""
    places = {path: _place(path) for path in paths_of(tool, arguments)}
    return ToolContext(_WORKSPACE, None, _HOME, places)


def _place(path: str) -> ResolvedPath:
    """Return where a path of an example leads, ``//abs`` and ``~/home`` as in rules."""
    if path == "~" or path.startswith("~/"):
        path = _HOME + path[1:]
    named = posixpath.normpath(posixpath.join(_WORKSPACE, path))
    named = "/" + named.lstrip("/")
    return ResolvedPath(named, named)
