"""JSON as RFC 8259 has it: what Python's own reader takes beyond that, no database and no API takes."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, or holds NaN, Infinity or a number beyond a float's range.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
