"""The environments of the tools that Runner is measured beside: each has its own, outside of Runner's."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def environment(name: str, folder: Path) -> Path:
    """Return the interpreter of ``.venv-NAME``, which has what ``requirements.txt`` in a folder names.
    It is made if it is missing. Raises ``CalledProcessError`` if it cannot be installed."""
    place = _ROOT / f".venv-{name}"
    python, ready = place / "bin/python", place / ".ready"
    if not ready.exists():
        venv.create(place, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r"]
        subprocess.run([*install, folder / "requirements.txt"], check=True)
        ready.touch()
    return python
