"""Workers on hosts that cannot work: a full disk, no git, RUNNER_HOME gone. Each folder for locks makes
another host; all share a queue and a database."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import select

from runner.queue.embedded import EmbeddedServer
from runner.store.database import Database
from runner.store.tables import workers
from tests.lifecycle.site import PATIENCE, Site, bash, done, wait_until
from tests.lifecycle.test_outages import said_until
from tests.runner_process import RunnerProcess

pytestmark = [pytest.mark.slow, pytest.mark.dialect]

ITEMS = "abcdef"


class Fleet:
    """A site with a repository, and hosts that work on it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.repository = site.folder / "project"
        self._git("init", "-q", "-b", "main", str(self.repository))
        (self.repository / "a.txt").write_text("1\n")
        self._git("-C", str(self.repository), "add", ".")
        self._git("-C", str(self.repository), "commit", "-qm", "first")

    def home(self, host: str) -> Path:
        return self.site.folder / f"home-{host}"

    def start(self, host: str, *arguments: str, **environment: str) -> RunnerProcess:
        """A worker on a host."""
        folder = self.site.folder / f"tmp-{host}"
        folder.mkdir(exist_ok=True)
        own = {"RUNNER_HOME": str(self.home(host)), "TMPDIR": str(folder)}
        url = self.site.embedded_url()
        return self.site.start("worker", *arguments, RUNNER_REDIS_URL=url, **own, **environment)

    def submit(self, items: str = ITEMS, setup: str = "true") -> str:
        """A job in mode git with a run for each letter, which adds a line to a file. No sandbox: some
        tests have their programs below /tmp, which a sandbox hides."""
        script = {item: [bash(f"echo {item} >> a.txt"), done()] for item in items}
        path = self.site.job(script)
        text = path.read_text().replace(
            '[workspace]\npath = "workspace"',
            f'[workspace]\nmode = "git"\nrepo = "project"\nsetup = ["{setup}"]',
        )
        path.write_text(text + '\n[sandbox]\nmode = "off"\n')
        return self.site.submit(path)

    def faults(self) -> list[str]:
        """The faults of the hosts of workers that have not ended."""
        query = select(workers.c.fault).where(workers.c.ended_at.is_(None))
        with closing(Database(self.site._settings().database_url)) as database:
            return [row.fault for row in database.rows(query) if row.fault is not None]

    def states(self, job: str) -> set[tuple[str, str]]:
        return {(run["state"], run["reason"]) for run in self.site.runs(job).values()}

    def wait_for_end(self, job: str) -> None:
        wait_until(lambda: self.states(job) == {("succeeded", "end_turn")}, "the job to succeed")
        for item in self.site.runs(job):
            branch = f"runner/job/{item}:a.txt"
            assert self._git("-C", str(self.repository), "show", branch) == f"1\n{item}\n"

    def _git(self, *arguments: str) -> str:
        person = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        command = ["git", *person, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def fleet(site_of_either: Site) -> Iterator[Fleet]:
    server = EmbeddedServer(site_of_either.home)
    site_of_either.home.mkdir()
    server.enter()
    yield Fleet(site_of_either)
    site_of_either.stop_all()
    server.leave()


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path], Path]]:
    """Mounts a disk of 24 MB; gives the path of a file to fill it with."""
    mounted: list[Path] = []

    def mount(folder: Path) -> Path:
        folder.mkdir()
        made = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
        if sys.platform != "linux" or subprocess.run(made, capture_output=True).returncode:
            pytest.skip("only root can mount a disk, on Linux")
        mounted.append(folder)
        return folder / "filler"

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(filler: Path) -> None:
    """Fill the disk that a file is on."""
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


def stderr_of(worker: RunnerProcess) -> str:
    worker.terminate()
    _, said = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0, said
    return str(said)


def test_runs_that_meet_a_full_disk_are_worked_by_another_host(
    fleet: Fleet, small_disk: Callable[[Path], Path]
) -> None:
    job = fleet.submit("z")
    filler = small_disk(fleet.home("full"))
    full = fleet.start("full")
    fleet.wait_for_end(job)
    fill(filler)
    job = fleet.submit()
    (fault,) = wait_until(fleet.faults, "the worker to say what is wrong")
    assert "No space left on device" in fault or "there is no room" in fault
    wait_until(lambda: {each for each, _ in fleet.states(job)} == {"queued"}, "all to be back")
    beginner = fleet.start("full", "--burst")
    wait_until(lambda: len(fleet.faults()) == 2, "a worker that starts to look at its host")
    assert stderr_of(beginner).count("this host cannot work") == 1
    fleet.start("well")
    fleet.wait_for_end(job)
    filler.unlink()
    wait_until(lambda: not fleet.faults(), "the worker to see that there is room")
    said = [line for line in said_until(full, "can work again").splitlines() if "this host" in line]
    assert "cannot work" in said[0]
    stderr_of(full)


def without_git(folder: Path) -> str:
    """A PATH on which there is all but git."""
    programs = folder / "programs"
    programs.mkdir()
    for place in os.get_exec_path():
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if program.name != "git" and not os.path.lexists(programs / program.name):
                (programs / program.name).symlink_to(program)
    return str(programs)


def test_a_host_alone_waits_until_it_is_well_and_ctrl_c_ends_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    job = fleet.submit("a")
    programs = without_git(tmp_path)
    alone = fleet.start("alone", "--burst", PATH=programs)
    (fault,) = wait_until(fleet.faults, "the worker to say what is wrong")
    assert fault.startswith("git is not on the PATH")
    wait_until(lambda: fleet.states(job) == {("queued", "host_fault")}, "the run to be given back")
    alone.send_signal(signal.SIGINT)
    _, said = alone.communicate(timeout=PATIENCE)
    assert said.count("this host cannot work, so its worker takes no runs for now: git is not") == 1
    again = fleet.start("alone", "--burst", PATH=programs)
    wait_until(fleet.faults, "the worker to say what is wrong")
    (Path(programs) / "git").symlink_to(str(shutil.which("git")))
    fleet.wait_for_end(job)
    assert again.wait(PATIENCE) == 0


def test_what_three_hosts_cannot_work_fails_and_can_be_retried(
    fleet: Fleet, tmp_path: Path
) -> None:
    job = fleet.submit("a")
    programs = without_git(tmp_path)
    for number, host in enumerate(("one", "two"), 1):
        fleet.start(host, PATH=programs)
        wait_until(lambda count=number: len(fleet.faults()) == count, f"{host} to meet the fault")
        wait_until(lambda: fleet.states(job) == {("queued", "host_fault")}, "the run to be back")
    fleet.start("three", PATH=programs)
    run = fleet.site.wait_for(job, "a", "failed")
    assert run["reason"] == "workspace"
    assert run["detail"].startswith("3 hosts could not work it, at last ")
    fleet.site.run("retry", run["id"])
    fleet.start("well")
    fleet.wait_for_end(job)


def damage(store: Path) -> None:
    """Damage every object of a repository."""
    for file in (store / "objects").rglob("*"):
        if file.is_file():
            file.chmod(0o600)
            file.write_bytes(b"damaged")


def test_runs_that_a_host_with_a_damaged_store_cannot_begin_are_begun_by_another(
    fleet: Fleet,
) -> None:
    job = fleet.submit("z")
    damaged = fleet.start("damaged")
    fleet.wait_for_end(job)
    (store,) = (fleet.home("damaged") / "snapshots").glob("*.git")
    damage(store)
    well = fleet.start("well", "-c", "1")
    wait_until(lambda: len(fleet.site.json("workers")) == 2, "both hosts to take runs")
    job = fleet.submit()
    fleet.wait_for_end(job)
    assert "are left to other hosts: git " in stderr_of(damaged)
    stderr_of(well)


def test_a_run_that_no_host_can_begin_fails_with_the_words_of_the_last(fleet: Fleet) -> None:
    job = fleet.submit("z")
    fleet.start("one")
    fleet.start("two")
    fleet.wait_for_end(job)
    wait_until(lambda: len(fleet.site.json("workers")) == 2, "both hosts to take runs")
    job = fleet.submit("a", setup="touch here; false")
    run = fleet.site.wait_for(job, "a", "failed")
    assert run["reason"] == "workspace"
    assert run["detail"].startswith("the setup command 'touch here; false' failed")
    told = fleet.site.json("events", run["id"])
    ends = [each["data"]["why"] for each in told if each["type"] == "attempt_ended"]
    assert ends == ["host_fault", "run ended"]


def test_a_worker_whose_home_is_gone_waits_until_it_is_back(fleet: Fleet) -> None:
    first = fleet.submit("a")
    worker = fleet.start("a")
    home, aside = fleet.home("a"), fleet.home("aside")
    fleet.wait_for_end(first)
    home.rename(aside)
    second = fleet.submit("bc")
    (fault,) = wait_until(fleet.faults, "the worker to say what is wrong")
    assert fault == f"RUNNER_HOME {home} is gone: put it back"
    wait_until(lambda: {each for each, _ in fleet.states(second)} == {"queued"}, "all to be back")
    assert not home.exists(), "an empty one would hide that all is gone"
    aside.rename(home)
    fleet.wait_for_end(second)
    assert "this host can work again" in stderr_of(worker)


def test_a_fault_of_the_run_s_own_workspace_fails_it(fleet: Fleet) -> None:
    job = fleet.submit("a")
    shutil.rmtree(fleet.repository / ".git" / "objects")
    (fleet.repository / ".git" / "objects").mkdir()
    fleet.start("a")
    assert fleet.site.wait_for(job, "a", "failed", "waiting")["reason"] == "workspace"
    assert fleet.faults() == []
