"""How Alembic runs the migrations: on the connection that ``runner.store.connection.migrate`` hands it."""

from __future__ import annotations

from alembic import context

from runner.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=False,
    render_as_batch=True,
)
context.run_migrations()
