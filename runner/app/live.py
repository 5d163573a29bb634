"""Reads what changes while somebody watches: a job for a screen, and the topics of open pages."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from runner import wiring
from runner.app.costs import spending_of
from runner.app.forecast import forecast_of
from runner.app.handle import App
from runner.app.humanize import cost
from runner.app.watch import Look, Money, Progress, in_hand
from runner.errors import UnreachableError, UsageError
from runner.queries import decisions, watching
from runner.queries.jobs import RunSummary, last_texts, list_jobs, list_runs
from runner.queries.watching import INBOX, JOBS, versions
from runner.queries.workers import live_workers, shown_states

_MOST_CHANGED = 200
# The costs of a job are read again after _MONEY_SECONDS, or _MONEY_TIMES the time that reading them took.
_MONEY_SECONDS, _MONEY_TIMES = 2.0, 20.0


class LiveTexts(Protocol):
    """Receives the text of runs as it is generated (``queue.live.Listener``)."""

    def follow(self, run_ids: Iterable[str]) -> None: ...
    def read(self, timeout: float) -> tuple[str, str] | None: ...


def live_texts(app: App) -> AbstractContextManager[LiveTexts]:
    """Return a context that listens to the live text of runs. Raises ``UnreachableError``."""
    return wiring.listen(app.settings)


class Looks:
    """Polls one job."""

    def __init__(self, app: App, job_id: str) -> None:
        self._app = app
        self._job_id = job_id
        self._last_event: int | None = None
        self._states: dict[str, tuple[object, ...]] | None = None
        self._texts: dict[str, tuple[int, str]] = {}  # by run: a turn and its text
        self._money = Money()
        self._money_until = 0.0

    def look(self) -> Look:
        """Read the job once. Raises ``UnreachableError`` if the database does not answer."""
        app, database, now = self._app, self._app.database, self._app.now()
        found = watching.job_events_after(database, self._job_id, self._last_event or 0)
        is_first = self._last_event is None
        self._last_event = max((event.number for event in found), default=self._last_event or 0)
        (job,) = list_jobs(database, among=[self._job_id])
        progress = Progress(list_runs(database, self._job_id, whole_trees=True))
        shown = in_hand(progress.runs)
        events = watching.newest_events(
            database, [*{*(run["id"] for run in shown), *self._changed(progress.runs)}]
        )
        running = [run["id"] for run in progress.runs if run["state"] == "running"]
        return Look(
            at=now,
            job=job,
            progress=progress,
            events=events,
            job_events=() if is_first else found,
            texts=self._texts_of(shown),
            lost=frozenset(shown_states(database, now, running)),
            asking=sum(decisions.open_approval_counts(database, self._job_id).values()),
            workers=live_workers(database, now, self._job_id),
            money=self._money_of(app),
        )

    def _changed(self, runs: Iterable[RunSummary]) -> list[str]:
        """Return the runs whose state, reason or pause request has changed since the last look."""
        names = ("state", "reason", "pause_requested")
        states = {run["id"]: tuple(run[name] for name in names) for run in runs}
        before, self._states = self._states, states
        if before is None:
            return []
        changed = (run_id for run_id, state in states.items() if before.get(run_id) != state)
        return [*changed][:_MOST_CHANGED]

    def _texts_of(self, shown: Iterable[RunSummary]) -> dict[str, str]:
        turns = {run["id"]: run["turns"] for run in shown}
        new = [id for id, turn in turns.items() if self._texts.get(id, (-1, ""))[0] != turn]
        found = last_texts(self._app.database, self._job_id, new)
        self._texts = {
            id: (turn, found.get(id, "")) if id in new else self._texts[id]
            for id, turn in turns.items()
        }
        return {id: text for id, (_, text) in self._texts.items()}

    def _money_of(self, app: App) -> Money:
        began = time.monotonic()
        if began < self._money_until:
            return self._money
        spending = spending_of(app, job_id=self._job_id)
        found = forecast_of(app, self._job_id)
        self._money = Money(
            cost=cost(spending) if spending.calls else "",
            ends_at=found.ends_at.expected if found and found.ends_at else None,
            expected=found.line if found else "",
        )
        took = time.monotonic() - began
        self._money_until = time.monotonic() + max(_MONEY_SECONDS, _MONEY_TIMES * took)
        return self._money


# What pages watch


def topic_of(app: App, text: str) -> str:
    """Return a topic that a page may watch. Raises ``UsageError`` if there is none."""
    kind, _, name = text.partition(":")
    if text in (JOBS, INBOX):
        return text
    if kind == "job":
        return f"job:{app.find_job(name)}"
    if kind == "run":
        return f"run:{app.find(name, 'run').id}"
    raise UsageError(f"{text[:40]!a} cannot be watched")


def look(app: App, topics: Collection[str]) -> dict[str, str]:
    """Return the version of each topic. Raises ``UnreachableError``."""
    return versions(app.database, topics)


def texts_of(app: App, run_id: str) -> Iterator[str | None]:
    """Yield the live text of a run as it comes, and None each time that there is nothing new. It ends at
    once if there is no queue to have it from."""
    try:
        with wiring.follow_text(app.settings, run_id) as texts:
            yield from texts
    except UnreachableError:
        return
