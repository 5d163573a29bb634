"""Finds the files of Claude Code's sessions, as it keeps them.

PROJECT/SESSION.jsonl                             a session
PROJECT/SESSION/subagents/**/agent-ID.jsonl       the agents of it, with agent-ID.meta.json
PROJECT/agent-ID.jsonl                            an agent, as versions before 2.1 kept it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from runner.core.text import read_json_line, read_json_object, visible
from runner.exchange.sessions import Files

_AGENTS = "agent-*.jsonl"
_LONGEST_HEAD = 1_000_000


def whole_lines(file: IO[bytes]) -> tuple[list[bytes], bool]:
    """Return the lines of a file that are not blank, and True if the last one was being written when the
    file was copied; it is left out."""
    content = file.read()
    lines = [line for each in content.split(b"\n") if (line := each.strip())]
    if lines and not content.endswith(b"\n"):
        try:
            read_json_line(lines[-1])
        except ValueError:
            return lines[:-1], True
    return lines, False


def session_files(path: Path, lines: Sequence[bytes]) -> Files:
    """Return the lines of a session's file, with those of its agents' files."""
    if path.name.startswith("agent-"):
        return {"": (), visible(path.name): lines, **_meta_of(path)}
    found: dict[str, Sequence[bytes]] = {"": lines}
    for agent in _agents_of(path):
        with agent.open("rb") as file:
            found[visible(agent.name)], _ = whole_lines(file)
        found |= _meta_of(agent)
    return found


def sessions_in(folder: Path) -> list[Path]:
    """Return the files in a folder and below it that can be imported, the oldest first. An agent's files
    are left out if the file of its session exists."""
    found = [
        path
        for path in sorted(folder.rglob("*.jsonl"))
        if path.is_file() and not (path.name.startswith("agent-") and session_of(path))
    ]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def session_of(path: Path) -> Path | None:
    """Return the file of the session that an agent's file belongs to, if it is there."""
    for folder in path.parents:
        if folder.name == "subagents":
            session = folder.parent.with_suffix(".jsonl")
            return session if session.is_file() else None
    session = path.parent / f"{_session_id(path)}.jsonl"
    return session if session.is_file() else None


def _agents_of(path: Path) -> Iterator[Path]:
    yield from filter(Path.is_file, sorted((path.with_suffix("") / "subagents").rglob(_AGENTS)))
    for agent in filter(Path.is_file, sorted(path.parent.glob(_AGENTS))):
        if _session_id(agent) == path.stem:
            yield agent


def _meta_of(path: Path) -> dict[str, Sequence[bytes]]:
    meta = path.with_suffix(".meta.json")
    return {visible(meta.name): meta.read_bytes().splitlines()} if meta.is_file() else {}


@lru_cache(maxsize=100_000)  # a folder of many agents is asked about each for each session
def _session_id(path: Path) -> Any:
    with path.open("rb") as file:
        return (read_json_object(file.readline(_LONGEST_HEAD)) or {}).get("sessionId")
