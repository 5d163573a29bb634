"""Looks whether this host can work runs: its disk, its open files, git and the shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from runner.errors import HostFaultError
from runner.tools.shell import bash_path
from runner.workspace.git import Git, GitError

_PROBE_BYTES = 1 << 18
_PROBE_FILES = 16
_SECONDS = 30.0


def find_host_fault(
    home: Path, environment: Mapping[str, str], met: str | None = None
) -> str | None:
    """Return what keeps this host from working runs, or None: files can be written and opened, and
    git and bash started. After the fault ``met``, a missing program counts only if that names
    it."""
    if not home.is_dir():
        return f"RUNNER_HOME {home} is gone: put it back"
    try:
        with tempfile.TemporaryFile(dir=home) as file, ExitStack() as opened:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
            for _ in range(_PROBE_FILES):
                opened.enter_context(open(os.devnull, "rb"))
    except OSError as error:
        return f"a file in RUNNER_HOME {home} cannot be written: {error.strerror or error}"

    def counts(program: str) -> bool:
        installed = shutil.which(program, path=environment.get("PATH")) is not None
        return met is None or installed or f"{program} is not on the PATH" in met

    try:
        if counts("git"):
            Git(home, environment, seconds=_SECONDS).run("version")
        if counts("bash"):
            start = [bash_path(environment), "-c", ":"]
            subprocess.run(start, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=True)
    except (HostFaultError, GitError) as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"bash cannot be started: {error}"
    return None
