from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.core.budget import Limits
from runner.core.rate_limits import Caps
from runner.core.spec import JobSpec, NewRun
from runner.core.workspace import TOOL_CACHES, Workspace
from runner.errors import SpecError
from runner.jobfile.load import load
from runner.permissions import Rule
from runner.tools.media import media_of_file

from .conftest import (
    PRICES,
    Load,
    Problems,
    find_functions,
    find_repository,
    list_tools,
    resolve_names,
)

LEAST = 'model = "m"\nprompt = "Do it."\n'


def test_a_provider_is_a_name_or_a_table_with_limits(load_text: Load) -> None:
    named = load_text(LEAST + 'provider = "anthropic"\n').spec
    assert (named.provider, named.caps) == ("anthropic", Caps())
    limited = load_text(
        LEAST + "[provider]\nmax_requests_per_minute = 9\nmax_concurrent = 2\n"
    ).spec
    assert (limited.provider, limited.caps) == ("anthropic", Caps(9, None, 2))
    assert JobSpec.from_json(json.loads(json.dumps(limited.to_json()))) == limited


def test_a_whole_job_is_loaded(load_text: Load, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a.py").touch()
    (tmp_path / "p.md").write_text("Mend {{ item }}.\n")
    (tmp_path / "s.md").write_text("Be {{ careful }}.")
    text = """\
name = "whole"
model = "m"
prompt_file = "p.md"
system_file = "s.md"
tools = ["Bash", "own:look"]
parallel_tools = "all"
items = { glob = "*.py" }
workspace = { path = "tree", mode = "copy" }
permissions = { allow = ["Bash", "lo*"], deny = ["look"] }
limits = { tool_timeout = "2m" }
model_options = { thinking = { type = "adaptive" } }
"""
    submission = load_text(text.replace("\n", "\r\n"))
    assert submission.source == str(tmp_path / "job.toml")
    assert submission.text == text.replace("\n", "\r\n")
    assert submission.runs == (NewRun("a.py", "a.py", "Mend a.py."),)
    spec = submission.spec
    assert [tool.name for tool in spec.tools] == ["Bash", "look"]
    assert spec.rules == (Rule("deny", "look"), Rule("allow", "Bash"), Rule("allow", "lo*"))
    assert spec.system == "Be {{ careful }}."
    assert spec.workspace == Workspace(
        str((tmp_path / "tree").resolve()), "copy", ignore=TOOL_CACHES
    )
    assert spec.limits == Limits(tool_timeout=120.0)
    assert (spec.name, spec.parallel_tools) == ("whole", "all")
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_job_without_name_and_items_is_one_run_called_after_the_file(load_text: Load) -> None:
    submission = load_text(LEAST, "nightly.toml")
    assert submission.spec.name == "nightly"
    assert submission.runs == (NewRun("nightly", None, "Do it."),)


def test_every_problem_is_listed_at_once_with_its_line(problems_of: Problems) -> None:
    text = """\
nam = "x"
prompt = "{{ item.path }}{{ nope }}"
tools = [
  "Read",
  "Reed",
]
[items]
list = [
  "a",
  "a",
]
[workspace]
path = "nowhere"
[permissions]
allow = ["Grep"]
[limits]
max_turn = 3
deadline = "soon"
"""
    found = [problem.split(": ")[:2] for problem in problems_of(text)]
    assert found == [
        ["model", "is missing"],
        ["line 1", "nam"],
        ["line 2", "prompt"],
        ["line 5", "tools[1]"],
        ["line 10", "items.list[1]"],
        ["line 13", "workspace.path"],
        ["line 15", "permissions.allow[0]"],
        ["line 17", "limits.max_turn"],
        ["line 18", "limits.deadline"],
    ]


def test_one_mistake_is_one_problem(problems_of: Problems) -> None:
    misspelled = 'tool = ["Read"]\n[permissions]\nallow = ["Read", "Bash"]'
    (problem,) = problems_of(LEAST + misspelled)
    assert problem.endswith("tool: unknown key 'tool'; did you mean tools?")
    mode = '[items]\nglob = "*.nothing"\n[workspace]\nrepo = "nowhere"\nmode = "gti"'
    (problem,) = problems_of(LEAST + mode)
    assert problem.endswith("not 'gti'; did you mean git?")


def test_runs_at_once_in_a_process_are_no_key(problems_of: Problems) -> None:
    (problem,) = problems_of("concurrency = 3\n" + LEAST)
    assert "did you mean max_concurrency?" in problem
    assert "`-c N`" in problem


def test_a_missing_key_is_noted_on_the_line_of_its_section(problems_of: Problems) -> None:
    assert problems_of(LEAST + "\n[workspace]\n")[0].startswith("line 4: workspace: the key path")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\nb = \n", "line 2: is not valid TOML at column 5: "),
        ("a = 1\na = 2\n", "line 2: is not valid TOML"),
        ('a = "open', "is not valid TOML: "),
        ("a = " + "9" * 5000, "is not valid TOML: "),
        ("a = " + "[" * 20_000, "is not TOML that can be read: nested too deeply"),
    ],
)
def test_broken_toml_is_a_problem_with_its_line(
    text: str, expected: str, problems_of: Problems
) -> None:
    problems = problems_of(text)
    assert len(problems) == 1
    assert problems[0].startswith(expected)


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# one\nname = '\xe9'\n")
    expected = {
        "latin.toml": "line 2: is not UTF-8 text, which TOML files are",
        "none.toml": "cannot read this job file: No such file or directory; "
        "`runner init` writes a first one",
        ".": "cannot read this job file: Is a directory",
    }
    for name, words in expected.items():
        with pytest.raises(SpecError) as refused:
            load(
                tmp_path / name,
                resolve_tools=resolve_names,
                resolve_hooks=find_functions,
                list_mcp_tools=list_tools,
                read_media=media_of_file,
                look_at_repository=find_repository,
                prices=PRICES,
            )
        assert [str(problem) for problem in refused.value.problems] == [words]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.md", None, "none.md cannot be read: No such file or directory"),
        ("blank.md", b" \n", "blank.md is empty"),
        ("latin.md", b"\xe9", "latin.md is not UTF-8 text"),
        ("nul.md", b"a\0b", "nul.md holds a NUL character"),
    ],
)
@pytest.mark.parametrize("key", ["prompt_file", "system_file"])
def test_an_unusable_text_file_is_a_problem(
    key: str, name: str, content: bytes | None, expected: str, problems_of: Problems, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    other = 'prompt = "x"\n' if key == "system_file" else ""
    problems = problems_of(f'model = "m"\n{other}{key} = "{name}"')
    assert len(problems) == 1
    assert f"{key}: {tmp_path}" in problems[0]
    assert expected in problems[0]


def test_a_workspace_has_to_be_a_folder(problems_of: Problems, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    items = '[items]\nglob = "*"\n'
    for name, words in {"file": "is not a folder", "none": "does not exist"}.items():
        problems = problems_of(f'{LEAST}{items}[workspace]\npath = "{name}"')
        assert problems == [f"line 6: workspace.path: {tmp_path.resolve() / name} {words}"]


def test_glob_searches_the_folder_of_the_job_file_when_there_is_no_workspace(
    load_text: Load,
) -> None:
    assert [run.key for run in load_text(f'{LEAST}[items]\nglob = "*.toml"').runs] == ["job.toml"]


def test_two_tools_cannot_have_one_name(problems_of: Problems) -> None:
    problems = problems_of(f'{LEAST}tools = ["a:look", "b:look"]')
    assert problems == ["line 3: tools: 2 tools are called 'look'; the model could not choose"]


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ('prompt_file = "pipe"', "prompt_file"),
        ('prompt = "p"\nsystem_file = "pipe"', "system_file"),
        ('prompt = "p"\nitems = { jsonl = "pipe" }', "items.jsonl"),
        ('prompt = "p"\nprovider = "scripted"\nscript = "pipe.json"', "script"),
    ],
)
def test_a_pipe_in_place_of_a_file_is_a_problem(
    problems_of: Problems, tmp_path: Path, key: str, place: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.json")
    (problem,) = problems_of(f'model = "m"\n{key}\n')
    assert f"{place}: " in problem
    assert problem.endswith("it is not a regular file")


def test_a_job_file_may_begin_with_a_byte_order_mark(load_text: Load) -> None:
    assert load_text("\ufeff" + LEAST).spec.model == "m"
