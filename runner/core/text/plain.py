"""Untrusted text made harmless to show."""

from __future__ import annotations

import re
import unicodedata

# Every control character but tab and newline, and what UTF-8 cannot hold.
_HARMFUL = re.compile(r"\r\n?|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def plain(text: str) -> str:
    """Return ``text`` with control characters as escapes (``\\x1b``), carriage returns as line ends and
    lone surrogates replaced."""
    return _HARMFUL.sub(_spell, text)


def _spell(harmful: re.Match[str]) -> str:
    character = harmful[0]
    if character in ("\r", "\r\n"):
        return "\n"
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def visible(text: str) -> str:
    """Return ``text`` on one line with every character visible that could steer a terminal or reorder
    or hide text: control, format and bidi characters, line separators, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character in "\n\r\t":
        return {"\n": "⏎", "\r": "␍", "\t": " "}[character]
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"\\u{code:04x}"
    return character


def shorten(text: str, length: int) -> str:
    """Return ``text`` on one visible line of at most ``length`` characters."""
    line = visible(text.strip()[: length + 1])
    return line if len(line) <= length else line[: length - 1] + "…"
