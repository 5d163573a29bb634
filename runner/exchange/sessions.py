"""Reads the files of a session of Claude Code as runs: the session, and the agents that it started."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from runner.core.agents import child_id
from runner.core.text import visible
from runner.exchange import session_lines as kept
from runner.exchange.lines import parsed_object
from runner.exchange.recorded import place_columns
from runner.exchange.session_lines import Line, as_object, as_text, shown_text
from runner.exchange.session_messages import Conversation, tokens_of
from runner.exchange.session_runs import About, Link, SessionRun

READER = 4  # this reader's version: files that an older one has read are read again

# The lines of a session's file (named "") and of the files beside it, by name, without line feeds.
Files = Mapping[str, Sequence[bytes]]

_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}
_MOST_USD = 1e9
_AGENT_TOOLS = ("Agent", "Task")
_AGENT_FILE = re.compile(r"agent-(.+)\.(?:jsonl|meta\.json)")


class EmptySessionError(ValueError):
    """Nothing was said in a session."""


class Session:
    """A session as its files have it. ``modified`` is when the file was changed, for lines without a
    time. Raises ``UnreadableLineError`` or ``EmptySessionError``."""

    def __init__(self, files: Files, modified: float = 0.0) -> None:
        lines = {
            name: _timed(list(kept.read_lines(name, raw)), modified)
            for name, raw in files.items()
            if not name.endswith(".json")
        }
        self._meta = {
            name: parsed_object(b"\n".join(raw)) or {}
            for name, raw in files.items()
            if name.endswith(".json")
        }
        texts = set(_texts_in(line for each in lines.values() for line in each))
        self._main = Conversation(None, texts)
        self._agents: dict[str, Conversation] = {}
        titles: dict[str, str] = {}
        stated_usd = forked_from = None
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
                # A session's copies of an agent's lines count only without the agent's own file.
                if "parentToolUseID" in line.fields and _file_of(line) in lines:
                    continue
                seen.add(uuid or "")
                fork = as_object(line.fields.get("forkedFrom")).get("sessionId")
                forked_from = as_text(fork) or forked_from
                usd = line.fields.get("total_cost_usd", line.fields.get("totalCostUSD"))
                if isinstance(usd, int | float) and 0 <= usd < _MOST_USD:
                    stated_usd = float(usd)
                agent = self._agent_of(name, line, agent_of_line)
                if agent is None:
                    self._main.add(line)
                else:
                    self._agents.setdefault(agent, Conversation(agent, texts)).add(line)
        self._agents = {name: one for name, one in self._agents.items() if one.messages}
        if not (self._main.messages or self._agents):
            raise EmptySessionError("nothing was said in the session")
        title = next((visible(titles[kind]) for kind in reversed(_TITLES) if kind in titles), None)
        known = (one.last("sessionId") or one.first("uuid") for one in self._conversations)
        self.id = visible(next(filter(None, known), ""))
        self.forked_from = forked_from
        cwd = self._main.first("cwd")
        self._about = About(self.id, title, cwd, forked_from, stated_usd)
        for one in self._conversations:
            one.end()

    @property
    def _conversations(self) -> Sequence[Conversation]:
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
        about = replace(self._about, title=None, stated_usd=None)  # of agents
        made: dict[str | None, SessionRun] = {}
        if not self._main.messages:
            for name, one in self._agents.items():
                made[name] = SessionRun(about, one, known.get(name), counted)
        else:
            root = made[None] = SessionRun(self._about, self._main, known.get(None), counted)
            links = self._links()
            numbers: Counter[str] = Counter()
            for place in map(place_columns, known.values()):
                above_id, number = place["parent_run"], place["child_number"] or 0
                numbers[above_id] = max(numbers[above_id], number)
            waiting = sorted(self._agents, key=lambda name: self._agents[name].lines[0].at)
            while waiting:
                # An agent whose owner is itself or missing belongs to the session.
                for name in [each for each in waiting if links[each].owner in made] or waiting:
                    above = made.get(links[name].owner, root)
                    numbers[above.id] += name not in known
                    run_id = known.get(name) or child_id(above.id, numbers[above.id])
                    one = self._agents[name]
                    made[name] = SessionRun(about, one, run_id, counted, above, links[name])
                waiting = [name for name in waiting if name not in made]
            root.add_unreported(self._main, made.values())
        for run in made.values():
            run.finish()
        return tuple(made.values())

    def _links(self) -> dict[str, Link]:
        """Return the call that started each agent, as far as the session says."""
        by_id: dict[str | None, Link] = {}  # of an agent or of a call
        by_prompt: dict[str, list[Link]] = {}
        for one in self._conversations:
            for use_id, call in one.calls.items():
                asked, given = call.asked.block, as_object(call.asked.block["input"])
                told = (
                    given.get("subagent_type"),
                    given.get("agent_type"),
                    call.raw.get("agentType"),
                )
                link = Link(one.agent, use_id, next(filter(None, map(as_text, told)), ""))
                agent = visible(as_text(call.raw.get("agentId")) or use_id)
                by_id |= {use_id: link, agent: link}
                if agent not in self._agents and asked["name"] in _AGENT_TOOLS:
                    by_prompt.setdefault(str(given.get("prompt")), []).append(link)
        found = {}
        for agent, one in self._agents.items():
            meta = self._meta.get(f"agent-{agent}.meta.json", {})
            owner, call_id = (as_text(meta.get(each)) for each in ("parentAgentId", "toolUseId"))
            asked_in = one.lines[0].text("parentToolUseID") or call_id
            known = by_id.get(agent) or by_id.get(asked_in)
            if known is None and (same := by_prompt.get(one.messages[0].text)):
                known = same.pop(0)
            link = known or Link(owner if owner in self._agents else None, call_id)
            found[agent] = replace(link, type=as_text(meta.get("agentType")) or link.type)
        return found


def _file_of(line: Line) -> str:
    return f"agent-{visible(line.text('agentId') or '')}.jsonl"


def _timed(lines: list[Line], modified: float) -> list[Line]:
    """Give the first lines that have no time that of the first that has one; if none has, the time that
    the file was changed, less what the session took."""
    first = next((line.at for line in lines if line.at), None)
    if first is None:
        took = sum(
            tokens_of(line.fields.get("duration_ms")) for line in lines if line.kind == "result"
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
