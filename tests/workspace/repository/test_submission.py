"""A job over a repository, from its file to its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from runner import wiring
from runner.core.run import Author
from runner.errors import SpecError, UsageError
from runner.settings import Settings
from runner.store.database import Database
from runner.store.tables import jobs, run_items, runs

from .made import Made

Submit = Callable[..., dict[str, Any]]


@pytest.fixture
def settings(tmp_path: Path, environment: dict[str, str], monkeypatch: Any) -> Settings:
    monkeypatch.setenv("HOME", environment["HOME"])
    return Settings.load({}, home=str(tmp_path / "home"))


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    settings.home.mkdir()
    with closing(wiring.open_database(settings, upgrade=True)) as opened:
        yield opened


@pytest.fixture
def submit(settings: Settings, database: Database, tmp_path: Path) -> Submit:
    """Submit a job with a workspace; what is stored of it."""

    def submit_it(workspace: str) -> dict[str, Any]:
        job = tmp_path / "job.toml"
        job.write_text(
            'model = "m"\nprompt = "Do it."\n'
            f'[workspace]\n{workspace}\n[items]\nlist = ["a", "b"]\n'
        )
        submission = wiring.load_submission(job, settings)
        wiring.submit(database, submission, author=Author("ada"))
        query = select(
            runs.c.workspace_path,
            runs.c.workspace_id,
            jobs.c.workspace_id.label("source_id"),
            run_items.c.commit_message,
            jobs.c.spec,
        )
        joined = query.join(jobs).join(run_items, run_items.c.run_id == runs.c.id)
        first, second = database.read(
            lambda connection: connection.execute(joined).mappings().all()
        )
        assert dict(second) | {"commit_message": None} == dict(first) | {"commit_message": None}
        return dict(first)

    return submit_it


def git(repo: object, more: str = "") -> str:
    return f'mode = "git"\nrepo = "{repo}"\n{more}'


@pytest.mark.slow
def test_runs_of_a_repository_need_a_host_that_has_its_commit(
    submit: Submit, repository: Made
) -> None:
    before = repository.state()
    stored = submit(git("project", 'commit_message = "Mend {{ item }}"'))
    commit = repository.git("rev-parse", "HEAD")
    assert stored["workspace_path"] == str(repository.path)
    assert stored["workspace_id"] == stored["source_id"] == f"git_{commit}"
    assert stored["spec"]["workspace"]["commit"] == commit
    assert stored["commit_message"] == "Mend a"
    assert repository.state() == before


@pytest.mark.slow
def test_runs_with_a_remote_need_no_folder(
    submit: Submit, repository: Made, tmp_path: Path
) -> None:
    repository.git("init", "-q", "--bare", str(tmp_path / "remote.git"))
    stored = submit(git("project", 'remote = "remote.git"'))
    assert (stored["workspace_path"], stored["workspace_id"], stored["source_id"]) == (None,) * 3
    commit = repository.git("rev-parse", "HEAD")
    assert stored["spec"]["workspace"]["remote"] == str(tmp_path / "remote.git")
    listed = repository.git("ls-remote", str(tmp_path / "remote.git"))
    assert listed == f"{commit}\trefs/runner/bases/{commit}"


@pytest.mark.slow
def test_runs_of_a_url_or_of_nothing_need_no_folder(submit: Submit, repository: Made) -> None:
    stored = submit(git(f"file://{repository.path}"))
    assert (stored["workspace_path"], stored["workspace_id"], stored["source_id"]) == (None,) * 3
    assert stored["commit_message"] is None


def test_runs_without_a_folder_need_none(submit: Submit) -> None:
    stored = submit('mode = "none"')
    assert (stored["workspace_path"], stored["workspace_id"], stored["source_id"]) == (None,) * 3


@pytest.mark.slow
def test_what_is_not_committed_is_what_runs_begin_at_and_stays(
    submit: Submit, repository: Made
) -> None:
    repository.write("a.py", "changed\n")
    commit = submit(git("project", "uncommitted = true"))["spec"]["workspace"]["commit"]
    repository.git("gc", "-q", "--prune=now")
    assert repository.git("show", f"{commit}:a.py") == "changed"


@pytest.mark.slow
def test_nothing_is_stored_when_the_base_cannot_be_kept(
    settings: Settings, database: Database, repository: Made, tmp_path: Path
) -> None:
    repository.git("init", "-q", "--bare", str(tmp_path / "remote.git"))
    hook = tmp_path / "remote.git/hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho closed for tonight >&2\nexit 1\n")
    hook.chmod(0o755)
    job = tmp_path / "job.toml"
    job.write_text(f'model = "m"\nprompt = "x"\n[workspace]\n{git("project")}remote = "remote.git"')
    submission = wiring.load_submission(job, settings)
    with pytest.raises(UsageError, match=r"nothing is submitted: the base .* cannot be kept"):
        wiring.submit(database, submission, author=Author("ada"))
    count = select(func.count()).select_from(jobs)
    assert database.read(lambda connection: connection.execute(count).scalar_one()) == 0


@pytest.mark.slow
def test_everything_wrong_with_a_repository_is_a_problem_with_its_line(
    settings: Settings, repository: Made, tmp_path: Path
) -> None:
    repository.git("branch", "runner")
    (repository.path / "out").symlink_to("/etc/passwd")
    repository.commit()
    job = tmp_path / "job.toml"
    job.write_text(
        f'model = "m"\nprompt = "x"\nmax_turns = 1\n[workspace]\n{git("project")}remote = "none.git"'
    )
    with pytest.raises(SpecError) as refused:
        wiring.load_submission(job, settings)
    found = [str(problem).split(" ")[:3] for problem in refused.value.problems]
    assert found == [
        ["line", "3:", "max_turns:"],
        ["line", "6:", "workspace.repo:"],
        ["line", "6:", "workspace.repo:"],
        ["line", "7:", "workspace.remote:"],
    ]
