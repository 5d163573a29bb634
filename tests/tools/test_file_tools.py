"""Read, Write and Edit: exact, and never outside their places."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.conversation import ToolResult
from runner.errors import HostFaultError
from runner.ports import Interrupt
from runner.tools import file_access
from runner.tools.files import MOST_COMPARED_BYTES
from runner.tools.toolbox import LocalTools

from .conftest import Workbench

EVERY_FILE_TOOL = [
    ("Read", {}),
    ("Write", {"content": "x"}),
    ("Edit", {"old_string": "secret", "new_string": "x"}),
    ("Grep", {"pattern": "secret"}),
]


def touch_with(bench: Workbench, tool: str, given: dict[str, str], path: Path | str) -> ToolResult:
    where = "path" if tool == "Grep" else "file_path"
    return bench.run(tool, **given, **{where: str(path)})


@pytest.mark.parametrize(("tool", "given"), EVERY_FILE_TOOL)
class TestPlaces:
    def test_path_outside_the_workspace_is_refused(
        self, bench: Workbench, tmp_path: Path, tool: str, given: dict[str, str]
    ) -> None:
        outside = tmp_path / "outside.txt"
        outside.write_text("secret\n")
        (bench.workspace / "file_link").symlink_to(outside)
        (bench.workspace / "folder_link").symlink_to(tmp_path)
        (bench.workspace / "chain").symlink_to("folder_link")
        for path in (
            outside,
            "../outside.txt",
            "file_link",
            "folder_link/outside.txt",
            "chain/outside.txt",
        ):
            result = touch_with(bench, tool, given, path)
            assert result.outcome == "failed"
            assert "outside the workspace" in result.content
        assert outside.read_text() == "secret\n"

    def test_neighbour_with_the_same_beginning_is_outside(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        neighbour = bench.workspace.with_name("workspace2")
        neighbour.mkdir()
        (neighbour / "a").write_text("secret\n")
        assert touch_with(bench, tool, given, neighbour / "a").outcome == "failed"

    def test_home_is_refused(self, bench: Workbench, tool: str, given: dict[str, str]) -> None:
        (bench.home / "runner.db").write_text("secret\n")
        (bench.workspace / "link").symlink_to(bench.home)
        for path in (".runner/runner.db", "link/runner.db"):
            result = touch_with(bench, tool, given, path)
            assert (result.outcome, "Runner's own folder" in result.content) == ("failed", True)
        assert (bench.home / "runner.db").read_text() == "secret\n"

    def test_workspace_in_home_is_open_and_its_neighbours_are_not(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        copies = bench.home / "workspaces"
        for name in ("run_1", "run_2"):
            (copies / name).mkdir(parents=True)
            (copies / name / "a.txt").write_text("secret\n")
        own = replace(bench, workspace=copies / "run_1")
        assert touch_with(own, tool, given, "a.txt").outcome == "succeeded"
        assert touch_with(own, tool, given, copies / "run_2" / "a.txt").outcome == "failed"

    def test_what_is_no_regular_file_is_refused_without_waiting(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch, tool: str, given: dict[str, str]
    ) -> None:
        os.mkfifo(bench.workspace / "pipe")
        with socket.socket(socket.AF_UNIX) as listening:
            monkeypatch.chdir(bench.workspace)  # a socket's address is short
            listening.bind("socket")
            for name in ("pipe", "socket"):
                result = touch_with(bench, tool, given, name)
                assert (result.outcome, "not a regular file" in result.content) == ("failed", True)

    def test_device_and_proc_are_refused(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        everywhere = replace(bench, workspace=Path("/"), home=Path("/nowhere"))
        for name in ("/dev/zero", "/proc/self/environ", "/proc/self/mem"):
            result = touch_with(everywhere, tool, given, name)
            assert (result.outcome, "not a regular file" in result.content) == ("failed", True)

    def test_symlink_loop_is_refused(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        (bench.workspace / "loop").symlink_to("loop")
        assert touch_with(bench, tool, given, "loop").outcome == "failed"

    @pytest.mark.parametrize("path", ["a\0b", "a\ud800b", "x" * 5000, "x/" * 5000])
    def test_path_that_is_none_is_refused(
        self, bench: Workbench, tool: str, given: dict[str, str], path: str
    ) -> None:
        result = touch_with(bench, tool, given, path)
        assert result.outcome == "failed"
        result.content.encode()

    def test_job_without_a_workspace_has_no_files(
        self, bench: Workbench, tool: str, given: dict[str, str]
    ) -> None:
        where = "path" if tool == "Grep" else "file_path"
        call = bench.call(tool, **given, **{where: "a.txt"})
        call = replace(call, surroundings=replace(call.surroundings, workspace=None))
        result = bench.tools.run(call, Interrupt())
        assert result.outcome == "failed"


@pytest.mark.parametrize("tool", ["Read", "Write", "Edit"])
def test_empty_path_is_refused(bench: Workbench, tool: str) -> None:
    result = touch_with(bench, tool, dict(EVERY_FILE_TOOL)[tool], "")
    assert (result.outcome, "the path is empty" in result.content) == ("failed", True)


@pytest.mark.parametrize("tool", ["Read", "Write", "Edit"])
def test_folder_is_refused_with_a_hint(bench: Workbench, tool: str) -> None:
    (bench.workspace / "src").mkdir()
    result = touch_with(bench, tool, dict(EVERY_FILE_TOOL)[tool], "src")
    assert (result.outcome, "is a folder" in result.content) == ("failed", True)


@pytest.mark.parametrize("tool", ["Read", "Edit", "Grep"])
def test_disk_that_fails_while_a_file_is_read_is_a_result(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    monkeypatch.setattr(
        file_access, "_KERNEL_DEVICES", frozenset()
    )  # so that the file can be opened
    everywhere = replace(bench, workspace=Path("/"), home=Path("/nowhere"))
    # Memory that is not there: read(2) gives EIO.
    result = touch_with(everywhere, tool, dict(EVERY_FILE_TOOL)[tool], "/proc/self/mem")
    if tool == "Grep":  # it searches many files, and goes on
        assert (result.outcome, result.content) == ("succeeded", "No matches found")
    else:
        said = "/proc/self/mem: Input/output error"
        assert (result.outcome, result.content) == ("failed", said)


def test_symlink_inside_the_workspace_is_followed_and_kept(bench: Workbench) -> None:
    (bench.workspace / "real.txt").write_text("old")
    (bench.workspace / "link.txt").symlink_to("real.txt")
    assert bench.run("Write", file_path="link.txt", content="new").outcome == "succeeded"
    assert (bench.workspace / "link.txt").is_symlink()
    assert bench.run("Read", file_path="link.txt").content == "     1\tnew"


class TestRead:
    def test_lines_are_numbered_as_by_cat(self, bench: Workbench) -> None:
        (bench.workspace / "a.txt").write_text("one\n\n  three")
        assert (
            bench.run("Read", file_path="a.txt").content == "     1\tone\n     2\t\n     3\t  three"
        )

    def test_offset_and_limit_choose_lines(self, bench: Workbench) -> None:
        (bench.workspace / "a.txt").write_text("".join(f"{n}\n" for n in range(1, 11)))
        result = bench.run("Read", file_path=str(bench.workspace / "a.txt"), offset=4, limit=2)
        assert result.content == "     4\t4\n     5\t5\n[the file goes on: read it with offset=6]"
        assert bench.run("Read", file_path="a.txt", offset=10).content == "    10\t10"
        past = bench.run("Read", file_path="a.txt", offset=11)
        assert (past.outcome, past.content) == (
            "failed",
            "a.txt has 10 lines: offset 11 is past its end",
        )

    def test_two_thousand_lines_are_shown_at_most(self, bench: Workbench) -> None:
        (bench.workspace / "a.txt").write_text("x\n" * 2001)
        content = bench.run("Read", file_path="a.txt").content
        assert content.endswith("  2000\tx\n[the file goes on: read it with offset=2001]")

    def test_long_lines_and_many_of_them_stay_below_the_cap(self, bench: Workbench) -> None:
        (bench.workspace / "a.txt").write_text(("y" * 200_000 + "\n") * 100)
        result = bench.run("Read", file_path="a.txt")
        assert len(result.content) <= 50_000
        assert "[… the line goes on]\n     2\ty" in result.content
        assert "read it with offset=" in result.content
        assert result.output is None

    def test_huge_file_is_read_where_it_is_asked(self, bench: Workbench) -> None:
        with open(bench.workspace / "huge.txt", "wb") as file:
            file.write(b"first\nsecond\n" * 1_000)
            file.truncate(1 << 40)  # a terabyte, of which nothing is stored
        result = bench.run("Read", file_path="huge.txt", limit=1)
        assert result.content.startswith("     1\tfirst\n")

    @pytest.mark.slow
    def test_endless_line_ends_at_the_timeout(self, bench: Workbench) -> None:
        with open(bench.workspace / "huge.txt", "wb") as file:
            file.write(b"x" * 10_000)
            file.truncate(1 << 40)
        result = bench.run("Read", seconds=0.2, file_path="huge.txt", offset=2)
        assert result.outcome == "timed_out"

    def test_binary_file_is_explained(self, bench: Workbench) -> None:
        (bench.workspace / "a.bin").write_bytes(b"\x7fELF\0\0\0\0\0\0\0")
        result = bench.run("Read", file_path="a.bin")
        assert (result.outcome, result.content) == (
            "failed",
            "a.bin is a binary file (11 bytes): Read shows text in UTF-8, PNG, JPEG, GIF, WebP and PDF",
        )

    def test_bytes_that_are_not_utf_8_are_shown_with_a_note(self, bench: Workbench) -> None:
        (bench.workspace / "a.txt").write_bytes("é\n".encode("latin-1"))
        content = bench.run("Read", file_path="a.txt").content
        assert content.startswith("     1\t\ufffd\n[not UTF-8")

    def test_windows_line_ends_are_noted(self, bench: Workbench) -> None:
        (bench.workspace / "a.txt").write_bytes(b"a\r\nb\r\n")
        content = bench.run("Read", file_path="a.txt").content
        assert content.startswith("     1\ta\n     2\tb\n[lines end with \\r\\n")

    def test_empty_file_is_said_in_words(self, bench: Workbench) -> None:
        (bench.workspace / "a.txt").touch()
        assert bench.run("Read", file_path="a.txt").content == "(the file is empty)"

    def test_missing_file_is_named(self, bench: Workbench) -> None:
        result = bench.run("Read", file_path="none.txt")
        assert (result.outcome, "none.txt does not exist" in result.content) == ("failed", True)


class TestOutputs:
    @pytest.mark.slow
    def test_long_output_is_read_and_searched_and_not_written(self, bench: Workbench) -> None:
        bench.run("Bash", command="seq 1 20000")
        copy = str(bench.outputs / "call_1.txt")
        assert bench.run("Read", file_path=copy, offset=777, limit=1).content.startswith(
            "   777\t777\n"
        )
        assert (
            "1234" in bench.run("Grep", pattern="^1234$", path=copy, output_mode="content").content
        )
        refused = bench.run("Write", file_path=copy, content="x")
        assert (refused.outcome, "not written" in refused.content) == ("failed", True)

    @pytest.mark.parametrize("tool", ["Read", "Grep"])
    def test_missing_copy_is_made_again_from_the_store(self, bench: Workbench, tool: str) -> None:
        bench.stored["call_7"] = b"kept\n"
        copy = bench.outputs / "call_7.txt"
        given = {"pattern": "kept", "output_mode": "content"} if tool == "Grep" else {}
        assert "kept" in touch_with(bench, tool, given, copy).content
        assert copy.read_bytes() == b"kept\n"

    @pytest.mark.parametrize("tool", ["Read", "Grep"])
    def test_copy_that_cannot_be_made_again_is_a_result(self, bench: Workbench, tool: str) -> None:
        bench.stored["call_7"] = b"kept\n"
        bench.outputs.parent.mkdir(parents=True)
        bench.outputs.write_text("a file in the way of the folder")
        given = {"pattern": "kept"} if tool == "Grep" else {}
        result = touch_with(bench, tool, given, bench.outputs / "call_7.txt")
        assert (result.outcome, "cannot be made again" in result.content) == ("failed", True)

    def test_only_the_runs_own_outputs_are_made_again(self, bench: Workbench) -> None:
        asked: list[tuple[str, str]] = []

        def stored(run_id: str, name: str) -> bytes:
            asked.append((run_id, name))
            return b"kept\n"

        tools = LocalTools(bench.home, bench.lock_dir, (), stored)
        here = replace(bench, tools=tools)
        whole = bench.outputs / "toolu_01.txt"
        assert "kept" in here.run("Read", file_path=str(whole)).content
        for path in (bench.outputs / "deeper/toolu_01.txt", bench.workspace / "toolu_01.txt"):
            assert "does not exist" in here.run("Read", file_path=str(path)).content
        tools.close()
        assert asked == [("run_1", "toolu_01")]

    def test_output_that_was_never_stored_does_not_exist(self, bench: Workbench) -> None:
        result = bench.run("Read", file_path=str(bench.outputs / "call_8.txt"))
        assert (result.outcome, "does not exist" in result.content) == ("failed", True)

    def test_outputs_of_another_run_are_refused(self, bench: Workbench) -> None:
        other = bench.outputs.with_name("run_2") / "call_9.txt"
        other.parent.mkdir(parents=True)
        other.write_text("theirs")
        assert bench.run("Read", file_path=str(other)).outcome == "failed"


class TestWrite:
    def test_content_is_written_byte_for_byte(self, bench: Workbench) -> None:
        content = "a\r\nb\rc\n\tä\u2028\0end"
        assert (
            bench.run("Write", file_path="new/deep/a.txt", content=content).outcome == "succeeded"
        )
        assert (bench.workspace / "new/deep/a.txt").read_bytes() == content.encode()

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
    def test_full_disk_is_no_answer_to_the_model(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        (bench.workspace / "a.txt").write_text("old")
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", refuse)
            with pytest.raises(HostFaultError, match=f"a.txt: {os.strerror(number)}"):
                bench.run("Write", file_path="a.txt", content="new")
        assert list(bench.workspace.glob(".runner-*")) == []
        assert (bench.workspace / "a.txt").read_text() == "old"

    def test_read_only_folder_is_an_answer(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", refuse)
            result = bench.run("Write", file_path="a.txt", content="new")
        assert (result.outcome, result.content) == ("failed", "a.txt: Read-only file system")

    def test_control_characters_of_a_path_are_not_shown_raw(self, bench: Workbench) -> None:
        result = bench.run("Write", file_path="a\x1b[31m", content="x")
        assert result.content == "Made a\\x1b[31m (1 bytes)."

    def test_mode_bits_are_kept_and_no_temporary_file_is_left(self, bench: Workbench) -> None:
        script = bench.workspace / "run.sh"
        script.write_text("old")
        script.chmod(0o751)
        assert bench.run("Write", file_path="run.sh", content="new").content.startswith("Replaced")
        assert script.stat().st_mode & 0o7777 == 0o751
        assert sorted(path.name for path in bench.workspace.iterdir()) == [".runner", "run.sh"]

    def test_reader_keeps_the_whole_old_file(self, bench: Workbench) -> None:
        (bench.workspace / "a.txt").write_text("old")
        with open(bench.workspace / "a.txt") as reader:
            bench.run("Write", file_path="a.txt", content="new")
            assert reader.read() == "old"

    def test_file_in_the_way_of_a_folder_is_said(self, bench: Workbench) -> None:
        (bench.workspace / "a").write_text("x")
        result = bench.run("Write", file_path="a/b.txt", content="x")
        assert (result.outcome, "is a file, not a folder" in result.content) == ("failed", True)

    def test_lone_surrogate_is_invalid_input(self, bench: Workbench) -> None:
        result = bench.run("Write", file_path="a.txt", content="a\ud800")
        assert (result.outcome, "character 1" in result.content) == ("invalid_input", True)
        assert not (bench.workspace / "a.txt").exists()


class TestEdit:
    def edit(self, bench: Workbench, content: bytes, **given: object) -> tuple[ToolResult, bytes]:
        path = bench.workspace / "a.txt"
        path.write_bytes(content)
        return bench.run("Edit", file_path="a.txt", **given), path.read_bytes()

    def test_text_is_replaced_and_all_other_bytes_stay(self, bench: Workbench) -> None:
        result, after = self.edit(bench, b"a\r\nb\r\n\xc3\xa4", old_string="b", new_string="c")
        assert after == b"a\r\nc\r\n\xc3\xa4"
        assert result.content == "Edited a.txt in 1 place (line 2)."

    def test_text_found_more_than_once_is_counted_with_its_lines(self, bench: Workbench) -> None:
        result, after = self.edit(bench, b"x\ny\nx\n", old_string="x", new_string="z")
        assert after == b"x\ny\nx\n"
        assert "found 2 times in a.txt (lines 1, 3)" in result.content

    def test_replace_all_changes_every_place(self, bench: Workbench) -> None:
        _, after = self.edit(bench, b"x\ny\nx\n", old_string="x", new_string="z", replace_all=True)
        assert after == b"z\ny\nz\n"

    @pytest.mark.parametrize(
        ("content", "old", "reason"),
        [
            (b"abc", "x", "give its exact text"),
            (b"  if a:\n    b\n", "if a:\n  b", "differs from it only in white space"),
            (b"a\r\nb\r\n", "a\nb", "give \\r\\n where"),
            (b"a\nb\n", "     1\ta\n     2\tb", "leave out the line numbers"),
            (b"", "x", "give its exact text"),
            (b"abc", " \n", "give its exact text"),
            (b"a\nb\nbc\n  b\n c\n", " b\n  c", "line 4 differs from it only in white space"),
            (b"abc\n", "  bc", "give its exact text"),
        ],
    )
    def test_text_that_is_not_found_is_explained(
        self, bench: Workbench, content: bytes, old: str, reason: str
    ) -> None:
        result, after = self.edit(bench, content, old_string=old, new_string="new")
        assert after == content
        assert result.outcome == "failed"
        assert "was not found in a.txt" in result.content
        assert reason in result.content

    @pytest.mark.timeout(60)
    def test_many_lines_that_repeat_themselves_are_compared_in_one_go(
        self, bench: Workbench
    ) -> None:
        lines = b"  same\n" * 200_000
        old = "same\n" * 20_000 + "other"
        result, after = self.edit(bench, lines, old_string=old, new_string="new")
        assert after == lines
        assert "give its exact text" in result.content

    def test_lines_of_a_large_file_are_not_compared(self, bench: Workbench) -> None:
        lines = b"  same\n" * (MOST_COMPARED_BYTES // 7 + 1)
        result, _ = self.edit(bench, lines, old_string="same\nsame", new_string="new")
        assert "give its exact text" in result.content

    def test_unchanged_and_empty_texts_are_refused(self, bench: Workbench) -> None:
        same, _ = self.edit(bench, b"a", old_string="a", new_string="a")
        assert "are the same" in same.content
        empty, _ = self.edit(bench, b"a", old_string="", new_string="a")
        assert "old_string is empty" in empty.content

    def test_file_that_is_not_utf_8_is_refused(self, bench: Workbench) -> None:
        result, after = self.edit(bench, b"abc\xff", old_string="a", new_string="b")
        assert after == b"abc\xff"
        assert "is not UTF-8 (byte 3)" in result.content

    def test_missing_file_is_named(self, bench: Workbench) -> None:
        result = bench.run("Edit", file_path="none", old_string="a", new_string="b")
        assert (result.outcome, "does not exist" in result.content) == ("failed", True)
