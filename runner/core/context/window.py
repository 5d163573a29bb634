"""How much room a model's window has, and how full it is: estimates that real counts correct."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from runner.core.conversation import Block, content_text

DEFAULT_WINDOW = 200_000  # of a model that neither the API's list nor our own table knows
AVERAGE_WEIGHT = 0.25  # of the newest reply in the moving average

# Real over estimated tokens: outside of this it is not the estimate that is wrong.
_LEAST_RATIO, _MOST_RATIO = 0.2, 5.0
_MOST_DEFAULT_RESERVE = 32_000
_OVERHEAD = 2_000


@dataclass(frozen=True, slots=True)
class Context:
    """A job's ``[context]``. ``window`` and ``reserve`` are tokens, None for the model's and for the
    default; ``keep_messages`` newest messages are never summarised."""

    window: int | None = None
    reserve: int | None = None
    chars_per_token: float = 4.0
    keep_messages: int = 8
    compaction: Literal["auto", "off"] = "auto"
    summary_model: str | None = None
    summary_instructions: str | None = None

    def reserve_in(self, window: int, max_output_tokens: int) -> int:
        """The tokens of a window that stay free for a reply: the job's own number, or the largest of a
        tenth, a quarter (at most 32,000), and what the longest reply takes."""
        if self.reserve is not None:
            return self.reserve
        quarter = min(_MOST_DEFAULT_RESERVE, window // 4)
        return max(window // 10, quarter, max_output_tokens + _OVERHEAD)


def estimate(block: Block, chars_per_token: float) -> int:
    """The tokens of a block (a tool definition, a system prompt …), from its characters as JSON."""
    return estimate_text(content_text(block), chars_per_token)


def estimate_text(text: str, chars_per_token: float) -> int:
    """The tokens of a text, from its characters."""
    return math.ceil(len(text) / chars_per_token)


def is_measurement(real: int, estimated: int) -> bool:
    """Whether a reply's count of its prompt can be that of the prompt that was sent: some gateways
    count nothing, and where the API's own tools run, it counts the prompts of all inner calls."""
    return estimated > 0 and _LEAST_RATIO <= real / estimated <= _MOST_RATIO


def corrected(average: float, real: int, estimated: int) -> float:
    """The moving average of real over estimated tokens, after one more reply.

    Args:
        average: the one before it. real: the prompt's tokens as the API counted them. estimated: the
            estimate of the same prompt.
    """
    if not is_measurement(real, estimated):
        return average
    return average + AVERAGE_WEIGHT * (real / estimated - average)
