"""What stands in for messages in what the model is sent. Messages themselves never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runner.core.context.window import estimate
from runner.core.conversation import Block, Message, text_block

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
