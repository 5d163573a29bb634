"""Ids: they say what they name, sort by time, and need no counter.

26 characters of Crockford's base 32, lower case, as in a ULID (https://github.com/ulid/spec): 48
bits of milliseconds and 80 random bits that count up within a millisecond.
"""

from __future__ import annotations

import re
import secrets
import threading
from typing import Literal

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_PLACES = range(120, -1, -10)  # of pairs, in bits
_RANDOM_BITS = 80
# A child's id goes on with its numbers in its parents. INTEGER can hold nine digits.
_CALL_ID = re.compile(r"call_([0-9a-z]+(?:\.[0-9]{1,9})*)_([0-9]{1,9})_([0-9]{1,9})")

Kind = Literal["job", "run", "worker", "apr", "sch", "bat"]

_lock = threading.Lock()
_last = 0


def new(kind: Kind, now: float) -> str:
    """A new id, ``run_`` and 26 characters. ``now`` is in seconds since the epoch."""
    global _last
    first = int(now * 1000) << _RANDOM_BITS
    with _lock:
        if _last >> _RANDOM_BITS == int(now * 1000):
            _last += 1 + secrets.randbits(40)
        else:
            _last = first | secrets.randbits(_RANDOM_BITS - 1)
        value = _last
    return f"{kind}_{''.join([_PAIRS[value >> place & 1023] for place in _PLACES])}"


def call_id(run_id: str, turn: int, position: int) -> str:
    """The id of a tool call: its run, the turn that asked for it and its place there, from 1."""
    return f"call_{run_id.removeprefix('run_')}_{turn}_{position + 1}"


def parse_call_id(text: str) -> tuple[str, int, int] | None:
    """Run id, turn and position (from 0) of a tool call's id, or None when it is not one."""
    parts = _CALL_ID.fullmatch(text)
    if parts is None:
        return None
    run, turn, position = parts.groups()
    return f"run_{run}", int(turn), int(position) - 1
