"""Makes what a tool printed fit for the model: always text, harmless to show, and not too long."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from runner.core.text import plain
from runner.core.tool_responses import NO_OUTPUT

MOST_CHARACTERS = 50_000


def present(
    printed: bytes, copy: Path, *, cut: bool = False, ending: str = ""
) -> tuple[str, bytes | None]:
    """Return what the model is shown of an output, and the whole of it if that is too long to show.

    An output of more than 50,000 characters keeps its head and its tail, with a note between them
    that says what is left out and where the whole is: ``copy``, which is written here. A copy that
    cannot be written costs nothing but itself: the note says so, and the result stays whole.

    Args:
        printed: the output as the tool wrote it, whatever bytes those are.
        cut: the tool printed more than was kept.
        ending: a line of Runner's own (an exit code) that follows the output.

    Returns:
        The text for the model, never blank, at most 50,000 characters; and the whole output as UTF-8,
        or None when the text shows all of it.
    """
    text = printed.decode("utf-8", "replace")
    if cut:
        ending = f"[only the first {len(printed):,} bytes of the output were kept]\n{ending}"
    room, ending = MOST_CHARACTERS - len(ending) - 1, ending.rstrip("\n")
    if len(text) <= room:
        shown = plain(text)
        if len(shown) <= room:
            return _join(shown, ending), None
    whole = text.encode("utf-8", "replace")
    try:
        restore_output(copy, whole)
        where = f"All of it is in {copy}: Read it with offset and limit, or search it with Grep"
    except OSError as error:
        where = (
            f"All of it is kept, but no copy to read could be written ({error.strerror}): "
            "ask for less to see more of it"
        )
    note = f"\n[… the middle is left out: the output has {len(text):,} characters. {where} …]\n"
    half = (room - len(note)) // 2
    head, tail = plain(text[:half])[:half], plain(text[-half:])[-half:]
    return _join(head + note + tail, ending), whole


def restore_output(path: Path, output: bytes) -> None:
    """Write a long output to its copy, which appears whole or not at all. Raises ``OSError``."""
    for folder in (path.parent.parent, path.parent):  # not RUNNER_HOME: another would be empty
        folder.mkdir(exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(output)
        os.replace(temporary, path)  # noqa: PTH105 - a plain string
    except OSError:
        os.unlink(temporary)  # noqa: PTH108 - a plain string
        raise


def _join(shown: str, ending: str) -> str:
    if not shown or shown.isspace():
        return ending or NO_OUTPUT
    if not ending:
        return shown
    return shown + ending if shown.endswith("\n") else f"{shown}\n{ending}"
