"""What a job's repository is found to be before the job is submitted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from runner.core.workspace import Accepted, Asked
from runner.workspace.submission import clashes, ignores_case, inspect_repository

from .conftest import Look
from .made import Made

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 12345\n".format("0" * 64)


def problem_of(look: Look, **asked: object) -> tuple[str, str]:
    (problem,) = look(**asked).problems
    assert "\n" not in problem[1]
    return problem


@pytest.mark.slow
def test_a_good_repository_is_found_with_its_commit_and_files(
    look: Look, repository: Made, tmp_path: Path
) -> None:
    repository.write("src/c.py")
    commit = repository.commit()
    (tmp_path / "link").symlink_to(repository.path)
    found = look(source=str(tmp_path / "link"))
    assert (found.problems, found.notes) == ((), ())
    assert (found.path, found.commit) == (str(repository.path.resolve()), commit)
    assert found.files == ("a.py", "b.py", "src/c.py")


@pytest.mark.slow
def test_a_base_may_be_a_branch_a_tag_or_a_commit(look: Look, repository: Made) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.git("branch", "old")
    repository.git("tag", "-a", "v1", "-m", "one")
    second = repository.commit(new="file\n")
    for base in ("old", "v1", first, first[:10], "HEAD~1"):
        assert (base, look(base=base).commit) == (base, first)
    assert look(base="main").commit == second
    assert "new" not in look(base="old").files


@pytest.mark.slow
def test_a_look_changes_nothing(look: Look, repository: Made) -> None:
    repository.write("a.py", "changed\n")
    repository.write("new.py")
    os.utime(repository.path / "b.py", ns=(0, 0))  # git would refresh its index for this
    before = repository.state()
    assert look().notes
    assert look(uncommitted=True).commit
    assert repository.state() == before


def test_what_is_no_repository_is_refused(
    look: Look, repository: Made, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "plain").mkdir()
    repository.write("src/c.py")
    repository.git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
    expected = {
        "none": "does not exist: name the folder of a git repository, or a URL",
        "file": "is not a folder",
        "plain": "is not a git repository: make it one with `git init`",
        "project/src": f"is a folder inside the repository {repository.path}: name that",
        "project/.git": "is git's own folder: name the folder of the checkout",
        "bare.git": "is a bare repository, which has no files: name a checkout of it",
    }
    for name, words in expected.items():
        key, message = problem_of(look, source=str(tmp_path / name))
        assert (key, words in message) == ("repo", True), message
        assert str(tmp_path / name) in message


@pytest.mark.slow
def test_a_repository_of_another_user_is_theirs_to_trust(
    look: Look, repository: Made, environment: dict[str, str], tmp_path: Path
) -> None:
    git = tmp_path / "bin/git"
    git.parent.mkdir()
    git.write_text(
        f'#!/bin/sh\nGIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec {shutil.which("git")} "$@"\n'
    )
    git.chmod(0o755)
    environment["PATH"] = f"{git.parent}:{environment['PATH']}"
    advice = f"if you trust it, run `git config --global --add safe.directory {repository.path}`"
    belongs = f"{repository.path} belongs to another user: {advice}"
    assert problem_of(look) == ("repo", belongs)
    repository.git("config", "--global", "--add", "safe.directory", str(repository.path))
    assert look().problems == ()


def test_a_path_that_no_file_system_has_is_a_problem(look: Look) -> None:
    key, message = problem_of(look, source="/" + "x" * 300)
    assert (key, "cannot be read: " in message) == ("repo", True)


def test_without_git_nothing_can_be_done(
    repository: Made, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "bin").mkdir()
    asked = Asked("night", str(repository.path), is_url=False)
    found = inspect_repository(
        asked, home=tmp_path, environment={**environment, "PATH": str(tmp_path / "bin")}
    )
    assert found.problems == (
        ("repo", 'git is not installed, or not on PATH: install it, or use mode = "copy"'),
    )


@pytest.mark.slow
def test_a_repository_without_a_commit_is_refused(
    look: Look, tmp_path: Path, environment: dict[str, str]
) -> None:
    empty = Made(tmp_path / "empty", environment)
    empty.write("a.py")
    for asked in ({}, {"uncommitted": True}, {"base": "HEAD"}):
        key, message = problem_of(look, source=str(empty.path), **asked)
        assert (key, message) == (
            "repo",
            "the repository has no commit yet on 'main': make a first one",
        )
    key, message = problem_of(look, source=str(empty.path), base="dev")
    assert (key, message.endswith("branches and tags are: none at all")) == ("base", True)


@pytest.mark.slow
def test_a_detached_head_has_to_be_asked_for(look: Look, repository: Made) -> None:
    commit = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "-q", "--detach")
    key, message = problem_of(look)
    assert key == "repo"
    assert message.startswith(
        f"HEAD is detached, on no branch, at {commit[:10]}: say where runs begin"
    )
    assert look(base="HEAD").commit == commit
    assert look(base="main").commit == commit
    assert look(uncommitted=True).commit == commit


@pytest.mark.slow
def test_a_base_that_is_not_there_is_refused_with_one_that_is_near(
    look: Look, repository: Made, tmp_path: Path
) -> None:
    repository.git("branch", "feature/search")
    assert problem_of(look, base="mian") == (
        "base",
        "there is no branch, tag or commit 'mian'; did you mean 'main'?",
    )
    assert "did you mean 'feature/search'?" in problem_of(look, base="feature/serch")[1]
    assert "branches and tags are: 'feature/search', 'main'" in problem_of(look, base="xyz")[1]
    assert problem_of(look, base="HEAD:a.py") == (
        "base",
        "'HEAD:a.py' is not a commit: name a branch, a tag or a commit",
    )
    assert problem_of(look, base="main..feature/search")[0] == "base"
    assert problem_of(look, base="\x1b[31m")[1].startswith(
        "there is no branch, tag or commit '\\x1b"
    )


@pytest.mark.slow
def test_a_branch_of_another_person_s_remote_is_near(
    look: Look, repository: Made, tmp_path: Path
) -> None:
    repository.git("branch", "topic")
    repository.git("clone", "-q", ".", str(tmp_path / "theirs"))
    _, message = problem_of(look, source=str(tmp_path / "theirs"), base="topic")
    assert message == "there is no branch, tag or commit 'topic'; did you mean 'origin/topic'?"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runner", "runner/night"])
def test_a_branch_in_the_way_of_those_of_runs_is_a_problem(
    look: Look, repository: Made, name: str
) -> None:
    repository.git("branch", name)
    key, message = problem_of(look)
    assert key == "repo"
    assert message == (
        f"the branch '{name}' is in the way of runs' branches ({name}/…): rename it with "
        f"`git branch -m {name} NAME`"
    )


@pytest.mark.slow
def test_branches_of_other_jobs_are_in_nobody_s_way(look: Look, repository: Made) -> None:
    repository.git("branch", "runner/other/item")
    assert look().problems == ()


@pytest.mark.slow
def test_everything_that_is_wrong_is_said_at_once(look: Look, repository: Made) -> None:
    repository.git("branch", "runner")
    repository.write("out").unlink()
    (repository.path / "out").symlink_to("/etc/passwd")
    repository.commit()
    repository.git("checkout", "-q", "--detach")
    assert len(look().problems) == 2
    assert [key for key, _ in look(base="main", remote="/nowhere").problems] == [
        "repo",
        "repo",
        "remote",
    ]


def accepted_without(look: Look, what: Accepted) -> str:
    """The problem that goes away when it is accepted, and with nothing else."""
    key, message = problem_of(look)
    assert key == "repo"
    assert f'accept = ["{what}"]' in message
    others: set[Accepted] = {"submodules", "lfs", "links", "case"}
    assert look(accepted=frozenset(others - {what})).problems == ((key, message),)
    assert look(accepted=frozenset({what})).problems == ()
    return message


@pytest.mark.slow
def test_submodules_are_a_problem_unless_accepted(
    look: Look, repository: Made, tmp_path: Path, environment: dict[str, str]
) -> None:
    other = Made(tmp_path / "other", environment)
    other.commit(x="1")
    allowed = ("-c", "protocol.file.allow=always")
    repository.git(*allowed, "submodule", "--quiet", "add", str(other.path), "lib/other")
    repository.commit()
    message = accepted_without(look, "submodules")
    assert message.startswith("has submodules ('lib/other'), which runs see empty: set setup = ")


@pytest.mark.slow
def test_links_out_of_the_repository_are_a_problem_unless_accepted(
    look: Look, repository: Made
) -> None:
    repository.write("src/x.py")
    for name, target in {
        "src/up": "../a.py",
        "src/down": "x.py",
        "dangling": "nowhere/at/all",
        "src/out": "../../other",
        "tmp": "/tmp",
        "here": str(repository.path / "a.py"),
    }.items():
        (repository.path / name).symlink_to(target)
    repository.commit()
    message = accepted_without(look, "links")
    assert message.startswith("has links that lead out of it ('here' to '")
    assert "and 2 more" in message


@pytest.mark.slow
def test_files_in_lfs_are_a_problem_where_it_is_not_set_up(
    look: Look, repository: Made, environment: dict[str, str], tmp_path: Path
) -> None:
    repository.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    for name, text in {"big.bin": POINTER, "real.bin": "no pointer", "text.txt": POINTER}.items():
        repository.write(name, text)
    repository.git("-c", "filter.lfs.clean=cat", "add", "-A")
    repository.commit()
    assert "('big.bin')" in accepted_without(look, "lfs")
    lfs = tmp_path / "bin/git-lfs"
    lfs.parent.mkdir()
    lfs.write_text("#!/bin/sh\n")
    lfs.chmod(0o755)
    environment["PATH"] = f"{lfs.parent}:{environment['PATH']}"
    assert len(look().problems) == 1  # it is installed, but nothing calls it
    repository.git("config", "--global", "filter.lfs.smudge", "git-lfs smudge -- %f")
    assert look().problems == ()


def test_names_that_differ_in_case_clash_where_case_does_not_count() -> None:
    paths = ["Read.me", "a/x", "A/y", "b", "B/z", "read.ME", "stra\u00dfe", "STRASSE"]
    assert clashes(paths) == [("b", "B"), ("Read.me", "read.ME"), ("stra\u00dfe", "STRASSE")]
    assert clashes(["e\u0301", "\u00e9"]) == [("e\u0301", "\u00e9")]


@pytest.mark.slow
def test_names_that_clash_are_a_problem_where_the_runs_will_be(
    look: Look, repository: Made, tmp_path: Path
) -> None:
    id_ = repository.git("hash-object", "-w", "--stdin", given="1")
    for name in ("Read.me", "read.me"):
        repository.git("update-index", "--add", "--cacheinfo", f"100644,{id_},{name}")
    repository.git("commit", "-q", "-m", "clash")
    found = [message for _, message in look().problems]
    expected = "has names that are one here, where case doesn't count ('Read.me' and 'read.me')"
    assert [message.startswith(expected) for message in found] == [True] * ignores_case(tmp_path)


def test_whether_case_counts_is_looked_up_where_the_runs_will_be(tmp_path: Path) -> None:
    (tmp_path / "Home").mkdir()
    counts = not (tmp_path / "hOME").exists()
    assert ignores_case(tmp_path / "Home") is not counts
    assert ignores_case(tmp_path / "Home/not/there/yet") is not counts


@pytest.mark.slow
def test_a_hostile_repository_runs_nothing(
    look: Look, repository: Made, tmp_path: Path, environment: dict[str, str]
) -> None:
    ran = tmp_path / "ran"
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\necho "$0 $@" >> {ran}\ncat\n')
    trap.chmod(0o755)
    repository.write(".gitattributes", "*.py filter=trap diff=trap\n*.bin filter=lfs\n")
    repository.write("x.bin", POINTER)
    repository.commit()
    for name in (
        *("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass"),
        *("core.alternateRefsCommand", "core.gitProxy", "credential.helper", "diff.external"),
        *("filter.trap.clean", "filter.trap.smudge", "filter.trap.process", "filter.lfs.clean"),
        *("filter.lfs.process", "diff.trap.textconv", "diff.trap.command", "gpg.program"),
        *("uploadpack.packObjectsHook", "remote.origin.uploadpack", "sequence.editor"),
    ):
        repository.git("config", name, str(trap))
    for name in ("extensions.partialClone", "remote.origin.promisor"):
        repository.git("config", name, "origin" if name.startswith("e") else "true")
    repository.git("config", "remote.origin.url", "ssh://nowhere.invalid/x")
    repository.git("config", "log.showSignature", "true")
    hooks = repository.path / ".git/hooks"
    shutil.rmtree(hooks, ignore_errors=True)
    hooks.mkdir()
    for hook in ("post-index-change", "reference-transaction", "fsmonitor-watchman", "pre-commit"):
        shutil.copy(trap, hooks / hook)
    os.utime(repository.path / "a.py", ns=(0, 0))
    repository.write("b.py", "2!")
    ran.unlink(missing_ok=True)
    found = look()
    assert found.notes
    look(uncommitted=True)
    missing = "0123456789" * 4
    (repository.path / ".git/refs/heads/gone").write_text(f"{missing}\n")
    assert look(base="gone").problems
    assert not ran.exists(), ran.read_text()
