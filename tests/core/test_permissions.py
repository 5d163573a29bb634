import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.permissions import Decision, Rule, evaluate

NAMES = st.sampled_from(["Bash", "Read", "Write", "mcp__git__push", "mcp__git__log", "mcp__gitlab"])
TEXTS = st.sampled_from(["Bash", "Read", "mcp__git__*", "mcp__git__push", "*", "B*", "bash", ""])
RULES = st.lists(st.builds(Rule, st.sampled_from(["allow", "deny"]), TEXTS), max_size=6)


@pytest.mark.parametrize(
    ("text", "tool", "matches"),
    [
        ("Bash", "Bash", True),
        ("Bash", "BashOutput", False),
        ("Bash", "bash", False),
        ("Bash", " Bash", False),
        ("mcp__git__*", "mcp__git__push", True),
        ("mcp__git__*", "mcp__gitlab", False),
        ("*", "anything", True),
        ("B*h", "Bash", False),
    ],
)
def test_rule_names_a_tool_or_all_that_start_so(text, tool, matches):
    assert Rule("allow", text).matches(tool) is matches


def test_deny_wins_over_allow_in_any_order():
    allow, deny = Rule("allow", "Bash"), Rule("deny", "*")
    assert evaluate([allow, deny], "Bash") == evaluate([deny, allow], "Bash")
    assert evaluate([allow, deny], "Bash") == Decision("deny", "*")


def test_what_no_rule_matches_is_denied():
    assert evaluate([], "Bash") == Decision("deny", None)
    assert evaluate([Rule("allow", "Read")], "Bash") == Decision("deny", None)


def test_allowed_call_names_its_rule():
    assert evaluate([Rule("allow", "Read"), Rule("allow", "Ba*")], "Bash") == Decision(
        "allow", "Ba*"
    )


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (Decision("allow", "Bash"), "allowed by the rule allow 'Bash'"),
        (Decision("deny", "Ba*"), "denied by the rule deny 'Ba*'"),
        (Decision("deny", None), "denied: no permission rule of this job allows it"),
    ],
)
def test_decision_explains_itself_with_its_rule(decision, words):
    assert decision.explain() == words


@given(RULES, NAMES)
def test_a_matching_deny_always_denies_and_nothing_else_allows(rules, tool):
    decision = evaluate(rules, tool)
    denied = any(rule.effect == "deny" and rule.matches(tool) for rule in rules)
    allowed = any(rule.effect == "allow" and rule.matches(tool) for rule in rules)
    assert decision.effect == ("allow" if allowed and not denied else "deny")
    assert (decision.rule is None) == (not denied and not allowed)


@given(RULES, NAMES, st.randoms(use_true_random=False))
def test_order_of_rules_never_changes_the_effect(rules, tool, random):
    shuffled = random.sample(rules, len(rules))
    assert evaluate(shuffled, tool).effect == evaluate(rules, tool).effect
