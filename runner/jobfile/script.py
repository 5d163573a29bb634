"""The replies of a scripted job, read from their file into the job."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.core.spec import ANY_ITEM
from runner.errors import Problem
from runner.jobfile.content import json_problem, read_bytes
from runner.jobfile.section import kind, shown

# Takes a script file's contents; gives what is wrong with them, each with its place in the script.
CheckScript = Callable[[Mapping[str, Any]], Sequence[Problem]]


def load_script(
    path: Path, check_script: CheckScript, keys: Sequence[str], types: Sequence[str] = ()
) -> tuple[Mapping[str, Any] | None, list[Problem]]:
    """Read a script file (TOML or JSON, by the end of its name).

    Args:
        path: the file.
        check_script: says what is wrong with its contents.
        keys: the items' keys; each needs replies, its own or those of ``"*"``.
        types: the names of the job's types of sub-agents.

    Returns:
        The contents, or None with problems.
    """
    script, problem = _read(path)
    if problem:
        return None, [Problem("script", problem)]
    problems = [Problem("script", f"{path.name}: {found}") for found in check_script(script)] or [
        *_without_replies(script, keys, path.name),
        *_of_no_type(script, types, path.name),
    ]
    return (None if problems else script), problems


def _without_replies(script: Mapping[str, Any], keys: Sequence[str], name: str) -> list[Problem]:
    silent = [key for key in keys if key not in script]
    if ANY_ITEM in script or not silent:
        return []
    others = f" and {len(silent) - 1:,} more" if len(silent) > 1 else ""
    message = f"{name} has no replies for the item {shown(silent[0])}{others}, and none under '*'"
    return [Problem("script", message)]


def _of_no_type(script: Mapping[str, Any], types: Sequence[str], name: str) -> Iterator[Problem]:
    there = f"there are {', '.join(types)}" if types else "the job has none"
    for key in script:
        if key.startswith("@") and key[1:] not in types:
            message = (
                f"{name} has replies under {shown(key)}, which is no type of sub-agent: {there}"
            )
            yield Problem("script", message)


def _read(path: Path) -> tuple[dict[str, Any], str | None]:
    if path.suffix not in (".toml", ".json"):
        return {}, f"{path.name} must be a .toml or a .json file"
    try:
        text = read_bytes(path).decode()
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        return {}, f"cannot read {path}: {error.strerror or error}"
    except (ValueError, RecursionError) as error:
        return {}, f"{path.name} is not valid {path.suffix[1:].upper()} in UTF-8: {error}"
    if not isinstance(data, dict):
        return {}, f"{path.name} must hold a table of replies by item, not {kind(data)}"
    if problem := json_problem(data, any_text=True):
        return {}, f"{path.name}: {problem}"
    return data, None
