"""Scripted jobs whose runs have workspaces of their own, worked by real workers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.queries.jobs import show_run
from runner.store.database import Database

_GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")


def git(folder: Path, *arguments: str) -> str:
    """What git says in a folder."""
    done = subprocess.run(
        [*_GIT, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


def make_source(folder: Path) -> Path:
    """A repository with one file."""
    source = folder / "source"
    source.mkdir()
    git(source, "init", "-q", "-b", "main")
    (source / "count").write_text("0\n")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "Begin")
    return source


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
