"""What must hold of the calls that a person was asked about."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import Row

from tests.crash.record import Record
from tests.crash.scenario import REMEMBERED, Planned, Scenario
from tests.crash.violation import hold


def check(record: Record, variant: Scenario) -> None:
    """Raise ``Violation`` unless each question was asked once, and has the one answer it was given."""
    calls = {(call.message, call.position): call for call in record.calls}
    asked = {calls[row.message, row.position].tool_use_id: row for row in record.questions}
    hold(len(asked) == len(record.questions), "a call was asked about twice", record.questions)
    hold(asked.keys() == variant.answers.keys(), "other calls were asked about", sorted(asked))
    for call in record.calls:
        asking = call.tool_use_id in asked
        hold((call.decision == "ask") == asking, "a call was decided on otherwise", call)
    for name, planned in variant.answers.items():
        _check_answer(asked[name], planned)
        _check_told(record, name, planned)
    told = Counter(
        (event.data["turn"], event.data["call_index"], event.data["answer"])
        for event in record.events
        if event.type == "approval_answered"
    )
    answered = Counter((row.turn, row.position, row.answer) for row in record.questions)
    hold(told == answered, "approval_answered is not once an answer", told, answered)
    count = record.run.answer_count
    hold(count == len(record.questions), "answers are not counted", count)
    _check_remembered(record, variant)


def _check_answer(row: Row[Any], planned: Planned) -> None:
    found = (row.answer, row.answered_via, row.reason)
    expected = (planned.effect, planned.by, planned.reason)
    hold(found[:2] == expected[:2], "a question has another answer", found, expected)
    hold(planned.by == "rule" or found == expected, "a reason was lost", found, expected)
    edited = planned.command and {"command": planned.command}
    hold(row.edited_input == edited, "an edit was lost", row.edited_input)
    hold(row.answered_at is not None, "an answer has no time", row)


def _check_told(record: Record, name: str, planned: Planned) -> None:
    said = record.result(name)["content"]
    if planned.effect == "denied":
        hold(planned.reason in said, "the reason of a denial is unsaid", said)
    if planned.command is not None:
        hold("changed its input" in said, "an edit is unsaid", said)
        hold(planned.command in said, "an edit is unsaid", said)


def _check_remembered(record: Record, variant: Scenario) -> None:
    rules = [rule.rule for rule in record.rules if rule.origin == "remembered"]
    hold(rules == ([REMEMBERED] if variant.answers else []), "other rules are remembered", rules)
    by_rule = [
        call.tool_use_id
        for call in record.calls
        if call.decision == "allow" and call.decision_snapshot > 1 and call.rule == REMEMBERED
    ]
    expected = ["toolu_4_2"] if variant.answers else []
    hold(by_rule == expected, "a remembered rule did not decide", by_rule)
