"""Reading what a workspace says to agents."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from runner.core.files.instructions import MOST_INSTRUCTION_BYTES, with_instructions
from runner.tools.instructions import read_instructions


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def test_both_files_are_read_in_order_with_their_digests(root: Path) -> None:
    (root / "CLAUDE.md").write_text("Second.\n")
    (root / "AGENTS.md").write_text("First: é\n")
    files, left_out = read_instructions(root)
    assert [(file.path, file.text) for file in files] == [
        ("AGENTS.md", "First: é\n"),
        ("CLAUDE.md", "Second.\n"),
    ]
    assert files[0].sha256 == hashlib.sha256("First: é\n".encode()).hexdigest()
    assert left_out == []
    assert with_instructions("Be brief.", files) == (
        "Be brief.\n\n# AGENTS.md of the workspace\n\nFirst: é\n\n"
        "# CLAUDE.md of the workspace\n\nSecond."
    )


def test_without_files_the_system_prompt_stays_as_it_is(root: Path) -> None:
    assert read_instructions(root) == ([], [])
    assert with_instructions("Be brief.", ()) == "Be brief."
    assert with_instructions(None, ()) is None


def test_a_file_that_both_names_lead_to_is_read_once(root: Path) -> None:
    (root / "docs").mkdir()
    (root / "docs/agents.md").write_text("Once.")
    (root / "AGENTS.md").symlink_to("docs/agents.md")
    (root / "CLAUDE.md").symlink_to("AGENTS.md")
    files, left_out = read_instructions(root)
    assert [(file.path, file.text) for file in files] == [("AGENTS.md", "Once.")]
    assert left_out == []


def test_a_link_out_of_the_workspace_is_left_out(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "workspace-too").mkdir()
    (tmp_path / "workspace-too/AGENTS.md").write_text("no")
    (root / "AGENTS.md").symlink_to("../workspace-too/AGENTS.md")
    (root / "CLAUDE.md").symlink_to(tmp_path / "secret")
    files, left_out = read_instructions(root)
    assert files == []
    assert left_out == [
        f"{name}: it is a link out of the workspace" for name in ("AGENTS.md", "CLAUDE.md")
    ]


def test_what_is_no_text_of_a_fair_size_is_left_out(root: Path) -> None:
    def why(name: str = "AGENTS.md") -> str:
        files, left_out = read_instructions(root)
        assert files == []
        (line,) = left_out
        (root / name).unlink() if not (root / name).is_dir() else (root / name).rmdir()
        return line.partition(": ")[2]

    file = root / "AGENTS.md"
    file.write_bytes(b"x" * (MOST_INSTRUCTION_BYTES + 1))
    assert why() == "it has more than 65,536 bytes"
    file.write_bytes(b"\xff")
    assert why() == "it is not UTF-8"
    file.write_text(" \n")
    assert why() == "it is empty"
    file.mkdir()
    assert why() in ("it is no file", "Is a directory")
    os.mkfifo(file)
    assert why() == "it is no file"
    file.symlink_to("nowhere")
    assert why() == "No such file or directory"


def test_control_characters_are_made_visible(root: Path) -> None:
    (root / "AGENTS.md").write_bytes(b"a\0b\x1b[31m\r\n")
    ((file,), _) = read_instructions(root)
    assert file.text == "a\\x00b\\x1b[31m\n"
