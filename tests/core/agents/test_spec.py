"""What a sub-agent of a type has of its job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.agents import AgentType, Coordinator
from runner.core.budget import Limits
from runner.core.context import Context
from runner.core.spec import spec_of
from runner.core.workspace import Verify, Workspace, result_tool
from tests.core.agents.family import SPLIT, TYPES, WITH_AGENTS
from tests.core.story import a_spec

WRITER = AgentType(
    "writer",
    "Writes.",
    system="Write well.",
    model="another-model",
    tools=("Edit", "Read"),
    max_turns=3,
    token_ceiling=1_000,
    cost_ceiling_usd=0.1,
    working_time=10.0,
    deadline=20.0,
)
JOB = a_spec(
    tools=(*WITH_AGENTS, result_tool({"type": "object"}), SPLIT),
    agents=(*TYPES, WRITER),
    system="The job's.",
    coordinator=Coordinator("writer"),
    verify=Verify(("make test",)),
    limits=Limits(max_output_tokens=5_000, tool_timeout=7.0),
    context=Context(window=50_000, keep_messages=4),
)


def names(spec):
    return [tool.name for tool in spec.tools]


def test_the_run_of_an_item_has_the_jobs_own_spec():
    assert spec_of(JOB) is JOB


def test_a_type_that_says_nothing_has_what_the_job_has():
    child = spec_of(JOB, "reviewer")
    assert (child.model, child.system, child.limits) == (JOB.model, "The job's.", JOB.limits)
    assert child.context == JOB.context
    assert names(child) == [tool.name for tool in WITH_AGENTS]


def test_no_child_splits_the_task_or_verifies_it_or_submits_its_result():
    child = spec_of(JOB, "reviewer")
    assert child.coordinator is None
    assert child.verify is None
    assert child.result_tool is None
    assert not {"split_task", "submit_result"} & set(names(child))


def test_a_type_has_its_own_system_prompt_model_and_limits():
    child = spec_of(JOB, "writer")
    assert (child.model, child.system) == ("another-model", "Write well.")
    assert child.limits == Limits(3, 1_000, 5_000, 7.0, 20.0, 10.0, 0.1)
    assert child.context == Context(keep_messages=4)  # the window was another model's


def test_the_tools_of_a_type_stand_in_the_order_of_the_job():
    assert names(spec_of(JOB, "writer")) == ["Read", "Edit"]


def test_a_child_of_a_child_has_no_tool_that_the_one_above_it_lacks():
    assert names(spec_of(JOB, "writer", "reviewer")) == ["Read", "Edit"]
    assert spec_of(JOB, "writer", "reviewer").model == JOB.model


def test_a_type_with_a_schema_submits_a_result_of_its_own():
    schema = {"type": "object", "properties": {"verdict": {"type": "string"}}}
    job = replace(JOB, agents=(replace(WRITER, result_schema=schema),))
    tool = spec_of(job, "writer").result_tool
    assert tool is not None
    assert tool.input_schema == schema
    assert names(spec_of(job, "writer"))[-1] == "submit_result"


@pytest.mark.parametrize("mode", ["copy", "git", "shared", "none"])
def test_who_works_in_the_parents_folder_records_nothing_of_it(mode):
    job = replace(JOB, workspace=Workspace("/repo", mode))
    child = spec_of(job, "reviewer")
    assert not child.is_recorded
    assert child.workspace is not None
    assert child.workspace.mode == ("shared" if mode in ("copy", "git") else mode)
    own = spec_of(replace(job, agents=(replace(WRITER, workspace="own"),)), "writer")
    assert own.workspace == job.workspace


def test_a_type_that_the_job_lacks_is_an_error_that_names_both():
    with pytest.raises(LookupError, match="'a job' has no agent type 'nobody'"):
        spec_of(JOB, "reviewer", "nobody")
