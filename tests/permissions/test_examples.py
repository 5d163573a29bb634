import pytest

from runner.permissions import Rule
from runner.permissions.examples import call_of, matches


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("Bash(git push -f)", ("Bash", {"command": "git push -f"})),
        ("Bash(echo (a) )", ("Bash", {"command": "echo (a) "})),
        ("Bash(a\nb)", ("Bash", {"command": "a\nb"})),
        ("Read(src/a.py)", ("Read", {"file_path": "src/a.py"})),
        ("Edit(a)", ("Edit", {"file_path": "a"})),
        ("Write(a)", ("Write", {"file_path": "a"})),
        ("Grep(src)", ("Grep", {"path": "src"})),
        ("Glob", ("Glob", {})),
        ("WebFetch(domain:a.example)", ("WebFetch", {"url": "https://a.example/"})),
        ("WebFetch(http://a.example/x)", ("WebFetch", {"url": "http://a.example/x"})),
        ("Agent(reviewer)", ("Agent", {"agent_type": "reviewer"})),
        ("mcp__git__push", ("mcp__git__push", {})),
        ("own(x)", ("own", {})),
    ],
)
def test_a_call_is_read_as_it_is_written(text, call):
    assert call_of(text) == call


@pytest.mark.parametrize("text", ["", "git push", "Bash", "Bash()", "Read( )", "Bash(ls", "(ls)"])
def test_what_is_not_a_call_says_so_in_one_line(text):
    with pytest.raises(ValueError, match=r"^'.*'.*: write .*$"):
        call_of(text)


@pytest.mark.parametrize(
    ("effect", "rule", "example", "expected"),
    [
        ("allow", "Bash(npm run *)", "npm run test", True),
        ("allow", "Bash(npm run *)", "Bash(npm run test)", True),
        ("allow", "Bash(npm run *)", "npm run test && ls", False),
        ("deny", "Bash(npm run *)", "ls && npm run test", True),
        ("ask", "Bash(:unanalyzable)", "$x", True),
        ("allow", "Read(src/**)", "Read(src/a.py)", True),
        ("allow", "Read(src/**)", "Grep(lib)", False),
        ("allow", "Read(src/**)", "Edit(src/a.py)", False),
        ("deny", "Read(~/.ssh)", "Read(~/.ssh/id)", True),
        ("deny", "Edit(.env)", "Bash(echo > .env)", True),
        ("allow", "Edit(.env)", "Bash(echo > .env)", False),
        ("allow", "mcp__git", "mcp__git__push", True),
        ("deny", "Agent(reviewer)", "Agent(reviewer)", True),
        ("deny", "Agent(reviewer)", "Agent(tester)", False),
        ("allow", "WebFetch(domain:a.example)", "WebFetch(https://a.example/x)", True),
    ],
)
def test_an_example_matches_when_the_rule_alone_decides_it(effect, rule, example, expected):
    assert matches(Rule(effect, rule), example) is expected
