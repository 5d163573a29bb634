"""What a search means: words, queries, matching and excerpts."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.search import (
    EXCERPT_LENGTH,
    LONGEST_WORD,
    MARK,
    Matcher,
    Parts,
    Query,
    Term,
    excerpt,
    fold,
    parse,
    parts_of,
    split,
    words_of,
)
from runner.errors import UsageError

anything = st.text(st.characters(), max_size=60)


def test_words_are_runs_of_letters_and_digits() -> None:
    assert words_of("self.client_id = src/main.py:12 (x-ray)") == [
        *("self", "client", "id", "src", "main", "py", "12", "x", "ray")
    ]


def test_case_and_accents_do_not_count() -> None:
    assert words_of("Straße CAFÉ cafe\u0301 İstanbul ΣΊΣΥΦΟΣ") == [
        *("strasse", "cafe", "cafe", "istanbul", "σισυφοσ")
    ]


def test_nothing_hides_behind_characters_that_are_not_seen() -> None:
    assert words_of("pass\u200bword se\u00adcret \u202eadmin") == ["password", "secret", "admin"]


def test_scripts_without_spaces_have_a_word_for_each_character() -> None:
    assert words_of("東京タワー ok") == ["東", "京", "タ", "ワ", "ー", "ok"]


def test_long_runs_count_as_several_words() -> None:
    assert words_of("a" * (2 * LONGEST_WORD + 1)) == ["a" * LONGEST_WORD] * 2 + ["a"]


@pytest.mark.slow
@given(anything)
def test_words_can_be_stored_and_are_no_facets(text: str) -> None:
    for word in words_of(text):
        assert word.encode()
        assert 1 <= len(word) <= LONGEST_WORD
        assert not word.startswith(MARK)
        assert word.isalnum(), word


@pytest.mark.slow
@given(anything, anything)
def test_a_text_folds_as_its_parts_do(first: str, second: str) -> None:
    assert fold(first + second) == fold(first) + fold(second)


@pytest.mark.slow
@given(anything)
def test_words_fold_to_themselves(text: str) -> None:
    words = words_of(text)
    assert split(fold(" ".join(words))) == words


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_keeps_its_length(text: str) -> None:
    assert len(fold(text)) == len(text)


@pytest.mark.parametrize("word", ["\u1fb3", "\u1f80", "\u1fcc", "\u0390"])
def test_a_letter_with_its_marks_folds_as_the_letter_and_the_marks(word: str) -> None:
    assert fold(unicodedata.normalize("NFD", word)) == fold(word)


def test_words_must_all_be_there() -> None:
    assert parse("Timeout  pool") == Query((Term(("timeout",)), Term(("pool",))))


def test_quotes_make_a_phrase() -> None:
    assert parse('"timed out" now') == Query((Term(("timed", "out")), Term(("now",))))


def test_words_that_are_joined_are_a_phrase() -> None:
    assert parse("src/main_loop.py") == Query((Term(("src", "main", "loop", "py")),))


def test_a_star_cuts_the_last_word() -> None:
    assert parse('conn* "time o*" parse_ca* "timed ou"*') == Query(
        (
            Term(("conn",), is_prefix=True),
            Term(("time", "o")),
            Term(("parse", "ca"), is_prefix=True),
            Term(("timed", "ou"), is_prefix=True),
        )
    )


def test_not_excludes() -> None:
    query = parse('error NOT retry NOT "timed out" NOT conn*')
    assert query.wanted == (Term(("error",)),)
    assert query.unwanted == (Term(("retry",)), Term(("timed", "out")), Term(("conn",), True))


@pytest.mark.parametrize(
    "text", ["rm -rf", "python3 -m unittest", "sed -i", "git push --force", "ls -1"]
)
def test_a_text_with_options_of_a_command_is_one_phrase(text: str) -> None:
    assert parse(text).wanted == (Term(tuple(words_of(text))),)


def test_beside_a_phrase_or_a_star_a_hyphen_only_separates() -> None:
    assert parse('"a b" -rf').wanted == (Term(("a", "b")), Term(("rf",)))
    assert parse("migrat* -test").wanted == (Term(("migrat",), True), Term(("test",)))


def test_a_minus_in_a_word_only_separates() -> None:
    assert parse("x-ray") == Query((Term(("x", "ray")),))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the search has no words"),
        ("   ", "the search has no words"),
        ("NOT only NOT these", "only words to exclude"),
        ('"open', "no closing quote"),
        ("!!!", "no letter or digit"),
        ('""', "no letter or digit"),
        ("*", "no letter or digit"),
        ("f*oo", "put it at the end"),
        ("*foo", "put it at the end"),
        ("a*", "at least 2 letters"),
        ("foo_*", "no word to begin with"),
        ("x " * 51, "at most 50 terms"),
        ("x" * 2_001, "at most 2,000 characters"),
    ],
)
def test_what_says_nothing_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=r".*".join(why.split("*"))) as refused:
        parse(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("exact", ["", "=>", "if", " \t", "a b"[:1]])
def test_an_exact_text_without_words_is_refused(exact: str) -> None:
    with pytest.raises(UsageError, match="give more of the text"):
        parse("", exact)


def test_an_exact_text_alone_is_enough() -> None:
    assert parse("", "self.id =") == Query((), (), "self.id =")
    assert parse("", " if ") == Query((), (), " if ")


@pytest.mark.parametrize(
    ("exact", "parts"),
    [
        ("getUser", Parts(inner="getuser")),
        ("get_user(", Parts(("user",), first="get")),
        (" foo.bar", Parts(("foo",), last="bar")),
        ("/src/main.py:12", Parts(("src", "main", "py"), last="12")),
        ("東京x", Parts(("東", "京"), last="x")),
        ("=>", Parts()),
    ],
)
def test_an_exact_text_is_looked_up_by_its_words(exact: str, parts: Parts) -> None:
    assert parts_of(exact) == parts


@pytest.mark.slow
@given(st.text(max_size=10), st.text(min_size=1, max_size=20), st.text(max_size=10))
def test_the_parts_of_an_exact_text_are_in_every_text_that_has_it(
    before: str, exact: str, after: str
) -> None:
    words, parts = words_of(before + exact + after), parts_of(exact)
    folded = fold(before + exact + after)
    assert " ".join(parts.whole) in " ".join(words)
    assert parts.inner in folded
    if parts.first:
        assert any(word.endswith(parts.first) for word in words)
    if parts.last:
        assert any(word.startswith(parts.last) for word in words)


TEXT = "The connection to db_main timed out; connecting again."


def score(text: str, query: str = "", exact: str | None = None) -> float:
    found = Matcher(parse(query, exact)).score(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("query", "exact"),
    [
        ("timed", None),
        ("TIMED the", None),
        ('"timed out"', None),
        ("db_main", None),
        ("conn*", None),
        ('"timed ou"*', None),
        ("timed NOT retry", None),
        ('again NOT "out timed"', None),
        ("", "ction to db_"),
        ("again", "b_mai"),
    ],
)
def test_a_text_that_has_all_fits(query: str, exact: str | None) -> None:
    assert Matcher(parse(query, exact)).score(TEXT)


@pytest.mark.parametrize(
    ("query", "exact"),
    [
        ("time", None),
        ('"out timed"', None),
        ("db_mai", None),
        ("connection missing", None),
        ("timed NOT again", None),
        ("timed NOT conn*", None),
        ('again NOT "timed out"', None),
        ("", "Timed out"),
        ("missing", "timed out"),
    ],
)
def test_a_text_that_lacks_something_does_not_fit(query: str, exact: str | None) -> None:
    assert Matcher(parse(query, exact)).score(TEXT) is None


def test_more_is_better() -> None:
    assert score("pool and pool " * 3 + "other", "pool") > score("pool and so " * 2 + "on", "pool")


def test_shorter_is_better() -> None:
    assert score("the pool", "pool") > score("the pool" + " and so on" * 200, "pool")


def test_closer_is_better() -> None:
    near = "alpha beta" + " filler" * 100
    far = "alpha" + " filler" * 100 + " beta"
    assert score(near, "alpha beta") > score(far, "alpha beta")


def marked(text: str, query: str = "", exact: str | None = None) -> list[str]:
    shown = excerpt(text, parse(query, exact))
    return [shown.text[start:end] for start, end in shown.marks]


def test_what_was_looked_for_is_marked() -> None:
    text = "lorem " * 100 + "Connection\n timed  out here" + " ipsum" * 100
    assert marked(text, '"timed out" conn*') == ["Connection", "timed out"]


def test_accents_and_what_is_not_seen_do_not_shift_marks() -> None:
    text = "é" * 3_000 + " ça va\u200bs 東京 cafe\u0301 bien"
    assert marked(text, "cafe bien") == ["cafe\u0301", "bien"]
    assert marked(text, "東京") == ["東京"]


def test_an_exact_text_is_marked() -> None:
    assert marked("x = self.client_id", exact="elf.client") == ["elf.client"]


def test_the_part_with_most_of_it_is_shown() -> None:
    text = "alpha " + "filler " * 200 + "alpha beta " + "filler " * 200 + "beta"
    assert marked(text, "alpha beta") == ["alpha", "beta"]


def test_what_is_left_out_is_said() -> None:
    shown = excerpt("filler " * 200 + "needle" + " filler" * 200, parse("needle")).text
    assert shown.startswith("…filler")
    assert shown.endswith("filler…")
    assert excerpt("a needle", parse("needle")).text == "a needle"


@pytest.mark.slow
@given(st.text(max_size=400), st.integers(0, 20))
def test_marks_hold_what_was_looked_for(text: str, number: int) -> None:
    words = words_of(text)
    if not words:
        return
    word = words[number % len(words)]
    shown = excerpt(text, Query((Term((word,)),)))
    assert len(shown.text) <= 2 * EXCERPT_LENGTH
    for start, end in shown.marks:
        assert 0 <= start < end <= len(shown.text)
        assert word in "".join(words_of(shown.text[start:end]))
    if len(text) <= EXCERPT_LENGTH and len(word) < 64:
        assert shown.marks
