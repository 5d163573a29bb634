from __future__ import annotations

import json

import pytest

from runner.core.text import DEEPEST, KeyTwiceError, read_json


def _deep(depth: int) -> str:
    return '{"a": [' * (depth // 2) + "1" + "]}" * (depth // 2)


def test_what_is_nested_as_deeply_as_can_be_is_read() -> None:
    assert read_json(_deep(DEEPEST)) == json.loads(_deep(DEEPEST))


@pytest.mark.parametrize("depth", [DEEPEST + 2, 5_000, 100_000])
def test_what_is_nested_more_deeply_is_refused(depth: int) -> None:
    with pytest.raises(RecursionError):
        read_json(_deep(depth))


def test_many_values_side_by_side_are_not_deep() -> None:
    assert len(read_json(json.dumps([{"a": [number]} for number in range(5_000)]))) == 5_000


def test_brackets_in_texts_are_not_deep() -> None:
    assert read_json(json.dumps("[{" * 5_000)) == "[{" * 5_000


def test_a_key_that_is_there_twice_is_refused_where_each_may_be_there_once() -> None:
    assert read_json('{"a": 1, "a": 2}') == {"a": 2}
    assert read_json('[{"a": 1}, {"a": 2}]', once=True) == [{"a": 1}, {"a": 2}]
    with pytest.raises(KeyTwiceError, match="the key 'a' twice in one object"):
        read_json('{"b": [{"a": 1, "c": {}, "a": 2}]}', once=True)
    with pytest.raises(KeyTwiceError) as caught:
        read_json(
            json.dumps({"\x1b" * 100: 1})[:-1] + "," + json.dumps({"\x1b" * 100: 1})[1:], once=True
        )
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
