"""``events``: what happened in a run, or to a job."""

from __future__ import annotations

import click

from runner.cli.options import json_option, stored, with_settings
from runner.cli.terminal import say_json
from runner.errors import UsageError
from runner.settings import Settings


@click.command()
@click.argument("id", metavar="RUN|JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends, with live text.")
@click.option("--tree", "whole_tree", is_flag=True, help="Of the run and its sub-agents together.")
@json_option
@with_settings
def events(settings: Settings, id: str, follow: bool, whole_tree: bool, as_json: bool) -> None:
    """Show what happened in a run, step by step; of a job, what was done to it and its runs.

    Of a job it shows who submitted it, and every change since: who made it (`runner` is what Runner
    does by itself), when, why, and the values before and after.

    With -f it goes on until the run has ended, and shows the model's text as it is written. With
    --json -f each line is an object.

    With --tree it is of the run and of all the sub-agents below it, in order of time. Before its type an
    event has whose it is: 3 is the third sub-agent that the run has started, 3.1 the first that this
    one has. Behind it, which tool call it is of: 3.2 is the second of the third sub-agent, 2 the
    second of the run itself. In JSON that is its label, of other events that of the run.

    \b
    Example:
      runner events k3x9f2 -f
      runner events k3x9f2 --tree
      runner events job_01jd9k
    """
    from runner.cli.look.following import follow_run, say_change, say_event
    from runner.queries.find import find
    from runner.queries.timeline import changes_of_job, events_after, tree_events_after

    with stored(settings) as database:
        named = find(database, id, "job", "run")
        is_run = named.kind == "run"
        if follow and not is_run:
            raise UsageError("-f follows one run: name a run of the job (see `runner list JOB`)")
        if whole_tree and not is_run:
            raise UsageError("--tree is of one run: name a run of the job (see `runner list JOB`)")
        if follow:
            follow_run(settings, database, named.id, whole_tree=whole_tree, as_json=as_json)
            return
        if not is_run:
            found = changes_of_job(database, named.id)
        elif whole_tree:
            found = tree_events_after(database, named.id, {})
        else:
            found = events_after(database, named.id, 0)
    if as_json:
        say_json(found)
        return
    for event in found:
        say_event(event) if is_run else say_change(event)
