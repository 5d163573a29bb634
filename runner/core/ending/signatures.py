"""What failures have in common: their words without what differs from run to run."""

from __future__ import annotations

import re

from runner.core.text.plain import visible

_LONGEST = 160
_LONGEST_READ = 2_000  # of a line; what is told of it is far shorter

_REPLACED = (
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b[a-z]{2,9}_(?=[0-9A-Za-z]*\d)[0-9A-Za-z]{10,}(?:_\d+)*\b"), "<id>"),
    (re.compile(r"(?<![\w<>])(?:~|\.{1,2})?(?:/[\w.@+-]+)+/?"), "<path>"),
    (re.compile(r"(?<![\w<>/])[\w.@+-]+(?:/[\w.@+-]+)+/?"), "<path>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)
# The first kind of line that there is tells the most: an exception, an error, whatever comes last.
_TELLING = (
    re.compile(r"^(?:E\s+)?(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)\b"),
    re.compile(r"\b(?:error|fatal|panicked|FAILED|not found|No such)\b"),
    re.compile(r"\b(?:fail(?:ed|ure|ures)?|exception|traceback)\b", re.IGNORECASE),
)


def signature(text: str, item_key: str = "") -> str:
    """A line without its numbers, ids, paths and hexadecimal digits, and without the item's key: the
    same for failures that are the same but for these. It is safe to print."""
    line = visible(text[:_LONGEST_READ]).strip()
    if len(item_key) > 1 and (key := visible(item_key)) in line:
        line = re.sub(rf"(?<!\w){re.escape(key)}(?!\w)", "<item>", line)
    for pattern, name in _REPLACED:
        line = pattern.sub(name, line)
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def telling_line(output: str) -> str:
    """The line of a command's output that says best why it failed; empty when it said nothing."""
    lines = [line.strip()[:_LONGEST_READ] for line in output.splitlines() if line.strip()]
    for pattern in _TELLING:
        found = next((line for line in lines if pattern.search(line)), None)
        if found is not None:
            return found
    return lines[-1] if lines else ""


def failure_signature(detail: str, item_key: str, output: str | None) -> str:
    """The signature of a run that failed or was stopped.

    Args:
        detail: the run's own words.
        output: of its last verification, where it failed by that; None otherwise.
    """
    said = telling_line(output) if output else ""
    return signature(said or detail, item_key)
