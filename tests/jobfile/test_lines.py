from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.jobfile.lines import Excerpts, locate, place

TEXT = '''\
# a comment with [brackets] and = signs
name = "job"   # and another
"odd key" = 1
dotted.inner . deep = 2

long = """
[not.a.header]
key = "also not" \\"""
"""
raw = \'\'\'
it''s # no comment
\'\'\'
[items]   # headers have comments too
list = [
  "one", # 1
  { key = "two", more = [1, 2] },

  """three
  four""", 1979-05-27 07:32:00,
]
[[runs]]
a = 1
[[runs]]
a = 2
[runs.inside]
b = 3
[[runs.more]]
c = 4
'''


def test_every_kind_of_place_is_found_on_its_line() -> None:
    assert locate(TEXT) == {
        "name": 2,
        "'odd key'": 3,
        "dotted": 4,
        "dotted.inner": 4,
        "dotted.inner.deep": 4,
        "long": 6,
        "raw": 10,
        "items": 13,
        "items.list": 14,
        "items.list[0]": 15,
        "items.list[1]": 16,
        "items.list[1].key": 16,
        "items.list[1].more": 16,
        "items.list[1].more[0]": 16,
        "items.list[1].more[1]": 16,
        "items.list[2]": 18,
        "items.list[3]": 19,
        "runs": 21,
        "runs[0]": 21,
        "runs[0].a": 22,
        "runs[1]": 23,
        "runs[1].a": 24,
        "runs[1].inside": 25,
        "runs[1].inside.b": 26,
        "runs[1].more": 27,
        "runs[1].more[0]": 27,
        "runs[1].more[0].c": 28,
    }


def test_line_ends_of_windows_count_once() -> None:
    assert locate("a = 1\r\n\r\nb = 2\r\n") == {"a": 1, "b": 3}


def test_quotes_at_the_end_of_a_long_string_belong_to_it() -> None:
    assert locate('a = """x"""""\nb = """"""\nc = \'\'\'y\'\'\'\'\'\nd = 1') == dict(
        zip("abcd", range(1, 5), strict=True)
    )


def places_of(value: Any, *path: Any) -> set[str]:
    found = {place(*path)} if path else set()
    if not isinstance(value, dict | list):
        return found
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    return found.union(*(places_of(inner, *path, step) for step, inner in steps))


scalars = st.sampled_from(["1", "true", "-1.5e3", '"a\\"b]}#"', "'c]}#'", "1979-05-27 07:32:00Z"])
long_strings = st.sampled_from(['"""\n[x]\ny=1\n"""', "'''\n'' # z\n'''"])
keys = st.sampled_from(["a", "b-c", '"d.e [f]"', "'g'", "h . i", '"\\u00e9"'])


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=3).map(lambda all_: "[ # c\n" + ",\n ".join(all_) + "]")


def inline_tables(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.dictionaries(keys, values, max_size=3)
    return pairs.map(lambda d: "{" + ", ".join(f"{k} = {v}" for k, v in d.items()) + "}")


values_of_toml = st.recursive(
    scalars | long_strings, lambda inner: arrays(inner) | inline_tables(inner), max_leaves=8
)


@pytest.mark.slow
@given(st.lists(st.dictionaries(keys, values_of_toml, max_size=4), min_size=1, max_size=3))
def test_places_are_exactly_those_that_tomllib_reads(tables: list[dict[str, str]]) -> None:
    text = "".join(
        f"[[table.of]] # {number}\n" + "".join(f"{key} = {value}\n" for key, value in table.items())
        for number, table in enumerate(tables)
    )
    assert set(locate(text)) == places_of(tomllib.loads(text))


@pytest.mark.parametrize(
    ("at", "marked"),
    [
        ("mode", 'mode = "gti"  # no\n       ^^^^^'),
        ("limits.max", "  max=  [1,\n        ^^^"),
        ("limits.max[1]", "2]\n^"),
        ("'a key'.b", '"a key".b = { c = "ü" }\n            ^^^^^^^^^^^'),
        ("'a key'.b.c", '"a key".b = { c = "ü" }\n                  ^^^'),
        ("limits", "[limits]\n^^^^^^^^"),
        ("of[1]", "[[of]]\n^^^^^^"),
        ("nothing", ""),
        ("far", ""),
    ],
)
def test_carets_are_below_the_value_of_a_place(at: str, marked: str) -> None:
    text = (
        'mode = "gti"  # no\r\n"a key".b = { c = "ü" }\r\n'
        f"{' ' * 200}far = 1\n[limits]\n  max=\t[1,\n2]\n[[of]]\n[[of]]\n"
    )
    assert Excerpts(text).mark(at) == marked


def test_carets_are_below_a_key_on_demand() -> None:
    assert Excerpts("a = 1\nmod = 2\n").mark("mod", the_key=True) == "mod = 2\n^^^"
