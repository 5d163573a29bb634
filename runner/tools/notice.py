"""Runs the command of a job that wants people told of its questions."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

MOST_SECONDS = 60.0


def tell(command: str, about: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Run a shell command with ``about`` as JSON on its input; how it fails is only logged.

    Args:
        command: as the job file has it. What a model said reaches it only as that JSON.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        process.communicate(json.dumps(about).encode(), timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        logger.warning("on_ask was ended after %g s: %s", MOST_SECONDS, command)
        return
    if process.returncode != 0:
        logger.warning("on_ask ended with exit code %d: %s", process.returncode, command)
