"""Whether the next request fits the model's window, and what is done to it when it does not."""

from __future__ import annotations

from runner.core.context.gauge import Gauge, gauge
from runner.core.context.squeeze import Squeeze
from runner.core.context.summary import question
from runner.core.conversation import text_bytes
from runner.core.journal.entries import ContextCompacted
from runner.core.journal.view import RunView
from runner.core.money.budget import Reservation, prompt_bound
from runner.core.money.spending import may_ever_start, reserved, start
from runner.core.run import Ended
from runner.core.steps import CountTokens, Record, Step, settle

MOST_REFUSALS = 2  # in a row that are answered by making the prompt shorter

# Of the room: from here on the API is asked how long a prompt is that has only been estimated, and so
# close to the gate every other.
ESTIMATED_CLOSE, CLOSE = 0.5, 0.1

_OFF = (
    "the API found the prompt too long, and context.compaction is off: submit the job with "
    'compaction = "auto", or with smaller items'
)
_REFUSED_WHOLE = (
    "the API found the prompt too long, and nothing of it can be made shorter: give the job smaller "
    "items, or the context.window that the model really has"
)
_REFUSED = (
    "the API found the prompt too long {} times in a row, though it was made shorter: give the job "
    "the context.window that the model really has, or smaller items"
)


def fit_context(view: RunView) -> Step | None:
    """The next step towards a request that fits; None when it does.

    Costs nothing that grows with the conversation as long as it fits.
    """
    fullness = view.progress.fullness
    if view.spec.context.compaction == "off":
        return _stopped(_OFF) if fullness.must_shrink else None
    if fullness.refused > MOST_REFUSALS:
        return _stopped(_REFUSED.format(fullness.refused))
    found = gauge(view)
    if not fullness.must_shrink:
        if _is_in_doubt(view, found):
            return CountTokens()
        if found.tokens <= found.room:
            return None
    return _shrink(view, found)


def _is_in_doubt(view: RunView, found: Gauge) -> bool:
    """Whether the API is to be asked how long the prompt is: at most once a turn, so not again by an
    attempt that only tries again or waits for a budget."""
    progress = view.progress
    if view.counted is not None and view.counted.turns == progress.turns:
        return False
    if progress.tries or progress.budget_waits:
        return False
    if view.progress.fullness.measured is None:
        return found.tokens >= ESTIMATED_CLOSE * found.room
    return abs(found.tokens - found.room) <= CLOSE * found.room


def _shrink(view: RunView, found: Gauge) -> Step:
    """Old results are clipped; if that is not enough, the middle is summarised or, without a model,
    its oldest turns are left out. When neither leaves enough room, it has at least to fit. Only where
    the recent turns alone are too long are their results clipped, and last of all they go."""
    aim, fit = (Squeeze.of(view, found, limit) for limit in (found.goal, found.room))
    for squeeze in (aim, fit):
        if (made := squeeze.clip_old()) is not None:
            return Record(ContextCompacted(made))
        if (made := squeeze.leave_out()) is not None:
            return _summary(view) or Record(ContextCompacted(made))
    for squeeze in (aim, fit):
        if (made := squeeze.clip_recent()) is not None:
            return Record(ContextCompacted(made))
    if (made := aim.all_it_takes() or fit.all_it_takes()) is not None:
        return _summary(view) or Record(ContextCompacted(made))
    if view.progress.fullness.must_shrink:
        return _stopped(_REFUSED_WHOLE)
    return _stopped(
        f"the window of {view.window:,} tokens has room for a prompt of {found.room:,}, and the "
        "task, the tools and the last turn need more: give the job a larger context.window, a "
        "smaller context.reserve or a shorter prompt"
    )


def _summary(view: RunView) -> Step | None:
    """The call for a summary; None when it is of no use or cannot be paid for."""
    asked = question(view)
    if view.progress.fullness.summary_failed or asked is None:
        return None
    model = view.spec.summary_model
    prompt = prompt_bound(None, text_bytes(asked.system) + text_bytes(asked.text))
    call = reserved(view, model, prompt, asked.most_output)
    if not isinstance(call, Reservation) or not may_ever_start(view, model, call):
        return None
    return start(view, model, call, "summary")


def _stopped(detail: str) -> Step:
    return settle(Ended("stopped", "context_window", detail))
