from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from runner.jobfile import items as reading
from runner.jobfile.keys import ITEMS
from runner.jobfile.table import Node, Section


def read(
    source: str, value: Any, folder: Path, seconds: float = 60.0
) -> tuple[list[reading.Keyed], list[str]]:
    items = Section(ITEMS, {source: value}, Node(("items",), [], {}))
    keyed = reading.read_items(items, folder, folder, seconds)
    return keyed, [str(problem) for problem in items.problems]


def test_a_string_is_its_own_key_and_a_table_has_one(tmp_path: Path) -> None:
    table = {"key": "b", "more": 1}
    assert read("list", ["a", table], tmp_path) == ([("a", "a"), ("b", table)], [])


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (3, "an item is a string or a table, not an integer"),
        (" ", "the item is empty"),
        ("a\nb", "give it as a table with a key of its own"),
        ("x" * 501, "has 501 characters"),
        ("a\0b", "holds a NUL character"),
        ("a\ud800b", "holds half a surrogate pair (U+D800)"),
        ({"a": 1}, "the item has no key"),
        ({"key": 1}, "the item's key must be a string, not an integer"),
        ({"key": ""}, "the item's key is empty"),
        ({"key": "k", "a": {"b": ["\ud800"]}}, "the item a.b[0] holds half a surrogate pair"),
        ({"key": "k", "a\0": 1}, "the item has a key that holds a NUL"),
        ({"key": "k", "a": float("inf")}, "the item a is inf"),
    ],
)
def test_an_item_that_cannot_be_stored_or_named_is_refused(
    item: Any, expected: str, tmp_path: Path
) -> None:
    keyed, problems = read("list", ["good", item], tmp_path)
    assert [key for key, _ in keyed] == ["good"]
    assert len(problems) == 1
    assert problems[0].startswith("items.list[1]: ")
    assert expected in problems[0]


def test_a_duplicate_key_names_both_items(tmp_path: Path) -> None:
    _, problems = read("list", ["a", {"key": "a"}], tmp_path)
    assert problems == [
        "items.list[1]: the key 'a' is also that of items.list[0]: give each its own key"
    ]


@pytest.mark.slow
def test_only_the_first_bad_items_are_listed(tmp_path: Path) -> None:
    _, problems = read("list", list(range(1000)), tmp_path)
    assert len(problems) == reading.MOST_REPORTED + 1
    assert problems[-1] == "items.list: and 980 more such problems"


def test_glob_gives_sorted_files_that_are_not_hidden(tmp_path: Path) -> None:
    for name in ("b.py", "a/c.py", "a/b.py", ".venv/x.py", "a/.hidden.py", "c.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "folder.py").mkdir()
    keyed, problems = read("glob", "**/*.py", tmp_path)
    assert problems == []
    assert [key for key, _ in keyed] == ["a/b.py", "a/c.py", "b.py"]
    assert [key for key, _ in read("glob", ".venv/*.py", tmp_path)[0]] == [".venv/x.py"]


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../*", "**x", "*.rs"])
def test_a_glob_that_leaves_the_folder_or_finds_nothing_is_refused(
    pattern: str, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    keyed, problems = read("glob", pattern, tmp_path)
    assert keyed == []
    assert len(problems) == 1
    assert problems[0].startswith(
        f"items.glob: {'no file' if pattern == '*.rs' else repr(pattern)}"
    )


def test_a_file_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.py")).touch()
    keyed, problems = read("glob", "*.py", tmp_path)
    assert keyed == []
    assert "holds half a surrogate pair" in problems[0]


def test_jsonl_gives_strings_and_objects_and_names_bad_lines(tmp_path: Path) -> None:
    lines = [
        b'"a"',
        b"",
        b'{"key": "b", "n": 1}',
        b"{broken",
        b"NaN",
        b'"\xff"',
        b'"\\ud800"',
        b"[" * 100_000,
        b"9" * 5000,
        b'"a"',
    ]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    keyed, problems = read("jsonl", "x.jsonl", tmp_path)
    assert keyed == [("a", "a"), ("b", {"key": "b", "n": 1})]
    assert [problem.split(": ")[1] for problem in problems] == [
        f"line {number} of x.jsonl" for number in (4, 5, 6, 7, 8, 9, 10)
    ]
    assert "line 1 of x.jsonl: give each" in problems[-1]


def test_a_missing_or_empty_jsonl_is_a_problem(tmp_path: Path) -> None:
    assert "cannot read" in read("jsonl", "none.jsonl", tmp_path)[1][0]
    (tmp_path / "empty.jsonl").write_text("\n")
    assert read("jsonl", "empty.jsonl", tmp_path)[1] == ["items.jsonl: gives no item at all"]


def test_a_command_runs_in_the_folder_and_gives_an_item_a_line(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    table = json.dumps({"key": "two", "n": 2})
    command = f"""ls; echo; echo '{table}'; echo '"three"'; echo ' {{four '; echo 5"""
    keyed, problems = read("command", command, tmp_path)
    assert problems == []
    assert keyed == [
        ("one", "one"),
        ("two", {"key": "two", "n": 2}),
        ("three", "three"),
        ("{four", "{four"),
        ("5", "5"),
    ]


def test_a_command_given_as_a_list_is_run_without_a_shell(tmp_path: Path) -> None:
    assert read("command", ["echo", "$HOME; *"], tmp_path)[0] == [("$HOME; *", "$HOME; *")]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "echo a; echo one >&2; printf 'the \\033 end\\n' >&2; exit 3",
            "exited with 3: the \\x1b end",
        ),
        ("kill -9 $$", "was ended by signal 9"),
        (["no-such-program"], "cannot start 'no-such-program'"),
        ("true", "gives no item at all"),
    ],
)
def test_a_command_that_fails_is_a_problem_with_its_last_words(
    command: Any, expected: str, tmp_path: Path
) -> None:
    keyed, problems = read("command", command, tmp_path)
    assert keyed == []
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.slow
def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _, problems = read("command", "sleep 600 > pipe & exec sleep 600 > pipe", tmp_path, 0.5)
    assert "did not end within" in problems[0]
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # ends only when nobody holds the pipe open any more
    os.close(reader)


def test_a_process_left_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read("command", "cat pipe & echo a", tmp_path)[0] == [("a", "a")]
    os.close(os.open(pipe, os.O_WRONLY))  # until then the cat never ends
