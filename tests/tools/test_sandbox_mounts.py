"""The sandbox holds deny rules by itself: here every command runs as if the rules had allowed it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runner.core.conversation import ToolResult
from runner.core.sandbox import Sandbox
from runner.errors import HostFaultError
from runner.ports import Command, Interrupt
from runner.settings import Secrets
from runner.tools import sandbox_denials, sandbox_mounts
from runner.tools.sandbox_mounts import Blanks, Mounts, View
from runner.tools.sandbox_seccomp import seccomp_program
from runner.tools.toolbox import LocalTools
from runner.workspace.folders import COPIES

from .conftest import Workbench, policy
from .test_sandbox import with_sandbox

pytestmark = with_sandbox

SECRET = "a secret of the workspace"
LOCKED = "as it was at first"
REQUIRED = Sandbox("required")
RULES = ("deny Read(secrets/**)", "deny Read(.env)", "deny Edit(/locked/**)", "deny Edit(*.lock)")

CONTENT = dict.fromkeys(("secrets/k", ".env", "src/deep/.env"), SECRET)
CONTENT |= dict.fromkeys(("locked/f", "a.lock", "src/deep/b.lock"), LOCKED)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the worker's user."""
    home = tmp_path / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def denied(user: Path, tmp_path: Path) -> Iterator[Workbench]:
    """A workspace under RULES that is recorded: in RUNNER_HOME."""
    home = tmp_path / "home"
    workspace, outputs = home / COPIES / "run_1", home / "outputs" / "run_1"
    for folder in (workspace / "secrets", workspace / "locked", workspace / "src/deep", outputs):
        folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (workspace / name).write_text(content)
    (home / "runner.db").write_text(SECRET)
    (outputs / "call_0.txt").write_text("an output of before")
    tools = LocalTools(home, home / "locks", Secrets(), watchdog_seconds=300)
    yield Workbench(workspace, home, outputs, home / "locks", tools, {}, policy(*RULES))
    tools.close()


def bash(
    bench: Workbench, text: str, seconds: float = 60, sandbox: Sandbox = REQUIRED
) -> ToolResult:
    command = Command("c", "run_1", text, bench.surroundings, seconds, sandbox, bench.policy)
    return bench.tools.command(command, Interrupt())


def is_untouched(bench: Workbench) -> bool:
    """True if all that RULES deny is as it was at first."""
    return all((bench.workspace / name).read_text() == each for name, each in CONTENT.items())


READS = [
    "cat secrets/k .env",
    "cat /proc/self/cwd/secrets/k /dev/fd/../cwd/.env",
    'cat /proc/self/root/"$PWD"/secrets/k',
    "ln -s /proc/self/cwd here; cat here/secrets/k here/src/deep/.env",
    "cat se*/* .en? */*/.env",
    "ln -s secrets s; cat s/k; ln secrets/k k; ln .env env; cat k env",
    "mv secrets s; cat s/k; mv .env env; cat env",
    "mv src s; cat s/deep/.env; cp -r . /tmp/all; grep -r secret /tmp/all",
    "chmod -R 777 . ; chmod 777 .env; cat .env",
    "tar cf - . | tar xOf -; find . -type f -exec cat {} +; grep -r secret .",
    "python3 -c \"import os; print(os.open('.env', 0), open('secrets/k').read())\"",
    "git init -q; git add -f .env secrets; git cat-file -p :.env",
    "umount .env; umount -l secrets; mount -t tmpfs none secrets; cat .env",
    "unshare -rm sh -c 'umount .env; cat .env'; nsenter -t 1 -m cat .env",
    "curl -s file:$PWD/.env; curl -s {FILE,file}://$PWD/.env",
]


@pytest.mark.slow
@pytest.mark.parametrize("command", READS)
def test_what_read_denies_is_read_by_no_spelling_and_no_program(
    denied: Workbench, command: str
) -> None:
    assert SECRET not in bash(denied, command).content
    assert is_untouched(denied)


WRITES = [
    "echo x > /proc/self/cwd/locked/f; echo x > /dev/fd/../cwd/a.lock",
    "ln -s /proc/self/cwd here; echo x > here/locked/f; echo x > here/src/deep/b.lock",
    "mkdir evil; echo x > evil/f; cp evil/* locked/; X='evil/f a.lock'; cp $X",
    "mkdir -p evil/locked; echo x > evil/locked/f; cp -r evil/* .; mv -f evil/locked/f a.lock",
    "rm -rf locked a.lock src; git clean -fdx; find . -delete",
    "mv locked l; mkdir locked; echo x > locked/f; mv src s; mkdir -p src/deep",
    "sed -i s/secret/x/ a.lock locked/f; truncate -s 0 a.lock; tee a.lock < /dev/null",
    "tar cf a.lock secrets; tar cf - --remove-files a.lock locked > /dev/null",
    "ln a.lock hard; echo x > hard; ln -s locked/f soft; echo x > soft",
    "chmod -R 777 locked a.lock; chattr -i a.lock; echo x > a.lock",
    "sqlite3 a.lock 'vacuum'; python3 -c \"open('locked/f', 'w')\"",
    "git init -q; git mv a.lock x; git checkout-index --prefix=locked/ -af",
]


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITES)
def test_what_edit_denies_is_changed_by_no_spelling_and_no_program(
    denied: Workbench, command: str
) -> None:
    bash(denied, command)
    assert is_untouched(denied)


STEERING = [
    "mkdir evil; echo evil > evil/pre-commit; cp evil/* .git/hooks/; cp $PWD/evil/pre-commit .git/config",
    "blob=$(echo evil | git hash-object -w --stdin);"
    " git update-index --add --cacheinfo 100755,$blob,pre-commit;"
    " git checkout-index --prefix=.git/hooks/ -a; git commit -qm x",
    "git config core.hooksPath evil; git config core.fsmonitor ./evil; echo evil >> .git/config",
    "echo evil > m; git mailinfo .git/hooks/a .git/hooks/b < m; git bundle create .git/hooks/c HEAD",
    "git fast-export --export-marks=.git/hooks/d --all; git merge-file m m .git/config",
    "mv .git g; mkdir .git; cp -r g/* .git; echo evil > .git/hooks/pre-commit; echo evil >> .git/config",
    "rm -rf .git; git init -q . ; git config core.editor evil",
    "echo ../evil > .git/commondir",
]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["folder", "worktree", "recorded"])
@pytest.mark.parametrize("command", STEERING)
def test_what_git_runs_and_is_steered_by_is_not_changed(
    denied: Workbench, tmp_path: Path, command: str, shape: str
) -> None:
    bench, git, settings = git_workspace(denied, tmp_path, shape)
    bash(bench, f"echo x > new; {command}")
    assert (git / "config").read_text() == settings
    assert not list((git / "hooks").iterdir())
    assert not (git / "commondir").exists()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["folder", "worktree", "recorded"])
def test_a_commit_works_in_the_sandbox(denied: Workbench, tmp_path: Path, shape: str) -> None:
    bench, _, _ = git_workspace(denied, tmp_path, shape)
    said = bash(bench, "echo x > new && git add new && git commit -qm made && git log --format=%s")
    assert said.content.split("\n")[0] == "made", said.content
    assert run_git(bench.workspace, "log", "-1", "--format=%s") == "made\n"


def git_workspace(bench: Workbench, tmp_path: Path, shape: str) -> tuple[Workbench, Path, str]:
    """A workspace in git, its repository, and that one's settings."""
    source = tmp_path / "source"
    run_git(tmp_path, "init", "-q", "--template=", str(source))
    run_git(source, "config", "user.email", "me@example.com")
    run_git(source, "config", "user.name", "me")
    run_git(source, "commit", "-q", "--allow-empty", "-m", "first")
    workspace, git = source, source / ".git"
    if shape == "worktree":
        workspace = tmp_path / "linked"
        run_git(source, "worktree", "add", "-q", str(workspace))
    elif shape == "recorded":
        workspace = bench.home / COPIES / "run_2"
        git = workspace.with_name(".run_2.git")
        run_git(tmp_path, "clone", "-q", "--template=", "--shared", str(source), str(workspace))
        (workspace / ".git").rename(git)
        (workspace / ".git").write_text(f"gitdir: {git}\n")
        run_git(workspace, "config", "core.bare", "false")
        run_git(workspace, "config", "user.email", "me@example.com")
        run_git(workspace, "config", "user.name", "me")
    (git / "hooks").mkdir(exist_ok=True)
    return replace(bench, workspace=workspace), git, (git / "config").read_text()


def run_git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.slow
def test_a_denied_path_that_a_command_makes_is_removed_and_the_call_fails(
    denied: Workbench,
) -> None:
    result = bash(denied, "mkdir -p sub; echo x > new.lock; echo y > sub/c.lock; echo z > kept")
    assert result.outcome == "denied"
    assert "removed again: new.lock, sub/c.lock" in result.content
    assert sorted(each.name for each in denied.workspace.rglob("*.lock")) == ["a.lock", "b.lock"]
    assert (denied.workspace / "kept").exists()
    assert bash(denied, "echo x > kept").outcome == "succeeded"


@pytest.mark.slow
def test_a_folder_that_is_moved_to_a_denied_name_is_removed_whole(denied: Workbench) -> None:
    assert bash(
        denied, "mkdir -p a/b; echo x > a/b/c; mv a a.lock2; mv a.lock2 z.lock"
    ).outcome == ("denied")
    assert not (denied.workspace / "z.lock").exists()


@pytest.mark.slow
def test_a_link_never_leads_what_is_removed_out_of_the_workspace(
    denied: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside"
    (beside / "deep").mkdir(parents=True)
    for name in ("one.lock", "deep/two.lock"):
        (beside / name).write_text("not the run's")
    monkeypatch.chdir(beside)  # of the worker: links into /proc lead it there
    made = f"ln -s {beside} l; ln -s /proc/self/cwd here; ln -s here h; ln -s ../../../beside r; ln -s h i"
    for command in (
        made,
        "ln -s l m; mv l n; echo x > new.lock",
        "ln -sfn here/deep h; touch o.lock",
    ):
        bash(denied, command)
    assert sorted(each.name for each in beside.rglob("*.lock")) == ["one.lock", "two.lock"]
    assert not (denied.workspace / "new.lock").exists()


@pytest.mark.slow
def test_what_was_there_is_never_removed(denied: Workbench) -> None:
    bench = denied.under("deny Read(secrets/**)", "deny Edit(**/k)", "deny Edit(*.lock)")
    (bench.workspace / "secrets" / "k.lock").write_text(SECRET)
    assert bash(bench, "touch kept").outcome == "succeeded"
    assert bash(bench, "touch new.lock").outcome == "denied"
    assert (bench.workspace / "secrets" / "k.lock").exists()
    assert is_untouched(bench)


@pytest.mark.slow
def test_a_denied_link_is_put_back(denied: Workbench) -> None:
    link = denied.workspace / "to.lock"
    link.symlink_to("src")
    for command in ("rm to.lock", "ln -sfn /etc to.lock", "rm to.lock; mkdir -p to.lock/x"):
        assert bash(denied, command).outcome == "denied"
        assert str(link.readlink()) == "src"


@pytest.mark.slow
def test_a_rule_about_every_path_leaves_the_workspace_to_look_at(denied: Workbench) -> None:
    bench = denied.under("deny Edit", "allow Read")
    result = bash(bench, "cat locked/f; echo x > new; echo x > /tmp/ok && echo here")
    assert LOCKED in result.content
    assert "here" in result.content
    assert not (bench.workspace / "new").exists()
    refused = bash(denied.under("deny Read"), "cat locked/f")
    assert (refused.outcome, LOCKED in refused.content) == ("denied", False)


@pytest.mark.slow
def test_rules_of_a_sub_agents_type_hold_too(denied: Workbench) -> None:
    rules = policy("allow Read").restricted("reader", policy("deny Read(/locked/**)").rules)
    assert LOCKED not in bash(replace(denied, policy=rules), "cat locked/f").content


@pytest.mark.slow
def test_paths_outside_of_the_workspace_are_denied_too(
    denied: Workbench, tmp_path: Path, user: Path
) -> None:
    (tmp_path / "user" / "notes").mkdir()
    (tmp_path / "user" / "notes" / "n").write_text(SECRET)
    bench = denied.under("deny Read(~/notes/**)", "deny Read(//etc/Passwd)")
    bench = replace(
        bench, workspace=user
    )  # what is in /tmp beside the workspace is not seen at all
    (user / "mine").write_text("mine")
    assert "mine" in bash(bench, "cat mine").content
    assert SECRET not in bash(bench, "cat notes/n").content
    assert "root:" not in bash(bench, "cat /etc/passwd").content


def test_more_denied_paths_than_can_be_kept_are_refused_not_let_through(
    denied: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_mounts, "MOST_DENIED", 20)
    for number in range(20):
        (denied.workspace / f"{number}.lock").write_text("x")
    result = bash(denied, "echo ran; cat .env")
    assert result.outcome == "denied"
    assert "deny the folders that they are in" in result.content
    assert "ran" not in result.content
    monkeypatch.setattr(sandbox_denials, "MOST_ENTRIES", 10)
    assert "too many to look for" in bash(denied, "echo ran").content


def test_a_rule_about_too_many_files_elsewhere_is_named(
    denied: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_denials, "MOST_ENTRIES_ELSEWHERE", 50)
    view = View(denied.home, denied.workspace, denied.outputs)
    blanks, rules = Blanks.make(denied.home), policy("deny Read(//usr/**/*.pem)", *RULES)
    assert Mounts(view, rules, blanks, os.environ).unheld == ("Read(//usr/**/*.pem)",)
    assert Mounts(view, policy(*RULES), blanks, os.environ).unheld == ()


@pytest.mark.slow
def test_a_tree_that_changed_is_searched_anew(denied: Workbench) -> None:
    for number in range(3):
        folder = denied.workspace / f"src/deep/{number}"
        folder.mkdir()
        (folder / ".env").write_text(SECRET)
        assert SECRET not in bash(denied, "cat src/deep/*/.env; grep -r secret src/deep/*/").content


@pytest.mark.slow
def test_a_link_to_what_is_denied_and_a_denied_link_hide_the_same(denied: Workbench) -> None:
    (denied.workspace / "plain").write_text(SECRET)
    (denied.workspace / "src" / ".env").symlink_to("../plain")
    assert SECRET not in bash(denied, "cat src/.env plain; cat */.env").content
    (denied.workspace / "loop").symlink_to(".")
    (denied.workspace / "src" / "up.lock").symlink_to("..")
    assert bash(denied, "echo ran").content == "ran\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["src", "src/deep", "secrets", "with blank#"])
def test_a_link_that_is_put_in_a_folder_s_place_before_the_mounts_stops_the_call(
    denied: Workbench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bench = denied.under(*RULES[:2])
    place, moved = denied.workspace / name, denied.workspace / "moved"
    (denied.workspace / "with blank#").mkdir()
    (denied.workspace / "with blank#" / ".env").write_text(SECRET)
    shutil.copytree(place, denied.workspace / "evil")  # has all that is mounted on
    assert bash(bench, "echo ran").content == "ran\n"
    made = sandbox_mounts._variables

    def meanwhile(*arguments: Any) -> Iterator[str]:
        place.rename(moved)
        place.symlink_to("../evil" if "/" in name else "evil")
        return made(*arguments)

    monkeypatch.setattr(sandbox_mounts, "_variables", meanwhile)
    result = bash(bench, "grep -rs secret moved")
    why = "the command could not be started: its sandbox could not be made: "
    assert result.content == f"{why}{place} was moved meanwhile: try again"
    assert SECRET not in result.content


@pytest.mark.slow
def test_the_job_file_is_read_only(denied: Workbench) -> None:
    (denied.workspace / "job.toml").write_text("name = 'x'")
    sandbox = Sandbox(file=str(denied.workspace / "job.toml"))
    bash(denied, "echo x > job.toml; rm job.toml; mv job.toml j", sandbox=sandbox)
    assert (denied.workspace / "job.toml").read_text() == "name = 'x'"


@pytest.mark.slow
def test_credentials_and_runners_home_are_hidden_and_the_run_s_own_files_are_not(
    denied: Workbench, user: Path
) -> None:
    for name in (".ssh/id", ".aws/credentials", ".config/gh/hosts.yml", ".claude/x", ".mozilla/y"):
        (user / name).parent.mkdir(parents=True, exist_ok=True)
        (user / name).write_text(SECRET)
    for name in (".netrc", ".npmrc", ".git-credentials", ".bash_history"):
        (user / name).write_text(SECRET)
    other = denied.home / COPIES / "run_9"
    other.mkdir()
    (other / "theirs").write_text(SECRET)
    # In the workspace, so that it is there at all: /tmp is another one.
    bench = replace(denied, workspace=user)
    assert SECRET not in bash(bench, "grep -rs secret .; cat ~/.ssh/id ~/.netrc").content
    said = bash(denied, f"ls {denied.home}; cat {denied.outputs}/*; grep -rs secret {denied.home}")
    assert SECRET not in said.content
    assert "an output of before" in said.content
    assert "runner.db" not in said.content
    assert "run_9" not in said.content
    assert "Read-only" in bash(denied, f"echo x > {denied.outputs}/x").content


@pytest.mark.slow
def test_a_file_of_credentials_that_the_environment_names_is_hidden(
    denied: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = denied.workspace / "account.json"
    account.write_text(SECRET)
    assert SECRET in bash(denied, "cat account.json").content
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    assert bash(denied, "cat account.json; echo x > /dev/null && echo fine").content.endswith(
        "fine\n"
    )
    assert SECRET not in bash(denied, "cat account.json").content


@pytest.mark.slow
def test_a_home_in_the_workspace_is_hidden(bench: Workbench) -> None:
    (bench.home / "runner.db").write_text(SECRET)
    bench.outputs.mkdir(parents=True)
    (bench.outputs / "call_0.txt").write_text("an output of before")
    command = (
        "cat .runner/runner.db; ls -A .runner; cat .runner/outputs/*/*; echo x > .runner/runner.db"
    )
    said = bash(bench, command).content
    assert SECRET not in said
    assert "an output of before" in said
    assert (bench.home / "runner.db").read_text() == SECRET


@pytest.mark.slow
def test_sockets_of_other_programs_are_not_there(denied: Workbench) -> None:
    names = bash(denied, "ls -A /run").content.split()
    assert set(names) <= {"systemd", "(no", "output)"}  # where names of hosts are looked up
    said = bash(denied, "env").content
    assert "SSH_AUTH_SOCK" not in said
    assert "DBUS_SESSION" not in said


def test_a_run_keeps_its_own_tmp_from_call_to_call(tmp_path: Path, user: Path) -> None:
    blanks, view = Blanks.make(tmp_path), View(Path("/opt/none"), None, Path("/opt/none"))
    kept = sandbox_mounts.run_tmp(tmp_path, "run_1")
    words = Mounts(view, policy(), blanks, {"HOME": "/opt"}, kept).arguments
    assert words[words.index("/tmp") - 2 : words.index("/tmp")] == ("--bind", str(kept))
    inside = replace(view, workspace=tmp_path)  # links in it could redirect what is mounted there
    words = Mounts(inside, policy(), blanks, {"HOME": "/opt"}, kept).arguments
    assert words[words.index("/tmp") - 1] == "--tmpfs"


def commands_running() -> str:
    return subprocess.run(["ps", "axo", "args"], check=True, capture_output=True, text=True).stdout


def test_a_home_that_is_gone_stays_gone(tmp_path: Path) -> None:
    for make in (Blanks.make, partial(sandbox_mounts.run_tmp, run_id="run_1")):
        with pytest.raises(HostFaultError, match="cannot make"):
            make(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


@pytest.mark.slow
def test_nothing_outlives_a_call_and_its_keeper_cannot_be_signalled(denied: Workbench) -> None:
    command = (
        "for i in 1 2 3; do (setsid nohup sleep 31415.25 & (setsid sleep 31415.25 &) ) ; done;"
        "kill -STOP $PPID; kill -STOP 1; echo here; kill -STOP -1; kill -9 -1; echo over"
    )
    assert "here" in bash(denied, command).content
    assert int(bash(denied, "ls /proc | grep -c '^[0-9]'").content) < 10
    assert "sleep 31415.25" not in commands_running()


@pytest.mark.slow
def test_a_deep_tree_of_processes_ends_with_its_call(denied: Workbench) -> None:
    lines = ["import os, time", "for i in range(1200):", "    if os.fork(): time.sleep(1000)"]
    (denied.workspace / "deep.py").write_text("\n".join([*lines, "time.sleep(1000)"]))
    assert bash(denied, "python3 deep.py", seconds=5).outcome == "timed_out"
    assert "deep.py" not in commands_running()
    assert bash(denied, "echo next").content == "next\n"


CALLS = {
    "ptrace": "libc.ptrace(0, 0, 0, 0)",
    "mount": "libc.mount(b'none', b'/mnt', b'tmpfs', 0, None)",
    "unshare": "libc.unshare(0x10000000)",
    "keyctl": "libc.syscall({'x86_64': 250, 'aarch64': 219}[machine], 0, -3, 0, 0, 0)",
    "bpf": "libc.syscall({'x86_64': 321, 'aarch64': 280}[machine], 0, 0, 0)",
    "io_uring": "libc.syscall(425, 1, 0)",
    "TIOCSTI": "libc.ioctl(0, ctypes.c_ulong(0x5412), b'x')",
    "TIOCSTI with high bits": "libc.ioctl(0, ctypes.c_ulong(0x100005412), b'x')",
    "vsock": "libc.socket(40, 1, 0)",
}


@pytest.mark.slow
@pytest.mark.skipif(
    seccomp_program(platform.machine()) is None, reason="no seccomp filter for this processor"
)
def test_system_calls_that_no_build_needs_are_refused(denied: Workbench) -> None:
    lines = [f"print({name!r}, {call}, ctypes.get_errno())" for name, call in CALLS.items()]
    head = "import ctypes, platform; libc = ctypes.CDLL(None, use_errno=True)"
    (denied.workspace / "calls.py").write_text(
        "\n".join([head, "machine = platform.machine()", *lines])
    )
    said = bash(denied, "python3 calls.py").content.splitlines()
    assert said == [f"{name} -1 1" for name in CALLS]


@pytest.mark.slow
def test_no_capability_is_left_and_no_user_namespace_can_be_made(denied: Workbench) -> None:
    said = bash(
        denied, "grep Cap /proc/self/status; cat /proc/sys/user/max_user_namespaces"
    ).content
    assert {line.split()[1] for line in said.splitlines()[:5]} == {"0" * 16}


@pytest.mark.slow
def test_a_local_server_can_be_reached(denied: Workbench) -> None:
    script = """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://localhost:{server.server_port}/kept").read())
"""
    (denied.workspace / "serve.py").write_text(script)
    (denied.workspace / "kept").write_text("served")
    assert "served" in bash(denied, "python3 serve.py").content


@pytest.mark.slow
def test_caches_of_a_preset_are_seen_and_others_are_the_run_s_own(
    denied: Workbench, user: Path
) -> None:
    (user / ".cache" / "pip").mkdir(parents=True)
    (user / ".cache" / "pip" / "wheel").write_text("cached")
    command = (
        f"cat {user}/.cache/pip/wheel; echo x > {user}/.cache/pip/new; echo $PIP_CACHE_DIR $GOCACHE"
    )
    said = bash(denied, command, sandbox=Sandbox(caches=("pip",))).content
    assert "cached" in said
    assert "Read-only" in said
    assert said.splitlines()[-1] == "/tmp/.cache/go/build"


@pytest.mark.slow
def test_a_writable_cache_is_a_copy_of_the_job_s_own(denied: Workbench, user: Path) -> None:
    cached = user / ".cache" / "pip"
    cached.mkdir(parents=True)
    (cached / "wheel").write_text("cached")
    sandbox = Sandbox(writable_caches=("pip", "maven"))
    command = "cat $PIP_CACHE_DIR/*; echo -n made > $PIP_CACHE_DIR/new; echo $MAVEN_ARGS"
    for seen in ("cached", "madecached"):
        said = bash(denied, command, sandbox=sandbox).content
        copies = denied.home / "caches" / "run_1"  # here a run is its own job
        assert said == f"{seen}-Dmaven.repo.local={copies}/maven\n"
    assert sorted(each.name for each in copies.iterdir()) == ["maven", "pip"]
    assert [each.name for each in cached.iterdir()] == ["wheel"]
    (denied.home / "caches").rename(denied.home / "moved")
    (denied.home / "caches").touch()
    with pytest.raises(HostFaultError, match="cannot copy the cache of pip for the job"):
        bash(denied, command, sandbox=sandbox)


@pytest.mark.slow
def test_calls_side_by_side_are_contained_each(denied: Workbench) -> None:
    said: list[str] = []

    def work() -> None:
        said.append(bash(denied, "cat .env secrets/k; echo done").content)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [("done" in each, SECRET in each) for each in said] == [(True, False)] * 4


def test_the_folder_of_workspaces_has_the_name_that_it_has() -> None:
    assert sandbox_mounts._WORKSPACES == COPIES
