"""The messages of a session, put together from its lines.

Claude Code writes a line for each block of a reply, and one for each result; lines of one reply share
its id. They are taken in the order of the file: a session that was rewound has what was said before
that, and after it, one after the other.

The lines of a session file: what of them counts, and when it was.

Nothing describes the format; it varies from version to version. So what is unknown is passed over, and
what is missing is done without. What is there and cannot be read is refused: it would be lost silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any, Literal

from runner.exchange.lines import LONGEST_LINE, parsed

Kind = Literal["user", "assistant", "boundary", "title", "other"]

_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}
_LATEST = 1e11


@dataclass(frozen=True, slots=True)
class Entry:
    """A line: ``at`` is in seconds since the epoch, that of the line before where it has none.
    ``blocks`` are those of a message."""

    number: int
    kind: Kind
    at: float
    fields: Mapping[str, Any]
    blocks: tuple[dict[str, Any], ...] = ()

    def text(self, name: str) -> str | None:
        """A field that is a text, None where it is none."""
        value = self.fields.get(name)
        return value if isinstance(value, str) and value else None

    @property
    def message(self) -> Mapping[str, Any]:
        found = self.fields.get("message")
        return found if isinstance(found, dict) else {}

    @property
    def is_sidechain(self) -> bool:
        return self.fields.get("isSidechain") is True


class ReadingSession:
    """Reads a session file. ``number`` is the line that it is at, and ``is_torn`` says that the last one
    was being written when the file was copied, and is left out."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._seen: set[str] = set()
        self.number = 0
        self.is_torn = False

    def entries(self) -> Iterator[Entry]:
        """The lines in order, each once, blank ones left out.

        Raises:
            ValueError: what is wrong with the line ``number``.
        """
        at = 0.0
        while line := self._file.readline(LONGEST_LINE + 1):
            self.number += 1
            if len(line) > LONGEST_LINE:
                raise ValueError(f"it is longer than {LONGEST_LINE:,} bytes")
            if not line.strip():
                continue
            try:
                value = parsed(line)
            except ValueError:
                if line.endswith(b"\n"):
                    raise
                self.is_torn = True
                return
            entry = _entry(self.number, value, at)
            at = entry.at
            uuid = entry.text("uuid")
            if uuid is not None and entry.kind != "title":
                if uuid in self._seen:
                    continue
                self._seen.add(uuid)
            yield entry


def looks_like_a_session(first_line: bytes) -> bool:
    """Whether a file that begins so can be a session."""
    try:
        value = parsed(first_line)
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _entry(number: int, value: Any, before: float) -> Entry:
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    at = _moment(value.get("timestamp"), before)
    kind = value.get("type")
    if kind in ("user", "assistant"):
        return Entry(number, kind, at, value, tuple(_blocks(value.get("message"))))
    if kind == "system" and value.get("subtype") == "compact_boundary":
        return Entry(number, "boundary", at, value)
    is_title = isinstance(kind, str) and kind in _TITLES
    return Entry(number, "title" if is_title else "other", at, value)


def title_of(entry: Entry) -> str | None:
    """What a line calls the session."""
    return entry.text(_TITLES[str(entry.fields["type"])])


def _blocks(message: Any) -> Iterator[dict[str, Any]]:
    if message is None:
        return
    if not isinstance(message, dict):
        raise ValueError("its message is no object")
    content = message.get("content")
    if content is None:
        return
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list):
        raise ValueError("its message's content is neither text nor a list of blocks")
    for block in content:
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        yield _checked(block)


def _checked(block: Any) -> dict[str, Any]:
    """A block as everything here takes it for granted."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise ValueError("a block of its message has no type")
    match block["type"]:
        case "text":
            _require(block, "text")
        case "tool_use":
            _require(block, "id")
            _require(block, "name")
            return {**block, "input": block.get("input", {})}
        case "tool_result":
            _require(block, "tool_use_id")
            content = block.get("content")
            if content is None:
                return {**block, "content": ""}
            if not isinstance(content, str | list):
                raise ValueError(
                    "the content of a tool_result is neither text nor a list of blocks"
                )
    return block


def _require(block: Mapping[str, Any], name: str) -> None:
    if not isinstance(block.get(name), str):
        raise ValueError(f"a block of type {block['type']} has no {name}")


def _moment(value: Any, before: float) -> float:
    """Seconds since the epoch of a time in ISO 8601."""
    if not isinstance(value, str):
        return before
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return before
    try:
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):  # a year that no clock has
        return before
    return seconds if 0 <= seconds <= _LATEST else before


SYNTHETIC = "<synthetic>"  # what Claude Code names as the model of words of its own
_TOKENS = {
    "input_tokens": "input_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "cache_creation_tokens": "cache_creation_input_tokens",
    "output_tokens": "output_tokens",
}
_MOST_TOKENS = 2**53


@dataclass
class Said:
    """A block, and when it was said."""

    block: dict[str, Any]
    at: float


@dataclass
class Result(Said):
    """The result of a call. ``raw`` is what Claude Code kept of it beside what the model was shown."""

    raw: Any = None
    denial: str | None = None


@dataclass
class Message:
    """A message of the user's, or a reply with the results of its calls: those are of the message
    after it, before the words of the user that are there."""

    role: str
    said: list[Said] = field(default_factory=list)
    uses: list[Said] = field(default_factory=list)  # of ``said``
    results: dict[int, Result] = field(default_factory=dict)  # by place in ``uses``
    asked_at: float = 0.0
    lines: list[Entry] = field(default_factory=list)

    @property
    def last(self) -> Mapping[str, Any]:
        """The reply as the newest of its lines has it."""
        return self.lines[-1].message

    @property
    def model(self) -> str:
        found = self.last.get("model")
        return found if isinstance(found, str) and found else "unknown"

    @property
    def ended_at(self) -> float:
        return max(line.at for line in self.lines)

    def stop_reason(self) -> str:
        """Why it stopped. Lines of replies that were streamed do not say so: then by what they hold."""
        for line in reversed(self.lines):
            reason = line.message.get("stop_reason")
            if isinstance(reason, str) and reason:
                return reason
        return "tool_use" if self.uses else "end_turn"

    def usage(self) -> dict[str, int]:
        """Tokens by kind. Each line repeats them; output grows while a reply is streamed."""
        given = [line.message.get("usage") for line in self.lines]
        known = [usage for usage in given if isinstance(usage, dict)]
        return {
            name: max((_tokens(usage.get(theirs)) for usage in known), default=0)
            for name, theirs in _TOKENS.items()
        }

    def hour_cache(self) -> bool:
        """Whether what it wrote to the cache lives for an hour, more of it than not."""
        usage = self.last.get("usage")
        written = usage.get("cache_creation") if isinstance(usage, dict) else None
        if not isinstance(written, dict):
            return False
        hour = _tokens(written.get("ephemeral_1h_input_tokens"))
        return hour > _tokens(written.get("ephemeral_5m_input_tokens"))


@dataclass
class Boundary:
    """From the message of number ``before`` on, ``text`` stands in for what was said until then."""

    before: int
    at: float
    tokens_before: int = 0
    tokens_after: int = 0
    text: str = ""


class Conversation:
    """The messages of one session, or of one agent in it, as its lines are added."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.boundaries: list[Boundary] = []
        self.entries: list[Entry] = []
        self._replies: dict[str, Message] = {}
        self._calls: dict[str, tuple[Message, int]] = {}

    def add(self, entry: Entry) -> None:
        """Add the next line."""
        before = self.entries[-1].at if self.entries else entry.at
        self.entries.append(entry)
        match entry.kind:
            case "assistant":
                self._add_reply(entry, before)
            case "boundary" if self.messages:
                self._add_boundary(entry)
            case "user" if entry.fields.get("isCompactSummary") is True and self.messages:
                self._add_summary(entry)
            case "user":
                self._add_user(entry)

    def _add_reply(self, entry: Entry, before: float) -> None:
        if not entry.blocks:
            return
        id_ = entry.message.get("id")
        key = (id_ if isinstance(id_, str) else None) or entry.text("requestId")
        reply = self._replies.get(key) if key is not None else None
        if reply is None:
            reply = Message("assistant", asked_at=min(before, entry.at))
            self.messages.append(reply)
            if key is not None:
                self._replies[key] = reply
        reply.lines.append(entry)
        for block in entry.blocks:
            said = Said(block, entry.at)
            if block["type"] == "tool_use":
                if block["id"] in {use.block["id"] for use in reply.uses}:
                    continue
                self._calls[block["id"]] = (reply, len(reply.uses))
                reply.uses.append(said)
            reply.said.append(said)

    def _add_user(self, entry: Entry) -> None:
        words = [block for block in entry.blocks if not self._is_result(entry, block)]
        words = [block for block in words if block["type"] != "text" or block["text"]]
        if not words:
            return
        if not self.messages or self.messages[-1].role != "user":
            self.messages.append(Message("user"))
        self.messages[-1].said += [Said(block, entry.at) for block in words]
        self.messages[-1].lines.append(entry)

    def _is_result(self, entry: Entry, block: dict[str, Any]) -> bool:
        """Whether a block is the result of a call, which is kept with the reply that asked for it."""
        if block["type"] != "tool_result" or block["tool_use_id"] not in self._calls:
            return False
        reply, place = self._calls[block["tool_use_id"]]
        alone = sum(each["type"] == "tool_result" for each in entry.blocks) == 1
        raw = entry.fields.get("toolUseResult") if alone else None
        reply.results.setdefault(place, Result(block, entry.at, raw, entry.text("toolDenialKind")))
        return True

    def _add_boundary(self, entry: Entry) -> None:
        data = entry.fields.get("compactMetadata")
        data = data if isinstance(data, dict) else {}
        self.boundaries.append(
            Boundary(
                len(self.messages),
                entry.at,
                _tokens(data.get("preTokens")),
                _tokens(data.get("postTokens")),
            )
        )

    def _add_summary(self, entry: Entry) -> None:
        text = "\n\n".join(block["text"] for block in entry.blocks if block["type"] == "text")
        last = self.boundaries[-1] if self.boundaries else None
        if last is None or last.before != len(self.messages) or last.text:
            last = Boundary(len(self.messages), entry.at)
            self.boundaries.append(last)
        last.text = text


def _tokens(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0
