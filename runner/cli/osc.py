"""Progress in the taskbar, and notifications, of the terminals that are known to take them.

A terminal that does not know OSC 9;4 may show it as a notification, each time: nothing is sent on a guess.
"""

from __future__ import annotations

from collections.abc import Mapping

_END = "\x1b\\"
_LONGEST = 120


def progress(environment: Mapping[str, str], percent: int | None) -> str:
    """Return the sequence that shows a job's progress (None: clears it); empty if the terminal has
    none."""
    if not _takes_progress(environment):
        return ""
    return f"\x1b]9;4;0{_END}" if percent is None else f"\x1b]9;4;1;{percent}{_END}"


def notification(environment: Mapping[str, str], words: str) -> str:
    """Return the sequence that shows a notification, without control characters; empty if the terminal
    has none."""
    if not _takes_notifications(environment):
        return ""
    plain = "".join(each for each in words if each.isprintable() and each != ";")
    return f"\x1b]9;{plain[:_LONGEST]}{_END}"


def _takes_progress(environment: Mapping[str, str]) -> bool:
    """https://ghostty.org/docs/vt/osc/conemu, https://learn.microsoft.com/windows/terminal/tutorials/progress-bar-sequences"""
    if _is_multiplexed(environment):
        return False
    program, version = _program(environment)
    if program == "ghostty" or environment.get("WT_SESSION"):
        return True
    if environment.get("ConEmuANSI") == "ON":
        return True
    if program == "WezTerm":  # versions are dates
        return version >= (20250209,)
    return program == "iTerm.app" and version >= (3, 6, 6)


def _takes_notifications(environment: Mapping[str, str]) -> bool:
    if _is_multiplexed(environment):
        return False
    is_kitty = environment.get("TERM") == "xterm-kitty"
    return is_kitty or _program(environment)[0] in ("ghostty", "WezTerm", "iTerm.app")


def _is_multiplexed(environment: Mapping[str, str]) -> bool:
    """True inside tmux or screen, which swallow both."""
    return bool(environment.get("TMUX") or environment.get("STY"))


def _program(environment: Mapping[str, str]) -> tuple[str, tuple[int, ...]]:
    version = environment.get("TERM_PROGRAM_VERSION", "").replace("-", ".").split(".")
    numbers = tuple(int(part) for part in version[:3] if part.isdecimal() and part.isascii())
    return environment.get("TERM_PROGRAM", ""), numbers
