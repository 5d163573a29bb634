"""JSON as RFC 8259 has it: what Python's own reader takes beyond that, no database and no API takes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

# Whoever goes through a value calls itself for what is in it, some several times a level, and Python
# ends that after 1,000 calls (https://docs.python.org/3/library/sys.html#sys.getrecursionlimit).
DEEPEST = 200
_LONGEST_KEY = 60


class KeyTwiceError(ValueError):
    """An object of a JSON text has a key twice: readers differ in which of its values they take."""

    def __init__(self, key: str) -> None:
        super().__init__(f"it has the key {_shown(key)} twice in one object")
        self.key = key


def read_json(text: str, deepest: int = DEEPEST, *, once: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        deepest: how many lists and objects may lie in one another.
        once: refuse an object that has a key twice, of which the last would count.

    Raises:
        KeyTwiceError: ``once``, and a key is there twice.
        ValueError: it is not JSON, or holds NaN, Infinity or a number beyond a float's range.
        RecursionError: it is nested more deeply than that.
    """
    value = json.loads(
        text,
        parse_constant=_refuse_constant,
        parse_float=_finite,
        object_pairs_hook=_each_once if once else None,
    )
    if text.count("[") + text.count("{") > deepest:
        _refuse_deeper(value, deepest)
    return value


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyTwiceError(key)
        found[key] = value
    return found


def _shown(key: str) -> str:
    return ascii(key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…")


def _refuse_deeper(value: Any, deepest: int) -> None:
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


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
