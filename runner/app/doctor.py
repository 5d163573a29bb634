"""The state of the parts: checks of all that Runner needs, the schema, and the search index."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version

import runner
from runner import wiring
from runner.app import caps, handle
from runner.app.handle import App
from runner.app.humanize import duration, plural
from runner.core.spec import PLATFORMS
from runner.errors import RunnerError
from runner.queries.jobs import needed_providers, runs_without_workspace
from runner.queries.search.search import open_index
from runner.queries.workers import (
    PoolEventRow,
    PoolSummary,
    WorkerSummary,
    backlog,
    live_workers,
    newest_pool_events,
    pools,
)
from runner.queries.workers import list_workers as stored_workers
from runner.settings import Settings
from runner.store import migrate
from runner.store.database import Database
from runner.tools import cgroups
from runner.workspace.host_check import find_host_fault

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
    """Build the search index anew, and return the number of texts in it. ``warn`` takes what went
    wrong, a line each, and ``show`` how many texts of how many are indexed."""
    return open_index(app.database, warn).renew(show)


def list_workers(app: App, *, ended: bool) -> list[WorkerSummary]:
    """Return the workers that are alive, the oldest first; with ``ended`` also the others."""
    return stored_workers(app.database, app.now(), ended=ended)


def list_rate_limits(app: App) -> tuple[list[PoolSummary], list[PoolEventRow]]:
    """Return the rate limits in use, and the newest of their changes, the oldest first."""
    return pools(app.database, app.now()), newest_pool_events(app.database)


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str
    mend: str = ""  # what to do; if it is ``ok``, this is a warning
    is_part: bool = False  # no run can be worked without it


class _AmissError(RunnerError):
    """A failed check, or a warning: its detail, and how to mend it."""

    def __init__(self, detail: str, mend: str, *, is_warning: bool = False) -> None:
        super().__init__(detail)
        self.mend, self.is_warning = mend, is_warning


def diagnose(settings: Settings) -> list[Check]:
    """Check everything; no secret is shown and nothing is stored. Without a configured Redis the
    embedded server is started, and ended again unless a worker uses it."""
    # Each check returns what it found, and raises a RunnerError with what is amiss.
    checks: dict[str, tuple[Callable[[Settings], str], str]] = {
        "runner": (lambda _: f"{runner.__version__}, Python {platform.python_version()}", ""),
        "home": (_home, "choose another folder with RUNNER_HOME"),
        "database": (_database, "start the database, or set RUNNER_DATABASE_URL"),
        "workspaces": (_workspaces, "see the database"),
        "workers": (_workers, "see the database"),
        "backlog": (_backlog, "see the database"),
        "cap": (_cap, "see the database"),
        "queue": (_queue, "start Redis, correct RUNNER_REDIS_URL, or unset it (embedded server)"),
        "key": (_key, ""),
        "prices": (_prices, "correct the file, or unset RUNNER_PRICES"),
        "git": (lambda _: _program("git"), "install git: copies of workspaces need it"),
        "shell": (lambda _: _program("bash"), "install bash: the tool Bash runs it"),
        "sandbox": (_sandbox, 'fix that: jobs with sandbox.mode = "required" are not worked here'),
        "limits": (lambda _: _limits(), ""),
        "versions": (_versions, ""),
    }
    found = []
    for name, (check, mend) in checks.items():
        is_part = name in ("database", "queue")
        try:
            ok, detail, mend = True, check(settings), ""
        except _AmissError as error:
            ok, detail, mend = error.is_warning, str(error), error.mend
        except RunnerError as error:
            ok, detail = False, str(error)
        found.append(Check(name, ok, detail, mend, is_part))
    return found


def _home(settings: Settings) -> str:
    home = settings.home
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise RunnerError(f"{there} cannot be written to")
    if home.is_dir() and (fault := find_host_fault(home, os.environ, "")) is not None:
        raise _AmissError(fault, "mend that: workers of this host take no runs meanwhile")
    return str(home)


def _database(settings: Settings) -> str:
    if not migrate.is_created(settings.database_url):
        return "none yet; `runner run` creates it"
    with closing(Database(settings.database_url)) as database:
        status = migrate.check(database)
        where = database.url.render_as_string(hide_password=True)
    if status.state in ("current", "empty"):
        return f"{where}, schema {status.current or 'not there yet'}"
    raise _AmissError(f"{where}, schema {status.current} is {status.state}", status.advice)


def _workspaces(settings: Settings) -> str:
    unseen: dict[str, int] = {}
    if schema_status(settings).state == "current":
        with closing(Database(settings.database_url)) as database:
            unseen = runs_without_workspace(database)
    if not unseen:
        return "no run waits for one"
    paths = ", ".join(f"{count} runs for {path}" for path, count in sorted(unseen.items()))
    mend = "start a worker where these folders can be seen, or put them back"
    raise _AmissError(f"waiting: {paths}", mend)


def _database_problem(settings: Settings) -> str:
    """Why nothing can be read from the database; empty if it can."""
    state = schema_status(settings).state
    return {"current": "", "empty": "no database yet"}.get(state, "see the database")


def _workers(settings: Settings) -> str:
    """The living workers; amiss: a host at fault, another version, a death with runs in hand."""
    if problem := _database_problem(settings):
        return problem
    with handle.open_app(settings) as app:
        found = list_workers(app, ended=True)
    alive = [worker for worker in found if worker["state"] in ("alive", "draining", "faulty")]
    mine = f"{runner.__version__}/{migrate.HEAD}"
    amiss = {
        f"fault on {worker['hostname']}: {worker['fault']}": "fix that host: its workers retry"
        for worker in alive
        if worker["fault"] is not None
    }
    others = {worker["version"] or "0.1.0/r01" for worker in alive} - {mine}
    if others:
        versions = ", ".join(sorted(others))
        what = f"workers of another version: {versions}, this is {mine}"
        amiss[what] = "install the same version on all hosts: see `runner workers`"
    dead = [worker for worker in found if worker["runs"] and worker not in alive]
    if dead:
        count = sum(len(worker["runs"]) for worker in dead)
        what = f"{plural(len(dead), 'dead worker')} with {plural(count, 'run')} in hand"
        amiss[what] = "start a worker: it takes them over"
    slots = sum(worker["slots"] for worker in alive)
    in_hand = sum(len(worker["runs"]) for worker in alive)
    hosts = len({worker["host_id"] for worker in alive})
    told = f"{len(alive)} alive on {plural(hosts, 'host')}, {in_hand} of {plural(slots, 'slot')} in use"
    if amiss:
        raise _AmissError("; ".join((told, *amiss)), "; ".join(dict.fromkeys(amiss.values())))
    return told


def _backlog(settings: Settings) -> str:
    """The runs that are due. Amiss: no worker is alive for them."""
    if problem := _database_problem(settings):
        return problem
    with handle.open_app(settings) as app:
        now = app.now()
        due, workers = backlog(app.database, now), live_workers(app.database, now)
    if due.oldest_due_at is None:
        return "no run is due"
    told = f"{plural(due.runs, 'run')} due, the oldest for {duration(now - due.oldest_due_at)}"
    if workers:
        return told
    raise _AmissError(f"{told}, and no worker alive", "start one: `runner worker`")


def _cap(settings: Settings) -> str:
    """The cap of the day, and the runs that wait for it: no fault."""
    if problem := _database_problem(settings):
        return problem
    with handle.open_app(settings) as app:
        found = caps.status(app)
    if found is None or not found.cap.is_set:
        return "none (see `runner budget --all`)"
    return "; ".join(filter(None, (found.used, found.waits)))


def _queue(settings: Settings) -> str:
    import redis

    from runner.queue.connection import connect
    from runner.queue.embedded import EmbeddedServer, server_binary

    try:
        if settings.redis_url is not None:
            with connect(settings.redis_url) as connection:
                connection.ping()
            return "the Redis of RUNNER_REDIS_URL answers"
        with EmbeddedServer(settings.home) as url, connect(url) as connection:
            connection.ping()
        return f"embedded: {server_binary()}"
    except redis.RedisError as error:
        raise RunnerError(f"no answer ({error})") from error


def _key(settings: Settings) -> str:
    """Say whose credentials are found. It is amiss if a job that has not ended needs others, and a
    warning if there are none at all."""
    missing = {name: wiring.missing_credentials(name) for name in ("anthropic", *PLATFORMS)}
    lacking = {name: why for name, why in missing.items() if why}
    needed = set[str]()
    with suppress(RunnerError):  # the check of the database tells
        if not _database_problem(settings):
            with closing(Database(settings.database_url)) as database:
                needed = needed_providers(database)
    if named := [name for name in lacking if name in needed]:
        mend = f"set those of {', '.join(named)}: a job that has not ended needs them"
        raise _AmissError("; ".join(lacking[name] for name in named), mend)
    if lacking.keys() == missing.keys():
        mend = 'set the credentials of your provider (provider = "scripted" needs none)'
        raise _AmissError("; ".join(lacking.values()), mend, is_warning=True)
    return f"found for {', '.join(name for name in missing if name not in lacking)} (never printed)"


def _prices(settings: Settings) -> str:
    """Old prices are mentioned and no failure: nothing may stop working on a day of the calendar."""
    prices = wiring.load_prices(settings)
    days = (date.today() - prices.date).days
    is_old = days > OLD_PRICES_DAYS
    old = f": {days} days old, get a newer Runner or set RUNNER_PRICES" if is_old else ""
    return f"{len(prices.models)} models, of {prices.date} ({prices.source}){old}"


def _program(name: str) -> str:
    try:
        done = subprocess.run(
            [name, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RunnerError(f"{name} cannot be run ({error})") from error
    return done.stdout.partition("\n")[0]


def _sandbox(settings: Settings) -> str:
    here = wiring.sandboxes_here(settings)
    found, engine = here.probe(), here.containers.engine()
    images = f"no images: {engine}" if isinstance(engine, str) else f"images by {engine.name}"
    if found.kind == "none":
        raise RunnerError(f"nothing contains tool calls on this host: {found.missing}; {images}")
    if not found.missing:
        return f"{found.kind}; {images}"
    kept = "jobs that require a sandbox are not worked here"
    return f"{found.kind}; {kept}, because {found.missing}; {images}"


def _limits() -> str:
    if held := cgroups.offered():
        return f"the kernel enforces {', '.join(held)}, if a worker's cgroup has no other process"
    if sys.platform != "linux":
        return "Runner enforces disk; the others need Linux"
    return "Runner enforces all: no cgroup (version 2) with controllers is delegated to it"


def _versions(settings: Settings) -> str:
    packages = ("anthropic", "rq", "redis", "sqlalchemy", "alembic")
    found = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{found}, SQLite {sqlite3.sqlite_version}"
