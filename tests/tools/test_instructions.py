"""Reading what a workspace says to agents."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from runner.core.workspace import MOST_INSTRUCTION_BYTES, Instructions, with_instructions
from runner.permissions import Rule
from runner.permissions.decisions import Policy
from runner.ports import Surroundings
from runner.tools.file_access import Places
from runner.tools.hooks import read_instructions
from tests.tools.conftest import policy

CLOSED = policy()  # no rule allows anything
READS = policy("allow Read")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def read(root: Path, rules: Policy = CLOSED) -> tuple[list[Instructions], list[str]]:
    """The instructions of a workspace whose run has these rules, and what was left out."""
    home = root / ".runner"
    places = Places.of(Surroundings(root, home / "outputs/run_1"), home)
    found = read_instructions(places, rules)
    return list(found.files), list(found.left_out)


def test_both_files_are_read_in_order_with_their_digests(root: Path) -> None:
    (root / "CLAUDE.md").write_text("Second.\n")
    (root / "AGENTS.md").write_text("First: é\n")
    files, left_out = read(root)
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
    assert read(root) == ([], [])
    assert with_instructions("Be brief.", ()) == "Be brief."
    assert with_instructions(None, ()) is None


def test_a_file_that_both_names_lead_to_is_read_once(root: Path) -> None:
    (root / "docs").mkdir()
    (root / "docs/agents.md").write_text("Once.")
    (root / "AGENTS.md").symlink_to("docs/agents.md")
    (root / "CLAUDE.md").symlink_to("AGENTS.md")
    files, left_out = read(root, READS)
    assert [(file.path, file.text) for file in files] == [("AGENTS.md", "Once.")]
    assert left_out == []


def test_a_link_out_of_the_workspace_is_left_out(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "workspace-too").mkdir()
    (tmp_path / "workspace-too/AGENTS.md").write_text("no")
    (root / "AGENTS.md").symlink_to("../workspace-too/AGENTS.md")
    (root / "CLAUDE.md").symlink_to(tmp_path / "secret")
    files, left_out = read(root, READS)
    assert files == []
    assert left_out == [
        f"{name} leads to {tmp_path / there}, outside the workspace {root}: file tools work only inside it"
        for name, there in (("AGENTS.md", "workspace-too/AGENTS.md"), ("CLAUDE.md", "secret"))
    ]


def test_a_link_to_what_the_rules_deny_or_ask_about_is_left_out(root: Path) -> None:
    (root / ".env").write_text("TOKEN=hunter2")
    (root / "notes.md").write_text("Mine.")
    (root / "AGENTS.md").symlink_to(".env")
    (root / "CLAUDE.md").symlink_to("notes.md")
    rules = policy("allow Read", "deny Read(.env)", "ask Read(notes.md)")
    assert read(root, rules) == (
        [],
        [
            "AGENTS.md: it leads to .env: Read is denied by the rule deny 'Read(.env)'",
            "CLAUDE.md: it leads to notes.md: Read is asked by the rule ask 'Read(notes.md)'",
        ],
    )
    assert len(read(root, READS)[0]) == 2


def test_a_link_to_what_no_rule_allows_is_left_out(root: Path) -> None:
    (root / ".git").mkdir()
    (root / ".git/config").write_text("url = https://me:hunter2@example.com")
    (root / "AGENTS.md").symlink_to(".git/config")
    for rules in (CLOSED, policy("allow Read(src/**)"), policy(default="ask")):
        files, (why,) = read(root, rules)
        assert files == []
        assert why.startswith("AGENTS.md: it leads to .git/config: Read is ")


def test_a_link_into_runners_own_folder_is_left_out(root: Path) -> None:
    (root / ".runner").mkdir()
    (root / ".runner/secret").write_text("hunter2")
    (root / "AGENTS.md").symlink_to(".runner/secret")
    files, (why,) = read(root, READS)
    assert files == []
    assert why.startswith("AGENTS.md is in Runner's own folder")


@pytest.mark.parametrize(
    "rules",
    [CLOSED, policy(default="ask"), policy("allow Read(src/**)"), policy("deny Read(.env)")],
    ids=str,
)
def test_the_files_that_a_job_asks_for_need_no_rule_that_allows_them(
    root: Path, rules: Policy
) -> None:
    (root / "AGENTS.md").write_text("Be kind.")
    (root / "CLAUDE.md").symlink_to("AGENTS.md")
    for each in (rules, rules.restricted("tester", [Rule("allow", "Bash(pytest *)")])):
        files, left_out = read(root, each)
        assert [file.text for file in files] == ["Be kind."]
        assert left_out == []


@pytest.mark.parametrize(
    "text", ["deny Read", "ask Read", "deny Read(*.md)", "ask Read(/AGENTS.md)"]
)
@pytest.mark.parametrize("of_type", [False, True])
def test_the_files_that_a_job_asks_for_are_left_out_where_a_rule_is_against_them(
    root: Path, text: str, of_type: bool
) -> None:
    (root / "AGENTS.md").write_text("Be kind.")
    rules = policy(text)
    for each in (CLOSED, READS):
        given = (
            each.restricted("tester", rules.rules)
            if of_type
            else Policy((*each.rules, *rules.rules), "deny")
        )
        files, (why,) = read(root, given)
        assert files == []
        assert why.startswith(
            f"AGENTS.md: Read is {'denied' if 'deny' in text else 'asked'} by the rule"
        )


def test_a_byte_order_mark_is_no_text(root: Path) -> None:
    (root / "AGENTS.md").write_bytes(b"\xef\xbb\xbfBe kind.")
    (root / "CLAUDE.md").write_bytes(b"\xef\xbb\xbf")
    ((file,), left_out) = read(root)
    assert (file.text, left_out) == ("Be kind.", ["CLAUDE.md: it is empty"])
    assert file.sha256 == hashlib.sha256(b"\xef\xbb\xbfBe kind.").hexdigest()


def test_what_is_no_text_of_a_fair_size_is_left_out(root: Path) -> None:
    def why() -> str:
        name = "AGENTS.md"
        files, (line,) = read(root, READS)
        assert files == []
        (root / name).unlink() if not (root / name).is_dir() else (root / name).rmdir()
        assert line.startswith(name)
        return line.removeprefix(name).lstrip(": ")

    file = root / "AGENTS.md"
    file.write_bytes(b"x" * (MOST_INSTRUCTION_BYTES + 1))
    assert why() == "it has more than 65,536 bytes"
    file.write_bytes(b"\xff")
    assert why() == "it is not UTF-8"
    file.write_text(" \n")
    assert why() == "it is empty"
    file.mkdir()
    assert why().startswith("is a folder, not a file")
    os.mkfifo(file)
    assert why().startswith("is not a regular file")
    file.symlink_to("nowhere")
    assert why().startswith("does not exist")


def test_control_characters_are_made_visible(root: Path) -> None:
    (root / "AGENTS.md").write_bytes(b"a\0b\x1b[31m\r\n")
    ((file,), _) = read(root)
    assert file.text == "a\\x00b\\x1b[31m\n"
