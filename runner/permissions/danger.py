"""The danger that a call looks like: people see the worst denial first. It decides nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runner.permissions.decisions import Policy, evaluate_each
from runner.permissions.examples import context_of
from runner.permissions.modes import DANGERS, rules_of
from runner.permissions.rules import WRITING
from runner.permissions.values import Request

_MODE = Policy(rules_of("workspace_write", ("Bash",)))
_LEVELS = {why: level for level, why in enumerate(reversed(DANGERS), 4)}
_SECRET = re.compile(r"\.env|secret|credential|password|id_(rsa|ed25519)|\.ssh|\.aws|\.netrc", re.I)


def danger_of(tool: str, arguments: Mapping[str, Any]) -> tuple[int, str]:
    """Return how dangerous a call looks, higher is worse, and what it does, in words; empty where
    nothing more than its tool is known."""
    text = str(arguments.get("command") or arguments.get("file_path") or "")
    found = (0, "")
    if tool == "Bash":
        request = Request(tool, arguments, context_of(tool, arguments))
        rules = (part.rule for _, d in evaluate_each(_MODE, request) for part in d.matched_rules)
        found = max(((_LEVELS.get(rule.why, 2), rule.why) for rule in rules), default=(2, ""))
    elif tool in WRITING:
        found = (2, "")
    if found[0] <= 2 and _SECRET.search(text):
        return 3, "it is about secrets"
    return found
