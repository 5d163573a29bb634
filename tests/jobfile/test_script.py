"""Scripts of scripted jobs: what may stand in one, and their problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.jobfile.script import check_script

from .conftest import Load, Problems

SCRIPTED = 'model = "m"\nprompt = "Do it."\nprovider = "scripted"\n[items]\nlist = ["a", "b"]\n'


def scripted(name: str) -> str:
    return f'script = "{name}"\n{SCRIPTED}'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("s.json", '{"a": [{"text": "\\ud800"}], "*": []}'),
        ("s.toml", '"*" = []\n[[a]]\ntext = "\\u0000"'),
    ],
)
def test_a_script_becomes_part_of_the_job(
    name: str, content: str, load_text: Load, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    script = load_text(scripted(name)).spec.script
    assert script is not None
    assert set(script) == {"a", "*"}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.toml", None, "cannot read"),
        ("s.yaml", "", "s.yaml must be a .toml or a .json file"),
        ("s.toml", "a = ", "s.toml is not valid TOML in UTF-8: "),
        ("s.json", "{", "s.json is not valid JSON in UTF-8: "),
        ("s.json", "[]", "s.json must hold a table of replies by item, not a list"),
        ("s.toml", "a = []", "s.toml has no replies for the item 'b', and none under '*'"),
        ("s.toml", "a = []\nb = 2024-01-01", "s.toml: b is a date"),
    ],
)
def test_an_unusable_script_is_a_problem(
    name: str, content: str | None, expected: str, problems_of: Problems, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    problems = problems_of(scripted(name))
    assert len(problems) == 1
    assert problems[0].startswith("line 1: script: ")
    assert expected in problems[0]


def test_every_problem_of_a_script_is_one_of_the_job_with_its_place_in_the_script(
    problems_of: Problems, tmp_path: Path
) -> None:
    (tmp_path / "s.toml").write_text('a = 1\n[[b]]\ntxt = "x"')
    assert problems_of(scripted("s.toml")) == [
        "line 1: script: s.toml: a: must be a list of replies, not an integer",
        "line 1: script: s.toml: b[0].txt: unknown key 'txt'; did you mean text?",
    ]


def test_good_script_has_no_problems() -> None:
    line = {"text": "x", "tools": [{"name": "Read", "input": {}}], "delay": 1, "usage": {}}
    assert check_script({"a": [line], "*": []}) == []


def test_every_problem_of_a_script_is_named_with_its_place() -> None:
    script = {
        "a": [
            {"txt": "x", "delay": -1},
            {"text": " ", "tools": [{"name": "", "input": [], "id": "1"}, 3]},
            "words",
            {},
        ],
        "b": "words",
        "c": [{"usage": {"tokens": 1, "input_tokens": -1}, "tools": {}}],
        "d": [{"error": {"status": 200, "retry_after": "1", "message": 1}}, {"error": "x"}],
    }
    assert [problem.place for problem in check_script(script)] == [
        "a[0].txt",
        "a[0].delay",
        "a[1].text",
        "a[1].tools[0].id",
        "a[1].tools[0].name",
        "a[1].tools[0].input",
        "a[1].tools[1]",
        "a[2]",
        "a[3]",
        "b",
        "c[0].tools",
        "c[0].usage.tokens",
        "c[0].usage.input_tokens",
        "d[0].error",
        "d[0].error.status",
        "d[0].error.message",
        "d[0].error.retry_after",
        "d[1].error",
    ]


def test_script_without_replies_is_refused() -> None:
    (problem,) = check_script({})
    assert problem.message == 'is empty; give at least the replies for "*"'


def test_blank_summary_is_refused() -> None:
    (problem,) = check_script({"summary": " ", "*": []})
    assert problem.place == "summary"
