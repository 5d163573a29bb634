"""The handle that every use case takes: settings, and the database that they name, open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from runner import wiring
from runner.errors import NoDatabaseError
from runner.queries.jobs import job_of, with_own_last
from runner.queries.names import Found, Kind, completions, find
from runner.queries.workers import live_workers
from runner.settings import Settings
from runner.store import migrate
from runner.store.database import Database, DatabaseClock

if TYPE_CHECKING:
    from runner.core.prices import PriceList

Changed = TypeVar("Changed")


@dataclass(frozen=True, slots=True)
class App:
    """Settings, and the database that they name. It stays open until ``open_app`` ends."""

    settings: Settings
    database: Database

    def now(self) -> float:
        """Return the time of the database, in seconds since the epoch."""
        clock = DatabaseClock(self.database)
        clock.measure()
        return clock.now()

    def prices(self) -> PriceList:
        """Return what models cost. Raises ``UsageError`` if the user's own list is not valid."""
        return wiring.load_prices(self.settings)

    def find(self, name: str, *kinds: Kind) -> Found:
        """Return the one thing of these kinds that an id, or a part of it, names. Raises
        ``NotFoundError`` if nothing has this name, or more than one thing."""
        return find(self.database, with_own_last(self.database, name, kinds), *kinds)

    def find_to_change(self, name: str, *kinds: Kind) -> Found:
        """As ``find``, but part of an item's key names it only if it is whole parts of its path."""
        return find(
            self.database, with_own_last(self.database, name, kinds), *kinds, to_change=True
        )

    def completions(self, text: str, *kinds: Kind) -> list[str]:
        """Return names of these kinds that begin with a text, for a shell to complete it."""
        return completions(self.database, text, *kinds)

    def find_job(self, name: str) -> str:
        """Return the id of a job by a part of it. Raises ``NotFoundError``."""
        return self.find(name, "job").id

    def change(self, work: Callable[[float], Changed]) -> Changed:
        """Change the database with ``work``, which takes the time of the database."""
        return work(self.now())

    def job_without_worker(self, queued_run: str | None) -> str | None:
        """Return the job of a run that was queued while no worker is alive; None if one is."""
        if queued_run is None:
            return None
        job_id = job_of(self.database, queued_run)
        return None if live_workers(self.database, self.now(), job_id) else job_id


def _home_above(home: Path) -> str:
    """Return the state folder of the same name in the nearest folder above that has one, for a user
    in a subfolder; empty if there is none."""
    above = (folder / home.name for folder in home.parent.parents)
    return next((str(each) for each in above if (each / "runner.db").is_file()), "")


def check_prices(settings: Settings) -> None:
    """Raise ``UsageError`` if the user's own list of prices is not valid."""
    wiring.load_prices(settings)


@contextmanager
def open_app(
    settings: Settings, *, create: bool = False, slots: int | None = None
) -> Iterator[App]:
    """Open the database, for a worker with ``slots`` or for a command. ``create`` creates or
    migrates it if need be. Raises ``NoDatabaseError`` if it is missing, ``UsageError`` if it is not
    current, and ``UnreachableError``."""
    if not create and not migrate.is_created(settings.database_url):
        raise NoDatabaseError(str(settings.home), _home_above(settings.home))
    database = wiring.open_database(settings, upgrade=create, slots=slots)
    try:
        yield App(settings, database)
    finally:
        database.close()
