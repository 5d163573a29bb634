"""Reads session files of Claude Code as runs.

Claude Code writes a line for each block of a reply and one for each result; the lines of a reply share
its id. Lines count in the order of the file: a session that was rewound keeps what was said before.

The format is not documented and varies from version to version: unknown lines and fields are ignored,
missing ones have defaults. Content that cannot be read is an error, as it would be lost silently.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple

from runner.core import events as audit
from runner.core.conversation import Block, Usage
from runner.core.text import shorten, visible
from runner.exchange.lines import LONGEST_LINE, parsed
from runner.exchange.recorded import SESSION

TABLES = ("blocks", "tool_calls", "tool_outputs", "model_calls", "compactions")

_SYNTHETIC = "<synthetic>"  # the model that Claude Code names for words of its own
_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}
_TOKENS = {
    "input_tokens": "input_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "cache_creation_tokens": "cache_creation_input_tokens",
    "output_tokens": "output_tokens",
}
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_DENIED = ("permission-rule", "user-rejected")
_REJECTED = "The user doesn't want to proceed with this tool use."
_INTERRUPTED = "[Request interrupted by user"
_LATEST = 1e11  # the year 5138, in seconds since the epoch
_MOST_TOKENS = 2**53
_LARGEST_OUTPUT = 10_000_000  # bytes, as for a tool of Runner's


class Happened(NamedTuple):
    at: float  # seconds since the epoch
    event: audit.Event


class SessionReader:
    def __init__(self, file: IO[bytes]) -> None:
        file.seek(0)
        self._file = file
        self.number = 0  # of the line that was read last
        # The last line was being written when the file was copied, and is left out.
        self.is_torn = False

    def runs(self) -> tuple[SessionRun, ...]:
        """Return the session as a run, then each of the agents that worked in it. Raises
        ``ValueError`` if line ``number`` is wrong, or nothing was said in the session."""
        main = _Conversation()
        agents: dict[str, _Conversation] = {}
        agent_of_line: dict[str, str] = {}
        title: str | None = None
        for line in self._lines():
            if line.kind in _TITLES:
                title = line.text(_TITLES[line.kind]) or title
            elif line.fields.get("isSidechain") is True:
                # Older versions name no agent: the line that the conversation began with stands for it.
                uuid, parent = line.text("uuid") or "", line.text("parentUuid") or ""
                agent = line.text("agentId") or agent_of_line.get(parent) or uuid or "agent"
                agent_of_line[uuid] = agent
                agents.setdefault(agent, _Conversation()).add(line)
            else:
                main.add(line)
        found = [SessionRun(main, None, title)] if main.messages else []
        found += [SessionRun(one, agent) for agent, one in agents.items() if one.messages]
        if not found:
            raise ValueError("nothing was said in the session")
        return tuple(found)

    def _lines(self) -> Iterator[_Line]:
        at = 0.0
        seen: set[str | None] = set()
        while content := self._file.readline(LONGEST_LINE + 1):
            self.number += 1
            if not content.strip():
                continue
            try:
                value = parsed(content)
            except ValueError:
                if content.endswith(b"\n") or len(content) > LONGEST_LINE:
                    raise
                self.is_torn = True
                return
            if not isinstance(value, dict):
                raise ValueError("it is no object")
            is_said = value.get("type") in ("user", "assistant")
            blocks = tuple(_blocks(value.get("message"))) if is_said else ()
            at = _moment(value.get("timestamp"), at)
            line = _Line(value, at, blocks)
            uuid = None if line.kind in _TITLES else line.text("uuid")
            if uuid is None or uuid not in seen:
                seen.add(uuid)
                yield line


# --- Lines ---


@dataclass(frozen=True, slots=True)
class _Line:
    fields: Mapping[str, Any]
    at: float  # seconds since the epoch; of the line before where the line says none
    blocks: tuple[Block, ...] = ()  # of its message

    @property
    def kind(self) -> str:
        return self.text("type") or ""

    @property
    def message(self) -> Mapping[str, Any]:
        return _object(self.fields.get("message"))

    def text(self, name: str) -> str | None:
        """Return a field that is a text and not empty, or None."""
        return _text(self.fields.get(name))


_TEXTS = {"text": ("text",), "tool_use": ("id", "name"), "tool_result": ("tool_use_id",)}


def _blocks(message: Any) -> Iterator[Block]:
    """Yield the blocks of a message, each with all that the code below relies on."""
    if not isinstance(message, dict | None):
        raise ValueError("its message is no object")
    content = (message or {}).get("content")
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list | None):
        raise ValueError("its message's content is neither text nor a list of blocks")
    for written in content or ():
        block = {"type": "text", "text": written} if isinstance(written, str) else written
        if not isinstance(block, dict) or not isinstance(kind := block.get("type"), str):
            raise ValueError("a block of its message has no type")
        for name in _TEXTS.get(kind, ()):
            if not isinstance(block.get(name), str):
                raise ValueError(f"a block of type {kind} has no {name}")
        if kind == "tool_use":
            block = {"input": {}, **block}
        elif kind == "tool_result":
            block = {**block, "content": "" if block.get("content") is None else block["content"]}
            if not isinstance(block["content"], str | list):
                raise ValueError(
                    "the content of a tool_result is neither text nor a list of blocks"
                )
        yield block


def _moment(value: Any, before: float) -> float:
    """Return the seconds since the epoch of a time in ISO 8601, or ``before``."""
    try:
        at = datetime.fromisoformat(value)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):  # no text, no time, or a year that no clock has
        return before
    return seconds if 0 <= seconds <= _LATEST else before


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _first_text(lines: Iterable[_Line], name: str) -> str | None:
    return next((text for line in lines if (text := line.text(name))), None)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _tokens(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0


# --- Messages ---


@dataclass
class _Said:
    block: Block
    at: float
    # Of a result: what Claude Code kept beside what the model was shown, and why the call did not run.
    raw: Any = None
    denial: str | None = None


@dataclass
class _Message:
    """A message of the user, or a reply with the results of its calls. The results belong to the
    message after it, before the words of the user."""

    role: str
    asked_at: float = 0.0
    said: list[_Said] = field(default_factory=list)
    uses: list[_Said] = field(default_factory=list)  # the tool calls in ``said``
    results: dict[int, _Said] = field(default_factory=dict)  # by index in ``uses``
    lines: list[_Line] = field(default_factory=list)

    @property
    def model(self) -> str:
        return _text(self.lines[-1].message.get("model")) or "unknown"

    @property
    def stop_reason(self) -> str:
        """The lines of a streamed reply may not say it; then its blocks do."""
        told = (_text(line.message.get("stop_reason")) for line in reversed(self.lines))
        return next(filter(None, told), "tool_use" if self.uses else "end_turn")

    def usage(self) -> dict[str, int]:
        """Return the tokens by kind. Each line repeats them; output grows while a reply is streamed."""
        known = [_object(line.message.get("usage")) for line in self.lines]
        return {
            name: max(_tokens(usage.get(theirs)) for usage in known)
            for name, theirs in _TOKENS.items()
        }

    def hour_cache(self) -> bool:
        """True if most of what it wrote to the cache lives for an hour."""
        usage = _object(self.lines[-1].message.get("usage"))
        written = _object(usage.get("cache_creation"))
        hour = _tokens(written.get("ephemeral_1h_input_tokens"))
        return hour > _tokens(written.get("ephemeral_5m_input_tokens"))


@dataclass
class _Boundary:
    """A compaction: from message ``before`` on, ``text`` stands in for what was said until then."""

    before: int
    at: float
    tokens_before: int = 0
    tokens_after: int = 0
    text: str = ""


class _Conversation:
    """The messages of a session, or of an agent in it, as its lines are added."""

    def __init__(self) -> None:
        self.lines: list[_Line] = []
        self.messages: list[_Message] = []
        self.boundaries: list[_Boundary] = []
        self._replies: dict[str, _Message] = {}
        self._calls: dict[str, tuple[_Message, int]] = {}

    def add(self, line: _Line) -> None:
        asked_at = self.lines[-1].at if self.lines else line.at
        self.lines.append(line)
        if line.kind == "assistant" and line.blocks:
            self._add_reply(line, min(asked_at, line.at))
        elif line.kind == "user" and line.fields.get("isCompactSummary") is True and self.messages:
            text = "\n\n".join(block["text"] for block in line.blocks if block["type"] == "text")
            last = self.boundaries[-1] if self.boundaries else None
            if last is None or last.before != len(self.messages) or last.text:
                last = _Boundary(len(self.messages), line.at)
                self.boundaries.append(last)
            last.text = text
        elif line.kind == "user":
            self._add_user(line)
        elif line.text("subtype") == "compact_boundary" and line.kind == "system" and self.messages:
            data = _object(line.fields.get("compactMetadata"))
            before, after = _tokens(data.get("preTokens")), _tokens(data.get("postTokens"))
            self.boundaries.append(_Boundary(len(self.messages), line.at, before, after))

    def last(self, name: str) -> str | None:
        return _first_text(reversed(self.lines), name)

    def _add_reply(self, line: _Line, asked_at: float) -> None:
        id_ = line.message.get("id")
        key = (id_ if isinstance(id_, str) else None) or line.text("requestId")
        reply = self._replies.get(key) if key is not None else None
        if reply is None:
            reply = _Message("assistant", asked_at=asked_at)
            self.messages.append(reply)
            if key is not None:
                self._replies[key] = reply
        reply.lines.append(line)
        for block in line.blocks:
            said = _Said(block, line.at)
            if block["type"] == "tool_use":
                if block["id"] in {use.block["id"] for use in reply.uses}:
                    continue
                self._calls[block["id"]] = (reply, len(reply.uses))
                reply.uses.append(said)
            reply.said.append(said)

    def _add_user(self, line: _Line) -> None:
        results = [block for block in line.blocks if block["type"] == "tool_result"]
        # What Claude Code kept is of the one result that the line has.
        raw = line.fields.get("toolUseResult") if len(results) == 1 else None
        words = []
        for block in line.blocks:
            if block["type"] == "tool_result" and block["tool_use_id"] in self._calls:
                reply, place = self._calls[block["tool_use_id"]]
                said = _Said(block, line.at, raw, line.text("toolDenialKind"))
                reply.results.setdefault(place, said)
            elif block["type"] != "text" or block["text"]:
                words.append(_Said(block, line.at))
        if not words:
            return
        if not self.messages or self.messages[-1].role != "user":
            self.messages.append(_Message("user"))
        self.messages[-1].said += words


# --- Runs ---


def _run_id(session: str, agent: str | None, started: float) -> str:
    """Return the id of a session's run, which is always the same and sorts by its start as others do."""
    digest = hashlib.sha256(json.dumps([session, agent]).encode()).digest()
    value = (int(started * 1000) << 80) | int.from_bytes(digest[:10], "big")
    return "run_" + "".join(_DIGITS[value >> 5 * place & 31] for place in reversed(range(26)))


class SessionRun:
    """A session, or the part of it of an ``agent`` with this id, as a run."""

    def __init__(self, talk: _Conversation, agent: str | None, title: str | None = None) -> None:
        session_id, cwd = talk.last("sessionId"), _first_text(talk.lines, "cwd")
        self.started_at = next((line.at for line in talk.lines if line.at), 0.0)
        self.ended_at = max(line.at for line in talk.lines)
        self.id = _run_id(session_id or str(talk.lines[0].text("uuid")), agent, self.started_at)
        self.project = visible(cwd or "unknown")
        session = {
            "session_id": session_id,
            "agent_id": agent,
            "title": title,
            "cwd": cwd,
            "git_branch": talk.last("gitBranch"),
            "version": talk.last("version"),
        }
        self.item = {SESSION: session}
        # A session that ended ends with a reply that asks for nothing.
        self.state, self.reason = "cancelled", "cancelled"
        last = talk.messages[-1]
        if last.role == "assistant" and len(last.results) == len(last.uses):
            if last.stop_reason == "refusal":
                self.state, self.reason = "failed", "refusal"
            elif not last.uses and last.stop_reason in ("end_turn", "stop_sequence"):
                self.state, self.reason = "succeeded", "end_turn"
        self.turns = 0
        self.usage = Usage()  # of all replies
        # The rows by table, each with the run's id.
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.events: list[Happened] = []  # what Runner would have recorded, in order
        self._numbers: list[int] = []  # of the messages
        self._add_messages(talk)
        self.events.sort(key=lambda each: each.at)
        self.message_count = len({row["message"] for row in self.rows["blocks"]})
        models = [row["model"] for row in self.rows["model_calls"]]
        self.model = models[-1] if models else "unknown"

    def _add_messages(self, talk: _Conversation) -> None:
        boundaries = list(talk.boundaries)
        uses = 0  # of the message before
        for place, message in enumerate(talk.messages):
            while boundaries and boundaries[0].before <= place:
                self._add_compaction(boundaries.pop(0), talk.messages)
            number = self._numbers[-1] + 1 if self._numbers else 0
            if message.role == "assistant":
                number += uses > 0  # the message between two replies has the results
                self._add_reply(message, number)
            else:
                # The words of a user follow the results in the same message.
                self._add_blocks(number, "user", message.said, first=uses)
            self._numbers.append(number)
            uses = len(message.uses)
        for boundary in boundaries:
            self._add_compaction(boundary, talk.messages)

    def _add(self, table: str, **row: Any) -> None:
        self.rows[table].append({"run_id": self.id, **row})

    def _add_event(self, at: float, kind: str, data: dict[str, Any]) -> None:
        self.events.append(Happened(at, audit.Event(kind, data)))

    def _add_blocks(self, message: int, role: str, said: Sequence[_Said], first: int = 0) -> None:
        for position, each in enumerate(said, first):
            where = {"message": message, "position": position, "turn": self.turns, "role": role}
            kind = visible(each.block["type"])
            self._add("blocks", **where, type=kind, content=each.block, created_at=each.at)

    def _add_reply(self, reply: _Message, number: int) -> None:
        self.turns += 1
        self._add_blocks(number, "assistant", reply.said)
        if reply.model != _SYNTHETIC:
            self._add_model_call(reply)
        for position, use in enumerate(reply.uses):
            self._add_call(number, position, use, reply.results.get(position))

    def _add_model_call(self, reply: _Message) -> None:
        tokens, number = reply.usage(), len(self.rows["model_calls"]) + 1
        usage, total = Usage(**tokens), sum(tokens.values())
        self.usage += usage
        ended_at = max(line.at for line in reply.lines)
        latency = max(ended_at - reply.asked_at, 0.0)
        request_id = _first_text(reply.lines, "requestId")
        shared = {
            "turn": self.turns,
            "stop_reason": visible(reply.stop_reason),
            "request_id": None if request_id is None else visible(request_id),
            "latency": latency,
        }
        spent = {"max_tokens": 0, "worst_case": total, "charged_tokens": total, **tokens}
        times = {"started_at": reply.asked_at, "ended_at": ended_at}
        call = {"number": number, "attempt": 1, "purpose": "turn", "model": visible(reply.model)}
        hour_cache = reply.hour_cache()
        self._add("model_calls", **call, **times, hour_cache=hour_cache, **spent, **shared)
        short = {
            "call": number,
            "stop_reason": shorten(reply.stop_reason, audit.INPUT_SUMMARY_LENGTH),
            "usage": audit.usage_of(usage),
            "latency": round(latency, 3),
        }
        self._add_event(ended_at, "model_call_ended", shared | short)

    def _add_call(self, message: int, position: int, use: _Said, result: _Said | None) -> None:
        place = {"message": message, "position": position}
        named = {"tool_use_id": visible(use.block["id"]), "name": visible(use.block["name"])}
        short = {name: shorten(text, audit.INPUT_SUMMARY_LENGTH) for name, text in named.items()}
        of_call: dict[str, Any] = {"turn": self.turns, "call_index": position, **short}
        started = {"started_attempt": 1, "started_at": use.at, "interrupted": result is None}
        call: dict[str, Any] = {**place, "turn": self.turns, **named, **started}
        data = of_call | {"input": audit.summarise_input(use.block["input"])}
        self._add_event(use.at, "tool_started", data)
        if result is not None:
            content = result.block["content"]
            parts = [{"text": content}] if isinstance(content, str) else map(_object, content)
            texts = (part.get("text") for part in parts)
            shown = "\n".join(text for text in texts if isinstance(text, str))
            outcome, ended_at = _outcome(result, shown), max(result.at, use.at)
            duration = ended_at - use.at
            call |= {"ended_at": ended_at, "duration": duration, "outcome": outcome}
            call["denial"] = shorten(shown, 300) if outcome == "denied" else None
            self._add_blocks(message + 1, "user", [result], first=position)
            if whole := _whole_output(result, shown):
                compressed = zlib.compress(whole)
                self._add("tool_outputs", **place, size=len(whole), compressed=compressed)
            done = {
                "output": shorten(shown, audit.OUTPUT_SUMMARY_LENGTH),
                "outcome": outcome,
                "is_error": outcome != "succeeded",
                "duration": round(duration, 4),
            }
            self._add_event(ended_at, "tool_done", of_call | done)
        self._add("tool_calls", **call)

    def _add_compaction(self, boundary: _Boundary, messages: Sequence[_Message]) -> None:
        place = boundary.before - 1
        last = self._numbers[place] + bool(messages[place].results)
        kind, first = "summary" if boundary.text else "prune", min(1, last)
        tokens = {"tokens_before": boundary.tokens_before, "tokens_after": boundary.tokens_after}
        number, sent_in = (len(self.rows[name]) + 1 for name in ("compactions", "model_calls"))
        where = {"first_message": first, "last_message": last, "first_sent_in": sent_in}
        what = {"kind": kind, "text": boundary.text, "clips": [], "created_at": boundary.at}
        self._add("compactions", number=number, turn=self.turns + 1, **where, **what, **tokens)
        data = {"kind": kind, "first": first, "last": last, **tokens}
        self._add_event(boundary.at, "context_compacted", data)


def _outcome(result: _Said, shown: str) -> str:
    """Return the outcome of a call: newer versions have a field for denials, others only words."""
    if result.denial in _DENIED:
        return "denied"
    if result.denial is not None or shown.startswith(_INTERRUPTED):
        return "interrupted"
    if not result.block.get("is_error"):
        return "succeeded"
    return "denied" if shown.startswith(_REJECTED) else "failed"


def _whole_output(result: _Said, shown: str) -> bytes | None:
    """Return what a command printed if it is longer than what the model was shown."""
    printed = [_object(result.raw).get(name) for name in ("stdout", "stderr")]
    whole = "\n".join(text for text in printed if isinstance(text, str) and text)
    encoded = whole.encode("utf-8", "replace")
    return encoded if len(shown) < len(whole) and len(encoded) <= _LARGEST_OUTPUT else None
