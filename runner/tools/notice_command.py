"""Run the shell command of a job's ``[notify]``.

This file runs as a process of its own above the command, and ends it in time even if the worker has
died.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

MOST_SECONDS = 60.0
_MORE_SECONDS = 10.0  # for what left the command's process group and keeps its input open


def run_command(
    command: str,
    about: Mapping[str, Any],
    environment: Mapping[str, str],
    most_seconds: float = MOST_SECONDS,
) -> str:
    """Run a shell command for at most ``most_seconds``, with ``about`` as JSON on its input: a model's
    words reach it only so. Returns what went wrong, without the command; nothing if it succeeded."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(most_seconds), command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        return f"could not be run: {error.strerror or error}"
    try:
        process.communicate(f"{json.dumps(about)}\n".encode(), timeout=most_seconds + _MORE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == -signal.SIGKILL:
        return f"was ended after {most_seconds:g} s"
    return f"ended with exit code {process.returncode}" if process.returncode else ""


def _run(command: str, most_seconds: float) -> int:
    """Run the command in this process's group; that is killed when it takes too long."""
    try:
        return subprocess.run(["/bin/sh", "-c", command], timeout=most_seconds).returncode
    except subprocess.TimeoutExpired:
        os.killpg(0, signal.SIGKILL)
        raise


if __name__ == "__main__":
    sys.exit(_run(sys.argv[2], float(sys.argv[1])))
