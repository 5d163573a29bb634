"""Checks of a job file's values, and how messages quote them."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from runner.core.mcp import has_variable
from runner.core.text import KeyTwiceError, read_json
from runner.core.workspace import Accepted
from runner.jobfile.lines import Part, place

MOST_LEVELS = 50
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MOST_SECONDS = 366.0 * SECONDS["d"]
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT])(i?B)?", re.ASCII)
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])", re.ASCII)

# Of a tool's input_schema: https://docs.claude.com/en/docs/agents-and-tools/tool-use
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://|[^/]+:")
_URL_SCHEMES = ("https", "http", "ssh", "git", "file")
# https://www.rfc-editor.org/rfc/rfc9110#section-5.1
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# They become parts of an address; a project may begin with a domain.
_REGION = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_PROJECT = re.compile(r"([a-z][a-z0-9.-]*:)?[a-z0-9][a-z0-9-]*", re.ASCII)
_VARIABLE = re.compile(r"RUNNER_[A-Z0-9_]{1,100}", re.ASCII)
_SECRET = "it would be stored with the job: set ANTHROPIC_API_KEY in the environment of the workers"
_SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "cookie")
RESERVED_HEADERS = {
    **dict.fromkeys(_SECRET_HEADERS, _SECRET),
    "content-length": "Runner sends the request's own",
    "content-type": "Runner sends JSON",
    "transfer-encoding": "Runner sends the request whole",
}
ACCEPTED = get_args(Accepted)
_LONGEST_USER = 30  # a longer user name is a token: https://TOKEN@example.com/…


class BadValueError(ValueError):
    """A key cannot have this value; the message says why."""


def kind(value: Any) -> str:
    """Return the name of a TOML or JSON value's type, with its article."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    names = {str: "a string", int: "an integer", float: "a number", list: "a list"}
    return names.get(type(value), "a table" if isinstance(value, Mapping) else "a date or time")


def shown(value: Any) -> str:
    """Return a value as messages quote it: short, on one line, without control characters."""
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number of that size"
    text = value if isinstance(value, str) else str(value)
    short = text if len(text) <= 60 else f"{text[:60]}…"
    return repr(short) if isinstance(value, str) else short


def listed(words: Iterable[str], last: str = "and") -> str:
    """Return the words as a list in a sentence: ``a, b and c``."""
    *first, final = words
    return f"{', '.join(first)} {last} {final}" if first else final


def seconds_in(text: str) -> float:
    """Return the seconds of a duration such as ``30m``, and NaN for any other text."""
    match = DURATION.fullmatch(text.strip())
    return float(match[1]) * SECONDS[match[2]] if match else math.nan


def bytes_in(text: str) -> int | None:
    """Return the bytes of a size such as ``4G`` (2**30 each), and None for any other text."""
    match = SIZE.fullmatch(text.strip())
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file that a job names. Raises ``OSError``, also if it is no regular
    file: reading a pipe might never end."""

    def open_at_once(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)  # opening a pipe waits for its writer

    with open(path, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read()


def read_text(path: Path) -> str:
    """Return a text that a job names the file of. Raises ``BadValueError``."""
    try:
        text = read_bytes(path).decode().replace("\r\n", "\n")
        wrong = text_problem(text) if text.strip() else "is empty"
    except OSError as error:
        wrong = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        wrong = "is not UTF-8 text"
    if wrong:
        raise BadValueError(f"{path} {wrong}")
    return text


def read_json_file(path: Path, *, once: bool = False) -> Any:
    """Return the value of a JSON file; ``once`` refuses doubled keys. Raises ``BadValueError``."""
    try:
        return read_json(read_bytes(path).decode("utf-8-sig"), once=once)
    except OSError as error:
        wrong = f"cannot be read: {error.strerror or error}"
    except RecursionError:
        wrong = "is not JSON that can be read: nested too deeply"
    except KeyTwiceError as error:
        wrong = f"has the key {shown(error.key)} twice in one object: leave one"
    except ValueError as error:
        wrong = f"is not JSON in UTF-8: {error}"
    raise BadValueError(f"{path} {wrong}")


def text_problem(text: str) -> str | None:
    """Return why a database or the API cannot take a text, or None."""
    if "\0" in text:
        return "holds a NUL character (U+0000); take it out"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"holds half a surrogate pair (U+{ord(text[error.start]):04X}), so it is not valid Unicode "
            "text; a file name with bytes that are not UTF-8 shows up like this"
        )
    return None


def line_problem(text: str, most: int) -> str | None:
    """Return why a text is not one line of at most ``most`` characters, or None."""
    if not text.strip():
        return "is empty"
    if len(text) > most:
        return f"has {len(text):,} characters; at most {most} are allowed"
    if problem := text_problem(text):
        return problem
    if not text.isprintable():
        return "holds a line break or a control character; it has to be one line of plain text"
    return None


def json_problem(value: Any, path: tuple[Part, ...] = (), *, any_text: bool = False) -> str | None:
    """Return why a value from TOML or JSON, at a place for the message, cannot be stored as JSON,
    or None; ``any_text`` accepts NULs and lone surrogates in strings."""

    def at(problem: str) -> str:
        return f"{place(*path)} {problem}" if path else problem

    if len(path) > MOST_LEVELS:
        return f"is nested more than {MOST_LEVELS} levels deep"
    if isinstance(value, str):
        problem = None if any_text else text_problem(value)
        return at(problem) if problem else None
    if isinstance(value, float) and not math.isfinite(value):
        return at(f"is {value}, which JSON has no word for")
    if isinstance(value, int) and abs(value) >= 2**64:
        return at("is a number of more than 64 bits; write it as a string")
    if value is None or isinstance(value, int | float):
        return None
    if not isinstance(value, dict | list):
        return at(f"is a {type(value).__name__}, which JSON has no word for; write it as a string")
    steps: Iterable[tuple[Part, Any]] = (
        value.items() if isinstance(value, dict) else enumerate(value)
    )
    for step, inner in steps:
        if isinstance(step, str) and not any_text and (problem := text_problem(step)):
            return at(f"has a key that {problem}")
        if problem := json_problem(inner, (*path, step), any_text=any_text):
            return problem
    return None


def is_url(text: str) -> bool:
    """True if git takes a repository's place for a URL: also ``host:path``, but not a path that begins
    with a slash or a dot (https://git-scm.com/docs/git-clone#_git_urls)."""
    return _URL.match(text) is not None


def repository_problem(text: str) -> str | None:
    """Return why a text is not a path or URL of a repository, or None."""
    if text.startswith("-"):
        return "cannot begin with '-': write ./ before a path"
    scheme, mark, _ = text.partition("://")
    if not (mark and is_url(text)):
        return None
    if scheme.lower() not in _URL_SCHEMES:
        return f"must begin with one of {', '.join(_URL_SCHEMES)}, not {shown(scheme)}"
    try:
        parts = urlsplit(text)
    except ValueError as error:
        return f"is not a URL: {error}"
    is_token = scheme.lower().startswith("http") and len(parts.username or "") > _LONGEST_USER
    if parts.password is not None or is_token:
        return (
            "holds a password, which would be stored with the job: take it out and let git find it "
            "(git help credentials)"
        )
    return None


def ref_problem(text: str) -> str | None:
    """Return why a text is not the name of a branch, tag or commit, or None."""
    return f"{shown(text)} is not a branch, tag or commit" if text.startswith("-") else None


def pattern_problem(text: str) -> str | None:
    """Return why a text is not a pattern of files below the workspace's folder, or None."""
    if not text.startswith(("/", ":", "-")) and ".." not in text.split("/"):
        return None
    return (
        f"{shown(text)} must be a pattern of files in the workspace: relative to its folder, "
        "without '..'"
    )


# Each of these returns why a value that a key has cannot be used, or None.


def _named_as(pattern: re.Pattern[str], what: str) -> Callable[[str], str | None]:
    return lambda name: None if pattern.fullmatch(name) else f"{shown(name)} is not a {what} name"


region_problem, project_problem = _named_as(_REGION, "region"), _named_as(_PROJECT, "project")


def beta_problem(name: str) -> str | None:
    is_name = name.isascii() and name == name.strip() and "," not in name
    return None if is_name else f"{shown(name)} is not a beta name"


def variable_problem(name: str) -> str | None:
    if _VARIABLE.fullmatch(name):
        return None
    return (
        "must be the name of an environment variable that begins with RUNNER_, which tools do not see: "
        "an address or key itself would be stored with the job"
    )


def accepted_problem(value: Any) -> str | None:
    wanted = ", ".join(ACCEPTED)
    return None if value in ACCEPTED else f"must be one of {wanted}, not {shown(value)}"


def instructions_problem(value: Any) -> str | None:
    is_one = isinstance(value, bool) or value == "follow"
    return None if is_one else f'must be true, false or "follow", not {shown(value)}'


def items_problem(value: Any) -> str | None:
    if not isinstance(value, list):
        return "must be a list of strings or tables"
    return None if value else "is empty: give at least one item"


def script_text_problem(value: Any) -> str | None:
    is_text = isinstance(value, str) and value.strip()
    return None if is_text else "must be a text that is not blank"


def mcp_text_problem(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"must be a string, not {kind(value)}"
    return text_problem(value)


def mcp_variable_problem(name: str, value: Any) -> str | None:
    if not _VARIABLE_NAME.fullmatch(name):
        return f"{shown(name)} cannot be the name of a variable"
    return mcp_text_problem(value)


def header_value_problem(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"must be a string, not {kind(value)}"
    if value and value.isascii() and value.isprintable() and value == value.strip():
        return None
    return "must be plain ASCII on one line, without blanks around it"


def header_problem(
    name: str, value: Any, reserved: Mapping[str, str] = RESERVED_HEADERS
) -> str | None:
    """Return why a header cannot be sent, or None; ``reserved`` ones are set by Runner."""
    if meant := reserved.get(name.lower()):
        return f"cannot be set here: {meant}"
    if not _HEADER_NAME.fullmatch(name):
        return f"{shown(name)} is not an HTTP header name"
    return header_value_problem(value)


def mcp_header_problem(name: str, value: Any) -> str | None:
    if wrong := header_problem(name, value, {}):
        return wrong
    if name.lower() not in _SECRET_HEADERS or has_variable(value):
        return None
    return "would be stored with the job: name a variable, as in 'Bearer ${TOKEN}'"


def schema_problem(schema: Any) -> str | None:
    """Return why a value is no JSON Schema (https://json-schema.org/draft/2020-12) for results: it
    must be of an object, complete in itself, and accepted by the Messages API as an
    ``input_schema``; or None."""
    from jsonschema import Draft202012Validator, SchemaError  # late: slow to import
    from referencing import Registry, exceptions
    from referencing.jsonschema import DRAFT202012

    if not isinstance(schema, Mapping):
        return f"must be a JSON Schema of an object, not {kind(schema)}"
    if problem := json_problem(schema):
        return problem
    if schema.get("type") != "object":
        return 'must be a JSON Schema of an object: give it type = "object"'
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        at = f"at {place(*error.absolute_path)}: " if error.absolute_path else ""
        message = " ".join(error.message.split())
        return f"is not a JSON Schema: {at}{message[:300]}{'…' if len(message) > 300 else ''}"
    for keyword in ("oneOf", "anyOf", "allOf"):
        if keyword in schema:
            return f"has {keyword} at its top, which the API does not take: put it in a property"
    for name in schema.get("properties", {}):
        if not _PROPERTY.fullmatch(name):
            return (
                f"has the property {shown(name)}: the API takes letters, digits, '_', '.' and '-', "
                "at most 64"
            )
    resource = DRAFT202012.create_resource(schema)
    resolver = Registry().with_resource("", resource).resolver()
    for reference in _references(schema):
        if not reference.startswith("#"):
            return f"refers to {shown(reference)}, which is not in the schema: put it under $defs"
        try:
            found = resolver.lookup(reference).contents
        except exceptions.Unresolvable:
            found = None
        if not isinstance(found, Mapping | bool):
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
