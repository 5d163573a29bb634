from dataclasses import replace

import pytest

from runner.permissions import Request, ResolvedPath, Rule, ToolContext
from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Policy, evaluate
from runner.permissions.modes import rules_of
from runner.permissions.rules import concerns, problem

TOOLS = ("Read", "Write", "Edit", "Bash", "Glob", "Grep", "own_tool")
PLACES = {path: ResolvedPath(f"/w/{path}", f"/w/{path}") for path in ("a", ".git/config")}
ELSEWHERE = {"/etc/x": ResolvedPath("/etc/x", "/etc/x"), ".": ResolvedPath("/w", "/w")}
SETTING = ToolContext("/w", None, "/home/me", PLACES | ELSEWHERE)


def effect(mode, tool, *more, **arguments):
    policy = Policy((*rules_of(mode, TOOLS), *more))
    places = {path: ResolvedPath(f"/w/{path}", f"/w/{path}") for path in paths_of(tool, arguments)}
    setting = replace(SETTING, places=places | SETTING.places)
    return evaluate(policy, Request(tool, arguments, setting)).effect


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
        'echo a > "$F"', "ls $(rm x)", "(rm x)", "kubectl -n prod delete pod x",
        "kubectl --context prod apply -f x", "terraform -chdir=x destroy -auto-approve",
        "terraform -chdir=x apply", "helm -n x upgrade a b", "aws --profile x s3 rm s3://x",
        "npm --silent publish", "npm -ws publish", "npm publ", "npm pu", "npx npm@9 publish",
        "pnpm -r publish", "pnpm --filter x publish", "yarn --cwd x publish", "yarn workspace a publish",
        "cargo -q publish", "cargo +nightly publish", "uv --directory x publish", "poetry -C x publish",
        "hatch -q publish", "./gradlew :a:publish", "gh -R x pr create", "docker -H x rm y",
        "docker compose -f x push", "uvx twine upload x", "uv run -m twine upload x",
        "git reset --har HEAD~1", "git reset HEAD~3", "git reset --soft HEAD~1", "git reset a.py",
        "git commit --amen", "git checkout --forc x", "git switch --disc x", "git branch --del x",
        "git pull --reb", "git branch -vD x", "git branch -fd x", "git checkout -qf",
        "git checkout -fB x", "git checkout --pathspec-from-f=x", "git switch -qf x",
        "git switch -fC x", "git branch -qM a b", "git tag -af v1", "git fetch -f origin a:b",
        "git fetch -q origin +a:b", "git pull -f", "git checkout a.py", "git checkout HEAD a.py",
        "git checkout -q main", "git subtree push --prefix=x o b", "git subtree --prefix x push o b",
        "git http-push", "git lfs migrate import", "git merge --abort", "git merge --abo",
        "git submodule--helper foreach ls", "git merge-index ls -a", "git --attr-source HEAD push",
        "jobs -x rm -rf x", "runcon rm x", "npx rm x", "uv run rm x", "bundle exec rm x",
        "npm run env -- ls", "cmake -E env ls", "make -C /tmp/evil", "go env -w CC=x",
        "cp a .git/config", "sed -i s/a/b/ .git/config", "uv run bash -c \"$x\"",
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
        "git checkout -b topic origin/main", "git checkout -qb topic", "git checkout -",
        "git checkout --detach HEAD", "git checkout -t origin/topic",
        "git switch topic", "git switch -c topic", "git reset", "git reset -q HEAD a.py",
        "git reset -- a.py", "git fetch -p origin", "git pull --ff-only", "git commit -qam 'fix -f'",
        "git log --merges --grep push", "git merge main", "git branch -vv", "git tag v1",
        "git stash pop", "git blame -f a", "npm ci", "npm run build", "npm --prefix web run build",
        "npx --yes eslint src -c .eslintrc", "npx eslint *.ts", "uv run pytest -q", "make -C sub test",
        "curl -fsSL http://x -o a", "curl -s -o /dev/null http://x", "sed -i s/a/b/ a", "cat .git/config",
        "cargo +nightly test --release", "docker build -t x .", "docker run --rm x",
        "kubectl -n x get pods", "gh -R x run list", "touch a; mkdir -p b; cp a b", "gcc -o x a.c",
        "terraform -chdir=x plan", "cmake -B build -DCMAKE_CXX_STANDARD=17", "mvn -B test",
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
