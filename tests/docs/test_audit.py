"""docs/views.md lists the views as they are, and the queries of docs/audit.md are answered."""

from __future__ import annotations

import re
from typing import Any

import pytest

from docs.tables import IN_EVERY_VIEW, with_views
from runner.audit import Audit
from runner.cli.audit import audit as group
from runner.queries.sql.ask import Bounds, ask, store_prices
from runner.queries.sql.views import VIEWS
from runner.store.database import Database
from tests.audit.conftest import both, forked  # noqa: F401 - fixtures
from tests.audit.test_views import PRICES
from tests.docs.pages import blocks, codes, read, rows, section

PAGE = read("docs/audit.md")
QUERIES = blocks(section(PAGE, "## Worked queries"), "sql")


def test_the_queries_are_numbered() -> None:
    numbers = re.findall(r"^\*\*(\d+)\. ", section(PAGE, "## Worked queries"), re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 15)]
    assert len(QUERIES) == 14


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES, ids=range(1, 15))
def test_query_is_answered_alike_on_both_databases(
    both: dict[str, Database],  # noqa: F811
    query: str,
) -> None:
    found = {name: answer(database, query) for name, database in both.items()}
    assert found["sqlite"]
    assert found["sqlite"] == found["postgresql"]


def answer(database: Database, query: str) -> list[str]:
    """The rows of a query as text, sorted: NULL sorts first on one database and last on the other, and
    sums may differ in their last digits."""
    store_prices(database, PRICES)
    found = ask(database, query, Bounds(seconds=60))
    return sorted(repr({name: _nearly(value) for name, value in row.items()}) for row in found)


def _nearly(value: Any) -> Any:
    return f"{value:.9g}" if isinstance(value, float) else value


def test_every_view_is_listed_with_its_columns() -> None:
    page = read("docs/views.md")
    assert with_views(page) == page, "run `make docs`"
    of_every_view = [name for names, *_ in rows(page) for name in codes(names)]
    assert of_every_view == list(IN_EVERY_VIEW)
    for view in VIEWS:
        assert set(of_every_view) <= {column.name for column in view.columns}


def test_role_is_given_all_views() -> None:
    (statements,) = blocks(PAGE, "postgresql")
    assert re.findall(r"v_\w+", statements) == [view.name for view in VIEWS]


def test_every_question_is_listed_and_python_has_it() -> None:
    listed = [codes(question)[0] for question, *_ in rows(section(PAGE, "## Ready questions"))]
    assert {*listed, "sql", "views"} == set(group.commands)
    for question in listed:
        assert callable(getattr(Audit, question))
