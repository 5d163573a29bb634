"""Sessions as runs: the rows that tell what was said and done in them.

What happened in a session, as events: what Runner would have recorded of the same.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

from runner.core.conversation import Usage
from runner.core.events import (
    INPUT_SUMMARY_LENGTH,
    OUTPUT_SUMMARY_LENGTH,
    Event,
    summarise_input,
    usage_of,
)
from runner.core.text import shorten, visible
from runner.exchange.recorded import SESSION
from runner.exchange.sessions import (
    SYNTHETIC,
    Boundary,
    Conversation,
    Entry,
    Message,
    ReadingSession,
    Result,
    title_of,
)

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_DENIED = ("permission-rule", "user-rejected")
_REJECTED = "The user doesn't want to proceed with this tool use."
_INTERRUPTED = "[Request interrupted by user"
_LARGEST_OUTPUT = 10_000_000  # bytes, as of a tool's own

Rows = dict[str, list[dict[str, Any]]]


@dataclass
class SessionRun:
    """A session, or an agent's part of it, as a run: rows by table, each with the run's id. ``usage`` is
    the sum of its replies', ``reason`` says why it is in its state."""

    id: str
    project: str
    item: dict[str, Any]
    model: str
    state: str
    reason: str
    started_at: float
    ended_at: float
    turns: int
    message_count: int
    usage: Usage
    rows: Rows = field(default_factory=dict)


@dataclass(frozen=True)
class SessionFile:
    """What a file holds. ``is_torn`` says that its last line was not whole, and is left out."""

    runs: tuple[SessionRun, ...]
    is_torn: bool


def read_sessions(reading: ReadingSession) -> SessionFile:
    """The runs of a session file: the session, and each of the agents that worked in it.

    Raises:
        ValueError: a line cannot be read (``reading.number``), or nothing was said in it.
    """
    main = Conversation()
    agents: dict[str, Conversation] = {}
    roots: dict[str, str] = {}
    title: str | None = None
    for entry in reading.entries():
        if entry.kind == "title":
            title = title_of(entry) or title
        elif entry.is_sidechain:
            agents.setdefault(_agent_of(entry, roots), Conversation()).add(entry)
        else:
            main.add(entry)
    found = [_run(main, None, title)] if main.messages else []
    found += [_run(one, agent, None) for agent, one in agents.items() if one.messages]
    if not found:
        raise ValueError("nothing was said in the session")
    return SessionFile(tuple(found), reading.is_torn)


def session_file(file: IO[bytes]) -> ReadingSession:
    """A session file from its beginning."""
    file.seek(0)
    return ReadingSession(file)


def _agent_of(entry: Entry, roots: dict[str, str]) -> str:
    """The agent whose line it is: by its id, or by the line that its conversation began with."""
    uuid, parent = entry.text("uuid") or "", entry.text("parentUuid") or ""
    root = entry.text("agentId") or roots.get(parent) or uuid or "agent"
    roots[uuid] = root
    return root


def _last_text(entries: Sequence[Entry], name: str) -> str | None:
    return next((text for entry in reversed(entries) if (text := entry.text(name))), None)


def _run(talk: Conversation, agent: str | None, title: str | None) -> SessionRun:
    entries = talk.entries
    session_id = _last_text(entries, "sessionId") or ""
    started = next((entry.at for entry in entries if entry.at), 0.0)
    first_cwd = next((text for entry in entries if (text := entry.text("cwd"))), None)
    run_id = _run_id(session_id or str(entries[0].text("uuid")), agent, started)
    replies = [message for message in talk.messages if message.role == "assistant"]
    state, reason = _end(talk.messages)
    session = {
        "session_id": session_id or None,
        "agent_id": agent,
        "title": title,
        "cwd": first_cwd,
        "git_branch": _last_text(entries, "gitBranch"),
        "version": _last_text(entries, "version"),
    }
    models = [reply.model for reply in replies if reply.model != SYNTHETIC]
    run = SessionRun(
        id=run_id,
        project=visible(first_cwd or "unknown"),
        item={SESSION: session},
        model=visible(models[-1]) if models else "unknown",
        state=state,
        reason=reason,
        started_at=started,
        ended_at=max(entry.at for entry in entries),
        turns=len(replies),
        message_count=0,
        usage=Usage(),
    )
    _Rows(run).fill(talk)
    return run


def _run_id(session: str, agent: str | None, started: float) -> str:
    """Always the same for a session: it sorts by when it began, as other ids do."""
    digest = hashlib.sha256(json.dumps([session, agent]).encode()).digest()
    value = (int(started * 1000) << 80) | int.from_bytes(digest[:10], "big")
    digits = ""
    for _ in range(26):
        value, digit = divmod(value, 32)
        digits = _DIGITS[digit] + digits
    return f"run_{digits}"


def _end(messages: Sequence[Message]) -> tuple[str, str]:
    """The state and its reason: an end is a last word that nothing follows."""
    last = messages[-1]
    if last.role == "assistant" and len(last.results) == len(last.uses):
        reason = last.stop_reason()
        if reason == "refusal":
            return "failed", "refusal"
        if not last.uses and reason in ("end_turn", "stop_sequence"):
            return "succeeded", "end_turn"
    return "cancelled", "cancelled"


class _Rows:
    """Makes the rows of a session's messages."""

    def __init__(self, run: SessionRun) -> None:
        self._run = run
        names = ("blocks", "tool_calls", "tool_outputs", "model_calls", "compactions")
        self._rows: Rows = {name: [] for name in names}
        self._turn = 0

    def fill(self, talk: Conversation) -> None:
        boundaries = list(talk.boundaries)
        numbers = _numbers(talk.messages)
        behind = 0  # how many results come before words in the message that follows
        for place, (message, number) in enumerate(zip(talk.messages, numbers, strict=True)):
            while boundaries and boundaries[0].before <= place:
                self._add_compaction(boundaries.pop(0), talk.messages, numbers)
            if message.role == "assistant":
                self._add_reply(message, number)
                behind = len(message.uses)
            else:
                for position, said in enumerate(message.said, behind):
                    self._add_block(number, position, "user", said.block, said.at)
        for boundary in boundaries:
            self._add_compaction(boundary, talk.messages, numbers)
        self._run.rows = self._rows
        self._run.message_count = len({row["message"] for row in self._rows["blocks"]})

    def _add(self, table: str, **row: Any) -> None:
        self._rows[table].append({"run_id": self._run.id, **row})

    def _add_block(
        self, message: int, position: int, role: str, block: dict[str, Any], at: float
    ) -> None:
        self._add(
            "blocks",
            message=message,
            position=position,
            role=role,
            type=visible(block["type"]),
            turn=self._turn,
            content=block,
            created_at=at,
        )

    def _add_reply(self, reply: Message, number: int) -> None:
        self._turn += 1
        for position, said in enumerate(reply.said):
            self._add_block(number, position, "assistant", said.block, said.at)
        if reply.model != SYNTHETIC:
            self._add_model_call(reply)
        for position, use in enumerate(reply.uses):
            self._add_call(number, position, use.block, use.at, reply.results.get(position))

    def _add_call(
        self, message: int, position: int, use: dict[str, Any], at: float, result: Result | None
    ) -> None:
        call: dict[str, Any] = {
            "message": message,
            "position": position,
            "turn": self._turn,
            "tool_use_id": visible(use["id"]),
            "name": visible(use["name"]),
            "started_attempt": 1,
            "started_at": at,
            "interrupted": result is None,
        }
        if result is not None:
            shown = text_of(result.block["content"])
            outcome = _outcome(result, shown)
            call |= {
                "ended_at": max(result.at, at),
                "duration": max(result.at - at, 0.0),
                "outcome": outcome,
                "denial": shorten(shown, 300) if outcome == "denied" else None,
            }
            self._add_block(message + 1, position, "user", result.block, result.at)
            whole = _whole_output(result, shown)
            if whole is not None:
                self._add(
                    "tool_outputs",
                    message=message,
                    position=position,
                    size=len(whole),
                    compressed=zlib.compress(whole),
                )
        self._add("tool_calls", **call)

    def _add_model_call(self, reply: Message) -> None:
        usage = reply.usage()
        total = sum(usage.values())
        self._run.usage += Usage(**usage)
        ended = reply.ended_at
        self._add(
            "model_calls",
            number=len(self._rows["model_calls"]) + 1,
            attempt=1,
            turn=self._turn,
            model=visible(reply.model),
            max_tokens=0,
            worst_case=total,
            started_at=reply.asked_at,
            ended_at=ended,
            latency=max(ended - reply.asked_at, 0.0),
            request_id=_request_id(reply),
            stop_reason=visible(reply.stop_reason()),
            **usage,
            charged_tokens=total,
            purpose="turn",
            hour_cache=reply.hour_cache(),
        )

    def _add_compaction(
        self, boundary: Boundary, messages: Sequence[Message], numbers: Sequence[int]
    ) -> None:
        before = messages[boundary.before - 1]
        last = numbers[boundary.before - 1] + bool(before.results)
        self._add(
            "compactions",
            number=len(self._rows["compactions"]) + 1,
            kind="summary" if boundary.text else "prune",
            first_message=min(1, last),
            last_message=last,
            text=boundary.text,
            clips=[],
            tokens_before=boundary.tokens_before,
            tokens_after=boundary.tokens_after,
            turn=self._turn + 1,
            first_sent_in=len(self._rows["model_calls"]) + 1,
            created_at=boundary.at,
        )


def _numbers(messages: Sequence[Message]) -> list[int]:
    """The numbers of messages. That of results, behind a reply with calls, is also that of the words
    which follow it; where another reply follows, it is left free for them."""
    numbers: list[int] = []
    for place, message in enumerate(messages):
        before = messages[place - 1] if place else None
        number = numbers[-1] + 1 if numbers else 0
        if before is not None and before.uses and message.role == "assistant":
            number += 1
        numbers.append(number)
    return numbers


def _request_id(reply: Message) -> str | None:
    found = next((text for line in reply.lines if (text := line.text("requestId"))), None)
    return None if found is None else visible(found)


def _outcome(result: Result, shown: str) -> str:
    """What became of a call. What Claude Code did not let run says so, in newer versions in a field."""
    if result.denial in _DENIED:
        return "denied"
    if result.denial is not None or shown.startswith(_INTERRUPTED):
        return "interrupted"
    if not result.block.get("is_error"):
        return "succeeded"
    return "denied" if shown.startswith(_REJECTED) else "failed"


def text_of(content: Any) -> str:
    """The text of a result's content; what is no text in it is left out."""
    if isinstance(content, str):
        return content
    return "\n".join(
        block["text"]
        for block in content
        if isinstance(block, dict) and isinstance(block.get("text"), str)
    )


def _whole_output(result: Result, shown: str) -> bytes | None:
    """What a command printed, where that is longer than what the model was shown."""
    if not isinstance(result.raw, dict):
        return None
    printed = [result.raw.get(name) for name in ("stdout", "stderr")]
    whole = "\n".join(text for text in printed if isinstance(text, str) and text)
    encoded = whole.encode("utf-8", "replace")
    return encoded if len(shown) < len(whole) and len(encoded) <= _LARGEST_OUTPUT else None


class Happened(NamedTuple):
    """An event with its time, in seconds since the epoch."""

    at: float
    event: Event


def happened_in(run: SessionRun) -> list[Happened]:
    """What the model answered, the calls and what became of them, and compactions, in order."""
    found = [*_model_calls(run), *_calls(run), *_compactions(run)]
    return sorted(found, key=lambda each: each.at)


_TELLING = {"model_call_ended": ("call",), "context_compacted": ("first", "last")}


def what_it_tells_of(event: Event) -> tuple[Any, ...]:
    """What events of a session have in common that tell of the same thing, and no others."""
    names = _TELLING.get(event.type, ("turn", "call_index"))
    return (event.type, *(event.data.get(name) for name in names))


def _model_calls(run: SessionRun) -> Iterator[Happened]:
    for row in run.rows["model_calls"]:
        kinds = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")
        data = {
            "call": row["number"],
            "turn": row["turn"],
            "stop_reason": shorten(row["stop_reason"], INPUT_SUMMARY_LENGTH),
            "usage": usage_of(Usage(*(row[kind] for kind in kinds))),
            "request_id": row["request_id"],
            "latency": round(row["latency"], 3),
        }
        yield Happened(row["ended_at"], Event("model_call_ended", data))


def _calls(run: SessionRun) -> Iterator[Happened]:
    contents = {(row["message"], row["position"]): row["content"] for row in run.rows["blocks"]}
    uses: dict[int, list[Any]] = {}
    for (message, _), block in sorted(contents.items(), key=lambda each: each[0]):
        if block["type"] == "tool_use":
            uses.setdefault(message, []).append(block["input"])
    for row in run.rows["tool_calls"]:
        place = (row["message"] + 1, row["position"])
        of_call: dict[str, Any] = {
            "turn": row["turn"],
            "call_index": row["position"],
            "tool_use_id": shorten(row["tool_use_id"], INPUT_SUMMARY_LENGTH),
            "name": shorten(row["name"], INPUT_SUMMARY_LENGTH),
        }
        given = uses[row["message"]][row["position"]]
        started = of_call | {"input": summarise_input(given)}
        yield Happened(row["started_at"], Event("tool_started", started))
        if row.get("outcome") is not None:
            ended = {
                "output": shorten(text_of(contents[place]["content"]), OUTPUT_SUMMARY_LENGTH),
                "outcome": row["outcome"],
                "is_error": row["outcome"] != "succeeded",
                "duration": round(row["duration"], 4),
            }
            yield Happened(row["ended_at"], Event("tool_done", of_call | ended))


def _compactions(run: SessionRun) -> Iterator[Happened]:
    for row in run.rows["compactions"]:
        data = {
            "kind": row["kind"],
            "first": row["first_message"],
            "last": row["last_message"],
            "tokens_before": row["tokens_before"],
            "tokens_after": row["tokens_after"],
        }
        yield Happened(row["created_at"], Event("context_compacted", data))
