"""``[model_options]``: what Runner itself depends on in them. The rest is the API's to judge."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.core.budget import Limits
from runner.jobfile.content import json_problem
from runner.jobfile.lines import Part
from runner.jobfile.section import Section, kind, shown

RESERVED_OPTIONS = {
    "model": "set the key model at the top of the file",
    "messages": "Runner sends the run's own conversation",
    "system": "set the key system at the top of the file",
    "tools": "set the key tools at the top of the file",
    "max_tokens": "set limits.max_output_tokens",
    "stream": "Runner always streams",
}
_SECRET = "it would be stored with the job: set ANTHROPIC_API_KEY in the environment of the workers"
RESERVED_HEADERS = {
    "authorization": _SECRET,
    "proxy-authorization": _SECRET,
    "x-api-key": _SECRET,
    "cookie": _SECRET,
    "content-length": "Runner sends the request's own",
    "content-type": "Runner sends JSON",
    "transfer-encoding": "Runner sends the request whole",
}
_HEADER_OPTIONS = ("user_profile_id", "workspace_id")
# https://www.rfc-editor.org/rfc/rfc9110#section-5.1
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
# With this beta the budget is that of a whole turn and may be larger than one reply:
# https://docs.claude.com/en/docs/build-with-claude/extended-thinking#interleaved-thinking
_WIDE_BUDGET_BETA = "interleaved-thinking"


def check_options(top: Section, limits: Limits) -> Mapping[str, Any]:
    """The job's model options, after noting what is wrong with them."""
    options = top.section("model_options")
    if options is None:
        return {}
    for key, value in options.values.items():
        if problem := json_problem(value):
            options.note(problem, key)
    _refuse_reserved(options)
    for key in _HEADER_OPTIONS:
        if options.has(key):
            _check_header_value(options, options.values[key], key)
    _check_betas(options)
    _check_extra_headers(options)
    extra = options.section("extra_body")
    if extra is not None:
        _refuse_reserved(extra)
    for section in (options, extra):
        if section is not None:
            section.section("output_config")
            section.section("cache_control")
            _check_thinking(section, limits, _betas(options))
    return options.values


def _refuse_reserved(section: Section) -> None:
    for key, meant in RESERVED_OPTIONS.items():
        if section.has(key):
            section.note(f"is set by Runner: {meant}", key)


def _check_betas(options: Section) -> None:
    for index, beta in options.texts("betas"):
        if not (beta.isascii() and beta == beta.strip() and "," not in beta):
            options.note(f"{shown(beta)} is no name of a beta", "betas", index)


def _check_extra_headers(options: Section) -> None:
    headers = options.section("extra_headers")
    if headers is None:
        return
    for name, value in headers.values.items():
        if meant := RESERVED_HEADERS.get(name.lower()):
            headers.note(f"cannot be set here: {meant}", name)
        elif not _HEADER_NAME.fullmatch(name):
            headers.note(f"{shown(name)} is no name of an HTTP header", name)
        else:
            _check_header_value(headers, value, name)


def _check_header_value(section: Section, value: Any, *parts: Part) -> None:
    if not isinstance(value, str):
        section.note(f"must be a string, not {kind(value)}", *parts)
    elif not (value.isascii() and value.isprintable() and value == value.strip() and value):
        section.note("must be plain ASCII on one line, without blanks around it", *parts)


def _check_thinking(section: Section, limits: Limits, betas: str) -> None:
    thinking = section.section("thinking")
    if thinking is None or not thinking.has("budget_tokens"):
        return
    budget = thinking.values["budget_tokens"]
    if isinstance(budget, bool) or not isinstance(budget, int):
        thinking.note(f"must be an integer, not {kind(budget)}", "budget_tokens")
    elif budget >= limits.max_output_tokens and _WIDE_BUDGET_BETA not in betas:
        thinking.note(
            f"must be less than limits.max_output_tokens ({limits.max_output_tokens:,}), "
            f"not {shown(budget)}",
            "budget_tokens",
        )


def _betas(options: Section) -> str:
    """All that the options may say about betas, as one text to look in."""
    return " ".join(_strings([options.values.get("betas"), options.values.get("extra_headers")]))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | Mapping):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)
