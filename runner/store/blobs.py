"""The bytes of images and documents, stored once for each digest, and the jobs that use them.

They are stored before the block that names them. If a worker dies in between, the unused bytes are pruned
with the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from sqlalchemy import Connection, and_, delete, select

from runner.core.media import Media, without_bytes
from runner.store.database import Database
from runner.store.statements import insert_or
from runner.store.tables import blobs, job_blobs


def store_media(connection: Connection, job_id: str, media: Iterable[Media], now: float) -> None:
    """Store the bytes of a job's media that are not stored yet. ``used_at`` protects bytes that a pruning
    has just found unused."""
    # All transactions use the same order, so that they do not deadlock.
    for sha256, data in sorted({each.sha256: each.data for each in media}.items()):
        row = {"sha256": sha256, "data": data, "used_at": now}
        new = insert_or(connection, blobs).values(row)
        connection.execute(
            new.on_conflict_do_update(index_elements=["sha256"], set_={"used_at": now})
        )
        of_job = insert_or(connection, job_blobs).values(job_id=job_id, sha256=sha256)
        connection.execute(of_job.on_conflict_do_nothing())


def load_blob(database: Database, sha256: str) -> bytes:
    """Return the bytes with a digest. Raises ``LookupError`` if they are not stored."""
    return database.read(partial(blob_of, sha256=sha256), snapshot=False)


def blob_of(connection: Connection, sha256: str) -> bytes:
    """``load_blob`` in a transaction."""
    data = connection.scalar(select(blobs.c.data).where(blobs.c.sha256 == sha256))
    if data is None:
        raise LookupError(f"the bytes with the digest {sha256} are not stored")
    return bytes(data)


def store_bytes(
    connection: Connection, job_id: str, rows: Iterable[dict[str, Any]], now: float
) -> None:
    """Convert imported blocks to their stored form, in place, and store the bytes of their media."""
    for row in rows:
        row["content"], media = without_bytes(row["content"])
        row["type"] = row["content"]["type"]
        store_media(connection, job_id, media, now)


def delete_unused(connection: Connection, before: float) -> None:
    """Delete bytes that no job uses, unless they were stored again since ``before``."""
    is_used = select(job_blobs.c.job_id).where(job_blobs.c.sha256 == blobs.c.sha256).exists()
    connection.execute(delete(blobs).where(and_(blobs.c.used_at < before, ~is_used)))
