"""A temporary folder for everything that the tests start, and the end of what is left in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

_PATIENCE = 10.0


@contextmanager
def private_temporary_folder() -> Iterator[Path]:
    """The temporary folder of this process and of those that it starts.

    At the end it is removed, and the processes that work in it are killed: an embedded queue server
    is nobody's child, and one whose users were all killed waits for the next of them for ever.
    """
    folder = Path(tempfile.mkdtemp(prefix="rt-"))  # short: sockets lie in it
    folder.chmod(0o711)  # as root, the Postgres server is another user's
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        try:
            yield folder
        finally:
            end_processes_in(folder)
            shutil.rmtree(folder, ignore_errors=True)


def end_processes_in(folder: Path) -> None:
    """Kill every process whose current directory is in ``folder``, and wait until they have ended."""
    found = [process for process in psutil.process_iter() if _works_in(process, folder)]
    for process in found:
        # One ends when its parent, which was killed before it, has ended.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, timeout=_PATIENCE)


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return Path(process.cwd()).is_relative_to(folder)
    except psutil.Error:
        return False  # it has ended, or is somebody else's
