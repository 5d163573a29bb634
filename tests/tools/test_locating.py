"""Where the paths of calls lead, before a decision is made on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.permissions import ResolvedPath
from runner.ports import Surroundings
from runner.tools.toolbox import LocalTools

from .conftest import Workbench


def place(bench: Workbench, path: str) -> ResolvedPath | None:
    return bench.tools.locate([path], bench.surroundings).places.get(path)


def place_in(bench: Workbench, named: str, real: str | None = None) -> ResolvedPath:
    base = bench.workspace
    return ResolvedPath(str(base / named), str(base / (named if real is None else real)))


def test_folders_of_the_run_come_without_symlinks(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "me").symlink_to(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    tool_context = bench.tools.locate([], bench.surroundings)
    assert (
        tool_context.workspace,
        tool_context.outputs,
        tool_context.home,
        tool_context.places,
    ) == (str(bench.workspace), os.path.realpath(bench.outputs), os.path.realpath(tmp_path), {})


def test_path_has_its_name_and_where_it_leads(bench: Workbench) -> None:
    (bench.workspace / "src/deep").mkdir(parents=True)
    (bench.workspace / "link").symlink_to("src/deep")
    (bench.workspace / "dangling").symlink_to("src/new.txt")
    for path, expected in {
        "a.txt": place_in(bench, "a.txt"),
        "./src//deep/../a.txt": place_in(bench, "src/a.txt"),
        str(bench.workspace / "a.txt"): place_in(bench, "a.txt"),
        f"/{bench.workspace}/a.txt": place_in(bench, "a.txt"),
        "link/a.txt": place_in(bench, "link/a.txt", "src/deep/a.txt"),
        "link/../a.txt": place_in(bench, "a.txt", "src/a.txt"),
        "dangling": place_in(bench, "dangling", "src/new.txt"),
        "missing/a.txt": place_in(bench, "missing/a.txt"),
        "/etc/../etc": ResolvedPath("/etc", "/etc"),
    }.items():
        assert (path, place(bench, path)) == (path, expected)


def test_folders_of_the_run_have_one_name_whichever_was_used(
    bench: Workbench, tmp_path: Path
) -> None:
    (tmp_path / "work").symlink_to(bench.workspace)
    linked = replace(
        bench, workspace=tmp_path / "work", outputs=tmp_path / "work/.runner/outputs/run_1"
    )
    for path in ("src/a.txt", str(tmp_path / "work/src/a.txt"), str(bench.workspace / "src/a.txt")):
        assert place(linked, path) == place_in(bench, "src/a.txt")
    named = place(linked, str(linked.outputs / "call_1.txt"))
    assert named == place_in(bench, ".runner/outputs/run_1/call_1.txt")
    neighbour = str(tmp_path / "work2/a.txt")
    assert place(linked, neighbour) == ResolvedPath(neighbour, neighbour)


def test_home_is_where_a_shell_finds_it(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    real = os.path.realpath(tmp_path)
    assert place(bench, "~/notes.txt") == ResolvedPath(f"{real}/notes.txt", f"{real}/notes.txt")
    assert place(bench, "~") == ResolvedPath(real, real)
    assert place(bench, "~root/notes.txt") is None
    assert place(bench, "~+/notes.txt") is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a\0b",
        "a\ud800b",
        "\udc80",
        "x" * 5000,
        "x/" * 5000,
        "y" * 300,
        "loop",
        "loop/a",
        "odd",
        "/proc/self/cwd/a.txt",
        "/proc/self/root/etc/hostname",
        "/dev/fd/1",
        "/dev/fd/../cwd/a.txt",
        "/dev/../dev/stdin",
        "here/a.txt",
        "far/self/cwd/a.txt",
        "inside/here/a.txt",
    ],
)
def test_path_that_leads_nowhere_for_certain_is_left_out(bench: Workbench, path: str) -> None:
    (bench.workspace / "loop").symlink_to("loop")
    (bench.workspace / "here").symlink_to("/proc/self/cwd")
    (bench.workspace / "far").symlink_to("/proc")
    (bench.workspace / "inside").symlink_to(".")
    (bench.workspace / "odd").symlink_to(os.fsdecode(b"\xff.txt"))
    tool_context = bench.tools.locate([path, "a.txt"], bench.surroundings)
    assert tool_context.places == {"a.txt": place_in(bench, "a.txt")}


def test_chain_of_symlinks_without_an_end_is_left_out(bench: Workbench) -> None:
    for number in range(1200):
        (bench.workspace / f"chain{number}").symlink_to(f"chain{number + 1}")
    assert place(bench, "chain0") is None


def test_job_without_a_workspace_has_its_outputs(bench: Workbench) -> None:
    tool_context = bench.tools.locate(["."], Surroundings(None, bench.outputs))
    assert tool_context.workspace is None
    assert tool_context.places["."].real == tool_context.outputs


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTools]:
    home = tmp_path_factory.mktemp("home")
    tools = LocalTools(home, home / "locks")
    yield tools
    tools.close()


@pytest.mark.slow
@given(st.lists(st.text(st.characters(exclude_categories=())) | st.text("./~\0a"), max_size=5))
def test_whatever_the_path_is_locating_goes_well(tools: LocalTools, paths: list[str]) -> None:
    tool_context = tools.locate(paths, Surroundings(Path("/tmp"), Path("/tmp/outputs")))
    for path, found in tool_context.places.items():
        assert path in paths
        assert found.named.startswith("/")
        assert os.path.normpath(found.named) == found.named
        assert os.path.realpath(found.real) == found.real
