"""``[workspace]`` of a job file, with what it names looked at."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.core.spec import JobSpec
from runner.core.workspace import TOOL_CACHES, Workspace, result_tool
from runner.permissions import Rule

from .conftest import COMMIT, Load, Problems

LEAST = 'model = "m"\nprompt = "Do it."\n'
GIT = '[workspace]\nmode = "git"\nrepo = "repo"\n'


def test_a_workspace_of_a_repository_arrives_whole(load_text: Load, tmp_path: Path) -> None:
    text = f"""\
{LEAST}tools = ["Bash", "Write"]
verify = ["pytest -q"]
on_failure = "fail"
{GIT}base = "main"
remote = "../shared.git"
setup = ["npm ci"]
setup_timeout = "5m"
snapshot_ignored = ["build/**"]
largest_file = 1_000
external = ["Bash(curl *)", {{ rule = "Write(out/**)", why = "published" }}]
on_unknown = "ask"
commit_message = "Mend it"
"""
    submission = load_text(text)
    assert submission.spec.workspace == Workspace(
        path=str(tmp_path / "repo"),
        mode="git",
        base="main",
        commit=COMMIT,
        setup=("npm ci",),
        setup_timeout=300.0,
        remote=os.path.normpath(tmp_path / "../shared.git"),
        snapshot_ignored=("build/**",),
        largest_file=1_000,
        external=(Rule("ask", "Bash(curl *)"), Rule("ask", "Write(out/**)", "published")),
        on_unknown="ask",
    )
    assert submission.notes == ("job begins at main",)
    assert [run.commit_message for run in submission.runs] == ["Mend it"]
    spec = submission.spec
    assert spec.verify is not None
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("line", "expected"), [("", TOOL_CACHES), ('ignore = ["*.o"]', ("*.o",)), ("ignore = []", ())]
)
def test_a_copy_ignores_caches_of_tools_or_what_the_job_says(
    line: str, expected: tuple[str, ...], load_text: Load, tmp_path: Path
) -> None:
    (tmp_path / "w").mkdir()
    spec = load_text(f'{LEAST}[workspace]\nmode = "copy"\npath = "w"\n{line}').spec
    assert spec.workspace is not None
    assert spec.workspace.ignore == expected
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_repository_may_be_a_url(load_text: Load) -> None:
    url = "git@example.com:me/repo.git"
    text = f'{LEAST}[workspace]\nmode = "git"\nrepo = "{url}"\nremote = "{url}"'
    workspace = load_text(text).spec.workspace
    assert workspace == Workspace(None, "git", url=url, remote=url, commit=COMMIT)
    assert workspace.source == url


def test_a_job_may_have_no_folder_at_all(load_text: Load) -> None:
    text = f'{LEAST}tools = ["own:look"]\n[workspace]\nmode = "none"\non_unknown = "ask"\n'
    assert load_text(text).spec.workspace == Workspace(None, "none", on_unknown="ask")
    glob = f'{LEAST}[workspace]\nmode = "none"\n[items]\nglob = "*.toml"'
    assert [run.key for run in load_text(glob).runs] == ["job.toml"]


def test_a_problem_of_the_repository_is_noted_at_its_key(problems_of: Problems) -> None:
    text = GIT.replace('"repo"', '"nowhere"') + '[items]\nglob = "*"'
    (problem,) = problems_of(LEAST + text)
    assert problem.startswith("line 5: workspace.repo: /")
    assert problem.endswith("/nowhere is none")


def test_a_repository_is_not_looked_at_while_its_section_has_problems(
    problems_of: Problems,
) -> None:
    text = f'{LEAST}[workspace]\nmode = "git"\nbase = 1\nrepo = "nowhere"\nbse = "x"\n'
    assert [problem.partition(":")[0] for problem in problems_of(text)] == ["line 5", "line 7"]


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("*.py", ["a.py"]),
        ("**/*.py", ["a.py", "src/b.py"]),
        ("src/*", ["src/b.py"]),
        ("src/**/*.py", ["src/b.py"]),
        ("**/.hidden/*", ["src/.hidden/c.py"]),
        ("[ab].??", ["a.py"]),
    ],
)
def test_glob_finds_the_files_of_the_commit(
    load_text: Load, pattern: str, keys: list[str], tmp_path: Path
) -> None:
    (tmp_path / "not_committed.py").touch()
    text = f'{LEAST}{GIT}[items]\nglob = "{pattern}"'
    assert [run.key for run in load_text(text).runs] == keys


def test_a_glob_that_finds_nothing_in_the_commit_is_a_problem(problems_of: Problems) -> None:
    for pattern, words in {
        "*.rs": "no file in the repository matches '*.rs'",
        "../*": "'../*' must stay inside the repository: no leading / and no ..",
    }.items():
        assert problems_of(f'{LEAST}{GIT}[items]\nglob = "{pattern}"') == [
            f"line 7: items.glob: {words}"
        ]


def test_a_commit_message_is_rendered_for_each_item(load_text: Load) -> None:
    text = (
        f'{LEAST}{GIT}commit_message = """Mend {{{{ item }}}}\n\nx"""\n[items]\nlist = ["a", "b"]'
    )
    runs = load_text(text).runs
    assert [run.commit_message for run in runs] == ["Mend a\n\nx", "Mend b\n\nx"]
    assert [run.commit_message for run in load_text(f"{LEAST}{GIT}").runs] == [""]


def test_a_commit_message_that_cannot_be_rendered_is_a_problem(problems_of: Problems) -> None:
    items = '[items]\nlist = ["a"]\n'
    for template, words in {
        "{{ itme }}": "the template uses 'itme', which is not defined; only 'item' is",
        "{{ item.x }}": "for the item 'a': the template fails: UndefinedError",
        "{{ ' ' }}": "for the item 'a': the commit message is empty",
    }.items():
        (problem,) = problems_of(f'{LEAST}{GIT}commit_message = "{template}"\n{items}')
        assert problem.startswith(f"line 6: workspace.commit_message: {words}")


def test_external_rules_have_to_be_about_tools_of_the_job(problems_of: Problems) -> None:
    text = f'{LEAST}tools = ["Bash"]\n{GIT}external = ["Bash(x *)", "WebFetch(domain:a.b)"]'
    assert problems_of(text) == [
        "line 7: workspace.external[1]: this job has no tool 'WebFetch'; it has Bash"
    ]


@pytest.mark.parametrize("mode", ["git", "copy"])
def test_rules_about_the_folder_hold_in_worktrees_and_copies(
    load_text: Load, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "repo").mkdir()
    folder = tmp_path / "repo"
    key = "repo" if mode == "git" else "path"
    text = (
        f'{LEAST}tools = ["Edit"]\n[workspace]\nmode = "{mode}"\n{key} = "repo"\n'
        f'external = ["Edit(/{folder}/out/**)"]\n[permissions]\ndeny = ["Edit(/{folder}/**)"]'
    )
    spec = load_text(text).spec
    assert [rule.text for rule in spec.rules] == [f"Edit(/{folder}/**)", "Edit(/**)"]
    assert spec.workspace is not None
    assert [rule.text for rule in spec.workspace.external] == [
        f"Edit(/{folder}/out/**)",
        "Edit(/out/**)",
    ]


SCHEMA = '[output_schema]\ntype = "object"\nproperties = { risk = { enum = ["low", "high"] } }\n'


def test_a_schema_gives_the_job_the_tool_that_takes_results(
    load_text: Load, tmp_path: Path
) -> None:
    tool = result_tool({"type": "object", "properties": {"risk": {"enum": ["low", "high"]}}})
    spec = load_text(f'{LEAST}tools = ["own:look"]\n{SCHEMA}').spec
    assert [each.name for each in spec.tools] == ["look", "submit_result"]
    assert spec.result_tool == tool
    (tmp_path / "schema.json").write_text("\ufeff" + json.dumps(tool.input_schema))
    spec = load_text(f'{LEAST}output_schema_file = "schema.json"').spec
    assert spec.result_tool == tool
    assert load_text(LEAST).spec.result_tool is None


def test_an_own_tool_cannot_be_called_submit_result(problems_of: Problems) -> None:
    assert problems_of(f'{LEAST}tools = ["Read", "own:submit_result"]\n{SCHEMA}{GIT}') == [
        "line 3: tools[1]: submit_result is how results of output_schema are submitted: rename "
        "this tool"
    ]


def test_a_rule_for_submit_result_is_a_problem(problems_of: Problems) -> None:
    text = f'{LEAST}{SCHEMA}[permissions]\nallow = ["submit_result"]'
    assert "this job has no tool 'submit_result'" in problems_of(text)[0]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, 'must be a JSON Schema of an object: give it type = "object"'),
        ({"type": "string"}, "must be a JSON Schema of an object"),
        ({"type": ["object"]}, "must be a JSON Schema of an object"),
        (
            {"type": "object", "properties": {"a": {"type": "strnig"}}},
            "is not a JSON Schema: at properties.a.type: 'strnig' is not valid",
        ),
        (
            {"type": "object", "required": "a"},
            "is not a JSON Schema: at required: 'a' is not of type",
        ),
        (
            {"type": "object", "properties": {"a": {"pattern": "("}}},
            "is not a JSON Schema: at properties.a.pattern: '(' is not a 'regex'",
        ),
        ({"type": "object", "anyOf": [{}]}, "has anyOf at its top, which the API does not take"),
        ({"type": "object", "properties": {"a b": {}}}, "has the property 'a b': the API takes"),
        (
            {"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}}},
            "refers to 'https://example.com/a', which is not in the schema: put it under $defs",
        ),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"b": {}}},
            "refers to '#/$defs/a', and there is nothing",
        ),
        ({"type": "object", "$ref": "#"}, "refers to itself without end"),
        ({"type": "object", "default": 2**70}, "default is a number of more than 64 bits"),
    ],
)
def test_an_unusable_result_schema_is_a_problem(
    problems_of: Problems, tmp_path: Path, schema: dict[str, object], expected: str
) -> None:
    (tmp_path / "s.json").write_text(json.dumps(schema))
    (problem,) = problems_of(f'{LEAST}output_schema_file = "s.json"')
    assert problem.startswith(f"line 3: output_schema_file: {tmp_path}/s.json {expected}")


def test_a_schema_may_refer_to_its_own_parts(load_text: Load, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/a~1b"},
            "all": {"type": "array", "items": {"$ref": "#"}},
        },
        "$defs": {"a/b": {"type": "string"}},
    }
    (tmp_path / "s.json").write_text(json.dumps(schema))
    assert load_text(f'{LEAST}output_schema_file = "s.json"').spec.result_tool is not None


def test_a_schema_in_the_job_file_has_its_line(problems_of: Problems) -> None:
    assert problems_of(f'{LEAST}[output_schema]\ntype = "array"') == [
        'line 3: output_schema: must be a JSON Schema of an object: give it type = "object"'
    ]
    assert problems_of(f"{LEAST}output_schema_file = 's.json'\n{SCHEMA}") == [
        "line 3: output_schema_file: give only one of output_schema and output_schema_file, not "
        "output_schema and output_schema_file"
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xe9", "is not JSON in UTF-8"),
        (b"{", "is not JSON in UTF-8"),
        (b"[]", "must be a JSON Schema of an object, not a list"),
        (b"[" * 100_000, "is not JSON that can be read: nested too deeply"),
    ],
)
def test_an_unusable_schema_file_is_a_problem(
    problems_of: Problems, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / "s.json").write_bytes(content)
    (problem,) = problems_of(f'{LEAST}output_schema_file = "s.json"')
    assert f"{tmp_path}/s.json {expected}" in problem
