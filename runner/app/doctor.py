"""The state of the parts: checks of all that Runner needs, the schema, and the search index."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

import runner
from runner import wiring
from runner.app.handle import App
from runner.errors import RunnerError
from runner.queries.jobs import runs_without_workspace
from runner.queries.search.search import open_index
from runner.settings import Settings
from runner.store import migrate
from runner.store.database import Database

_ANSWER_SECONDS = 10.0
OLD_PRICES_DAYS = 180


def upgrade(settings: Settings) -> migrate.Status:
    """Create the database, or bring it up to date; return what it was before."""
    with closing(Database(settings.database_url)) as database:
        return migrate.upgrade(database)


def schema_status(settings: Settings) -> migrate.Status:
    """Return whether the database is up to date. Creates nothing."""
    if not migrate.is_created(settings.database_url):
        return migrate.Status(None)
    with closing(Database(settings.database_url)) as database:
        return migrate.check(database)


def reindex(app: App, warn: Callable[[str], None], show: Callable[[int, int], None]) -> int:
    """Build the search index anew, and return the number of texts in it.

    Args:
        warn: takes what went wrong, a line each.
        show: takes how many texts of how many are indexed.
    """
    return open_index(app.database, warn).renew(show)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    mend: str = ""  # what to do if it is not ``ok``
    is_part: bool = False  # no run can be worked without it


def diagnose(settings: Settings) -> list[Check]:
    """Check everything; no secret is shown and nothing is stored. Without a configured Redis the
    embedded server is started, and ended again unless a worker uses it."""
    return [
        Check("runner", True, f"{runner.__version__}, Python {platform.python_version()}"),
        Check("home", *_home(settings.home)),
        _database(settings),
        _workspaces(settings),
        _queue(settings),
        _key(settings),
        _prices(settings),
        _program("git", ["git", "--version"], "install git: copies of workspaces need it"),
        _program("shell", ["bash", "--version"], "install bash: the tool Bash runs it"),
        _versions(),
    ]


def _home(home: Path) -> tuple[bool, str, str]:
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return True, str(home), ""
    return False, f"{there} cannot be written to", "choose another folder with RUNNER_HOME"


def _database(settings: Settings) -> Check:
    def look() -> Check:
        if not migrate.is_created(settings.database_url):
            return Check("database", True, "none yet; `runner run` makes it", is_part=True)
        with closing(Database(settings.database_url)) as database:
            status = migrate.check(database)
            where = database.url.render_as_string(hide_password=True)
        if status.state in ("current", "empty"):
            detail = f"{where}, schema {status.current or 'not there yet'}"
            return Check("database", True, detail, is_part=True)
        detail = f"{where}, schema {status.current} is {status.state}"
        return Check("database", False, detail, status.advice, is_part=True)

    return _guarded("database", "start the database, or set RUNNER_DATABASE_URL", look)


def _workspaces(settings: Settings) -> Check:
    def look() -> Check:
        if not migrate.is_created(settings.database_url):
            return Check("workspaces", True, "no run waits for one")
        with closing(Database(settings.database_url)) as database:
            current = migrate.check(database).state == "current"
            unseen = runs_without_workspace(database) if current else {}
        if not unseen:
            return Check("workspaces", True, "no run waits for one")
        paths = ", ".join(f"{count} runs for {path}" for path, count in sorted(unseen.items()))
        mend = "start a worker where these folders can be seen, or put them back"
        return Check("workspaces", False, f"waiting: {paths}", mend)

    return _guarded("workspaces", "see the database", look)


def _queue(settings: Settings) -> Check:
    def look() -> Check:
        import redis

        from runner.queue.connection import connect
        from runner.queue.embedded import embedded, server_binary

        try:
            if settings.redis_url is not None:
                _ping(connect(settings.redis_url))
                return Check("queue", True, "the Redis of RUNNER_REDIS_URL answers", is_part=True)
            with embedded(settings.home) as url:
                _ping(connect(url))
            return Check("queue", True, f"embedded: {server_binary()}", is_part=True)
        except redis.RedisError as error:
            return Check("queue", False, f"no answer ({error})", _MEND_QUEUE, is_part=True)

    return _guarded("queue", _MEND_QUEUE, look)


_MEND_QUEUE = "start Redis, mend RUNNER_REDIS_URL, or unset it to use the embedded server"


def _ping(connection: object) -> None:
    import redis

    assert isinstance(connection, redis.Redis)
    with connection:
        connection.ping()


def _key(settings: Settings) -> Check:
    if settings.keys:
        return Check("key", True, "set (never printed)")
    mend = 'export ANTHROPIC_API_KEY=…; jobs with provider = "scripted" need none'
    return Check("key", False, "ANTHROPIC_API_KEY is not set", mend)


def _prices(settings: Settings) -> Check:
    """Old prices are mentioned and no failure: nothing may stop working on a day of the calendar."""

    def look() -> Check:
        prices = wiring.load_prices(settings)
        detail = f"{len(prices.models)} models, of {prices.date} ({prices.source})"
        days = (date.today() - prices.date).days
        if days > OLD_PRICES_DAYS:
            detail += f": {days} days old, get a newer Runner or set RUNNER_PRICES"
        return Check("prices", True, detail)

    return _guarded("prices", "mend the file, or unset RUNNER_PRICES", look)


def _program(name: str, command: list[str], mend: str) -> Check:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, False, f"{command[0]} cannot be run ({error})", mend)
    return Check(name, True, done.stdout.partition("\n")[0])


def _versions() -> Check:
    packages = ("anthropic", "rq", "redis", "sqlalchemy", "alembic")
    found = ", ".join(f"{name} {version(name)}" for name in packages)
    return Check("versions", True, f"{found}, SQLite {sqlite3.sqlite_version}")


def _guarded(name: str, mend: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except RunnerError as error:
        return Check(name, False, str(error), mend, is_part=name in ("database", "queue"))
