"""The worker's process is closed to the tools that it starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from runner.engine.process_setup import close_to_others
close_to_others()
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")
def test_a_workers_memory_and_environment_are_not_readable_for_its_user() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "0\n"
