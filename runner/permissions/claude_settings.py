"""Permission rules from a settings file of Claude Code.

Source: https://code.claude.com/docs/en/settings#permission-settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from runner.permissions.rules import concerns, is_name, name_of, problem
from runner.permissions.values import Effect, Rule

_EFFECTS: tuple[Effect, ...] = ("deny", "ask", "allow")
_ELSEWHERE = {
    "defaultMode": "say 'mode' or 'default' in the job file",
    "additionalDirectories": "tools work in the job's workspace",
    "disableBypassPermissionsMode": "no job bypasses its rules",
}
# A colon after a blank is no prefix, and no parameter has a name in a rule about a command.
_PREFIX_AFTER_BLANK = re.compile(r"Bash\((.*\S)\s+:\*\)")
_NAMED_PARAMETER = re.compile(r"(\w+)\((?:command|file_path|path|url):([^*].*)\)")
_BESIDE = {
    "env": "set variables in the environment of the worker",
    "model": "say 'model' in the job file",
    "hooks": "Runner runs only the job file's hooks: write hooks that refuse calls there",
    "sandbox": "Runner does not read it",
    "enabledMcpjsonServers": "Runner does not read it",
    "disabledMcpjsonServers": "Runner does not read it",
    "enableAllProjectMcpServers": "Runner does not read it",
}


@dataclass(frozen=True, slots=True)
class ImportedRules:
    rules: tuple[Rule, ...]  # denials first
    # One line for each skipped part; none would deny or ask about a call of the job.
    left_out: tuple[str, ...]
    # One line for each rule that is taken, or key that is not, and most likely means something else.
    doubts: tuple[str, ...]
    # Why the file cannot be used: its denials are unknown.
    problems: tuple[str, ...]


def from_settings(data: Mapping[str, Any], origin: str, tools: Sequence[str]) -> ImportedRules:
    """Return the rules of a settings file, parsed from its JSON. They carry ``origin``, the file's
    path. ``tools`` are the names of the job's tools."""
    permissions = data.get("permissions", {})
    if not isinstance(permissions, Mapping):
        return ImportedRules((), (), (), (f"{origin}: 'permissions' is not a table of rules",))
    rules: list[Rule] = []
    left_out: list[str] = []
    others: list[str] = []  # settings that are not rules
    problems: list[str] = []
    doubts = [
        f"{origin}: {key[:100]!r} holds no rules: did you mean 'permissions'?"
        for key in map(str, data)
        if key != "permissions" and get_close_matches(key.lower(), ["permissions"], cutoff=0.8)
    ]
    for key in map(str, permissions):
        meant = key.strip().lower()
        if meant not in _EFFECTS:
            why = _ELSEWHERE.get(key, "Runner does not know it")
            others.append(f"{origin}: permissions.{key[:100]}: {why}")
        elif key != meant:
            problems.append(f"{origin}: permissions.{key!r}: write {meant!r}")
    others += [f"{origin}: {key}: {why}" for key, why in _BESIDE.items() if key in data]
    for effect in _EFFECTS:
        at = f"{origin}: permissions.{effect}"
        entries = permissions.get(effect, [])
        if not isinstance(entries, list):
            problems.append(f"{at} is not a list")
            continue
        for text in entries:
            if not isinstance(text, str):
                problems.append(f"{at}: {str(text)[:100]!r} is not a text")
            elif (reason := _reason(effect, text, tools)) is None:
                rules.append(Rule(effect, text, origin=origin))
                if likely := likely_meaning(text):
                    doubts.append(f"{at}: {text!r} matches no call: did you mean {likely!r}?")
            elif effect == "allow" or not _may_concern(text, tools):
                left_out.append(f"{at}: {reason}")
            else:
                problems.append(f"{at}: {reason}")
    return ImportedRules(tuple(rules), (*left_out, *others), tuple(doubts), tuple(problems))


def likely_meaning(text: str) -> str | None:
    """Return the rule that was most likely meant by one that matches no call; None for others."""
    if found := _PREFIX_AFTER_BLANK.fullmatch(text):
        return f"Bash({found[1]}:*)"
    if found := _NAMED_PARAMETER.fullmatch(text):
        return f"{found[1]}({found[2]})"
    return None


def _reason(effect: Effect, text: str, tools: Sequence[str]) -> str | None:
    wrong = problem(text, effect)
    if wrong is None and not any(concerns(text, tool) for tool in tools):
        return f"the rule {text!r} is about {name_of(text)}, which this job does not have"
    return wrong


def _may_concern(text: str, tools: Sequence[str]) -> bool:
    """True if a rule may be meant for a tool of the job, in any case of its letters."""
    name = name_of(text)
    return not is_name(name) or any(
        concerns(name, tool) or concerns(name.capitalize(), tool) or name.lower() == tool.lower()
        for tool in tools
    )
