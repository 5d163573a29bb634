"""What holds of every policy and every call."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.permissions import Request, ResolvedPath, Rule, ToolContext
from runner.permissions.decisions import Policy, evaluate, may_touch
from runner.permissions.rules import covers, name_of, problem

RANK = {"allow": 2, "ask": 1, "deny": 0}
TEXTS = st.sampled_from(
    [
        "Bash",
        "Bash(*)",
        "Bash(**)",
        "Bash(:unanalyzable)",
        "Bash(ls *)",
        "Bash(rm *)",
        "Bash(rm x)",
        "Bash(git:*)",
        "Bash(* x)",
        "Bash(echo*)",
        "Read",
        "Read(a)",
        "Read(**)",
        "Read(//etc/**)",
        "Edit",
        "Edit(a)",
        "Edit(/**)",
        "Grep(src)",
        "Write(.env)",
        "WebFetch(domain:a.example)",
        "mcp__git",
        "mcp__git__*",
        "*",
        "Bash(",
        "",
        "(",
    ]
)
EFFECTS = st.sampled_from(["allow", "ask", "deny"])
ORIGINS = st.sampled_from(["job", "remembered", "mode"])
RULES = st.lists(
    st.builds(Rule, EFFECTS, TEXTS | st.text(max_size=20), st.just(""), ORIGINS), max_size=8
)
POLICIES = st.builds(
    lambda rules, default: Policy(tuple(rules), default), RULES, st.sampled_from(["ask", "deny"])
)
SIMPLE = st.sampled_from(
    [
        "ls",
        "ls -l x",
        "rm x",
        "rm -rf y",
        "git push",
        "git -C a push",
        "echo a > a",
        "echo > /etc/x",
        "cat < a",
        'echo > "$F"',
        "$cmd x",
        "X=1 rm x",
        "timeout 5 rm x",
        "(ls; rm x)",
        "find . -delete",
        "bash -c 'rm x'",
        "cd src",
        "cd src > a",
        'cat < "$F"',
        "f() { echo a > a; }",
        "echo 'open",
        "# a",
        "echo $(rm x)",
        "eval ls",
        "{ rm y; } > a",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
TOOLS = st.sampled_from(
    ["Bash", "Read", "Write", "Edit", "Grep", "Glob", "WebFetch", "mcp__git__push", "own", ""]
)
KEYS = ("command", "file_path", "path", "url")
INPUTS = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, JSON)) | JSON
PATHS = ("a", "src", ".", "/etc/x", "y", "$F")
PLACES = {path: ResolvedPath(f"/w/{path}", f"/w/{path}") for path in PATHS[:3]}
SETTING = ToolContext(
    "/w", "/out", "/home/me", PLACES | {"/etc/x": ResolvedPath("/etc/x", "/etc/x")}
)
SETTINGS = st.sampled_from(
    [SETTING, ToolContext(), ToolContext("/w"), ToolContext(None, "/out", "/h")]
)

ALL_BUT_A = Policy((Rule("allow", "Bash"), Rule("allow", "Edit"), Rule("deny", "Edit(a)")), "ask")


def bash(policy, command):
    return evaluate(policy, Request("Bash", {"command": command}, SETTING))


@pytest.mark.slow
@given(POLICIES, TOOLS | st.text(max_size=8), INPUTS, SETTINGS)
def test_a_decision_is_made_on_any_call_under_any_rules(policy, tool, arguments, context):
    decision = evaluate(policy, Request(tool, arguments, context))
    assert decision.effect in RANK
    assert decision.explain()
    assert all(matched.rule in policy.rules for matched in decision.matched_rules)


@pytest.mark.slow
@given(POLICIES, TOOLS, st.text(max_size=40), SETTINGS)
def test_a_decision_is_made_on_any_text(policy, tool, text, context):
    arguments = dict.fromkeys(KEYS, text)
    assert evaluate(policy, Request(tool, arguments, context)).effect in RANK
    assert may_touch(policy, tool, ResolvedPath(text, text), context).effect in RANK


@given(st.text(max_size=60) | st.builds("{}({})".format, TOOLS, st.text(max_size=30)))
def test_any_text_is_a_rule_or_has_a_problem_of_one_line(text):
    found = problem(text)
    assert found is None or (found and "\n" not in found)
    assert covers(name_of(text), "Bash") in (True, False)


@pytest.mark.slow
@given(
    POLICIES,
    TEXTS | st.text(max_size=20),
    TOOLS,
    INPUTS | st.builds(lambda a: {"command": a}, SIMPLE),
)
def test_one_more_deny_never_allows_more(policy, text, tool, arguments):
    denied = Policy((*policy.rules, Rule("deny", text)), policy.default)
    request = Request(tool, arguments, SETTING)
    assert RANK[evaluate(denied, request).effect] <= RANK[evaluate(policy, request).effect]


@pytest.mark.slow
@given(
    POLICIES,
    st.lists(SIMPLE, min_size=2, max_size=3),
    st.sampled_from(["; ", " && ", " || ", " | ", "\n", " & "]),
)
@example(Policy((Rule("ask", "Bash(:unanalyzable)"),)), ["ls", "$cmd x"], "; ")
@example(Policy((Rule("allow", "Bash(ls *)"), Rule("deny", "Bash(rm *)"))), ["ls", "rm x"], " && ")
@example(Policy((Rule("deny", "Edit(a)"),), "ask"), ["echo a > a", "cd src"], "; ")
@example(Policy((Rule("deny", "Edit(a)"),), "ask"), ["cd src", "echo a > a"], "; ")
@example(ALL_BUT_A, ["echo a > a", "cd src"], "; ")
@example(ALL_BUT_A, ["cd src", "echo a > a"], " && ")
@example(ALL_BUT_A, ['echo > "$F"', "cd src > a"], "; ")
def test_a_script_is_never_more_allowed_than_its_parts(policy, commands, joint):
    whole = RANK[bash(policy, joint.join(commands)).effect]
    if any(command in ("# a", "echo 'open") for command in commands):
        return  # they swallow what comes after them
    assert whole <= min(RANK[bash(policy, command).effect] for command in commands)


@pytest.mark.slow
@given(
    POLICIES,
    st.randoms(use_true_random=False),
    TOOLS,
    st.builds(lambda a: {"command": a}, SIMPLE) | INPUTS,
)
def test_the_order_of_rules_never_changes_the_effect(policy, chance, tool, arguments):
    shuffled = Policy(tuple(chance.sample(policy.rules, len(policy.rules))), policy.default)
    request = Request(tool, arguments, SETTING)
    assert evaluate(shuffled, request).effect == evaluate(policy, request).effect


@pytest.mark.slow
@given(POLICIES, TEXTS, TOOLS, st.builds(lambda a: {"command": a}, SIMPLE) | INPUTS)
def test_a_remembered_answer_never_beats_a_deny(policy, text, tool, arguments):
    request = Request(tool, arguments, SETTING)
    answered = Policy((*policy.rules, Rule("allow", text, origin="remembered")), policy.default)
    before, after = evaluate(policy, request), evaluate(answered, request)
    if before.matched_rules and before.effect == "deny":
        assert after == before
    assert RANK[after.effect] >= RANK[before.effect]
