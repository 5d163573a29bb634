"""A run's reading: what was said, with decisions, costs, compactions, verifications and what people did
where they happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from runner.app import transcript as parts
from runner.app.humanize import cell, cost, cost_line, duration, verdict, verified
from runner.cli.costs import spending_of
from runner.cli.look.family import descent, family_of, tree_line
from runner.cli.look.family import words as sub_agent
from runner.cli.look.reading import words
from runner.core.agents import place_of
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.queries.costs import CallCost
    from runner.queries.decisions import DeniedCall
    from runner.queries.jobs import ChildSummary, Verification
    from runner.queries.timeline import HistoryEvent
    from runner.queries.transcript import StoredBlock, StoredCompaction
    from runner.store.database import Database

Turns = tuple[int, int]


def reading(
    settings: Settings,
    database: Database,
    run_id: str,
    now: float,
    turns: Turns | None = None,
    *,
    whole_tree: bool = False,
) -> parts.Transcript:
    """A run, read while its parts are.

    Args:
        now: seconds since the epoch.
        turns: only the turns from the first number to the last; what was said before turn 1 belongs
            to that, and so does the system prompt.
        whole_tree: with the readings of the sub-agents that it has started, where it did.

    Raises:
        UsageError: the run has not come so far.
    """
    from runner.queries.jobs import show_run
    from runner.queries.transcript import system_prompt

    run: dict[str, Any] = {**show_run(database, run_id), **place_of(run_id)}
    family = family_of(settings, database, run_id)
    if turns and turns[0] > max(run["turns"], 1):
        raise UsageError(f"there is no turn {turns[0]} yet: the last one is {run['turns']}")
    shown = turns and (turns[0] if turns[0] > 1 else 0, turns[1])

    def inner(child: str) -> parts.Transcript | None:
        if not whole_tree:
            return None
        return reading(settings, database, child, now, whole_tree=True)

    cost = cost_line(spending_of(settings, database, run_id=run_id))
    facts = _facts(run | family, cost, turns, now)
    return parts.Transcript(
        run_id=run_id,
        title=cell(run["item_key"]),
        facts=tuple((name, value) for name, value in facts if value),
        state=parts.Note(words.state(run), words.TONES.get(run["state"], "plain")),
        system="" if turns and turns[0] > 1 else system_prompt(database, run_id) or "",
        parts=_Composer(settings, database, run_id, shown, family, inner).in_order(),
    )


def _facts(
    run: dict[str, Any], cost: str, turns: Turns | None, now: float
) -> tuple[tuple[str, str | float | None], ...]:
    return (
        ("run", run["id"]),
        ("item", cell(run["item_key"])),
        *((name, cell(value)) for name, value in descent(run)),
        ("job", f"{run['job_id']} {cell(run['job_name'])}"),
        ("state", words.state(run)),
        ("model", cell(run["model"])),
        ("turns", _turns(run["turns"], turns)),
        ("cost", cost),
        ("its tree", tree_line(run)),
        ("fork of", f"{run['fork_of']}@{run['fork_turn']}" if run["fork_of"] else ""),
        ("submitted", run["created_at"]),
        ("ended", run["ended_at"]),
        ("as of", None if run["ended_at"] else now),
        ("took", _took(run)),
    )


def _turns(count: int, turns: Turns | None) -> str:
    return f"{count:,}" + (f", of which {turns[0]} to {min(turns[1], count)}" if turns else "")


def _took(run: dict[str, Any]) -> str:
    if run["started_at"] is None or run["ended_at"] is None:
        return ""
    return duration(run["ended_at"] - run["started_at"])


class _Composer:
    """Takes what happened beside the messages and puts it between them."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        run_id: str,
        turns: Turns | None,
        family: Mapping[str, Any],
        inner: Callable[[str], parts.Transcript | None],
    ) -> None:
        from runner import wiring
        from runner.queries import decisions, transcript
        from runner.queries.costs import call_costs
        from runner.queries.find import call_labels
        from runner.queries.jobs import verifications_of_run
        from runner.queries.timeline import history_of_run

        said = transcript.messages_of_run(database, run_id, turns)
        self._messages = said if place_of(run_id)["parent"] is None else _own(said)
        self._labels = database.read(lambda connection: call_labels(connection, [run_id]))
        self._children = {child["id"]: child for child in family["children"]}
        self._child_spending = family["child_spending"]
        self._inner = inner
        self._denied = {call["id"]: call for call in decisions.denied_calls(database, run_id)}
        self._asked = {
            each["call_id"]: each for each in decisions.approvals_of_run(database, run_id)
        }
        self._compactions = [
            each
            for each in transcript.compactions_of_run(database, run_id)
            if turns is None or turns[0] <= each["turn"] <= turns[1]
        ]
        self._verifications = [
            each
            for each in verifications_of_run(database, run_id)
            if turns is None or turns[0] <= each["turn"] <= turns[1]
        ]
        self._events = [
            each
            for each in history_of_run(database, run_id)
            if turns is None or turns[0] <= each.place.turn <= turns[1]
        ]
        self._spent: dict[int, list[CallCost]] = defaultdict(list)
        self._summaries: dict[int, CallCost] = {}
        for call in call_costs(database, wiring.load_prices(settings), run_id):
            if call.purpose == "turn":
                self._spent[call.turn].append(call)
            else:
                self._summaries[call.number] = call

    def in_order(self) -> Iterator[parts.Part]:
        yield from self._beginning()
        for message in self._messages:
            role, turn = message[0]["role"], message[0]["turn"]
            yield from self._events_before(turn, 1 if role == "assistant" else 2)
            verified_first = [
                self._verifications.pop(0)
                for each in tuple(self._verifications)
                if any(_follows(line, each) for line in message)
            ]
            yield from map(_verification, verified_first)
            if role == "assistant":
                while self._compactions and self._compactions[0]["turn"] <= turn:
                    yield self._compaction(self._compactions.pop(0))
            yield self._message(message)
            if role == "assistant":
                for child in self._started_by(
                    {line["call"]["id"] for line in message if line["call"]}
                ):
                    yield from self._sub_agent(child)
        yield from map(_verification, self._verifications)
        yield from self._events_before(None, 0)
        yield from map(self._compaction, self._compactions)

    def _beginning(self) -> Iterator[parts.Part]:
        """How the run came to be is told before what it was told."""
        while self._events and self._events[0].type == "run_submitted":
            yield from self._event(self._events.pop(0))

    def _events_before(self, turn: int | None, stage: int) -> Iterator[parts.Part]:
        """What happened before a turn was as far as ``stage``; without a turn all that is left."""
        while self._events:
            place = self._events[0].place
            if turn is not None and (place.turn, place.stage) >= (turn, stage):
                return
            yield from self._event(self._events.pop(0))

    def _event(self, event: HistoryEvent) -> Iterator[parts.Part]:
        note = words.event(event.type, event.data, event.attempt)
        if note is not None:
            yield parts.Event(event.at, note, words.is_by_person(event.type, event.data))
        if event.type == "child_started" and "call_index" not in event.data:
            child = self._children.get(str(event.data.get("child")))
            yield from self._sub_agent(child) if child is not None else ()

    def _started_by(self, call_ids: Collection[str]) -> list[ChildSummary]:
        return [child for child in self._children.values() if child["call_id"] in call_ids]

    def _sub_agent(self, child: ChildSummary) -> Iterator[parts.Part]:
        """Its own reading, where the whole tree is told."""
        reading = self._inner(child["id"])
        if reading is not None:
            yield parts.SubAgent(child["label"], self._outcome(child), reading)

    def _outcome(self, child: ChildSummary) -> parts.Note:
        spending = self._child_spending[child["id"]]
        told = (
            sub_agent(child),
            cost(spending) if spending.calls else "",
            cell(child["description"]),
        )
        tone = words.TONES.get(child["state"], "plain")
        return parts.Note(", ".join(filter(None, told)), tone)

    def _message(self, message: list[StoredBlock]) -> parts.Message:
        first = message[0]
        is_reply = first["role"] == "assistant"
        spent = self._spent.pop(first["turn"], []) if is_reply else []
        return parts.Message(
            role=first["role"],
            turn=first["turn"],
            at=first["created_at"],
            pieces=tuple(map(self._piece, message)),
            words=words.spent(spent),
        )

    def _piece(self, line: StoredBlock) -> parts.Piece:
        content, call = line["content"], line["call"]
        match content["type"]:
            case "text":
                return parts.Text(content["text"])
            case "thinking" | "redacted_thinking":
                return parts.Thinking(content.get("thinking", ""))
            case "tool_use" if call is not None:
                return self._call(content, call)
            case "tool_result" if call is not None:
                outcome = ", ".join(filter(None, (cell(call["state"]), duration(call["duration"]))))
                tone = words.OUTCOME_TONES.get(call["state"], "bad")
                note = parts.Note(outcome, tone)
                return parts.ToolResult(
                    call["id"], cell(call["name"]), note, content.get("content", ""), call["size"]
                )
            case kind:
                return parts.OtherBlock(cell(kind), content)

    def _call(self, content: dict[str, Any], call: dict[str, Any]) -> parts.ToolCall:
        denied, asked = self._denied.get(call["id"]), self._asked.get(call["id"])
        edited = asked["edited_input"] if asked else None
        return parts.ToolCall(
            id=call["id"],
            tool=cell(content["name"]),
            arguments=content["input"],
            decided=_decided(call, denied, asked),
            edited=call["updated_input"] if edited is None else edited,
            label=self._labels.get((call["run_id"], call["turn"], call["position"]), ""),
            started=tuple(map(self._outcome, self._started_by({call["id"]}))),
        )

    def _compaction(self, compaction: StoredCompaction) -> parts.Compaction:
        before, after = compaction["tokens_before"], compaction["tokens_after"]
        made_by = self._summaries.pop(compaction["made_by_call"] or 0, None)
        cost = f" · {words.spent([made_by])}" if made_by else ""
        return parts.Compaction(
            turn=compaction["turn"],
            at=compaction["created_at"],
            words=f"about {before:,} tokens became {after:,}{cost}",
            notes=tuple(parts.Note(note) for note in words.compacted(compaction)),
            text=compaction["text"],
        )


def _own(messages: Iterable[list[StoredBlock]]) -> Iterator[list[StoredBlock]]:
    """The messages of a sub-agent: of what its conversation began with, the rest of which it has from
    its parent, the last block is its own."""
    began: list[StoredBlock] = []
    for message in messages:
        if message[0]["turn"] == 0:
            began = message
            continue
        if began:
            yield began[-1:]
            began = []
        yield message
    if began:
        yield began[-1:]


def _follows(line: StoredBlock, verification: Verification) -> bool:
    """Whether a line was said after a verification: in a later turn, or to tell of it."""
    if line["turn"] != verification["turn"]:
        return line["turn"] > verification["turn"]
    return line["role"] == "user" and line["content"]["type"] == "text"


def _verification(verification: Verification) -> parts.Verification:
    tone: dict[str, parts.Tone] = {"passed": "good", "failed": "bad", "not ended": "wait"}
    return parts.Verification(
        number=verification["number"],
        turn=verification["turn"],
        at=verification["started_at"],
        verdict=parts.Note(verified(verification), tone[verdict(verification)]),
        output=verification["output"] or "",
    )


def _decided(
    call: dict[str, Any], denied: DeniedCall | None, asked: dict[str, Any] | None
) -> tuple[parts.Note, ...]:
    """What decided on a call, and what became of the question about it."""
    from runner.app.humanize import answer, decider, denier

    if denied is not None:
        said = denier(denied)
        return (parts.Note(said if denied["answer"] else f"denied: {said}", "bad"),)
    if asked is not None:
        edited = ", with another input" if asked["edited_input"] is not None else ""
        tone = words.ANSWER_TONES.get(asked["answer"], "wait")
        return (parts.Note(f"{answer(asked)}{edited}", tone),)
    if call["decision"] == "deny":  # copied into a fork
        return (parts.Note(f"denied: {decider({**call, 'why': ''})}", "bad"),)
    if call["decision"] == "allow" and call["rule"]:
        return (parts.Note(f"allowed by {cell(call['rule'])}"),)
    return ()
