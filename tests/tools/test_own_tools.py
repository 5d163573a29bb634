"""Own tools: described and run in children, never imported here."""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path

import pytest

from runner.core.conversation import Tool
from runner.tools.registry import BUILTIN, resolve_hooks, resolve_tools

from .conftest import Workbench, process_ids, running

MODULE = '''
import asyncio, os, subprocess, sys
from pathlib import Path
from typing import Literal
from runner.tools.own import tool

@tool(read_only=True, repeatable=True)
def look_up(word: str, times: int = 1, mode: Literal["a", "b"] = "a") -> list[str]:
    """Look a word up.

    Slowly.

    Args:
        word: what to look up,
            in lower case
        times (int): how often
    """
    print("noise on stdout")
    return [word] * times

def plain(path: Path) -> str:
    """Say where."""
    return f"{type(path).__name__} {Path.cwd()}"

async def later() -> dict[str, int]:
    """Wait."""
    await asyncio.sleep(0)
    return {"a": 1}

def raises(kind: str) -> object:
    """Go wrong."""
    if kind == "key": raise KeyError("lost \\x1b[31m \\ud800")
    if kind == "exit": sys.exit(3)
    if kind == "os_exit": os.write(2, b"last words"); os._exit(4)
    if kind == "object": return object()
    if kind == "none": return None
    if kind == "long": return "x" * 200_000
    if kind == "surrogate": return "a\\ud800b"
    if kind == "environment": return dict(os.environ)

def spawns() -> str:
    """Leave a process behind."""
    subprocess.Popen(["bash", "-c", "echo $$ >> pids; exec sleep 1000"], start_new_session=True)
    while not os.path.exists("pids") or not Path("pids").read_text().endswith("\\n"): pass
    return "left"

def undocumented(a: int) -> int: return a
def unhinted(a) -> int:
    """A."""
def positional(a: int, /) -> int:
    """A."""
def variadic(*a: int) -> int:
    """A."""
def Bash(a: int) -> int:
    """A."""
def Agent(a: int) -> int:
    """A."""
def hook(event): return None
def late(event, more): return None
def odd(a: type(sys)) -> int:
    """A."""
NUMBER = 3
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that no test changes."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "pkg").mkdir()
    (folder / "pkg" / "mine.py").write_text(MODULE)
    (folder / "pkg" / "dies.py").write_text("import os; os._exit(5)")
    (folder / "pkg" / "exits.py").write_text("raise SystemExit('bye')")
    return folder


@cache  # each is described by a process of its own
def own(folder: Path, function: str) -> Tool:
    ((tool,), _) = resolve_tools([f"pkg.mine:{function}"], folder)
    return tool


@pytest.mark.slow
def test_tools_come_in_the_order_of_their_names(folder: Path) -> None:
    tools, problems = resolve_tools(["Grep", "pkg.mine:plain", "Bash"], folder)
    assert problems == ()
    assert [tool.name for tool in tools] == ["Grep", "plain", "Bash"]
    assert "pkg.mine" not in sys.modules


@pytest.mark.slow
def test_function_is_described_by_its_hints_docstring_and_decorator(folder: Path) -> None:
    tool = own(folder, "look_up")
    assert tool.description == "Look a word up.\n\nSlowly."
    assert (tool.read_only, tool.repeatable) == (True, True)
    assert tool.source == f"pkg.mine:look_up@{folder}"
    assert tool.input_schema["required"] == ["word"]
    properties = tool.input_schema["properties"]
    assert properties["word"]["description"] == "what to look up, in lower case"
    assert properties["times"]["description"] == "how often"
    assert properties["mode"]["enum"] == ["a", "b"]


@pytest.mark.slow
def test_function_without_decorator_is_neither_read_only_nor_repeatable(folder: Path) -> None:
    tool = own(folder, "plain")
    assert (tool.read_only, tool.repeatable) == (False, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Bsh", "the builtin ones are Bash, Read, Write, Edit, Glob, Grep, Agent"),
        ("pkg.mine:", "there is no such tool"),
        ("pkg.mine:nothing", "has no nothing"),
        ("pkg.mine:NUMBER", "is not a function"),
        ("pkg.none:look_up", "No module named 'pkg.none'"),
        ("pkg.dies:look_up", "importing it ended the process (5)"),
        ("pkg.exits:look_up", "SystemExit: bye"),
        ("pkg.mine:undocumented", "has no docstring"),
        ("pkg.mine:unhinted", "the parameter a has no type hint"),
        ("pkg.mine:positional", "cannot be given by name"),
        ("pkg.mine:variadic", "cannot be given by name"),
        ("pkg.mine:Bash", "is the name of a builtin tool"),
        ("pkg.mine:Agent", "is the name of a builtin tool"),
        ("pkg.mine:odd", "cannot be put in a JSON schema"),
    ],
)
def test_name_that_cannot_be_used_is_explained_in_a_line(
    folder: Path, name: str, reason: str
) -> None:
    tools, ((named, message),) = resolve_tools([name, "Read"], folder)
    assert ([tool.name for tool in tools], named) == (["Read"], name)
    assert reason in message
    assert "\n" not in message


@pytest.mark.slow
def test_all_problems_are_listed_at_once(folder: Path) -> None:
    _, problems = resolve_tools(["Nope", "Read", "Read", "pkg.mine:nothing"], folder)
    assert [name for name, _ in problems] == ["Nope", "Read", "pkg.mine:nothing"]


@pytest.mark.slow
def test_functions_that_can_be_hooks_are_found_and_not_run(folder: Path) -> None:
    names = ["pkg.mine:hook", "pkg.mine:raises", "pkg.mine:hook"]
    found, problems = resolve_hooks(names, folder)
    assert problems == ()
    assert found == {name: f"{name}@{folder}" for name in names}
    assert "pkg.mine" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("./check.sh", "there is no such function: name it package.module:function"),
        ("pkg.mine:nothing", "has no nothing"),
        ("pkg.mine:NUMBER", "is not a function"),
        ("pkg.none:hook", "No module named 'pkg.none'"),
        ("pkg.dies:hook", "importing it ended the process (5)"),
        ("pkg.mine:late", "it cannot be called with one argument, the event: missing a required"),
        ("pkg.mine:later", "it cannot be called with one argument, the event: too many"),
    ],
)
def test_function_that_cannot_be_a_hook_is_explained_in_a_line(
    folder: Path, name: str, reason: str
) -> None:
    found, ((named, message),) = resolve_hooks([name, "pkg.mine:hook"], folder)
    assert (list(found), named) == (["pkg.mine:hook"], name)
    assert reason in message
    assert "\n" not in message


@pytest.mark.slow
def test_function_is_called_with_the_input_and_its_result_is_text(
    bench: Workbench, folder: Path
) -> None:
    result = bench.run(own(folder, "look_up"), word="hä", times=2)
    assert (result.outcome, result.content) == ("succeeded", '["hä", "hä"]')


@pytest.mark.slow
def test_function_runs_in_the_workspace_with_converted_arguments(
    bench: Workbench, folder: Path
) -> None:
    result = bench.run(own(folder, "plain"), path="a")
    assert result.content == f"PosixPath {bench.workspace}"


@pytest.mark.slow
def test_coroutine_is_awaited(bench: Workbench, folder: Path) -> None:
    assert bench.run(own(folder, "later")).content == '{"a": 1}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "outcome", "content"),
    [
        ("key", "failed", "KeyError: 'lost \\x1b[31m \\ud800'"),
        ("exit", "failed", "SystemExit: 3"),
        ("os_exit", "failed", "raises ended without a result (exit code 4). last words"),
        ("object", "failed", "it returned what is neither text nor JSON"),
        ("none", "succeeded", "(no output)"),
        ("surrogate", "succeeded", "a\ufffd\ufffd\ufffdb"),
        ("other", "succeeded", "(no output)"),
    ],
)
def test_whatever_a_function_does_is_a_result(
    bench: Workbench, folder: Path, kind: str, outcome: str, content: str
) -> None:
    result = bench.run(own(folder, "raises"), kind=kind)
    assert result.outcome == outcome
    assert result.content.startswith(content)
    assert "Traceback" not in result.content


@pytest.mark.slow
def test_long_result_is_capped_and_kept(bench: Workbench, folder: Path) -> None:
    result = bench.run(own(folder, "raises"), kind="long")
    assert len(result.content) <= 50_000
    assert result.output == b"x" * 200_000


@pytest.mark.slow
def test_function_sees_no_secret(bench: Workbench, folder: Path) -> None:
    content = bench.run(own(folder, "raises"), kind="environment").content
    assert "HARMLESS" in content
    assert "hunter2" not in content


@pytest.mark.slow
def test_process_that_a_function_leaves_is_killed(bench: Workbench, folder: Path) -> None:
    assert bench.run(own(folder, "spawns")).content == "left"
    assert running(process_ids(bench.workspace / "pids", 1)) == []


def test_input_that_does_not_fit_never_reaches_the_function(bench: Workbench, folder: Path) -> None:
    tool = own(folder, "look_up")
    for given in ({}, {"word": 3}, {"word": "a", "other": 1}, {"word": "a", "mode": "c"}):
        result = bench.run(tool, **given)
        assert (result.outcome, "does not fit look_up" in result.content) == ("invalid_input", True)


def test_input_nested_too_deeply_is_invalid(bench: Workbench, folder: Path) -> None:
    deep: dict[str, object] = {}
    for _ in range(500):  # any deeper, and nothing authorizes it
        deep = {"a": deep}
    tool = own(folder, "look_up")
    recursive = {"type": "object", "additionalProperties": {"$ref": "#"}}
    result = bench.run(Tool(tool.name, "", recursive, source=tool.source), word=deep)
    assert (result.outcome, "nested too deeply" in result.content) == ("invalid_input", True)


@pytest.mark.slow
def test_input_that_only_the_hints_refuse_is_invalid_too(bench: Workbench, folder: Path) -> None:
    tool = own(folder, "look_up")
    lax = Tool(tool.name, tool.description, {"type": "object"}, source=tool.source)
    result = bench.run(lax, word=3)
    assert (result.outcome, result.content) == (
        "invalid_input",
        "word: Input should be a valid string",
    )


@pytest.mark.parametrize("source", ["builtin", "mcp://x", "pkg.mine:look_up", "a@b"])
def test_source_that_this_worker_does_not_know_is_a_result(bench: Workbench, source: str) -> None:
    result = bench.run(Tool("Other", "", {"type": "object"}, source=source))
    assert result.outcome == "failed"


@pytest.mark.slow
def test_module_that_is_gone_is_a_result(bench: Workbench, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "pkg", tmp_path / "pkg")
    tool = own(tmp_path, "look_up")
    (tmp_path / "pkg" / "mine.py").unlink()
    result = bench.run(tool, word="a")
    assert (result.outcome, "No module named" in result.content) == ("failed", True)


def test_builtin_tools_are_declared_as_what_they_are() -> None:
    safe = {name for name, tool in BUILTIN.items() if tool.read_only and tool.repeatable}
    assert safe == {"Read", "Glob", "Grep"}
    assert not any(BUILTIN[name].repeatable for name in ("Bash", "Write", "Edit"))
