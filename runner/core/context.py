"""How much room a model's window has, and how full it is: estimates that real counts correct.

What stands in for messages in what the model is sent. Messages themselves never change.

How long what a run writes to the prompt cache should live.

Source: https://docs.claude.com/en/docs/build-with-claude/prompt-caching: an entry lives for five
minutes after its last use, or for an hour at a higher price of writing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runner.core.conversation import Block, Message, content_text, text_block

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


CompactionKind = Literal["clip", "summary", "prune"]


@dataclass(frozen=True, slots=True)
class Clip:
    """The text that a tool's result is sent with instead of its own: block ``position`` of message
    ``message``."""

    message: int
    position: int
    text: str


@dataclass(frozen=True, slots=True)
class Compaction:
    """One change of what the model is sent.

    Messages ``first`` to ``last`` are meant. For ``summary`` and ``prune`` one user message, ``text``,
    stands in for all messages from number 1 to ``last``; what stood in for some of them before is
    folded into it. ``clips`` are tool results that are sent shorter, with ``clip`` all there is to it.
    ``tokens_before`` and ``tokens_after`` are estimates of the whole prompt.
    """

    kind: CompactionKind
    first: int
    last: int
    text: str = ""
    clips: tuple[Clip, ...] = ()
    tokens_before: int = 0
    tokens_after: int = 0


@dataclass(frozen=True, slots=True)
class Compacted:
    """All compactions of a run so far, in one: ``text`` is sent for messages 1 to ``last`` (0: for
    none), and ``clips`` for results by message and position. ``count`` is how many there were."""

    last: int = 0
    text: str = ""
    clips: Mapping[tuple[int, int], str] = field(default_factory=dict)
    count: int = 0

    def after(self, compaction: Compaction) -> Compacted:
        """With one more compaction."""
        added = {(clip.message, clip.position): clip.text for clip in compaction.clips}
        clips = {**self.clips, **added}
        if compaction.kind == "clip":
            return Compacted(self.last, self.text, clips, self.count + 1)
        kept = {place: text for place, text in clips.items() if place[0] > compaction.last}
        return Compacted(compaction.last, compaction.text, kept, self.count + 1)

    @property
    def stand_in(self) -> tuple[Message, ...]:
        """What is sent for messages 1 to ``last``."""
        return (Message("user", (text_block(self.text),)),) if self.last else ()

    def as_sent(self, message: Message, number: int) -> Message:
        """A message that is sent, with its results as short as they are sent."""
        if not any((number, position) in self.clips for position in range(len(message.blocks))):
            return message
        return Message(
            message.role,
            tuple(
                _with_content(block, self.clips.get((number, position)))
                for position, block in enumerate(message.blocks)
            ),
        )


def sent_messages(messages: Sequence[Message], compacted: Compacted) -> tuple[Message, ...]:
    """The messages as the model is sent them."""
    if not compacted.count:
        return tuple(messages)
    rest = (
        compacted.as_sent(message, number)
        for number, message in enumerate(messages[compacted.last + 1 :], compacted.last + 1)
    )
    return (*messages[:1], *compacted.stand_in, *rest)


def tokens_of(messages: Sequence[Message], chars_per_token: float) -> int:
    """The estimated tokens of messages."""
    return sum(estimate(block, chars_per_token) for one in messages for block in one.blocks)


def difference(
    messages: Sequence[Message],
    compacted: Compacted,
    compaction: Compaction,
    chars_per_token: float,
) -> int:
    """How many estimated tokens longer what is sent becomes by a compaction (below 0: shorter)."""
    after = compacted.after(compaction)
    changed = {clip.message for clip in compaction.clips} - {*range(after.last + 1)}
    left_out = range(compacted.last + 1, after.last + 1)

    def tokens(state: Compacted, numbers: Sequence[int]) -> int:
        sent = [state.as_sent(messages[number], number) for number in numbers]
        return tokens_of([*state.stand_in, *sent], chars_per_token)

    kept = sorted(changed)
    return tokens(after, kept) - tokens(compacted, [*left_out, *kept])


def _with_content(block: Block, text: str | None) -> Block:
    return block if text is None else {**block, "content": text}


SHORT_SECONDS, LONG_SECONDS = 300.0, 3_600.0
NEWEST_WEIGHT = 0.25

# A gap that a short entry does not outlive writes the whole prefix again (1.25 times the price of
# input, where reading it would cost 0.1); the hour costs 0.75 more for each token that a turn adds.
# A turn adds about a tenth of the prefix: the hour is worth it from one slow gap in fifteen on.
WORTH_AN_HOUR = 0.07


def paced(last_at: float | None, slow: float, at: float) -> tuple[float, float]:
    """When the last call began and how many were slow, after one more.

    Args:
        last_at: when the call before began, in seconds since the epoch; None without any.
        slow: the moving average before it, from 0 to 1.
        at: when the new one begins.
    """
    if last_at is None:
        return at, slow
    is_slow = SHORT_SECONDS < at - last_at < LONG_SECONDS
    return at, slow + NEWEST_WEIGHT * (is_slow - slow)


def is_worth_an_hour(slow: float) -> bool:
    """Whether a run with so many slow gaps should have its cache live for an hour."""
    return slow > WORTH_AN_HOUR
