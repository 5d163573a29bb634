"""Making a prompt shorter without a model: results are clipped, and the oldest turns left out."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from runner.core.context.clips import (
    CLIPPED_ABOVE,
    LEAST_RESULT,
    MODEST_RESULT,
    OLD_RESULT,
    Result,
    clipped,
    results_of,
    shortened,
)
from runner.core.context.compaction import Clip, Compaction, difference
from runner.core.context.gauge import STAND_IN, Gauge
from runner.core.context.summary import HEADING
from runner.core.context.tail import cuts, tail_start
from runner.core.conversation import tool_uses
from runner.core.journal.view import RunView
from runner.core.text.prompts import OWN_TEXTS

_MOST_SAID = 2_000  # characters of what the user said at once in turns that are left out


@dataclass(frozen=True, slots=True)
class Squeeze:
    """What can be made of one prompt so that it has at most ``limit`` tokens. ``start`` is the message
    that the recent ones begin with, ``cuts`` are those that what is kept may begin with."""

    view: RunView
    gauge: Gauge
    limit: int
    start: int
    cuts: Sequence[int]
    results: Sequence[Result]

    @classmethod
    def of(cls, view: RunView, gauge: Gauge, limit: int) -> Squeeze:
        """Everything that is sent, to be made shorter."""
        results = tuple(results_of(view))
        return cls(view, gauge, limit, tail_start(view), cuts(view), results)

    def clip_old(self) -> Compaction | None:
        """Old results, each as short as it gets."""
        return self._if_it_fits(self._made(0, None))

    def leave_out(self) -> Compaction | None:
        """The oldest of the turns that are not recent, as few of them as it takes."""
        old = [cut for cut in self.cuts if cut <= self.start]
        found = bisect_left(old, True, key=lambda cut: self._fits(self._made(cut, None)))
        return self._made(old[found], None) if found < len(old) else None

    def clip_recent(self) -> Compaction | None:
        """Recent results too, the longest first, and none to less than a modest length."""
        return self._clipped_to_fit(0, MODEST_RESULT)

    def all_it_takes(self) -> Compaction | None:
        """Everything but the recent messages left out and their results clipped, then ever more of
        these messages left out, down to the last reply and what answers it."""
        newer = [cut for cut in self.cuts if cut > self.start]
        attempts = (self._clipped_to_fit(cut, LEAST_RESULT) for cut in (self.start, *newer))
        return next((made for made in attempts if made is not None), None)

    def _fits(self, made: Compaction | None) -> bool:
        return made is not None and made.tokens_after <= self.limit

    def _if_it_fits(self, made: Compaction | None) -> Compaction | None:
        return made if self._fits(made) else None

    def _clipped_to_fit(self, cut: int, least: int) -> Compaction | None:
        """With what is before ``cut`` left out and recent results as long as they can stay."""
        if self._fits(whole := self._made(cut, None)):
            return whole
        if not self._fits(self._made(cut, least)):
            return None
        longest = max((len(result.sent) for result in self.results), default=least)
        shorter = range(longest, least - 1, -1)
        found = bisect_left(shorter, True, key=lambda most: self._fits(self._made(cut, most)))
        return self._made(cut, shorter[found])

    def _made(self, cut: int, most: int | None) -> Compaction | None:
        """What leaves out all before message ``cut``, clips old results, and recent ones to ``most``
        characters; None when that makes nothing shorter."""
        view = self.view
        leaves_out = cut - 1 > view.compacted.last
        clips = tuple(self._clips(cut if leaves_out else 0, most))
        if not leaves_out and not clips:
            return None
        if leaves_out:
            made = Compaction("prune", 1, cut - 1, self._note(cut), clips)
        else:
            numbers = [clip.message for clip in clips]
            made = Compaction("clip", min(numbers), max(numbers), clips=clips)
        per_token = view.spec.context.chars_per_token
        change = difference(view.messages, view.compacted, made, per_token)
        if change >= 0:
            return None
        after = self.gauge.after(change)
        return replace(made, tokens_before=self.gauge.tokens, tokens_after=after)

    def _clips(self, first: int, most: int | None) -> Iterator[Clip]:
        for result in self.results:
            length = len(result.sent)
            if result.message < first:
                continue
            if result.message < self.start:
                clip = clipped(self.view, result, OLD_RESULT) if length > CLIPPED_ABOVE else None
            else:
                clip = clipped(self.view, result, most) if most and length > most else None
            if clip is not None:
                yield clip

    def _note(self, cut: int) -> str:
        """What is sent for the messages before ``cut``."""
        view, first = self.view, self.view.compacted.last + 1
        left_out = view.messages[first:cut]
        calls = sum(len(tool_uses(message.blocks)) for message in left_out)
        note = (
            f"[Messages {first} to {cut - 1} are left out here to save context, with {calls} tool "
            "calls. What they did is done.]"
        )
        said = [
            block["text"]
            for message in left_out
            if message.role == "user"
            for block in message.blocks
            if block["type"] == "text" and block["text"] not in OWN_TEXTS
        ]
        quoted = [f"The user said there: {_quoted(text)}" for text in said]
        before = self._within(view.compacted.text, STAND_IN / 2) if view.compacted.last else HEADING
        return self._within("\n\n".join([before, note, *quoted]), STAND_IN)

    def _within(self, text: str, share: float) -> str:
        most = self.gauge.characters(share)
        return text if len(text) <= most else shortened(text, most, "they are gone")


def _quoted(text: str) -> str:
    if len(text) > _MOST_SAID:
        text = shortened(text, _MOST_SAID, "ask for them if they matter")
    return json.dumps(text, ensure_ascii=False)
