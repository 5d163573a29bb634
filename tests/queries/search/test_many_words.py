"""What is found does not change with how many words an index is asked for."""

from __future__ import annotations

import pytest

from runner.errors import UsageError
from runner.store.database import Database
from tests.queries.search.record import excerpts, find, record

_TEXTS = (
    "get_user_names",
    "forget_user_name()",
    "getter, user, name",
    "target_user_nap",
    "get user na",
    "budget_users",
    f"{'x' * 70}get_user_name",
    "of nap",
)


@pytest.fixture(params=[0, 40, 150])
def indexed(request: pytest.FixtureRequest, database: Database) -> Database:
    """Texts, beside others with so many words that end like those that are looked for."""
    run = record(database)
    for text in _TEXTS:
        run.say(text)
    for number in range(request.param):
        run.say(" ".join(f"q{number}{end}" for end in ("get", "tter", "ter", "et", "user")))
    run.store()
    return database


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("get*", {0, 2, 4}),
        ("na*", {0, 1, 2, 3, 4, 6, 7}),
        ("us* NOT names", {1, 2, 3, 4, 5, 6}),
        ('"user na"*', {0, 1, 2, 3, 4, 6}),
        ("of na*", {7}),
        ("NOT get* na*", {1, 3, 6, 7}),
        ("us* NOT na*", {5}),
    ],
)
def test_a_prefix_finds_the_same_however_many_words_begin_so(
    indexed: Database, query: str, found: set[int]
) -> None:
    assert _numbers(indexed, query) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exact", "found"),
    [
        ("get_user_nam", {0, 1, 6}),
        ("get_user_na", {0, 1, 3, 6}),
        ("get_user", {0, 1, 3, 5, 6}),
        ("et_user_", {0, 1, 3, 6}),
        ("get, u", set()),
        ("tter, user, nam", {2}),
        ("ter, use", {2}),
        ("get_user_nam()", set()),
        ("user_name()", {1}),
    ],
)
def test_an_exact_text_is_found_however_many_words_could_be_at_its_ends(
    indexed: Database, exact: str, found: set[int]
) -> None:
    assert _numbers(indexed, "", exact) == found


def test_an_end_that_too_many_words_have_is_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.queries.search.search.MOST_WORDS", 5)
    record(database).say(" ".join(f"n{number}nut" for number in range(9))).store()
    with pytest.raises(UsageError, match="too many words end with 'nut'"):
        find(database, exact="nut ")
    assert find(database, exact="nut n3nut").total == 1


def _numbers(database: Database, query: str, exact: str | None = None) -> set[int]:
    shown = excerpts(find(database, query, exact, limit=None))
    assert len(shown) == len(set(shown))
    return {_TEXTS.index(text) for text in shown}
