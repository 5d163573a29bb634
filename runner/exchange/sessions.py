"""Reads the files of a session of Claude Code as runs: the session, and the agents that it started."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from runner.core import events as audit
from runner.core.agents import child_id, place_columns, place_of
from runner.core.conversation import ToolResult, Usage
from runner.core.entry_events import about_result
from runner.core.events import Event
from runner.core.media import shown_text
from runner.core.text import read_json_object, shorten, visible
from runner.exchange import session_lines as kept
from runner.exchange.recorded import SESSION
from runner.exchange.session_lines import Line, as_object, as_text
from runner.exchange.session_messages import (
    SYNTHETIC,
    Boundary,
    Call,
    Conversation,
    Said,
    SessionMessage,
    tokens_of,
    usage_of,
)

READER = 7  # this reader's version: files that an older one has read are read again
TABLES = ("sessions", "blocks", "tool_calls", "tool_outputs", "model_calls", "compactions")

# The lines of a session's file (named "") and of the files beside it, by name, without line feeds.
Files = Mapping[str, Sequence[bytes]]

_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}
_MOST_USD = 1e9
_AGENT_TOOLS = ("Agent", "Task")
_AGENT_FILE = re.compile(r"agent-(.+)\.(?:jsonl|meta\.json)")
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_CONTENT = ("text", "system", "notes")  # columns with texts of more than one line
_LARGEST_OUTPUT = 10_000_000  # bytes, as for a tool of Runner's
_LONGEST_NOTE = 300


class EmptySessionError(ValueError):
    """Nothing was said in a session."""


class _Start(NamedTuple):
    """The call that started an agent, as far as the session says."""

    owner: str | None = None  # the agent whose call it was; None: the session
    call: Call | None = None
    type: str = ""


class Session:
    """A session as its files have it. ``modified`` is when the file was changed, for lines without a
    time. Raises ``UnreadableLineError`` or ``EmptySessionError``."""

    def __init__(self, files: Files, modified: float = 0.0) -> None:
        self._meta: dict[str, Mapping[str, Any]] = {}
        lines: dict[str, list[Line]] = {}
        for name, raw in files.items():
            if name.endswith(".json"):
                self._meta[name] = read_json_object(b"\n".join(raw)) or {}
            else:
                lines[name] = _timed(list(kept.read_lines(name, raw)), modified)
        shown = ("user", "attachment")
        texts = {shown_text(line.blocks) for line in chain(*lines.values()) if line.kind in shown}
        talks: dict[str | None, Conversation] = {None: Conversation(None, texts)}  # by agent
        self.forked_from: str | None = None  # the id of another session
        self.stated_usd: float | None = None
        titles: dict[str, str] = {}
        agent_of_line: dict[str, str] = {}
        seen: set[str | None] = set()
        for name, line in ((name, line) for name, of_file in lines.items() for line in of_file):
            uuid = line.text("uuid")
            if line.kind in _TITLES:
                titles[line.kind] = line.text(_TITLES[line.kind]) or titles.get(line.kind, "")
                continue
            # A session's copies of an agent's lines count only without the agent's own file.
            of_agent = f"agent-{visible(line.text('agentId') or '')}.jsonl"
            is_copy = "parentToolUseID" in line.fields and of_agent in lines
            if is_copy or (uuid is not None and uuid in seen):
                continue
            seen.add(uuid)
            if origin := as_text(line.object("forkedFrom").get("sessionId")):
                self.forked_from = origin
            usd = line.fields.get("total_cost_usd", line.fields.get("totalCostUSD"))
            if isinstance(usd, int | float) and 0 <= usd < _MOST_USD:
                self.stated_usd = float(usd)
            agent = self._agent_of(name, line, agent_of_line)
            talks.setdefault(agent, Conversation(agent, texts)).add(line)
        self.cwd = talks[None].first("cwd")
        self._talks = {agent: talk for agent, talk in talks.items() if talk.messages}
        self._agents = {agent: talk for agent, talk in self._talks.items() if agent is not None}
        if not self._talks:
            raise EmptySessionError("nothing was said in the session")
        title = next(filter(None, map(titles.get, reversed(_TITLES))), None)
        self.title = title and visible(title)
        known = (talk.last("sessionId") or talk.first("uuid") for talk in self._talks.values())
        self.id = visible(next(filter(None, known), ""))
        for talk in self._talks.values():
            talk.end()

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
    def reply_ids(self) -> Sequence[str]:
        """The API's ids of all replies."""
        found = (message.id for talk in self._talks.values() for message in talk.messages)
        return [id_ for id_ in found if id_ is not None]

    def runs(
        self, known: Mapping[str | None, str], counted: Mapping[str, str]
    ) -> tuple[SessionRun, ...]:
        """Return the session as a run, then its agents, each after the run that started it.

        Args:
            known: the ids of runs that are stored, by agent (None: the session itself).
            counted: the replies that other runs have, by the API's id: their tokens count there.
        """
        if None not in self._talks:
            agents = self._agents.items()
            return tuple(SessionRun(self, one, known.get(name), counted) for name, one in agents)
        root = SessionRun(self, self._talks[None], known.get(None), counted)
        made: dict[str | None, SessionRun] = {None: root}
        starts = self._starts()
        numbers: Counter[str] = Counter()  # of the last sub-agent of each run
        for place in map(place_columns, known.values()):
            above_id, number = place["parent_run"], place["child_number"] or 0
            numbers[above_id] = max(numbers[above_id], number)
        waiting = sorted(self._agents, key=lambda name: self._agents[name].lines[0].at)
        while waiting:
            # An agent whose owner is itself or missing belongs to the session.
            for name in [each for each in waiting if starts[each].owner in made] or waiting:
                above = made.get(starts[name].owner, root)
                numbers[above.id] += name not in known
                run_id = known.get(name) or child_id(above.id, numbers[above.id])
                made[name] = SessionRun(self, self._agents[name], run_id, counted)
                made[name].put_below(above, starts[name])
            waiting = [name for name in waiting if name not in made]
        root.add_unreported(made.values())
        return tuple(made.values())

    def _starts(self) -> dict[str, _Start]:
        """Return the start of each agent, as far as the session says."""
        by_id: dict[str | None, _Start] = {}  # of an agent or of a call
        by_prompt: dict[str, list[_Start]] = {}
        for one in self._talks.values():
            for use_id, call in one.calls.items():
                asked, given = call.asked.block, as_object(call.asked.block["input"])
                types = [given.get("subagent_type"), given.get("agent_type")]
                types.append(call.raw.get("agentType"))
                start = _Start(one.agent, call, next(filter(None, map(as_text, types)), ""))
                agent = visible(as_text(call.raw.get("agentId")) or use_id)
                by_id |= {use_id: start, agent: start}
                if agent not in self._agents and asked["name"] in _AGENT_TOOLS:
                    by_prompt.setdefault(str(given.get("prompt")), []).append(start)
        found = {}
        for agent, one in self._agents.items():
            meta = self._meta.get(f"agent-{agent}.meta.json", {})
            owner, call_id = (as_text(meta.get(each)) for each in ("parentAgentId", "toolUseId"))
            asked_in = one.lines[0].text("parentToolUseID") or call_id
            known = by_id.get(agent) or by_id.get(asked_in)
            if known is None and (same := by_prompt.get(one.messages[0].text)):
                known = same.pop(0)
            start = known or _Start(owner if owner in self._agents else None)
            found[agent] = start._replace(type=as_text(meta.get("agentType")) or start.type)
        return found


def _timed(lines: list[Line], modified: float) -> list[Line]:
    """Give the first lines that have no time that of the first that has one; if none has, the time that
    the file was changed, less what the session took."""
    first = next((line.at for line in lines if line.at), None)
    if first is None:
        results = [line.fields for line in lines if line.kind == "result"]
        took = sum(tokens_of(each.get("duration_ms")) for each in results)
        first = max(modified - took / 1000, 0.0)
        lines[-1:] = [replace(lines[-1], at=modified)] if took and lines else lines[-1:]
    return [line if line.at else replace(line, at=first) for line in lines]


# --- Runs ---


class Happened(NamedTuple):
    at: float  # seconds since the epoch
    event: Event


class SessionRun:
    """A session, or an agent in it, as a run: its rows and events. ``id_`` is the id that it has, None for
    a new one; ``counted`` are the replies that other runs have, by the API's id."""

    def __init__(
        self, session: Session, talk: Conversation, id_: str | None, counted: Mapping[str, str]
    ) -> None:
        self.agent, self._talk = talk.agent, talk
        replies = [message for message in talk.messages if message.role == "assistant"]
        # The turns that other runs have, with these runs, and how many of them it begins with.
        runs = ((turn, counted.get(reply.id or "")) for turn, reply in enumerate(replies, 1))
        self._shared = {turn: run for turn, run in runs if run is not None}
        copied = next(n for n in range(len(replies) + 1) if n + 1 not in self._shared)
        # A fork begins after its copied lines, even if the original is not stored: its id depends on it.
        last, numbered = replies[copied - 1].lines[-1] if copied else None, enumerate(talk.lines, 1)
        own = [n for n, line in numbered if "forkedFrom" in line.fields or line is last]
        self.started_at = talk.lines[min(max(own, default=0), len(talk.lines) - 1)].at
        self.ended_at = max(line.at for line in talk.lines)
        self.id = id_ or _run_id_of(session.id, self.agent, self.started_at)
        named = {"session_id": session.id, "agent_id": self.agent}
        named["title"] = session.title if self.agent is None else None
        cwd = talk.first("cwd") or session.cwd
        self.project = visible(cwd or "unknown")
        self.item = {
            SESSION: {
                **named,
                "cwd": cwd,
                "git_branch": talk.last("gitBranch"),
                "version": talk.last("version"),
                "slug": talk.last("slug"),
                "permission_mode": talk.last("permissionMode"),
                "forked_from": session.forked_from,
            }
        }
        self.state, self.reason, words = talk.end_of()
        self.detail = shorten(words, _LONGEST_NOTE)
        self.turns = 0
        self.usage = Usage()  # of all its own replies
        # The rows by table, each with the run's id.
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self._events: list[Happened] = []
        self._under_reported = 0
        self._add_messages()
        for note in talk.notes:
            data = {"kind": shorten(note.kind, 60), "text": shorten(note.text, _LONGEST_NOTE)}
            self._add_event(note.at, "session_note", data)
        self._add(
            "sessions",
            **named,
            system=talk.system,
            notes="\n".join(f"{note.kind}: {note.text}" for note in talk.notes),
            stated_usd=session.stated_usd if self.agent is None else None,
            under_reported=self._under_reported,
        )
        self.message_count = len({row["message"] for row in self.rows["blocks"]})
        models = (visible(each.model) for each in reversed(replies) if each.model != SYNTHETIC)
        self.model = next(models, "unknown")
        self.place: dict[str, Any] = {}  # the columns of ``runs`` that say where it comes from
        origin = self._shared.get(1, "")
        if copied and origin < self.id and place_of(origin)["parent"] is None:
            self.place = {"fork_of": origin, "fork_turn": copied}

    def put_below(self, above: SessionRun, start: _Start) -> None:
        """Make this run a sub-agent of the run ``above``, unless its id is not that of a sub-agent."""
        self.place = {}
        if place_of(self.id)["parent"] is None:
            return
        agent_type = visible(start.type or "general-purpose")
        call = start.call.row if start.call is not None and start.owner == above.agent else {}
        self.place = {
            **place_columns(self.id),
            "parent_run": above.id,
            "parent_message": call.get("message"),
            "parent_position": call.get("position"),
            "agent_type": agent_type,
        }
        data = {"child": self.id, "agent_type": agent_type}
        if call:
            data |= {"turn": call["turn"], "call_index": call["position"], "name": call["name"]}
        above._add_event(self.started_at, "child_started", data)

    def add_unreported(self, runs: Collection[SessionRun]) -> None:
        """Add the tokens in the ``result`` of ``stream-json`` that no reply of these runs accounts for: a
        reply's lines have the output tokens known when it began, and calls outside the conversation
        have no lines."""
        missing: dict[str, Counter[str]] = {}
        for name, of_model in as_object(self._talk.result.get("modelUsage")).items():
            # Replies name the model without the window that the session asked for.
            model = visible(name.removesuffix("[1m]"))
            missing.setdefault(model, Counter()).update(usage_of(of_model).by_kind())
        for row in [row for run in runs for row in run.rows["model_calls"]]:
            counts = missing.get(row["model"], Counter[str]())
            counts.subtract({kind: row[kind] for kind in Usage.__slots__})
        for model, counts in missing.items():
            if left := +counts:  # only the kinds that are still missing
                self._add_model_call(model, Usage(**left), self.ended_at)

    @property
    def events(self) -> list[Happened]:
        """The events that Runner would have recorded, in order."""
        return sorted(self._events, key=lambda each: each.at)

    @property
    def warnings(self) -> Iterator[str]:
        if self._under_reported:
            yield (
                f"{self._under_reported} of its replies state fewer tokens of output than their text "
                "has: its cost is higher than what is shown"
            )

    def _add(self, table: str, **row: Any) -> dict[str, Any]:
        """Add a row, and return it. Control characters are made visible in all texts but the content."""
        for name, value in row.items():
            if isinstance(value, str) and name not in _CONTENT:
                row[name] = visible(value)
        self.rows[table].append({"run_id": self.id, **row})
        return row

    def _add_event(self, at: float, kind: str, data: dict[str, Any]) -> None:
        self._events.append(Happened(at, Event(kind, data)))

    def _add_messages(self) -> None:
        ends: list[int] = []  # the number of each message, or that of the results of its calls
        number = -1
        calls: Sequence[Call] = ()  # of the message before; their results begin the next one
        for place, message in enumerate((*self._talk.messages, None)):
            for boundary in self._talk.boundaries:
                if boundary.before == place:
                    self._add_compaction(boundary, ends)
            if message is None:
                break
            if message.role == "user":
                number += 1
                self._add_blocks(number, "user", message.said, first=len(calls))
            else:
                # A reply may have no block; its turn has a model call and no message.
                number += bool(message.said) + bool(calls)
                self._add_reply(message, number)
            calls = message.calls
            ends.append(number + any(call.result for call in calls))

    def _add_blocks(self, message: int, role: str, said: Sequence[Said], first: int = 0) -> None:
        for position, each in enumerate(said, first):
            where = {"message": message, "position": position, "turn": self.turns, "role": role}
            what = {"type": each.block["type"], "content": each.block, "created_at": each.at}
            self._add("blocks", **where, **what, spoken_by=each.by)

    def _add_reply(self, reply: SessionMessage, number: int) -> None:
        self.turns += 1
        self._add_blocks(number, "assistant", reply.said)
        if reply.model != SYNTHETIC and self.turns not in self._shared:
            self._under_reported += reply.is_under_reported
            ended_at = max(line.at for line in reply.lines)
            self._add_model_call(reply.model, reply.usage, ended_at, reply)
        for position, call in enumerate(reply.calls):
            self._add_call(number, position, call)
        results = [call.result.at for call in reply.calls if call.result]
        if reply is not self._talk.messages[-1] or len(results) == len(reply.calls):
            ended_at = max([reply.lines[-1].at, *results])
            self._add_event(ended_at, "turn_ended", {"turn": self.turns})

    def _add_model_call(
        self, model: str, usage: Usage, at: float, reply: SessionMessage | None = None
    ) -> None:
        """Add a call that ended at a time, with its reply if it is known."""
        self.usage += usage
        started_at = at if reply is None else reply.asked_at
        row = self._add(
            "model_calls",
            number=len(self.rows["model_calls"]) + 1,
            attempt=1,
            purpose="summary" if reply is None else "turn",
            turn=self.turns,
            model=model,
            started_at=started_at,
            ended_at=at,
            latency=None if reply is None else max(at - started_at, 0.0),
            stop_reason=reply and reply.stop_reason,
            request_id=reply and reply.request_id,
            message_id=reply and reply.id,
            hour_cache=reply is not None and reply.hour_cache,
            max_tokens=0,
            worst_case=usage.total,
            charged_tokens=usage.total,
            **usage.by_kind(),
        )
        if reply is not None:
            told = {"stop_reason": audit.summary(reply.stop_reason), "turn": self.turns}
            told |= {"request_id": row["request_id"], "latency": round(row["latency"], 3)}
            told["call"] = row["number"]
            self._add_event(at, "model_call_ended", told | {"usage": audit.usage_of(usage)})

    def _add_call(self, message: int, position: int, call: Call) -> None:
        block, at, result = call.asked.block, call.asked.at, call.result
        named = {"tool_use_id": block["id"], "name": block["name"]}
        about: dict[str, Any] = {"turn": self.turns, "call_index": position}
        about |= {name: audit.summary(text) for name, text in named.items()}
        place = {"message": message, "position": position}
        row: dict[str, Any] = {**place, "turn": self.turns, **named}
        row |= {"started_attempt": None, "started_at": None, "interrupted": result is None}
        if call.denier is None:
            started = {"input": audit.summarise_input(block["input"])}
            self._add_event(at, "tool_started", about | started)
            row |= {"started_attempt": 1, "started_at": at}
        if result is not None:
            ended_at = max(result.at, at)
            duration = ended_at - at if call.denier is None else 0.0
            told = ToolResult(call.shown, call.outcome, duration=duration)
            row |= {"denial": None, "ended_at": ended_at, "duration": told.duration}
            row["outcome"] = told.outcome
            if call.denier is not None:
                by = shorten(call.denier, 100)
                row |= {"decision": "deny", "decision_reason": f"denied by {by}"}
                row["denial"] = shorten(f"by {by}: {told.content}", _LONGEST_NOTE)
            self._add_blocks(message + 1, "user", [result], first=position)
            if whole := call.whole_output(_LARGEST_OUTPUT):
                compressed = zlib.compress(whole)
                self._add("tool_outputs", **place, size=len(whole), compressed=compressed)
            self._add_event(ended_at, "tool_done", about | about_result(told))
        call.row = self._add("tool_calls", **row)

    def _add_compaction(self, boundary: Boundary, ends: Sequence[int]) -> None:
        last = ends[(boundary.kept or boundary.before) - 1]
        kind = "summary" if boundary.text else "prune"
        tokens = {"tokens_before": boundary.tokens_before, "tokens_after": boundary.tokens_after}
        number, sent_in = (len(self.rows[name]) + 1 for name in ("compactions", "model_calls"))
        where = {"first_message": 0, "last_message": last, "first_sent_in": sent_in}
        what = {"kind": kind, "text": boundary.text, "clips": [], "created_at": boundary.at}
        self._add("compactions", number=number, turn=self.turns + 1, **where, **what, **tokens)
        stated = {name: count for name, count in tokens.items() if count}
        told = {"kind": kind, "first": 0, "last": last, **stated}
        self._add_event(boundary.at, "context_compacted", told)


def _run_id_of(session: str, agent: str | None, started: float) -> str:
    """Return the id of a session's run, which sorts by its start as others do."""
    digest = hashlib.sha256(json.dumps([session, agent]).encode()).digest()
    value = (int(started * 1000) << 80) | int.from_bytes(digest[:10], "big")
    return "run_" + "".join(_DIGITS[value >> 5 * place & 31] for place in reversed(range(26)))
