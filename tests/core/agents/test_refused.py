"""Calls for sub-agents that start none, as the job does not let them."""

from __future__ import annotations

import pytest

from runner.core.budget import Limits
from runner.core.entries import ToolFinished
from runner.core.run import Waiting
from runner.core.steps import CallModel
from tests.core.agents.family import Parent, asks
from tests.core.story import outcome_of

CHILDREN = Waiting("children")


@pytest.mark.parametrize("limits", [Limits(), Limits(max_agent_depth=1), Limits(max_agent_depth=5)])
def test_a_run_at_the_greatest_depth_starts_none(limits):
    parent = Parent(limits, depth=limits.max_agent_depth)
    assert isinstance(parent.ask(asks()), CallModel)
    assert "this part of the work yourself" in parent.results()["a0"]
    assert not parent.started
    above = Parent(limits, depth=limits.max_agent_depth - 1)
    assert outcome_of(above.ask(asks())) == CHILDREN


@pytest.mark.parametrize(
    ("limits", "told"), [(Limits(), "50 sub-agents"), (Limits(max_agents=2), "2 sub-agents")]
)
def test_a_full_tree_gives_error_results_past_its_limit(limits, told):
    parent = Parent(limits, tree_size=limits.max_agents - 2)
    assert outcome_of(parent.ask(asks(), asks(), asks())) == CHILDREN
    assert len(parent.started) == 2
    finished = [entry for entry in parent.entries if isinstance(entry, ToolFinished)]
    assert [(entry.index, entry.result.outcome) for entry in finished] == [(2, "failed")]
    assert told in finished[0].result.content


def test_an_unknown_type_is_told_the_types_that_there_are():
    parent = Parent()
    parent.ask(asks("nobody"))
    assert parent.results()["a0"] == (
        "Unknown type of sub-agent 'nobody'. Types: reviewer, tester."
    )


def test_a_blank_prompt_starts_nothing():
    parent = Parent()
    parent.ask(asks(prompt=" \n"))
    assert "must not be blank" in parent.results()["a0"]
    assert not parent.started
