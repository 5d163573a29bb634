"""Hooks: a job's own commands and functions that watch a run and may restrict it.

They follow the protocol of Claude Code (https://code.claude.com/docs/en/hooks). Exit code 0: what was
printed may be a JSON object. 2: the hook objects, and stderr says why. Anything else: it has failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from runner.core.network import Connection
from runner.core.text import KeyTwiceError, plain, read_json

HookEvent = Literal["RunStart", "PreToolUse", "PostToolUse", "TurnEnd", "RunEnd"]
OnHookFailure = Literal["deny", "continue"]

HOOK_SECONDS = 60.0
# The environment variable of a hook with the folder that it works in.
FOLDER_NAME = "CLAUDE_PROJECT_DIR"


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook of a job: a ``command`` for bash or a ``function``."""

    event: HookEvent
    # Rules, or regular expressions for tools' names (``name_pattern``): one must match the call. Empty:
    # every call.
    matcher: tuple[str, ...] = ()
    command: str | None = None
    function: str | None = None  # ``package.module:function@/folder``
    timeout: float = HOOK_SECONDS
    on_failure: OnHookFailure = "deny"  # what a failed PreToolUse hook means for the call
    repeatable: bool = False  # runs again if its worker died in the middle of it
    condition: tuple[str, ...] = ()  # as ``matcher``: one of these must match too (the key ``if``)

    @property
    def name(self) -> str:
        """Its command or its function."""
        return self.command or (self.function or "").partition("@")[0]


_LIST_OF_NAMES = re.compile(r"[A-Za-z0-9_\- ,|]*")
# A rule with brackets: of a built-in tool, ``Tool(*)``, or ``Tool(ARGUMENT:TEXT)``.
_RULE = re.compile(
    r"(Bash|Read|Grep|Glob|Edit|Write|WebFetch|Agent)\("
    r"|[A-Za-z0-9_.-]+\*?\((\*|[A-Za-z0-9_.-]{1,64}:.+)\)$"
)
_ALL = frozenset({"", "*"})


def matchers_in(text: str) -> tuple[str, ...]:
    """Return the matchers that a text holds as Claude Code reads it: one rule, one regular expression
    (``mcp__.*``), or the names of a list (``Edit|Write``). Empty: it matches every call (``""``, ``*``)."""
    if text in _ALL:
        return ()
    if is_rule(text) and not _RULE.match(text):
        return tuple(name.strip() for name in re.split("[|,]", text))
    return (text,)


def is_rule(matcher: str) -> bool:
    """True if a matcher is a rule or a list of tools' names, else it is a regular expression."""
    return bool(_RULE.match(matcher) or _LIST_OF_NAMES.fullmatch(matcher))


@lru_cache(maxsize=1024)
def name_pattern(matcher: str) -> re.Pattern[str]:
    """Return the pattern to search for in a tool's name. One that is no regular expression matches
    every name: a hook that guards must not fall away."""
    try:
        return re.compile(matcher, re.ASCII)
    except (re.error, OverflowError, RecursionError):
        return re.compile("")


# Only "succeeded" has an answer: a hook that was cut off ("interrupted" by a shutdown, "unknown" by
# the death of its worker) has none.
HookOutcome = Literal["succeeded", "failed", "timed_out", "interrupted", "unknown"]
HookDecision = Literal["allow", "ask", "deny", "block"]


@dataclass(frozen=True, slots=True)
class HookAnswer:
    outcome: HookOutcome
    decision: HookDecision | None = None  # PreToolUse: allow, ask or deny; others: block
    reason: str = ""  # for the decision, or what went wrong
    context: str = ""  # for the model
    stops: bool = False  # the run is to end


@dataclass(frozen=True, slots=True)
class HookResult:
    answer: HookAnswer
    updated_input: Mapping[str, Any] | None = None  # what it changed the call's input to
    updated_output: str | None = None  # what the model is shown in place of the call's result
    output: str = ""  # its output, truncated
    errors: str = ""
    exit_code: int | None = None
    duration: float = 0.0  # seconds
    connections: tuple[Connection, ...] = ()  # as in ``ToolResult``
    containment: str | None = None  # what contained it; None: the job asks for nothing
    message: str = ""  # for people


@dataclass(frozen=True, slots=True)
class HookRun:
    number: int  # of the run's hooks, from 1
    hook: int  # its place in the job's ``hooks``
    event: HookEvent
    index: int | None  # of the call of the last reply that it is about
    started_by: int  # the attempt
    answer: HookAnswer | None = None  # None: it has not ended

    @property
    def said(self) -> HookAnswer:
        """The answer; empty until the hook has ended."""
        return self.answer or HookAnswer("unknown")


# Stands for a result whose PostToolUse hook was cut off: the hook may be one that redacts.
WITHHELD = (
    "This call ran. Its result is withheld: a hook that checks it was cut off before it answered."
)
OBJECTS = 2  # the exit code
# How the reason of a failure begins that only the operator reads whole: the model did not send it.
UNUSABLE_INPUT = "updatedInput is not "
MOST_CHARACTERS = 10_000  # of a text that is kept or shown
MOST_OUTPUT_CHARACTERS = 50_000  # of a result, as of any tool's
MOST_JSON_BYTES = 1_000_000

_Decisions = Mapping[str, HookDecision | None]
_PERMISSIONS: _Decisions = {"allow": "allow", "ask": "ask", "deny": "deny"}
_OLD_PERMISSIONS: _Decisions = {"approve": "allow", "block": "deny"}
_BLOCKS: _Decisions = {"approve": None, "block": "block"}
_STRICTNESS: Mapping[HookDecision | None, int] = {None: 0, "allow": 1, "ask": 2, "deny": 3}

End = Literal["exited", "timed_out", "limited", "not_started", "lost", "shut_down"]


@dataclass(frozen=True, slots=True)
class Said:
    """The exit code and output of a hook's process."""

    end: End  # ``lost``: it was killed from outside
    exit_code: int = 0  # negative for a signal
    output: bytes = b""
    errors: bytes = b""
    cut: bool = False  # there was more output than was kept
    duration: float = 0.0  # seconds
    connections: tuple[Connection, ...] = ()  # as in ``ToolResult``
    containment: str | None = None  # what contained it; None: the job asks for nothing


_NO_ANSWER: Mapping[End, tuple[HookOutcome, str]] = {
    "timed_out": ("timed_out", "it took more than {timeout:g} s"),
    "limited": ("failed", "it was ended: {output}"),
    "not_started": ("failed", "it could not be started: {output}"),
    "lost": ("unknown", "it was killed from outside"),
    "shut_down": ("interrupted", "it was cut off by a shutdown of the worker"),
}


class _Unfit(Exception):  # noqa: N818 - what is wrong with the answer, for who wrote the hook
    """The answer is invalid; the text says why."""


def read_answer(event: HookEvent, said: Said, timeout: float) -> HookResult:
    """Return the result of a hook from its exit code and output."""
    updated, output = None, None
    try:
        answer, updated, output = _answer(event, said, timeout)
    except _Unfit as unfit:
        answer = HookAnswer("failed", reason=str(unfit))
    return HookResult(
        answer,
        updated,
        updated_output=output,
        output=_shown(said.output),
        errors=_shown(said.errors),
        exit_code=said.exit_code if said.end == "exited" else None,
        duration=said.duration,
        connections=said.connections,
        containment=said.containment,
        message=_system_message(said) if answer.outcome == "succeeded" else "",
    )


# A hook's answer, and the call's input and its result after the hook's change.
_Answer = tuple[HookAnswer, Mapping[str, Any] | None, str | None]


def _answer(event: HookEvent, said: Said, timeout: float) -> _Answer:
    if said.end != "exited":
        outcome, why = _NO_ANSWER[said.end]
        reason = why.format(timeout=timeout, output=_shown(said.output))
        shown = WITHHELD if event == "PostToolUse" else None
        return HookAnswer(outcome, reason=reason), None, shown
    if said.exit_code == OBJECTS:
        reason = _shown(said.errors).strip() or "it gave no reason"
        objection: HookDecision = "deny" if event == "PreToolUse" else "block"
        return HookAnswer("succeeded", objection, reason), None, None
    if said.exit_code:
        how = f"signal {-said.exit_code}" if said.exit_code < 0 else f"exit code {said.exit_code}"
        return (
            HookAnswer("failed", reason=f"{how} {_shown(said.errors).strip()}".strip()),
            None,
            None,
        )
    if not said.output.lstrip().startswith(b"{"):
        # As Claude Code does with the output of a SessionStart hook.
        context = _shown(said.output).strip() if event == "RunStart" else ""
        return HookAnswer("succeeded", context=context), None, None
    if said.cut or len(said.output) > MOST_JSON_BYTES:
        raise _Unfit(f"it printed more than the {MOST_JSON_BYTES:,} bytes that an answer can have")
    try:
        return _from_json(event, read_json(said.output.decode(), once=True))
    except KeyTwiceError as error:
        raise _Unfit(f"what it printed makes no sense: {error}") from error
    except (ValueError, RecursionError) as error:
        raise _Unfit(f"what it printed begins with {{ and is not JSON: {error}") from error


def _from_json(event: HookEvent, data: Mapping[str, Any]) -> _Answer:
    """Read an answer; of the old and the new fields about a call, the stricter holds."""
    specific = data.get("hookSpecificOutput")
    if specific is None:
        specific = {}
    if not isinstance(specific, dict):
        raise _Unfit("hookSpecificOutput is not an object")
    goes_on = data.get("continue")
    if not (goes_on is None or isinstance(goes_on, bool)):
        raise _Unfit("continue is neither true nor false")
    updated, output, reason = None, None, _text(data, "reason")
    if event == "PreToolUse":
        decision = _known(specific, "permissionDecision", _PERMISSIONS)
        old, old_reason = _known(data, "decision", _OLD_PERMISSIONS), reason
        reason = _text(specific, "permissionDecisionReason")
        if _STRICTNESS[old] > _STRICTNESS[decision] or (old == decision and not reason):
            decision, reason = old, old_reason
        updated = specific.get("updatedInput")
    else:
        decision = _known(data, "decision", _BLOCKS)
    if event == "PostToolUse":
        output = _output(specific.get("updatedToolOutput"))
    stops = goes_on is False
    if stops:
        reason = _text(data, "stopReason") or reason
    if updated is not None and not isinstance(updated, dict):
        sent = _cut(plain(json.dumps(updated, ensure_ascii=False)))
        raise _Unfit(f"{UNUSABLE_INPUT}an object; it sent {sent}")
    context = _text(specific, "additionalContext")
    return HookAnswer("succeeded", decision, reason, context, stops=stops), updated, output


def _output(given: Any) -> str | None:
    """Return the text that the model is shown in place of a result; anything but a text as JSON."""
    if given is None:
        return None
    text = plain(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))
    if len(text) > MOST_OUTPUT_CHARACTERS:
        raise _Unfit(f"updatedToolOutput has more than {MOST_OUTPUT_CHARACTERS:,} characters")
    return text


def _system_message(said: Said) -> str:
    """Return the text for people in an answer that could be read."""
    if said.exit_code or b"systemMessage" not in said.output or said.output.lstrip()[:1] != b"{":
        return ""
    message = read_json(said.output.decode(), once=True).get("systemMessage")
    return _cut(plain(message)) if isinstance(message, str) else ""


def _known(data: Mapping[str, Any], name: str, known: _Decisions) -> HookDecision | None:
    given = data.get(name)
    if given is None:
        return None
    if not isinstance(given, str) or given not in known:
        raise _Unfit(f"{name} is none of {', '.join(known)}")
    return known[given]


def _text(data: Mapping[str, Any], name: str) -> str:
    given = data.get(name)
    if given is None:
        return ""
    if not isinstance(given, str):
        raise _Unfit(f"{name} is not a text")
    return _cut(plain(given))


def _shown(printed: bytes) -> str:
    return _cut(plain(printed.decode("utf-8", "replace")))


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}\n[… {len(text) - MOST_CHARACTERS:,} characters are left out]"
