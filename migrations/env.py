"""Runs the migrations on the connection that ``runner.store.migrate`` passes in.

The naming convention of ``metadata`` names the constraints and indexes that a migration creates.
"""

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
