import pytest

from runner.core.permissions import Place, Policy, Request, Rule, Setting, evaluate
from runner.core.permissions.syntax import concerns, problem
from runner.core.permissions.tiers import rules_of

TOOLS = ("Read", "Write", "Edit", "Bash", "Glob", "Grep", "own_tool")
PLACES = {path: Place(f"/w/{path}", f"/w/{path}") for path in ("a", ".git/config")}
ELSEWHERE = {"/etc/x": Place("/etc/x", "/etc/x"), ".": Place("/w", "/w")}
SETTING = Setting("/w", None, "/home/me", PLACES | ELSEWHERE)


def effect(mode, tool, *more, **arguments):
    policy = Policy((*rules_of(mode, TOOLS), *more))
    return evaluate(policy, Request(tool, arguments, SETTING)).effect


@pytest.mark.parametrize("mode", ["read_only", "workspace_write", "full_access"])
def test_a_mode_is_rules_that_anyone_can_list(mode):
    for tools in (TOOLS, ("Bash",), ("Grep",), ("Write",), ("own_tool",), ()):
        for rule in rules_of(mode, tools):
            assert problem(rule.text) is None
            assert rule.origin == "mode"
            assert any(concerns(rule.text, tool) for tool in tools)
            assert (rule.effect == "ask") == bool(rule.why)
    texts = [rule.text for rule in rules_of(mode, TOOLS)]
    assert len(texts) == len(set(texts))


def test_read_only_reads_and_nothing_else():
    assert effect("read_only", "Read", file_path="a") == "allow"
    assert effect("read_only", "Grep") == "allow"
    assert effect("read_only", "Glob") == "allow"
    assert effect("read_only", "Edit", file_path="a") == "deny"
    assert effect("read_only", "Bash", command="ls") == "deny"
    assert effect("read_only", "own_tool") == "deny"


def test_workspace_write_changes_files_in_the_workspace_alone():
    assert effect("workspace_write", "Edit", file_path="a") == "allow"
    assert effect("workspace_write", "Write", file_path="a") == "allow"
    assert effect("workspace_write", "Edit", file_path="/etc/x") == "deny"
    assert effect("workspace_write", "Edit", file_path=".git/config") == "ask"
    assert effect("workspace_write", "Bash", command="echo b > a") == "allow"
    assert effect("workspace_write", "Bash", command="echo b > /etc/x") == "deny"
    assert effect("workspace_write", "own_tool") == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf build", "/bin/rm x", "ls && rm x", "find . -name x -delete", "git push", "git -C a push",
        "git push -f", "git reset --hard HEAD~1", "git reset HEAD --hard", "git clean -fdx",
        "git rebase -i x", "git commit --amend", "git commit -a --amend --no-edit", "git checkout -- a",
        "git checkout .", "git restore a", "git branch -D x", "git branch x -D", "git tag -d v1",
        "git stash drop", "git reflog expire --all", "git gc --prune=now", "git update-ref -d x",
        "git filter-branch x", "chmod +x a", "chown me a", "sudo ls", "npm publish", "yarn publish",
        "cargo publish --dry-run", "twine upload x", "python3 -m twine upload x", "gem push x",
        "docker push x", "gh release create v1", "gh pr merge 1", "gh repo delete x",
        "kubectl delete pod x",
        "terraform destroy", "systemctl stop x", "kill 1", "dd if=a of=b", "truncate -s 0 a", "shred a",
        "ls | xargs rm", "timeout 5 rm x", "X=1 rm x", "bash -c 'rm x'", "$cmd", "eval $x", "echo 'open",
        'echo a > "$F"', "ls $(rm x)", "(rm x)",
    ],
)  # fmt: skip
def test_workspace_write_asks_before_what_destroys_or_hides(command):
    assert effect("workspace_write", "Bash", command=command) == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "ls -la", "npm test", "pytest -q && git status", "git add -A", "git commit -m 'a message'",
        "git log --oneline | head -3", "cargo build", "mkdir -p x", "git checkout -b topic",
        "git branch", "git stash", "make", "grep -rn x src", "git diff HEAD~1",
    ],
)  # fmt: skip
def test_workspace_write_runs_everyday_commands(command):
    assert effect("workspace_write", "Bash", command=command) == "allow"


@pytest.mark.parametrize("mode", ["read_only", "workspace_write", "full_access"])
def test_an_explicit_deny_holds_in_every_mode(mode):
    assert effect(mode, "Read", Rule("deny", "Read(a)"), file_path="a") == "deny"
    assert effect(mode, "Bash", Rule("deny", "Bash(ls *)"), command="X=1 ls") == "deny"
    assert effect(mode, "Bash", Rule("deny", "Edit(a)"), command="echo > a") == "deny"


def test_full_access_asks_nothing():
    for command in ("rm x", "$cmd", "echo > /etc/x", ""):
        assert effect("full_access", "Bash", command=command) == "allow"
    assert effect("full_access", "Edit", file_path="/etc/x") == "allow"
    assert effect("full_access", "own_tool") == "allow"
