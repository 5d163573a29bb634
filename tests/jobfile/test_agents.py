"""``[agents.NAME]`` and ``[coordinator]``: what the sections become, and what is wrong with bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.core.agents import AgentType, Coordinator
from runner.core.budget import Limits
from runner.core.spec import JobSpec, spec_of
from runner.permissions import Rule

from .conftest import Load, Problems

TOP = 'model = "m"\nprompt = "Do it."\n'
JOB = f"""\
{TOP}tools = ["Read", "Agent", "tools:count"]
workspace = {{ path = "." }}

[agents.reviewer]
description = "Says what is wrong"
"""


def job(more: str, **top: object) -> str:
    """The job, with more in its only type, and other keys at its top."""
    keys = {"tools": ["Read", "Agent"], "workspace": {"path": "."}, **top}
    written = "\n".join(f"{key} = {toml(value)}" for key, value in keys.items())
    return f'{TOP}{written}\n[agents.reviewer]\ndescription = "d"\n{more}\n'


def toml(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(inner)}' for key, inner in value.items())} }}"
    return json.dumps(value)


def test_every_key_of_a_type_arrives(load_text: Load, tmp_path: Path) -> None:
    (tmp_path / "r.md").write_text("Be strict.")
    (tmp_path / "repo").mkdir()
    text = f"""\
{TOP}tools = ["Read", "Agent", "tools:count"]
workspace = {{ mode = "git", repo = "repo" }}

[agents.reviewer]
description = "Says what is wrong"
system_file = "r.md"
model = "priced"
tools = ["tools:count", "Read"]
workspace = "own"
snapshot = true

[agents.reviewer.permissions]
allow = ["Read(src/**)"]

[[agents.reviewer.permissions.deny]]
rule = "Read(.env)"
why = "secret"
match = ["Read(.env)"]

[agents.reviewer.output_schema]
type = "object"

[agents.reviewer.limits]
max_turns = 5
token_ceiling = 1000
working_time = "5m"
deadline = "1h"

[agents.tester]
description = "Tests"
"""
    spec = load_text(text).spec
    reviewer, tester = spec.agents
    assert reviewer == AgentType(
        name="reviewer",
        description="Says what is wrong",
        system="Be strict.",
        model="priced",
        tools=("count", "Read"),
        rules=(
            Rule("deny", "Read(.env)", "secret", "agents.reviewer"),
            Rule("allow", "Read(src/**)", origin="agents.reviewer"),
        ),
        workspace="own",
        snapshot=True,
        result_schema={"type": "object"},
        max_turns=5,
        token_ceiling=1000,
        working_time=300.0,
        deadline=3600.0,
    )
    assert tester == AgentType("tester", "Tests")
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_the_tool_agent_describes_the_types_and_keeps_its_place(load_text: Load) -> None:
    spec = load_text(f'{JOB}snapshot = true\n\n[agents.tester]\ndescription = "Tests"\n').spec
    assert [tool.name for tool in spec.tools] == ["Read", "Agent", "count"]
    agent = spec.tools[1]
    assert (agent.source, agent.read_only, agent.repeatable) == ("agent", False, False)
    assert agent.description.endswith("- `reviewer`: Says what is wrong\n- `tester`: Tests")
    properties = agent.input_schema["properties"]
    assert properties["agent_type"]["enum"] == ["reviewer", "tester"]
    assert "default true for `reviewer`, else false" in properties["snapshot"]["description"]
    assert agent.input_schema["required"] == ["description", "prompt", "agent_type"]


def test_the_tool_that_splits_a_task_comes_last(load_text: Load) -> None:
    text = f"""\
{JOB}
[coordinator]
agent = "reviewer"
most = 4

[output_schema]
type = "object"
"""
    spec = load_text(text).spec
    assert spec.coordinator == Coordinator("reviewer", 2, 4)
    assert [tool.name for tool in spec.tools][-2:] == ["submit_result", "split_task"]
    parts = spec.tools[-1].input_schema["properties"]["parts"]
    assert (spec.tools[-1].source, parts["minItems"], parts["maxItems"]) == ("split", 2, 4)


def test_a_type_may_be_started_by_the_coordinator_alone(load_text: Load) -> None:
    text = f'{TOP}[agents.worker]\ndescription = "Works"\n[coordinator]\nagent = "worker"\n'
    assert [tool.name for tool in load_text(text).spec.tools] == ["split_task"]


def test_rules_of_a_type_hold_in_copies_too(load_text: Load, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    rules = f"permissions = {{ deny = ['Read(/{tree}/a/**)'] }}"
    spec = load_text(job(rules, workspace={"mode": "copy", "path": "tree"})).spec
    assert [rule.text for rule in spec.agents[0].rules] == [f"Read(/{tree}/a/**)", "Read(/a/**)"]
    assert {rule.origin for rule in spec.agents[0].rules} == {"agents.reviewer"}


BAD_TYPES = [
    ("colour = 1", "agents.reviewer.colour: unknown key 'colour'"),
    ("max_turns = 1", "agents.reviewer.max_turns: unknown key 'max_turns' here; it belongs in"),
    ("model = 1", "agents.reviewer.model: must be a string, not an integer"),
    ('system = "a"\nsystem_file = "b"', "agents.reviewer.system_file: give only one of"),
    ('system_file = "none.md"', "agents.reviewer.system_file: "),
    (
        'tools = ["Bash"]',
        "agents.reviewer.tools[0]: 'Bash' is not a tool of this job, which has Read",
    ),
    (
        'tools = ["submit_result"]',
        "agents.reviewer.tools[0]: 'submit_result' is not a tool of this",
    ),
    ('tools = ["Read", "Read"]', "agents.reviewer.tools[1]: 'Read' is listed twice"),
    ('workspace = "copy"', 'agents.reviewer.workspace: must be "parent" or "own", not'),
    ('workspace = "own"', 'agents.reviewer.workspace: "own" is only for a [workspace] with mode'),
    ("snapshot = true\ntools = []", "agents.reviewer.snapshot: needs tools: the API refuses a"),
    ("snapshot = 1", "agents.reviewer.snapshot: must be true or false, not an integer"),
    ('output_schema = { type = "array" }', "agents.reviewer.output_schema: must be a JSON Schema"),
    ('output_schema_file = "x.json"', "agents.reviewer.output_schema_file: "),
    ("permissions = { maybe = [] }", "agents.reviewer.permissions.maybe: unknown key 'maybe'"),
    (
        'permissions = { allow = ["Bash(ls)"] }',
        "agents.reviewer.permissions.allow[0]: this job has no tool",
    ),
    ('permissions = { deny = ["Read("] }', "agents.reviewer.permissions.deny[0]: the rule 'Read('"),
    (
        'permissions = { allow = [{ rule = "Read(a)", match = ["Read(b)"] }] }',
        "agents.reviewer.permissions.allow[0].match[0]: the rule 'Read(a)' does not match",
    ),
    ('permissions = { deny = ["Agent(a b)"] }', "agents.reviewer.permissions.deny[0]: the rule"),
    ("limits = { max_turns = 0 }", "agents.reviewer.limits.max_turns: must be at least 1, not 0"),
    (
        "limits = { token_ceiling = 1.5 }",
        "agents.reviewer.limits.token_ceiling: must be an integer",
    ),
    ("limits = { deadline = 0 }", "agents.reviewer.limits.deadline: must be more than 0 seconds"),
    ('limits = { working_time = "1 x" }', "agents.reviewer.limits.working_time: must be a number"),
    ("limits = { cost_ceiling_usd = 1 }", "agents.reviewer.limits.cost_ceiling_usd: 'm' has no"),
    ("limits = { tool_timeout = 1 }", "agents.reviewer.limits.tool_timeout: unknown key"),
]


@pytest.mark.parametrize(("more", "expected"), BAD_TYPES)
def test_a_bad_type_is_one_problem_with_its_place_and_line(
    problems_of: Problems, more: str, expected: str
) -> None:
    (problem,) = problems_of(job(more))
    line, _, said = problem.partition(": ")
    assert said.startswith(expected)
    assert line.startswith("line ")
    assert int(line.removeprefix("line ")) in (7, 8)


def test_a_rule_for_an_unknown_type_is_a_problem(problems_of: Problems) -> None:
    text = job(
        """\
permissions = { ask = ["Agent(b)"] }
[permissions]
deny = ["Agent(a)", "Agent(reviewer)", "Agent"]
[[hooks.PreToolUse]]
matcher = "Agent(c)"
command = "x"
"""
    )
    said = "this job has no agent type"
    assert [problem.partition(": ")[2] for problem in problems_of(text)] == [
        f"agents.reviewer.permissions.ask[0]: {said} 'b'; it has reviewer",
        f"permissions.deny[0]: {said} 'a'; it has reviewer",
        f"hooks.PreToolUse[0].matcher: {said} 'c'; it has reviewer",
    ]


def test_a_type_is_a_table(problems_of: Problems) -> None:
    (problem,) = problems_of(f"{TOP}agents.reviewer = 1\n")
    assert problem.endswith(
        "agents.reviewer: must be a table, written [agents.reviewer], not an integer"
    )


def test_a_type_needs_a_description(problems_of: Problems) -> None:
    (problem,) = problems_of(JOB.replace("description", "#"))
    assert problem.startswith("line 6: agents.reviewer: the key description is missing")


def test_the_name_of_a_type_has_no_blanks(problems_of: Problems) -> None:
    (problem,) = problems_of(f'{JOB}\n[agents."a b"]\ndescription = "d"\n')
    assert problem.startswith("line 9: agents.'a b': 'a b' cannot be a name: letters, digits, '_'")


def test_the_tool_agent_needs_types_and_types_need_the_tool(problems_of: Problems) -> None:
    (untyped,) = problems_of(f'{TOP}tools = ["Agent"]\n')
    assert untyped == ("line 3: tools[0]: Agent has nothing to start: add a section [agents.NAME]")
    (unstarted,) = problems_of(JOB.replace('"Agent", ', ""))
    assert unstarted.startswith('line 6: agents.reviewer: nothing starts it: list "Agent" in tools')


COORDINATORS = [
    ("", "coordinator: the key agent is missing"),
    ('agent = "worker"', "coordinator.agent: there is no agent type 'worker'; there are"),
    ('agent = "reviewer"\nparts = 3', "coordinator.parts: unknown key 'parts'; known here: agent"),
    ('agent = "reviewer"\nfewest = 1', "coordinator.fewest: must be at least 2, not 1"),
    ('agent = "reviewer"\nmost = 9', "coordinator.most: must be at most 8, not 9"),
    ('agent = "reviewer"\nfewest = 5\nmost = 4', "coordinator.most: must be at least as many as"),
]


@pytest.mark.parametrize(("keys", "expected"), COORDINATORS)
def test_a_bad_coordinator_is_one_problem(problems_of: Problems, keys: str, expected: str) -> None:
    (problem,) = problems_of(f"{JOB}\n[coordinator]\n{keys}\n")
    assert problem.partition(": ")[2].startswith(expected)


@pytest.mark.parametrize(
    ("limits", "keys", "expected"),
    [
        (
            "max_agents_at_once = 4",
            "most = 5",
            "coordinator.most: must be at most limits.max_agents_at_once (4), not 5: all parts start",
        ),
        (
            "max_agents = 3",
            "most = 4",
            "coordinator.most: must be at most limits.max_agents (3), not 4",
        ),
        (
            "max_agents_at_once = 1",
            "",
            "coordinator: needs limits.max_agents_at_once to be at least 2, not 1: all parts",
        ),
        (
            "max_agents = 4",
            "fewest = 5",
            "coordinator.fewest: needs limits.max_agents to be at least 5, not 4",
        ),
    ],
)
def test_a_coordinator_has_no_more_parts_than_agents_may_run_at_once(
    problems_of: Problems, limits: str, keys: str, expected: str
) -> None:
    text = f'{JOB}\n[coordinator]\nagent = "reviewer"\n{keys}\n[limits]\n{limits}\n'
    (problem,) = problems_of(text)
    assert problem.partition(": ")[2].startswith(expected)


def test_the_limits_of_sub_agents_are_the_jobs_and_the_model_is_told(load_text: Load) -> None:
    limits = "max_agent_depth = 10\nmax_agents_at_once = 3\nmax_agents = 1_000"
    job = f'{JOB}\n[coordinator]\nagent = "reviewer"\n[limits]\n{limits}\n'
    spec = load_text(job).spec
    assert spec.limits == Limits(max_agent_depth=10, max_agents_at_once=3, max_agents=1_000)
    assert spec.coordinator == Coordinator("reviewer", 2, 3)
    tool, split = spec.tool("Agent"), spec.tool("split_task")
    assert tool is not None
    assert "side by side, 3 at a time" in tool.description
    assert split is not None
    assert split.input_schema["properties"]["parts"]["maxItems"] == 3
    assert spec_of(spec, "reviewer").limits == spec.limits


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max_agent_depth = 0", "limits.max_agent_depth: must be at least 1, not 0"),
        ("max_agent_depth = 11", "limits.max_agent_depth: must be at most 10, not 11"),
        ("max_agents_at_once = 101", "limits.max_agents_at_once: must be at most 100, not 101"),
        ("max_agents_at_once = -1", "limits.max_agents_at_once: must be at least 1, not -1"),
        ("max_agents = 1_001", "limits.max_agents: must be at most 1,000, not 1001"),
        ("max_agents = 2.0", "limits.max_agents: must be an integer, not a number"),
        ("max_agents = true", "limits.max_agents: must be an integer, not a boolean"),
        ("max_agent = 5", "limits.max_agent: unknown key 'max_agent'; did you mean max_agents?"),
    ],
)
def test_a_bad_limit_of_sub_agents_is_one_problem(
    problems_of: Problems, line: str, expected: str
) -> None:
    assert problems_of(f"{JOB}\n[limits]\n{line}\n") == [f"line 10: {expected}"]


@pytest.mark.parametrize(
    ("tool", "more", "expected"),
    [
        ("mine:split_task", "[coordinator]\nagent = 'reviewer'", "tools: split_task is how a"),
        (
            "mine:submit_result",
            "output_schema = { type = 'object' }",
            "agents.reviewer.output_schema: submit_result is how results",
        ),
        ("mine:Agent", "", "tools: 2 tools are called 'Agent'"),
    ],
)
def test_an_own_tool_cannot_have_the_name_of_a_built_in_one(
    problems_of: Problems, tool: str, more: str, expected: str
) -> None:
    (problem,) = problems_of(job(more, tools=["Agent", tool]))
    assert problem.partition(": ")[2].startswith(expected)


def test_the_model_of_a_type_has_to_fit_the_limits_of_the_job(problems_of: Problems) -> None:
    budget = "[limits]\nbudget_usd = 1\n"
    unpriced = job(f'model = "unknown"\n{budget}').replace('"m"', '"priced"')
    (problem,) = problems_of(unpriced)
    assert problem.startswith("line 7: agents.reviewer.model: 'unknown' has no price, so its cost")
    (problem,) = problems_of(job('model = "small"\n[limits]\nmax_output_tokens = 32000'))
    assert problem.startswith(
        "line 7: agents.reviewer.model: 'small' has a window of 50,000 tokens"
    )


def test_an_item_cannot_have_the_key_of_a_sub_agent(problems_of: Problems) -> None:
    items = '[items]\nlist = ["a", "a+x", "a+1", "b+1", "b+1+2"]\n'
    assert [problem.partition(": ")[2] for problem in problems_of(job(items))] == [
        "items.list[2]: the key 'a+1' is also the key of a sub-agent of the item 'a': choose another",
        "items.list[4]: the key 'b+1+2' is also the key of a sub-agent of the item 'b+1': choose another",
    ]


def test_an_item_of_a_scripted_job_cannot_have_a_key_that_begins_with_an_at_sign(
    problems_of: Problems, tmp_path: Path
) -> None:
    (tmp_path / "s.json").write_text('{"*": []}')
    text = job('[items]\nlist = ["a", "@a"]\n', provider="scripted", script="s.json")
    (problem,) = problems_of(text)
    assert problem.endswith(
        "items.list[1]: the key '@a' begins with '@', as do the keys of sub-agents' replies in a "
        "script: choose another"
    )


def test_replies_for_an_unknown_type_are_a_problem(
    problems_of: Problems, load_text: Load, tmp_path: Path
) -> None:
    script = tmp_path / "s.json"
    script.write_text('{"*": [], "@reviewer": [], "@revewer": []}')
    text = job("", provider="scripted", script="s.json")
    (problem,) = problems_of(text)
    assert problem.endswith(
        "script: s.json has replies under '@revewer', which is not an agent type: there are "
        "reviewer"
    )
    script.write_text('{"*": [], "@reviewer": [], "job+1": []}')
    assert load_text(text).spec.script == {"*": [], "@reviewer": [], "job+1": []}
