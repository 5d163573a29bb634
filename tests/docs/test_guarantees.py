"""docs/guarantees.md names a test for each promise, and every test that it names exists."""

from __future__ import annotations

import ast
from functools import lru_cache

import pytest

from tests.docs.pages import ROOT, codes, read

PAGE = read("docs/guarantees.md")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| guarantee |"))
]


@lru_cache
def names_in(path: str) -> frozenset[str]:
    """The tests of a file as pytest names them, ``test_…`` and ``TestClass::test_…``."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for each in inside:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + each.name)
    return frozenset(found)


def test_every_guarantee_names_its_tests() -> None:
    assert ROWS
    for guarantee, _, tests in ROWS:
        assert codes(tests), guarantee


@pytest.mark.slow
def test_every_test_that_is_named_exists() -> None:
    for guarantee, _, tests in ROWS:
        for name in codes(tests):
            path, _, test = name.partition("::")
            assert (ROOT / path).is_file(), guarantee
            assert test.rpartition("::")[2].startswith("test_"), name
            assert test in names_in(path), f"{name} is gone: {guarantee}"
