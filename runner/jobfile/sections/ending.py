"""How a job's runs come to their end: the keys of ``verify`` and of ``output_schema``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from jsonschema import Draft202012Validator, SchemaError

from runner.core.text import read_json
from runner.core.workspace import OnFailure, Verify
from runner.errors import Problem
from runner.jobfile.content import json_problem, read_bytes
from runner.jobfile.lines import place
from runner.jobfile.section import Section, kind, shown

VERIFY_KEYS = ("verify", "on_failure", "verify_rounds", "verify_timeout")
SCHEMA_KEYS = ("output_schema", "output_schema_file")
MOST_ROUNDS = 1_000

# What the Messages API asks of a tool's input_schema beyond that it is a JSON Schema.
_NOT_AT_THE_TOP = ("oneOf", "anyOf", "allOf")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SchemaDraft:
    """The schema of runs' results as it stands in the job file, or the path of the file it is in."""

    value: Mapping[str, Any] | None = None
    file: str | None = None


def check_verify(top: Section, *, has_folder: bool) -> Verify | None:
    """What verifies a run, after noting what is wrong with it.

    Args:
        has_folder: whether the job has a workspace for the commands to run in.
    """
    if not top.has("verify"):
        for key in VERIFY_KEYS[1:]:
            if top.has(key):
                top.note("does nothing without verify; give that too", key)
    elif not has_folder:
        top.note("needs a folder to run in: add a [workspace]", "verify")
    default = Verify(commands=())
    on_failure = cast(OnFailure, top.choice("on_failure", get_args(OnFailure), default.on_failure))
    if on_failure == "fail" and top.has("verify_rounds"):
        top.note('does nothing with on_failure = "fail"; leave one of the two out', "verify_rounds")
    commands = top.commands("verify")
    verify = Verify(
        commands=commands,
        on_failure=on_failure,
        rounds=top.integer("verify_rounds", default.rounds, most=MOST_ROUNDS),
        timeout=top.seconds("verify_timeout") or default.timeout,
    )
    return verify if commands else None


def check_schema(top: Section) -> SchemaDraft | None:
    """The schema of runs' results, after noting what is wrong with it."""
    there = [key for key in SCHEMA_KEYS if top.has(key)]
    if not there:
        return None
    key = top.exactly_one(SCHEMA_KEYS, "")
    if key == "output_schema_file":
        return SchemaDraft(file=top.text(key))
    schema = top.section("output_schema")
    if key is None or schema is None:
        return SchemaDraft()
    if wrong := schema_problem(schema.values):
        schema.note(wrong)
    return SchemaDraft(value=schema.values)


def schema_of(
    draft: SchemaDraft | None, folder: Path
) -> tuple[Mapping[str, Any] | None, list[Problem]]:
    """The schema itself, read from its file if it is in one; None without one, or with problems.

    Args:
        folder: the job file's, to which the file is relative.
    """
    if draft is None or draft.file is None:
        return (draft.value if draft else None), []
    path = folder / draft.file
    schema: Any = None
    try:
        schema = read_json(read_bytes(path).decode("utf-8-sig"))
        problem = schema_problem(schema)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except RecursionError:
        problem = "is not JSON that can be read: nested too deeply"
    except ValueError as error:
        problem = f"is not JSON in UTF-8: {error}"
    if problem:
        return None, [Problem("output_schema_file", f"{path} {problem}")]
    return schema, []


def schema_problem(schema: Any) -> str | None:
    """Why a value is no JSON Schema that the results of runs can be held against, or None.

    It has to be one of an object (https://json-schema.org/draft/2020-12), complete in itself, and
    what the Messages API takes as a tool's ``input_schema``.
    """
    if not isinstance(schema, Mapping):
        return f"must be a JSON Schema of an object, not {kind(schema)}"
    if problem := json_problem(schema):
        return problem
    if schema.get("type") != "object":
        return 'must be a JSON Schema of an object: give it type = "object"'
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        at = place(*error.absolute_path)
        return f"is no JSON Schema: {f'at {at}: ' if at else ''}{_short(error.message)}"
    for keyword in _NOT_AT_THE_TOP:
        if keyword in schema:
            return f"has {keyword} at its top, which the API does not take: put it in a property"
    for name in schema.get("properties", {}):
        if not _PROPERTY.fullmatch(name):
            return (
                f"has the property {shown(name)}: the API takes letters, digits, '_', '.' and '-', "
                "at most 64"
            )
    return _wrong_reference(schema)


def _wrong_reference(schema: Mapping[str, Any]) -> str | None:
    for reference in _references(schema):
        if not reference.startswith("#"):
            return f"refers to {shown(reference)}, which is not in the schema: put it under $defs"
        if not _leads_somewhere(schema, reference[1:]):
            return f"refers to {shown(reference)}, and there is nothing: name a place such as #/$defs/x"
    try:
        Draft202012Validator(schema).is_valid({})
    except RecursionError:
        return "refers to itself without end"
    return None


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("$ref", "$dynamicRef") and isinstance(inner, str):
                yield inner
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def _leads_somewhere(schema: Any, pointer: str) -> bool:
    """Whether a JSON pointer (https://www.rfc-editor.org/rfc/rfc6901) names a part of a schema."""
    first, *steps = pointer.split("/")
    here = schema
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(here, list) and name.isdecimal() and int(name) < len(here):
            here = here[int(name)]
        elif isinstance(here, Mapping) and name in here:
            here = here[name]
        else:
            return False
    return not first and isinstance(here, Mapping | bool)


def _short(message: str) -> str:
    text = json.dumps(message, ensure_ascii=False)[1:-1] if "\n" in message else message
    return text if len(text) <= 300 else f"{text[:300]}…"
