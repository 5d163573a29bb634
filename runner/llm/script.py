"""The script of a scripted model: what may stand in it, and the problems of one that is wrong.

A script maps an item's key (``"*"``: any item without a list of its own) to the list of its replies.
A reply is a table with any of:

    text         what the model says
    thinking     what it thinks first
    tools        a list of calls: name, and input (a table)
    stop_reason  by default "tool_use" with tools, else "end_turn"
    delay        seconds before it answers
    usage        tokens in place of the counted ones: input_tokens, output_tokens,
                 cache_read_tokens, cache_creation_tokens
    error        the call fails instead: kind, and if wanted status, message, retry_after (seconds).
                 It fails so each time that it is made; a script is for runs that go well.

As TOML: ``[["src/a.py"]]`` begins a reply. A text under the name ``summary`` is what the model says
when a conversation has become too long and it is to sum it up; a list there is the replies of an item
with that key.

A sub-agent has the replies under its own key (``"src/a.py+2"`` is the second that the run of
``src/a.py`` starts), or those under ``@`` and the name of its type (``"@reviewer"``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.core.spec import ANY_ITEM
from runner.errors import Problem

SUMMARY = "summary"
AGENT = "@"  # what the keys of sub-agents' replies, by their types, begin with

_TEXTS = ("text", "thinking", "stop_reason")
_REPLY = frozenset({*_TEXTS, "tools", "delay", "usage", "error"})
_CALL = frozenset({"name", "input"})
_USAGE = frozenset({"input_tokens", "output_tokens", "cache_read_tokens", "cache_creation_tokens"})
_ERROR = frozenset({"kind", "status", "message", "retry_after"})


def check_script(script: Any) -> list[Problem]:
    """Everything that is wrong with a script; places are like ``script.src/a.py[0].tools[1].name``."""
    if not isinstance(script, Mapping):
        return [Problem("script", f"must be a table of item keys to replies, not {_kind(script)}")]
    if not script:
        return [Problem("script", f'is empty; give at least the replies for "{ANY_ITEM}"')]
    return [problem for key, replies in script.items() for problem in _check_list(key, replies)]


def _check_list(key: str, replies: Any) -> Iterator[Problem]:
    place = f"script.{key}"
    if key == AGENT:
        yield Problem(place, f'names no type of sub-agent: write "{AGENT}" and its name')
    if key == SUMMARY and isinstance(replies, str):
        if not replies.strip():
            yield Problem(place, "must be a text that is not blank, or a list of replies")
        return
    if not isinstance(replies, list):
        yield Problem(place, f"must be a list of replies, not {_kind(replies)}")
        return
    for number, reply in enumerate(replies):
        at = f"{place}[{number}]"
        if isinstance(reply, Mapping):
            yield from _check_reply(at, reply)
        else:
            yield Problem(at, f"must be a table, not {_kind(reply)}")


def _check_reply(at: str, reply: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _unknown(at, reply, _REPLY)
    if not reply:
        yield Problem(at, 'is empty; to play an empty reply say so with stop_reason = "end_turn"')
    for name in _TEXTS:
        if name in reply and not (isinstance(reply[name], str) and reply[name].strip()):
            yield Problem(f"{at}.{name}", "must be a text that is not blank")
    if "delay" in reply and not (_is_number(reply["delay"]) and reply["delay"] >= 0):
        yield Problem(f"{at}.delay", "must be a number of seconds, 0 or more")
    yield from _check_calls(f"{at}.tools", reply.get("tools", []))
    yield from _check_usage(f"{at}.usage", reply.get("usage", {}))
    if "error" in reply:
        yield from _check_error(f"{at}.error", reply["error"])


def _check_calls(at: str, calls: Any) -> Iterator[Problem]:
    if not isinstance(calls, list):
        yield Problem(at, f"must be a list of calls, not {_kind(calls)}")
        return
    for number, call in enumerate(calls):
        place = f"{at}[{number}]"
        if not isinstance(call, Mapping):
            yield Problem(place, f"must be a table, not {_kind(call)}")
            continue
        yield from _unknown(place, call, _CALL)
        if not isinstance(call.get("name"), str) or not call["name"]:
            yield Problem(f"{place}.name", "must be the name of a tool")
        if not isinstance(call.get("input", {}), Mapping):
            yield Problem(f"{place}.input", "must be a table of the tool's arguments")


def _check_usage(at: str, usage: Any) -> Iterator[Problem]:
    if not isinstance(usage, Mapping):
        yield Problem(at, f"must be a table, not {_kind(usage)}")
        return
    yield from _unknown(at, usage, _USAGE)
    for name, tokens in usage.items():
        if name in _USAGE and not (_is_whole(tokens) and tokens >= 0):
            yield Problem(f"{at}.{name}", "must be a whole number of tokens, 0 or more")


def _check_error(at: str, error: Any) -> Iterator[Problem]:
    if not isinstance(error, Mapping):
        yield Problem(at, f"must be a table, not {_kind(error)}")
        return
    yield from _unknown(at, error, _ERROR)
    if not isinstance(error.get("kind"), str) or not error["kind"]:
        yield Problem(f"{at}.kind", 'must be an error type of the API, such as "overloaded_error"')
    if "status" in error and not (_is_whole(error["status"]) and 400 <= error["status"] < 600):
        yield Problem(f"{at}.status", "must be an HTTP status from 400 to 599")
    if not isinstance(error.get("message", ""), str):
        yield Problem(f"{at}.message", "must be a text")
    if "retry_after" in error and not _is_number(error["retry_after"]):
        yield Problem(f"{at}.retry_after", "must be a number of seconds")


def _unknown(at: str, table: Mapping[str, Any], known: frozenset[str]) -> Iterator[Problem]:
    for name in table:
        if name not in known:
            yield Problem(f"{at}.{name}", f"is unknown; known are {', '.join(sorted(known))}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _kind(value: Any) -> str:
    return type(value).__name__
