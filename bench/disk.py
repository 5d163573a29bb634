"""How long this disk takes to keep what is written: Runner waits for it twice a turn."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

_BYTES = 16_384


def flush_milliseconds(times: int, folder: Path | None = None) -> list[float]:
    """Milliseconds that each of some flushes of 16 KB took, the fastest first."""
    taken = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(times):
            file.write(b"x" * _BYTES)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(1000 * (time.perf_counter() - began))
    return sorted(taken)
