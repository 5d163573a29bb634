"""Writes what follows from the keys of a job file: its JSON Schema, and their tables in docs/.

make docs
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from runner.jobfile.keys import TABLES, json_schema
from runner.jobfile.table import Key, Table

ROOT = Path(__file__).parents[1]
MAIN = "job-file.md"  # where links without a page lead
SCHEMA = ROOT / "jobs/job.schema.json"
_MARKED = re.compile(r"<!-- keys: (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def pages() -> dict[str, str]:
    """Return the texts of the pages that have tables of keys, by their names."""
    texts = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
    return {name: text for name, text in texts.items() if "<!-- keys: " in text}


def with_tables(pages: dict[str, str]) -> dict[str, str]:
    """Return the pages with a new table between each ``<!-- keys: NAME -->`` and ``<!-- end -->``."""
    tables = {table.name or "top": table for table in TABLES}

    def rewritten(page: str, found: re.Match[str]) -> str:
        table = markdown(tables.pop(found[1]), page)
        return f"<!-- keys: {found[1]} -->\n{table}\n<!-- end -->"

    written = {name: _MARKED.sub(partial(rewritten, name), text) for name, text in pages.items()}
    if tables:
        raise ValueError(f"no page of docs/ has markers for {', '.join(tables)}")
    return written


def markdown(table: Table, page: str) -> str:
    """Return the table of the keys, with links that lead from the page."""
    rows = [
        f"| `{key.name}` | {key.type.words} | {default(key)} | {key.doc} |".replace("  ", " ")
        for key in table.keys
    ]
    rows = [row.replace("](#", f"]({MAIN}#").replace(f"]({page}#", "](#") for row in rows]
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
    for name, text in with_tables(pages()).items():
        (ROOT / "docs" / name).write_text(text)
    SCHEMA.write_text(json.dumps(json_schema(), indent=2) + "\n")
