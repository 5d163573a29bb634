"""Costs, compactions and events in words that are safe to print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.app.humanize import at_most, cell, cost, duration, moment
from runner.app.transcript import Note, Tone
from runner.core.prices import Spending
from runner.core.run import RUNNERS_NAME

if TYPE_CHECKING:
    from runner.queries.costs import CallCost
    from runner.queries.transcript import StoredCompaction

TONES: dict[str, Tone] = {
    "succeeded": "good",
    "failed": "bad",
    "stopped": "bad",
    "cancelled": "bad",
    "waiting": "wait",
}
OUTCOME_TONES: dict[str, Tone] = {
    "succeeded": "good",
    "pending": "wait",
    "started": "wait",
    "unknown": "wait",
    "interrupted": "wait",
}
ANSWER_TONES: dict[str | None, Tone] = {"approved": "good", "denied": "bad", "expired": "bad"}

# Done by a person, also in databases from before Runner stored who did it.
_BY_PEOPLE = frozenset(
    {
        *("run_submitted", "submitted", "forked", "message_queued", "cancelled", "pause_requested"),
        *("retried", "begun_afresh"),
    }
)
_WORDS = {
    "run_submitted": "submitted",
    "forked": "forked",
    "pause_requested": "pause asked for",
    "begun_afresh": "begun afresh",
}
_TOLD_BESIDE = frozenset({"by", "at", "why", "old", "new", "job_id", "item_key", "total"})
_SAID_BY_TYPE = frozenset({"pause_requested"})  # values that an event's type tells


def state(run: Mapping[str, Any]) -> str:
    """Where a run stands, and why: ``stopped: max_turns: 50 turns``."""
    told = (cell(run[name]) for name in ("state", "reason", "detail") if run[name])
    return ": ".join(dict.fromkeys(told))


def spent(calls: Sequence[CallCost]) -> str:
    """What calls used and cost: ``12,345 in (98% from the cache), 210 out, $0.0123, 4.2s``."""
    if not calls:
        return ""
    total = sum((call.spending for call in calls), Spending())
    usage = total.usage
    cached = total.cache_share
    share = f" ({cached:.0%} from the cache)" if cached else ""
    unknown = f"plus {at_most(total)}" if total.unknown else ""
    told = (
        f"{usage.prompt_tokens:,} in{share}",
        f"{usage.output_tokens:,} out",
        "no price is known" if total.unpriced else "" if total.scripted else cost(total),
        unknown,
        duration(sum(call.latency or 0 for call in calls) or None),
        f"{len(calls)} calls" if len(calls) > 1 else "",
    )
    return ", ".join(filter(None, told))


def compacted(compaction: StoredCompaction) -> list[str]:
    """What stands in for what."""
    told = []
    messages = f"messages {compaction['first_message']} to {compaction['last_message']}"
    if compaction["kind"] == "summary":
        call = compaction["made_by_call"]
        told.append(f"{messages} are sent as this summary, the reply to model call {call}")
    elif compaction["kind"] == "prune":
        told.append(f"{messages} are left out, this is sent in their place")
    if compaction["clips"]:
        count = compaction["clips"]
        results = "1 result of a tool is" if count == 1 else f"{count} results of tools are"
        told.append(f"{results} sent shortened")
    return told


def is_by_person(type_: str, data: Mapping[str, Any]) -> bool:
    """Whether a person did it, as far as the record says."""
    if "by" in data:
        return data["by"] not in (None, RUNNERS_NAME)
    return type_ in _BY_PEOPLE


def event(type_: str, data: Mapping[str, Any], attempt: int | None) -> Note | None:
    """What happened, in a line; None when that is told elsewhere or of no interest to a reader."""
    if type_ in _SPECIAL:
        return _SPECIAL[type_](data, attempt)
    said = _WORDS.get(type_, type_.replace("_", " "))
    details = ", ".join(
        f"{cell(name)} {_value(value)}"
        for name, value in data.items()
        if name not in _TOLD_BESIDE and value not in (None, "", [], {})
    )
    return Note(f"{cell(said)}{f' ({details})' if details else ''}{_who_and_why(data)}")


def _who_and_why(data: Mapping[str, Any]) -> str:
    """``by lena: too dear (max_turns 5 → 9)``."""
    return _who(data) + _changed(data.get("old"), data.get("new"))


def _who(data: Mapping[str, Any]) -> str:
    by = f" by {cell(data['by'])}" if data.get("by") not in (None, RUNNERS_NAME) else ""
    return by + (f": {cell(data['why'])}" if data.get("why") else "")


def _changed(old: Any, new: Any) -> str:
    before = old if isinstance(old, dict) else {}
    after = new if isinstance(new, dict) else {}
    changes = [
        f"{cell(name)} {_value(before.get(name))} → {_value(after.get(name))}"
        if name in before and name in after
        else f"{cell(name)} {_value(after.get(name, before.get(name)))}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name) and name not in _SAID_BY_TYPE
    ]
    return f" ({', '.join(changes)})" if changes else ""


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{cell(name)} {_value(each)}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:.10g}"
    return "none" if value in (None, "") else cell(value)


def _failed_call(data: Mapping[str, Any], attempt: int | None) -> Note:
    """A call without a reply, or a summary that could not be used."""
    if "error" in data:
        return Note(
            f"the summary by model call {data.get('call')} is not used: {cell(data['error'])}",
            "bad",
        )
    message = f": {cell(data['message'])}" if data.get("message") else ""
    return Note(f"model call {data.get('call')} failed: {cell(data.get('kind'))}{message}", "bad")


def _retry(data: Mapping[str, Any], attempt: int | None) -> Note:
    return Note(f"to be tried again at {moment(data['at'])}", "wait")


def _waiting(data: Mapping[str, Any], attempt: int | None) -> Note:
    detail = f": {cell(data['detail'])}" if data.get("detail") else ""
    return Note(f"waits: {cell(data['reason'])}{detail}{_who_and_why(data)}", "wait")


def _attempt(data: Mapping[str, Any], attempt: int | None) -> Note | None:
    """The first one is no news."""
    if (attempt or 0) < 2:
        return None
    return Note(f"attempt {attempt} begins, on {cell(data.get('worker'))}")


def _attempt_ended(data: Mapping[str, Any], attempt: int | None) -> Note | None:
    """Ends that a reader would not see otherwise."""
    if data.get("why") != "lease_lost":
        return None
    return Note(f"attempt {attempt} was lost with its worker", "bad")


def _error(data: Mapping[str, Any], attempt: int | None) -> Note | None:
    """Bugs; how a run failed is told by its end."""
    if "traceback" not in data:
        return None
    last = str(data["traceback"]).strip().rpartition("\n")[2]
    return Note(f"attempt {attempt} ended in a bug: {cell(last)}", "bad")


def _done(data: Mapping[str, Any], attempt: int | None) -> Note | None:
    """The end; that of a cancelled run is told with who cancelled it."""
    if data["state"] == "cancelled":
        return None
    return Note(state({"reason": "", "detail": "", **data}), TONES.get(data["state"], "plain"))


def _answered(data: Mapping[str, Any], attempt: int | None) -> Note:
    call = f"{cell(data['name'])}, call {data['call_index'] + 1} of turn {data['turn']}"
    edited = ", with another input" if data.get("edited") else ""
    rule = f" by the rule {cell(data['rule'])}" if data.get("rule") else ""
    said = f"{call}: {cell(data['answer'])}{edited}{rule}{_who(data)}"
    return Note(said, ANSWER_TONES.get(data["answer"], "plain"))


def _queued(data: Mapping[str, Any], attempt: int | None) -> Note:
    return Note(f"message queued{_who(data)}: {cell(data['text'])}")


def _child_started(data: Mapping[str, Any], attempt: int | None) -> Note | None:
    """What a call starts is told with it."""
    if "call_index" in data:
        return None
    return Note(f"{cell(data.get('agent_type'))} {cell(data.get('child'))} is given the whole task")


def _hook_started(data: Mapping[str, Any], attempt: int | None) -> None:
    """Its end tells of it."""
    return


def _hook_finished(data: Mapping[str, Any], attempt: int | None) -> Note:
    of = f" of {cell(data['name'])}" if data.get("name") else ""
    told = [cell(data[name]) for name in ("outcome", "decision") if data.get(name)]
    reason = f": {cell(data['reason'])}" if data.get("reason") else ""
    took = data.get("duration")
    time = f" ({duration(took)})" if isinstance(took, float | int) else ""
    tone: Tone = "bad" if data.get("outcome") != "succeeded" else "plain"
    said = f"hook {cell(data.get('hook'))} at {cell(data.get('event'))}{of}: {', '.join(told)}"
    return Note(
        f"{said}{reason}{time}", "wait" if data.get("decision") in ("ask", "deny") else tone
    )


def _instructions(data: Mapping[str, Any], attempt: int | None) -> Note | None:
    files = data.get("files")
    names = [file.get("path") for file in files] if isinstance(files, list) else []
    return Note(f"instructions read: {cell(', '.join(map(str, names)))}") if names else None


def _rule(happened: str, told: str) -> Callable[[Mapping[str, Any], int | None], Note]:
    def words(data: Mapping[str, Any], attempt: int | None) -> Note:
        rule = data.get(told) or {}
        of = rule.get("run_id")
        scope = "for the whole job" if of is None else f"for {cell(of)} and all below it"
        said = f"{scope}: {happened} {cell(rule.get('effect'))} {cell(rule.get('rule'))}"
        return Note(f"{said}{_who(data)}")

    return words


_SPECIAL: dict[str, Callable[[Mapping[str, Any], int | None], Note | None]] = {
    "model_call_ended": _failed_call,
    "retry_scheduled": _retry,
    "waiting": _waiting,
    "attempt_started": _attempt,
    "attempt_ended": _attempt_ended,
    "error": _error,
    "done": _done,
    "child_started": _child_started,
    "hook_started": _hook_started,
    "hook_finished": _hook_finished,
    "instructions_read": _instructions,
    "approval_answered": _answered,
    "message_queued": _queued,
    "rule_added": _rule("new rule", "new"),
    "rule_revoked": _rule("revoked rule", "old"),
}
