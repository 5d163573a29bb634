from runner.core.permissions import Rule
from runner.core.permissions.claude import from_settings
from runner.core.permissions.syntax import concerns

ORIGIN = ".claude/settings.json"


def has_tool(text):
    return any(concerns(text, tool) for tool in ("Bash", "Read"))


def test_rules_are_taken_with_where_they_are_from():
    data = {
        "permissions": {
            "allow": ["Bash(ls:*)", "Read"],
            "ask": ["Bash(git push:*)"],
            "deny": ["Edit(.env)"],
        }
    }
    assert from_settings(data, ORIGIN, has_tool) == (
        (
            Rule("deny", "Edit(.env)", origin=ORIGIN),
            Rule("ask", "Bash(git push:*)", origin=ORIGIN),
            Rule("allow", "Bash(ls:*)", origin=ORIGIN),
            Rule("allow", "Read", origin=ORIGIN),
        ),
        (),
    )


def test_what_is_left_out_is_said_line_by_line():
    data = {
        "permissions": {
            "allow": ["WebSearch", "Bash(", 7, {"a": 1}],
            "ask": "Bash",
            "defaultMode": "acceptEdits",
            "additionalDirectories": ["../x"],
            "made_up": True,
        },
        "hooks": {},
        "model": "x",
    }
    rules, left_out = from_settings(data, ORIGIN, has_tool)
    assert rules == ()
    assert left_out == (
        f"{ORIGIN}: permissions.ask is not a list",
        f"{ORIGIN}: permissions.allow: the rule 'WebSearch' is about WebSearch, "
        "which this job does not have",
        f"{ORIGIN}: permissions.allow: the rule 'Bash(' has no ')' at its end",
        f"{ORIGIN}: permissions.allow: '7' is not a text",
        f"{ORIGIN}: permissions.allow: \"{{'a': 1}}\" is not a text",
        f"{ORIGIN}: permissions.defaultMode: say 'mode' or 'default' in the job file",
        f"{ORIGIN}: permissions.additionalDirectories: tools work in the job's workspace",
        f"{ORIGIN}: permissions.made_up: Runner does not know it",
        f"{ORIGIN}: hooks: Runner runs no hooks: what they would have refused needs deny rules",
    )


def test_a_file_without_rules_has_none():
    assert from_settings({}, ORIGIN, has_tool) == ((), ())
    assert from_settings({"permissions": []}, ORIGIN, has_tool)[1] == (
        f"{ORIGIN}: 'permissions' is not a table of rules",
    )
