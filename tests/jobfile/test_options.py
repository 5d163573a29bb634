"""``[model_options]``: what could cross a limit, give a key away or fail at the first call."""

from __future__ import annotations

from typing import Any

import pytest

from runner.jobfile.check import check
from runner.jobfile.keys import RESERVED_OPTIONS
from runner.jobfile.values import RESERVED_HEADERS


def problems_of(options: dict[str, Any], **limits: int) -> list[str]:
    data = {"model": "m", "prompt": "Do it.", "model_options": options, "limits": limits}
    return [str(problem) for problem in check(data).problems]


@pytest.mark.parametrize("option", sorted(RESERVED_OPTIONS))
def test_options_that_runner_sets_are_refused_in_the_extra_body_too(option: str) -> None:
    (problem,) = problems_of({option: 1})
    assert problem.startswith(f"model_options.{option}: is set by Runner")
    (problem,) = problems_of({"extra_body": {option: 1}})
    assert problem.startswith(f"model_options.extra_body.{option}: is set by Runner")


@pytest.mark.parametrize("header", sorted(RESERVED_HEADERS))
def test_headers_with_a_secret_or_of_the_transport_are_refused(header: str) -> None:
    for name in (header, header.title()):
        (problem,) = problems_of({"extra_headers": {name: "sk-ant-secret"}})
        assert problem.startswith(f"model_options.extra_headers.{name}: cannot be set here")
        assert "sk-ant-secret" not in problem


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"extra_body": 3}, "extra_body: must be a table"),
        ({"extra_headers": 3}, "extra_headers: must be a table"),
        ({"extra_headers": {"x": 3}}, "extra_headers.x: must be a string, not an integer"),
        ({"extra_headers": {"x": "a\nb"}}, "extra_headers.x: must be plain ASCII on one line"),
        ({"extra_headers": {"x": "caf\u00e9"}}, "extra_headers.x: must be plain ASCII"),
        ({"extra_headers": {"a b": "c"}}, "'a b' is not an HTTP header name"),
        ({"betas": 5}, "betas: must be a list of strings, not an integer"),
        ({"betas": "abc"}, "betas: must be a list of strings, not a string"),
        ({"betas": ["a", 3]}, "betas[1]: must be a string, not an integer"),
        ({"betas": ["a,b"]}, "betas[0]: 'a,b' is not a beta name"),
        ({"betas": ["caf\u00e9"]}, "is not a beta name"),
        ({"user_profile_id": 3}, "user_profile_id: must be a string, not an integer"),
        ({"workspace_id": "a\nb"}, "workspace_id: must be plain ASCII on one line"),
        ({"output_config": 3, "effort": "low"}, "output_config: must be a table"),
        ({"extra_body": {"output_config": 3}}, "extra_body.output_config: must be a table"),
    ],
)
def test_an_option_that_would_fail_at_the_first_call_is_one_problem(
    options: dict[str, Any], expected: str
) -> None:
    (problem,) = problems_of(options)
    assert expected in problem


@pytest.mark.parametrize("nested", [False, True])
def test_thinking_must_fit_into_a_reply(nested: bool) -> None:
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 8000}}
    options = {"extra_body": thinking} if nested else thinking
    (problem,) = problems_of(options, max_output_tokens=8000)
    assert "thinking.budget_tokens: must be less than limits.max_output_tokens (8,000)" in problem
    assert problems_of(options, max_output_tokens=8001) == []


@pytest.mark.parametrize(
    "beta",
    [
        {"betas": ["interleaved-thinking-2025-05-14"]},
        {"extra_headers": {"anthropic-beta": "interleaved-thinking-2025-05-14"}},
    ],
)
def test_a_budget_of_interleaved_thinking_may_exceed_one_reply(beta: dict[str, Any]) -> None:
    thinking = {"type": "enabled", "budget_tokens": 20_000}
    assert problems_of({"thinking": thinking, **beta}, max_output_tokens=8000) == []


def test_other_options_are_passed_on() -> None:
    options = {
        "temperature": 1,
        "anything": [{"new": None}],
        "betas": ["context-1m-2025-08-07"],
        "extra_body": {"top_k": 5},
        "extra_headers": {"X-Team": "billing"},
        "workspace_id": "wrk_1",
        "output_config": {"effort": "high"},
    }
    top = check({"model": "m", "prompt": "Do it.", "model_options": options})
    assert (top.problems, top["model_options"].written) == ([], options)
