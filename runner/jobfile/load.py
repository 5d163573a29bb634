"""A job file, read and checked whole: everything that it names is looked at, and nothing created."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.core.prices import PriceList
from runner.core.spec import JobSpec, NewRun, Submission
from runner.core.workspace import LookAtRepository, Workspace
from runner.errors import Problem, SpecError
from runner.jobfile import items, prompts
from runner.jobfile.check import MOST_NAME_CHARACTERS, Draft, check
from runner.jobfile.content import line_problem, read_bytes
from runner.jobfile.lines import locate, place
from runner.jobfile.means import Means, ResolveTools, find_means
from runner.jobfile.script import CheckScript, load_script
from runner.jobfile.sections.hooks import ResolveHooks
from runner.jobfile.source import Source, look_at_source, rules_in_copies
from runner.jobfile.texts import read_text

_TOML_POSITION = re.compile(r" \(at line (\d+), column (\d+)\)$")


def load(
    path: Path,
    *,
    resolve_tools: ResolveTools,
    resolve_hooks: ResolveHooks,
    check_script: CheckScript,
    look_at_repository: LookAtRepository,
    prices: PriceList,
) -> Submission:
    """Read a job file and everything that it names.

    Args:
        path: the TOML file. Paths in it are relative to its folder.
        resolve_tools: finds the tools by name.
        resolve_hooks: finds the functions that are hooks.
        check_script: says what is wrong with the contents of a script file (scripted jobs only).
        look_at_repository: says what a repository holds and what is wrong with it (mode "git" only).
        prices: what models cost, and their windows: only what has a price can be limited in USD.

    Raises:
        SpecError: with every problem of the file, each with its place and line.
    """
    path = path.absolute()
    text, data = _read_toml(path)
    draft, problems = check(data)
    folder = path.parent
    name = _name(draft, path, problems)
    source = look_at_source(draft.workspace, name, folder, look_at_repository, problems)
    means = find_means(draft, folder, source, (resolve_tools, resolve_hooks), problems)
    keyed = _items(draft, name, folder, source, problems)
    runs = _runs(draft, folder, keyed, problems)
    script = _script(draft, folder, keyed, check_script, problems)
    system = read_text(draft.system, ("system",), folder, problems)
    problems += _bounds(draft, prices, problems)
    if problems:
        raise SpecError(str(path), _placed(problems, text))
    return Submission(
        source=str(path),
        text=text,
        runs=runs,
        notes=(*means.notes, *source.notes),
        spec=replace(
            _as_drafted(draft, name, means),
            system=system,
            workspace=_workspace(draft, source, folder),
            script=script,
        ),
    )


def _as_drafted(draft: Draft, name: str, means: Means) -> JobSpec:
    """What the file says by itself, with what runs work with, and without what else it names."""
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
        verify=draft.verify,
        tools=means.tools,
        rules=means.rules,
        agents=means.agents,
        hooks=means.hooks,
        coordinator=draft.agents.coordinator,
        instructions=draft.instructions,
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


def _workspace(draft: Draft, source: Source, folder: Path) -> Workspace | None:
    workspace = source.workspace
    if workspace is None:
        return None
    external = rules_in_copies(workspace.external, workspace, draft.workspace, folder)
    return replace(workspace, external=external)


def _bounds(draft: Draft, prices: PriceList, problems: Sequence[Problem]) -> list[Problem]:
    """What does not fit the job's models, as far as what it depends on has no problem of its own."""
    wrong = {problem.place for problem in problems}
    found: list[Problem] = []
    if not wrong & {"model", "context.window", "context.reserve", "limits.max_output_tokens"}:
        found += draft.bounds.window_problems(prices)
    if not any(place.startswith(("model", "provider", "context")) for place in wrong):
        found += draft.bounds.price_problems(prices)
    for each in draft.agents.types:
        needed = (place("agents", each.name), "model", "provider", "context", "limits")
        if not any(at.startswith(needed) for at in wrong):
            found += draft.bounds.agent_problems(each.agent, prices)
    return found


def _name(draft: Draft, path: Path, problems: list[Problem]) -> str:
    if draft.name is None and (problem := line_problem(path.stem, MOST_NAME_CHARACTERS)):
        problems.append(Problem("name", f"is missing, and the file's own name {problem}"))
    return draft.name or path.stem


def _items(
    draft: Draft, name: str, folder: Path, source: Source, problems: list[Problem]
) -> list[items.Keyed]:
    keyed, found = _keyed(draft, name, folder, source)
    script = draft.provider == "scripted"
    has_agents = bool(draft.agents.types)
    problems += found or items.key_problems(
        draft.items, keyed, scripted=script, has_agents=has_agents
    )
    return keyed


def _keyed(
    draft: Draft, name: str, folder: Path, source: Source
) -> tuple[list[items.Keyed], list[Problem]]:
    if draft.items is None:
        return [(name, None)], []
    if draft.items.source == "glob" and source.folder is None and source.files is None:
        return [], []
    root = source.files if source.folder is None else source.folder
    return items.read(draft.items, folder, root or ())


def _runs(
    draft: Draft, folder: Path, keyed: Sequence[items.Keyed], problems: list[Problem]
) -> tuple[NewRun, ...]:
    text = read_text(draft.prompt, ("prompt",), folder, problems)
    prompt_from = "prompt_file" if draft.prompt and draft.prompt.source == "file" else "prompt"
    prompts_of = _rendered(draft, text, prompt_from, "prompt", keyed, problems)
    message = draft.workspace.commit_message if draft.workspace else None
    messages = _rendered(
        draft, message, "workspace.commit_message", "commit message", keyed, problems
    )
    if problems:
        return ()
    return tuple(
        NewRun(key, item, prompt, message)
        for (key, item), prompt, message in zip(
            keyed, prompts_of, messages or [""] * len(keyed), strict=True
        )
    )


def _rendered(
    draft: Draft,
    text: str | None,
    origin: str,
    what: str,
    keyed: Sequence[items.Keyed],
    problems: list[Problem],
) -> tuple[str, ...]:
    """A template's text for each item; nothing without a template, or with problems."""
    if text is None:
        return ()
    has_items = draft.items is not None
    template, found = prompts.parse(text, origin, has_items=has_items)
    problems += found
    if template is None or found:
        return ()
    texts, found = prompts.render(template, origin, keyed, has_items=has_items, what=what)
    problems += found
    return texts


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
    types = [each.name for each in draft.agents.types]
    script, found = load_script(folder / draft.script, check_script, keys, types)
    problems += found
    return script
