"""Writes what follows from the keys of a job file: its JSON Schema, and the tables of docs/job-file.md.

make docs
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from runner.jobfile.keys import TABLES, json_schema
from runner.jobfile.table import Key, Table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/job-file.md"
SCHEMA = ROOT / "jobs/job.schema.json"


def with_tables(page: str) -> str:
    """Return the page with a new table between each ``<!-- keys: NAME -->`` and ``<!-- end -->``."""
    tables = {table.name or "top": table for table in TABLES}

    def rewritten(found: re.Match[str]) -> str:
        return f"{found[1]}\n{markdown(tables.pop(found[2]))}\n<!-- end -->"

    page = re.sub(r"(<!-- keys: (\S+) -->)\n.*?<!-- end -->", rewritten, page, flags=re.DOTALL)
    if tables:
        raise ValueError(f"{PAGE.name} has no markers for {', '.join(tables)}")
    return page


def markdown(table: Table) -> str:
    """Return the table of the keys."""
    rows = [
        f"| `{key.name}` | {key.type.words} | {default(key)} | {key.doc} |".replace("  ", " ")
        for key in table.keys
    ]
    return "\n".join(("| key | type | default | meaning |", "|---|---|---|---|", *rows))


def default(key: Key) -> str:
    if key.stands_for is not None:
        return key.stands_for
    if key.needed:
        return "needed"
    return "none" if key.default in (None, {}) else f"`{toml(key.default)}`"


def toml(value: Any) -> str:
    return f"{value:_}" if type(value) is int else json.dumps(value)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
    SCHEMA.write_text(json.dumps(json_schema(), indent=2) + "\n")
