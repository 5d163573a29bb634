"""What the tables are registered in."""

from __future__ import annotations

from sqlalchemy import MetaData

from runner.store.connection.naming import NAMES

metadata = MetaData(naming_convention=NAMES)
