import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runner.permissions import ResolvedPath, Rule, ToolContext
from runner.permissions.decisions import Policy, may_touch
from runner.permissions.rules import problem, with_copies

TREE, HOME, COPY = "/srv/tree", "/home/lena", "/var/lib/runner/workspaces/run_1"


def rebased(text, effect="deny", folders=(TREE,), home=HOME):
    rule = Rule(effect, text, "because", "settings.json")
    first, *added = with_copies([rule], folders, home)
    assert first == rule
    assert {(each.effect, each.why, each.origin) for each in added} <= {
        (effect, "because", "settings.json")
    }
    return [each.text for each in added]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Edit(//srv/tree/deny/**)", ["Edit(/deny/**)"]),
        ("Read(//srv/tree/.env)", ["Read(/.env)"]),
        ("Read(//srv/tree/a/)", ["Read(/a/)"]),
        ("Read(//srv/tree)", ["Read(/**)"]),
        ("Read(//srv/tree/**)", ["Read(/**)"]),
        ("Read(//srv/**)", ["Read(/**)"]),
        ("Read(//srv/)", ["Read(/**)"]),
        ("Read(//srv/tree/*.md)", ["Read(/*.md)"]),
        ("Write(//srv/*/docs/*.md)", ["Write(/docs/*.md)"]),
        ("Grep(//srv/**/docs)", ["Grep(/**/docs)"]),
        ("Read(//**/tree/docs)", ["Read(/docs)"]),
        ("Read(//SRV/Tree/Docs)", ["Read(/Docs)"]),
        ("Read(//**/.env)", []),
        ("Read(//**)", []),
        ("Read(//srv/trees/x)", []),
        ("Read(//etc/**)", []),
        ("Read(/srv/tree/x)", []),
        ("Read(srv/tree/x)", []),
        ("Read(~/x)", []),
        ("Read", []),
        ("Bash(cat //srv/tree/x)", []),
    ],
)
def test_a_rule_that_leads_into_the_workspace_is_joined_by_what_it_means_there(text, expected):
    assert rebased(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Read(~/code/x/secret/**)", ["Read(/secret/**)"]),
        ("Read(~/**)", ["Read(/**)"]),
        ("Read(~)", ["Read(/**)"]),
        ("Read(~/*/x/*.pem)", ["Read(/*.pem)"]),
        ("Read(~/.ssh/**)", []),
    ],
)
def test_the_home_folder_is_a_way_into_the_workspace_too(text, expected):
    assert rebased(text, folders=("/home/l[n]a/code/x",), home="/home/l[n]a") == expected
    assert rebased(text, folders=("/home/l[n]a/code/x",), home=None) == []


def test_an_allow_is_exact_and_knows_only_the_real_name_of_the_folder():
    folders = (TREE, "/link")
    assert rebased("Read(//link/a)", "deny", folders) == ["Read(/a)"]
    assert rebased("Read(//link/a)", "ask", folders) == ["Read(/a)"]
    assert rebased("Read(//link/a)", "allow", folders) == []
    assert rebased("Read(//srv/Tree/a)", "allow") == []
    assert rebased("Read(//srv/tree/a)", "allow") == ["Read(/a)"]


parts = st.sampled_from(["srv", "tree", "*", "**", "a", "t*", "A", "*.md", "?"])
names = st.sampled_from(["a", "A", "b.md", "tree", "srv"])


@pytest.mark.slow
@given(
    st.sampled_from(["deny", "allow"]),
    st.lists(parts, min_size=1, max_size=5).map("/".join),
    st.sampled_from(["", "/"]),
    st.lists(names, min_size=1, max_size=3).map("/".join),
)
def test_what_holds_in_the_workspace_holds_in_its_copy(effect, pattern, end, path):
    rule = Rule(effect, f"Read(//{pattern}{end})")
    assume(problem(rule.text) is None)
    both = Policy(tuple(with_copies([rule], (TREE,), HOME)))
    in_tree, in_copy = (ResolvedPath(f"{root}/{path}", f"{root}/{path}") for root in (TREE, COPY))
    before = may_touch(Policy((rule,)), "Read", in_tree, ToolContext(TREE, None, HOME))
    after = may_touch(both, "Read", in_copy, ToolContext(COPY, None, HOME))
    literally = may_touch(Policy((rule,)), "Read", in_copy, ToolContext(COPY, None, HOME))
    assert bool(after.matched_rules) == bool(before.matched_rules) or literally.matched_rules
