"""Repositories that are elsewhere: cloned from, and pushed to."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.workspace import Workspace
from runner.errors import UsageError
from runner.workspace.submission import keep_base

from .conftest import Look
from .made import Made

BASES = "refs/runner/bases/"


@pytest.fixture
def bare(repository: Made, tmp_path: Path) -> Path:
    path = tmp_path / "remote.git"
    repository.git("init", "-q", "--bare", str(path))
    return path


def of_url(
    look: Look, repository: Made, **asked: object
) -> tuple[str, tuple[tuple[str, str], ...]]:
    found = look(source=f"file://{repository.path}", is_url=True, **asked)
    assert found.path is None
    return found.commit, found.problems


@pytest.mark.slow
def test_a_url_is_asked_for_its_commit_and_files(look: Look, repository: Made) -> None:
    first = repository.commit(src="1")
    repository.git("tag", "-a", "v1", "-m", "one")
    second = repository.commit(big="x" * 200_000, small="y")
    for base, commit in {
        **dict.fromkeys((None, "HEAD", "main", "refs/heads/main", second), second),
        **dict.fromkeys(("v1", "refs/tags/v1", first), first),
    }.items():
        assert of_url(look, repository, base=base) == (commit, ()), base
    found = look(source=f"file://{repository.path}", is_url=True)
    assert found.files == ("a.py", "b.py", "big", "small", "src")


@pytest.mark.slow
def test_a_url_may_hold_files_that_are_not_sent_at_once(look: Look, repository: Made) -> None:
    repository.git("config", "uploadpack.allowFilter", "true")
    repository.write(".gitattributes", "*.bin filter=lfs\n")
    repository.write("x.bin", "x" * 200_000)
    (repository.path / "out").symlink_to("/etc/passwd")
    repository.commit(big="x" * 200_000)
    _, ((key, message),) = of_url(look, repository)
    assert (key, message.startswith("has links that lead out of it")) == ("repo", True)


def test_a_url_that_does_not_answer_is_a_problem(look: Look, tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/none.git", "https://localhost:1/x.git", "git://localhost:1/x"):
        ((key, message),) = look(source=url, is_url=True).problems
        assert key == "repo"
        assert message.startswith(f"{url} does not answer (git ls-remote failed: ")
        assert message.endswith(f"try `git ls-remote {url}` as the same user")
        assert "\n" not in message


@pytest.mark.slow
def test_a_url_asks_nobody_for_a_password(
    look: Look, environment: dict[str, str], tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    environment["SSH_ASKPASS"] = str(asked)
    assert look(source="https://localhost:1/x.git", is_url=True).problems
    assert not asked.exists()


@pytest.mark.slow
def test_a_base_that_a_url_does_not_have_is_a_problem(look: Look, repository: Made) -> None:
    _, ((key, message),) = of_url(look, repository, base="mian")
    assert (key, message) == (
        "base",
        "there is no branch, tag or commit 'mian'; did you mean 'main'?; of a URL, base is a branch, "
        "a tag or the whole id of a commit",
    )
    missing = "0123456789" * 4
    _, ((key, message),) = of_url(look, repository, base=missing)
    assert key == "base"
    assert message.startswith(f"the commit {missing} cannot be had from file://{repository.path}: ")


def test_a_url_without_a_commit_is_a_problem(
    look: Look, tmp_path: Path, environment: dict[str, str]
) -> None:
    empty = Made(tmp_path / "empty", environment)
    assert of_url(look, empty)[1] == (
        ("repo", "the repository has no commit yet: push a first one"),
    )
    empty.commit(a="1")
    empty.git("symbolic-ref", "HEAD", "refs/heads/gone")
    ((key, message),) = of_url(look, empty)[1]
    assert (key, message) == (
        "repo",
        'its HEAD is a branch that is not there: name one with base = "…"',
    )


@pytest.mark.slow
def test_a_remote_has_to_take_what_is_pushed(look: Look, repository: Made, bare: Path) -> None:
    assert look(remote=str(bare)).problems == ()
    assert look(remote=f"file://{bare}").problems == ()
    ((key, message),) = look(remote=str(bare) + "x").problems
    assert key == "remote"
    assert message == (
        f"{bare}x cannot be pushed to: it does not exist; make it with `git init --bare {bare}x`"
    )
    ((key, message),) = look(remote="https://localhost:1/x.git").problems
    assert key == "remote"
    assert message.startswith("https://localhost:1/x.git cannot be pushed to: git push failed: ")
    assert repository.git("ls-remote", str(bare)) == ""


@pytest.mark.slow
def test_a_remote_of_a_url_has_to_take_what_is_pushed_too(
    look: Look, repository: Made, bare: Path
) -> None:
    repository.commit(x="1")
    commit, problems = of_url(look, repository, remote=str(bare))
    assert (commit, problems) == (repository.git("rev-parse", "HEAD"), ())
    _, ((key, _),) = of_url(look, repository, remote=f"{bare}x")
    assert key == "remote"


@pytest.mark.slow
def test_what_has_no_whole_history_cannot_be_pushed(
    look: Look, repository: Made, bare: Path, tmp_path: Path
) -> None:
    repository.commit(x="1")
    shallow = tmp_path / "shallow"
    repository.git("clone", "-q", "--depth=1", f"file://{repository.path}", str(shallow))
    assert look(source=str(shallow)).problems == ()
    ((key, message),) = look(source=str(shallow), remote=str(bare)).problems
    assert key == "remote"
    assert message.endswith("cannot be pushed: run `git fetch --unshallow`")


@pytest.mark.slow
def test_a_base_that_no_branch_holds_is_kept_by_a_ref(
    look: Look, repository: Made, environment: dict[str, str]
) -> None:
    keep_base(workspace_of(repository, look().commit), environment)
    assert repository.git("for-each-ref", BASES) == ""
    repository.write("a.py", "changed")
    commit = look(uncommitted=True).commit
    keep_base(workspace_of(repository, commit), environment)
    keep_base(workspace_of(repository, commit), environment)
    kept = repository.git("for-each-ref", "--format=%(objectname) %(refname)", BASES)
    assert kept == f"{commit} {BASES}{commit}"
    repository.git("gc", "-q", "--prune=now")
    assert repository.git("cat-file", "-t", commit) == "commit"


@pytest.mark.slow
def test_a_base_is_pushed_to_the_remote(
    look: Look, repository: Made, bare: Path, environment: dict[str, str]
) -> None:
    repository.git("tag", "-a", "v1", "-m", "one")
    repository.git("config", "--global", "push.followTags", "true")
    repository.write("new.py")
    commit = look(uncommitted=True, remote=str(bare)).commit
    keep_base(workspace_of(repository, commit, remote=str(bare)), environment)
    assert repository.git("ls-remote", str(bare)) == f"{commit}\t{BASES}{commit}"


@pytest.mark.slow
def test_a_base_that_cannot_be_pushed_stops_the_submission(
    look: Look, repository: Made, tmp_path: Path, environment: dict[str, str]
) -> None:
    workspace = workspace_of(repository, look().commit, remote=str(tmp_path / "gone"))
    with pytest.raises(UsageError) as refused:
        keep_base(workspace, environment)
    assert str(refused.value).startswith(
        f"nothing is submitted: the base {workspace.commit} cannot"
    )


def workspace_of(repository: Made, commit: str, remote: str | None = None) -> Workspace:
    return Workspace(str(repository.path), "git", commit=commit, remote=remote)
