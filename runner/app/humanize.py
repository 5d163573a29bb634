"""Values in words: times, costs, decisions, verifications, tool inputs and events.

Each function returns text that is safe to print: control characters of untrusted parts are visible, and
line breaks too unless the function returns several lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from runner.core.prices import Spending
from runner.core.text import visible

if TYPE_CHECKING:
    from runner.queries.jobs import Verification

_LONGEST_LINE = 200


def cell(value: Any) -> str:
    """Return a value on one line; nothing for None."""
    return "" if value is None else visible(str(value))


def lines(text: str) -> str:
    """Return a text of several lines, tabs expanded."""
    return "\n".join(map(visible, text.expandtabs(8).split("\n")))


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


def duration(seconds: float | None) -> str:
    """Return seconds as a person says them: ``0.4s``, ``12s``, ``3m05s``, ``2h07m``."""
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
    bound = "?" if spending.unpriced else dollars(spending.at_most)
    return f"at most {bound} for {plural(spending.unknown, 'call')} of unknown usage"


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
    if spending.unpriced:
        line += f" (no price for {visible(', '.join(sorted(spending.unpriced)))})"
    if spending.cache_share is not None:
        line += f"; {cache_share(spending)} of the input from the cache"
    return line


# Permission decisions and approvals


def decider(call: Mapping[str, Any]) -> str:
    """Return what decided on a call: the rule with its reason, or that no rule allows it.

    Args:
        call: has the keys of ``queries.decisions.Why``.
    """
    reason = cell(call["decision_reason"])
    if call["rule"] is None:
        return reason or "no rule of the job allows it"
    why = f" ({cell(call['why'])})" if call["why"] else ""
    more = f": {reason}" if reason else ""
    return f"the rule {call['decision']} {cell(call['rule'])}{why}{more}"


def denier(call: Mapping[str, Any]) -> str:
    """Return who or what denied a call: a person with a reason, a rule, the time limit, or the rules
    when the call was about to run.

    Args:
        call: has the keys of ``queries.decisions.DeniedCall``.
    """
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
            by = f" by {cell(approval['answered_by'])}" if approval["answered_by"] else ""
            end = f"was cancelled{by}" if approval["answered_via"] == "cancel" else "ended"
            return f"the run {end} before an answer came"
    is_by_rule = approval["remembered"] is not None and approval["answered_via"] == "rule"
    by = "the rule " if is_by_rule else ""
    reason = f": {cell(approval['reason'])}" if approval["reason"] else ""
    return f"{approval['answer']} by {by}{cell(approval['answered_by'])}{reason}"


def input_lines(arguments: Any) -> Iterator[str]:
    """Yield the lines of a call's input: a command as it is, else each argument after its name. The
    lines of a text are indented below its name, so that none can pass for another argument."""
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


# Verifications


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
