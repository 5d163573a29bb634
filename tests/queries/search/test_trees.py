"""What sub-agents said is found once, and with the run that they work for."""

from __future__ import annotations

import pytest

from runner.core.search import Query, Term
from runner.queries.filters import Filters
from runner.queries.search.search import search
from runner.store.database import Database
from tests.store.family import end_child, parent_with_two, start_child


def found(database: Database, word: str, filters: Filters = Filters()) -> list[str]:  # noqa: B008
    hits = search(database, Query((Term((word,)),)), filters).hits
    return sorted(hit.place.run_id for hit in hits)


@pytest.mark.slow
def test_a_search_of_a_run_or_an_item_reaches_its_tree(database: Database) -> None:
    parent, first, second = parent_with_two(database, "src/a.py")
    grandchild = start_child(database, second, 1)
    other, elsewhere, _ = parent_with_two(database, "src/b.py")
    end_child(database, first, "A pelican.")
    end_child(database, grandchild, "A pelican.")
    end_child(database, elsewhere, "A pelican.")
    assert found(database, "pelican") == sorted((first, grandchild, elsewhere))
    assert found(database, "pelican", Filters(run_id=parent)) == [first, grandchild]
    assert found(database, "pelican", Filters(run_id=second)) == [grandchild]
    assert found(database, "pelican", Filters(item="src/a.py")) == [first, grandchild]
    assert found(database, "pelican", Filters(item="src/a.py+2+1")) == [grandchild]
    assert found(database, "pelican", Filters(run_id=other)) == [elsewhere]


def test_what_a_sub_agent_has_from_its_parent_is_found_in_the_parent_alone(
    database: Database,
) -> None:
    parent, *_ = parent_with_two(database)
    child = start_child(
        database, parent, 3, prompt="A heron.", snapshot=("A pelican.", "A pelican too.")
    )
    assert found(database, "heron") == [child]
    assert found(database, "pelican") == []


def test_the_model_of_a_sub_agent_s_type_is_searched_by(database: Database) -> None:
    _, first, second = parent_with_two(database)
    end_child(database, first, "A pelican.")
    end_child(database, second, "A pelican.")
    assert found(database, "pelican", Filters(model="claude-small")) == [second]
