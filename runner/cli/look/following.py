"""``events -f``: a run's events as they are stored, and its text as it is written."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from runner.app.humanize import cell, lines, moment
from runner.cli.terminal import note, say, say_json
from runner.core.agents import place_of
from runner.errors import UnreachableError
from runner.queries.jobs import has_ended
from runner.queries.timeline import events_after, tree_events_after
from runner.settings import Settings
from runner.store.database import Database

_LOOK_SECONDS = 0.5


def follow_run(
    settings: Settings, database: Database, run_id: str, *, whole_tree: bool, as_json: bool
) -> None:
    """Print a run's events until it has ended.

    Args:
        whole_tree: those of the runs below it, too, until these have ended as well. Live text is the
            run's own.

    Raises:
        UnreachableError: the database does not answer.
    """
    last: dict[str, int] = {}
    in_text = False
    with _live_text(settings, run_id) as texts:
        for text in texts:
            if text is not None:
                _say_text(run_id, text, as_json)
                in_text = not text.endswith("\n")
                continue
            ended = has_ended(database, run_id, whole_tree=whole_tree)
            if whole_tree:
                found = tree_events_after(database, run_id, last)
            else:
                found = events_after(database, run_id, last.get(run_id, 0))
            for event in found:
                last[event["run_id"]] = event["number"]
                if in_text and not as_json:
                    say()
                    in_text = False
                say_json(event, on_one_line=True) if as_json else say_event(event)
            sys.stdout.flush()
            if ended:
                return


def say_event(event: dict[str, Any]) -> None:
    """Print one event of a run on a line: what the run is called before its type, what a call is called
    after it."""
    at = datetime.fromtimestamp(event["at"]).astimezone().strftime("%H:%M:%S")
    run = place_of(event["run_id"])["label"]
    call = event["label"] if event["label"] != run else ""
    kind = cell(event["type"])
    told = f"{event['number']:>5}  {at}  #{event['attempt']}  {run:<4}  {kind:<18}"
    say(f"{told}  {call:<5}  {_data(event)}".rstrip())


def say_change(event: dict[str, Any]) -> None:
    """Print what was done to a job or one of its runs on a line.

    Args:
        event: as ``queries.timeline.changes_of_job`` gives it.
    """
    of = event["run_id"] or event["job_id"]
    kind = cell(event["type"])
    say(f"{moment(event['at'])}  {of}  {kind:<18}  {_data(event)}".rstrip())


def _data(event: dict[str, Any]) -> str:
    told = {name: value for name, value in event["data"].items() if value not in (None, "")}
    return " ".join(f"{name}={_short(value)}" for name, value in told.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + " ".join(f"{cell(name)}={_short(each)}" for name, each in value.items()) + ")"
    if isinstance(value, float):
        return f"{value:.10g}"
    text = cell(value)
    return f'"{text}"' if " " in text else text


def _say_text(run_id: str, text: str, as_json: bool) -> None:
    if as_json:
        told = {"type": "text_delta", "run_id": run_id, **place_of(run_id), "text": text}
        say_json(told, on_one_line=True)
    else:
        sys.stdout.write(lines(text))
    sys.stdout.flush()


@contextmanager
def _live_text(settings: Settings, run_id: str) -> Iterator[Iterator[str | None]]:
    """What is written as it comes, with None whenever it is time to look into the database."""
    from runner import wiring

    try:
        follower = wiring.follow_text(settings, run_id)
        texts = follower.__enter__()
    except UnreachableError as error:
        note(f"runner: no live text: {cell(error)}")
        yield _nothing_new()
        return
    try:
        yield _looking_first(texts)
    finally:
        follower.__exit__(None, None, None)


def _looking_first(texts: Iterator[str | None]) -> Iterator[str | None]:
    yield None
    for text in texts:
        yield text
        if text is not None:
            yield None  # what was stored while the text was written


def _nothing_new() -> Iterator[None]:
    pause = threading.Event()
    while True:
        yield None
        pause.wait(_LOOK_SECONDS)
