"""The files that a script reads and writes by redirects."""

from __future__ import annotations

import pytest

from runner.permissions.accesses import paths_of
from runner.permissions.shell import analyse

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
    ("cd d && a > f", (), ("d/f",)),
    ("cd d && a | tee f | b", (), ("d/f",)),
    ("(cd d && a > ../f)", (), ("d/../f",)),
    ("cd /d && a < f", ("/d/f", "f"), ()),
    ("(cd d && a) && b > f", (), ("",)),
    ("cd d && a > f || b", (), ("",)),
    ("cd d && cd e && a > f", (), ("",)),
    ("cd d && cd $x && a > f", (), ("",)),
    ("cd d && popd && a > f", (), ("",)),
    ("cd -- d && a > f", (), ("",)),
    ("cd d & a > f", (), ("",)),
    ("cd d && a > /f", (), ("/f",)),
    ("a > f; cd d; b > g", (), ("f", "")),
    ("a > f && cd d && b > g", (), ("", "f")),
    ("a < f; cd d; b < g", ("f", "", "g", "d/g"), ()),
    ("cd d > f; cd e 2> g", (), ("f", "")),
    ("{ cd d; a; } > f", (), ("f",)),
    ("(cd d; a > g) > f", (), ("f", "")),
    ("if cd d; then a > g; fi > f", (), ("f", "")),
    ("for i in 1 2; do a > g; cd d; done > f", (), ("f", "")),
    ("while a; do for i in 1 2; do b; done > f; cd d; done", (), ("",)),
    ("f() { a > f; }; f; cd d", (), ("",)),
    ("f() { a; } > f; cd d; f", (), ("",)),
    ("a > f; f() { cd d; }", (), ("f",)),
    ("trap 'a > f' EXIT; cd d", (), ("",)),
    ("a | tee f; cd d; tee g", (), ("f", "")),
    ("a | b > f; cd d", (), ("f",)),
    ("cd d <<E && a > f\nE\n", (), ("",)),
    ("eval 'a > f; cd d; b > g'; c > h", (), ("f", "")),
    ("eval 'cd d' > f", (), ("f",)),
    ("a > >(b)", (), ()),
    ("cd d && a > f; b", (), ("d/f",)),
    ("cd d && a > f; b > g", (), ("d/f", "")),
    ("cd d && a > f; cd e; b", (), ("",)),
    ("x; cd d && a > f && b > g", (), ("d/g", "d/f")),
    ("cd d && a > f || b > g; c", (), ("",)),
    ("cd d && a > f & b > g", (), ("d/f", "")),
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
    ("cd d; cat a", ("a", "d/a"), (), ()),
    ("cd d; cd /e; cd $x; rm a", (), (), ("a", "d/a", "/e/a")),
    ("cd d; cd e; cat /a ~/b", ("/a", "~/b"), (), ()),
    ("cd d; sed -i p a", ("a", "d/a"), ("",), ()),
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
    assert not script.complete
    assert ".env" in script.guesses
    assert {"", "secret"} <= set(script.writes)


def test_a_relative_target_after_a_cd_is_still_looked_at_as_if_the_cd_had_failed() -> None:
    script = analyse("cd d; a > f; b > /g > $x")
    assert (script.writes, script.after_cd) == (("", "/g"), ("f", "d/f"))
    assert analyse("a > f; cd d").after_cd == ()


ANYWHERE = [
    ("a > f; cd d", False, False),
    ("cd d; a > f", False, True),
    ("a > $x", False, True),
    ("a < $x", True, False),
    ("cd d; a < f > /g", True, False),
    ("curl -OJ http://h/x", False, True),
    ("mapfile -t v < <(ls); a > >(b)", False, False),
    ("$cmd x > f", False, False),
    ("eval $x 2>&1", False, False),
    ('bash -c "a > $x"', False, True),
    ('bash -c "a < $x"', True, False),
    ("; a >f''g", False, True),
    ("; a 2>&1", False, False),
]


@pytest.mark.parametrize(("command", "reads", "writes"), ANYWHERE)
def test_a_target_known_only_at_run_time_may_be_any_file(
    command: str, reads: bool, writes: bool
) -> None:
    script = analyse(command)
    assert (script.reads_anywhere, script.writes_anywhere) == (reads, writes)
