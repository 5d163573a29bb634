"""Grep and Glob show only what may be read."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example
from hypothesis import given as with_values
from hypothesis import strategies as st

from runner.permissions import Decision, ResolvedPath, Rule, ToolContext
from runner.permissions.decisions import Authorization, Policy
from runner.ports import Interrupt
from runner.tools.search_child import open_in_place, regular_files
from runner.tools.search_filter import packed, shown
from runner.tools.toolbox import LocalTools

from .conftest import Workbench, approved, policy

FILES = ("a.py", "closed/b.py", "closed/deep/c.py", "open/d.py", "open/.env")


@pytest.fixture
def tree(bench: Workbench) -> Workbench:
    for path in FILES:
        file = bench.workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("needle\n")
    (bench.workspace / "link").symlink_to("closed")
    return bench


def left_out(count: int) -> str:
    files = "1 file" if count == 1 else f"{count} files"
    return f"[{files} left out: no permission to read them]"


ALL = [("Glob", {"pattern": "**"}), ("Grep", {"pattern": "needle"})]


@pytest.mark.parametrize(("tool", "given"), ALL)
class TestShown:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("lines", "found", "count"),
        [
            (("allow Read", "deny Read(closed/**)"), "a.py open/.env open/d.py", 2),
            (
                ("allow Read(*)", "deny Read(.env)"),
                "a.py closed/b.py closed/deep/c.py open/d.py",
                1,
            ),
            (("allow Read(open/**)",), "open/.env open/d.py", 3),
            (("allow Read(open/**)", "deny Read(.ENV)"), "open/d.py", 4),
            (("allow Read(/*.py)", "allow Read(deep/)"), "a.py closed/deep/c.py", 3),
            (("allow Read", "ask Read(closed/deep/**)"), "a.py closed/b.py open/.env open/d.py", 1),
            (("allow Read", "allow Edit(x/**)", "deny Write(closed/**)"), " ".join(FILES), 0),
        ],
    )
    def test_only_files_that_may_be_read_are_shown_and_the_others_counted(
        self,
        tree: Workbench,
        tool: str,
        given: dict[str, Any],
        lines: tuple[str, ...],
        found: str,
        count: int,
    ) -> None:
        expected = sorted(found.split()) + ([left_out(count)] if count else [])
        assert tree.under(*lines).run(tool, **given).content.split("\n") == expected

    @pytest.mark.slow
    def test_rule_for_one_tool_holds_for_it_alone(
        self, tree: Workbench, tool: str, given: dict[str, Any]
    ) -> None:
        under = tree.under("allow Read", "deny Glob(closed/**)")
        assert ("closed" in under.run(tool, **given).content) == (tool == "Grep")

    @pytest.mark.slow
    def test_default_shows_nothing(self, tree: Workbench, tool: str, given: dict[str, Any]) -> None:
        assert tree.under("allow Bash").run(tool, **given).content.endswith(left_out(5))

    @pytest.mark.slow
    def test_broken_rule_grants_nothing(
        self, tree: Workbench, tool: str, given: dict[str, Any]
    ) -> None:
        broken = replace(tree, policy=Policy((Rule("allow", "Read "),)))
        assert broken.run(tool, **given).content.endswith(left_out(5))

    @pytest.mark.slow
    def test_symlink_to_the_folder_that_is_searched_must_pass_too(
        self, tree: Workbench, tool: str, given: dict[str, Any]
    ) -> None:
        for lines in (
            ("allow Read(closed/**)",),
            ("allow Read(link/**)",),
            ("allow Read", "deny Read(link/**)"),
            ("allow Read", "deny Read(closed/**)"),
        ):
            content = tree.under(*lines).run(tool, **given, path="link").content
            assert content.split("\n")[1:] == [left_out(2)]
        both = tree.under("allow Read([cl]*/**)")
        assert both.run(tool, **given, path="link").content == "closed/b.py\nclosed/deep/c.py"

    @pytest.mark.slow
    def test_folder_that_became_a_symlink_after_the_decision_shows_nothing_denied(
        self, tree: Workbench, tool: str, given: dict[str, Any]
    ) -> None:
        call = tree.under("allow Read(open/**)").call(tool, **given, path="open")
        (tree.workspace / "open").rename(tree.workspace / "away")
        (tree.workspace / "open").symlink_to("closed")
        content = tree.tools.run(call, Interrupt()).content
        assert content.split("\n")[1:] == [left_out(2)]

    @pytest.mark.slow
    def test_approval_shows_what_was_asked_about(
        self, tree: Workbench, tool: str, given: dict[str, Any]
    ) -> None:
        under = tree.under("allow Read", "ask Read(closed/**)")
        call = under.call(tool, **given)
        for places, missing in (
            ([tree.workspace], None),
            ([tree.workspace / "closed/deep"], left_out(1)),
            ([], left_out(2)),
        ):
            lines = tree.tools.run(approved(call, places), Interrupt()).content.split("\n")
            assert ([line for line in lines if line.startswith("[")] or [None]) == [missing]

    @pytest.mark.slow
    def test_count_tells_nothing_of_names_and_content(
        self, tree: Workbench, tool: str, given: dict[str, Any]
    ) -> None:
        under = tree.under("allow Read", "deny Read(closed/**)")
        for pattern in ("b.py", "closed/b.py", "nothing", "needle"):
            content = under.run(tool, pattern=pattern).content
            assert content.split("\n")[-1] == left_out(2)
            assert "closed" not in content.removeprefix(f"No files match {pattern}")

    @pytest.mark.slow
    def test_modules_in_the_workspace_are_not_imported(
        self, tree: Workbench, tool: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("pathspec", "json", "re", "sitecustomize"):
            (tree.workspace / f"{name}.py").write_text("raise SystemExit('needle: hijacked')\n")
        monkeypatch.setenv("PYTHONPATH", str(tree.workspace))
        with closing(LocalTools(tree.home, tree.lock_dir, watchdog_seconds=300)) as tools:
            under = replace(tree.under("allow Read", "deny Read(*.py)"), tools=tools)
            assert under.run(tool, **given).content == f"open/.env\n{left_out(8)}"


@pytest.mark.slow
def test_sub_agent_is_shown_what_its_type_may_read_too(tree: Workbench) -> None:
    def shown_to(*lines: str) -> list[str]:
        under = tree.under("allow Read", "deny Read(.env)")
        child = replace(under, policy=under.policy.restricted("reviewer", policy(*lines).rules))
        return child.run("Grep", pattern="needle").content.split("\n")

    assert shown_to("allow Read(open/**)") == ["open/d.py", left_out(4)]
    assert shown_to("deny Read(closed/**)") == ["a.py", "open/d.py", left_out(3)]
    assert (
        shown_to("allow Read")
        == shown_to("deny Bash")
        == [*sorted(set(FILES) - {"open/.env"}), left_out(1)]
    )


@pytest.mark.slow
def test_long_result_still_ends_with_what_was_left_out(tree: Workbench) -> None:
    under = tree.under("allow Read", "deny Read(closed/**)")
    result = under.run("Grep", pattern="needle", head_limit=1)
    assert result.content.split("\n")[1:] == ["[only the first 1 lines of the result]", left_out(2)]


@pytest.mark.slow
def test_single_file_that_may_not_be_read_names_the_rule(tree: Workbench) -> None:
    under = tree.under("allow Read", "deny Read(.env)")
    result = under.run("Grep", pattern="needle", path="open/.env", output_mode="content")
    assert (result.outcome, result.content) == (
        "denied",
        "open/.env: denied by the rule deny 'Read(.env)'",
    )
    assert under.run("Grep", pattern="needle", path="a.py").content == "a.py"


@pytest.mark.slow
def test_outputs_of_the_run_are_searched_under_any_allow_rule(tree: Workbench) -> None:
    tree.run("Bash", command="seq 1 20000")
    under = tree.under("allow Read(open/**)")
    found = under.run("Grep", pattern="^777$", path=str(tree.outputs))
    assert found.content.endswith("call_1.txt")
    denied = tree.under("allow Read", f"deny Read(/{tree.outputs.resolve()}/**)")
    found = denied.run("Grep", pattern="^777$", path=str(tree.outputs))
    assert found.content == f"No matches found\n{left_out(1)}"


class TestNothingToFilter:
    @pytest.mark.parametrize(
        "lines",
        [
            ("allow Read",),
            ("allow Grep",),
            ("allow Read(*)", "allow Edit(src/**)", "deny Bash", "ask Edit(/secret)"),
        ],
    )
    def test_bare_allow_rules_cost_nothing(self, lines: tuple[str, ...]) -> None:
        assert packed(_authorization(policy(*lines)), "Grep", "/w", ToolContext("/w")) is None

    @pytest.mark.parametrize(
        "lines",
        [
            (),
            ("allow Glob",),
            ("allow Read(src/**)",),
            ("allow Read", "deny Read(.env)"),
            ("allow Read", "ask Grep"),
            ("allow Grep", "deny *"),
        ],
    )
    def test_any_other_rule_is_handed_over(self, lines: tuple[str, ...]) -> None:
        assert packed(_authorization(policy(*lines)), "Grep", "/w", ToolContext("/w")) is not None


def _authorization(rules: Policy) -> Authorization:
    return Authorization(Decision("allow"), None, "digest", rules)


def test_rules_of_a_type_that_may_leave_something_out_are_handed_over() -> None:
    def is_handed_over(*lines: str) -> bool:
        narrowed = policy("allow Read").restricted("reviewer", policy(*lines).rules)
        return packed(_authorization(narrowed), "Grep", "/w", ToolContext("/w")) is not None

    assert not any(map(is_handed_over, ("allow Read", "deny Bash", "deny Glob")))
    assert all(map(is_handed_over, ("allow Bash", "deny Grep", "ask Read(a)", "allow Read(a)")))


class TestWalk:
    def test_symlink_on_the_way_is_not_followed(self, tree: Workbench) -> None:
        with pytest.raises(OSError, match="symbolic links"):
            open_in_place(str(tree.workspace / "link/b.py"))
        assert regular_files(str(tree.workspace / "link"), frozenset()) == []
        assert regular_files(str(tree.workspace / "link/deep"), frozenset()) == []

    def test_descriptors_are_closed(self, tree: Workbench) -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        regular_files(str(tree.workspace), frozenset())
        with pytest.raises(OSError, match="symbolic links"):
            open_in_place(str(tree.workspace / "link/b.py"))
        assert len(list(Path("/proc/self/fd").iterdir())) == before


EVERY_FILE = Rule("allow", "Read")
_NAMES = ["a", "b", "A", ".env", "x.key", "ß", "ss", "src", "w"]
_PARTS = [*_NAMES, "*", "**", "*.key", "?", "[ab]", "[!a]", "[^A]", "s*c"]
_PATHS = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4).map("/".join)
_SPECIFIERS = st.builds(
    lambda anchor, parts, end: anchor + "/".join(parts) + end,
    st.sampled_from(["", "/", "./", "//", "//w/", "~/", "//w/a/"]),
    st.lists(st.sampled_from(_PARTS), min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "/**"]),
)
_TEXTS = st.sampled_from(["Read", "Grep", "Edit", "*", "Read "]) | _SPECIFIERS.map(
    "Read({})".format
)
_RULES = st.builds(
    Rule,
    st.sampled_from(["allow", "ask", "deny"]),
    _TEXTS,
    origin=st.sampled_from(["job", "remembered"]),
)


@pytest.mark.slow
@with_values(
    st.lists(_RULES, max_size=6),
    st.lists(_PATHS, max_size=6),
    st.sampled_from(["/w", "/w/link"]),
    st.sampled_from(
        [
            ToolContext("/w", "/w/a", "/w/b"),
            ToolContext("/W", None, None),
            ToolContext("/", "/o", "/w"),
        ]
    ),
    st.sampled_from(["ask", "deny"]),
)
@example([EVERY_FILE, Rule("deny", "Read(ss)")], ["ß"], "/w", ToolContext("/w"), "deny")
@example([EVERY_FILE, Rule("deny", "Read(A/x.KEY)")], ["a/X.key"], "/w", ToolContext("/W"), "deny")
@example([EVERY_FILE, Rule("deny", "Read([!a])")], ["A"], "/w", ToolContext("/w"), "deny")
@example([EVERY_FILE, Rule("deny", "Read(**/b)")], ["b", "a/a/b"], "/w", ToolContext("/w"), "deny")
@example([EVERY_FILE, Rule("deny", "Read(/b)")], ["b", "a/b"], "/w", ToolContext("/w"), "deny")
@example([EVERY_FILE, Rule("deny", "Read(a)")], ["a/b/src"], "/w", ToolContext("/w"), "deny")
@example([Rule("allow", "Read(x)")], ["a/b"], "/w", ToolContext("/w", "/w/a"), "deny")
def test_each_file_is_judged_as_it_is_alone(
    rules: list[Rule], paths: list[str], named: str, tool_context: ToolContext, default: Any
) -> None:
    _compare(Policy(tuple(rules), default), paths, named, tool_context)


@pytest.mark.slow
@with_values(
    st.lists(_RULES, max_size=4),
    st.lists(st.lists(_RULES, max_size=4), min_size=1, max_size=3),
    st.lists(_PATHS, max_size=6),
    st.sampled_from(["/w", "/w/link"]),
    st.sampled_from([ToolContext("/w", "/w/a", "/w/b"), ToolContext("/W", None, None)]),
    st.sampled_from(["ask", "deny"]),
)
@example(
    [EVERY_FILE], [[Rule("allow", "Read(src/**)")]], ["a", "src/a"], "/w", ToolContext("/w"), "ask"
)
def test_each_file_is_judged_as_it_is_alone_for_a_sub_agent(
    rules: list[Rule],
    layers: list[list[Rule]],
    paths: list[str],
    named: str,
    tool_context: ToolContext,
    default: Any,
) -> None:
    narrowed = Policy((EVERY_FILE, *rules), default)
    for layer in layers:
        narrowed = narrowed.restricted("reviewer", layer)
    _compare(narrowed, paths, named, tool_context)


def _compare(rules: Policy, paths: list[str], named: str, tool_context: ToolContext) -> None:
    """What a search shows, with what its authorization says of each file."""
    authorization = _authorization(rules)
    files = [f"/w/{path}" for path in paths]
    expected = [
        path
        for path in files
        if authorization.check("Grep", ResolvedPath(named + path[2:], path), tool_context).effect
        == "allow"
    ]
    request = packed(authorization, "Grep", named, tool_context)
    handed = None if request is None else json.loads(json.dumps(request))
    assert (files if handed is None else shown(files, "/w", handed)) == expected
