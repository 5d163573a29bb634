"""Groups equal questions, so that they can be answered together, and suggests the rule that would
answer one for good."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Policy, evaluate
from runner.permissions.rules import AGENT_NAME
from runner.permissions.shell import analyse
from runner.permissions.values import REMEMBERED, Request, Rule

_MOST_KEY_CHARACTERS = 300
_NOT_LITERAL = re.compile(r"[$`*?\[\]{}()<>\\\n…]")
_PATTERN_CHARACTERS = re.compile(r"[*?\[\]!#\\\n()]")
_PATH_NAMES = frozenset({"file_path", "path"})


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The group of a question, and the rule that may be remembered from its answer."""

    key: str  # alike only for calls that would do the same, so that one answer is right for all
    rule: str  # the text of a narrow rule that would allow the call, "" where there is none


def suggest(policy: Policy, request: Request) -> Suggestion:
    """Return the group of a call that is asked about, and the rule that would allow it."""
    if request.tool == "Bash":
        key, rule = _of_command(request)
    elif request.tool == "Agent":
        # The prompt is part of the key: it says what a sub-agent does. A rule can name only its type.
        agent_type = request.input.get("agent_type")
        key = f"{agent_type} {_digest(_canonical(request.input))}"
        is_name = isinstance(agent_type, str) and AGENT_NAME.fullmatch(agent_type)
        rule = f"Agent({agent_type})" if is_name else ""
    else:
        key, rule = _of_input(request)
    remembered = replace(policy, rules=(*policy.rules, Rule("allow", rule, origin=REMEMBERED)))
    if not rule.isprintable() or (rule and evaluate(remembered, request).effect != "allow"):
        rule = ""
    if len(key) > _MOST_KEY_CHARACTERS:  # keys that differ stay different
        key = f"{key[:_MOST_KEY_CHARACTERS]}… {_digest(key)}"
    return Suggestion(key, rule)


def _of_command(request: Request) -> tuple[str, str]:
    """Return the key of a command and its rule. What is around a command can change what it does: its
    folder, its input, values of variables. So the key is the whole text, and only a command that stands
    alone and has no redirect gets a rule."""
    whole = str(request.input.get("command", "")).strip()
    script = analyse(whole)
    alone = [part.text for part in script.parts] == [whole]
    says_all = alone and not (script.unanalyzable or script.sources or script.writes)
    literal = " " in whole and not _NOT_LITERAL.search(whole)
    return whole or "(nothing)", f"Bash({whole})" if says_all and literal else ""


def _of_input(request: Request) -> tuple[str, str]:
    paths = paths_of(request.tool, request.input)
    if len(paths) != 1:
        return f"{request.tool} {_canonical(request.input)}", ""
    place = request.context.places.get(paths[0])
    real = paths[0] if place is None else place.real
    workspace = (request.context.workspace or "").rstrip("/")
    inside = place is not None and workspace and real.startswith(workspace + "/")
    below = real[len(workspace) :] if inside else ""  # with a slash at its beginning
    rest = {name: value for name, value in request.input.items() if name not in _PATH_NAMES}
    key = " ".join([below or real, *([_digest(_canonical(rest))] if rest else [])])
    if place is None or _PATTERN_CHARACTERS.search(real) or place.named != real:
        return key, ""
    tool = "Edit" if request.tool == "Write" else request.tool
    return key, f"{tool}({below or '/' + real})"


def _canonical(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True) if arguments else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
