"""Texts that a program printed, made harmless to show."""

from __future__ import annotations

import re

# Every control character but tab and newline, and what UTF-8 cannot hold.
_HARMFUL = re.compile(r"\r\n?|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def plain(text: str) -> str:
    """The text with control characters written as escapes (``\\x1b``), carriage returns as line ends,
    and lone surrogates replaced."""
    return _HARMFUL.sub(_spell, text)


def _spell(harmful: re.Match[str]) -> str:
    character = harmful[0]
    if character in ("\r", "\r\n"):
        return "\n"
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
