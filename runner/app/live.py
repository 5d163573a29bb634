"""Feeds open pages: one look into the database for all of them, and the live text of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from runner import wiring
from runner.app.handle import App
from runner.errors import UnreachableError, UsageError
from runner.queries.watching import INBOX, JOBS, versions


def topic_of(app: App, text: str) -> str:
    """Return a topic that a page may watch. Raises ``UsageError`` if there is none."""
    kind, _, name = text.partition(":")
    if text in (JOBS, INBOX):
        return text
    if kind == "job":
        return f"job:{app.find_job(name)}"
    if kind == "run":
        return f"run:{app.find(name, 'run').id}"
    raise UsageError(f"{text[:40]!a} is nothing to watch")


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
