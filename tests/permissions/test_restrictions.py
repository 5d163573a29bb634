"""A sub-agent may do no more than whoever started it, whatever its type's rules say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.permissions import Answer, Request, ResolvedPath, Rule, digest_of
from runner.permissions.decisions import Authorization, Policy, evaluate, evaluate_each, may_touch
from runner.permissions.suggestions import Suggestion, suggest

from .test_decisions import SETTING, policy
from .test_properties import INPUTS, PATHS, POLICIES, RANK, RULES, SETTINGS, SIMPLE, TEXTS, TOOLS
from .test_properties import SETTING as ANY_SETTING

AGENTS = ("reviewer", "tester", "writer")
AGENT_TEXTS = st.sampled_from(["Agent", "Agent(reviewer)", "Agent(tester)", "Agent(", "*"])
LAYERS = st.lists(
    RULES | st.lists(st.builds(Rule, st.sampled_from(["allow", "ask", "deny"]), AGENT_TEXTS)),
    min_size=1,
    max_size=3,
)
CALLS = st.one_of(
    st.builds(lambda command: ("Bash", {"command": command}), SIMPLE),
    st.builds(
        lambda agent: ("Agent", {"agent_type": agent}), st.sampled_from((*AGENTS, "", "x y"))
    ),
    st.tuples(TOOLS, INPUTS),
)


def lineage(base: Policy, layers: list[list[Rule]]) -> list[Policy]:
    """What holds for a run, for its child, for the child of that, and so on."""
    found = [base]
    for agent_type, rules in zip(AGENTS, layers, strict=False):
        found.append(found[-1].restricted(agent_type, rules))
    return found


def restricted(base: Policy, *texts: str, agent_type: str = "reviewer") -> Policy:
    return base.restricted(agent_type, policy(*texts).rules)


def bash(rules: Policy, command: str):
    return evaluate(rules, Request("Bash", {"command": command}, SETTING))


@pytest.mark.slow
@settings(max_examples=400)
@given(POLICIES, LAYERS, CALLS, SETTINGS)
@example(
    Policy((Rule("deny", "Bash(rm *)"),)),
    [[Rule("allow", "Bash")]],
    ("Bash", {"command": "rm x"}),
    ANY_SETTING,
)
@example(
    Policy((Rule("ask", "Agent"),)),
    [[Rule("allow", "Agent")]],
    ("Agent", {"agent_type": "tester"}),
    ANY_SETTING,
)
@example(
    Policy((Rule("allow", "Bash"),)),
    [[], [Rule("allow", "Read")]],
    ("Bash", {"command": "ls"}),
    ANY_SETTING,
)
def test_a_child_may_never_do_more_than_its_parent(base, layers, call, context):
    parent, *children = lineage(base, layers)
    request = Request(*call, context)
    allowed = evaluate(parent, request)
    for child in children:
        decision = evaluate(child, request)
        assert RANK[decision.effect] <= RANK[allowed.effect]
        assert not allowed.is_final or decision.is_final
        allowed = decision


@pytest.mark.slow
@given(POLICIES, LAYERS, CALLS, SETTINGS)
def test_a_deny_and_an_ask_of_anyone_above_hold_for_a_child(base, layers, call, context):
    request = Request(*call, context)
    decision = evaluate(lineage(base, layers)[-1], request)
    for rules in (base.rules, *layers):
        denied = evaluate(Policy(tuple(r for r in rules if r.effect == "deny")), request)
        assert not denied.is_final or decision.is_final
        asking = Policy(tuple(replace(r, origin="job") for r in rules if r.effect == "ask"), "ask")
        asked = bool(evaluate(asking, request).matched_rules)
        remembered = any(rule.origin == "remembered" for rule in base.rules)
        assert not asked or remembered or decision.effect != "allow"


@pytest.mark.slow
@given(POLICIES, LAYERS, CALLS, SETTINGS)
def test_where_a_type_has_allow_rules_they_must_allow_a_call(base, layers, call, context):
    request = Request(*call, context)
    decision = evaluate(lineage(base, layers)[-1], request)
    for rules in layers:
        has_allow = any(rule.effect == "allow" for rule in rules)
        allows = Policy(tuple(r for r in rules if r.effect == "allow"))
        if has_allow and evaluate(allows, request).effect == "deny":
            remembered = any(rule.origin == "remembered" for rule in base.rules)
            assert decision.effect != "allow" or remembered


@pytest.mark.slow
@given(POLICIES, LAYERS, TOOLS, st.sampled_from(PATHS), st.sampled_from(PATHS), SETTINGS)
def test_a_child_may_touch_no_file_that_its_parent_may_not(
    base, layers, tool, named, real, context
):
    place = ResolvedPath(f"/w/{named}", f"/w/{real}")
    parent, *children = lineage(base, layers)
    allowed = may_touch(parent, tool, place, context)
    for child in children:
        decision = may_touch(child, tool, place, context)
        assert RANK[decision.effect] <= RANK[allowed.effect]
        allowed = decision


@pytest.mark.slow
@given(POLICIES, LAYERS, st.lists(SIMPLE, min_size=1, max_size=3))
def test_a_script_is_no_more_allowed_than_each_of_its_parts_is(base, layers, commands):
    child = lineage(base, layers)[-1]
    request = Request("Bash", {"command": "; ".join(commands)}, ANY_SETTING)
    each = [RANK[decision.effect] for _, decision in evaluate_each(child, request)]
    assert RANK[evaluate(child, request).effect] <= min(each, default=2)


@pytest.mark.slow
@given(POLICIES, LAYERS, CALLS, SETTINGS)
def test_a_persons_approval_never_lifts_a_denial_of_any_layer(base, layers, call, context):
    child = lineage(base, layers)[-1]
    request = Request(*call, context)
    decision = evaluate(child, request)
    if decision.is_final:
        places = tuple(place.real for place in context.places.values())
        answer = Answer("approved", "d", places=places)
        authorization = Authorization(replace(decision, effect="ask"), answer, "d", child)
        assert authorization.check_again(request).effect == "deny"


@pytest.mark.slow
@given(POLICIES, TEXTS, CALLS)
def test_a_type_without_rules_changes_nothing(base, text, call):
    assert base.restricted("reviewer", ()) is base


def test_deny_and_ask_rules_of_a_type_leave_everything_else_as_it_was():
    base = policy("allow Bash(ls)", "ask Bash(rm *)")
    child = restricted(base, "deny Bash(rm x)", "ask Bash(ls)")
    assert bash(child, "rm x").effect == "deny"
    assert bash(child, "rm y").effect == "ask"
    assert bash(child, "ls").effect == "ask"
    assert bash(restricted(base, "deny Read"), "ls") == bash(base, "ls")


def test_what_the_allow_rules_of_a_type_leave_out_is_denied_and_said_so():
    child = restricted(
        policy("allow Bash", default="ask"), "allow Bash(ls *)", "allow Bash(git log)"
    )
    assert bash(child, "ls -l && git log").effect == "allow"
    decision = bash(child, "ls && pwd")
    assert (decision.effect, decision.is_final) == ("deny", True)
    assert decision.explain() == (
        "denied: no permission rule of the agent type 'reviewer' allows 'pwd'"
    )


def test_a_rule_of_a_type_is_named_as_any_other():
    child = restricted(policy("allow Bash"), "deny Bash(rm *)")
    assert bash(child, "rm x").explain() == "denied by the rule deny 'Bash(rm *)'"


def test_a_file_that_may_be_one_a_type_denies_is_allowed_by_nothing():
    for default in ("ask", "deny"):
        child = restricted(policy("allow Bash", default=default), "deny Edit(.env)")
        assert bash(child, 'echo b > "$F"').effect == default
    closed = restricted(policy("allow Bash", default="ask"), "allow Bash", "deny Edit(.env)")
    assert bash(closed, 'echo b > "$F"').effect == "deny"


def test_what_a_person_remembered_answers_a_question_of_a_type_and_lifts_nothing_else():
    base = policy("remembered Bash(rm x)", "allow Bash")
    assert bash(restricted(base, "ask Bash(rm *)"), "rm x").effect == "allow"
    assert bash(restricted(base, "ask Bash(rm *)", "allow Bash(ls)"), "rm x").effect == "allow"
    assert bash(restricted(base, "ask Bash(rm *)"), "rm y").effect == "ask"
    assert bash(restricted(base, "allow Bash(ls)"), "rm x").effect == "deny"
    assert bash(restricted(base, "deny Bash(rm *)", "ask Bash"), "rm x").effect == "deny"


def test_an_answer_to_a_question_of_a_type_can_be_remembered():
    child = restricted(policy("allow Bash"), "ask Bash(rm *)")
    request = Request("Bash", {"command": "rm x"}, SETTING)
    assert suggest(child, request) == Suggestion("rm x", "Bash(rm x)")


def test_an_authorization_of_a_child_keeps_its_searches_to_the_files_of_its_type():
    child = restricted(policy("ask Read"), "allow Read(src/**)")
    given_input = {"pattern": "x", "path": "."}
    request = Request("Grep", given_input, SETTING)
    decision = evaluate(child, request)
    assert decision.effect == "ask"
    digest = digest_of(given_input)
    authorization = Authorization(
        decision, Answer("approved", digest, places=("/w",)), digest, child
    )
    inside, outside = (ResolvedPath(f"/w/{path}", f"/w/{path}") for path in ("src/a.py", "a.py"))
    assert authorization.check("Grep", inside, SETTING).effect == "allow"
    assert authorization.check("Grep", outside, SETTING).effect == "deny"


@pytest.mark.parametrize(
    ("rules", "agent_type", "effect"),
    [
        (["allow Agent"], "reviewer", "allow"),
        (["allow Agent(reviewer)"], "reviewer", "allow"),
        (["allow Agent(reviewer)"], "Reviewer", "deny"),
        (["allow Agent(reviewer)"], "tester", "deny"),
        (["allow Agent", "ask Agent(tester)"], "tester", "ask"),
        (["allow Agent", "deny Agent(tester)"], "tester", "deny"),
        (["allow Agent", "deny Agent(tester)"], "reviewer", "allow"),
        (["allow Agent(reviewer)"], ["reviewer"], "deny"),
        (["allow *"], "reviewer", "allow"),
    ],
)
def test_rules_name_types_of_sub_agents(rules, agent_type, effect):
    request = Request("Agent", {"agent_type": agent_type, "prompt": "p"}, SETTING)
    assert evaluate(policy(*rules), request).effect == effect


def test_a_question_about_a_sub_agent_suggests_its_type_and_groups_what_is_the_same():
    def asked(prompt: str, agent_type: object = "reviewer") -> Suggestion:
        arguments = {"description": "d", "prompt": prompt, "agent_type": agent_type}
        return suggest(policy(default="ask"), Request("Agent", arguments, SETTING))

    assert asked("a").rule == "Agent(reviewer)"
    assert asked("a") == asked("a") != asked("b")
    assert asked("a").key.startswith("reviewer ")
    assert asked("a", "no name)").rule == ""
    assert asked("a", None).rule == ""
