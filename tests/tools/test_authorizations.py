"""No tool runs without an authorization for this very call; file tools check it when they open."""

from __future__ import annotations

import ast
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import runner
from runner.core.conversation import Tool
from runner.permissions import Request, ResolvedPath, ToolContext, decisions
from runner.permissions.decisions import Policy, evaluate, may_touch
from runner.ports import Interrupt

from .conftest import Workbench, approved
from .test_file_tools import EVERY_FILE_TOOL, touch_with

SINGLE_FILE = [(tool, given) for tool, given in EVERY_FILE_TOOL if tool != "Grep"]
CHANGING = [(tool, given) for tool, given in EVERY_FILE_TOOL if tool in ("Write", "Edit")]


class TestAuthorizationIsForThisCall:
    @pytest.mark.parametrize(
        ("tool", "given"),
        [
            ("Bash", {"command": "touch made"}),
            ("Write", {"file_path": "made", "content": "x"}),
            ("Glob", {"pattern": "*"}),
            (Tool("own", "", {"type": "object"}, source="os:mkdir@/tmp"), {"path": "made"}),
        ],
    )
    def test_call_with_another_input_than_was_authorized_is_not_run(
        self, bench: Workbench, tool: Tool | str, given: dict[str, Any]
    ) -> None:
        call = bench.call(tool, **given)
        other = bench.call(tool, **given, more=True)
        with pytest.raises(ValueError, match="authorization is for another input"):
            bench.tools.run(replace(call, authorization=other.authorization), Interrupt())
        assert not (bench.workspace / "made").exists()

    def test_input_changed_after_the_authorization_is_not_run(self, bench: Workbench) -> None:
        call = bench.call("Bash", command="true")
        call.input["command"] = "touch made"
        with pytest.raises(ValueError, match="authorization is for another input"):
            bench.tools.run(call, Interrupt())
        assert not (bench.workspace / "made").exists()

    @pytest.mark.slow
    def test_only_the_toolbox_starts_tools(self) -> None:
        root = Path(runner.__file__).parent
        starting = {
            "runner.tools.shell",
            "runner.tools.files",
            "runner.tools.search",
            "runner.tools.host",
        }
        within = {
            "tools/toolbox.py",
            "tools/shell.py",
            "tools/functions.py",
            "tools/files.py",
            "tools/sandbox.py",
            "tools/search.py",
            "tools/mcp.py",
            "tools/mcp_session.py",
            # What a job itself runs around calls: no model chooses it.
            "tools/hooks.py",
            # Children of Runner's own, which are no tools.
            "tools/checking.py",
            "tools/containers.py",
            "tools/media.py",
            "workspace/host_check.py",
            "workspace/own_workspace.py",
        }
        importing = {
            path.relative_to(root).as_posix()
            for path in root.rglob("*.py")
            if starting & set(_imported(ast.parse(path.read_text())))
        }
        assert importing == within


def _imported(tree: ast.AST) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def allowing(tool: str, specifier: str) -> str:
    """An allow rule whose name covers the tool."""
    return f"allow {'Read' if tool in ('Read', 'Grep') else 'Edit'}({specifier})"


def denying(tool: str, specifier: str) -> str:
    return allowing(tool, specifier).replace("allow", "deny")


@pytest.mark.parametrize("command", ["echo x > open/link/made", "cat < open/link/secret"])
def test_command_that_redirects_elsewhere_than_it_was_decided_on_is_not_run(
    bench: Workbench, command: str
) -> None:
    under = bench.under(
        "allow Bash(echo *)",
        "allow Bash(cat)",
        "allow Edit(open/**)",
        "deny Edit(closed/**)",
        "deny Read(closed/**)",
    )
    for name in ("open", "closed"):
        (bench.workspace / name).mkdir(exist_ok=True)
    (bench.workspace / "closed/secret").write_text("secret")
    (bench.workspace / "open/link").symlink_to("../closed")
    result = under.run("Bash", command=command)
    assert (result.outcome, "secret" in result.content.partition("denied")[0]) == ("denied", False)
    assert not (bench.workspace / "closed/made").exists()
    (bench.workspace / "open/link").unlink()
    (bench.workspace / "open/link").mkdir()
    (bench.workspace / "open/link/secret").write_text("not one")
    assert under.run("Bash", command=command).outcome == "succeeded"


@pytest.mark.parametrize(
    "path", ["/proc/self/cwd/closed/a", "here/closed/a", "/dev/fd/../cwd/closed/a"]
)
@pytest.mark.parametrize("command", ["echo x > {}", "cat < {}", "cp b {}", "rm {}"])
def test_command_gets_nowhere_by_a_path_that_each_process_reads_in_its_own_way(
    bench: Workbench, command: str, path: str
) -> None:
    rules = ("deny Edit(closed/**)", "deny Read(closed/**)")
    (bench.workspace / "closed").mkdir()
    for name in ("closed/a", "b"):
        (bench.workspace / name).write_text("secret")
    (bench.workspace / "here").symlink_to("/proc/self/cwd")
    under = bench.under("allow Bash", "allow Edit", "allow Read", *rules)
    result = under.run("Bash", command=command.format(path))
    assert result.outcome == "denied"
    assert (bench.workspace / "closed/a").read_text() == "secret"
    assert under.run("Bash", command="echo x >> b 2> /dev/stderr").outcome == "succeeded"


@pytest.mark.parametrize(("tool", "given"), EVERY_FILE_TOOL)
class TestFilesAreTouchedByTheRules:
    @pytest.fixture
    def bench(self, bench: Workbench) -> Workbench:
        for path in ("open/a.txt", "closed/a.txt"):
            file = bench.workspace / path
            file.parent.mkdir()
            file.write_text("secret\n")
        (bench.workspace / "open/link.txt").symlink_to("../closed/a.txt")
        (bench.workspace / "closed/link.txt").symlink_to("../open/a.txt")
        (bench.workspace / "open/folder").symlink_to("../closed")
        return bench

    def test_denied_file_is_left_alone_and_the_rule_is_named(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        rule = denying(tool, "closed/**")
        under = bench.under(f"allow {tool}", rule)
        for path in ("closed/a.txt", "open/../closed/a.txt", bench.workspace / "closed/a.txt"):
            result = touch_with(under, tool, given, path)
            assert result.outcome == "denied"
            assert result.content == f"{path}: denied by the rule deny {rule[5:]!r}"
        assert (bench.workspace / "closed/a.txt").read_text() == "secret\n"
        assert touch_with(under, tool, given, "open/a.txt").outcome == "succeeded"

    @pytest.mark.slow
    def test_link_and_its_target_must_both_pass(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        for lines in ((f"allow {tool}", denying(tool, "closed/**")), (allowing(tool, "open/**"),)):
            under = bench.under(*lines)
            for path in ("open/link.txt", "open/folder/a.txt", "closed/link.txt"):
                assert touch_with(under, tool, given, path).outcome == "denied"
            assert touch_with(under, tool, given, "open/a.txt").outcome == "succeeded"
            (bench.workspace / "open/a.txt").write_text("secret\n")
        assert (bench.workspace / "closed/a.txt").read_text() == "secret\n"

    def test_file_that_no_rule_allows_is_refused(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        result = touch_with(bench.under(), tool, given, "open/a.txt")
        assert (result.outcome, "no permission rule" in result.content) == ("denied", True)

    def test_whether_a_file_exists_is_not_told_of_a_denied_place(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        under = bench.under(allowing(tool, "open/**"))
        told = {
            touch_with(under, tool, given, f"closed/{name}").content.partition(": ")[2]
            for name in ("a.txt", "missing.txt")
        }
        assert len(told) == 1

    def test_symlink_swapped_after_the_decision_is_refused(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        under = bench.under(allowing(tool, "open/**"))
        link = bench.workspace / "open/swapped.txt"
        link.symlink_to("a.txt")
        where = "path" if tool == "Grep" else "file_path"
        call = under.call(tool, **given, **{where: "open/swapped.txt"})
        tool_context = under.tools.locate(["open/swapped.txt"], under.surroundings)
        assert evaluate(under.policy, Request(tool, call.input, tool_context)).effect == "allow"
        link.unlink()
        link.symlink_to("../closed/a.txt")
        assert bench.tools.run(call, Interrupt()).outcome == "denied"
        assert (bench.workspace / "closed/a.txt").read_text() == "secret\n"

    def test_folder_swapped_between_the_check_and_the_opening_is_refused(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch, tool: str, given: dict[str, str]
    ) -> None:
        under = bench.under(allowing(tool, "open/**"))
        decided = swap_after_deciding(
            monkeypatch, bench.workspace / "open", bench.workspace / "closed"
        )
        result = touch_with(under, tool, given, "open/a.txt")
        assert decided == ["allow"]
        assert "secret" not in result.content
        if tool == "Grep":  # it searches many files, and passes over this one
            assert result.content == "No matches found"
        else:
            assert result.outcome == "failed"
        assert (bench.workspace / "closed/a.txt").read_text() == "secret\n"

    def test_approval_is_for_the_file_that_was_asked_about(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        under = bench.under(f"ask {tool}")
        where = "path" if tool == "Grep" else "file_path"
        call = under.call(tool, **given, **{where: "open/link.txt"})
        for place, outcome in (("open/a.txt", "denied"), ("closed/a.txt", "succeeded")):
            result = bench.tools.run(approved(call, [bench.workspace / place]), Interrupt())
            assert result.outcome == outcome


def test_folders_are_not_made_where_a_symlink_came_in_the_way(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (bench.workspace / "open").mkdir()
    under = bench.under("allow Edit(open/**)")
    swap_after_deciding(monkeypatch, bench.workspace / "open", tmp_path)
    result = under.run("Write", file_path="open/new/deep/a.txt", content="x")
    assert result.outcome == "failed"
    assert not (tmp_path / "new").exists()


def swap_after_deciding(monkeypatch: pytest.MonkeyPatch, folder: Path, other: Path) -> list[str]:
    """Put a symlink to another folder in the place of one, as soon as a file in it was decided on."""
    decided: list[str] = []

    def decide(policy: Policy, tool: str, place: ResolvedPath, tool_context: ToolContext) -> object:
        decision = may_touch(policy, tool, place, tool_context)
        if not decided:
            folder.rename(folder.with_name("away"))
            folder.symlink_to(other)
        decided.append(decision.effect)
        return decision

    monkeypatch.setattr(decisions, "may_touch", decide)
    return decided


@pytest.mark.parametrize(("tool", "given"), CHANGING)
def test_denied_write_makes_no_folder(bench: Workbench, tool: str, given: dict[str, str]) -> None:
    result = touch_with(bench.under("allow Edit(open/**)"), tool, given, "new/deep/a.txt")
    assert result.outcome == "denied"
    assert not (bench.workspace / "new").exists()


@pytest.mark.parametrize(("tool", "given"), SINGLE_FILE)
@pytest.mark.parametrize("path", ["~/a.txt", "~"])
def test_file_tool_says_that_it_knows_no_tilde(
    bench: Workbench, tool: str, given: dict[str, str], path: str
) -> None:
    (bench.workspace / "~").mkdir()
    (bench.workspace / "~/a.txt").write_text("secret\n")
    result = touch_with(bench, tool, given, path)
    assert (result.outcome, "do not expand ~" in result.content) == ("failed", True)
    assert touch_with(bench, tool, given, "./~/a.txt").outcome == "succeeded"


@pytest.mark.parametrize(("tool", "given"), EVERY_FILE_TOOL)
def test_chain_of_symlinks_without_an_end_is_refused(
    bench: Workbench, tool: str, given: dict[str, str]
) -> None:
    for number in range(1200):
        (bench.workspace / f"chain{number}").symlink_to(f"chain{number + 1}")
    assert touch_with(bench, tool, given, "chain0").outcome == "failed"


class TestOutputs:
    @pytest.fixture
    def copy(self, bench: Workbench) -> str:
        bench.run("Bash", command="seq 1 20000")
        return str(bench.outputs / "call_1.txt")

    @pytest.mark.slow
    @pytest.mark.parametrize("tool", ["Read", "Grep"])
    def test_own_long_outputs_are_read_under_any_allow_rule(
        self, bench: Workbench, copy: str, tool: str
    ) -> None:
        given = {"pattern": "^777$"} if tool == "Grep" else {}
        allowed = bench.under("allow Read(src/**)")
        assert touch_with(allowed, tool, given, copy).outcome == "succeeded"
        assert touch_with(bench.under(), tool, given, copy).outcome == "denied"

    @pytest.mark.parametrize("tool", ["Read", "Grep"])
    def test_denial_holds_for_long_outputs(self, bench: Workbench, copy: str, tool: str) -> None:
        given = {"pattern": "^777$"} if tool == "Grep" else {}
        denied = bench.under("allow Read", f"deny Read(/{os.path.realpath(bench.outputs)}/**)")
        assert touch_with(denied, tool, given, copy).outcome == "denied"

    def test_missing_copy_is_not_made_again_for_who_may_not_read_it(self, bench: Workbench) -> None:
        bench.stored["call_7"] = b"kept\n"
        path = bench.outputs / "call_7.txt"
        assert touch_with(bench.under(), "Read", {}, path).outcome == "denied"
        assert not path.exists()

    def test_linked_folder_of_outputs_is_one_place(self, bench: Workbench, copy: str) -> None:
        (bench.workspace / "home").symlink_to(bench.home)
        linked = replace(bench, outputs=bench.workspace / "home/outputs/run_1")
        allowed = linked.under("allow Read(src/**)")
        for path in (copy, str(linked.outputs / "call_1.txt")):
            assert touch_with(allowed, "Read", {}, path).outcome == "succeeded"


def test_home_is_refused_whatever_the_rules_allow(bench: Workbench) -> None:
    (bench.home / "runner.db").write_text("secret\n")
    result = bench.run("Read", file_path=".runner/runner.db")
    assert (result.outcome, "Runner's own folder" in result.content) == ("failed", True)
