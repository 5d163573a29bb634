"""A job's items: where they come from, and the key of each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from runner.core.text import read_json
from runner.errors import Problem
from runner.jobfile.check import Items
from runner.jobfile.content import json_problem, line_problem, read_bytes
from runner.jobfile.section import kind, shown

MOST_KEY_CHARACTERS = 500
MOST_REPORTED = 20
COMMAND_SECONDS = 60.0

Keyed = tuple[str, Any]
_CHILD_KEY = re.compile(r"(.+)\+[0-9]+", re.DOTALL)
# A place in the job file, words that say where in it the item stands ("line 3 of x.jsonl: "), the item.
_Found = tuple[str, str, Any]


class _UnreadableError(Exception):
    """Items that cannot be had; the text says why."""


def read(
    items: Items, folder: Path, root: Path | Sequence[str]
) -> tuple[list[Keyed], list[Problem]]:
    """The items, each with the key that names its run.

    Args:
        items: from the checked job file.
        folder: the job file's own; ``jsonl`` is relative to it, ``command`` runs in it.
        root: what ``glob`` searches: a folder, which its items are relative to, or paths of files.
    """
    origin = f"items.{items.source}"
    problems: list[Problem] = []
    try:
        match items.source:
            case "list":
                found = _listed(items.value)
            case "glob":
                found = _globbed(items.value, root)
            case "jsonl":
                found = _lines_of_file(folder / items.value, problems)
            case "command":
                found = _lines_of_command(items.value, folder)
        keyed = _keyed(found, problems)
    except _UnreadableError as error:
        return [], [Problem(origin, str(error))]
    if not keyed and not problems:
        problems.append(Problem(origin, "gives no item at all"))
    if len(problems) > MOST_REPORTED:
        more = len(problems) - MOST_REPORTED
        problems = [*problems[:MOST_REPORTED], Problem(origin, f"and {more:,} more such problems")]
    return keyed, problems


def key_problems(
    items: Items | None, keyed: Sequence[Keyed], *, scripted: bool, has_agents: bool
) -> list[Problem]:
    """Keys that are those of something else: of a type of sub-agent in a script, of a sub-agent.

    Args:
        items: from the checked job file; None for the job that is one run.
        keyed: the items, each with its key.
    """
    keys = {key for key, _ in keyed}
    problems = []
    for index, (key, _) in enumerate(keyed):
        parent = next(filter(keys.__contains__, _parents(key)), None)
        if scripted and key.startswith("@"):
            message = "begins with '@', as do the keys of sub-agents' replies in a script"
        elif has_agents and parent is not None:
            message = f"is also that of a sub-agent of the item {shown(parent)}"
        else:
            continue
        origin = "name"
        if items is not None:
            origin = f"items.list[{index}]" if items.source == "list" else f"items.{items.source}"
        problems.append(Problem(origin, f"the key {shown(key)} {message}: choose another"))
    return problems[:MOST_REPORTED]


def _parents(key: str) -> Iterator[str]:
    """The keys of the runs that a run with this key could be a sub-agent of."""
    while child := _CHILD_KEY.fullmatch(key):
        key = child[1]
        yield key


def _keyed(found: Iterable[_Found], problems: list[Problem]) -> list[Keyed]:
    keyed = []
    seen: dict[str, str] = {}
    for place, where, item in found:
        key, problem = _key(item)
        if problem is None and key in seen:
            problem = f"the key {shown(key)} is that of {seen[key]} too; keys are unique in a job"
        if problem is not None:
            problems.append(Problem(place, f"{where}{problem}"))
            continue
        seen[key] = where.removesuffix(": ") or place
        keyed.append((key, item))
    return keyed


def _key(item: Any) -> tuple[str, str | None]:
    """The item's key, and what is wrong with it or with the item."""
    if isinstance(item, str):
        problem = line_problem(item, MOST_KEY_CHARACTERS)
        advice = "; give it as a table with a key of its own" if item.strip() else ""
        return item, f"the item {problem}{advice}" if problem else None
    if not isinstance(item, dict):
        return "", f"an item is a string or a table, not {kind(item)}"
    if problem := json_problem(item):
        return "", f"the item {problem}"
    key = item.get("key")
    if key is None:
        return "", 'the item has no key: add key = "…", which names its run'
    if not isinstance(key, str):
        return "", f"the item's key must be a string, not {kind(key)}"
    problem = line_problem(key, MOST_KEY_CHARACTERS)
    return key, f"the item's key {problem}" if problem else None


def _listed(values: list[Any]) -> Iterator[_Found]:
    for index, value in enumerate(values):
        yield f"items.list[{index}]", "", value


def _globbed(pattern: str, root: Path | Sequence[str]) -> Iterator[_Found]:
    parts = PurePath(pattern).parts
    where = str(root) if isinstance(root, Path) else "the repository"
    if PurePath(pattern).is_absolute() or ".." in parts:
        raise _UnreadableError(f"{shown(pattern)} must stay inside {where}: no leading / and no ..")
    if isinstance(root, Path):
        names = _files_in(root, pattern)
    else:
        names = [name for name in root if _fits(name.split("/"), parts)]
    if not any(part.startswith(".") for part in parts):
        names = [name for name in names if not _is_hidden(name)]
    if not names:
        raise _UnreadableError(f"no file in {where} matches {shown(pattern)}")
    for name in sorted(set(names)):
        yield "items.glob", f"{shown(name)}: ", name


def _files_in(root: Path, pattern: str) -> list[str]:
    try:
        return [str(path.relative_to(root)) for path in root.glob(pattern) if path.is_file()]
    except (ValueError, NotImplementedError, IndexError) as error:
        raise _UnreadableError(f"{shown(pattern)} is no pattern: {error}") from error
    except OSError as error:
        raise _UnreadableError(f"{shown(pattern)} cannot be searched for: {error}") from error


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a file's path, in parts, matches a pattern, as ``Path.glob`` would have it."""
    if not parts or not names:
        return not parts and not names
    if parts[0] == "**":
        return any(_fits(names[at:], parts[1:]) for at in range(len(names)))
    return fnmatchcase(names[0], parts[0]) and _fits(names[1:], parts[1:])


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePath(name).parts)


def _lines_of_file(path: Path, problems: list[Problem]) -> Iterator[_Found]:
    try:
        data = read_bytes(path)
    except OSError as error:
        raise _UnreadableError(f"cannot read {path}: {error.strerror or error}") from error
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"line {number} of {path.name}: "
        try:
            yield "items.jsonl", where, read_json(line.decode())
        except (ValueError, RecursionError) as error:
            problems.append(Problem("items.jsonl", f"{where}is not JSON in UTF-8: {error}"))


def _lines_of_command(command: str | list[str], folder: Path) -> Iterator[_Found]:
    output = _output(["bash", "-c", command] if isinstance(command, str) else command, folder)
    for number, line in enumerate(output.split(b"\n"), 1):
        text = os.fsdecode(line).strip()
        if not text:
            continue
        item: Any = text
        if text[0] in '{"':
            try:
                item = read_json(text)
            except (ValueError, RecursionError):
                item = text
        yield "items.command", f"line {number} of its output: ", item


def _output(argv: list[str], folder: Path) -> bytes:
    """What a command writes to its standard output, run to its end with a time limit.

    The output goes to files, so that a process left in the background cannot keep us waiting.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _UnreadableError(f"cannot start {shown(argv[0])}: {error}") from error
        try:
            code = process.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise _UnreadableError(
                f"the command did not end within {COMMAND_SECONDS:.0f} seconds"
            ) from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        err.seek(0)
        if code != 0:
            lines = os.fsdecode(err.read()).strip().splitlines()
            how = f"exited with {code}" if code > 0 else f"was ended by signal {-code}"
            raise _UnreadableError(
                f"the command {how}{': ' + printable(lines[-1]) if lines else ''}"
            )
        return out.read()


def printable(text: str) -> str:
    """The text without anything that a terminal would obey."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
