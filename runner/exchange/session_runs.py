"""A session of Claude Code, or an agent in it, as the rows and events of a run."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.core import events as audit
from runner.core.agents import place_of
from runner.core.conversation import Usage
from runner.core.events import Event
from runner.core.text import shorten, visible
from runner.exchange import session_lines as kept
from runner.exchange.recorded import SESSION
from runner.exchange.session_lines import as_object, shown_text
from runner.exchange.session_messages import (
    SYNTHETIC,
    TOKENS,
    Boundary,
    Conversation,
    Said,
    SessionMessage,
    usage_of,
)

TABLES = ("sessions", "blocks", "tool_calls", "tool_outputs", "model_calls", "compactions")

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
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


class Parent(NamedTuple):
    run_id: str
    call: Mapping[str, Any] | None  # the row of the call that started the agent
    type: str


class Happened(NamedTuple):
    at: float  # seconds since the epoch
    event: Event


class SessionRun:
    """A session, or an agent in it, as a run. ``id_`` is the id that it has, None for a new one."""

    def __init__(
        self,
        session: About,
        talk: Conversation,
        id_: str | None,
        parent: Parent | None,
        counted: Mapping[str, str],
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
        self.state, self.reason = _end_of(talk)
        self.turns = 0
        self.usage = Usage()  # of all its own replies
        # The rows by table, each with the run's id.
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.events: list[Happened] = []  # what Runner would have recorded, in order
        self._numbers: list[int] = []  # of the messages
        self._under_reported = 0
        self._add_messages(talk)
        for note in talk.notes:
            data = {"kind": shorten(note.kind, 60), "text": shorten(note.text, _LONGEST_NOTE)}
            self.events.append(Happened(note.at, Event("session_note", data)))
        models = (visible(each.model) for each in reversed(replies) if each.model != SYNTHETIC)
        self.model = next(models, "unknown")
        self.place = self._place(parent, copied)

    def _place(self, parent: Parent | None, copied: int) -> dict[str, Any]:
        """Return the columns of ``runs`` that say where it comes from."""
        origin = self._shared.get(1, "")
        if copied and parent is None and origin < self.id and place_of(origin)["parent"] is None:
            return {"fork_of": origin, "fork_turn": copied}
        place = place_of(self.id)
        if parent is None or place["parent"] is None:
            return {}
        return {
            "parent_run": parent.run_id,
            "parent_message": parent.call and parent.call["message"],
            "parent_position": parent.call and parent.call["position"],
            "root_run": place["root"],
            "depth": place["depth"],
            "child_number": int(self.id.rpartition(".")[2]),
            "agent_type": visible(parent.type or "general-purpose"),
        }

    def call(self, use_id: str | None) -> Mapping[str, Any] | None:
        """Return the row of one of its own calls, by the API's id."""
        rows = self.rows["tool_calls"]
        return next((row for row in rows if row["tool_use_id"] == use_id), None)

    def add_child(self, child: SessionRun, call: Mapping[str, Any] | None) -> None:
        data = {"child": child.id, "agent_type": child.place["agent_type"]}
        if call is not None:
            data |= {"turn": call["turn"], "call_index": call["position"], "name": call["name"]}
        self._add_event(child.started_at, "child_started", data)

    def add_unreported(self, talk: Conversation, runs: Collection[SessionRun]) -> None:
        """Add the tokens in the ``result`` of ``stream-json`` that no reply accounts for: a reply's
        lines have the output tokens known when it began, and calls outside the conversation have no
        lines."""
        stated = as_object(talk.result.fields.get("modelUsage")) if talk.result is not None else {}
        for name, of_model in stated.items():
            model, said = visible(name), usage_of(as_object(of_model))
            rows = [row for run in runs for row in run.rows["model_calls"] if row["model"] == model]
            missing = {n: max(said[n] - sum(row[n] for row in rows), 0) for n in TOKENS}
            if any(missing.values()):
                self._add_usage(model, missing, "summary", self.ended_at)

    def finish(self) -> None:
        """Add what only the complete session tells."""
        self.events.sort(key=lambda each: each.at)
        self.message_count = len({row["message"] for row in self.rows["blocks"]})
        session, talk = self._session, self._talk
        self._add(
            "sessions",
            session_id=session.id,
            agent_id=self.agent,
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

    def _add_messages(self, talk: Conversation) -> None:
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

    def _add_blocks(self, message: int, role: str, said: Sequence[Said], first: int = 0) -> None:
        for position, each in enumerate(said, first):
            where = {"message": message, "position": position, "turn": self.turns, "role": role}
            kind = visible(each.block["type"])
            what = {"type": kind, "content": each.block, "created_at": each.at}
            self._add("blocks", **where, **what, spoken_by=each.by)

    def _add_reply(self, reply: SessionMessage, number: int) -> None:
        self.turns += 1
        self._add_blocks(number, "assistant", reply.said)
        if reply.model != SYNTHETIC and self.turns not in self._shared:
            self._add_model_call(reply)
        else:  # what happens next is told after it
            self._add_event(reply.lines[-1].at, "turn_ended", {"turn": self.turns})
        for position, use in enumerate(reply.uses):
            self._add_call(number, position, use, reply.results.get(position))

    def _add_model_call(self, reply: SessionMessage) -> None:
        ended_at = max(line.at for line in reply.lines)
        self._under_reported += reply.is_under_reported()
        request_id = next((id_ for line in reply.lines if (id_ := line.text("requestId"))), None)
        told: dict[str, Any] = {
            "stop_reason": visible(reply.stop_reason),
            "request_id": None if request_id is None else visible(request_id),
            "latency": max(ended_at - reply.asked_at, 0.0),
        }
        own = {"started_at": reply.asked_at, "message_id": reply.id}
        tokens, hour = reply.usage(), reply.hour_cache()
        call = self._add_usage(
            visible(reply.model), tokens, "turn", ended_at, hour_cache=hour, **told, **own
        )
        short = {
            "turn": self.turns,
            "call": call,
            "stop_reason": shorten(reply.stop_reason, audit.INPUT_SUMMARY_LENGTH),
            "usage": audit.usage_of(Usage(**tokens)),
            "latency": round(told["latency"], 3),
        }
        self._add_event(ended_at, "model_call_ended", told | short)

    def _add_usage(
        self, model: str, tokens: Mapping[str, int], purpose: str, at: float, **told: Any
    ) -> int:
        """Add a model call with its events, and return its number."""
        self.usage += Usage(**tokens)
        total, number = sum(tokens.values()), len(self.rows["model_calls"]) + 1
        unknown = dict.fromkeys(("latency", "request_id", "stop_reason", "message_id"))
        spent = {"max_tokens": 0, "worst_case": total, "charged_tokens": total, **tokens}
        call = {"number": number, "attempt": 1, "purpose": purpose, "turn": self.turns}
        times = {"started_at": at, "ended_at": at, "hour_cache": False}
        row = {**call, "model": model, **times, **spent, **unknown, **told}
        self._add("model_calls", **row)
        return number

    def _add_call(self, message: int, position: int, use: Said, result: Said | None) -> None:
        place = {"message": message, "position": position}
        named = {"tool_use_id": visible(use.block["id"]), "name": visible(use.block["name"])}
        short = {name: shorten(text, audit.INPUT_SUMMARY_LENGTH) for name, text in named.items()}
        of_call: dict[str, Any] = {"turn": self.turns, "call_index": position, **short}
        started = {"started_attempt": 1, "started_at": use.at, "interrupted": result is None}
        call: dict[str, Any] = {**place, "turn": self.turns, **named, **started}
        data = of_call | {"input": audit.summarise_input(use.block["input"])}
        self._add_event(use.at, "tool_started", data)
        if result is not None:
            denier, call["denial"] = result.denial, None
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

    def _add_compaction(self, boundary: Boundary, messages: Sequence[SessionMessage]) -> None:
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


def _end_of(talk: Conversation) -> tuple[str, str]:
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
        ends_turn = any(result.ends_turn for result in last.results.values())
        if ends_turn or (not last.uses and last.stop_reason in ("end_turn", "stop_sequence")):
            return "succeeded", "end_turn"
    return "cancelled", "cancelled"


def _outcome(result: Said, denier: str | None, shown: str) -> str:
    if denier is not None:
        return "denied"
    if result.is_stopped or shown.startswith(kept.INTERRUPTED):
        return "interrupted"
    return "failed" if result.block.get("is_error") else "succeeded"


def _whole_output(result: Said, shown: str) -> bytes | None:
    """Return what a command printed if it is longer than what the model was shown."""
    printed = [as_object(result.raw).get(name) for name in ("stdout", "stderr")]
    whole = "\n".join(text for text in printed if isinstance(text, str) and text)
    encoded = whole.encode("utf-8", "replace")
    return encoded if len(shown) < len(whole) and len(encoded) <= _LARGEST_OUTPUT else None
