"""How full the window is, in the tokens that its size is given in."""

from __future__ import annotations

from dataclasses import dataclass

from runner.core.journal.view import RunView

ENOUGH = 0.75  # of the room: a compaction that leaves less free comes back too soon
STAND_IN = 0.25  # of the room: more than that nothing takes that stands in for messages
LEAST_CHARACTERS = 2_000
LEAST_PER_ESTIMATED = 0.01


@dataclass(frozen=True, slots=True)
class Gauge:
    """The next prompt and the room that there is for it, in real tokens as well as can be told;
    ``sent`` is the plain estimate of the same prompt, and ``goal`` what a compaction aims at."""

    tokens: int
    sent: int
    room: int
    chars_per_token: float

    @property
    def goal(self) -> int:
        return int(self.room * ENOUGH)

    @property
    def per_estimated(self) -> float:
        """Real tokens for each estimated one."""
        return self.tokens / max(1, self.sent)

    def after(self, difference: int) -> int:
        """The tokens once the plain estimate has changed by so much."""
        return round((self.sent + difference) * self.per_estimated)

    def characters(self, share: float) -> int:
        """The characters that fill such a share of the room, but always a few."""
        tokens = self.room * share / max(self.per_estimated, LEAST_PER_ESTIMATED)
        return max(LEAST_CHARACTERS, int(tokens * self.chars_per_token))


def gauge(view: RunView) -> Gauge:
    """How full the window is now. What the API has counted comes first; a prompt that it has found
    too long is as long as the window at least, whatever the estimate says."""
    fullness = view.progress.fullness
    tokens = fullness.tokens
    counted = view.counted
    if counted is not None and counted.tokens is not None and counted.sent == fullness.sent:
        tokens = counted.tokens
    if fullness.must_shrink:
        tokens = max(tokens, view.window)
    return Gauge(tokens, fullness.sent, room(view), view.spec.context.chars_per_token)


def room(view: RunView) -> int:
    """The tokens of the window that a prompt may take: never less than half, as a window can turn out
    to be smaller than it was taken for."""
    kept_free = view.spec.context.reserve_in(view.window, view.limits.max_output_tokens)
    return view.window - min(kept_free, view.window // 2)
