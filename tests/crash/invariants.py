"""What must hold of a run that has ended, whatever happened to its workers on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row

from runner.core.agents import AGENT_TOOL
from runner.core.budget import billionths
from runner.core.text import OWN_TEXTS, VERIFY_TEXT
from runner.core.workspace import RESULT_TOOL
from tests.crash import scenario, sent
from tests.crash.record import Record, Violation, hold, hold_all
from tests.crash.scenario import REMEMBERED, Planned, Scenario
from tests.crash.sent import Asked
from tests.messages_api.conversation_rules import Refusal, check_messages

_REPEATABLE = frozenset({"Read", "Grep", "note"})


@dataclass
class Served:
    """What the model's side saw: the requests for a turn, or only how many were ``asked``, how many
    there were for a summary, and what was used: tokens, and billionths of a USD."""

    asked: int = 0
    turns: list[Asked] = field(default_factory=list)
    batched: list[int] = field(default_factory=list)  # the positions of those paid for in a batch
    summaries: int = 0
    refusals: list[str] = field(default_factory=list)
    tokens: int = 0
    cost: int = 0


def check(record: Record, served: Served, variant: scenario.Scenario) -> None:
    """Raise ``Violation``, with everything that does not hold, unless it all does."""
    hold_all(
        lambda: _check_end(record, variant),
        lambda: check_conversation(record, served),
        lambda: _check_calls(record, variant),
        lambda: _check_side_effects(record, variant),
        lambda: _check_counters(record, served, variant),
        lambda: _check_messages(record),
        lambda: check_events(record),
        lambda: check_questions(record, variant),
        lambda: sent.check(record, served.turns, variant),
        lambda: check_job_budget(record, variant),
    )


def _check_end(record: Record, variant: scenario.Scenario) -> None:
    run = record.run
    end = (run.state, run.reason)
    hold(end == (variant.state, variant.reason), "the run ended otherwise", end, run.detail)
    hold(run.worker_id is None and run.ended_at is not None, "an ended run is held")
    hold(run.bugs == 0, "an exception that nobody classified ended an attempt")


def check_conversation(record: Record, served: Served) -> None:
    """Raise ``Violation`` unless the API takes the conversation, with one result for each call."""
    hold(not served.refusals, "the API refused a request", *served.refusals)
    try:
        check_messages(record.messages, ())
    except Refusal as refusal:
        raise Violation(f"the conversation cannot be sent: {refusal}") from refusal
    for position, message in enumerate(record.messages):
        ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        answer = record.messages[position + 1]["content"] if ids else []
        results = [block["tool_use_id"] for block in answer if block["type"] == "tool_result"]
        hold(results == ids, "results are not one per call, in the order asked", ids, results)


def _check_calls(record: Record, variant: scenario.Scenario) -> None:
    asked = [
        (number, block["id"])
        for number, message in enumerate(record.messages)
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    stored = [(call.message, call.tool_use_id) for call in record.calls]
    hold(stored == asked, "tool calls are not those that were asked for", stored, asked)
    for call in record.calls:
        allowed = {"denied" if call.tool_use_id in variant.denied else "succeeded"}
        if call.tool_use_id in variant.fails:
            allowed = {"failed"}
        if call.tool_use_id in variant.files.invalid:
            allowed = {"invalid_input"}
        recorded = variant.workspace in ("git", "copy")
        may_be_unknown = call.tool_use_id in variant.files.external_calls or not recorded
        if call.name not in _REPEATABLE and call.outcome == "unknown" and may_be_unknown:
            hold(call.started_attempt < record.run.attempt, "unknown by its own attempt", call)
            allowed = {"unknown"}
        hold(call.outcome in allowed, "a call had another outcome", call)
        hold(call.ended_at is not None and not call.interrupted, "a call has no end", call)
        started = call.started_attempt is not None
        runs = call.outcome != "denied" and call.name != RESULT_TOOL
        hold(started == runs, "what ran had not been started", call)
        said = record.result(call.tool_use_id)
        is_error = call.outcome != "succeeded"
        hold(said.get("is_error", False) == is_error, "the result hides its outcome", said)
        if call.outcome == "unknown":
            hold("outcome of this call is unknown" in said["content"], "unknown is unsaid", said)


def _check_side_effects(record: Record, variant: scenario.Scenario) -> None:
    """Nothing twice unless it is repeatable; what succeeded is there, what is missing is unknown."""
    folder = record.own_workspace
    log = folder / scenario.LOG
    done = Counter(log.read_text().split() if log.exists() else ())
    edits = (folder / scenario.EDITED).read_text().count(scenario.EDIT_MARK)
    noted = folder / scenario.NOTED
    notes = Counter(noted.read_text().split() if noted.exists() else ())
    for call in record.calls:
        name = call.tool_use_id.removeprefix("toolu_").replace("_", ".")
        times = {"Edit": edits, "note": notes[name]}.get(call.name)
        if call.name == "Bash":
            times = done.pop(name, 0)
        if times is None:
            continue
        if call.name not in _REPEATABLE:
            hold(times <= 1, "a side effect happened twice", name, call.name, times)
        if call.tool_use_id in variant.denied:
            hold(times == 0, "a denied call took effect", name, call.name)
        elif call.outcome != "unknown":
            hold(times >= 1, "a result without its side effect", name, call.outcome)
    hold(not done, "side effects without a call", done)
    hold(not (folder / scenario.DENIED).exists(), "a denied call took effect")


def _check_counters(record: Record, served: Served, variant: scenario.Scenario) -> None:
    run, model_calls = record.run, record.model_calls
    replies = [call for call in model_calls if call.purpose == "turn" and call.stop_reason]
    hold(run.turns == len(replies), "turns are not replies", run.turns, len(replies))
    spoken = sum(message["role"] == "assistant" for message in record.messages)
    hold(run.turns == spoken, "turns are not assistant messages", run.turns, spoken)
    for column in ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens"):
        total = sum(getattr(call, column) or 0 for call in model_calls)
        hold(getattr(run, column) == total, f"{column} do not add up", getattr(run, column), total)
    for call in model_calls:
        hold(call.ended_at is not None, "a model call has no end", call)
        hold(0 <= call.charged_tokens <= call.worst_case, "more than the worst case", call)
    charged = sum(call.charged_tokens for call in model_calls)
    hold(run.charged_tokens == charged, "charges do not add up", run.charged_tokens, charged)
    hold(charged <= variant.limits.token_ceiling, "the token ceiling was crossed", charged)
    hold(served.tokens <= charged, "tokens were used and not charged", served.tokens, charged)
    cost = run.progress["money"]["charged_cost"]
    hold(served.cost <= cost, "more was billed than charged", served.cost, cost)
    asked = len(served.turns) + served.summaries
    hold(asked <= len(model_calls), "a model call was made twice under one intent")
    once = len(set(served.batched)) == len(served.batched)
    hold(once, "a call in a batch was paid twice", served.batched)
    hold(bool(served.batched) == (variant.lane == "batch"), "another lane", served.batched)
    numbers = [call.number for call in model_calls]
    hold(numbers == list(range(1, len(numbers) + 1)), "model calls have gaps", numbers)
    denied = sum(call.outcome == "denied" for call in record.calls)
    expected = len(variant.denied)
    hold(run.denials == denied == expected, "denials are not counted", run.denials, denied)
    hold(run.message_count == len(record.messages), "messages are not counted", run.message_count)


def _check_messages(record: Record) -> None:
    """Each queued message was delivered, once, and where the record says."""
    hold(record.run.queued_count == 0, "a queued message waits for ever")
    texts = [
        (number, block["text"])
        for number, message in enumerate(record.messages)
        for block in message["content"]
        if message["role"] == "user" and block["type"] == "text"
        if block["text"] not in OWN_TEXTS
        if not block["text"].startswith(VERIFY_TEXT.partition("{")[0])
    ][1:]
    delivered = [(row.delivered_message, row.text) for row in record.queued]
    hold(texts == delivered, "queued messages are not delivered once", texts, delivered)
    said = [text for _, text in delivered]
    hold(said == [scenario.SAID_FIRST, scenario.SAID_LATER], "a message was lost", said)


def check_events(record: Record) -> None:
    """Raise ``Violation`` unless the events tell each thing that happened once."""
    events, run = record.events, record.run
    numbers = [event.number for event in events]
    hold(numbers == list(range(1, run.event_count + 1)), "events have gaps", numbers)
    attempts = [e.type for e in events if e.type in ("attempt_started", "attempt_ended")]
    hold(
        attempts == ["attempt_started", "attempt_ended"] * run.attempt,
        "attempts do not begin and end in turn",
        attempts,
    )
    hold(events[-1].type == "done", "the last event is not the end", events[-1])
    counts = Counter(event.type for event in events)
    hold(counts["done"] == 1, "the run ended more than once")
    hold(counts["limit_reached"] == (run.state == "stopped"), "limits were reached", counts)
    hold(counts["message_queued"] == len(record.queued), "queued messages without an event")
    began, ended = (
        [event.data["turn"] for event in events if event.type == kind]
        for kind in ("turn_started", "turn_ended")
    )
    hold(ended == list(range(1, run.turns + 1)), "turn_ended is not once a turn", ended)
    unanswered = [run.turns + 1] if record.model_calls[-1].error else []
    hold(began == ended + unanswered, "turn_started is not once a turn", began)
    calls = [call.number for call in record.model_calls]
    for kind in ("model_call_started", "model_call_ended"):
        told = [event.data["call"] for event in events if event.type == kind]
        hold(told == calls, f"{kind} is not once a model call", told)
    _check_tool_events(record, events)


def _check_tool_events(record: Record, events: Sequence[Any]) -> None:
    calls = {call.tool_use_id: call for call in record.calls}
    hold(
        _named(events, "tool_done") == Counter(list(calls)),
        "tool_done is not once a call",
        _named(events, "tool_done"),
    )
    decided = [name for name, call in calls.items() if call.name != RESULT_TOOL]
    hold(_named(events, "permission_decided") == Counter(decided), "decisions are not once a call")
    started = _named(events, "tool_started")
    for name, call in calls.items():
        again = call.name in _REPEATABLE or call.tree_before is not None
        most = record.run.attempt if again else 1
        least = int(call.outcome != "denied" and call.name not in (RESULT_TOOL, AGENT_TOOL))
        hold(least <= started[name] <= most * least, "tool_started", name, started[name])


def _named(events: Iterable[Any], kind: str) -> Counter[str]:
    return Counter(event.data["tool_use_id"] for event in events if event.type == kind)


def check_questions(record: Record, variant: Scenario) -> None:
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


def check_job_budget(record: Record, variant: Scenario) -> None:
    """Raise ``Violation`` unless the budget of the job (of one run) is what the run has used and has
    reserved, and no cap is passed; a job without a budget has no row."""
    run, job_budget, budget = record.run, record.job_budget, variant.budget
    hold(
        (job_budget is not None) == budget.is_set,
        "a row without a budget, or no row with one",
        job_budget,
    )
    if job_budget is None:
        return
    call = run.progress["model"]["open_call"]
    reserved = call["reservation"] if call else {"worst_case": 0, "worst_cost": 0}
    spent = (run.charged_tokens, run.progress["money"]["charged_cost"])
    expected = (*spent, reserved["worst_case"], reserved["worst_cost"])
    found = (
        job_budget.spent_tokens,
        job_budget.spent_cost,
        job_budget.reserved_tokens,
        job_budget.reserved_cost,
    )
    hold(found == expected, "the budget is not what was used and reserved", found, expected)
    hold(
        (job_budget.budget_usd, job_budget.budget_tokens) == (budget.usd, budget.tokens),
        "other caps",
        job_budget,
    )
    caps = (budget.usd and billionths(budget.usd), budget.tokens)
    for cap, total in zip(caps, (found[1] + found[3], found[0] + found[2]), strict=True):
        hold(cap is None or total <= cap, "the budget was passed", cap, total)
