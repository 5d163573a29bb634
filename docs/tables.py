"""Writes what follows from the code: the JSON Schema of job files, and in docs/ the tables of their keys
and of the views of the record.

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
from runner.queries.sql.views import VIEWS, View

ROOT = Path(__file__).parents[1]
MAIN = "job-file.md"  # where links without a page lead
SCHEMA = ROOT / "jobs/job.schema.json"
VIEWS_PAGE = ROOT / "docs/views.md"
IN_EVERY_VIEW = (
    "run_id",
    "job_id",
    "item",
    "root_run",
    "parent_run",
    "depth",
    "agent_type",
    "label",
)
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


def with_views(page: str) -> str:
    """Return the page with a section for each view between ``<!-- views -->`` and ``<!-- end -->``."""
    before, _, rest = page.partition("<!-- views -->\n")
    sections = "\n\n".join(map(columns, VIEWS))
    return f"{before}<!-- views -->\n{sections}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"


def columns(view: View) -> str:
    """Return the section of a view, without the columns of all views and the texts of times."""
    rows = [
        f"| `{column.name}` | {column.kind} | {column.meaning} |"
        for column in view.columns
        if column.name not in IN_EVERY_VIEW and not column.name.endswith("_text")
    ]
    lines = (
        f"## {view.name}",
        "",
        view.meaning,
        "",
        "| column | kind | meaning |",
        "|---|---|---|",
    )
    return "\n".join((*lines, *rows))


if __name__ == "__main__":
    for name, text in with_tables(pages()).items():
        (ROOT / "docs" / name).write_text(text)
    SCHEMA.write_text(json.dumps(json_schema(), indent=2) + "\n")
    VIEWS_PAGE.write_text(with_views(VIEWS_PAGE.read_text()))
