"""Reads session files of Claude Code as runs.

Claude Code writes a line for each block of a reply and one for each result; the lines of a reply share
its id. Lines count in the order of the file: a session that was rewound keeps what was said before.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from runner.core import events as audit
from runner.core.agents import child_id, place_of
from runner.core.conversation import Block, Usage
from runner.core.events import Event
from runner.core.text import shorten, visible
from runner.exchange import session_lines as kept
from runner.exchange.recorded import SESSION
from runner.exchange.session_lines import Line, SpokenBy, as_object, as_text, shown_text

TABLES = ("sessions", "blocks", "tool_calls", "tool_outputs", "model_calls", "compactions")
READER = 2  # the version of this reading: a file that an older one has read is read again

# The lines of a session's file (named "") and of the files beside it, by name, without line feeds.
Files = Mapping[str, Sequence[bytes]]

_SYNTHETIC = "<synthetic>"  # the model that Claude Code names for words of its own
_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}
_TOKENS = {
    "input_tokens": ("input_tokens", "inputTokens"),
    "cache_read_tokens": ("cache_read_input_tokens", "cacheReadInputTokens"),
    "cache_creation_tokens": ("cache_creation_input_tokens", "cacheCreationInputTokens"),
    "output_tokens": ("output_tokens", "outputTokens"),
}
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_MOST_TOKENS = 2**53
_LARGEST_OUTPUT = 10_000_000  # bytes, as for a tool of Runner's
_LONGEST_NOTE = 300
_MOST_USD = 1e9
# What is said after a session's last reply without asking for another.
_AFTERWORDS = re.compile(
    r"<(?:command-(?:name|message|args)|local-command-\w+)>|Caveat: The messages "
)
_NO_REPLY = "No response requested."
_AGENT_TOOLS = ("Agent", "Task")
_AGENT_FILE = re.compile(r"agent-(.+)\.(?:jsonl|meta\.json)")
_NOTED = ("local_command", "api_error", "informational", "away_summary", "model_refusal_fallback")


class Happened(NamedTuple):
    at: float  # seconds since the epoch
    event: Event


class UnreadableLineError(ValueError):
    """A line of a file that cannot be read."""

    def __init__(self, file: str, number: int, why: ValueError) -> None:
        super().__init__(str(why))
        self.file, self.number = file, number


def _tokens(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0


def _usage_of(stated: Mapping[str, Any]) -> dict[str, int]:
    return {name: max(_tokens(stated.get(each)) for each in said) for name, said in _TOKENS.items()}


# --- Messages ---


@dataclass
class _Said:
    block: Block
    at: float
    by: SpokenBy | None = None
    # Of a result: what Claude Code kept beside what the model was shown, and who denied the call.
    raw: Any = None
    denial: str | None = None
    is_stopped: bool = False  # it did not run


@dataclass
class _Message:
    """A message of the user, or a reply with the results of its calls. The results belong to the
    message after it, before the words of the user."""

    role: str
    asked_at: float = 0.0
    said: list[_Said] = field(default_factory=list)
    uses: list[_Said] = field(default_factory=list)  # the tool calls in ``said``
    results: dict[int, _Said] = field(default_factory=dict)  # by index in ``uses``
    lines: list[Line] = field(default_factory=list)
    id: str | None = None  # of a reply, as the API names it

    @property
    def model(self) -> str:
        return as_text(self.lines[-1].message.get("model")) or "unknown"

    @property
    def stop_reason(self) -> str:
        """The lines of a streamed reply may not say it; then its blocks do."""
        told = (as_text(line.message.get("stop_reason")) for line in reversed(self.lines))
        return next(filter(None, told), "tool_use" if self.uses else "end_turn")

    @property
    def text(self) -> str:
        return shown_text([each.block for each in self.said])

    @property
    def is_error(self) -> bool:
        """True if the words of Claude Code's own say that the API failed."""
        is_told = any(line.fields.get("isApiErrorMessage") is True for line in self.lines)
        return is_told or (self.model == _SYNTHETIC and self.text.startswith("API Error"))

    @property
    def is_afterword(self) -> bool:
        """True if it asks for no reply, and is none."""
        if self.role == "assistant":
            return self.model == _SYNTHETIC and self.text == _NO_REPLY
        texts = [as_text(each.block.get("text")) for each in self.said]
        return all(text and (_AFTERWORDS.match(text)) for text in texts)

    def usage(self) -> dict[str, int]:
        """Return the tokens by kind. Each line repeats them; output grows while a reply is streamed."""
        known = [_usage_of(as_object(line.message.get("usage"))) for line in self.lines]
        return {name: max(usage[name] for usage in known) for name in _TOKENS}

    def hour_cache(self) -> bool:
        """True if most of what it wrote to the cache lives for an hour."""
        usage = as_object(self.lines[-1].message.get("usage"))
        written = as_object(usage.get("cache_creation"))
        hour = _tokens(written.get("ephemeral_1h_input_tokens"))
        return hour > _tokens(written.get("ephemeral_5m_input_tokens"))

    def is_under_reported(self) -> bool:
        """True if its text is far longer than its tokens of output can be."""
        written = sum(len(json.dumps(each.block.get("input", ""))) for each in self.uses)
        return len(self.text) + written > 200 + 12 * self.usage()["output_tokens"]


@dataclass
class _Boundary:
    """A compaction: from message ``before`` on, ``text`` stands in for what was said until then, but
    for the messages from ``kept`` on."""

    before: int
    at: float
    tokens_before: int = 0
    tokens_after: int = 0
    text: str = ""
    kept: int | None = None


class _Note(NamedTuple):
    """Something that happened beside the conversation."""

    at: float
    kind: str
    text: str


class _Conversation:
    """The messages of a session, or of an agent in it, as its lines are added. ``texts`` are all that
    the lines to come say or deliver."""

    def __init__(self, agent: str | None, texts: Collection[str]) -> None:
        self.agent = agent
        self.lines: list[Line] = []
        self.messages: list[_Message] = []
        self.boundaries: list[_Boundary] = []
        self.notes: list[_Note] = []
        self.result: Line | None = None  # the last word of ``stream-json``
        self.system: str | None = None
        self.calls: dict[str, tuple[_Message, int]] = {}  # by the API's id
        self._texts = texts
        self._queued: list[tuple[float, str]] = []
        self._replies: dict[str, _Message] = {}
        self._places: dict[str, int] = {}  # of the message that has a line, by uuid
        self._hooks: dict[str, str] = {}  # that blocked a call, by the API's id
        self._mode: str | None = None

    def add(self, line: Line) -> None:
        asked_at = self.lines[-1].at if self.lines else line.at
        self.lines.append(line)
        match line.kind:
            case "assistant" if line.blocks:
                self._add_reply(line, min(asked_at, line.at))
            case "user" if line.fields.get("isCompactSummary") is True and self.messages:
                last = self.boundaries[-1] if self.boundaries else None
                if last is None or last.before != len(self.messages) or last.text:
                    last = _Boundary(len(self.messages), line.at)
                    self.boundaries.append(last)
                last.text = shown_text(line.blocks)
            case "user":
                self._add_user(line)
            case "attachment":
                self._add_attachment(line)
            case "system":
                self._add_system(line)
            case "queue-operation":
                self._add_queued(line)
            case "pr-link":
                self._note(line, "pr-link", line.text("prUrl"))
            case "permission-mode" if (mode := line.text("permissionMode")) != self._mode:
                self._mode = mode
                self._note(line, "permission-mode", mode)
            case "result":
                self.result = line
        if (uuid := line.text("uuid")) is not None and self.messages:
            self._places[uuid] = len(self.messages) - 1

    def end(self) -> None:
        """Note what a person typed and the session never took."""
        for at, text in self._queued:
            if text not in self._texts:
                self.notes.append(_Note(at, "never delivered", text))

    def last(self, name: str) -> str | None:
        return next((text for line in reversed(self.lines) if (text := line.text(name))), None)

    def first(self, name: str) -> str | None:
        return next((text for line in self.lines if (text := line.text(name))), None)

    def denied_by_words(self) -> Mapping[str, str]:
        """Return who denied calls that only the last word of ``stream-json`` tells of."""
        denials = self.result.fields.get("permission_denials") if self.result is not None else None
        ids = (as_object(each).get("tool_use_id") for each in denials or ())
        return {id_: "the permission mode" for id_ in ids if isinstance(id_, str)}

    def _note(self, line: Line, kind: str, text: str | None) -> None:
        if text:
            self.notes.append(_Note(line.at, kind, text))

    def _add_reply(self, line: Line, asked_at: float) -> None:
        id_ = visible(as_text(line.message.get("id")) or line.text("requestId") or "") or None
        reply = self._replies.get(id_) if id_ is not None else None
        if reply is None:
            reply = _Message("assistant", asked_at=asked_at, id=id_)
            self.messages.append(reply)
            if id_ is not None:
                self._replies[id_] = reply
        reply.lines.append(line)
        for block in line.blocks:
            said = _Said(block, line.at)
            if block["type"] == "tool_use":
                if block["id"] in {use.block["id"] for use in reply.uses}:
                    continue
                self.calls[block["id"]] = (reply, len(reply.uses))
                reply.uses.append(said)
            reply.said.append(said)

    def _add_user(self, line: Line) -> None:
        results = [block for block in line.blocks if block["type"] == "tool_result"]
        # What Claude Code kept is of the one result that the line has.
        raw = line.fields.get("toolUseResult") if len(results) == 1 else None
        by = kept.speaker_of(line, shown_text(line.blocks))
        words = []
        for block in line.blocks:
            if block["type"] == "tool_result" and block["tool_use_id"] in self.calls:
                reply, place = self.calls[block["tool_use_id"]]
                shown, is_error = shown_text(block["content"]), block.get("is_error") is True
                denial = kept.denier_of(line.text("toolDenialKind"), shown, is_error)
                if is_error and denial in (None, "a hook"):
                    denial = self._hooks.get(block["tool_use_id"], denial)
                stopped = line.text("toolDenialKind") is not None
                reply.results.setdefault(place, _Said(block, line.at, None, raw, denial, stopped))
            elif block["type"] != "text" or block["text"]:
                words.append(_Said(block, line.at, by))
        self._say(words)

    def _say(self, words: Sequence[_Said]) -> None:
        if not words:
            return
        if not self.messages or self.messages[-1].role != "user":
            self.messages.append(_Message("user"))
        self.messages[-1].said += words

    def _add_attachment(self, line: Line) -> None:
        attachment = as_object(line.fields.get("attachment"))
        kind, use_id = str(attachment.get("type")), attachment.get("toolUseID")
        self.system = kept.system_prompt(line) or self.system
        if kind == "hook_blocking_error" and isinstance(use_id, str):
            self._hooks[use_id] = (
                f"the hook {visible(str(attachment.get('hookName') or ''))}".strip()
            )
        by, blocks = kept.given_by(line)
        if self.agent is not None and not self._replies:
            # An agent begins with its prompt; what it is given beside that is noted.
            self._note(line, kind, shown_text(blocks))
        elif blocks:
            self._say([_Said(block, line.at, by) for block in blocks])
        elif kind in kept.NOTED_ATTACHMENTS:
            self._note(line, kind, kept.attachment_text(attachment))

    def _add_system(self, line: Line) -> None:
        subtype = line.text("subtype") or ""
        if subtype == "compact_boundary" and self.messages:
            data = as_object(line.fields.get("compactMetadata"))
            before = _tokens(data.get("preTokens", data.get("pre_tokens")))
            after = _tokens(data.get("postTokens"))
            preserved, segment = (
                as_object(data.get(name)) for name in ("preservedMessages", "preservedSegment")
            )
            uuids = preserved.get("allUuids") or preserved.get("uuids") or [segment.get("headUuid")]
            places = [
                self._places[uuid]
                for uuid in uuids
                if isinstance(uuid, str) and uuid in self._places
            ]
            boundary = _Boundary(len(self.messages), line.at, before, after)
            boundary.kept = min(places, default=None)
            self.boundaries.append(boundary)
        elif subtype in _NOTED:
            error = as_object(line.fields.get("error"))
            self._note(line, subtype, line.text("content") or as_text(error.get("message")))

    def _add_queued(self, line: Line) -> None:
        """Follow the queue of what a person types while the model works. Older versions say only
        here that it was delivered."""
        text, operation = line.text("content"), line.text("operation")
        if operation == "enqueue" and text is not None:
            self._queued.append((line.at, text))
        elif operation == "remove" and self._queued:
            place = next((n for n, (_, each) in enumerate(self._queued) if each == text), 0)
            _, text = self._queued.pop(place)
            if text not in self._texts:
                self._say(
                    [_Said({"type": "text", "text": text}, line.at, kept.speaker_of(line, text))]
                )
        elif operation == "dequeue" and self._queued:
            self._queued.append(self._queued.pop(0))


# --- Sessions ---


class Session:
    """A session as its files have it. ``modified`` is when the file was changed, for lines without a
    time. Raises ``UnreadableLineError``, or ``ValueError`` if nothing was said."""

    def __init__(self, files: Files, modified: float = 0.0) -> None:
        lines = {
            name: _timed(_read(name, raw), modified)
            for name, raw in files.items()
            if not name.endswith(".json")
        }
        self._meta = {name: _meta_of(raw) for name, raw in files.items() if name.endswith(".json")}
        texts = set(_texts_in(line for each in lines.values() for line in each))
        self._main = _Conversation(None, texts)
        self._agents: dict[str, _Conversation] = {}
        titles: dict[str, str] = {}
        self.stated_usd: float | None = None
        self.forked_from: str | None = None
        agent_of_line: dict[str, str] = {}
        seen: set[str] = set()
        for name, of_file in lines.items():
            for line in of_file:
                uuid = line.text("uuid")
                if line.kind in _TITLES:
                    if title := line.text(_TITLES[line.kind]):
                        titles[line.kind] = title
                    continue
                if uuid is not None and uuid in seen:
                    continue
                seen.add(uuid or "")
                fork = as_object(line.fields.get("forkedFrom")).get("sessionId")
                self.forked_from = as_text(fork) or self.forked_from
                for said in ("total_cost_usd", "totalCostUSD"):
                    usd = line.fields.get(said)
                    if isinstance(usd, int | float) and 0 <= usd < _MOST_USD:
                        self.stated_usd = float(usd)
                agent = self._agent_of(name, line, agent_of_line)
                if agent is None:
                    self._main.add(line)
                else:
                    self._agents.setdefault(agent, _Conversation(agent, texts)).add(line)
        self._agents = {name: one for name, one in self._agents.items() if one.messages}
        if not (self._main.messages or self._agents):
            raise ValueError("nothing was said in the session")
        self.title = next((titles[kind] for kind in reversed(_TITLES) if kind in titles), None)
        known = (one.last("sessionId") or one.first("uuid") for one in self._conversations)
        self.id = visible(next(filter(None, known), ""))
        for one in self._conversations:
            one.end()

    @property
    def _conversations(self) -> Sequence[_Conversation]:
        return (*((self._main,) if self._main.messages else ()), *self._agents.values())

    @staticmethod
    def _agent_of(name: str, line: Line, agent_of_line: dict[str, str]) -> str | None:
        of_file = _AGENT_FILE.fullmatch(name)
        if line.fields.get("isSidechain") is not True and of_file is None:
            return None
        # Older versions name no agent: the line that the conversation began with stands for it.
        uuid, parent = line.text("uuid") or "", line.text("parentUuid") or ""
        named = line.text("agentId") or (of_file[1] if of_file else None)
        agent = visible(named or agent_of_line.get(parent) or uuid or "agent")
        agent_of_line[uuid] = agent
        return agent

    @property
    def cwd(self) -> str | None:
        return self._main.first("cwd")

    @property
    def reply_ids(self) -> Sequence[str]:
        """The API's ids of all replies."""
        found = (message.id for one in self._conversations for message in one.messages)
        return [id_ for id_ in found if id_ is not None]

    def runs(
        self, known: Mapping[str | None, str], counted: Mapping[str, str]
    ) -> tuple[SessionRun, ...]:
        """Return the session as a run, then its agents, each after the run that started it.

        Args:
            known: the ids of runs that are stored, by agent (None: the session itself).
            counted: the replies that other runs have, by the API's id: their tokens count there.
        """
        if not self._main.messages:
            return tuple(
                self._run(one, known.get(one.agent), None, counted) for one in self._conversations
            )
        root = self._run(self._main, known.get(None), None, counted)
        made: dict[str | None, SessionRun] = {None: root}
        links = self._links()
        waiting = sorted(self._agents, key=lambda name: self._agents[name].lines[0].at)
        numbers: Counter[str] = Counter()
        for each in known.values():
            if (above := place_of(each)["parent"]) is not None:
                numbers[above] = max(numbers[above], int(each.rpartition(".")[2]))
        while waiting:
            # An agent that names itself, or one that is not there, is the session's own.
            ready = [name for name in waiting if links.get(name, _Link()).owner in made]
            for name in ready or waiting:
                link = links.get(name, _Link())
                parent = made.get(link.owner, root)
                numbers[parent.id] += name not in known
                run_id = known.get(name) or child_id(parent.id, numbers[parent.id])
                child = _Parent(parent, link.use_id, link.type)
                made[name] = self._run(self._agents[name], run_id, child, counted)
                if place_of(run_id)["parent"] is not None:
                    parent.add_child(made[name])
            waiting = [name for name in waiting if name not in made]
        root.add_unreported(self._main, made.values())
        for run in made.values():
            run.finish()
        return tuple(made.values())

    def _run(
        self,
        talk: _Conversation,
        id_: str | None,
        parent: _Parent | None,
        counted: Mapping[str, str],
    ) -> SessionRun:
        run = SessionRun(self, talk, id_, parent, counted)
        if not self._main.messages:
            run.finish()
        return run

    def _links(self) -> dict[str, _Link]:
        """Return the call that started each agent, as far as the session says."""
        found: dict[str, _Link] = {}
        unnamed: dict[str, list[tuple[str | None, str, str]]] = {}  # calls by their prompt
        for one in self._conversations:
            for use_id, (reply, place) in one.calls.items():
                asked, result = reply.uses[place].block, reply.results.get(place)
                given = as_object(asked["input"])
                raw = as_object(result.raw) if result is not None else {}
                types = given.get("subagent_type"), given.get("agent_type"), raw.get("agentType")
                type_ = next(filter(None, map(as_text, types)), "")
                agent = visible(as_text(raw.get("agentId")) or use_id)
                if agent in self._agents:
                    found[agent] = _Link(one.agent, use_id, type_)
                elif asked["name"] in _AGENT_TOOLS:
                    calls = unnamed.setdefault(str(given.get("prompt")), [])
                    calls.append((one.agent, use_id, type_))
        for name, meta in self._meta.items():
            if (of_file := _AGENT_FILE.fullmatch(name)) is None:
                continue
            owner = as_text(meta.get("parentAgentId"))
            link = found.get(of_file[1]) or _Link(
                owner if owner in self._agents else None, as_text(meta.get("toolUseId"))
            )
            found[of_file[1]] = replace(link, type=as_text(meta.get("agentType")) or link.type)
        for agent, one in self._agents.items():
            calls = unnamed.get(one.messages[0].text, []) if agent not in found else []
            if calls:
                found[agent] = _Link(*calls.pop(0))
        return found


@dataclass(frozen=True)
class _Link:
    owner: str | None = None  # the agent whose call it was; None: the session
    use_id: str | None = None
    type: str = ""


class _Parent(NamedTuple):
    run: SessionRun
    use_id: str | None
    type: str


def _read(name: str, raw: Sequence[bytes]) -> list[Line]:
    found: list[Line] = []
    try:
        found.extend(kept.read_lines(raw))
    except ValueError:
        # Which line it is, is looked up only now: to count them all the time costs as much as to read.
        for number, line in enumerate(raw, 1):
            try:
                list(kept.read_lines((line,)))
            except ValueError as error:
                raise UnreadableLineError(name, number, error) from error
        raise
    return found


def _timed(lines: list[Line], modified: float) -> list[Line]:
    """Give the first lines that have no time that of the first that has one; if none has, the time that
    the file was changed, less what the session took."""
    first = next((line.at for line in lines if line.at), None)
    if first is None:
        took = sum(
            _tokens(line.fields.get("duration_ms")) for line in lines if line.kind == "result"
        )
        first = max(modified - took / 1000, 0.0)
        lines[-1:] = [replace(lines[-1], at=modified)] if took and lines else lines[-1:]
    return [line if line.at else replace(line, at=first) for line in lines]


def _texts_in(lines: Iterator[Line]) -> Iterator[str]:
    for line in lines:
        if line.kind == "user":
            yield shown_text(line.blocks)
        elif line.kind == "attachment":
            _, blocks = kept.given_by(line)
            yield shown_text(blocks)


def _meta_of(raw: Sequence[bytes]) -> Mapping[str, Any]:
    try:
        return as_object(json.loads(b"\n".join(raw)))
    except ValueError:
        return {}


# --- Runs ---


def _run_id(session: str, agent: str | None, started: float) -> str:
    """Return the id of a session's run, which sorts by its start as others do."""
    digest = hashlib.sha256(json.dumps([session, agent]).encode()).digest()
    value = (int(started * 1000) << 80) | int.from_bytes(digest[:10], "big")
    return "run_" + "".join(_DIGITS[value >> 5 * place & 31] for place in reversed(range(26)))


class SessionRun:
    """A session, or an agent in it, as a run. ``id_`` is the id that it has, None for a new one."""

    def __init__(
        self,
        session: Session,
        talk: _Conversation,
        id_: str | None,
        parent: _Parent | None,
        counted: Mapping[str, str],
    ) -> None:
        self.agent, self._session, self._talk = talk.agent, session, talk
        self._shared = self._shared_turns(talk, counted)
        own = self._shared[1]
        self.started_at = next((line.at for line in own if line.at), talk.lines[0].at)
        self.ended_at = max(line.at for line in talk.lines)
        self.id = id_ or _run_id(session.id, talk.agent, self.started_at)
        cwd = talk.first("cwd") or session.cwd
        self.project = visible(cwd or "unknown")
        self.item = {
            SESSION: {
                "session_id": session.id,
                "agent_id": talk.agent,
                "title": session.title if talk.agent is None else None,
                "cwd": cwd,
                "git_branch": talk.last("gitBranch"),
                "version": talk.last("version"),
                "slug": talk.last("slug"),
                "permission_mode": talk.last("permissionMode"),
                "forked_from": session.forked_from,
            }
        }
        self.state, self.reason = _end_of(talk)
        self.turns = 0
        self.usage = Usage()  # of all its own replies
        # The rows by table, each with the run's id.
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.events: list[Happened] = []  # what Runner would have recorded, in order
        self._numbers: list[int] = []  # of the messages
        self._under_reported = 0
        self._denied = talk.denied_by_words()
        self._add_messages(talk)
        for note in talk.notes:
            data = {"kind": shorten(note.kind, 60), "text": shorten(note.text, _LONGEST_NOTE)}
            self.events.append(Happened(note.at, Event("session_note", data)))
        models = [row["model"] for row in self.rows["model_calls"]]
        self.model = (
            models[-1] if models else talk.messages[-1].model if self._shared[0] else "unknown"
        )
        if self.model == "unknown":
            told = [each.model for each in talk.messages if each.role == "assistant"]
            self.model = next((each for each in reversed(told) if each != _SYNTHETIC), "unknown")
        self.place = self._place(parent)

    @staticmethod
    def _shared_turns(
        talk: _Conversation, counted: Mapping[str, str]
    ) -> tuple[Mapping[int, str], Sequence[Line]]:
        """Return the turns that another run has, with that run, and the lines that are its own."""
        replies = [message for message in talk.messages if message.role == "assistant"]
        shared = {
            turn: counted[reply.id]
            for turn, reply in enumerate(replies, 1)
            if reply.id is not None and reply.id in counted
        }
        own = [line for line in talk.lines if not line.fields.get("forkedFrom")]
        return shared, own if shared and own else talk.lines

    def _place(self, parent: _Parent | None) -> dict[str, Any]:
        """Return the columns of ``runs`` that say where it comes from."""
        shared, _ = self._shared
        turn = next((n - 1 for n in range(1, self.turns + 2) if n not in shared), 0)
        origin = shared.get(1)
        if (
            turn
            and origin is not None
            and origin < self.id
            and "." not in origin
            and parent is None
        ):
            return {"fork_of": origin, "fork_turn": turn}
        place = place_of(self.id)
        if parent is None or place["parent"] is None:
            return {}
        at = parent.run.place_of_call(parent.use_id)
        return {
            "parent_run": parent.run.id,
            "parent_message": at and at[0],
            "parent_position": at and at[1],
            "root_run": place["root"],
            "depth": place["depth"],
            "child_number": int(self.id.rpartition(".")[2]),
            "agent_type": visible(parent.type or "general-purpose"),
        }

    def place_of_call(self, use_id: str | None) -> tuple[int, int] | None:
        """Return the message and the position of a call of its own."""
        rows = (row for row in self.rows["tool_calls"] if row["tool_use_id"] == use_id)
        return next(((row["message"], row["position"]) for row in rows), None)

    def add_child(self, child: SessionRun) -> None:
        place = child.place["parent_message"], child.place["parent_position"]
        rows = self.rows["tool_calls"]
        call = next((row for row in rows if (row["message"], row["position"]) == place), None)
        about = (
            {}
            if call is None
            else {"turn": call["turn"], "call_index": call["position"], "name": call["name"]}
        )
        data = {"child": child.id, "agent_type": child.place["agent_type"]}
        self._add_event(child.started_at, "child_started", about | data)

    def add_unreported(self, talk: _Conversation, runs: Collection[SessionRun]) -> None:
        """Add what the last word of ``stream-json`` states beyond the replies: their lines have the
        tokens of output that were known when each began, and calls beside the conversation none."""
        stated = as_object(talk.result.fields.get("modelUsage")) if talk.result is not None else {}
        for model, of_model in stated.items():
            calls = [
                c for run in runs for c in run.rows["model_calls"] if c["model"] == visible(model)
            ]
            said = _usage_of(as_object(of_model))
            missing = {n: max(said[n] - sum(c[n] for c in calls), 0) for n in _TOKENS}
            if any(missing.values()):
                self._add_usage(self.turns, visible(model), missing, "summary", self.ended_at)

    def finish(self) -> None:
        """Add what only the whole tells."""
        self.events.sort(key=lambda each: each.at)
        self.message_count = len({row["message"] for row in self.rows["blocks"]})
        session, talk = self._session, self._talk
        notes = "\n".join(f"{note.kind}: {note.text}" for note in talk.notes)
        self._add(
            "sessions",
            session_id=session.id,
            agent_id=self.agent,
            title=None
            if self.agent is not None or session.title is None
            else visible(session.title),
            system=talk.system or "",
            notes=notes,
            stated_usd=session.stated_usd if self.agent is None else None,
            under_reported=self._under_reported,
        )

    @property
    def warnings(self) -> Iterator[str]:
        if self._under_reported:
            yield (
                f"{self._under_reported} of its replies state fewer tokens of output than their text "
                "has: its cost is higher than what is shown"
            )

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
        self.events.append(Happened(at, Event(kind, data)))

    def _add_blocks(self, message: int, role: str, said: Sequence[_Said], first: int = 0) -> None:
        for position, each in enumerate(said, first):
            where = {"message": message, "position": position, "turn": self.turns, "role": role}
            kind = visible(each.block["type"])
            what = {"type": kind, "content": each.block, "created_at": each.at}
            self._add("blocks", **where, **what, spoken_by=each.by)

    def _add_reply(self, reply: _Message, number: int) -> None:
        self.turns += 1
        self._add_blocks(number, "assistant", reply.said)
        if reply.model != _SYNTHETIC and self.turns not in self._shared[0]:
            self._add_model_call(reply)
        else:  # what happens next is told after it
            self._add_event(reply.lines[-1].at, "turn_ended", {"turn": self.turns})
        for position, use in enumerate(reply.uses):
            self._add_call(number, position, use, reply.results.get(position))

    def _add_model_call(self, reply: _Message) -> None:
        ended_at = max(line.at for line in reply.lines)
        self._under_reported += reply.is_under_reported()
        request_id = next((id_ for line in reply.lines if (id_ := line.text("requestId"))), None)
        shared = {
            "turn": self.turns,
            "stop_reason": visible(reply.stop_reason),
            "request_id": None if request_id is None else visible(request_id),
            "latency": max(ended_at - reply.asked_at, 0.0),
        }
        row = self._add_usage(self.turns, visible(reply.model), reply.usage(), "turn", ended_at)
        row |= shared | {
            "started_at": reply.asked_at,
            "hour_cache": reply.hour_cache(),
            "message_id": reply.id,
        }
        short = {
            "call": row["number"],
            "stop_reason": shorten(reply.stop_reason, audit.INPUT_SUMMARY_LENGTH),
            "usage": audit.usage_of(Usage(**{name: row[name] for name in _TOKENS})),
            "latency": round(row["latency"], 3),
        }
        self._add_event(ended_at, "model_call_ended", shared | short)

    def _add_usage(
        self, turn: int, model: str, tokens: Mapping[str, int], purpose: str, at: float
    ) -> dict[str, Any]:
        self.usage += Usage(**tokens)
        total = sum(tokens.values())
        spent = {"max_tokens": 0, "worst_case": total, "charged_tokens": total, **tokens}
        times = {"started_at": at, "ended_at": at, "latency": None, "hour_cache": False}
        ids = {"request_id": None, "stop_reason": None, "message_id": None}
        call = {"number": len(self.rows["model_calls"]) + 1, "attempt": 1, "purpose": purpose}
        self._add("model_calls", **call, turn=turn, model=model, **times, **spent, **ids)
        return self.rows["model_calls"][-1]

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
            denier = result.denial or self._denied.get(use.block["id"])
            call["denial"] = None
            shown, ended_at = shown_text(result.block["content"]), max(result.at, use.at)
            outcome, duration = _outcome(result, denier, shown), ended_at - use.at
            call |= {"ended_at": ended_at, "duration": duration, "outcome": outcome}
            if denier is not None:
                by = shorten(denier, 100)
                call |= {"decision": "deny", "decision_reason": f"denied by {by}"}
                call["denial"] = shorten(f"by {by}: {shown}", _LONGEST_NOTE)
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
        place = (boundary.kept or boundary.before) - 1
        last = self._numbers[place] + bool(messages[place].results)
        kind = "summary" if boundary.text else "prune"
        tokens = {"tokens_before": boundary.tokens_before, "tokens_after": boundary.tokens_after}
        number, sent_in = (len(self.rows[name]) + 1 for name in ("compactions", "model_calls"))
        where = {"first_message": 0, "last_message": last, "first_sent_in": sent_in}
        what = {"kind": kind, "text": boundary.text, "clips": [], "created_at": boundary.at}
        self._add("compactions", number=number, turn=self.turns + 1, **where, **what, **tokens)
        stated = {name: count for name, count in tokens.items() if count}
        data = {"kind": kind, "first": 0, "last": last, **stated}
        self._add_event(boundary.at, "context_compacted", data)


def _end_of(talk: _Conversation) -> tuple[str, str]:
    """Return the state and the reason that a session ended with."""
    if talk.result is not None and talk.result.text("subtype") == "error_max_turns":
        return "stopped", "max_turns"
    said = [message for message in talk.messages if not message.is_afterword]
    last = said[-1] if said else None
    if (talk.result is not None and talk.result.fields.get("is_error") is True) or (
        last is not None and last.role == "assistant" and last.is_error
    ):
        return "failed", "api_error"
    if talk.result is not None and talk.result.text("subtype") == "success":
        return "succeeded", "end_turn"
    if last is not None and last.role == "assistant" and len(last.results) == len(last.uses):
        if last.stop_reason == "refusal":
            return "failed", "refused"
        if not last.uses and last.stop_reason in ("end_turn", "stop_sequence"):
            return "succeeded", "end_turn"
    return "cancelled", "cancelled"


def _outcome(result: _Said, denier: str | None, shown: str) -> str:
    if denier is not None:
        return "denied"
    if result.is_stopped or shown.startswith(kept.INTERRUPTED):
        return "interrupted"
    return "failed" if result.block.get("is_error") else "succeeded"


def _whole_output(result: _Said, shown: str) -> bytes | None:
    """Return what a command printed if it is longer than what the model was shown."""
    printed = [as_object(result.raw).get(name) for name in ("stdout", "stderr")]
    whole = "\n".join(text for text in printed if isinstance(text, str) and text)
    encoded = whole.encode("utf-8", "replace")
    return encoded if len(shown) < len(whole) and len(encoded) <= _LARGEST_OUTPUT else None
