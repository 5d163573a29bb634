"""Which texts a document has."""

from __future__ import annotations

import pytest

from runner.queries.search.search import open_index
from runner.store.database import Database
from tests.queries.search.record import excerpts, find, record


@pytest.mark.slow
def test_what_the_model_was_shown_beside_a_whole_output_is_found(database: Database) -> None:
    run = record(database)
    run.call("Bash", {"command": "make"}, "a walnut\nExit code 7", whole=b"a walnut\na hazelnut")
    run.store()
    assert find(database, "hazelnut").total == 1
    assert find(database, '"exit code 7"').total == 1
    (shown,) = excerpts(find(database, exact="Exit code 7"))
    assert "Exit code 7" in shown
    assert shown.count("walnut") == 1


@pytest.mark.parametrize("word", ["walnut", "x_header", "ticket", "kind", "7711"])
def test_all_that_a_tool_was_called_with_is_found(database: Database, word: str) -> None:
    given = {"query": "walnut", "id": "ticket", "type": "kind", "headers": {"x_header": 7711}}
    run = record(database)
    run._block(0, "assistant", {"type": "server_tool_use", "name": "web", "input": given}, 1.0)
    run._message().store()
    assert find(database, word).total == 1


def test_names_of_a_tools_parameters_are_no_text(database: Database) -> None:
    record(database).call("Bash", {"command": "x"}, "short").store()
    assert find(database, "command").total == 0


def test_the_text_of_a_document_in_a_result_is_found_and_data_is_not(database: Database) -> None:
    run = record(database)
    content = [
        {"type": "document", "source": {"type": "text", "data": "walnut"}},
        {"type": "image", "source": {"type": "base64", "data": "hazelnut"}},
    ]
    run._block(0, "user", {"type": "tool_result", "tool_use_id": "t", "content": content}, 1.0)
    run._message().store()
    assert find(database, "walnut").total == 1
    assert find(database, "hazelnut").total == 0


@pytest.mark.slow
def test_runs_of_an_item_are_found_by_it_and_no_others(database: Database) -> None:
    first = record(database).say("walnut").store()
    record(database, "two").say("walnut").store()
    (hit,) = find(database, "walnut", run_id=first.run_id).hits
    assert hit.item is not None
    assert find(database, "walnut", item=hit.item).total >= 1
    assert find(database, "walnut", item="no such item").total == 0


@pytest.mark.slow
def test_long_texts_are_indexed_a_few_at_a_time(database: Database) -> None:
    run = record(database)
    for number in range(5):
        run.call("Bash", {"number": number}, "short", whole=b"walnut " * 1_500)
    run.store()
    index = open_index(database, batch=5)
    added = []
    while count := index.follow():
        added.append(count)
    assert max(added) <= 5
    assert len(added) >= 5
    assert sum(added) == 12
    assert find(database, "walnut").total == 5


@pytest.mark.slow
def test_a_text_with_very_many_words_is_found_by_all_of_them(database: Database) -> None:
    words = " ".join(f"w{number}" for number in range(200_000))
    record(database).say("w300000 alone").call("Bash", {}, "short", words.encode()).store()
    found = {"w1 w199999": 1, "w1 w300000": 0, "w1 -w199999": 0, "w19999*": 1}
    found |= {'"w7 w8" w150000': 1, '"w8 w7"': 0}
    assert {query: find(database, query).total for query in found} == found
    assert find(database, exact="w7 w8 w9").total == 1


@pytest.mark.slow
def test_where_not_all_that_may_match_is_looked_at_that_is_said(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.queries.search.search.MOST_READ", 100)
    run = record(database)
    for number in range(120):
        run.say(f"walnut tree {number}")
    run.say("a walnut.tree with much else beside it").store()
    found = find(database, exact="walnut.tree")
    assert (found.total, found.is_least) == (0, True)
    assert "only the first 100 texts with these words were looked at" in found.note
    found = find(database, exact="walnut.tree", limit=None)
    assert (found.total, found.note) == (1, "")
