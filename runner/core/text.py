"""Texts: made harmless to show, read as strict JSON, prompts of Runner's own, signatures of failures."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

# Every control character but tab and newline, and lone surrogates.
_HARMFUL = re.compile(r"\r\n?|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def plain(text: str) -> str:
    """Return ``text`` with controls as escapes (``\\x1b``), CR as line ends, no lone surrogates."""
    return _HARMFUL.sub(_spell, text)


def _spell(harmful: re.Match[str]) -> str:
    character = harmful[0]
    if character in ("\r", "\r\n"):
        return "\n"
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_storable(text: str) -> bool:
    """True if both databases can store a text unchanged."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def visible(text: str) -> str:
    """Return ``text`` on one line with every character visible that could steer a terminal or reorder
    or hide text: control, format and bidi characters, line separators, lone surrogates."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else _visible_character(each) for each in text])


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


# Code that walks a value recurses, some several times a level, and Python stops after 1,000 calls
# (https://docs.python.org/3/library/sys.html#sys.getrecursionlimit).
DEEPEST = 200
_LONGEST_KEY = 60


class KeyTwiceError(ValueError):
    """An object of a JSON text has a key twice: readers differ in which of its values they take."""

    def __init__(self, key: str) -> None:
        shown = ascii(key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…")
        super().__init__(f"it has the key {shown} twice in one object")
        self.key = key


def read_json(text: str, deepest: int = DEEPEST, *, once: bool = False) -> Any:
    """The value of a JSON text. With ``once``, an object that has a key twice is a ``KeyTwiceError``.

    Raises:
        ValueError: it is not JSON, or holds NaN, Infinity or a number beyond a float's range.
        RecursionError: more than ``deepest`` lists and objects lie in one another.
    """
    value = (_ONCE if once else _ANY).decode(text)
    if text.count("[") + text.count("{") > deepest:
        level = [value] if isinstance(value, list | dict) else []
        for _ in range(deepest):
            level = [
                inner
                for outer in level
                for inner in (outer.values() if isinstance(outer, dict) else outer)
                if isinstance(inner, list | dict)
            ]
        if level:
            raise RecursionError(f"it is nested more than {deepest} deep")
    return value


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyTwiceError(key)
        found[key] = value
    return found


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        is_name = digits[-1].isalpha()  # NaN, Infinity
        raise ValueError(
            f"{digits} is not JSON" if is_name else f"{digits[:20]} is too large a number"
        )
    return value


_ANY = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)
_ONCE = json.JSONDecoder(parse_constant=_finite, parse_float=_finite, object_pairs_hook=_each_once)


LONGEST_LINE = 256 * 1024 * 1024  # bytes; a tool's whole output is at most 10 MB
# A value in a row may be as deep as JSON can be, and the objects around it add to that.
_DEEPEST_LINE = DEEPEST + 20
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_NOT_ASCII = re.compile(r"[^\x20-\x7e\t]")


def json_line(value: Any) -> bytes:
    """Return a value as one line of ASCII JSON, which no terminal obeys and any file can hold."""
    return _ENCODER.encode(value).encode("ascii") + b"\n"


def as_ascii(line: bytes) -> bytes:
    """Return a line with all but plain ASCII escaped, so that no terminal obeys it."""
    found = _NOT_ASCII.sub(lambda each: json.dumps(each[0])[1:-1], line.decode("utf-8"))
    return found.encode("ascii").replace(b"\x7f", b"\\u007f") + b"\n"


def read_json_line(line: bytes) -> dict[str, Any]:
    """Return the object in a line of JSON, not too long for a file. Raises ``ValueError``."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"it is longer than {LONGEST_LINE:,} bytes")
    try:
        value = read_json(line.decode("utf-8"), _DEEPEST_LINE)
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


def read_json_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line, or None if there is none."""
    try:
        return read_json_line(line)
    except ValueError:
        return None


CONTINUE_TEXT = "Your reply was cut off at the output limit. Go on from where it stopped."
NUDGE_TEXT = (
    "Your last reply was empty. If the task is done, say so in a sentence; if not, go on with it."
)
SMALLER_STEPS_TEXT = (
    "Your reply was cut off at the output limit before any part of it was whole. "
    "Go on in smaller steps."
)
RESUME_TEXT = "Go on."
RESULT_TEXT = (
    "You have not submitted your result. If the work is done, call submit_result with it; "
    "if not, go on with the work first."
)
VERIFY_TEXT = (
    "Your work was verified and does not pass yet. Fix what the output of the command below shows, "
    "then end your turn.\n\n$ {command}\n{output}"
)
# For a coordinator, after its task.
SPLIT_TEXT = (
    "Do not do this task yourself. First look at as much as you need to see its parts, then call "
    "split_task with the parts: others work on them side by side. You are given what they made of "
    "them, and join it."
)
SPLIT_AGAIN_TEXT = "You have not split the task. Call split_task with its parts now."
WHOLE_TEXT = (
    "As the task was not split, one sub-agent was given the whole of it. What it gave is below. Say "
    "what came of the task.\n\n{result}"
)
# For a fork, when the copied conversation names the folders of the other run.
_FORKED = (
    "Where paths above have {theirs}, yours have {ours} in its place: use those, or paths below your "
    "current folder, and leave the others alone."
)
FORKED_TEXT = f"From here on this conversation is another run's. {_FORKED}"
FORKED_WITH_FILES_TEXT = (
    "From here on this conversation is another run's, which works in a folder of its own with the "
    f"same files. {_FORKED}"
)

# For a sub-agent that begins with another run's conversation, when that names the other's outputs.
SNAPSHOT_TEXT = (
    "What the paths of outputs above say is in the folder outputs/{theirs} is for you in "
    "outputs/{ours}, under the same name."
)

OWN_TEXTS = frozenset(
    {CONTINUE_TEXT, NUDGE_TEXT, SMALLER_STEPS_TEXT, RESUME_TEXT, RESULT_TEXT, SPLIT_AGAIN_TEXT}
)


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
# The first kind of line found tells the most: an exception, an error, the last line.
_TELLING = (
    re.compile(r"^(?:E\s+)?(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)\b"),
    re.compile(r"\b(?:error|fatal|panicked|FAILED|not found|No such)\b"),
    re.compile(r"\b(?:fail(?:ed|ure|ures)?|exception|traceback)\b", re.IGNORECASE),
)


def signature(text: str, item_key: str = "") -> str:
    """Return a line without numbers, ids, paths, hexadecimal digits and the item's key, so that
    equal failures have equal signatures. Safe to print."""
    line = visible(text[:_LONGEST_READ]).strip()
    if len(item_key) > 1 and (key := visible(item_key)) in line:
        line = re.sub(rf"(?<!\w){re.escape(key)}(?!\w)", "<item>", line)
    for pattern, name in _REPLACED:
        line = pattern.sub(name, line)
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def telling_line(output: str) -> str:
    """Return the line of an output that best explains the failure; empty without any."""
    lines = [line.strip()[:_LONGEST_READ] for line in output.splitlines() if line.strip()]
    telling = (line for pattern in _TELLING for line in lines if pattern.search(line))
    return next(telling, lines[-1] if lines else "")


def failure_signature(detail: str, item_key: str, output: str | None) -> str:
    """Return the signature of a run that failed or was stopped: of its last verification's output
    if that failed, else of its reason."""
    said = telling_line(output) if output else ""
    return signature(said or detail, item_key)
