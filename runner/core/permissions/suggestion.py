"""What a question is about, so that equal ones can be answered together, and the rule that would
answer it for good."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from runner.core.permissions.policy import Policy, evaluate
from runner.core.permissions.request import Request, paths_of
from runner.core.permissions.rule import Rule
from runner.core.permissions.shell import analyse

_MOST_KEY_CHARACTERS = 500
_PATTERN_CHARACTERS = re.compile(r"[*?\[\]!#\\\n()]")
_READING = ("Read", "Glob", "Grep")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """``key`` is alike for calls that ask for the same; ``rule`` is the text of a rule that would
    allow the call, "" where no single narrow one does."""

    key: str
    rule: str


def suggest(policy: Policy, request: Request) -> Suggestion:
    """Group a call that is asked about, and suggest what may be remembered of the answer."""
    subjects = _subjects(policy, request)
    key = _shown(request, subjects[0]) if len(subjects) == 1 else _whole(request)
    rule = _rule(request, subjects[0]) if len(subjects) == 1 else ""
    if not rule.isprintable() or (rule and _with(policy, rule, request) != "allow"):
        rule = ""
    return Suggestion(key[:_MOST_KEY_CHARACTERS], rule)


def _subjects(policy: Policy, request: Request) -> list[str]:
    """What the call asks for beyond what is allowed already: commands, or paths."""
    if request.tool != "Bash":
        return list(paths_of(request.tool, request.input)) or [request.tool]
    parts = analyse(str(request.input.get("command", ""))).parts
    texts = dict.fromkeys(part.text for part in parts)
    alone = {text: replace(request, input={"command": text}) for text in texts}
    return [text for text in texts if evaluate(policy, alone[text]).effect != "allow"]


def _whole(request: Request) -> str:
    if request.tool == "Bash":
        return str(request.input.get("command", ""))
    return request.tool


def _shown(request: Request, subject: str) -> str:
    place = request.setting.places.get(subject)
    return subject if place is None else _in_workspace(request, place.real) or place.real


def _in_workspace(request: Request, path: str) -> str:
    """The path from the workspace, with a slash at its beginning; "" outside of it."""
    workspace = (request.setting.workspace or "").rstrip("/")
    return path[len(workspace) :] if workspace and path.startswith(workspace + "/") else ""


def _rule(request: Request, subject: str) -> str:
    if request.tool == "Bash":
        return "" if _PATTERN_CHARACTERS.search(subject) else f"Bash({subject})"
    if not paths_of(request.tool, request.input):
        return request.tool
    place = request.setting.places.get(subject)
    if place is None or _PATTERN_CHARACTERS.search(place.real) or place.named != place.real:
        return ""
    tool = "Read" if request.tool in _READING else "Edit"
    return f"{tool}({_in_workspace(request, place.real) or '/' + place.real})"


def _with(policy: Policy, text: str, request: Request) -> str:
    remembered = Rule("allow", text, origin="remembered")
    return evaluate(replace(policy, rules=(*policy.rules, remembered)), request).effect
