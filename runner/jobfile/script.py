"""The script of a scripted job: what a model would say, by item."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.core import spec as specs
from runner.errors import Problem
from runner.jobfile import table, values
from runner.jobfile.keys import REPLY
from runner.jobfile.table import Node
from runner.jobfile.values import BadValueError, kind, shown

_REPLIES = table.list_of(table.table_of(REPLY), "replies", placed=True)


def read_script(
    path: Path, at: Node, items: Sequence[str], types: Sequence[str]
) -> Mapping[str, Any] | None:
    """Return the content of a script file, TOML or JSON by the end of its name; None after noting
    at its key what is wrong with it. Each item needs replies under its key or under ``"*"``;
    ``types`` are the names of the job's types of sub-agents."""
    script = at.attempt(_parsed_script, path)
    if script is None:
        return None
    for problem in check_script(script):
        at.note(f"{path.name}: {problem}")
    silent = [key for key in items if key not in script]
    if silent and specs.ANY_ITEM not in script:
        others = f" and {len(silent) - 1:,} more" if len(silent) > 1 else ""
        message = f"has no replies for the item {shown(silent[0])}{others}, and none under '*'"
        at.note(f"{path.name} {message}")
    there = f"there are {', '.join(types)}" if types else "the job has none"
    for key in script:
        if key.startswith(specs.OF_AGENT) and key.removeprefix(specs.OF_AGENT) not in types:
            message = f"has replies under {shown(key)}, which is not an agent type: {there}"
            at.note(f"{path.name} {message}")
    return script


def check_script(script: Mapping[str, Any]) -> list[Problem]:
    """Return every problem of a script with its place."""
    root = Node((), [], {})
    if not script:
        root.note(f'is empty; give at least the replies for "{specs.ANY_ITEM}"')
    for key, written in script.items():
        at = root.at(key)
        if key == specs.SUMMARY and isinstance(written, str):
            at.attempt(table.text().read, written, at)
            continue
        for node, reply in at.attempt(_REPLIES.read, written, at) or ():
            if not reply.written:
                node.note('is empty; to play an empty reply say so with stop_reason = "end_turn"')
    return root.problems


def _parsed_script(path: Path) -> dict[str, Any]:
    if path.suffix not in (".toml", ".json"):
        raise BadValueError(f"{path.name} must be a .toml or a .json file")
    try:
        content = values.read_bytes(path).decode()
        script = tomllib.loads(content) if path.suffix == ".toml" else json.loads(content)
    except OSError as error:
        raise BadValueError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        language = path.suffix[1:].upper()
        raise BadValueError(f"{path.name} is not valid {language} in UTF-8: {error}") from error
    if not isinstance(script, dict):
        raise BadValueError(f"{path.name} must hold a table of replies by item, not {kind(script)}")
    if problem := values.json_problem(script, any_text=True):
        raise BadValueError(f"{path.name}: {problem}")
    return script
