"""A command as mere text: what a reader sees in it where it cannot be parsed."""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath

LONGEST = 20_000
_SUFFIXES = 12
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_HIDING = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"))
_BORDER = re.compile(r"[\r\n;&|(){}<>`]|\$\(")
_BLANKS = re.compile(r"[ \t\f\v]+")
_QUOTES = str.maketrans("", "", "\"'\\")


def hidden_character(command: str) -> str:
    """Why a reader cannot trust their eyes with this text; "" when they can."""
    if command.isascii() and command.isprintable():
        return ""
    for character in command:
        if character in "\n\t" or " " <= character <= "~":
            continue
        if _deceives(character):
            return f"it has the invisible or deceptive character U+{ord(character):04X}"
    return ""


def _deceives(character: str) -> bool:
    if character in _UNSEEN or unicodedata.category(character) in _HIDING:
        return True
    # Variation selectors; U+FE0F alone is part of everyday emoji.
    return "\ufe00" <= character <= "\ufe0e" or "\U000e0100" <= character <= "\U000e01ef"


def raw_forms(command: str) -> tuple[str, ...]:
    """The text itself, each line, each segment between shell operators, and what starts at each of
    a segment's first words; with quotes and without, invisible characters taken out."""
    forms: dict[str, None] = {command: None, command.strip(): None}
    texts = dict.fromkeys((command.replace("\\\n", " "), command.replace("\\\n", "")))
    for text in tuple(texts):
        if text.isascii() and text.isprintable():
            continue  # nothing in it is invisible or has another form
        seen = "".join(c for c in text if c in "\n\t\r" or not _deceives(c) or c.isspace())
        texts.setdefault(unicodedata.normalize("NFKC", seen))
    for text in tuple(texts):
        texts.setdefault(text.translate(_QUOTES))
        texts.setdefault(text.replace("\\n", "\n").translate(_QUOTES))
    for text in texts:
        forms.update(dict.fromkeys(line.strip() for line in text.split("\n")))
        for segment in _BORDER.split(text):
            forms.update(dict.fromkeys(_starts(segment)))
    forms.pop("", None)
    return tuple(forms)


def _starts(segment: str) -> list[str]:
    words = [word for word in _BLANKS.split(segment) if word]
    starts = []
    for index, word in enumerate(words[:_SUFFIXES]):
        rest = words[index + 1 :]
        starts.append(" ".join([word, *rest]))
        bare = word.strip("\"'")
        starts.append(" ".join([bare, *rest]))
        if "/" in bare:
            starts.append(" ".join([PurePosixPath(bare).name, *rest]))
    return starts
