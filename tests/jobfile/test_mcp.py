"""MCP servers in a job file: where they are written, which of their tools the job has, rules for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.conversation import Tool
from runner.core.mcp import McpServer
from runner.core.spec import spec_of

from .conftest import Load, Problems

HEAD = """
model = "priced"
prompt = "Do."
"""
GITHUB = '[mcp.github]\ncommand = "gh-mcp"\n'


def names(load_text: Load, text: str) -> list[str]:
    return [tool.name for tool in load_text(text).spec.tools]


def test_tools_of_a_server_follow_the_others_by_name_unless_chosen(load_text: Load) -> None:
    servers = GITHUB + '[mcp.files]\nurl = "https://files.example.com/mcp"\n'
    files, github = ([f"mcp__{name}__get_a", f"mcp__{name}__get_b"] for name in ("files", "github"))
    assert names(load_text, HEAD + servers) == [*files, *github]
    chosen = 'tools = ["mcp__github__get_b"]\n'
    assert names(load_text, HEAD + chosen + servers) == ["mcp__github__get_b", *files]
    for text in ("mcp__github", "mcp__github__*", "mcp__github__get_*"):
        both = f'tools = ["{text}", "mcp__files__get_a"]\n'
        assert names(load_text, HEAD + both + servers) == [*github, "mcp__files__get_a"]


def test_a_tool_that_the_api_does_not_take_is_left_out_with_a_note(
    load_text: Load, problems_of: Problems
) -> None:
    submission = load_text(HEAD + GITHUB)
    (note,) = [note for note in submission.notes if "mcp__github__odd" in note]
    assert note.startswith("left out: 'mcp__github__odd' must be a JSON Schema of an object")
    (problem,) = problems_of(HEAD + 'tools = ["mcp__github__odd"]\n' + GITHUB)
    assert "must be a JSON Schema of an object" in problem


def test_variables_are_stored_as_they_are_written(
    load_text: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    text = GITHUB + 'env = { TOKEN = "${TOKEN}" }\nargs = ["${HOST:-example.com}"]\n'
    spec = load_text(HEAD + text).spec
    assert spec.mcp[0].env == {"TOKEN": "${TOKEN}"}
    assert "hunter2" not in json.dumps(spec.to_json())
    assert type(spec).from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_each_run_has_its_own_server_where_there_is_a_sandbox(
    load_text: Load, problems_of: Problems
) -> None:
    def scope(text: str) -> str:
        return load_text(HEAD + text).spec.mcp[0].scope

    assert scope(GITHUB) == "run"
    assert scope(GITHUB + 'scope = "job"\n') == "job"
    assert scope(GITHUB + '[sandbox]\nmode = "off"\n') == "job"
    assert scope('[mcp.files]\nurl = "https://files.example.com/mcp"\n') == "job"
    (problem,) = problems_of(HEAD + GITHUB + 'scope = "job"\n[sandbox]\nmode = "required"\n')
    assert 'must be "run": this job requires a sandbox' in problem


def test_a_file_of_claude_code_adds_servers_and_sections_win(
    load_text: Load, tmp_path: Path
) -> None:
    servers = {
        "github": {"type": "stdio", "command": "gh-mcp", "args": ["-v"], "env": {"A": "${A:-b}"}},
        "web": {"type": "http", "url": "https://example.com/mcp", "headers": {"X-A": "b"}},
    }
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    text = 'mcp_from = ".mcp.json"\n[mcp.github]\ntrust_hints = true\n'
    github, web = load_text(HEAD + text).spec.mcp
    assert github == McpServer(
        "github",
        "gh-mcp",
        ("-v",),
        {"A": "${A:-b}"},
        scope="run",
        trust_hints=True,
        folder=str(tmp_path),
    )
    assert (web.url, web.headers, web.scope) == ("https://example.com/mcp", {"X-A": "b"}, "job")


def test_credentials_that_are_not_used_are_told_once_unless_the_job_file_has_some(
    load_text: Load, tmp_path: Path
) -> None:
    sign_in = {"oauth": {"clientId": "a"}, "headersHelper": "./token"}
    servers = {
        "web": {"type": "sse", "url": "https://example.com/sse", **sign_in},
        "b": {"command": "b"},
    }
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    text = HEAD + 'mcp_from = ".mcp.json"\n'
    submission = load_text(text)
    assert submission.spec.mcp[1].type == "sse"
    (note,) = [note for note in submission.notes if "oauth" in note]
    assert note == (
        ".mcp.json: 'web' has oauth and headersHelper, which Runner does not use: give it credentials as "
        "headers in [mcp.web]"
    )
    own = text + '[mcp.web]\nheaders = { X-A = "b" }\n'
    assert not [note for note in load_text(own).notes if "oauth" in note]


def test_a_file_of_claude_code_has_a_secret_only_if_the_job_file_names_it(
    load_text: Load, problems_of: Problems, tmp_path: Path
) -> None:
    headers = {"X-A": "${A:-", "X-B": "${AWS_SECRET_ACCESS_KEY}${HOST}"}
    servers = {"web": {"type": "http", "url": "https://example.com/mcp", "headers": headers}}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    text = HEAD + 'mcp_from = ".mcp.json"\n'
    (problem,) = problems_of(text)
    assert "mcp_from.web: .mcp.json gives this server ${AWS_SECRET_ACCESS_KEY}" in problem
    own = '[mcp.web]\nheaders = { X-B = "${AWS_SECRET_ACCESS_KEY}" }\n'
    (web,) = load_text(text + own).spec.mcp
    assert web.headers == {"X-B": "${AWS_SECRET_ACCESS_KEY}"}
    assert len(problems_of(text + "[mcp.web]\ntrust_hints = true\n")) == 1


def test_a_file_of_claude_code_gives_no_trust_and_no_way_out_of_the_sandbox(
    load_text: Load, tmp_path: Path
) -> None:
    more = {"trust_hints": True, "scope": "job", "start_timeout": 1, "disabled": False, "env": None}
    (tmp_path / "config").mkdir()
    file = tmp_path / "config/mcp.json"
    file.write_text(json.dumps({"mcpServers": {"github": {"command": "./gh-mcp", **more}}}))
    text = HEAD + 'mcp_from = "config/mcp.json"\n'
    (github,) = load_text(text).spec.mcp
    assert github == McpServer("github", "./gh-mcp", scope="run", folder=str(file.parent))
    (ours,) = load_text(text + GITHUB).spec.mcp
    assert (ours.command, ours.folder) == ("gh-mcp", str(tmp_path))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{}", 'must hold an object with "mcpServers"'),
        ('{"mcpServers": {"a": 1}}', "'a' must be an object, not"),
        (
            '{"mcpServers": {"a": {"type": "ws", "url": "http://a"}}}',
            "'a' is of the type 'ws', and Runner speaks only stdio, http and sse",
        ),
        ('{"mcpServers": {"a": {"command": ""}}}', "mcp_from.a.command: is empty"),
        (
            '{"mcpServers": {"a": {"command": "a", "type": "sse"}}}',
            "mcp_from.a.type: does nothing without url",
        ),
    ],
)
def test_a_file_of_claude_code_with_problems_is_refused(
    content: str, expected: str, problems_of: Problems, tmp_path: Path
) -> None:
    (tmp_path / ".mcp.json").write_text(content)
    (problem,) = problems_of(HEAD + 'mcp_from = ".mcp.json"\n')
    assert expected in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[mcp.github]\n", "mcp.github: needs either a command or a url"),
        (GITHUB + 'url = "https://example.com"\n', "mcp.github: needs either a command or a url"),
        (GITHUB.replace("github", "git__hub"), "'git__hub' cannot be a name"),
        (GITHUB + 'env = { "A B" = "c" }\n', "'A B' cannot be the name of a variable"),
        (
            '[mcp.web]\nurl = "https://example.com"\nheaders = { Authorization = "Bearer abc" }\n',
            "would be stored with the job: name a variable",
        ),
        (GITHUB.replace("github", "broken"), "mcp.broken: the server cannot be used: it has ended"),
    ],
)
def test_a_server_with_a_problem_is_refused(
    text: str, expected: str, problems_of: Problems
) -> None:
    for rules in ("", '[permissions]\ndeny = ["mcp__*"]\n'):
        (problem,) = problems_of(HEAD + text + rules)
        assert expected in problem


def test_tools_and_rules_of_servers_must_be_about_tools_that_there_are(
    load_text: Load, problems_of: Problems
) -> None:
    def rules(effect: str, text: str) -> str:
        return f'{GITHUB}[permissions]\n{effect} = ["{text}"]\n'

    for good in ("mcp__github", "mcp__github__*", "mcp__github__get_*", "mcp__github(repo:acme/*)"):
        assert load_text(HEAD + rules("allow", good)).spec.rules[0].text == good
    for effect in ("ask", "deny"):
        assert load_text(HEAD + rules(effect, "mcp__*")).spec.rules[0].text == "mcp__*"
    for bad in ("mcp__*", "mcp__git*", "mcp*", "m*"):
        (problem,) = problems_of(HEAD + rules("allow", bad))
        assert "allows tools of any MCP server: name the server" in problem
    (problem,) = problems_of(HEAD + rules("deny", "mcp__github__get_a(repos:acme/*)"))
    assert "this job has no tool mcp__github__get_a with the argument 'repos'" in problem
    assert "did you mean repo?" in problem
    (problem,) = problems_of(HEAD + rules("allow", "mcp__gitlab"))
    assert "this job has no tool 'mcp__gitlab'" in problem
    (problem,) = problems_of(HEAD + 'tools = ["mcp__gitlab__a"]\n' + GITHUB)
    assert "the job has no MCP server called 'gitlab'; it has github" in problem
    (problem,) = problems_of(HEAD + 'tools = ["mcp__github__push"]\n' + GITHUB)
    assert "the server has no such tool; it has mcp__github__get_a, mcp__github__get_b" in problem


def test_an_agent_has_the_tools_of_servers_that_it_names(load_text: Load) -> None:
    agent = (
        'tools = ["Agent"]\n[agents.a]\ndescription = "d"\ntools = ["mcp__github__get_a"]\n'
        + GITHUB
    )
    spec = load_text(HEAD + agent).spec
    assert spec.agents[0].tools == ("mcp__github__get_a",)


def listing(*names: str) -> list[Tool]:
    return [Tool(name, name, {"type": "object"}, source=f"mcp:github:{name}") for name in names]


def test_a_list_of_a_server_is_taken_as_at_the_submission(load_text: Load) -> None:
    servers = GITHUB + '[mcp.files]\nurl = "https://files.example.com/mcp"\n'
    text = 'tools = ["mcp__github__get_*", "Agent"]\n[agents.a]\ndescription = "d"\n'
    agent = 'tools = ["mcp__github__get_b*"]\n'
    spec = load_text(HEAD + text + agent + servers).spec
    files = ["mcp__files__get_a", "mcp__files__get_b"]
    new = listing("mcp__github__get_c2", "mcp__github__push", "mcp__github__get_c1")
    now = [tool.name for tool in spec.tools_when({"github": new})]
    assert now == ["Agent", "mcp__github__get_c1", "mcp__github__get_c2", *files]
    none = replace(spec, tools=spec.tools_when({"github": []}))
    assert [tool.name for tool in none.tools] == ["Agent", *files]
    assert [tool.name for tool in none.tools_when({"github": new})] == now
    assert spec.tools_when({}) == spec.tools

    child = spec_of(spec, "a")
    assert [tool.name for tool in child.tools] == ["mcp__github__get_b"]
    more = {"github": [*new, *listing("mcp__github__get_b2", "mcp__github__get_b")]}
    names = [tool.name for tool in child.tools_when(more)]
    assert names == ["mcp__github__get_b", "mcp__github__get_b2"]
    stored_before = replace(spec, mcp_choice=())
    assert stored_before.tools_when(more) == spec.tools
