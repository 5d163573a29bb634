"""Tool results that are sent shorter than they are: their head, a note and their tail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner.core.context.compaction import Clip
from runner.core.conversation import Block, tool_uses
from runner.core.journal.view import RunView

CLIPPED_ABOVE = 1_024  # characters; what is not longer is not worth a note
OLD_RESULT = 768  # characters of an old result that stay, with its note
MODEST_RESULT, LEAST_RESULT = 4_000, 256  # characters of a recent one, when it has to be cut

# The note of a tool whose output was too long to show (``tools.output``): it names a file.
_OWN_NOTE = re.compile(r"\n\[… the middle is left out: [^\n]{1,600} …\]\n")
_OWN_NOTE_ABOVE = 10_000
_FILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Result:
    """A tool's result among the messages: ``sent`` is the text that it is sent with now."""

    message: int
    position: int
    block: Block
    sent: str


def results_of(view: RunView) -> Iterator[Result]:
    """The tool results that are sent."""
    for number in range(view.compacted.last + 1, len(view.messages)):
        for position, block in enumerate(view.messages[number].blocks):
            content = block.get("content")
            if block["type"] == "tool_result" and isinstance(content, str):
                sent = view.compacted.clips.get((number, position), content)
                yield Result(number, position, block, sent)


def clipped(view: RunView, result: Result, most: int) -> Clip | None:
    """The clip that leaves a result at most ``most`` characters; None when that is not shorter than
    what is sent now."""
    if len(result.sent) <= most:
        return None
    call_id = str(result.block["tool_use_id"])
    calls = tool_uses(view.messages[result.message - 1].blocks)
    name = next((call["name"] for call in calls if call["id"] == call_id), "")
    where = place_of_output(view, call_id, name)
    text = _shortened(result.block["content"], most, where)
    if len(text) >= len(result.sent):
        return None
    return Clip(result.message, result.position, text)


def place_of_output(view: RunView, call_id: str, name: str) -> str:
    """How the model gets at the whole of a call's result.

    Args:
        name: of the tool that was called.
    """
    if view.outputs and view.spec.tool("Read") and _FILE_NAME.fullmatch(call_id):
        return f"all of it is in {view.outputs}/{call_id}.txt: Read it with offset and limit"
    if view.spec.starts_children(name):
        return "a new call would start another sub-agent"
    return "run the call again to see them"


def _shortened(content: str, most: int, where: str) -> str:
    """Head, note and tail of a text. A note that is in it already stays, as it names the file that
    has all of the output."""
    own = _OWN_NOTE.search(content) if len(content) > _OWN_NOTE_ABOVE else None
    if own is None:
        return shortened(content, most, where)
    room = max(0, most - len(own[0]))
    at_end = room // 3
    tail = content[own.end() :]
    return content[: own.start()][: room - at_end] + own[0] + tail[max(0, len(tail) - at_end) :]


def shortened(text: str, most: int, where: str) -> str:
    """Head and tail of a text, and a note between them that says what is missing and ``where`` it is:
    at most ``most`` characters, if the note fits in them."""
    longest = len(_left_out(len(text), len(text), where))
    room = max(0, most - longest)
    at_end = room // 3
    note = _left_out(len(text) - room, len(text), where)
    return text[: room - at_end] + note + text[len(text) - at_end :]


def _left_out(missing: int, whole: int, where: str) -> str:
    return f"\n[… {missing:,} of {whole:,} characters left out to save context; {where} …]\n"
