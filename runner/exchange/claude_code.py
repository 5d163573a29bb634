"""Writes a run as a session of Claude Code: the lines of a file such as
``~/.claude/projects/-home-ann-app/<session>.jsonl``.

The format is not documented. These lines are as versions 2.1 write them, by public descriptions and by
what others read (https://github.com/daaain/claude-code-log).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from runner.core.tool_responses import response_of
from runner.exchange.recorded import Recorded, Row, iso

_NAMES = uuid5(NAMESPACE_URL, "runner:claude-code-session")

Line = dict[str, Any]


def session_id(recorded: Recorded) -> str:
    """Return the id of a run's session, which names its file: the id that an imported session had, else
    one made of the run's id. Sub-agents share the id of the item's run."""
    is_ours = not recorded.lines and (recorded.run["fork_of"] or recorded.run["fresh_of"])
    known = None if is_ours else (recorded.session or {}).get("session_id")
    try:
        return str(UUID(str(known)))
    except ValueError:
        return session_id_of(recorded.root)


def session_id_of(run_id: str) -> str:
    """Return the id of the session that an item's run of Runner's own is exported as."""
    return str(uuid5(_NAMES, run_id))


def agent_id(recorded: Recorded) -> str | None:
    """Return the id of an agent in its session, which names its file; None for the item's run."""
    if (known := (recorded.session or {}).get("agent_id")) is not None:
        return str(known)
    return None if recorded.run["parent_run"] is None else uuid5(_NAMES, recorded.id).hex


def session_lines(recorded: Recorded, version: str) -> Iterator[Line]:
    """Return the lines of a session in order: one for each block of a reply and for each result.
    ``version`` is Runner's, for runs that were not imported."""
    return Session(recorded, version).lines(recorded)


class Session:
    """Writes the lines of a run's session; each call of ``lines`` gives the new ones. ``named`` is
    its id, by default that of ``session_id``."""

    def __init__(self, recorded: Recorded, version: str, named: str | None = None) -> None:
        session, agent = recorded.session or {}, agent_id(recorded)
        self._recorded = recorded
        self._parent: str | None = None
        self._count = 0
        self._asked: dict[str, tuple[str, Row]] = {}  # by a call's id, the uuid and row of its line
        self.last_message = 0  # that it has a line of
        self._written: set[int] = set()  # the positions in that message
        self._compactions = 0
        self._base = {
            "isSidechain": agent is not None,
            "userType": "external",
            "cwd": session.get("cwd") or recorded.run["workspace_path"] or "/",
            "sessionId": named or session_id(recorded),
            "version": session.get("version") or version,
            "gitBranch": session.get("git_branch") or "",
            **({} if agent is None else {"agentId": agent}),
        }

    def lines(self, recorded: Recorded) -> Iterator[Line]:
        """Return the lines that are new. ``recorded`` needs the blocks from ``last_message`` on, with
        their model calls and tool calls, and all compactions."""
        self._recorded, self._replies = recorded, recorded.replies()
        summaries = [row for row in recorded.compactions if row["kind"] != "clip"]
        for rows in recorded.messages():
            number, role = rows[0]["message"], rows[0]["role"]
            if number > self.last_message:
                self.last_message, self._written = number, set()
            new = [row for row in rows if row["position"] not in self._written]
            self._written.update(row["position"] for row in new)
            yield from (self._reply if role == "assistant" else self._user)(new)
            for summary in summaries[self._compactions :]:
                if summary["last_message"] > number:
                    break
                yield from self._boundary(summary)
                self._compactions += 1

    def _line(self, kind: str, at: float, **fields: Any) -> Line:
        self._count += 1
        uuid = str(uuid5(_NAMES, f"{self._recorded.id}/{self._count}"))
        line = {"parentUuid": self._parent, **self._base, "type": kind, **fields}
        self._parent = uuid
        return {**line, "uuid": uuid, "timestamp": iso(at)}

    def _reply(self, rows: Sequence[Row]) -> Iterator[Line]:
        if not rows:
            return
        call = self._replies.get(rows[0]["turn"])
        name = f"{self._recorded.id}/reply/{rows[0]['message']}"
        common: dict[str, Any] = {
            "id": f"msg_{uuid5(_NAMES, name).hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": self._recorded.model if call is None else call["model"],
            "stop_sequence": None,
        }
        request = {}
        if call is not None:
            written, hour = call["cache_creation_tokens"] or 0, bool(call["hour_cache"])
            usage = {
                "input_tokens": call["input_tokens"] or 0,
                "cache_creation_input_tokens": written,
                "cache_read_input_tokens": call["cache_read_tokens"] or 0,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": 0 if hour else written,
                    "ephemeral_1h_input_tokens": written if hour else 0,
                },
                "output_tokens": call["output_tokens"] or 0,
            }
            common |= {"stop_reason": call["stop_reason"], "usage": usage}
            request = {"requestId": call["request_id"]} if call["request_id"] else {}
        for row in rows:
            block = row["content"]
            said = {**common, "content": [block]}
            line = self._line("assistant", row["created_at"], message=said, **request)
            if block["type"] == "tool_use":
                self._asked[block["id"]] = (line["uuid"], row)
            yield line

    def _user(self, rows: Sequence[Row]) -> Iterator[Line]:
        # Results come first.
        for row in sorted(rows, key=lambda row: row["content"]["type"] != "tool_result"):
            block = row["content"]
            is_plain = block["type"] == "text" and block.keys() == {"type", "text"}
            content = block["text"] if is_plain else [block]
            fields: dict[str, Any] = {"message": {"role": "user", "content": content}}
            if block["type"] == "tool_result":
                fields["toolUseResult"] = block["content"]
                if (asked := self._asked.get(block["tool_use_id"])) is not None:
                    fields["sourceToolAssistantUUID"], use = asked
                    fields["toolUseResult"] = self._response(use, row) or block["content"]
            yield self._line("user", row["created_at"], **fields)

    def _response(self, use: Row, result: Row) -> dict[str, Any] | None:
        """Return what Claude Code keeps of a call beside its result, if it is a tool of its own."""
        block, call = use["content"], self._recorded.calls.get((use["message"], result["position"]))
        content = result["content"]["content"]
        if call is None or call["outcome"] != "succeeded" or not isinstance(content, str):
            return None
        given = call["updated_input"] or block["input"]
        if not isinstance(given, Mapping):  # of an imported run
            return None
        tool = self._recorded.spec.tool(block["name"])
        details = call["details"] if call["original"] is None else None  # they are the original's
        return response_of(tool, given, content, call["outcome"], details)

    def _boundary(self, row: Row) -> Iterator[Line]:
        """Yield the two lines of a compaction: from here on a summary stands in for all before."""
        before, self._parent = self._parent, None
        known = {"preTokens": row["tokens_before"], "postTokens": row["tokens_after"]}
        tokens = {name: count for name, count in known.items() if count}
        yield self._line(
            "system",
            row["created_at"],
            subtype="compact_boundary",
            content="Conversation compacted",
            isMeta=False,
            level="info",
            logicalParentUuid=before,
            compactMetadata={"trigger": "auto", **tokens},
        )
        yield self._line(
            "user",
            row["created_at"],
            isCompactSummary=True,
            isVisibleInTranscriptOnly=True,
            message={"role": "user", "content": row["text"]},
        )
