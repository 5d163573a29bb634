"""Scripted jobs whose runs have workspaces of their own, worked by real workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.queries.transcript import show_run
from runner.store.database import Database
from tests.workspace.places import make_repository


def make_source(folder: Path) -> Path:
    """A repository with one file."""
    make_repository(folder / "source", {"count": "0\n"})
    return folder / "source"


def write_job(
    folder: Path, source: Path, mode: str, script: list[Mapping[str, Any]], more: str = ""
) -> str:
    """A job of one run, ``a``; its file. ``more`` is of its ``[workspace]``."""
    (folder / "script.json").write_text(json.dumps({"a": script}))
    place = f'repo = "{source}"' if mode == "git" else f'path = "{source}"'
    lines = [
        'name = "job"',
        'provider = "scripted"',
        'model = "scripted"',
        'script = "script.json"',
        'prompt = "Do {{ item }}."',
        'tools = ["Bash"]',
        '[items]\nlist = ["a"]',
        '[permissions]\nallow = ["Bash"]',
        f'[workspace]\nmode = "{mode}"\n{place}',
        more,
    ]
    (folder / "job.toml").write_text("\n".join(lines))
    return "job.toml"


def worktree(database: Database, run_id: str) -> Path:
    """Where a run works."""
    return Path(str(show_run(database, run_id)["workspace_path"]))
