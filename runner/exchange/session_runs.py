"""A session of Claude Code, or an agent in it, as the rows and events of a run."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.core import events as audit
from runner.core.agents import place_of
from runner.core.conversation import Usage
from runner.core.events import Event
from runner.core.text import shorten, visible
from runner.exchange.recorded import SESSION, place_columns
from runner.exchange.session_lines import as_object
from runner.exchange.session_messages import (
    SYNTHETIC,
    TOKENS,
    Boundary,
    Call,
    Conversation,
    Said,
    SessionMessage,
    usage_of,
)

TABLES = ("sessions", "blocks", "tool_calls", "tool_outputs", "model_calls", "compactions")

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_CONTENT = ("text", "system", "notes")  # columns with texts of more than one line
_LARGEST_OUTPUT = 10_000_000  # bytes, as for a tool of Runner's
_LONGEST_NOTE = 300


def run_id_of(session: str, agent: str | None, started: float) -> str:
    """Return the id of a session's run, which sorts by its start as others do."""
    digest = hashlib.sha256(json.dumps([session, agent]).encode()).digest()
    value = (int(started * 1000) << 80) | int.from_bytes(digest[:10], "big")
    return "run_" + "".join(_DIGITS[value >> 5 * place & 31] for place in reversed(range(26)))


@dataclass(frozen=True)
class About:
    """The facts that a session tells of itself."""

    id: str
    title: str | None
    cwd: str | None
    forked_from: str | None  # the id of another session
    stated_usd: float | None


@dataclass(frozen=True)
class Link:
    """The call that started an agent, as far as the session says."""

    owner: str | None = None  # the agent whose call it was; None: the session
    use_id: str | None = None
    type: str = ""


class Happened(NamedTuple):
    at: float  # seconds since the epoch
    event: Event


class SessionRun:
    """A session, or an agent in it, as a run. ``id_`` is the id that it has, None for a new one; ``above``
    is the run of the call ``link`` that started an agent."""

    def __init__(
        self,
        session: About,
        talk: Conversation,
        id_: str | None,
        counted: Mapping[str, str],
        above: SessionRun | None = None,
        link: Link | None = None,
    ) -> None:
        self.agent, self._session, self._talk = talk.agent, session, talk
        replies = [message for message in talk.messages if message.role == "assistant"]
        # The turns that other runs have, with these runs, and how many of them it begins with.
        self._shared = {
            turn: counted[reply.id]
            for turn, reply in enumerate(replies, 1)
            if reply.id is not None and reply.id in counted
        }
        copied = next(n for n in range(len(replies) + 1) if n + 1 not in self._shared)
        # A fork begins after its copied lines, even if the original is not stored: its id depends on it.
        last = replies[copied - 1].lines[-1] if copied else None
        is_copy = ("forkedFrom" in line.fields or line is last for line in talk.lines)
        own = max((number for number, copy in enumerate(is_copy, 1) if copy), default=0)
        self.started_at = talk.lines[min(own, len(talk.lines) - 1)].at
        self.ended_at = max(line.at for line in talk.lines)
        self.id = id_ or run_id_of(session.id, talk.agent, self.started_at)
        cwd = talk.first("cwd") or session.cwd
        self.project = visible(cwd or "unknown")
        self.item = {
            SESSION: {
                "session_id": session.id,
                "agent_id": talk.agent,
                "title": session.title,
                "cwd": cwd,
                "git_branch": talk.last("gitBranch"),
                "version": talk.last("version"),
                "slug": talk.last("slug"),
                "permission_mode": talk.last("permissionMode"),
                "forked_from": session.forked_from,
            }
        }
        self.state, self.reason = talk.end_of()
        self.turns = 0
        self.usage = Usage()  # of all its own replies
        # The rows by table, each with the run's id.
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.events: list[Happened] = []  # what Runner would have recorded, in order
        self._under_reported = 0
        self._add_messages(talk)
        for note in talk.notes:
            data = {"kind": shorten(note.kind, 60), "text": shorten(note.text, _LONGEST_NOTE)}
            self._add_event(note.at, "session_note", data)
        models = (visible(each.model) for each in reversed(replies) if each.model != SYNTHETIC)
        self.model = next(models, "unknown")
        self.place: dict[str, Any] = {}  # the columns of ``runs`` that say where it comes from
        origin = self._shared.get(1, "")
        if copied and above is None and origin < self.id and place_of(origin)["parent"] is None:
            self.place = {"fork_of": origin, "fork_turn": copied}
        elif above is not None and place_of(self.id)["parent"] is not None:
            self.place = place_columns(self.id) | above._add_child(self, link or Link())

    def _add_child(self, child: SessionRun, link: Link) -> dict[str, Any]:
        """Note the start of a sub-agent, and return the columns that name the call that asked for it."""
        calls = (row for row in self.rows["tool_calls"] if row["tool_use_id"] == link.use_id)
        call = next(calls, None)
        agent_type = visible(link.type or "general-purpose")
        data = {"child": child.id, "agent_type": agent_type}
        if call is not None:
            data |= {"turn": call["turn"], "call_index": call["position"], "name": call["name"]}
        self._add_event(child.started_at, "child_started", data)
        return {
            "parent_run": self.id,
            "parent_message": call and call["message"],
            "parent_position": call and call["position"],
            "agent_type": agent_type,
        }

    def add_unreported(self, talk: Conversation, runs: Collection[SessionRun]) -> None:
        """Add the tokens in the ``result`` of ``stream-json`` that no reply accounts for: a reply's
        lines have the output tokens known when it began, and calls outside the conversation have no
        lines."""
        missing: dict[str, Counter[str]] = {}
        for name, of_model in as_object(talk.told("modelUsage")).items():
            # Replies name the model without the window that the session asked for.
            model = visible(name.removesuffix("[1m]"))
            missing.setdefault(model, Counter()).update(usage_of(as_object(of_model)))
        for row in [row for run in runs for row in run.rows["model_calls"]]:
            missing.get(row["model"], Counter[str]()).subtract({name: row[name] for name in TOKENS})
        for model, counts in missing.items():
            left = {name: max(counts[name], 0) for name in TOKENS}
            if any(left.values()):
                self._add_usage(model, left, "summary", self.ended_at)

    def finish(self) -> None:
        """Add what only the complete session tells."""
        self.events.sort(key=lambda each: each.at)
        self.message_count = len({row["message"] for row in self.rows["blocks"]})
        session, talk = self._session, self._talk
        self._add(
            "sessions",
            session_id=session.id,
            agent_id=talk.agent,
            title=session.title,
            system=talk.system or "",
            notes="\n".join(f"{note.kind}: {note.text}" for note in talk.notes),
            stated_usd=session.stated_usd,
            under_reported=self._under_reported,
        )

    @property
    def warnings(self) -> Iterator[str]:
        if self._under_reported:
            yield (
                f"{self._under_reported} of its replies state fewer tokens of output than their text "
                "has: its cost is higher than what is shown"
            )

    def _add(self, table: str, **row: Any) -> None:
        """Add a row. Control characters are made visible in all texts but the content."""
        for name, value in row.items():
            if isinstance(value, str) and name not in _CONTENT:
                row[name] = visible(value)
        self.rows[table].append({"run_id": self.id, **row})

    def _add_event(self, at: float, kind: str, data: dict[str, Any]) -> None:
        self.events.append(Happened(at, Event(kind, data)))

    def _add_messages(self, talk: Conversation) -> None:
        boundaries = list(talk.boundaries)
        ends: list[int] = []  # the number of each message, or that of the results of its calls
        number = -1
        calls: Sequence[Call] = ()  # of the message before; its results begin the next one
        for place, message in enumerate(talk.messages):
            while boundaries and boundaries[0].before <= place:
                self._add_compaction(boundaries.pop(0), ends)
            if message.role == "assistant":
                # A reply may have no block; its turn has a model call and no message.
                number += bool(message.said) + bool(calls)
                self._add_reply(message, number)
            else:
                number += 1
                self._add_blocks(number, "user", message.said, first=len(calls))
            calls = message.calls
            ends.append(number + any(call.result for call in calls))
        for boundary in boundaries:
            self._add_compaction(boundary, ends)

    def _add_blocks(self, message: int, role: str, said: Sequence[Said], first: int = 0) -> None:
        for position, each in enumerate(said, first):
            where = {"message": message, "position": position, "turn": self.turns, "role": role}
            what = {"type": each.block["type"], "content": each.block, "created_at": each.at}
            self._add("blocks", **where, **what, spoken_by=each.by)

    def _add_reply(self, reply: SessionMessage, number: int) -> None:
        self.turns += 1
        self._add_blocks(number, "assistant", reply.said)
        if reply.model == SYNTHETIC or self.turns in self._shared:
            # It marks where the events after this turn begin.
            self._add_event(reply.lines[-1].at, "turn_ended", {"turn": self.turns})
        else:
            self._under_reported += reply.is_under_reported()
            self._add_model_call(reply)
        for position, call in enumerate(reply.calls):
            self._add_call(number, position, call)

    def _add_model_call(self, reply: SessionMessage) -> None:
        ended_at, tokens = max(line.at for line in reply.lines), reply.usage()
        request_id = next((id_ for line in reply.lines if (id_ := line.text("requestId"))), None)
        told: dict[str, Any] = {
            "stop_reason": reply.stop_reason,
            "request_id": request_id,
            "latency": max(ended_at - reply.asked_at, 0.0),
        }
        own = {
            "started_at": reply.asked_at,
            "message_id": reply.id,
            "hour_cache": reply.hour_cache(),
        }
        number = self._add_usage(reply.model, tokens, "turn", ended_at, **told, **own)
        data = {
            "stop_reason": shorten(reply.stop_reason, audit.INPUT_SUMMARY_LENGTH),
            "request_id": request_id and visible(request_id),
            "latency": round(told["latency"], 3),
            "turn": self.turns,
            "call": number,
            "usage": audit.usage_of(Usage(**tokens)),
        }
        self._add_event(ended_at, "model_call_ended", data)

    def _add_usage(
        self, model: str, tokens: Mapping[str, int], purpose: str, at: float, **told: Any
    ) -> int:
        """Add a model call, and return its number."""
        self.usage += Usage(**tokens)
        total, number = sum(tokens.values()), len(self.rows["model_calls"]) + 1
        unknown = dict.fromkeys(("latency", "request_id", "stop_reason", "message_id"))
        spent = {"max_tokens": 0, "worst_case": total, "charged_tokens": total, **tokens}
        call = {"number": number, "attempt": 1, "purpose": purpose, "turn": self.turns}
        times = {"started_at": at, "ended_at": at, "hour_cache": False}
        row = {**call, "model": model, **times, **spent, **unknown, **told}
        self._add("model_calls", **row)
        return number

    def _add_call(self, message: int, position: int, call: Call) -> None:
        block, at, result = call.asked.block, call.asked.at, call.result
        named = {"tool_use_id": block["id"], "name": block["name"]}
        short = {name: shorten(text, audit.INPUT_SUMMARY_LENGTH) for name, text in named.items()}
        of_call: dict[str, Any] = {"turn": self.turns, "call_index": position, **short}
        data = of_call | {"input": audit.summarise_input(block["input"])}
        self._add_event(at, "tool_started", data)
        place = {"message": message, "position": position}
        row: dict[str, Any] = {**place, "turn": self.turns, **named}
        row |= {"started_attempt": 1, "started_at": at, "interrupted": result is None}
        if result is not None:
            shown, ended_at, outcome = call.shown, max(result.at, at), call.outcome
            row |= {"denial": None, "ended_at": ended_at, "duration": ended_at - at}
            row["outcome"] = outcome
            if call.denier is not None:
                by = shorten(call.denier, 100)
                row |= {"decision": "deny", "decision_reason": f"denied by {by}"}
                row["denial"] = shorten(f"by {by}: {shown}", _LONGEST_NOTE)
            self._add_blocks(message + 1, "user", [result], first=position)
            if whole := call.whole_output(_LARGEST_OUTPUT):
                compressed = zlib.compress(whole)
                self._add("tool_outputs", **place, size=len(whole), compressed=compressed)
            done = {
                "output": shorten(shown, audit.OUTPUT_SUMMARY_LENGTH),
                "outcome": outcome,
                "is_error": outcome != "succeeded",
                "duration": round(ended_at - at, 4),
            }
            self._add_event(ended_at, "tool_done", of_call | done)
        self._add("tool_calls", **row)

    def _add_compaction(self, boundary: Boundary, ends: Sequence[int]) -> None:
        last = ends[(boundary.kept or boundary.before) - 1]
        kind = "summary" if boundary.text else "prune"
        tokens = {"tokens_before": boundary.tokens_before, "tokens_after": boundary.tokens_after}
        number, sent_in = (len(self.rows[name]) + 1 for name in ("compactions", "model_calls"))
        where = {"first_message": 0, "last_message": last, "first_sent_in": sent_in}
        what = {"kind": kind, "text": boundary.text, "clips": [], "created_at": boundary.at}
        self._add("compactions", number=number, turn=self.turns + 1, **where, **what, **tokens)
        stated = {name: count for name, count in tokens.items() if count}
        data = {"kind": kind, "first": 0, "last": last, **stated}
        self._add_event(boundary.at, "context_compacted", data)
