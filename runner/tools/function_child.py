"""The child that holds an own function: describes it as a tool, looks whether it can be a hook, or runs
it once. The only place that imports it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError, validate_call

from runner.core.hooks import FOLDER_NAME
from runner.tools.host_process import Report
from runner.tools.own import DECLARED

_ARGUMENTS = re.compile(
    r"^(?:Args|Arguments|Parameters):[ \t]*\n((?:[ \t]+.*(?:\n|$)|\n)*)", re.MULTILINE
)
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


class Unusable(Exception):  # noqa: N818 - what is wrong with the tool, for who wrote it
    """The function cannot be a tool; the text says why."""


class InvalidInput(Exception):  # noqa: N818 - a result for the model
    """The input does not fit the function's type hints; the text says where."""


def main() -> None:
    """``describe``, ``look`` at, ``run`` as a tool or as a ``hook`` (the first argument) the function that
    the others name: its folder, its module, itself. What it is given is a JSON object on stdin."""
    report = Report()
    action, folder, module, name = sys.argv[1:]
    sys.path.insert(0, folder)
    try:
        given: Any = json.load(sys.stdin) if action in ("hook", "run") else name
        if action == "hook":
            os.environ[FOLDER_NAME] = given["cwd"]  # before the import, which may ask where it is
        function = getattr(importlib.import_module(module), name, None)
        if function is None:
            raise Unusable(f"the module {module} has no {name}")
        if not callable(function):
            raise Unusable(f"{module}.{name} is not a function")
        report.end("succeeded", _ACTIONS[action](function, given))
    except Unusable as error:
        report.end("failed", str(error))
    except InvalidInput as error:
        report.end("invalid_input", str(error))
    except (
        BaseException
    ) as error:  # whatever a user's code raises, SystemExit too, is for the model
        report.end("failed", _say(error))


def _describe(function: Callable[..., Any], name: str) -> str:
    documentation = inspect.getdoc(function)
    if not documentation or not isinstance(function.__doc__, str):
        raise Unusable("it has no docstring: the model is told what it says")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Unusable(f"the parameter {parameter.name} cannot be given by name")
        if parameter.annotation is parameter.empty:
            raise Unusable(f"the parameter {parameter.name} has no type hint")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, function))
        schema = adapter.json_schema()
    except Exception as error:  # pydantic raises many kinds for types that JSON cannot hold
        raise Unusable(f"its type hints cannot be put in a JSON schema: {_say(error)}") from error
    description, arguments = _parted(documentation)
    for argument, text in arguments.items():
        if argument in schema.get("properties", {}):
            schema["properties"][argument].setdefault("description", text)
    declared = getattr(function, DECLARED, {"read_only": False, "repeatable": False})
    told = {"name": name, "description": description, "input_schema": schema, **declared}
    return json.dumps(told)


def _parted(documentation: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its ``Args:`` section, and what that says of each argument."""
    section = _ARGUMENTS.search(documentation)
    if section is None:
        return documentation, {}
    arguments: dict[str, str] = {}
    current = None
    for line in inspect.cleandoc(section[1]).splitlines():
        if match := _ARGUMENT.match(line):
            current, arguments[match[1]] = match[1], match[2].strip()
        elif current is not None and line.strip():
            arguments[current] = f"{arguments[current]} {line.strip()}".strip()
    rest = documentation[: section.start()] + documentation[section.end() :]
    return rest.strip(), arguments


def _look(function: Callable[..., Any], _: str) -> str:
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        raise Unusable(f"it cannot be called with one argument, the event: {error}") from error
    return ""


def _as_hook(function: Callable[..., Any], told: dict[str, Any]) -> str:
    result = _ended(function(told))
    if result is None:
        return ""
    if not isinstance(result, dict):
        raise Unusable(f"it returned {type(result).__name__}: a hook returns a dict or None")
    # In ASCII: what is handed through from a model may have half of a surrogate pair, which is no UTF-8.
    return _as_json(result, ascii_only=True)


def _as_tool(function: Callable[..., Any], given: dict[str, Any]) -> str:
    """Validate the arguments by the function's type hints without calling it, as what it raises itself
    is another matter than input that does not fit; then call it."""

    @functools.wraps(function)
    def collect(*arguments: Any, **keywords: Any) -> Any:
        return arguments, keywords

    try:
        arguments, keywords = validate_call(collect)(**given)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise InvalidInput("; ".join(problems)) from error
    result = _ended(function(*arguments, **keywords))
    if result is None or isinstance(result, str):
        return result or ""
    return _as_json(result, ascii_only=False)


def _ended(result: Any) -> Any:
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _as_json(result: Any, *, ascii_only: bool) -> str:
    try:
        return json.dumps(result, ensure_ascii=ascii_only)
    except (TypeError, ValueError) as error:
        raise Unusable(f"it returned what is neither text nor JSON: {error}") from error


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_ACTIONS: dict[str, Callable[..., str]] = {
    "describe": _describe,
    "look": _look,
    "hook": _as_hook,
    "run": _as_tool,
}
