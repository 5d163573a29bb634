import pytest

from runner.permissions.rules import concerns, covers, name_of, problem


@pytest.mark.parametrize(
    ("text", "tool", "named"),
    [
        ("Bash", "Bash", True),
        ("Bash", "BashOutput", False),
        ("Bash", "bash", False),
        ("Bash", " Bash", False),
        ("Bash(ls)", "Bash", True),
        ("Read", "Grep", True),
        ("Read(a)", "Glob", True),
        ("Read", "Edit", False),
        ("Edit", "Write", True),
        ("Write", "Edit", False),
        ("Edit(a)", "Bash", False),
        ("mcp__git__*", "mcp__git__push", True),
        ("mcp__git__*", "mcp__gitlab__push", False),
        ("mcp__git", "mcp__git__push", True),
        ("mcp__git", "mcp__gitlab__push", False),
        ("mcp__git__push", "mcp__git__push", True),
        ("mcp__git__push", "mcp__git__push__now", False),
        ("*", "anything", True),
        ("B*", "Bash", True),
        ("own_tool", "own_tool", True),
    ],
)
def test_a_rule_names_its_tool_and_those_it_stands_for(text, tool, named):
    assert covers(name_of(text), tool) is named


def test_rules_about_files_concern_what_commands_are_redirected_to():
    assert concerns("Edit(out/**)", "Bash")
    assert concerns("Read(.env)", "Bash")
    assert not concerns("Write(a)", "Bash")
    assert not concerns("own_tool", "Bash")


@pytest.mark.parametrize(
    "text",
    [
        "Bash",
        "Bash(*)",
        "own_tool(*)",
        "Bash(**)",
        "Bash(:unanalyzable)",
        "Bash(echo (a))",
        "Read(a)",
        "*",
        "WebFetch(domain:a.example)",
        "mcp__a__*",
        "mcp__a__b(*)",
        "mcp__a(repo:acme/*)",
        "own_tool(city:Oslo)",
        "Edit(/docs/*.md)",
        "Glob(~/a)",
    ],
)
def test_what_is_a_rule_has_no_problem(text):
    assert problem(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not begin with a tool's name"),
        ("B*h", "does not begin with a tool's name"),
        ("git push", "does not begin with a tool's name"),
        ("Bash (ls)", "does not begin with a tool's name"),
        ("Bash()", "nothing in its brackets"),
        ("Bash(ls", "no ')' at its end"),
        ("Bash(ls) ", "begins or ends with whitespace"),
        ("Bash(l\u200bs)", "an invisible character"),
        ("Bash(ls\n)", "an invisible character"),
        ("Bash(git:* push)", "':*' before its end"),
        ("own_tool(x)", "mean nothing for own_tool"),
        ("mcp__a__b(x)", "mean nothing for mcp__a__b"),
        ("own*(city:Oslo)", "mean nothing for own*"),
        ("Bsh(city:Oslo)", "did you mean Bash"),
        ("WebFetch(example.com)", "is not 'domain:'"),
        ("Read(../a)", "has '..'"),
        ("Bash(" + "a" * 2000 + ")", "longer than"),
    ],
)
def test_what_is_not_a_rule_says_so_in_one_line(text, words):
    found = problem(text)
    assert found is not None
    assert words in found
    assert "\n" not in found
