import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.budget import Limits
from runner.core.conversation import Tool
from runner.core.spec import JobSpec, Patience
from runner.core.workspace import Workspace
from runner.permissions import Rule

TEXT = st.text(max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=3)
SECONDS = st.floats(0.1, 1e6)
SPECS = st.builds(
    JobSpec,
    name=TEXT,
    model=TEXT,
    provider=st.sampled_from(["anthropic", "scripted"]),
    system=st.none() | TEXT,
    tools=st.lists(
        st.builds(Tool, TEXT, TEXT, OBJECTS, st.booleans(), st.booleans(), TEXT), max_size=3
    ).map(tuple),
    rules=st.lists(st.builds(Rule, st.sampled_from(["allow", "deny"]), TEXT), max_size=3).map(
        tuple
    ),
    limits=st.builds(
        Limits,
        st.integers(1, 99),
        st.integers(1, 10**9),
        st.integers(1, 99_000),
        SECONDS,
        st.none() | SECONDS,
        max_agent_depth=st.integers(1, 10),
        max_agents_at_once=st.integers(1, 100),
        max_agents=st.integers(1, 1_000),
    ),
    retry=st.builds(Patience, st.integers(1, 99), SECONDS),
    model_options=OBJECTS,
    parallel_tools=st.sampled_from(["safe", "all", "off"]),
    workspace=st.none() | st.builds(Workspace, TEXT, st.sampled_from(["shared", "copy"])),
    script=st.none() | OBJECTS,
)


@pytest.mark.slow
@given(SPECS)
def test_spec_comes_back_from_stored_json_as_it_was(spec):
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_spec_that_was_stored_without_limits_of_sub_agents_has_the_defaults():
    stored = JobSpec("j", "m").to_json()
    for name in ("max_agent_depth", "max_agents_at_once", "max_agents"):
        del stored["limits"][name]
    limits = JobSpec.from_json(stored).limits
    assert (limits.max_agent_depth, limits.max_agents_at_once, limits.max_agents) == (3, 8, 50)


def test_stored_order_of_tools_is_kept():
    names = ["Write", "Bash", "Read"]
    spec = JobSpec("j", "m", tools=tuple(Tool(name, "", {}) for name in names))
    stored = JobSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert [tool.name for tool in stored.tools] == names


def test_tool_is_found_by_its_exact_name():
    tool = Tool("Bash", "", {})
    spec = JobSpec("j", "m", tools=(tool,))
    assert spec.tool("Bash") is tool
    assert spec.tool("bash") is None


def test_changing_what_was_stored_never_changes_the_spec():
    spec = JobSpec("j", "m", model_options={"thinking": {"type": "adaptive"}})
    spec.to_json()["model_options"]["thinking"]["type"] = "changed"
    assert spec.model_options == {"thinking": {"type": "adaptive"}}
