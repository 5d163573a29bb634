"""A search finds what trying each text finds, on both databases."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from runner.core.search import Matcher, Query, Term, parse, words_of
from runner.errors import UsageError
from runner.store.database import Database
from runner.store.tables import blocks
from tests.queries.search.record import places, record

_WORDS = (
    "get",
    "user",
    "getUser",
    "Straße",
    "id",
    "東京",
    "é\u0301t",
    "a" * 70,
    "x\u200by",
    "\ud800",
    "7",
)
_TEXTS = st.lists(
    st.tuples(st.sampled_from(_WORDS), st.sampled_from((" ", "_", "/", "\n", ""))), max_size=6
).map(lambda parts: "".join(word + between for word, between in parts))
_TERMS = _TEXTS.filter(words_of).flatmap(
    lambda text: st.booleans().map(
        lambda cut: Term(tuple(words_of(text)), cut and 2 <= len(words_of(text)[-1]) < 64)
    )
)
_QUERIES = st.builds(
    Query,
    st.lists(_TERMS, min_size=1, max_size=3).map(tuple),
    st.lists(_TERMS, max_size=2).map(tuple),
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(_TEXTS, min_size=1, max_size=8), st.lists(_QUERIES, max_size=4), st.data())
def test_a_search_finds_what_trying_each_text_finds(
    database: Database, texts: list[str], queries: list[Query], data: Any
) -> None:
    run = record(database)
    for text in texts:
        run.say(text)
    run.store()
    everything = _texts(database)
    for exact in data.draw(st.lists(_parts_of(texts), max_size=3)):
        try:
            queries.append(parse("", exact))
        except UsageError:
            continue
    for query in queries:
        matcher = Matcher(query)
        expected = {key for key, text in everything.items() if matcher.score(text) is not None}
        found = places(database, query)
        assert {(p.run_id, p.message, p.position) for p in found if p.kind == "text"} == expected, (
            query
        )


def _parts_of(texts: list[str]) -> st.SearchStrategy[str]:
    whole = "".join(texts) + " "
    return st.tuples(st.integers(0, len(whole)), st.integers(1, 90)).map(
        lambda cut: whole[cut[0] : cut[0] + cut[1]]
    )


def _texts(database: Database) -> dict[tuple[str, int, int], str]:
    query = select(blocks.c.run_id, blocks.c.message, blocks.c.position, blocks.c.content)
    rows = database.read(lambda connection: connection.execute(query).all())
    return {(row.run_id, row.message, row.position): row.content["text"] for row in rows}
