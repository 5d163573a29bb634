"""A job file, read and checked whole: everything that it names is looked at, and nothing created."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.core.conversation import Tool
from runner.core.permissions.language.copies import with_copies
from runner.core.prices import PriceList
from runner.core.spec import JobSpec, NewRun, Submission, Workspace
from runner.errors import Problem, SpecError
from runner.jobfile import items, prompts
from runner.jobfile.check import MOST_NAME_CHARACTERS, Draft, Text, check
from runner.jobfile.content import line_problem, read_bytes, text_problem
from runner.jobfile.lines import locate
from runner.jobfile.permissions import Expanded, expand
from runner.jobfile.script import CheckScript, load_script
from runner.jobfile.section import shown

# Takes the names under ``tools`` and the job file's folder, from which own tools are imported.
# Gives the tools in the order of the names, and (name, what is wrong with it) for each other name.
ResolveTools = Callable[[Sequence[str], Path], tuple[tuple[Tool, ...], tuple[tuple[str, str], ...]]]

_TOML_POSITION = re.compile(r" \(at line (\d+), column (\d+)\)$")


def load(
    path: Path,
    *,
    resolve_tools: ResolveTools,
    check_script: CheckScript,
    prices: PriceList,
) -> Submission:
    """Read a job file and everything that it names.

    Args:
        path: the TOML file. Paths in it are relative to its folder.
        resolve_tools: finds the tools by name.
        check_script: says what is wrong with the contents of a script file (scripted jobs only).
        prices: what models cost, and their windows: only what has a price can be limited in USD.

    Raises:
        SpecError: with every problem of the file, each with its place and line.
    """
    path = path.absolute()
    text, data = _read_toml(path)
    draft, problems = check(data)
    folder = path.parent
    workspace = _workspace(draft, folder, problems)
    tools = _tools(draft, folder, resolve_tools, problems)
    permissions = _permissions(draft, tools, folder, workspace, problems)
    name = _name(draft, path, problems)
    keyed = _items(draft, name, folder, workspace, problems)
    runs = _runs(draft, folder, keyed, problems)
    script = _script(draft, folder, keyed, check_script, problems)
    system = _text(draft.system, "system", folder, problems)
    problems += _bounds(draft, prices, problems)
    if problems:
        raise SpecError(str(path), _placed(problems, text))
    return Submission(
        source=str(path),
        text=text,
        runs=runs,
        notes=permissions.notes,
        spec=replace(
            _as_drafted(draft, name),
            system=system,
            tools=tools,
            rules=permissions.rules,
            workspace=workspace,
            script=script,
        ),
    )


def _as_drafted(draft: Draft, name: str) -> JobSpec:
    """What the file says by itself, without what it names."""
    return JobSpec(
        name=name,
        model=draft.model,
        provider=draft.provider,
        asking=draft.permissions.asking,
        limits=draft.limits,
        budget=draft.budget,
        context=draft.context,
        retry=draft.retry,
        model_options=draft.model_options,
        parallel_tools=draft.parallel_tools,
    )


def _read_toml(path: Path) -> tuple[str, Mapping[str, Any]]:
    def broken(message: str, line: int | None = None) -> SpecError:
        return SpecError(str(path), (Problem("", message, line),))

    try:
        text = read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise broken(f"cannot read this job file: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise broken("is not UTF-8 text, which TOML files are", line) from error
    try:
        return text, tomllib.loads(text)
    except RecursionError as error:
        raise broken("is not TOML that can be read: nested too deeply") from error
    except ValueError as error:
        position = _TOML_POSITION.search(str(error))
        words = _TOML_POSITION.sub("", str(error))
        if position is None:
            raise broken(f"is not valid TOML: {words}") from error
        message = f"is not valid TOML at column {position[2]}: {words}"
        raise broken(message, int(position[1])) from error


def _placed(problems: Sequence[Problem], text: str) -> tuple[Problem, ...]:
    """The problems with their lines, in the order of the file; those about what is missing first."""
    lines = locate(text)

    def line(place: str) -> int | None:
        while place and place not in lines:
            place = place[: max(place.rfind("."), place.rfind("["), 0)]
        return lines.get(place)

    placed = [replace(problem, line=line(problem.place)) for problem in problems]
    return tuple(sorted(placed, key=lambda problem: problem.line or 0))


def _workspace(draft: Draft, folder: Path, problems: list[Problem]) -> Workspace | None:
    if draft.workspace_path is None:
        return None
    path = folder / draft.workspace_path
    try:
        path = path.resolve()
        is_folder = path.is_dir()
    except (OSError, RuntimeError) as error:
        problems.append(Problem("workspace.path", f"cannot look at {path}: {error}"))
        return None
    if not is_folder:
        what = "is not a folder" if path.exists() else "does not exist"
        problems.append(Problem("workspace.path", f"{path} {what}"))
        return None
    if problem := text_problem(str(path)):
        problems.append(Problem("workspace.path", f"the folder's whole path {problem}"))
        return None
    return Workspace(str(path), draft.workspace_mode)


def _tools(
    draft: Draft, folder: Path, resolve_tools: ResolveTools, problems: list[Problem]
) -> tuple[Tool, ...]:
    index = {name: index for index, name in draft.tools}
    tools, unknown = resolve_tools(tuple(index), folder)
    problems += [Problem(f"tools[{index[name]}]", message) for name, message in unknown]
    counted = Counter(tool.name for tool in tools)
    problems += [
        Problem("tools", f"{number} tools are called {shown(name)}; the model could not choose")
        for name, number in counted.items()
        if number > 1
    ]
    return tools


def _permissions(
    draft: Draft,
    tools: Sequence[Tool],
    folder: Path,
    workspace: Workspace | None,
    problems: list[Problem],
) -> Expanded:
    names = {tool.name for tool in tools}
    listed = names | {name.rpartition(":")[2] for _, name in draft.tools}
    in_order = tuple(tool.name for tool in tools)
    expanded = expand(draft.permissions, in_order, tuple(sorted(listed)), folder)
    problems += expanded.problems
    if workspace is None or workspace.mode != "copy":
        return expanded
    written = os.path.normpath(folder / (draft.workspace_path or ""))
    home = os.path.expanduser("~")  # noqa: PTH111 (Path.expanduser raises where there is none)
    rules = with_copies(
        expanded.rules,
        (workspace.path, written),
        os.path.realpath(home) if Path(home).is_absolute() else None,
    )
    return replace(expanded, rules=tuple(rules))


def _bounds(draft: Draft, prices: PriceList, problems: Sequence[Problem]) -> list[Problem]:
    """What does not fit the job's models, as far as what it depends on has no problem of its own."""
    wrong = {problem.place for problem in problems}
    found: list[Problem] = []
    if not wrong & {"model", "context.window", "context.reserve", "limits.max_output_tokens"}:
        found += draft.bounds.window_problems(prices)
    if not any(place.startswith(("model", "provider", "context")) for place in wrong):
        found += draft.bounds.price_problems(prices)
    return found


def _name(draft: Draft, path: Path, problems: list[Problem]) -> str:
    if draft.name is None and (problem := line_problem(path.stem, MOST_NAME_CHARACTERS)):
        problems.append(Problem("name", f"is missing, and the file's own name {problem}"))
    return draft.name or path.stem


def _items(
    draft: Draft, name: str, folder: Path, workspace: Workspace | None, problems: list[Problem]
) -> list[items.Keyed]:
    if draft.items is None:
        return [(name, None)]
    if draft.items.source == "glob" and draft.workspace_path and workspace is None:
        return []
    root = Path(workspace.path) if workspace else folder
    keyed, found = items.read(draft.items, folder, root)
    problems += found
    return keyed


def _runs(
    draft: Draft, folder: Path, keyed: Sequence[items.Keyed], problems: list[Problem]
) -> tuple[NewRun, ...]:
    text = _text(draft.prompt, "prompt", folder, problems)
    if draft.prompt is None or text is None:
        return ()
    origin = "prompt" if draft.prompt.source == "text" else "prompt_file"
    has_items = draft.items is not None
    template, found = prompts.parse(text, origin, has_items=has_items)
    problems += found
    if template is None or found:
        return ()
    runs, found = prompts.render(template, origin, keyed, has_items=has_items)
    problems += found
    return runs


def _script(
    draft: Draft,
    folder: Path,
    keyed: Sequence[items.Keyed],
    check_script: CheckScript,
    problems: list[Problem],
) -> Mapping[str, Any] | None:
    if draft.provider != "scripted" or not draft.script:
        return None
    keys = [key for key, _ in keyed]
    script, found = load_script(folder / draft.script, check_script, keys)
    problems += found
    return script


def _text(text: Text | None, name: str, folder: Path, problems: list[Problem]) -> str | None:
    """The text itself, or None without one (or with a problem)."""
    if text is None or text.source == "text":
        return text.value if text else None
    path = folder / text.value
    content = ""
    try:
        content = read_bytes(path).decode().replace("\r\n", "\n")
        problem = text_problem(content) if content.strip() else "is empty"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    if problem:
        problems.append(Problem(f"{name}_file", f"{path} {problem}"))
        return None
    return content
