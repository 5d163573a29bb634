"""The provider as a job file has it."""

from __future__ import annotations

import pytest

from tests.jobfile.conftest import Load, Problems

JOB = 'name = "a"\nmodel = "m"\nprompt = "p"\n'
BEDROCK = '[provider]\nname = "bedrock"\nregion = "eu-central-1"\n'
VERTEX = '[provider]\nname = "vertex"\nregion = "global"\nproject = "example.com:a-1"\n'


@pytest.mark.parametrize(
    ("text", "account", "billed_as"),
    [
        ("", "", "m"),
        (BEDROCK, "bedrock/eu-central-1", "m"),
        (VERTEX, "vertex/example.com:a-1/global", "global/m"),
    ],
)
def test_a_platform_s_region_and_project_are_the_account(
    load_text: Load, text: str, account: str, billed_as: str
) -> None:
    spec = load_text(JOB + text).spec
    assert (spec.account, spec.billed_as("m")) == (account, billed_as)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('provider = "bedrock"', 'region: is missing: name = "bedrock" needs it under [provider]'),
        (VERTEX.replace("project", "#"), 'project: is missing: name = "vertex" needs it'),
        ('[provider]\nregion = "us"', 'region: is only for name = "bedrock" or "vertex"'),
        (BEDROCK + 'project = "a"', 'line 7: provider.project: is only for name = "vertex"'),
        (
            BEDROCK.replace("eu-c", "a.b/#"),
            "line 6: provider.region: 'a.b/#entral-1' is not a region",
        ),
        (
            BEDROCK + '[model_options]\nspeed = "fast"',
            "model_options.speed: bedrock does not take it",
        ),
        (
            'lane = "batch"\n' + BEDROCK,
            'line 4: lane: is only for provider = "anthropic": "bedrock" has',
        ),
    ],
)
def test_what_does_not_go_with_a_provider_is_refused(
    problems_of: Problems, text: str, problem: str
) -> None:
    assert any(problem in found for found in problems_of(JOB + text))
