"""What must hold of a family that has ended, whatever happened to its workers on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from tests.crash import scenario
from tests.crash.family.scenario import DENIED, FAMILY, HOOKED, LAST_WORDS, SCRIPTS, TYPES, Who
from tests.crash.invariants import Served, check_conversation, check_events
from tests.crash.record import Record, hold, hold_all

# Of what a call's hooks say nothing is known, after a crash: it is denied. What a worker does in its
# parent's folder is recorded by nobody.
_MAY_BE: Mapping[Who, frozenset[str]] = {
    "parent": frozenset({"succeeded", "denied"}),
    "worker": frozenset({"succeeded", "denied", "unknown"}),
    "reviewer": frozenset({"succeeded", "denied"}),
}


def check(records: Sequence[Record], served: Served, folder: Path) -> None:
    """Raise ``Violation``, with everything that does not hold, unless it all does.

    Args:
        records: of the parent, and of its children in the order in which they were asked for.
        folder: the iteration's.
    """
    hold_all(
        lambda: _check_family(records),
        *(partial(check_conversation, record, served) for record in records),
        *(partial(check_events, record) for record in records),
        lambda: _check_answers(records),
        lambda: _check_calls(records),
        lambda: _check_side_effects(records),
        lambda: _check_hooks(records, folder),
        lambda: _check_money(records, served),
    )


def _check_family(records: Sequence[Record]) -> None:
    parent, *children = [record.run for record in records]
    expected = [
        (f"{parent.id}.{number}", parent.id, parent.id, 1, number, kind)
        for number, kind in enumerate(TYPES, 1)
    ]
    found = [
        (run.id, run.parent_run, run.root_run, run.depth, run.child_number, run.agent_type)
        for run in children
    ]
    hold(found == expected, "a child is missing, or one was started twice", found)
    for record in records:
        run = record.run
        end = (run.state, run.reason)
        hold(end == ("succeeded", "end_turn"), "a run ended otherwise", run.id, end, run.detail)
        hold(run.worker_id is None and run.ended_at is not None, "an ended run is held", run.id)
        hold(run.bugs == 0, "an exception that nobody classified ended an attempt", run.id)


def _check_answers(records: Sequence[Record]) -> None:
    """What a child said last is the result of the call that asked for it."""
    for index, kind in enumerate(TYPES):
        said = str(records[0].result(f"toolu_parent_1_{index}")["content"])
        hold(said.startswith(LAST_WORDS[kind]), "a child's last words are lost", kind, said)


def _own_calls(who: Who, record: Record) -> list[Row[Any]]:
    """The calls of a run itself: what it has read of its parent's is not."""
    return [call for call in record.calls if call.tool_use_id.split("_")[1] == who]


def _everyone(records: Sequence[Record]) -> list[tuple[Who, Record]]:
    return list(zip(("parent", *TYPES), records, strict=True))


def _check_calls(records: Sequence[Record]) -> None:
    for who, record in _everyone(records):
        asked = [
            block["id"]
            for reply in SCRIPTS[who]
            for block in reply.blocks
            if block["type"] == "tool_use"
        ]
        stored = [call.tool_use_id for call in _own_calls(who, record)]
        hold(stored == asked, "tool calls are not those that were asked for", stored, asked)
        for call in _own_calls(who, record):
            allowed = _MAY_BE[who] if call.name == "Bash" else {"succeeded"}
            if call.tool_use_id in FAMILY.denied:
                allowed = {"denied"}
            hold(call.outcome in allowed, "a call had another outcome", call)
            hold(call.ended_at is not None and not call.interrupted, "a call has no end", call)
            denied = call.outcome == "denied"
            hold((call.started_attempt is None) == denied, "what ran had not been started", call)


def _check_side_effects(records: Sequence[Record]) -> None:
    """Each command took effect once, where its run works, and nowhere else."""
    outcomes = {
        call.tool_use_id: call.outcome
        for who, record in _everyone(records)
        for call in _own_calls(who, record)
    }
    parent, _, reviewer = records
    _check_log(parent, outcomes, {"parent.0", "worker.0", "parent.2"})
    _check_log(reviewer, outcomes, {"parent.0", "reviewer.0"})
    for record in (parent, reviewer):
        hold(not (record.own_workspace / DENIED).exists(), "a denied call took effect")


def _check_log(record: Record, outcomes: Mapping[str, str], names: set[str]) -> None:
    log = record.own_workspace / scenario.LOG
    done = Counter(log.read_text().split() if log.exists() else ())
    for name in names:
        outcome = outcomes[f"toolu_{name.replace('.', '_')}_0"]
        times = done.pop(name, 0)
        hold(times <= 1, "a side effect happened twice", name, record.run.id)
        if outcome == "succeeded":
            hold(times == 1, "a result without its side effect", name, record.run.id)
        if outcome == "denied":
            hold(times == 0, "a denied call took effect", name, record.run.id)
    hold(not done, "side effects that are none of its own", done, record.run.id)


def _check_hooks(records: Sequence[Record], folder: Path) -> None:
    """Each hook has one record and ran once, or nobody knows whether it did."""
    log = folder / HOOKED
    ran = Counter(log.read_text().splitlines() if log.exists() else ())
    for who, record in _everyone(records):
        outcomes = _told(record)
        run = record.run
        for event, expected in (("RunStart", 1), ("TurnEnd", _turns(who)), ("RunEnd", 1)):
            told = outcomes.get((event, run.id), [])
            _check_hook(event, run.id, told, expected, ran.pop(f"{event} {run.id}", 0))
        for call in _own_calls(who, record):
            for event in ("PreToolUse", "PostToolUse") if call.name == "Bash" else ():
                told = outcomes.get((event, call.tool_use_id), [])
                expected = 0 if event == "PostToolUse" and call.outcome == "denied" else 1
                times = ran.pop(f"{event} {call.tool_use_id}", 0)
                _check_hook(event, call.tool_use_id, told, expected, times)
                unknown = event == "PreToolUse" and told == ["unknown"]
                if event == "PreToolUse":
                    denied = call.outcome == "denied"
                    hold(denied == unknown, "a hook's answer was not heeded", call, told)
    hold(not ran, "hooks of nothing ran", ran)


def _turns(who: Who) -> int:
    """The replies that have calls: only after these is there a TurnEnd hook."""
    return sum(reply.blocks[-1]["type"] == "tool_use" for reply in SCRIPTS[who])


def _check_hook(event: str, of: str, told: Sequence[str], expected: int, times: int) -> None:
    hold(len(told) == expected, "a hook is not recorded once", event, of, told)
    hold(set(told) <= {"succeeded", "unknown"}, "a hook ended otherwise", event, of, told)
    passed = told.count("succeeded")
    hold(times >= passed, "a hook that passed did not run", event, of, times)
    if event == "TurnEnd":  # it may run again
        hold("unknown" not in told, "a hook that may run again did not", of)
    else:
        hold(times <= expected, "a hook ran twice", event, of, times)


def _told(record: Record) -> dict[tuple[str, str], list[str]]:
    """The outcomes of hooks, by event and the call's id or the run's."""
    ids = {(call.message, call.position): call.tool_use_id for call in record.calls}
    found: dict[tuple[str, str], list[str]] = {}
    for row in record.hooks:
        of = ids.get((row.message, row.position), record.run.id)
        found.setdefault((row.event, of), []).append(row.outcome)
    return found


def _check_money(records: Sequence[Record], served: Served) -> None:
    """What all of them were charged is no less than what was used, and no more than the parent's
    ceiling; each child kept to its own."""
    for record in records:
        run = record.run
        charged = sum(call.charged_tokens for call in record.model_calls)
        hold(run.charged_tokens == charged, "charges do not add up", run.id, charged)
        hold(charged <= run.token_ceiling, "a token ceiling was crossed", run.id, charged)
        replies = [call for call in record.model_calls if call.stop_reason]
        hold(all(call.ended_at for call in record.model_calls), "a model call has no end", run.id)
        own = [call.turn for call in replies]
        hold(own == sorted(set(own)), "a turn was answered twice", run.id, own)
    total = sum(record.run.charged_tokens for record in records)
    hold(total <= FAMILY.limits.token_ceiling, "the parent's ceiling was crossed", total)
    hold(served.tokens <= total, "tokens were used and not charged", served.tokens, total)
    cost = sum(record.run.progress["money"]["charged_cost"] for record in records)
    hold(served.cost <= cost, "more was billed than charged", served.cost, cost)
    asked = sum(len(record.model_calls) for record in records)
    hold(served.asked <= asked, "a model call was made twice under one intent")
