"""``events``: what happened in a run."""

from __future__ import annotations

import click

from runner.cli.display import say_json
from runner.cli.options import json_option, stored, with_settings
from runner.settings import Settings


@click.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends, with live text.")
@json_option
@with_settings
def events(settings: Settings, run: str, follow: bool, as_json: bool) -> None:
    """Show what happened in a run, step by step.

    With -f it goes on until the run has ended, and shows the model's text as it is written. With
    --json -f each line is an object.

    \b
    Example:
      runner events k3x9f2 -f
    """
    from runner.cli.look.following import follow_run, say_event
    from runner.store.look import queries
    from runner.store.look.find import find

    with stored(settings) as database:
        run_id = find(database, run, "run").id
        if follow:
            follow_run(settings, database, run_id, as_json=as_json)
            return
        found = queries.events_after(database, run_id, 0)
        if as_json:
            say_json(found)
            return
        for event in found:
            say_event(event)
