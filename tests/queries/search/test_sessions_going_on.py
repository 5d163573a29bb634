"""Sessions that were imported, searched, and go on: they grow in the middle, too."""

from __future__ import annotations

import pytest

from runner.queries.search.search import open_index
from runner.store.database import Database
from tests.exchange.samples import Session, text, use
from tests.queries.search.record import find
from tests.store.exchange.test_sessions import bring


def _begun() -> Session:
    session = Session()
    session.user("go on with the almonds")
    session.reply("msg_1", use("toolu_1", "Bash", command="echo walnut one"))
    session.result("toolu_1", "answer one")
    return session


@pytest.mark.slow
def test_a_call_that_comes_after_the_result_of_another_is_found(database: Database) -> None:
    session = _begun()
    bring(database, session)
    assert find(database, "walnut").total == 1
    session.reply("msg_1", use("toolu_2", "Bash", command="echo walnut two"), stop="tool_use")
    session.result("toolu_2", "answer two")
    (again,) = bring(database, session)
    assert again.what == "continued"
    assert find(database, "walnut").total == 2
    assert find(database, "answer").total == 2
    assert find(database, "almonds").total == 1


@pytest.mark.slow
def test_a_result_that_comes_after_the_next_reply_is_found(database: Database) -> None:
    session = Session()
    session.user("go")
    first, second = (use(f"toolu_{n}", "Bash", command="sleep") for n in (1, 2))
    session.reply("msg_1", first, second, stop="tool_use")
    session.result("toolu_1", "answer one")
    session.user("are you there")
    session.reply("msg_2", text("yes, there"))
    bring(database, session)
    assert find(database, "there").total == 2
    session.result("toolu_2", "a late walnut")
    bring(database, session)
    assert find(database, "walnut").total == 1
    assert find(database, "there").total == 2


def test_a_summary_that_comes_after_its_boundary_is_found(database: Database) -> None:
    session = _begun()
    session.add("system", subtype="compact_boundary")
    bring(database, session)
    assert find(database, "hazelnut").total == 0
    session.user("They spoke of a hazelnut.", isCompactSummary=True)
    session.reply("msg_2", text("well"))
    (again,) = bring(database, session)
    assert again.what == "continued"
    assert find(database, "hazelnut").total == 1
    assert find(database, "walnut").total == 1
    assert open_index(database).follow() == 0


@pytest.mark.slow
def test_what_is_found_is_the_same_as_in_an_index_made_anew(database: Database) -> None:
    session = _begun()
    bring(database, session)
    find(database, "walnut")
    session.reply("msg_1", use("toolu_2", "Bash", command="echo walnut two"), stop="tool_use")
    session.result("toolu_2", "answer two")
    bring(database, session)
    grown = {hit.place for hit in find(database, "go*", limit=None).hits}
    followed = [find(database, word).total for word in ("walnut", "answer", "almonds", "bash")]
    open_index(database).renew(lambda _done, _all: None)
    assert {hit.place for hit in find(database, "go*", limit=None).hits} == grown
    assert [find(database, w).total for w in ("walnut", "answer", "almonds", "bash")] == followed
