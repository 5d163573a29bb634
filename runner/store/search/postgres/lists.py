"""Lists of documents as the tables of a Postgres database hold them.

Documents are numbered from 0, and 65,536 of them are a stretch. A list says where in its stretch those
documents are that have a word: two bytes for each place, or, of a whole stretch where that is less, one bit
for every document. While one looks they are bits of a long number: what has both words is one operation.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import compress

STRETCH = 65_536
BIT_BYTES = STRETCH // 8

# What stands among the words: documents that are no more; and of all documents, one after the other, how
# many words they have and their times.
GONE, LENGTHS, TIMES = 16_384, 16_385, 16_386
LENGTH_BYTES = 4

# Fewer are marked in bytes, more as digits in text; and fewer are found one by one.
_FEW_TO_MARK, _FEW_TO_FIND = 1_500, 300
_ONE = ord("1")
_DIGITS = bytes.maketrans(b"01", b"\0\1")


def packed(places: Sequence[int]) -> bytes:
    """A list of places in a stretch."""
    return struct.pack(f"<{len(places)}H", *places)


def bits_of(listed: bytes) -> int:
    """The places of a list as bits."""
    places = struct.unpack(f"<{len(listed) // 2}H", listed)
    if len(places) < _FEW_TO_MARK:
        marked = bytearray(BIT_BYTES)
        for place in places:
            marked[place >> 3] |= 1 << (place & 7)
        return int.from_bytes(marked, "little")
    digits = bytearray(b"0") * STRETCH
    for place in places:
        digits[place] = _ONE
    digits.reverse()
    return int(digits, 2)


def bits_in(marked: bytes) -> int:
    """The bits of one or more lists that have a bit for every document."""
    bits = 0
    for start in range(0, len(marked), BIT_BYTES):
        bits |= int.from_bytes(marked[start : start + BIT_BYTES], "little")
    return bits


def marked(bits: int) -> bytes:
    """A list with a bit for every document of a stretch."""
    return bits.to_bytes(BIT_BYTES, "little")


def places_in(bits: int) -> list[int]:
    """The places of the bits that are set, the lowest first."""
    if bits.bit_count() < _FEW_TO_FIND:
        places = []
        while bits:
            places.append((bits & -bits).bit_length() - 1)
            bits &= bits - 1
        return places
    digits = f"{bits:b}".encode()[::-1].translate(_DIGITS)
    return list(compress(range(STRETCH), digits))
