"""The context window: token estimates, compactions of what is sent, and the prompt cache.

Messages never change; a compaction only replaces them in requests. On the cache:
https://docs.claude.com/en/docs/build-with-claude/prompt-caching: an entry lives for five minutes
after its last use, or for an hour at a higher price of writing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runner.core.conversation import Block, Message, content_text, text_block
from runner.core.media import media_tokens

DEFAULT_WINDOW = 200_000  # of a model that neither the API's list nor our own table knows
AVERAGE_WEIGHT = 0.25  # of the newest reply in the moving average

# Real over estimated tokens: outside this range the count is wrong, not the estimate.
_LEAST_RATIO, _MOST_RATIO = 0.2, 5.0
_MOST_DEFAULT_RESERVE = 32_000
_OVERHEAD = 2_000


@dataclass(frozen=True, slots=True)
class Context:
    """A job's ``[context]``."""

    window: int | None = None  # tokens; None: the model's
    reserve: int | None = None  # tokens kept free for a reply; None: the default
    chars_per_token: float = 4.0
    keep_messages: int = 8  # newest messages that are never summarised
    compaction: Literal["auto", "reactive", "off"] = "auto"
    summary_model: str | None = None  # None: the run's own
    summary_instructions: str | None = None

    def reserve_in(self, window: int, max_output_tokens: int) -> int:
        """Return the tokens of a window reserved for a reply: the job's number, or the largest of a
        tenth, a quarter (at most 32,000) and the longest reply."""
        if self.reserve is not None:
            return self.reserve
        quarter = min(_MOST_DEFAULT_RESERVE, window // 4)
        return max(window // 10, quarter, max_output_tokens + _OVERHEAD)


def estimate(block: Block, chars_per_token: float) -> int:
    """The tokens of a block (a tool definition, a system prompt …), from its characters as JSON."""
    return estimate_text(content_text(block), chars_per_token) + media_tokens(block)[0]


def estimate_text(text: str, chars_per_token: float) -> int:
    """The tokens of a text, from its characters."""
    return math.ceil(len(text) / chars_per_token)


def is_measurement(real: int, estimated: int) -> bool:
    """True if a reply's count of its prompt is plausible. Some gateways count nothing, and server
    tools add the prompts of all inner calls."""
    return estimated > 0 and _LEAST_RATIO <= real / estimated <= _MOST_RATIO


def corrected(average: float, real: int, estimated: int) -> float:
    """Return the moving average of real over estimated tokens after one more reply."""
    if not is_measurement(real, estimated):
        return average
    return average + AVERAGE_WEIGHT * (real / estimated - average)


CompactionKind = Literal["clip", "summary", "prune"]


@dataclass(frozen=True, slots=True)
class TruncatedResult:
    """A tool result that is sent with a shorter text."""

    message: int  # number of the message that it is in
    position: int  # of its block there
    text: str


@dataclass(frozen=True, slots=True)
class Compaction:
    """One replacement of messages in requests."""

    kind: CompactionKind  # "clip" only truncates results; the others replace messages
    first: int  # messages ``first`` to ``last`` are affected
    last: int
    text: str = ""  # the user message instead of messages 1 to ``last`` and earlier replacements
    truncated: tuple[TruncatedResult, ...] = ()
    tokens_before: int = 0  # estimates of the whole prompt
    tokens_after: int = 0


@dataclass(frozen=True, slots=True)
class Compacted:
    """All compactions of a run so far, as one."""

    last: int = 0  # messages 1 to this one are replaced; 0: none
    text: str = ""  # the replacement
    # The texts of truncated results, by message and position.
    truncated: Mapping[tuple[int, int], str] = field(default_factory=dict)
    count: int = 0  # of the compactions
    ends: tuple[int, ...] = ()  # the last message changed so far, after each of the last two

    def after(self, compaction: Compaction) -> Compacted:
        """Return the compactions with one more."""
        last, text = self.last, self.text
        if compaction.kind != "clip":
            last, text = compaction.last, compaction.text
        added = {(result.message, result.position): result.text for result in compaction.truncated}
        truncated = {**self.truncated, **added}
        kept = {place: shorter for place, shorter in truncated.items() if place[0] > last}
        ends = (*self.ends, max([last, *(number for number, _ in kept)]))[-2:]
        return Compacted(last, text, kept, self.count + 1, ends)

    @property
    def end(self) -> int:
        """The number of the last message that is sent in another form; 0 if all are sent as they are."""
        return self.ends[-1] if self.ends else 0

    @property
    def stable(self) -> tuple[int, ...]:
        """The places, among the messages sent, at which the changes of all compactions end, and at which
        they ended before the last one: the prompt up to there is still cached."""
        shift = self.last - 1 if self.last else 0
        before = (end for end in self.ends[-2:] if end >= self.last)
        return tuple(dict.fromkeys(end - shift for end in before))

    @property
    def replacement(self) -> tuple[Message, ...]:
        """The messages that are sent for messages 1 to ``last``."""
        return (Message("user", (text_block(self.text),)),) if self.last else ()

    def as_sent(self, message: Message, number: int) -> Message:
        """Return a message with its truncated results."""
        places = [(number, position) for position in range(len(message.blocks))]
        if not any(place in self.truncated for place in places):
            return message
        blocks = (
            {**block, "content": self.truncated[place]} if place in self.truncated else block
            for place, block in zip(places, message.blocks, strict=True)
        )
        return Message(message.role, tuple(blocks))


def sent_messages(messages: Sequence[Message], compacted: Compacted) -> tuple[Message, ...]:
    """Return the messages that are sent to the model."""
    if not compacted.count:
        return tuple(messages)
    rest = (
        compacted.as_sent(message, number)
        for number, message in enumerate(messages[compacted.last + 1 :], compacted.last + 1)
    )
    return (*messages[:1], *compacted.replacement, *rest)


def tokens_of(messages: Sequence[Message], chars_per_token: float) -> int:
    """The estimated tokens of messages."""
    return sum(estimate(block, chars_per_token) for one in messages for block in one.blocks)


def difference(
    messages: Sequence[Message],
    compacted: Compacted,
    compaction: Compaction,
    chars_per_token: float,
) -> int:
    """Return the estimated tokens that a compaction adds; negative if it saves some."""
    after = compacted.after(compaction)
    kept = sorted({result.message for result in compaction.truncated} - {*range(after.last + 1)})
    left_out = range(compacted.last + 1, after.last + 1)

    def tokens(state: Compacted, numbers: Sequence[int]) -> int:
        sent = [state.as_sent(messages[number], number) for number in numbers]
        return tokens_of([*state.replacement, *sent], chars_per_token)

    return tokens(after, kept) - tokens(compacted, [*left_out, *kept])


SHORT_SECONDS, LONG_SECONDS = 300.0, 3_600.0
NEWEST_WEIGHT = 0.25

# A gap that a short entry does not outlive writes the whole prefix again (1.25 times the price of
# input, where reading it would cost 0.1); the hour costs 0.75 more for each token that a turn adds.
# A turn adds about a tenth of the prefix: the hour is worth it from one slow gap in fifteen on.
WORTH_AN_HOUR = 0.07


@dataclass(frozen=True, slots=True)
class Pace:
    """The time between the starts of the run's model calls."""

    last_at: float | None = None  # when the last one began, in seconds since the epoch
    # Moving average of the share of calls that came too late for a cache of five minutes, and not
    # for one of an hour.
    slow: float = 0.0

    def after(self, at: float) -> Pace:
        """Return the pace with one more call, which begins at ``at``."""
        if self.last_at is None:
            return Pace(at, self.slow)
        is_slow = SHORT_SECONDS < at - self.last_at < LONG_SECONDS
        return Pace(at, self.slow + NEWEST_WEIGHT * (is_slow - self.slow))

    @property
    def is_worth_an_hour(self) -> bool:
        """True if a cache of an hour pays for this share of slow gaps."""
        return self.slow > WORTH_AN_HOUR
