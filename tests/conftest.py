"""Databases for the tests: a SQLite file, and a database of its own on a real Postgres."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import hypothesis
import psutil
import pytest

from runner.store.database import Database
from tests import forking, statements
from tests.leftovers import private_temporary_folder
from tests.postgres import execute, postgres_server, url_on
from tests.recycled import Recycled
from tests.upgraded import Upgraded

DATABASES = ("sqlite", "postgresql")
_MEMORY = Path("/dev/shm")
_MOST_WRITTEN = 4 * 2**30  # bytes, by all tests at once; they took 1 when this was written


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=("quick", "rest", "all"),
        default="all",
        help="quick: what `make test` runs; rest: all others; all: both, with random examples",
    )
    parser.addoption(
        "--write-golden", action="store_true", help="write the screens of tests/cli/golden anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    """SIGTERM ends the tests as Ctrl-C does: results are printed, and no server is left behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if "TMPDIR" not in os.environ and _fits_into_memory():
        # The tests sync thousands of small files: half of their time on a slow disk.
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None
    # No test asks the metadata of a cloud's machine for credentials.
    os.environ |= {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}
    config.addinivalue_line("markers", "dialect: runs on Postgres in `make test` too")
    config.addinivalue_line("markers", "slow: runs in `make test-rest`, not in `make test`")
    # Nothing is timed: a busy machine is slow to make examples, and to try them.
    slow = [hypothesis.HealthCheck.too_slow]
    fixed = config.getoption("part") != "all"
    options = {"derandomize": fixed, "deadline": None, "suppress_health_check": slow}
    hypothesis.settings.register_profile("untimed", **options)
    hypothesis.settings.load_profile("untimed")
    statements.share()


def _fits_into_memory() -> bool:
    """True if temporary files can lie in memory, and programs among them can run."""
    if not os.access(_MEMORY, os.W_OK):
        return False
    status = os.statvfs(_MEMORY)
    free = min(status.f_bavail * status.f_frsize, psutil.virtual_memory().available)
    return free >= _MOST_WRITTEN and not status.f_flag & os.ST_NOEXEC


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays until the end: to look for garbage in it would take a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the temporary files of all tests and of what they start lie; nothing in it survives."""
    tmp_path_factory.getbasetemp()  # else pytest would make it in the folder below
    with private_temporary_folder() as folder:
        yield folder
        forking.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a Postgres server's own database."""
    with postgres_server() as server:
        url = server.get_uri()
        # No test cuts the machine's power, and each makes and drops a database.
        for setting in ("fsync", "full_page_writes"):
            execute(url, f"ALTER SYSTEM SET {setting} = off")
        execute(url, "SELECT pg_reload_conf()")
        yield url


@pytest.fixture(scope="session")
def upgraded(temporary_folder: Path) -> Upgraded:
    """Makes databases that are up to date."""
    return Upgraded(temporary_folder)


@pytest.fixture(scope="session")
def recycled(upgraded: Upgraded) -> Recycled:
    """Databases on the Postgres server that were used before, and are up to date and empty again."""
    return Recycled(upgraded)


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that holds nothing, and is up to date where the test asks for ``database``;
    each test runs on both kinds."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'runner.db'}"
        return
    server: str = request.getfixturevalue("postgres")
    if "recycled" in request.fixturenames:
        with request.getfixturevalue("recycled").one(server) as url:
            yield url
        return
    name = f"test_{uuid4().hex}"
    execute(server, f"CREATE DATABASE {name}")
    yield url_on(server, name)
    execute(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module", params=DATABASES)
def shared_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upgraded: Upgraded
) -> Iterator[Database]:
    """A database that is up to date and that the tests of a file share: what fills it is done once,
    and they read."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('shared') / 'runner.db'}"
        upgraded.copy_to(url)
        with closing(Database(url)) as database:
            yield database
        return
    server: str = request.getfixturevalue("postgres")
    with request.getfixturevalue("recycled").one(server) as url, closing(Database(url)) as database:
        yield database


@pytest.fixture
def open_database(empty_url: str) -> Iterator[Callable[[], Database]]:
    """Opens the test's database, once more with each call, like another process would."""
    opened: list[Database] = []

    def open_once_more() -> Database:
        opened.append(Database(empty_url))
        return opened[-1]

    yield open_once_more
    for database in opened:
        database.close()


@pytest.fixture
def database(
    empty_url: str,
    upgraded: Upgraded,
    recycled: Recycled,  # tells that it may be one of those
    open_database: Callable[[], Database],
) -> Database:
    """A database that is up to date."""
    if empty_url.startswith("sqlite"):
        upgraded.copy_to(empty_url)
    return open_database()


# Tests that mostly wait for processes.
_LONG = ("tests/crash/", "tests/lifecycle/", "tests/workspace/runs/test_kill.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen part, and let each process begin with its share of the long ones:
    xdist hands out consecutive stretches of the list."""
    part = config.getoption("part")
    if part != "all":
        quick = _quick(items)
        chosen = [item for item in items if (item.nodeid in quick) == (part == "quick")]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen
    short = [item for item in items if not item.nodeid.startswith(_LONG)]
    long: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.startswith(_LONG):
            file = item.nodeid.partition("::")[0]
            # The tests of a lifecycle file stay together, as some share a site.
            together = file if file.startswith("tests/lifecycle/") else item.nodeid
            long.setdefault(together, []).append(item)
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    size = -(-len(short) // processes)
    items[:] = [
        item
        for number in range(processes)
        for part in (*[*long.values()][number::processes], short[number * size :][:size])
        for item in part
    ]


def _quick(items: list[pytest.Item]) -> set[str]:
    """Return the ids of the tests of ``make test``: those on SQLite that are not ``slow``, those marked
    ``dialect`` on Postgres too, and of each file of long tests the first."""
    quick, sampled = set(), set[str]()
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "postgresql" in parameters and item.get_closest_marker("dialect") is None:
            continue
        if item.get_closest_marker("slow") is not None:
            continue
        if item.nodeid.startswith(_LONG):
            file = item.nodeid.partition("::")[0]
            if file in sampled:
                continue
            sampled.add(file)
        quick.add(item.nodeid)
    return quick
