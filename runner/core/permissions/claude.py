"""Takes the permission rules from a settings file of Claude Code.

Source: https://code.claude.com/docs/en/settings#permission-settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.core.permissions.rule import Effect, Rule
from runner.core.permissions.syntax import name_of, problem

_EFFECTS: tuple[Effect, ...] = ("deny", "ask", "allow")
_ELSEWHERE = {
    "defaultMode": "say 'mode' or 'default' in the job file",
    "additionalDirectories": "tools work in the job's workspace",
    "disableBypassPermissionsMode": "no job bypasses its rules",
}
_BESIDE = {
    "hooks": "Runner runs no hooks: what they would have refused needs deny rules",
    "sandbox": "Runner does not read it",
    "enabledMcpjsonServers": "Runner does not read it",
    "disabledMcpjsonServers": "Runner does not read it",
    "enableAllProjectMcpServers": "Runner does not read it",
}


def from_settings(
    data: Mapping[str, Any], origin: str, has_tool: Callable[[str], bool]
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """The rules of a settings file, denials first, and one line for each thing that was left out.

    Args:
        data: the file as parsed JSON.
        origin: the file's path, which the rules carry.
        has_tool: whether the job has a tool that a rule's text could concern.
    """
    permissions = data.get("permissions", {})
    if not isinstance(permissions, Mapping):
        return (), (f"{origin}: 'permissions' is not a table of rules",)
    rules: list[Rule] = []
    left_out: list[str] = []
    for effect in _EFFECTS:
        entries = permissions.get(effect, [])
        if not isinstance(entries, list):
            left_out.append(f"{origin}: permissions.{effect} is not a list")
            continue
        for text in entries:
            reason = _reason(text, has_tool)
            if reason is None:
                rules.append(Rule(effect, text, origin=origin))
            else:
                left_out.append(f"{origin}: permissions.{effect}: {reason}")
    return tuple(rules), (
        *left_out,
        *(f"{origin}: {line}" for line in _settings(data, permissions)),
    )


def _reason(text: Any, has_tool: Callable[[str], bool]) -> str | None:
    """Why a rule is left out; None when it is not."""
    if not isinstance(text, str):
        return f"{str(text)[:100]!r} is not a text"
    wrong = problem(text)
    if wrong is not None:
        return wrong
    if not has_tool(text):
        return f"the rule {text!r} is about {name_of(text)}, which this job does not have"
    return None


def _settings(data: Mapping[str, Any], permissions: Mapping[str, Any]) -> Iterator[str]:
    for key in permissions:
        if key not in _EFFECTS:
            shown = str(key)[:100]
            yield f"permissions.{shown}: {_ELSEWHERE.get(key, 'Runner does not know it')}"
    for key, why in _BESIDE.items():
        if key in data:
            yield f"{key}: {why}"
