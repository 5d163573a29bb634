import pytest

from runner.permissions import Rule
from runner.permissions.claude_settings import ImportedRules, from_settings

ORIGIN = ".claude/settings.json"
TOOLS = ("Bash", "Read")


def test_rules_are_taken_with_where_they_are_from():
    data = {
        "permissions": {
            "allow": ["Bash(ls:*)", "Read"],
            "ask": ["Bash(git push:*)"],
            "deny": ["Edit(.env)"],
        }
    }
    assert from_settings(data, ORIGIN, TOOLS) == ImportedRules(
        (
            Rule("deny", "Edit(.env)", origin=ORIGIN),
            Rule("ask", "Bash(git push:*)", origin=ORIGIN),
            Rule("allow", "Bash(ls:*)", origin=ORIGIN),
            Rule("allow", "Read", origin=ORIGIN),
        ),
        (),
        (),
        (),
    )


def test_what_is_left_out_is_said_line_by_line():
    data = {
        "permissions": {
            "allow": ["WebSearch", "Bash(", "Bash(:unanalyzable)"],
            "deny": ["WebFetch(x)", "Agent(Explore)", "WebSearch(x)", "Write(a)"],
            "defaultMode": "acceptEdits",
            "additionalDirectories": ["../x"],
            "made_up": True,
        },
        "hooks": {},
        "env": {"A": "b"},
        "model": "x",
    }
    taken = from_settings(data, ORIGIN, TOOLS)
    assert (taken.rules, taken.problems) == ((), ())
    assert taken.left_out == (
        f"{ORIGIN}: permissions.deny: the rule 'WebFetch(x)' is not 'domain:' and a host, such as "
        "WebFetch(domain:example.com)",
        f"{ORIGIN}: permissions.deny: the rule 'Agent(Explore)' is about Agent, which this job does not "
        "have",
        f"{ORIGIN}: permissions.deny: the rule 'WebSearch(x)' has brackets, which mean nothing for "
        "WebSearch: write 'WebSearch' or WebSearch(ARGUMENT:TEXT)",
        f"{ORIGIN}: permissions.deny: the rule 'Write(a)' is about Write, which this job does not "
        "have",
        f"{ORIGIN}: permissions.allow: the rule 'WebSearch' is about WebSearch, "
        "which this job does not have",
        f"{ORIGIN}: permissions.allow: the rule 'Bash(' has no ')' at its end",
        f"{ORIGIN}: permissions.allow: the rule 'Bash(:unanalyzable)' allows nothing: a command that hides "
        "what it runs is allowed by 'Bash' alone",
        f"{ORIGIN}: permissions.defaultMode: say 'mode' or 'default' in the job file",
        f"{ORIGIN}: permissions.additionalDirectories: tools work in the job's workspace",
        f"{ORIGIN}: permissions.made_up: Runner does not know it",
        f"{ORIGIN}: env: set variables in the environment of the worker",
        f"{ORIGIN}: model: say 'model' in the job file",
        f"{ORIGIN}: hooks: Runner runs only the job file's hooks: write hooks that refuse calls there",
    )


@pytest.mark.parametrize("effect", ["deny", "ask"])
@pytest.mark.parametrize(
    "text",
    [
        "Bash(git push *) ",
        " Bash(rm *)",
        "Bash (rm *)",
        "Bash(rm *",
        "Bash(x:*y)",
        "Read(!x)",
        "Read(../secrets/**)",
        "Edit(../x)",  # Bash may be redirected there
        "bash(rm *)",
        "bash",
        "edit(a)",
        "B?sh(rm *)",
        "",
        "Bash(rm\u200b *)",
    ],
)
def test_a_denial_that_cannot_be_read_is_a_problem_unless_the_job_lacks_its_tool(effect, text):
    data = {"permissions": {"allow": ["Bash"], effect: [text]}}
    (problem,) = from_settings(data, ORIGIN, TOOLS).problems
    assert problem.startswith(f"{ORIGIN}: permissions.{effect}: the rule {text!r}")


@pytest.mark.parametrize(
    ("permissions", "words"),
    [
        ([], "'permissions' is not a table of rules"),
        ({"deny": "Bash(rm:*)"}, "permissions.deny is not a list"),
        ({"ask": {"Bash": True}}, "permissions.ask is not a list"),
        ({"allow": "Bash"}, "permissions.allow is not a list"),
        ({"deny": None}, "permissions.deny is not a list"),
        ({"deny": [7]}, "permissions.deny: '7' is not a text"),
        ({"allow": [["Bash"]]}, "permissions.allow: \"['Bash']\" is not a text"),
        ({"Deny": ["Bash"]}, "permissions.'Deny': write 'deny'"),
        ({"ask ": []}, "permissions.'ask ': write 'ask'"),
    ],
)
def test_a_file_of_another_shape_is_a_problem(permissions, words):
    taken = from_settings({"permissions": permissions}, ORIGIN, TOOLS)
    assert taken == ImportedRules((), (), (), (f"{ORIGIN}: {words}",))


def test_a_file_without_rules_has_none():
    assert from_settings({}, ORIGIN, TOOLS) == ImportedRules((), (), (), ())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Bash(cat :*)", "Bash(cat:*)"),
        ("Bash(git push  :*)", "Bash(git push:*)"),
        ("Bash(command:rm *)", "Bash(rm *)"),
        ("Read(file_path:/etc/*)", "Read(/etc/*)"),
    ],
)
@pytest.mark.parametrize("effect", ["deny", "ask", "allow"])
def test_a_rule_that_matches_nothing_is_told_with_what_it_was_meant_to_be(text, meant, effect):
    taken = from_settings({"permissions": {effect: [text]}}, ORIGIN, TOOLS)
    assert [rule.text for rule in taken.rules] == [text]
    wanted = f"{ORIGIN}: permissions.{effect}: {text!r} matches no call: did you mean {meant!r}?"
    assert taken.doubts == (wanted,)


@pytest.mark.parametrize("text", ["Bash(cat:*)", "Bash(cat *)", "Bash(url:*)", "Read", "Read(a:b)"])
def test_a_rule_that_matches_something_draws_no_doubt(text):
    assert from_settings({"permissions": {"deny": [text]}}, ORIGIN, TOOLS).doubts == ()


@pytest.mark.parametrize("key", ["permission", "Permissions", "permisions"])
def test_a_mistyped_key_of_all_rules_is_told(key):
    taken = from_settings({key: {"deny": ["Bash"]}, "env": {}}, ORIGIN, TOOLS)
    assert taken.rules == ()
    assert taken.doubts == (f"{ORIGIN}: {key!r} holds no rules: did you mean 'permissions'?",)
