"""What questions are grouped by, and the rules that are suggested with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.permissions import Request, ResolvedPath, Rule, ToolContext
from runner.permissions.decisions import Policy, evaluate
from runner.permissions.suggestions import suggest

POLICY = Policy(
    (Rule("allow", "Bash(cd *)"), Rule("ask", "Bash(uv *)"), Rule("ask", "Edit")), default="ask"
)


def bash(command: str) -> Request:
    return Request("Bash", {"command": command}, ToolContext("/work"))


def edit(path: str, place: ResolvedPath) -> Request:
    return Request("Edit", {"file_path": path}, ToolContext("/work", places={path: place}))


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("uv lock", "Bash(uv lock)"),
        ("uv add 'a b'", "Bash(uv add 'a b')"),
        ("uv lock && uv sync", ""),
        ("cd pkg && uv lock", ""),  # the rule would hold in any folder
        ("timeout 60 uv lock", ""),
        ("UV_INDEX=x uv lock", ""),
        ("uv run *.py", ""),  # the star of a rule is wider than the shell's
        ("uv lock > out.txt", ""),
        ("uv run $file", ""),
        ("for f in a b; do uv add $f; done", ""),
        ("curl x | uv run -", ""),  # what it is fed is a part of what it does
        ("uv run - <<< 'x'", ""),
        ("uv run - <<EOF\nx\nEOF", ""),
        ("echo a | xargs uv add", ""),
        ("python3", ""),
        ("$tool lock", ""),
    ],
)
def test_command_is_grouped_whole_and_a_rule_suggested_only_where_it_says_all(command, rule):
    suggestion = suggest(POLICY, bash(command))
    assert (suggestion.key, suggestion.rule) == (command, rule)


def test_remembering_what_is_suggested_allows_the_call():
    request = bash("uv lock")
    remembered = Rule("allow", suggest(POLICY, request).rule, origin="remembered")
    policy = replace(POLICY, rules=(*POLICY.rules, remembered))
    assert evaluate(POLICY, request).effect == "ask"
    assert evaluate(policy, request).effect == "allow"
    assert evaluate(policy, bash("uv lock --upgrade")).effect == "ask"


def test_same_file_of_two_workspaces_is_grouped_together():
    one = edit("a.py", ResolvedPath("/work/a.py", "/work/a.py"))
    other = edit("/work/a.py", ResolvedPath("/work/a.py", "/work/a.py"))
    assert suggest(POLICY, one) == suggest(POLICY, other)
    assert suggest(POLICY, one).rule == "Edit(/a.py)"


@pytest.mark.parametrize(
    "place",
    [ResolvedPath("/work/link", "/work/a.py"), ResolvedPath("/work/a[1].py", "/work/a[1].py")],
)
def test_nothing_is_suggested_for_a_path_that_a_pattern_would_not_mean_exactly(place):
    assert suggest(POLICY, edit("x", place)).rule == ""


def test_calls_that_would_do_something_else_are_never_grouped_together():
    long = "x" * 1_000
    place = ResolvedPath("/work/a.py", "/work/a.py")
    context = ToolContext("/work", places={"a.py": place})
    alike = [
        (bash(f"uv run {long} a"), bash(f"uv run {long} b")),
        (Request("deploy", {"to": "staging"}), Request("deploy", {"to": "production"})),
        (
            Request("Write", {"file_path": "a.py", "content": "a"}, context),
            Request("Write", {"file_path": "a.py", "content": "b"}, context),
        ),
    ]
    for one, other in alike:
        assert suggest(POLICY, one).key != suggest(POLICY, other).key


@pytest.mark.parametrize(
    "request_",
    [
        Request("deploy", {"to": "staging"}),
        Request("Read", {"file_path": ""}),
        Request("Write", {}),
    ],
)
def test_nothing_is_suggested_that_would_allow_more_than_was_asked(request_):
    assert suggest(POLICY, request_).rule == ""


def test_search_is_suggested_as_a_search():
    place = ResolvedPath("/work/src", "/work/src")
    request = Request(
        "Glob", {"path": "src", "pattern": "*"}, ToolContext("/work", places={"src": place})
    )
    assert suggest(POLICY, request).rule == "Glob(/src)"
