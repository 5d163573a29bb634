"""The transcript of a run as values, which the terminal and the page lay out.

A ``Note`` is Runner's own words and safe to print. Texts, inputs and contents come from models,
tools and people and are not.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from runner.app import humanize
from runner.app.costs import spending_of
from runner.app.event_words import event_note, is_by_person
from runner.app.handle import App
from runner.app.humanize import DiffKind, Note, cell
from runner.app.show import child_line, descent, tree_line, tree_of
from runner.core.agents import place_of
from runner.core.media import is_media, media_line
from runner.errors import RunnerError, UsageError
from runner.queries import decisions, outcomes
from runner.queries import transcript as stored
from runner.queries.costs import CallCost, call_costs
from runner.queries.filters import call_labels
from runner.queries.outcomes import ChildSummary
from runner.queries.outcomes import Verification as StoredVerification
from runner.queries.timeline import ENDED, REPLIED, HistoryEvent, history_of_run
from runner.queries.transcript import StoredBlock, StoredCompaction
from runner.store.blobs import load_blob
from runner.store.workspaces import workspace_of

Turns = tuple[int, int]  # the first and the last


@dataclass(frozen=True, slots=True)
class Text:
    text: str  # what the model or a person said
    # Of a user's words in an imported session: machine or peer; person after anything else.
    by: str = ""


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str  # what the model thought; empty where the API keeps it to itself


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    tool: str
    arguments: Any
    decided: tuple[Note, ...] = ()  # what decided on it
    edited: Any = None  # the input that a person or a hook had it run with instead, if any
    label: str = ""  # its name in its tree
    started: tuple[Note, ...] = ()  # the outcome of each sub-agent that it started


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The output of a call that the model was shown."""

    call_id: str
    tool: str
    outcome: Note
    content: Any
    whole_bytes: int | None = None  # length of the stored output where that is longer
    original: str | None = None  # the text that a hook replaced by this content


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a document in a content."""

    line: str  # shown in its place in a text
    media_type: str
    load: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class OtherBlock:
    kind: str  # of the block, shown unchanged
    content: Any


Piece = Text | Thinking | ToolCall | ToolResult | OtherBlock


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    turn: int
    at: float  # seconds since the epoch
    pieces: tuple[Piece, ...]
    words: str = ""  # what it cost

    @property
    def is_results(self) -> bool:
        return self.role == "user" and all(isinstance(each, ToolResult) for each in self.pieces)


@dataclass(frozen=True, slots=True)
class Compaction:
    """A replacement of messages in requests."""

    turn: int  # the first that is sent so
    at: float
    words: str
    notes: tuple[Note, ...]
    text: str  # stands in for messages; empty where none does


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of the job's verification commands."""

    number: int
    turn: int  # the turn before it
    at: float
    verdict: Note
    output: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened beside the conversation: a person's action, a wait, the end."""

    at: float
    note: Note
    is_by_person: bool


@dataclass(frozen=True, slots=True)
class SubAgent:
    label: str  # of a run that this one started, told where it started
    note: Note  # its outcome
    transcript: Transcript


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a whole run in its workspace, as a summary and a diff."""

    diff: str

    @property
    def lines(self) -> Iterator[tuple[DiffKind, str]]:
        return humanize.diff_kinds(self.diff)


Part = Message | Compaction | Verification | Event | SubAgent | Changes


@dataclass(frozen=True, slots=True)
class Transcript:
    """A whole run, or some of its turns."""

    run_id: str
    title: str  # the run's item, safe to print
    facts: tuple[tuple[str, str | float], ...]  # names with words, or times since the epoch
    state: Note
    system: str  # the system prompt as the run has it
    parts: Iterator[Part]  # read once


def text_of(content: Any) -> str:
    """Return a tool result's content as text; blocks that are no text are JSON."""
    if isinstance(content, str):
        return content
    return "\n".join(map(_text_of, content if isinstance(content, list) else [content]))


def _text_of(block: Any) -> str:
    if isinstance(block, Media):
        return block.line
    if isinstance(block, dict):
        if is_media(block):
            return media_line(block)
        if isinstance(block.get("text"), str):
            return str(block["text"])
    return json.dumps(block, ensure_ascii=False)


def transcript_of(
    app: App, name: str, now: float, turns: Turns | None = None, *, whole_tree: bool = False
) -> Transcript:
    """Return the transcript of a run (an id or a part of it) ``now`` (seconds since the epoch). Its
    parts are read from the database when they are asked for.

    Args:
        turns: only the turns from the first number to the last; what was said before turn 1 belongs
            to that, and so does the system prompt. Raises ``UsageError`` if none has come yet.
        whole_tree: with the transcripts of the sub-agents that it started.
    """
    run_id = app.find(name, "run").id
    run: dict[str, Any] = {**stored.show_run(app.database, run_id), **place_of(run_id)}
    run |= tree_of(app, run_id)
    is_to_end = turns is None or turns[1] >= run["turns"]
    if turns and turns[0] > max(run["turns"], 1):
        raise UsageError(f"there is no turn {turns[0]} yet: the last one is {run['turns']}")
    some = f"; shown: {turns[0]} to {min(turns[1], run['turns'])}" if turns else ""
    started, ended = run["started_at"], run["ended_at"]
    facts: tuple[tuple[str, str | float | None], ...] = (
        ("run", run_id),
        ("item", cell(run["item_key"])),
        *((name, cell(value)) for name, value in descent(run)),
        ("job", f"{run['job_id']} {cell(run['job_name'])}"),
        ("state", humanize.run_state(run).words),
        ("model", cell(run["model"])),
        ("turns", f"{run['turns']:,}{some}"),
        ("cost", humanize.cost_line(spending_of(app, run_id=run_id))),
        ("its tree", tree_line(run)),
        ("fork of", f"{run['fork_of']}@{run['fork_turn']}" if run["fork_of"] else ""),
        ("submitted", run["created_at"]),
        *session_facts(stored.session_of_run(app.database, run_id)),
        ("ended", ended),
        ("as of", None if ended else now),
        ("took", "" if None in (started, ended) else humanize.duration(ended - started)),
    )
    is_from_start = turns is None or turns[0] <= 1
    if turns and is_from_start:
        turns = 0, turns[1]
    return Transcript(
        run_id=run_id,
        title=cell(run["item_key"]),
        facts=tuple((name, value) for name, value in facts if value),
        state=humanize.run_state(run),
        system=(stored.system_prompt(app.database, run_id) or "") if is_from_start else "",
        parts=chain(
            _Composer(app, run, turns, now if whole_tree else None).parts(),
            _changes_of(app, run) if is_to_end else (),
        ),
    )


def _told_once(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts; the message that tells the model of a failed verification without its output."""
    last: Part | None = None
    for part in parts:
        if isinstance(last, Verification) and isinstance(part, Message) and part.role == "user":
            pieces = tuple(_without_output(piece, last) for piece in part.pieces)
            last = replace(part, pieces=pieces)
        else:
            last = part
        yield last


def _without_output(piece: Piece, verification: Verification) -> Piece:
    end = verification.output.rstrip().rpartition("\n")[2]
    if not end or not isinstance(piece, Text) or end not in piece.text:
        return piece
    words, sign, _ = piece.text.partition("\n\n$ ")
    return (
        replace(piece, text=f"{words}\n\n[see verification {verification.number}]")
        if sign
        else piece
    )


def _changes_of(app: App, run: Mapping[str, Any]) -> Iterator[Changes]:
    """Yield what a run has changed, if it did and that can be looked up here."""
    recorded = workspace_of(app.database, run["id"])
    if run["ended_at"] is None or not recorded.is_recorded or recorded.tree is None:
        return
    from runner.app.outputs import diff_of

    with suppress(
        RunnerError
    ):  # its files are on another host, or were pruned: `runner diff` says so
        if content := diff_of(app, run["id"], width=_DIFF_WIDTH).content:
            yield Changes(content.decode(errors="backslashreplace"))


def session_facts(session: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the facts about an imported session, as labels and values."""
    if session is None:
        return
    yield "title", cell(session["title"] or "")
    yield "session", cell(session["session_id"])
    if session["stated_usd"] is not None:
        yield "stated cost", f"${session['stated_usd']:.4f} by Claude Code"
    if session["under_reported"]:
        replies = humanize.plural(session["under_reported"], "reply states", "replies state")
        yield "too low", f"{replies} fewer tokens of output than its text has"


def parts_of(app: App, run: Mapping[str, Any], turns: Turns) -> Iterator[Part]:
    """Return the parts of some turns of a run; ``run`` is a row as ``tree_of`` returns it. What was
    said before turn 1 belongs to turn 0. Sub-agents are left out."""
    return _Composer(app, run, turns, None).parts()


def request_as_sent(app: App, name: str, turn: int) -> bytes:
    from runner.llm.requests import request_body

    sent = stored.sent_request(app.database, app.find(name, "run").id, turn)
    return request_body(sent)


def api_messages(app: App, name: str) -> list[dict[str, Any]]:
    """Return the conversation of a run exactly as in the Messages API."""
    return stored.api_messages(app.database, app.find(name, "run").id)


_DIFF_WIDTH = 78
# A turn, its stage, the order in that, the time, and the order of what has the same time.
_Place = tuple[int, int, int, float, int]


class _Composer:
    """Merges events, compactions and sub-agents with the messages of a run, for some turns or all.
    ``now`` is the time of its sub-agents' transcripts; None leaves them out."""

    def __init__(
        self, app: App, run: Mapping[str, Any], turns: Turns | None, now: float | None
    ) -> None:
        database, run_id = app.database, run["id"]
        self._app, self._run, self._turns, self._now = app, run, turns, now
        self._labels = database.read(lambda connection: call_labels(connection, [run_id], turns))
        denied = decisions.denied_calls(database, run_id, turns)
        self._denied = {each["id"]: each for each in denied}
        asked = decisions.approvals_of_run(database, run_id, turns)
        self._asked = {each["call_id"]: each for each in asked}
        self._spent: dict[tuple[str, int], list[CallCost]] = defaultdict(list)
        for call in call_costs(database, app.prices(), run_id, turns):
            is_of_turn = call.purpose == "turn"
            self._spent[call.purpose, call.turn if is_of_turn else call.number].append(call)

    def parts(self) -> Iterator[Part]:
        """Return the parts by turn and stage; what happened in a stage comes after its message."""

        def shown(turn: int) -> bool:
            return self._turns is None or self._turns[0] <= turn <= self._turns[1]

        database, run_id = self._app.database, self._run["id"]
        beside: list[tuple[_Place, Iterable[Part]]] = []
        latest = 0.0  # a clock that was set back does not change the order of the record
        for event in history_of_run(database, run_id, self._turns):
            latest = max(latest, event.at)
            if shown(event.place.turn):
                is_first = event.type == "run_submitted"
                turn, stage = (-1, 0) if is_first else (event.place.turn, event.place.stage)
                beside.append(((turn, stage, 1, latest, 2), self._event(event)))
        for verification in outcomes.verifications_of_run(database, run_id):
            if shown(turn := verification["turn"]):
                at = verification["started_at"]
                beside.append(((turn, ENDED, 1, at, 0), [_verification(verification)]))
        for compaction in stored.compactions_of_run(database, run_id):
            if shown(turn := compaction["turn"]):
                at = compaction["created_at"]
                beside.append(((turn - 1, ENDED, 1, at, 3), [self._compaction(compaction)]))
        messages = stored.messages_of_run(database, run_id, self._turns)
        own = _own_messages(messages) if self._run["parent"] else messages
        spoken = ((_place_of_message(each), self._message(each)) for each in own)
        beside.sort(key=itemgetter(0))
        merged = merge(spoken, beside, key=itemgetter(0))
        return _told_once(chain.from_iterable(parts for _, parts in merged))

    def _event(self, event: HistoryEvent) -> Iterator[Part]:
        note = event_note(event.type, event.data, event.attempt)
        # The first attempt is no news, and what follows tells why an attempt gave the run back.
        is_first = (event.type, event.attempt) == ("attempt_started", 1)
        is_given_back = event.type == "attempt_ended" and "due_at" in event.data
        if note is not None and not (is_first or is_given_back):
            yield Event(event.at, note, is_by_person(event.data))
        if event.type == "child_started" and "call_index" not in event.data:
            children = self._run["children"]
            yield from self._sub_agents(c for c in children if c["id"] == event.data.get("child"))

    def _started_by(self, call_ids: Collection[str]) -> list[ChildSummary]:
        return [child for child in self._run["children"] if child["call_id"] in call_ids]

    def _sub_agents(self, children: Iterable[ChildSummary]) -> Iterator[Part]:
        if self._now is None:
            return
        for child in children:
            transcript = transcript_of(self._app, child["id"], self._now, whole_tree=True)
            yield SubAgent(child["label"], self._child_note(child), transcript)

    def _child_note(self, child: ChildSummary) -> Note:
        spending = self._run["child_spending"][child["id"]]
        spent = humanize.cost(spending) if spending.calls else ""
        told = (child_line(child), spent, child["description"])
        return Note(", ".join(filter(None, told)), humanize.TONES.get(child["state"], "plain"))

    def _message(self, message: list[StoredBlock]) -> Iterator[Part]:
        first = message[0]
        is_reply = first["role"] == "assistant"
        spent = self._spent.pop(("turn", first["turn"]), []) if is_reply else []
        yield Message(
            role=first["role"],
            turn=first["turn"],
            at=first["created_at"],
            pieces=tuple(_without_plain_speakers(map(self._piece, message))),
            words=humanize.call_cost_line(spent),
        )
        if is_reply:
            calls = {block["call"]["id"] for block in message if block["call"]}
            yield from self._sub_agents(self._started_by(calls))

    def _piece(self, block: StoredBlock) -> Piece:
        content, call = block["content"], block["call"]
        match content["type"]:
            case "text":
                return Text(content["text"], cell(block["spoken_by"] or ""))
            case "thinking" | "redacted_thinking":
                return Thinking(content.get("thinking", ""))
            case "tool_use" if call is not None:
                asked = self._asked.get(call["id"])
                edited = asked["edited_input"] if asked else None
                return ToolCall(
                    id=call["id"],
                    tool=cell(content["name"]),
                    arguments=content["input"],
                    decided=humanize.decision_notes(call, self._denied.get(call["id"]), asked),
                    edited=call["updated_input"] if edited is None else edited,
                    label=self._labels.get((call["run_id"], call["turn"], call["position"]), ""),
                    started=tuple(map(self._child_note, self._started_by({call["id"]}))),
                )
            case "tool_result" if call is not None:
                contained = humanize.contained(call["containment"])
                took = humanize.duration(call["duration"])
                words = filter(None, (call["state"], took, contained))
                outcome = Note(", ".join(words), humanize.TONES.get(call["state"], "bad"))
                shown = self._with_media(content.get("content", ""))
                more = (call["size"], call["original"])
                return ToolResult(call["id"], cell(call["name"]), outcome, shown, *more)
            case kind:
                return OtherBlock(cell(kind), *self._with_media([content]))

    def _with_media(self, content: Any) -> Any:
        """Return a content with its media blocks replaced by ``Media``."""
        if not isinstance(content, list):
            return content
        return [self._media(each) if is_media(each) else each for each in content]

    def _media(self, block: dict[str, Any]) -> Media:
        source = block["source"]
        load = partial(load_blob, self._app.database, source["sha256"])
        return Media(media_line(block), source["media_type"], load)

    def _compaction(self, compaction: StoredCompaction) -> Compaction:
        made_by = self._spent.pop(("summary", compaction["made_by_call"] or 0), [])
        spent = f" · {humanize.call_cost_line(made_by)}" if made_by else ""
        before, after = (compaction[f"tokens_{when}"] for when in ("before", "after"))
        became = f" became {after:,}" if after or made_by else ""
        tokens = f"{before:,} tokens{became}" if before or after else "an unknown number of tokens"
        return Compaction(
            turn=compaction["turn"],
            at=compaction["created_at"],
            words=f"about {tokens}{spent}",
            notes=humanize.compaction_notes(compaction),
            text=compaction["text"],
        )


def _without_plain_speakers(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces of a message; only words of a person that follow something else name the person."""
    before: Piece = Text("", "person")
    for piece in pieces:
        if (
            isinstance(piece, Text)
            and isinstance(before, Text)
            and piece.by == before.by == "person"
        ):
            yield replace(piece, by="")
        else:
            yield piece
        before = piece


def _own_messages(messages: Iterable[list[StoredBlock]]) -> Iterator[list[StoredBlock]]:
    """Yield a sub-agent's own messages: the last block of its parent's copy, and all after it."""
    for is_inherited, some in groupby(messages, key=lambda message: message[0]["turn"] == 0):
        yield from (message[-1:] for message in deque(some, maxlen=1)) if is_inherited else some


def _place_of_message(message: list[StoredBlock]) -> _Place:
    first = message[0]
    if first["role"] == "assistant":
        return first["turn"], REPLIED, 0, 0.0, 0
    # A verification comes after the results of its turn, and before the text that tells of it.
    has_text = any(block["content"]["type"] == "text" for block in message)
    return first["turn"], ENDED, int(has_text), first["created_at"] if has_text else 0.0, 1


def _verification(verification: StoredVerification) -> Verification:
    return Verification(
        number=verification["number"],
        turn=verification["turn"],
        at=verification["started_at"],
        verdict=humanize.verified_note(verification),
        output=verification["output"] or "",
    )
