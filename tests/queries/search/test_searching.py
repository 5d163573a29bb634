from __future__ import annotations

import pytest

from runner.errors import UsageError
from runner.queries.search import postgres
from runner.queries.search import search as searching
from runner.store.database import Database
from tests.queries.search.record import excerpts, find, record
from tests.store.examples import NOW

pytestmark = pytest.mark.dialect


def test_everything_that_a_run_says_is_found(database: Database) -> None:
    run = record(database, "app.py")
    run.say("a thought of walnuts", kind="thinking").say("walnuts, I say", "user")
    run.call("Bash", {"command": "grep -r walnuts src"}, "src/walnuts.py").store()
    found = find(database, "walnuts")
    assert found.total == 4
    about = {
        (
            hit.source,
            hit.role,
            hit.tool,
            hit.place.message,
            hit.place.position,
            hit.item,
            hit.call_id,
        )
        for hit in found.hits
    }
    call = f"call_{run.run_id.removeprefix('run_')}_3_1"
    assert about == {
        ("thinking", "assistant", None, 1, 0, "app.py", None),
        ("text", "user", None, 2, 0, "app.py", None),
        ("input", "assistant", "Bash", 3, 0, "app.py", call),
        ("output", "user", "Bash", 4, 0, "app.py", call.replace("_3_1", "_4_1")),
    }


@pytest.mark.slow
def test_a_system_prompt_is_found_once(database: Database) -> None:
    record(database)
    (hit,) = find(database, '"be brief"').hits
    assert (hit.source, hit.place.run_id, hit.turn) == ("system", "", None)


@pytest.mark.slow
def test_the_whole_output_is_found_and_not_only_what_the_model_was_shown(
    database: Database,
) -> None:
    whole = b"first " * 5_000 + b"hidden acorn " + b"last " * 5_000
    record(database).call("Bash", {}, "first … last", whole).store()
    (hit,) = find(database, "acorn").hits
    assert "hidden acorn" in hit.excerpt.text


@pytest.mark.slow
def test_values_of_an_input_are_found_and_not_its_names(database: Database) -> None:
    given = {"file_path": "src/a.py", "edits": [{"old": "walnut", "count": 417, "all": True}]}
    record(database).call("Edit", given, "done").store()
    assert find(database, "walnut 417 src/a.py").total == 1
    assert find(database, "edits").total == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("blue", {"blue whale", "a blue-grey whale"}),
        ("whale blue", {"blue whale", "a blue-grey whale"}),
        ('"blue whale"', {"blue whale"}),
        ("blue_whale", {"blue whale"}),
        ("gre*", {"a blue-grey whale", "green tea"}),
        ('"blue gr"*', {"a blue-grey whale"}),
        ("whale NOT grey", {"blue whale"}),
        ('blue NOT "blue whale"', {"a blue-grey whale"}),
        ("blue NOT gr*", {"blue whale"}),
        ("purple", set()),
        ("blue purple", set()),
        ("purp*", set()),
        ("blue NOT purple", {"blue whale", "a blue-grey whale"}),
    ],
)
def test_a_query_finds_what_it_says(database: Database, query: str, texts: set[str]) -> None:
    run = record(database)
    for text in ("blue whale", "a blue-grey whale", "green tea"):
        run.say(text)
    run.store()
    assert set(excerpts(find(database, query))) == texts


@pytest.mark.parametrize(
    ("exact", "texts"),
    [
        ("getUser", {"forgetUserName", "getUser()"}),
        ("tUserN", {"forgetUserName"}),
        ("getuser", set()),
        ("User(", {"getUser()"}),
        ("ser() ", set()),
        (" = 500", {"n = 500"}),
        ("src/ma", {"src/main.py"}),
        ("c/main.p", {"src/main.py"}),
    ],
)
def test_an_exact_text_is_found_in_words_and_across_them(
    database: Database, exact: str, texts: set[str]
) -> None:
    run = record(database)
    for text in ("forgetUserName", "getUser()", "n = 500", "src/main.py"):
        run.say(text)
    run.store()
    assert set(excerpts(find(database, exact=exact))) == texts


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 1, 62, 63, 64, 65, 100, 190])
def test_an_exact_text_is_found_in_a_long_run_wherever_that_is_cut(
    database: Database, start: int
) -> None:
    data = "".join(f"{number:03x}" for number in range(66))
    record(database).say(f"data:{data}=").store()
    assert find(database, exact=data[start : start + 8]).total == 1
    assert find(database, exact=data[start:] + "=").total == 1
    assert find(database, exact=":" + data[: start + 3]).total == 1


@pytest.mark.slow
def test_filters_narrow_a_search(database: Database) -> None:
    first, second = record(database, "a.py"), record(database, "b.py")
    first.call("Bash", {"command": "walnut"}, "walnut", at=NOW + 10).store()
    second.call("Read", {"path": "walnut"}, "walnut", at=NOW + 90_000).store()

    def items(**more: object) -> list[str | None]:
        return sorted(str(hit.item) for hit in find(database, "walnut", **more).hits)

    assert items() == ["a.py", "a.py", "b.py", "b.py"]
    assert items(run_id=first.run_id) == ["a.py", "a.py"]
    assert items(item="b.py") == ["b.py", "b.py"]
    assert items(item="c.py") == []
    assert items(tool="Read", sources=("input",)) == ["b.py"]
    assert items(sources=("input", "thinking"), role="assistant") == ["a.py", "b.py"]
    assert items(role="user", tool="Bash") == ["a.py"]
    assert items(since=NOW + 10, until=NOW + 11) == ["a.py", "a.py"]
    assert items(since=NOW + 10.5) == ["b.py", "b.py"]
    assert items(until=NOW + 10) == []
    assert items(model="claude-test", run_id=second.run_id) == ["b.py", "b.py"]
    assert items(model="claude-other") == []


@pytest.mark.slow
def test_times_to_come_are_found_by_them(database: Database) -> None:
    record(database).say("walnut", at=4_000_000_000.0).store()
    assert find(database, "walnut", since=3_999_999_999.0).total == 1
    assert find(database, "walnut", since=3_999_999_999.0, until=4_000_000_001.0).total == 1
    assert find(database, "walnut", since=NOW, until=NOW + 10).total == 0


@pytest.mark.slow
def test_the_best_come_first(database: Database) -> None:
    run = record(database)
    run.say("nothing but walnut here and there, " + "and other words " * 200)
    run.say("walnut walnut walnut").say("a walnut in a text of some words").store()
    shown = excerpts(find(database, "walnut"))
    assert [text[:8] for text in shown[:2]] == ["walnut w", "a walnut"]


@pytest.mark.slow
def test_pages_hold_every_match_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MOST_SCORED", 8)
    monkeypatch.setattr(postgres, "STRETCH_BITS", (2, 3))
    run = record(database)
    for number in range(30):
        run.say("walnut " * (number % 7 + 1) + f"n{number}")
    run.store()
    for query, exact in (("walnut", None), ("", "walnut"), ('"walnut walnut"', None)):
        pages = [find(database, query, exact, limit=7, offset=at).hits for at in range(0, 35, 7)]
        seen = [hit.place for page in pages for hit in page]
        everything = find(database, query, exact, limit=None)
        assert sorted(seen) == sorted(hit.place for hit in everything.hits)
        assert len(set(seen)) == len(seen)


@pytest.mark.slow
def test_of_too_many_matches_the_newest_are_ranked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MOST_RANKED", 5)
    monkeypatch.setattr(postgres, "STRETCH_BITS", (2, 3))
    run = record(database)
    for number in range(9):
        run.say(f"walnut n{number}")
    run.store()
    found = find(database, "walnut", limit=2, offset=1)
    assert excerpts(found) == ["walnut n7", "walnut n6"]
    assert found.count == "more than 5"
    assert "the best of the newest 5 come first" in found.note
    exact = find(database, exact="alnut", limit=2)
    assert excerpts(exact) == ["walnut n8", "walnut n7"]
    assert exact.is_least
    pages = [find(database, "walnut", limit=2, offset=at).hits for at in range(0, 10, 2)]
    assert len({hit.place for page in pages for hit in page}) == sum(map(len, pages)) == 9
    assert find(database, "walnut", limit=None).count == "9"


@pytest.mark.slow
def test_an_exact_text_that_is_in_too_many_words_is_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.queries.search.search.MOST_WORDS", 5)
    record(database).say(" ".join(f"nut{number}" for number in range(9))).store()
    with pytest.raises(UsageError, match="give more of the text"):
        find(database, exact="nut")


@pytest.mark.slow
def test_rows_hold_the_place_and_the_marks(database: Database) -> None:
    run = record(database, "a.py").say("one walnut").store()
    (row,) = find(database, "walnut").rows()
    assert row["run_id"] == run.run_id
    assert (row["at"], row["item"], row["turn"], row["message"], row["position"]) == (
        *(NOW, "a.py", 1, 1, 0),
    )
    ((start, end),) = row["marks"]
    assert row["excerpt"][start:end] == "walnut"
