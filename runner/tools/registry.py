"""Resolves the names in a job's ``tools`` and ``hooks`` to the tools and functions that it stores.

The built-in tools have the names and arguments of Claude Code's, which models know well
(https://docs.claude.com/en/docs/claude-code/settings#tools-available-to-claude).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.core.agents import AGENT_TOOL
from runner.core.conversation import Tool
from runner.settings import tool_environment
from runner.tools.functions import Undescribed, ask_child
from runner.tools.own import OwnSource

_FILE = "The file's path, absolute or relative to the workspace"


def _object(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str, least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "description": description}


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "description": description}


_BASH = Tool(
    name="Bash",
    description=(
        "Runs a bash command in the workspace and returns what it prints, errors included.\n\n"
        "- Every command starts in the workspace, in a new shell: `cd` and variables do not carry over.\n"
        "- There is no stdin and no terminal: use flags that keep programs from asking.\n"
        "- The command and everything that it started end with the call; nothing goes on in the "
        "background.\n"
        "- It is killed after its timeout (120000 ms unless this job says otherwise, at most 600000).\n"
        "- Prefer Read, Write, Edit, Glob and Grep to cat, sed, find and grep."
    ),
    input_schema=_object(
        ["command"],
        command=_text("The command to run"),
        timeout={
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 600_000,
            "description": "Timeout in milliseconds, at most 600000",
        },
        description=_text("What the command does, in 5 to 10 words"),
    ),
)

_READ = Tool(
    name="Read",
    description=(
        "Reads a file of the workspace: text, an image, a PDF or a notebook.\n\n"
        "- Shows up to 2000 lines from the beginning, or `limit` lines from line `offset`.\n"
        "- Lines come as with `cat -n`: a number, a tab, the line. Lines over 2000 characters are cut.\n"
        "- Long outputs of earlier calls can be read too, by the path that their result names.\n"
        "- A PNG, JPEG, GIF or WebP is shown as an image; of a PDF `pages`, at most 20 at a time; "
        "a notebook as its cells.\n"
        "- Text has to be UTF-8. No other binary files, no folders (use Glob for those)."
    ),
    input_schema=_object(
        ["file_path"],
        file_path=_text(_FILE),
        offset=_number("The line to start from, the first being 1", 0),
        limit=_number("How many lines to read", 1),
        pages=_text('The pages of a PDF, like "1-5" or "3"; left out: all'),
    ),
    read_only=True,
    repeatable=True,
)

_WRITE = Tool(
    name="Write",
    description=(
        "Writes a file of the workspace, byte for byte the content that is given.\n\n"
        "- An existing file is replaced whole: read it first, and prefer Edit to change a part.\n"
        "- Folders that are missing are made."
    ),
    input_schema=_object(
        ["file_path", "content"],
        file_path=_text(_FILE),
        content=_text("The whole content of the file"),
    ),
)

_EDIT = Tool(
    name="Edit",
    description=(
        "Replaces an exact text in a file of the workspace.\n\n"
        "- Read the file first. Give `old_string` exactly as in the file, indentation included, without "
        "the line numbers that Read puts before it.\n"
        "- `old_string` has to be unique in the file: add lines around it until it is, or set "
        "`replace_all` to change every place."
    ),
    input_schema=_object(
        ["file_path", "old_string", "new_string"],
        file_path=_text(_FILE),
        old_string=_text("The text to replace"),
        new_string=_text("What to put in its place, different from old_string"),
        replace_all=_flag("Replace every place where old_string is (default false)")
        | {"default": False},
    ),
)

_GLOB = Tool(
    name="Glob",
    description=(
        "Finds files by a pattern like `**/*.py` or `src/**/*.{ts,tsx}`; gives their paths, sorted.\n\n"
        "- `*` stays inside one folder, `**` goes through all of them. Symlinks are not followed and "
        "`.git` is passed over."
    ),
    input_schema=_object(
        ["pattern"],
        pattern=_text("The glob pattern, relative to the folder that is searched"),
        path=_text("The folder to search; left out: the workspace"),
    ),
    read_only=True,
    repeatable=True,
)

_GREP = Tool(
    name="Grep",
    description=(
        "Searches the contents of files with a regular expression (Python's syntax).\n\n"
        "- `output_mode` is `files_with_matches` (paths only, the default), `content` (the lines) or "
        "`count` (matching lines of each file). Results are sorted by path.\n"
        "- `glob` (`*.py`, `src/**`) and `type` (`py`, `js` …) choose the files.\n"
        "- A pattern is matched line by line unless `multiline` is set.\n"
        "- Binary files, symlinks and `.git` are passed over."
    ),
    input_schema=_object(
        ["pattern"],
        pattern=_text("The regular expression"),
        path=_text("The file or folder to search; left out: the workspace"),
        glob=_text("Only files that this glob pattern names"),
        type=_text("Only files of this type: py, js, ts, rust, go, java …"),
        output_mode={
            "type": "string",
            "enum": ["content", "files_with_matches", "count"],
            "description": "What to show (default files_with_matches)",
        },
        multiline=_flag("Let the pattern match across lines, and . match line ends"),
        head_limit=_number("The most lines of the result to show; 0: all", 0),
        **{
            "-i": _flag("Ignore case"),
            "-n": _flag("Show line numbers (content mode; default true)"),
            "-A": _number("Lines to show after each match (content mode)", 0),
            "-B": _number("Lines to show before each match (content mode)", 0),
            "-C": _number("Lines to show before and after each match (content mode)", 0),
        },
    ),
    read_only=True,
    repeatable=True,
)

BUILTIN: dict[str, Tool] = {tool.name: tool for tool in (_BASH, _READ, _WRITE, _EDIT, _GLOB, _GREP)}

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what the Messages API takes


def resolve_tools(
    names: Sequence[str], import_from: Path
) -> tuple[tuple[Tool, ...], tuple[tuple[str, str], ...]]:
    """Return the tools of ``names``, in order, and what is wrong with the others. A child process
    imports and describes ``package.module:function``, looked for in ``import_from``, the job file's
    folder, first."""
    environment = tool_environment(os.environ)
    tools: dict[str, Tool] = {}
    problems: list[tuple[str, str]] = []
    for name in names:
        try:
            tool = BUILTIN.get(name) or _own(name, import_from, environment)
            if tool.name in tools:
                raise Undescribed(f"there is already a tool with the name {tool.name} in the list")
            tools[tool.name] = tool
        except Undescribed as error:
            problems.append((name, str(error)))
    return tuple(tools.values()), tuple(problems)


def resolve_hooks(
    names: Sequence[str], import_from: Path
) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Return the functions that a job file names as hooks: by name, each as the job stores it, and what
    is wrong with the other names. See ``resolve_tools``."""
    environment = tool_environment(os.environ)
    found: dict[str, str] = {}
    problems: list[tuple[str, str]] = []
    for name in dict.fromkeys(names):
        try:
            source = OwnSource.named(name, import_from)
            if source is None:
                raise Undescribed("there is no such function: name it package.module:function")
            ask_child("look", source, environment)
            found[name] = str(source)
        except Undescribed as error:
            problems.append((name, str(error)))
    return found, tuple(problems)


def _own(name: str, import_from: Path, environment: Mapping[str, str]) -> Tool:
    builtin, source = (*BUILTIN, AGENT_TOOL), OwnSource.named(name, import_from)
    if source is None:
        raise Undescribed(
            f"there is no such tool: the builtin ones are {', '.join(builtin)}, "
            "and own tools are named package.module:function"
        )
    described = json.loads(ask_child("describe", source, environment))
    tool = Tool(**described, source=str(source))
    if tool.name in builtin:
        raise Undescribed(
            f"{tool.name} is the name of a builtin tool: call the function something else"
        )
    if not _TOOL_NAME.fullmatch(tool.name):
        raise Undescribed(
            f"{tool.name} cannot be a tool's name: letters, digits, _ and -, at most 64"
        )
    return tool
