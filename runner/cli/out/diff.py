"""``diff``: what a run has changed."""

from __future__ import annotations

import click

from runner.cli.options import stored, with_settings
from runner.cli.terminal import note, say_bytes
from runner.settings import Settings


@click.command()
@click.argument("run")
@click.option(
    "--turn", type=click.IntRange(1), metavar="N", help="Only what was changed in that turn."
)
@click.option("--stat", is_flag=True, help="Only how many lines of which files.")
@with_settings
def diff(settings: Settings, run: str, turn: int | None, stat: bool) -> None:
    """Show what a run has changed in its workspace since its first turn, as it is recorded now.

    It needs a workspace of the run's own (mode "git" or "copy"). Into a file or a pipe it is written
    byte for byte, binary files too, as `git apply` takes it; at a terminal control characters are shown.

    \b
    Example:
      runner diff k3x9f2 --stat
      runner diff k3x9f2 --turn 12
    """
    from runner.cli.out.changes import recorded_in, refuse_unrecorded, whereabouts
    from runner.queries.files import snapshots_around_turn, snapshots_of_run
    from runner.queries.find import find

    with stored(settings) as database:
        found = snapshots_of_run(database, find(database, run, "run").id)
        refuse_unrecorded(found)
        change: tuple[str, str] | None = (str(found.start_tree), str(found.tree))
        if turn is not None:
            change = snapshots_around_turn(database, found.run_id, turn)
        where = whereabouts(database, found)
    recorded = recorded_in(settings)
    content = b"" if change is None else recorded.diff(where, [change], stat=stat)
    large = () if change is None else recorded.too_large(where, change)
    for path in large:
        note(f"not shown: {path}, which is too large to be recorded whole")
    for path in () if change is None else recorded.unrecorded(where, change[1]):
        note(f"not shown: what is in {path}, of which nothing is recorded")
    if not content and not large:
        note("nothing was changed" + (f" in turn {turn}" if turn else ""))
    say_bytes(content)
