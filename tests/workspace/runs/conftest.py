"""A person's repository, hosts that work on runs of it, and attempts at them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.core.run import Lease
from runner.core.spec import JobSpec, NewRun, Submission
from runner.core.workspace import Workspace
from runner.ports import Interrupt, Prepared
from runner.store import due_runs as run_store
from runner.store import jobs
from runner.store.database import Database
from runner.store.tables import run_workspaces, runs
from runner.tools.toolbox import LocalTools
from runner.workspace.run_workspaces import RunWorkspaces
from tests.store.examples import SPEC
from tests.upgraded import Upgraded
from tests.workspace.repository.made import Made


@pytest.fixture
def store(tmp_path: Path, upgraded: Upgraded) -> Iterator[Database]:
    """A database that is up to date."""
    url = f"sqlite:///{tmp_path / 'runner.db'}"
    upgraded.copy_to(url)
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a person without settings of their own, which is the worker's too."""
    home = tmp_path / "person"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}


@pytest.fixture
def repository(tmp_path: Path, person: dict[str, str]) -> Made:
    made = Made(tmp_path / "project", person)
    made.write(".gitignore", "*.log\nbuilt/\n")
    made.commit(a__py="1\n", b__py="2\n")
    return made


class Host:
    """A machine with a RUNNER_HOME of its own, and the runs that are claimed on it."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        # Nobody tells its host that the worker is alive.
        self.tools = LocalTools(self.home, folder / "locks", watchdog_seconds=300)
        self.workspaces = self.open()

    def open(self, *, remote_seconds: float = 0.0, **options: int) -> RunWorkspaces:
        """The workspaces of a worker here; by default no remote is asked again."""
        return RunWorkspaces(
            self.database, self.home, self.tools, remote_seconds=remote_seconds, **options
        )

    def prepare(
        self,
        lease: Lease,
        tree: str | None = None,
        *,
        undo: bool = False,
        interrupt: Interrupt | None = None,
    ) -> Prepared:
        return self.workspaces.prepare(lease, tree, interrupt or Interrupt(), undo=undo)

    def path(self, lease: Lease) -> Path:
        return self.home / "workspaces" / lease.run_id

    def record(self, lease: Lease) -> str:
        tree = self.workspaces.record(lease, Interrupt())
        assert tree is not None
        return tree


Claim = Callable[..., Lease]


@pytest.fixture
def hosts(
    store: Database, tmp_path: Path, person: dict[str, str]
) -> Iterator[Callable[[str], Host]]:
    """Hosts by name."""
    made: dict[str, Host] = {}

    def named(name: str) -> Host:
        if name not in made:
            made[name] = Host(store, tmp_path / name)
        return made[name]

    yield named
    for host in made.values():
        host.tools.close()


@pytest.fixture
def host(hosts: Callable[[str], Host]) -> Host:
    return hosts("here")


@pytest.fixture
def begin(store: Database, repository: Made) -> Claim:
    """Submit a job of one run in mode git (or as said) and claim the run."""

    def begin_it(
        key: str = "one",
        *,
        commit_message: str = "",
        workspace: Workspace | None = None,
        **asked: Any,
    ) -> Lease:
        commit = repository.git("rev-parse", "HEAD")
        git = Workspace(str(repository.path), "git", commit=commit)
        spec = replace(SPEC, name="Mend it", workspace=replace(workspace or git, **asked))
        return claim(store, submit(store, spec, key, commit_message))

    return begin_it


def submit(database: Database, spec: JobSpec, key: str, commit_message: str = "") -> str:
    """A job of one run; the run's id."""
    run = NewRun(key, {"file": key}, f"Mend {key}.", commit_message)
    job_id = jobs.submit(database, Submission("jobs/mend.toml", "", spec, (run,)), time.time())
    query = select(runs.c.id).where(runs.c.job_id == job_id)
    return str(database.read(lambda connection: connection.execute(query).scalar_one()))


def claim(database: Database, run_id: str, worker: str = "worker_1") -> Lease:
    """Claim a queued run."""
    now = time.time()
    due = run_store.look_at(database, run_id, now)
    assert due is not None
    lease = run_store.claim(database, due, worker, now)
    assert lease is not None
    return lease


def claim_again(database: Database, lease: Lease) -> Lease:
    """The next attempt at a run whose worker was lost."""
    lost = (
        update(runs)
        .where(runs.c.id == lease.run_id)
        .values(state="queued", worker_id=None, due_at=time.time())
    )
    database.write(lambda connection: connection.execute(lost))
    return claim(database, lease.run_id)


def kept(database: Database, lease: Lease) -> Any:
    """The row of a run's own workspace, None when there is none."""
    query = select(run_workspaces).where(run_workspaces.c.run_id == lease.run_id)
    return database.read(lambda connection: connection.execute(query).one_or_none())


def row(database: Database, lease: Lease) -> Any:
    query = select(runs).where(runs.c.id == lease.run_id)
    return database.read(lambda connection: connection.execute(query).one())
