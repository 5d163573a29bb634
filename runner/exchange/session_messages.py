"""The conversation in a session of Claude Code, as its lines are added one by one.

Claude Code writes a line for each block of a reply and one for each result; the lines of a reply share
its id. Lines count in the order of the file: a session that was rewound keeps what was said before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.core.conversation import Block, Role, ToolOutcome, Usage
from runner.core.media import shown_text
from runner.core.text import visible
from runner.exchange import session_lines as kept
from runner.exchange.session_lines import Line, SpokenBy, as_list, as_object, as_text

SYNTHETIC = "<synthetic>"  # the model that Claude Code names for words of its own
_TOKENS = {
    "input_tokens": ("input_tokens", "inputTokens"),
    "cache_read_tokens": ("cache_read_input_tokens", "cacheReadInputTokens"),
    "cache_creation_tokens": ("cache_creation_input_tokens", "cacheCreationInputTokens"),
    "output_tokens": ("output_tokens", "outputTokens"),
}
_MOST_TOKENS = 2**53
# What is said after a session's last reply without asking for another.
_AFTERWORDS = re.compile(
    r"<(?:command-(?:name|message|args)|local-command-\w+)>|Caveat: The messages "
)
_NO_REPLY = "No response requested."
_UNDELIVERED = "never delivered"
_NOTED = (
    *("local_command", "informational", "away_summary", "model_refusal_fallback"),
    *("microcompact_boundary", "scheduled_task_fire"),
)


def tokens_of(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0


def usage_of(stated: Any) -> Usage:
    """Return the tokens that a message's usage, or a whole session's, states."""
    usage, told = as_object(stated), _TOKENS.items()
    return Usage(**{kind: max(tokens_of(usage.get(n)) for n in names) for kind, names in told})


def _first(lines: Iterable[Line], name: str) -> str | None:
    return next((text for line in lines if (text := line.text(name))), None)


def _usage_in(line: Line) -> Usage:
    return usage_of(line.message.get("usage"))


class Said(NamedTuple):
    block: Block
    at: float
    by: SpokenBy | None = None


@dataclass
class Call:
    """A tool call of a reply. Its result belongs to the message after it, before the words of the user."""

    asked: Said
    result: Said | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)  # what Claude Code kept beside the result
    denier: str | None = None  # in words
    is_stopped: bool = False  # it did not run
    ends_turn: bool = False  # with it the session has its result
    row: Mapping[str, Any] = field(default_factory=dict)  # that it was stored as

    @property
    def shown(self) -> str:
        return "" if self.result is None else shown_text(self.result.block["content"])

    @property
    def outcome(self) -> ToolOutcome:
        if self.denier is not None:
            return "denied"
        if self.result is None or self.is_stopped or self.shown.startswith(kept.INTERRUPTED):
            return "interrupted"
        return "failed" if self.result.block.get("is_error") else "succeeded"

    def whole_output(self, most: int) -> bytes | None:
        """Return what a command printed if it is longer than what the model was shown, up to ``most``
        bytes."""
        whole = "\n".join(filter(None, (as_text(self.raw.get(n)) for n in ("stdout", "stderr"))))
        encoded = whole.encode("utf-8", "replace")
        return encoded if len(self.shown) < len(whole) and len(encoded) <= most else None


@dataclass
class SessionMessage:
    """A message of the user, or a reply."""

    role: Role
    id: str | None = None  # of a reply, as the API names it
    asked_at: float = 0.0
    said: list[Said] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)  # that ``said`` asks for
    lines: list[Line] = field(default_factory=list)  # of a reply

    @property
    def model(self) -> str:
        return as_text(self.lines[-1].message.get("model")) or "unknown"

    @property
    def stop_reason(self) -> str:
        """The lines of a streamed reply may not say it; then its blocks do."""
        told = (as_text(line.message.get("stop_reason")) for line in reversed(self.lines))
        return next(filter(None, told), "tool_use" if self.calls else "end_turn")

    @property
    def text(self) -> str:
        return shown_text([each.block for each in self.said])

    @property
    def is_error(self) -> bool:
        """True if Claude Code wrote it to say that the API failed."""
        is_told = any(line.fields.get("isApiErrorMessage") is True for line in self.lines)
        return is_told or (self.model == SYNTHETIC and self.text.startswith("API Error"))

    @property
    def is_afterword(self) -> bool:
        """True if it neither is a reply nor asks for one."""
        if self.role == "assistant":
            return self.model == SYNTHETIC and self.text == _NO_REPLY
        texts = [as_text(each.block.get("text")) for each in self.said]
        return all(text and _AFTERWORDS.match(text) for text in texts)

    @property
    def usage(self) -> Usage:
        """Its tokens. Each line repeats them; output grows while a reply is streamed."""
        known = [_usage_in(line).by_kind() for line in self.lines]
        return Usage(**{kind: max(each[kind] for each in known) for kind in _TOKENS})

    @property
    def request_id(self) -> str | None:
        return _first(self.lines, "requestId")

    @property
    def hour_cache(self) -> bool:
        """True if most of what it wrote to the cache lives for an hour."""
        written = as_object(as_object(self.lines[-1].message.get("usage")).get("cache_creation"))
        names = ("ephemeral_1h_input_tokens", "ephemeral_5m_input_tokens")
        hour, minutes = (tokens_of(written.get(name)) for name in names)
        return hour > minutes

    @property
    def is_under_reported(self) -> bool:
        """True if its text is far longer than its tokens of output can be."""
        written = sum(len(json.dumps(call.asked.block["input"])) for call in self.calls)
        return len(self.text) + written > 200 + 12 * self.usage.output_tokens


@dataclass
class Boundary:
    """A compaction: from message ``before`` on, ``text`` stands in for what was said until then, but
    for the messages from ``kept`` on."""

    before: int
    at: float
    tokens_before: int = 0
    tokens_after: int = 0
    text: str = ""
    kept: int | None = None


class Note(NamedTuple):
    """Something that happened beside the conversation."""

    at: float
    kind: str
    text: str


class Conversation:
    """The messages of a session, or of an agent in it, as its lines are added. ``texts`` are all texts
    of the lines that will be added."""

    def __init__(self, agent: str | None, texts: Collection[str]) -> None:
        self.agent = agent
        self.lines: list[Line] = []
        self.messages: list[SessionMessage] = []
        self.boundaries: list[Boundary] = []
        self.notes: list[Note] = []
        self.system = ""
        self.calls: dict[str, Call] = {}  # by the API's id
        self.result: Mapping[str, Any] = {}  # the fields of the last line of ``stream-json``
        self._texts = texts
        self._queued: list[tuple[float, str]] = []
        self._replies: dict[str | None, SessionMessage] = {}
        self._places: dict[str | None, int] = {}  # of the message that has a line, by uuid
        self._hooks: dict[str | None, str] = {}  # that blocked a call, by the API's id
        self._mode: str | None = None

    def add(self, line: Line) -> None:
        asked_at = self.lines[-1].at if self.lines else line.at
        self.lines.append(line)
        match line.kind:
            case "assistant" if line.blocks or (self.messages and _usage_in(line).total):
                self._add_reply(line, min(asked_at, line.at))
            case "user" if line.fields.get("isCompactSummary") is True and self.messages:
                last = self.boundaries[-1] if self.boundaries else None
                if last is None or last.before != len(self.messages) or last.text:
                    last = Boundary(len(self.messages), line.at)
                    self.boundaries.append(last)
                last.text = shown_text(line.blocks)
            case "user":
                self._add_user(line)
            case "attachment":
                self._add_attachment(line)
            case "system":
                self._add_system(line)
            case "queue-operation":
                self._follow_queue(line)
            case "pr-link":
                self._note(line.at, line.kind, line.text("prUrl"))
            case "permission-mode" if (mode := line.text("permissionMode")) != self._mode:
                self._mode = mode
                self._note(line.at, line.kind, mode)
            case "result":
                self.result = line.fields
        if (uuid := line.text("uuid")) is not None and self.messages:
            self._places[uuid] = len(self.messages) - 1

    def end(self) -> None:
        """Note typed messages that the session never took, and denied calls that only the last line of
        ``stream-json`` names."""
        self._drop_queued(None)
        for each in as_list(self.result.get("permission_denials")):
            call = self.calls.get(as_text(as_object(each).get("tool_use_id")) or "")
            if call and call.result:
                call.denier = call.denier or "the permission mode"

    def last(self, name: str) -> str | None:
        return _first(reversed(self.lines), name)

    def first(self, name: str) -> str | None:
        return _first(self.lines, name)

    def end_of(self) -> tuple[str, str, str]:
        """Return the state and the reason that it ended with, and the error that it ended in."""
        if self.result.get("subtype") == "error_max_turns":
            return "stopped", "max_turns", ""
        last = next((each for each in reversed(self.messages) if not each.is_afterword), None)
        reply = last if last is not None and last.role == "assistant" else None
        if self.result.get("is_error") is True or (reply is not None and reply.is_error):
            words = as_text(self.result.get("result")) or (reply.text if reply is not None else "")
            return "failed", "api_error", words
        if self.result.get("subtype") == "success":
            return "succeeded", "end_turn", ""
        if reply is not None and all(call.result for call in reply.calls):
            if reply.stop_reason == "refusal":
                return "failed", "refused", ""
            is_end = not reply.calls and reply.stop_reason in ("end_turn", "stop_sequence")
            if is_end or any(call.ends_turn for call in reply.calls):
                return "succeeded", "end_turn", ""
        return "cancelled", "cancelled", ""

    def _note(self, at: float, kind: str, text: str | None) -> None:
        if text:
            self.notes.append(Note(at, kind, text))

    def _add_reply(self, line: Line, asked_at: float) -> None:
        id_ = visible(as_text(line.message.get("id")) or line.text("requestId") or "") or None
        reply = self._replies.get(id_)
        if reply is None:
            reply = SessionMessage("assistant", id_, asked_at)
            self.messages.append(reply)
            if id_ is not None:
                self._replies[id_] = reply
        reply.lines.append(line)
        known = {call.asked.block["id"] for call in reply.calls}
        for said in (Said(block, line.at) for block in line.blocks):
            if said.block["type"] == "tool_use":
                if (use_id := said.block["id"]) in known:
                    continue
                known.add(use_id)
                self.calls[use_id] = Call(said)
                reply.calls.append(self.calls[use_id])
            reply.said.append(said)

    def _add_user(self, line: Line) -> None:
        results = [block for block in line.blocks if block["type"] == "tool_result"]
        # What Claude Code kept is of the one result that the line has.
        raw = line.object("toolUseResult") if len(results) == 1 else {}
        words = []
        for block in line.blocks:
            is_result = block["type"] == "tool_result"
            if is_result and (call := self.calls.get(block["tool_use_id"])) is not None:
                if call.result is None:
                    self._add_result(line, block, call, raw)
            elif block["type"] != "text" or block["text"]:
                words.append(block)
        self._say(words, line, line.by)

    def _add_result(self, line: Line, block: Block, call: Call, raw: Mapping[str, Any]) -> None:
        call.result, call.raw = Said(block, line.at), raw
        kind, is_error = line.text("toolDenialKind"), block.get("is_error") is True
        call.is_stopped = kind is not None
        call.ends_turn = line.fields.get("toolEndsTurn") is True and not is_error
        call.denier = kept.denier_of(kind, call.shown, is_error)
        if is_error and call.denier in (None, "a hook"):
            call.denier = self._hooks.get(block["tool_use_id"], call.denier)

    def _say(self, words: Sequence[Block], line: Line, by: SpokenBy | None) -> None:
        if words and (not self.messages or self.messages[-1].role != "user"):
            self.messages.append(SessionMessage("user"))
        for block in words:
            self.messages[-1].said.append(Said(block, line.at, by))

    def _add_attachment(self, line: Line) -> None:
        attachment = line.object("attachment")
        kind = str(attachment.get("type"))
        if kind == "prompt_snapshot":
            self.system = kept.inner_text(attachment.get("systemPrompt")) or self.system
        elif kind == "hook_blocking_error":
            hook = visible(str(attachment.get("hookName") or ""))
            self._hooks[as_text(attachment.get("toolUseID"))] = f"the hook {hook}".strip()
        if self.agent is not None and not self._replies:
            # An agent begins with its prompt; what it is given beside that is noted.
            self._note(line.at, kind, shown_text(line.blocks))
        elif line.blocks:
            self._say(line.blocks, line, line.by)
        elif kind in kept.NOTED_ATTACHMENTS:
            self._note(line.at, kind, kept.attachment_text(attachment))

    def _add_system(self, line: Line) -> None:
        subtype = line.text("subtype") or ""
        if subtype == "compact_boundary" and self.messages:
            self._add_boundary(line.object("compactMetadata"), line.at)
        elif subtype == "api_error":
            self._note(line.at, subtype, kept.api_error(line))
        elif subtype in _NOTED:
            self._note(line.at, subtype, line.text("content"))

    def _add_boundary(self, data: Mapping[str, Any], at: float) -> None:
        names = ("preservedMessages", "preservedSegment")
        preserved, segment = (as_object(data.get(name)) for name in names)
        uuids = preserved.get("allUuids") or preserved.get("uuids") or [segment.get("headUuid")]
        known = (self._places.get(as_text(uuid)) for uuid in as_list(uuids))
        first = min((place for place in known if place is not None), default=None)
        before = tokens_of(data.get("preTokens", data.get("pre_tokens")))
        after = tokens_of(data.get("postTokens"))
        self.boundaries.append(Boundary(len(self.messages), at, before, after, kept=first))

    def _follow_queue(self, line: Line) -> None:
        """Follow the queue of what a person types while the model works. Older versions say only
        here that it was delivered."""
        text = line.text("content")
        match line.text("operation"):
            case "enqueue" if text is not None:
                self._queued.append((line.at, text))
            case "remove" if self._queued:
                texts = [each for _, each in self._queued]
                _, text = self._queued.pop(texts.index(text) if text in texts else 0)
                if text not in self._texts:
                    block = {"type": "text", "text": text}
                    self._say([block], line, kept.speaker_of(line.fields, text))
            case "dequeue":
                self._drop_queued(1, "command")
            case "popAll":  # the person takes all of it back, to edit it
                self._drop_queued(None)

    def _drop_queued(self, count: int | None, of_commands: str = _UNDELIVERED) -> None:
        """Take the first texts from the queue, and note those that the conversation does not contain."""
        for at, text in self._queued[:count]:
            if text not in self._texts:
                self._note(at, of_commands if text.startswith("/") else _UNDELIVERED, text)
        del self._queued[:count]
