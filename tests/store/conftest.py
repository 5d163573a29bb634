"""Fixtures for the tests of the store."""

from __future__ import annotations

import pytest

from runner.store.database import Database
from tests.store.asked import run_ids, submit_asking


@pytest.fixture
def run_id(database: Database) -> str:
    """The one run of a job that asks."""
    (run_id,) = run_ids(database, submit_asking(database))
    return run_id
