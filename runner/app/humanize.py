"""Values in words: times, costs, decisions, verifications and tool inputs.

Each function returns text that is safe to print: control characters of untrusted parts are visible, and
line breaks too unless the function returns several lines.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from itertools import islice
from operator import add
from typing import TYPE_CHECKING, Any, Literal

from runner.core.run import by_life
from runner.core.text import visible

if TYPE_CHECKING:
    from runner.core.losses import Loss, Losses
    from runner.core.prices import Spending
    from runner.queries.costs import CallCost
    from runner.queries.decisions import DeniedCall
    from runner.queries.outcomes import Verification
    from runner.queries.transcript import StoredCompaction

_LONGEST_LINE = 200
SHORT_ID = 8  # characters of an id that people see: its end
# An id that is not part of a path. Groups: its random part, and the numbers of a sub-agent and a call.
ID = re.compile(
    r"(?<![\w/.-])(?:run|job|call|apr|sch|worker)_([0-9a-z]{26})"
    r"((?:\.[0-9]+)*+(?:_[0-9]+_[0-9]+)?+)(?![\w-]|\.[a-z])"
)


def cell(value: Any) -> str:
    """Return a value on one line; nothing for None."""
    return "" if value is None else visible(str(value))


def lines(text: str) -> str:
    """Return a text of several lines, tabs expanded."""
    return "\n".join(map(visible, text.expandtabs(8).split("\n")))


def short_ids(text: str) -> str:
    """Return a text with each id shortened to its last characters, which every command accepts."""
    return ID.sub(lambda found: found[1][-SHORT_ID:] + found[2], text)


def first_line(text: str) -> str:
    """Return the first line that is not blank, cut when it is long."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return visible(line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…")


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: ``1 run``, ``2 runs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def moment(seconds: float | None) -> str:
    """Return a time in the local zone, to the second."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def iso_time(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as ISO 8601 in UTC; as a plain number if no year has
    it."""
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return str(seconds)


def duration(seconds: float | None) -> str:
    """Return seconds in words: ``0.4s``, ``12s``, ``3m05s``, ``2h07m``."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


# Costs


def dollars(usd: Decimal) -> str:
    """Return an amount to the cent, a small one to a hundredth of a cent; never a cost as nothing."""
    if not usd or usd >= 1:
        return f"${usd:,.2f}"
    return f"${usd:.4f}" if usd >= Decimal("0.0001") else "<$0.0001"


def usd_of(billionths: int) -> str:
    return dollars(Decimal(billionths).scaleb(-9))


def counts(by_state: Mapping[str, int]) -> str:
    """Return how many runs are in each state: ``2 queued, 1 failed``."""
    return ", ".join(f"{count} {state}" for state, count in by_life(by_state))


def cost(spending: Spending) -> str:
    """Return the known cost: ``$1.23``, ``$1.23 + ?``, ``?``, or ``none (scripted)``."""
    if spending.unpriced:
        return f"{dollars(spending.usd)} + ?" if spending.usd else "?"
    if spending.scripted and spending.scripted == spending.calls:
        return "none (scripted)"
    return dollars(spending.usd)


def at_most(spending: Spending) -> str:
    """Return the upper bound for calls of unknown usage; nothing if there are none."""
    if not spending.unknown:
        return ""
    charge = _charge(spending, spending.at_most, spending.unknown_tokens)
    return f"at most {charge} for {plural(spending.unknown, 'call')} of unknown usage"


def written_off(spending: Spending) -> str:
    """Return what people wrote off; nothing if there is nothing."""
    if not spending.written_off:
        return ""
    charge = _charge(spending, spending.written_off_usd, spending.written_off_tokens)
    return f"{charge} of {plural(spending.written_off, 'call')} written off"


def _charge(spending: Spending, usd: Decimal, tokens: int) -> str:
    return f"{'?' if spending.unpriced else dollars(usd)} ({tokens:,} tokens)"


def tokens_of(charged: int, unknown: int) -> str:
    """Return charged tokens, and the part of them for calls of unknown usage."""
    return f"{charged:,}" + (f" ({unknown:,} unknown)" if unknown else "")


def cache_share(spending: Spending) -> str:
    """Return the share of the input that was read from the cache: ``87%``."""
    return "" if spending.cache_share is None else f"{spending.cache_share:.0%}"


def cost_line(spending: Spending) -> str:
    """Return the whole cost: ``$1.23, plus at most $0.40 …; 87% of the input from the cache``. Nothing
    before the first call has ended."""
    if not spending.calls:
        return ""
    line = cost(spending)
    if spending.unknown:
        line += f", plus {at_most(spending)}"
    if spending.written_off:
        line += f"; {written_off(spending)}"
    if spending.unpriced:
        line += f" (no price for {visible(', '.join(sorted(spending.unpriced)))})"
    if spending.cache_share is not None:
        line += f"; {cache_share(spending)} of the input from the cache"
    return line


def loss_line(found: Losses) -> str:
    """Return what was lost: ``$0.42 to expired caches (3 calls), …``; nothing if nothing was."""
    told = ", ".join(
        f"{_lost(loss)} to {words} ({plural(loss.calls, 'call')})"
        for words, loss in (
            ("expired caches", found.expired),
            ("calls made again", found.repeated),
            ("failed items", found.failed),
        )
        if loss.usd or loss.at_most
    )
    return f"at least {told}" if told and found.unpriced else told


def _lost(loss: Loss) -> str:
    if not loss.at_most:
        return dollars(loss.usd)
    return f"at least {dollars(loss.usd)}, at most {dollars(loss.usd + loss.at_most)}"


def cheaper_lines(found: Losses) -> list[str]:
    """Return the changes that would have cost less, the best first: ``$0.42 less: …``."""
    return [
        f"{'at most ' if way.at_most else ''}{dollars(way.usd)} less: {visible(way.change)}"
        for way in found.cheaper
    ]


# Permission decisions, approvals and verifications


def text_in(data: Mapping[str, Any], name: str, before: str = "") -> str:
    """Return one value of ``data`` with the text ``before`` it; empty if there is no value."""
    return f"{before}{data[name]}" if data.get(name) else ""


def decider(call: Mapping[str, Any]) -> str:
    """Return the rule that decided on a call with its reason, or the words for no rule."""
    if call["rule"] is None:
        return cell(call["decision_reason"] or "no rule of the job allows it")
    why = f" ({call['why']})" if call["why"] else ""
    more = text_in(call, "decision_reason", ": ")
    return cell(f"the rule {call['decision']} {call['rule']}{why}{more}")


def denier(call: Mapping[str, Any]) -> str:
    """Return who or what denied a call (``queries.decisions.DeniedCall``): a person with a reason,
    a rule, the time limit, or the rules when the call was about to run."""
    if call["denial"]:
        return cell(call["denial"])
    return answer(call) if call["answer"] else decider(call)


def answer(approval: Mapping[str, Any]) -> str:
    """Return the outcome of an approval request: ``denied by lena: not now``."""
    match approval["answer"]:
        case None:
            return "waits for an answer"
        case "expired":
            return "no answer came in time"
        case "cancelled":
            by = cell(text_in(approval, "answered_by", " by "))
            end = f"was cancelled{by}" if approval["answered_via"] == "cancel" else "ended"
            return f"the run {end} before an answer came"
    is_by_rule = approval["remembered"] is not None and approval["answered_via"] == "rule"
    by = f"{'the rule ' if is_by_rule else ''}{approval['answered_by'] or ''}"
    return cell(f"{approval['answer']} by {by}{text_in(approval, 'reason', ': ')}")


def contained(by: str | None) -> str:
    """Return what contained a call's processes: ``in bubblewrap``; nothing if it started none."""
    if by is None:
        return ""
    return f"not contained{cell(by[4:])}" if by.startswith("none") else f"in {cell(by)}"


def containment_line(calls: Mapping[str, int]) -> str:
    """Return what contained tool calls: ``12 calls in bubblewrap, 1 call not contained``."""
    return ", ".join(f"{plural(count, 'call')} {contained(by)}" for by, count in calls.items())


def input_lines(arguments: Any) -> Iterator[str]:
    """Yield the lines of a call's input: a command unchanged, else each argument after its name.
    Lines of a text are indented below its name, so that none looks like another argument."""
    if not isinstance(arguments, Mapping):
        yield from _json_lines(arguments)
        return
    names = sorted(arguments, key=lambda name: name != "command")
    for name in names:
        value = arguments[name]
        text = value if isinstance(value, str) else "\n".join(_json_lines(value))
        found = lines(text).split("\n")
        shown = name if name.isidentifier() else json.dumps(name)
        if name == "command" and len(names) == 1:
            yield from found
        elif len(found) == 1:
            yield f"{shown}: {found[0]}"
        else:
            yield f"{shown}:"
            yield from (f"    {line}" for line in found)


def _json_lines(value: Any) -> Iterator[str]:
    return map(visible, json.dumps(value, indent=2, ensure_ascii=False).split("\n"))


DiffKind = Literal["", "file", "place", "added", "removed"]


def diff_kinds(diff: str) -> Iterator[tuple[DiffKind, str]]:
    """Yield the lines of a unified diff, each with what it tells. Lines are not yet safe to print."""
    kinds: dict[str, DiffKind] = {"+": "added", "-": "removed", "@": "place"}
    in_lines = False  # else among the names of a file
    for line in diff.removesuffix("\n").split("\n") if diff else ():
        in_lines = line.startswith("@@") or (in_lines and not line.startswith("diff --git "))
        if in_lines:
            yield kinds.get(line[:1], ""), line
        else:
            yield "" if line.startswith(" ") else "file", line


def edit_of(arguments: Any) -> tuple[dict[Any, Any], list[tuple[DiffKind, str]]] | None:
    """Return the other arguments of a call that replaces a text, and all lines of both texts as those
    of a diff; None for any other call."""
    match arguments:
        case {"old_string": str(old), "new_string": str(new), **others} if old != new:
            before = old.split("\n")  # all of them in one place: the names and the place come first
            found = difflib.unified_diff(before, new.split("\n"), n=len(before), lineterm="")
            return others, [*islice(diff_kinds("\n".join(found)), 3, None)]
    return None


def verdict(verification: Verification | None) -> str:
    """Return ``passed``, ``failed`` or ``not ended``; nothing without a verification."""
    if verification is None:
        return ""
    if verification["ended_at"] is None:
        return "not ended"
    return "passed" if verification["outcome"] == "succeeded" else "failed"


def verified(verification: Verification) -> str:
    """Return the verdict with the failing command and the time: ``failed: `pytest -q`, 2.1s``."""
    said, outcome = verdict(verification), verification["outcome"]
    if said == "failed":
        how = f" {outcome}" if outcome != "failed" else ""
        said += f": `{first_line(verification['command'] or '')}`{how}"
    took = duration(verification["duration"])
    return f"{said}, {took}" if took else said


# Parts of a transcript

Tone = Literal["plain", "good", "bad", "wait"]

# Colours of the states of runs and tool calls, and of answers to approval requests.
TONES: dict[str | None, Tone] = {
    **dict.fromkeys(("succeeded", "approved"), "good"),
    **dict.fromkeys(("failed", "stopped", "cancelled", "denied", "expired"), "bad"),
    **dict.fromkeys(("waiting", "pending", "started", "unknown", "interrupted"), "wait"),
}


@dataclass(frozen=True, slots=True)
class Note:
    """A line of Runner's own words, with untrusted parts made visible."""

    words: str
    tone: Tone = "plain"

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", visible(short_ids(self.words)))


_TONES_OF_VERDICTS: dict[str, Tone] = {"passed": "good", "failed": "bad", "not ended": "wait"}


def verified_note(verification: Verification) -> Note:
    return Note(verified(verification), _TONES_OF_VERDICTS[verdict(verification)])


def run_state(run: Mapping[str, Any]) -> Note:
    """Return a run's state and its reason: ``stopped: max_turns: 50 turns``."""
    told = (str(run[name]) for name in ("state", "reason", "detail") if run[name])
    return Note(": ".join(dict.fromkeys(told)), TONES.get(run["state"], "plain"))


def call_cost_line(calls: Sequence[CallCost]) -> str:
    """Return usage and cost: ``12,345 in (98% from the cache), 210 out, $0.0123, 4.2s``."""
    if not calls:
        return ""
    total = reduce(add, (call.spending for call in calls))
    share = f" ({total.cache_share:.0%} from the cache)" if total.cache_share else ""
    told = (
        f"{total.usage.prompt_tokens:,} in{share}",
        f"{total.usage.output_tokens:,} out",
        "no price is known" if total.unpriced else "" if total.scripted else cost(total),
        f"plus {at_most(total)}" if total.unknown else "",
        duration(sum(call.latency or 0 for call in calls) or None),
        f"{len(calls)} calls" if len(calls) > 1 else "",
    )
    return ", ".join(filter(None, told))


def compaction_notes(compaction: StoredCompaction) -> tuple[Note, ...]:
    """Return a compaction in words: the replaced messages and their replacement."""
    messages = f"messages {compaction['first_message']} to {compaction['last_message']}"
    made_by = compaction["made_by_call"]
    summary = f"this summary{'' if made_by is None else f', the reply to model call {made_by}'}"
    kinds = {
        "summary": f"{messages} are sent as {summary}",
        "prune": f"{messages} are left out; this is sent instead",
    }
    results = plural(compaction["clips"], "result of a tool is", "results of tools are")
    shortened = f"{results} sent shortened" if compaction["clips"] else None
    return tuple(map(Note, filter(None, (kinds.get(compaction["kind"]), shortened))))


def decision_notes(
    call: Mapping[str, Any], denied: DeniedCall | None, asked: Mapping[str, Any] | None
) -> tuple[Note, ...]:
    """Return the decision on a call, and the outcome of its approval request."""
    if denied is not None:
        said = denier(denied)
        return (Note(said if denied["answer"] else f"denied: {said}", "bad"),)
    if asked is not None:
        edited = ", with another input" if asked["edited_input"] is not None else ""
        return (Note(f"{answer(asked)}{edited}", TONES.get(asked["answer"], "wait")),)
    if call["decision"] == "deny":  # copied into a fork
        return (Note(f"denied: {decider({**call, 'why': ''})}", "bad"),)
    if call["decision"] == "allow" and call["rule"]:
        return (Note(f"allowed by {call['rule']}"),)
    return ()
