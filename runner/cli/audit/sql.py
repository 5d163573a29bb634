"""``audit sql`` and ``audit views``: questions of a person's own."""

from __future__ import annotations

from typing import IO

import click

from runner.cli.audit.formats import format_options, say_rows
from runner.cli.audit.options import limit_option
from runner.cli.options import Duration, stored, with_settings
from runner.errors import UsageError
from runner.settings import Settings


@click.command()
@click.argument("sql", required=False)
@click.option(
    "--file", type=click.File("r", encoding="utf-8"), help="Read the SQL there; - is stdin."
)
@click.option(
    "--timeout", type=Duration(), default="30s", show_default=True, help="How long it may take."
)
@click.option(
    "--role",
    envvar="RUNNER_AUDIT_ROLE",
    metavar="NAME",
    help="On Postgres, have only this role's rights (default: RUNNER_AUDIT_ROLE).",
)
@limit_option(1_000)
@format_options
@with_settings
def sql(
    settings: Settings,
    sql: str | None,
    file: IO[str] | None,
    timeout: float,
    role: str | None,
    limit: int | None,
    format: str,
) -> None:
    """Ask with a SELECT of your own, over the views that `runner audit views` lists.

    It reads and can do nothing else, whatever the SQL says: on SQLite the file is opened for reading
    only, on Postgres it is one statement in a read-only transaction that is rolled back. It is stopped
    when it takes too long, or more than 1 GiB of memory.

    \b
    Example:
      runner audit sql 'SELECT item, turns FROM v_runs ORDER BY turns DESC LIMIT 10'
      runner audit sql 'SELECT * FROM v_costs' --limit 0 --format csv > costs.csv
    """
    from runner import wiring
    from runner.audit import Audit

    if (sql is None) == (file is None):
        raise UsageError("give the SQL, or --file with it")
    asked = file.read() if file is not None else str(sql)
    with stored(settings) as database:
        audit = Audit(database, wiring.load_prices(settings))
        say_rows(audit.sql(asked, limit=limit, timeout=timeout, role=role), format)


@click.command()
@click.argument("view", required=False)
@format_options
def views(view: str | None, format: str) -> None:
    """List the views that SQL is asked over: their columns, and what these mean.

    \b
    Example:
      runner audit views
      runner audit views v_costs
    """
    from runner.queries.rows import Column, Rows
    from runner.queries.sql.views import VIEWS

    names = [each.name for each in VIEWS]
    if view is not None and view not in names:
        raise UsageError(f"no view is named {view}: there are {', '.join(names)}")
    rows = [
        (each.name, column.name, column.kind, column.meaning.replace("`", ""))
        for each in VIEWS
        for column in each.columns
        if view in (None, each.name)
    ]
    columns = [Column(name) for name in ("view", "column", "kind", "meaning")]
    say_rows(Rows(columns, rows), format)
