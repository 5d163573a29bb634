"""Grep and Glob: found in order, inside the workspace, and killable whatever the pattern."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from runner.errors import Interrupted
from runner.ports import Interrupt

from .conftest import PATIENCE, Workbench


@pytest.fixture
def tree(bench: Workbench, tmp_path: Path) -> Workbench:
    """A workspace with files, and things that a search has to pass over."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "stolen.py").write_text("needle\n")
    for path, content in {
        "a.py": "one\nneedle\nthree\nfour\nfive\nNEEDLE\n",
        "src/b.py": "x = 'needle'\nneedle\n",
        "src/deep/c.ts": "needle\n",
        "src/deep/d.txt": "start\nmiddle\nend\n",
        ".git/config": "needle\n",
        ".runner/settings": "needle\n",
        "z/latin.txt": "ne\ufffdedle",
    }.items():
        file = bench.workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (bench.workspace / "image.bin").write_bytes(b"needle\0needle")
    (bench.workspace / "away").symlink_to(outside)
    (bench.workspace / "away.py").symlink_to(outside / "stolen.py")
    os.mkfifo(bench.workspace / "pipe")
    return bench


class TestGrep:
    @pytest.mark.slow
    def test_files_with_matches_come_sorted_and_only_from_the_workspace(
        self, tree: Workbench
    ) -> None:
        assert tree.run("Grep", pattern="needle").content == "a.py\nsrc/b.py\nsrc/deep/c.ts"

    @pytest.mark.slow
    def test_count_counts_lines(self, tree: Workbench) -> None:
        result = tree.run("Grep", pattern="needle", output_mode="count", **{"-i": True})
        assert result.content == "a.py:2\nsrc/b.py:2\nsrc/deep/c.ts:1"

    @pytest.mark.slow
    def test_content_shows_lines_with_numbers_and_context(self, tree: Workbench) -> None:
        result = tree.run(
            "Grep", pattern="needle", path="a.py", output_mode="content", **{"-i": True, "-C": 1}
        )
        assert result.content == (
            "a.py-1-one\na.py:2:needle\na.py-3-three\n--\na.py-5-five\na.py:6:NEEDLE"
        )

    @pytest.mark.slow
    def test_content_without_numbers(self, tree: Workbench) -> None:
        result = tree.run(
            "Grep", pattern="^needle", path="src", output_mode="content", **{"-n": False}
        )
        assert result.content == "src/b.py:needle\nsrc/deep/c.ts:needle"

    @pytest.mark.slow
    def test_context_after_and_before_are_apart(self, tree: Workbench) -> None:
        given = {"pattern": "middle", "output_mode": "content"}
        assert tree.run("Grep", **given, **{"-A": 1}).content.endswith("d.txt-3-end")
        assert tree.run("Grep", **given, **{"-B": 1}).content.startswith("src/deep/d.txt-1-start")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("chosen", "found"),
        [
            ({"glob": "*.ts"}, "src/deep/c.ts"),
            ({"glob": "src/*.py"}, "src/b.py"),
            ({"glob": "**/*.{ts,txt}"}, "src/deep/c.ts"),
            ({"type": "py"}, "a.py\nsrc/b.py"),
            ({"type": "py", "glob": "src/**"}, "src/b.py"),
        ],
    )
    def test_glob_and_type_choose_files(
        self, tree: Workbench, chosen: dict[str, str], found: str
    ) -> None:
        assert tree.run("Grep", pattern="needle", **chosen).content == found

    @pytest.mark.slow
    def test_multiline_matches_across_lines(self, tree: Workbench) -> None:
        given = {"pattern": "start.middle", "output_mode": "content"}
        assert tree.run("Grep", **given).content == "No matches found"
        assert tree.run("Grep", **given, multiline=True).content == (
            "src/deep/d.txt:1:start\nsrc/deep/d.txt:2:middle"
        )

    @pytest.mark.slow
    def test_head_limit_says_that_it_cut(self, tree: Workbench) -> None:
        result = tree.run("Grep", pattern="needle", head_limit=1)
        assert result.content == "a.py\n[only the first 1 lines of the result]"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "given",
        [{"pattern": "(a"}, {"pattern": "a", "type": "cobol"}, {"pattern": "a", "glob": "[z-a]"}],
    )
    def test_pattern_that_is_none_is_explained(
        self, tree: Workbench, given: dict[str, str]
    ) -> None:
        result = tree.run("Grep", **given)
        assert result.outcome == "invalid_input"
        assert "Traceback" not in result.content

    def test_missing_path_is_named(self, tree: Workbench) -> None:
        result = tree.run("Grep", pattern="a", path="nowhere")
        assert (result.outcome, "nowhere does not exist" in result.content) == ("failed", True)


class TestGlob:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("*.py", "a.py"),
            ("**/*.py", "a.py\nsrc/b.py"),
            ("src/**", "src/b.py\nsrc/deep/c.ts\nsrc/deep/d.txt"),
            ("./src/*", "src/b.py"),
            ("**/[cd].{ts,txt}", "src/deep/c.ts\nsrc/deep/d.txt"),
            ("**/[!c].t?*", "src/deep/d.txt"),
            ("**/*.rs", "No files match **/*.rs"),
        ],
    )
    def test_pattern_names_files(self, tree: Workbench, pattern: str, found: str) -> None:
        assert tree.run("Glob", pattern=pattern).content == found

    @pytest.mark.slow
    def test_path_is_where_the_pattern_begins(self, tree: Workbench) -> None:
        assert (
            tree.run("Glob", pattern="*", path="src/deep").content
            == "src/deep/c.ts\nsrc/deep/d.txt"
        )

    @pytest.mark.slow
    def test_absolute_pattern_in_the_workspace_is_understood(self, tree: Workbench) -> None:
        assert tree.run("Glob", pattern=f"{tree.workspace}/src/*.py").content == "src/b.py"
        assert tree.run("Glob", pattern="/etc/*").outcome == "failed"

    @pytest.mark.parametrize("path", ["..", "away", "a.py", "nowhere", ".runner"])
    def test_folder_that_may_not_be_searched_is_refused(self, tree: Workbench, path: str) -> None:
        assert tree.run("Glob", pattern="*", path=path).outcome == "failed"


@pytest.mark.parametrize(
    ("tool", "given"), [("Grep", {"pattern": "(a+)+$"}), ("Glob", {"pattern": "*a" * 25 + "c"})]
)
class TestCatastrophicPatterns:
    @pytest.fixture
    def trap(self, bench: Workbench) -> Workbench:
        (bench.workspace / ("a" * 200)).write_text("a" * 60 + "b\n")
        return bench

    @pytest.mark.slow
    def test_pattern_times_out(self, trap: Workbench, tool: str, given: dict[str, str]) -> None:
        result = trap.run(tool, seconds=0.5, **given)
        assert (result.outcome, "it took more than 0.5 s" in result.content) == ("timed_out", True)

    @pytest.mark.slow
    def test_pattern_holds_nobody_up_and_can_be_interrupted(
        self, trap: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        interrupt = Interrupt()
        ended = threading.Event()

        def search() -> None:
            with pytest.raises(Interrupted):
                trap.tools.run(trap.call(tool, 600, **given), interrupt)
            ended.set()

        thread = threading.Thread(target=search)
        thread.start()
        assert trap.run("Bash", command="echo meanwhile").content == "meanwhile\n"
        assert not ended.is_set()
        interrupt.set("dropped")
        thread.join(PATIENCE)
        assert ended.is_set()
