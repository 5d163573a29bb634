"""What is not committed: said to whoever submits, or made the commit that runs begin at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.workspace import Asked
from runner.workspace.submission import inspect_repository

from .conftest import Look
from .made import Made


def note_of(look: Look) -> str:
    (note,) = look().notes
    return note


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda made: made.write("a.py", "changed\n"), "a.py"),
        (lambda made: (made.path / "a.py").unlink(), "a.py"),
        (lambda made: made.write("src/new.py"), "src/new.py"),
        (lambda made: (made.write("c.py"), made.git("add", "c.py")), "c.py"),
        (lambda made: made.git("rm", "-q", "--cached", "a.py"), "a.py"),
        (lambda made: (made.path / "a.py").chmod(0o755), "a.py"),
    ],
)
def test_changes_that_runs_will_not_see_are_said(
    look: Look, repository: Made, change: Callable[[Made], object], name: str
) -> None:
    change(repository)
    assert note_of(look) == (
        f"1 file is changed in the repository and not committed ('{name}'): runs will not see that; "
        "commit it, or set uncommitted = true"
    )


@pytest.mark.slow
def test_a_change_in_the_very_moment_of_the_last_commit_is_seen(
    look: Look, repository: Made
) -> None:
    repository.git("config", "core.trustctime", "false")
    path, index = repository.path / "a.py", repository.path / ".git/index"
    moment = (1_700_000_000 * 10**9,) * 2
    os.utime(path, ns=moment)
    repository.git("add", "-A")
    os.utime(index, ns=moment)
    repository.write("a.py", "9\n")
    os.utime(path, ns=moment)
    assert "('a.py')" in note_of(look)


@pytest.mark.slow
def test_what_git_overlooks_is_no_change(
    look: Look, repository: Made, environment: dict[str, str]
) -> None:
    person = Path(environment["HOME"])
    repository.commit(__gitignore="*.o\n")
    (person / "ignored").write_text("*.swp\n")
    repository.git("config", "--global", "core.excludesFile", "~/ignored")
    (person / "excluded").write_text("*.orig")
    (repository.path / ".git/info/exclude").unlink(missing_ok=True)
    (repository.path / ".git/info/exclude").symlink_to(person / "excluded")
    for name in ("x.o", "x.swp", "x.orig", ".runner-workspace"):
        repository.write(name)
    os.utime(repository.path / "a.py", ns=(0, 0))
    assert look().notes == ()


@pytest.mark.slow
def test_runners_own_folder_is_no_change(repository: Made, environment: dict[str, str]) -> None:
    home = repository.path / "deep/.runner [1]"
    repository.write("deep/.runner [1]/runner.db")
    asked = Asked("night", str(repository.path), is_url=False, uncommitted=True)
    found = inspect_repository(asked, home=home, environment=environment)
    assert found.files == ("a.py", "b.py")
    assert found.commit == repository.git("rev-parse", "HEAD")


def test_changes_mean_nothing_to_runs_that_begin_elsewhere(look: Look, repository: Made) -> None:
    repository.git("branch", "old")
    repository.commit(c="1")
    repository.write("a.py", "changed\n")
    assert look(base="old").notes == ()


@pytest.mark.slow
def test_a_base_with_what_is_not_committed_holds_what_git_would_have_added(
    look: Look, repository: Made, tmp_path: Path
) -> None:
    repository.commit(__gitattributes="*.txt text eol=crlf\n", gone="1", was_file="1", was__dir="1")
    repository.git("config", "core.autocrlf", "input")
    repository.write("a.py", "changed\r\n")
    repository.write("t.txt", "one\r\ntwo\r\n")
    repository.write("staged", "1")
    repository.git("add", "staged")
    repository.write("staged", "2")
    repository.write("intended", "1")
    repository.git("add", "-N", "intended")
    repository.write("odd\nname \u00e9", "1")
    (repository.path / "link").symlink_to("a.py")
    (repository.path / "gone").unlink()
    (repository.path / "was_file").unlink()
    repository.write("was_file/now", "1")
    repository.write("run.sh").chmod(0o755)
    head = repository.git("rev-parse", "HEAD")
    found = look(uncommitted=True)
    assert found.problems == ()
    assert repository.git("rev-parse", f"{found.commit}^") == head
    assert look(uncommitted=True).commit == found.commit
    copied = tmp_path / "copied"
    shutil.copytree(repository.path, copied, symlinks=True)
    repository.path = copied
    repository.git("add", "-A")
    assert repository.git("rev-parse", f"{found.commit}^{{tree}}") == repository.git("write-tree")
    assert set(found.files) == set(repository.git("ls-files", "-z").split("\0")[:-1])


@pytest.mark.slow
def test_a_base_without_changes_is_head(look: Look, repository: Made) -> None:
    os.utime(repository.path / "a.py", ns=(0, 0))
    found = look(uncommitted=True)
    assert (found.commit, found.notes) == (repository.git("rev-parse", "HEAD"), ())


@pytest.mark.slow
def test_what_is_looked_at_is_what_runs_begin_at(look: Look, repository: Made) -> None:
    (repository.path / "out").symlink_to("/etc/passwd")
    assert look().problems == ()
    ((key, message),) = look(uncommitted=True).problems
    assert (key, "lead out of it ('out' to '/etc/passwd')" in message) == ("repo", True)


@pytest.mark.slow
def test_an_unfinished_merge_is_no_base(look: Look, repository: Made) -> None:
    repository.git("checkout", "-q", "-b", "other")
    repository.commit(a__py="theirs\n")
    repository.git("checkout", "-q", "main")
    repository.commit(a__py="ours\n")
    with pytest.raises(AssertionError):
        repository.git("merge", "-q", "other")
    assert look(uncommitted=True).problems == (
        ("uncommitted", "a merge is not finished ('a.py'): finish or abort it"),
    )
    assert len(look().notes) == 1


@pytest.mark.slow
def test_changes_that_pass_through_a_filter_are_no_base(look: Look, repository: Made) -> None:
    repository.commit(__gitattributes="*.bin filter=lfs\n", x__bin="1")
    repository.write("x.bin", "2")
    (problem,) = look(uncommitted=True).problems
    assert problem == (
        "uncommitted",
        "changed files go through a filter, and none is run here ('x.bin'): commit them",
    )
    assert len(look().notes) == 1


@pytest.mark.slow
def test_repositories_in_the_repository_are_left_out_and_named(
    look: Look, repository: Made, environment: dict[str, str]
) -> None:
    nested = Made(repository.path / "nested", environment)
    nested.commit(x="1")
    repository.write("new.py")
    found = look(uncommitted=True)
    assert found.notes == ("left out: repositories in the repository ('nested/')",)
    assert found.files == ("a.py", "b.py", "new.py")


@pytest.mark.slow
def test_every_kind_of_checkout_can_be_a_base(look: Look, repository: Made, tmp_path: Path) -> None:
    repository.commit(src__x="1", docs__x="1")
    repository.git("worktree", "add", "-q", "-b", "topic", str(tmp_path / "tree"))
    (tmp_path / "tree/new.py").touch()
    found = look(source=str(tmp_path / "tree"), uncommitted=True)
    assert (found.path, "new.py" in found.files) == (str(tmp_path / "tree"), True)
    repository.git("update-index", "--split-index")
    repository.write("src/y", "1")
    assert "src/y" in look(uncommitted=True).files
    repository.git("sparse-checkout", "set", "src")
    files = look(uncommitted=True).files
    assert {"src/y", "docs.x", "src.x"} <= set(files)
    repository.git("sparse-checkout", "reapply", "--sparse-index")
    assert look(uncommitted=True).files == files


@pytest.mark.slow
def test_objects_named_by_other_digests_are_read(
    look: Look, tmp_path: Path, environment: dict[str, str]
) -> None:
    modern = Made(tmp_path / "modern", environment, "--object-format=sha256")
    modern.commit(a="1")
    modern.write("a", "2")
    found = look(source=str(modern.path), uncommitted=True)
    assert (found.problems, len(found.commit)) == ((), 64)
