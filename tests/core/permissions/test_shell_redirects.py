"""The files that a script reads and writes by redirects."""

from __future__ import annotations

import pytest

from runner.core.permissions import paths_of
from runner.core.permissions.shell import analyse

CASES = [
    ("a > f", (), ("f",)),
    ("a >> f 2>&1", (), ("f",)),
    ("a >| f; b &> g; c &>> h", (), ("f", "g", "h")),
    ("a >& f", (), ("f",)),
    ("a 2> 'x y' 3>&- < in", ("in",), ("x y",)),
    ("> f; { a; } > g; (b) > h; while c; do d; done > i", (), ("f", "g", "h", "i")),
    ("f() { a; } > g", (), ("g",)),
    ("a > /dev/null 2> /dev/stderr", (), ()),
    ("a > $x", (), ("",)),
    ("a > *.txt", (), ("",)),
    ("a > x{1,2}", (), ("",)),
    ("a > ~/x", (), ("~/x",)),
    ("a > '~/x'", (), ("./~/x",)),
    ("a > ~b/x", (), ("",)),
    ("cd d && a > f", (), ("",)),
    ("cd d && a > /f", (), ("/f",)),
    ("a | tee -a f g", (), ("f", "g")),
    ('tee "$x"', (), ("",)),
    ("a > f b", (), ("f",)),
    ("cat <<X > f\nx\nX\n", (), ("f",)),
    ("x=$(< f)", ("f",), ()),
    ("bash -c 'a > f'", (), ("f",)),
    ("echo 'a > f'", (), ()),
]


@pytest.mark.parametrize(("command", "reads", "writes"), CASES)
def test_redirect_targets(command: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
    script = analyse(command)
    assert (script.reads, script.writes) == (reads, writes)


OPERANDS = [
    ("cat a < b", ("b", "a"), (), ()),
    ("cp a b c", ("a", "b"), (), ("c", "c/a", "c/b")),
    ("cat $x a*", (), (), ()),
    ("cd d; cat a", ("a",), (), ()),
    ("cd d; sed -i p a", ("a",), ("",), ()),
    ("rm -f '~/x' ~/y", (), (), ("./~/x", "~/y")),
    ("uv run tee a", (), (), ("a",)),
    ("wget http://h/a/b.tgz http://h", (), ("b.tgz", "index.html"), ()),
    ('wget "$x"', (), ("",), ()),
]


@pytest.mark.parametrize(("command", "reads", "writes", "guesses"), OPERANDS)
def test_files_in_arguments(
    command: str, reads: tuple[str, ...], writes: tuple[str, ...], guesses: tuple[str, ...]
) -> None:
    script = analyse(command)
    assert (script.reads, script.writes, script.guesses) == (reads, writes, guesses)


def test_only_redirects_are_sources() -> None:
    assert analyse("cat a < b").sources == ("b",)


def test_paths_of_a_command_are_its_literal_redirects() -> None:
    assert paths_of("Bash", {"command": "a < in > out 2> $x"}) == ("out", "in")
    assert paths_of("Bash", {"command": 7}) == ()


def test_deny_rules_see_the_targets_of_what_cannot_be_parsed() -> None:
    script = analyse("cat <> .env; ; a >secret")
    assert not script.legible
    assert ".env" in script.guesses
    assert {"", "secret"} <= set(script.writes)
