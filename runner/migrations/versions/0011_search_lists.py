"""The index of texts, on Postgres: lists of the documents that have a word, put together as they grow.

It is made anew from what the other tables hold.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_LISTS = tuple(
    statement
    for table in ("search_small", "search_medium", "search_large")
    for statement in (
        f"""
        CREATE TABLE {table} (
            number integer NOT NULL,
            first integer NOT NULL,
            list bytea NOT NULL,
            PRIMARY KEY (number, first)
        )
        """,
        f"ALTER TABLE {table} ALTER COLUMN list SET STORAGE EXTERNAL",
        # All of it goes at once: what is left is to be used again soon.
        f"ALTER TABLE {table} SET (autovacuum_vacuum_cost_delay = 0)",
    )
)
_STATEMENTS = (
    "DROP TABLE search_documents, search_pairs",
    "DROP FUNCTION search_numbers(bytea)",
    # Those below are for pairs of words.
    "ALTER TABLE search_words ALTER COLUMN id SET START WITH 20000",
    "TRUNCATE search_runs, search_words RESTART IDENTITY",
    """
    CREATE TABLE search_documents (
        at double precision NOT NULL,
        id integer PRIMARY KEY,
        run integer NOT NULL,
        message integer NOT NULL,
        position integer NOT NULL,
        kind smallint NOT NULL
    )
    """,
    "CREATE INDEX ix_search_documents_run ON search_documents (run)",
    """
    CREATE TABLE search_fresh (
        at double precision NOT NULL,
        id integer PRIMARY KEY,
        length integer NOT NULL,
        numbers bytea NOT NULL
    )
    """,
    *_LISTS,
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for statement in _STATEMENTS:
            op.execute(statement)
