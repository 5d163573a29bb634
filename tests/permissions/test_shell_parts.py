"""Which simple commands a script has, and what rules are tried on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.permissions.shell import analyse

PARTS = [
    ("a; b && c || d | e |& f & g\nh", ["a", "b", "c", "d", "e", "f", "g", "h"]),
    ("(a; b) && { c; d; }", ["a", "b", "c", "d"]),
    ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
    ("while a; do b; done; until c; do d; done", ["a", "b", "c", "d"]),
    ('for x in 1 $(a); do b "$x"; done', ["a", 'b "$x"']),
    ("case $x in y|z) a;; *) b;; esac", ["a", "b"]), ("! a", ["a"]),
    ("time a; time -p b; time (c; d)", ["a", "b", "c", "d"]), ("f() { a x; }; f y", ["a x"]),
    ("f y; f() { a x; }", ["f y", "a x"]), ("f() { a; }; unset -f f; f", ["a", "unset -f f", "f"]),
    ("f() { a; }; env f", ["a", "f"]),
    ("echo $(a) `b` <(c) >(d) \"$(e)\" \"`f`\" <<< $(g)", ["a", "b", "c", "d", "e", "f", "g", None]),
    ("x=$(a) y=(1 `b`)", ["a", "b"]), ("echo ${x:-$(a)}", ["a", None]),
    ("cat <<E\n$(a)\nE\n", ["a", "cat"]), ("cat <<'E'\n$(a) `b`\nE\n", ["cat"]),
    ("cat <<E | a\nx\nE\nb", ["a", "cat", "b"]), ("cat <<'E' > f && a\nx\nE\n", ["a", "cat"]),
    ("git commit -F - <<'E'\nx\nE\n", ["git commit -F -"]), ("r'm' \"-rf\" \\x", ["rm -rf x"]),
    ("echo 'a b'  c", ["echo 'a b' c"]), ("a \\\n  --b", ["a --b"]), ("a # b; c\nd", ["a", "d"]),
    ("NODE_ENV=x LC_ALL=C a", ["a"]), ("AWS_X=y a", ["AWS_X=y a"]),
    ("timeout -k 5 10s nice -n 3 nohup stdbuf -oL env CI=1 a b", ["a b"]),
    ("xargs -0 -n1 a b", ["a b …"]), ("command -v a", ["command -v a"]),
    ("bash -c 'a; b' && eval \"c d\" && trap 'e' EXIT", ["a", "b", "c d", "e"]),
    ("sh -c 'a && b'", ["a", "b"]), ("i=0; while [ $# -gt 1 ]; do i=$((i+1)); a; done", ["a"]),
    ('[[ $x == y* && -n "$z" || ! -f q ]] && a', ["a"]),
    ("while IFS= read -r l; do a; done < f", ["a"]), ("FOO=x; bar=2", ["FOO=x"]),
    ("while read l; do a $l; done < f", ["a $l", "read l"]),
    ("b; a <<X 2>&1 | rm y\nX", ["b", "rm y", "a"]),
    ("a ' <<E > x |'", ["a ' <<E > x |'"]), ("a 'x <<E\n\\d'", ["a 'x <<E\n\\d'"]),
    ('a "<<E\n\\\\"; b', [None, "b"]),
    ("a <<'X' > f 2>&1 | b\n\\c\nX\n", ["b", "a"]),
    ("/usr/bin/a x", ["/usr/bin/a x"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "texts"), PARTS)
def test_every_simple_command_is_a_part(command: str, texts: list[str | None]) -> None:
    script = analyse(command)
    assert script.unanalyzable == ""
    found = [part.text for part in script.parts]
    assert len(found) == len(texts)
    assert [text for text, want in zip(found, texts, strict=True) if want is not None] == [
        want for want in texts if want is not None
    ]


FORMS = [
    ("sudo -u x rm -rf y", "rm -rf y"),
    ("ssh host 'rm -rf y'", "rm -rf y"),
    ("su -c 'cd /; rm y'", "rm y"),
    ("/usr/bin/rm y", "rm y"),
    ("PATH=x rm y", "rm y"),
    ("PATH=x rm y", "PATH=x rm y"),
    ("timeout 5 rm y", "timeout 5 rm y"),
    ("timeout 5 rm y", "rm y"),
    ("timeout --new 5 rm y", "rm y"),
    ("find . -exec rm {} \\;", "rm {} ;"),
    ("git -C x --no-pager push -f", "git push -f"),
    ("git -c a=b push", "git push"),
    ("bash -c \"rm $x\"", "rm $x"),
    ("bash -c 'rm y'", "bash -c rm y"),
    ("r\u200bm y", "rm y"),
    ("ｒｍ y", "rm y"),
    ("r\\\nm y", "rm y"),
    ("ls ; ; rm y", "rm y"),
    ("if rm y; the", "rm y"),
    ("echo 'rm y", "rm y"),
    ("coproc rm y", "rm y"),
    ("env -S 'rm y'", "rm y"),
    ("x" * 21_000 + "\nrm y", "rm y"),
    ("rm() { :; }; rm y", "rm y"),
    ("$(echo rm) y", "echo rm"),
    ("cat <<X 2>&1 | rm y\nX\n", "rm y"),
    ("jobs -x rm y", "rm y"),
    ("kubectl -n a delete y", "kubectl delete y"),
    ("git branch -vD y", "git branch -D -v y"),
    ("git commit --amen", "git commit --amend"),
    ("git checkout y", "git checkout --overlay y"),
    ("git reset HEAD~1", "git reset --mixed HEAD~1"),
    ("rm -r -f y", "rm -rf y"),
    ("npx rm y", "rm y"),
    ("uv run bash -c 'rm y'", "rm y"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "form"), FORMS)
def test_deny_and_ask_rules_see_through(command: str, form: str) -> None:
    assert form in {seen for part in analyse(command).parts for seen in part.forms}


@pytest.mark.slow
@given(
    st.text(alphabet=st.sampled_from("a $(){}`'\"\\\n;&|<>#[]=!~*-\x00\ud800\u00a01E"), max_size=60)
)
def test_no_text_raises(command: str) -> None:
    script = analyse(command)
    assert script.complete or script.unanalyzable
    assert all(part.text in part.forms for part in script.parts)


PROGRAMS = """
git npm npx uv go curl wget sed awk tee sponge uniq xxd cat cp mv dd rm make cmake gcc clang++ jobs sudo
mise bundle direnv pytest just kubectl find tar xargs env timeout bash
"""
ARGUMENTS = """
- -- + -o -O -C -x -i -e -f -c -rf -qo/x -o= --output --output= --o=a --in-place --prefix=/x --force --am
checkout reset push run exec env install -- http://h/a h file://x @a a=@b if= of=x ~/x ~ '' "" "$x" $x *
a/b .. / {a,b} '-o x' -w -E -P 2>f >f 0 %1 a@b @ a@ HEAD
"""


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(PROGRAMS.split()), min_size=1, max_size=2),
    st.lists(st.sampled_from(ARGUMENTS.split()), max_size=6),
)
def test_no_arguments_of_a_known_program_raise(programs: list[str], arguments: list[str]) -> None:
    script = analyse(" ".join([*programs, *arguments]))
    assert all(part.text in part.forms for part in script.parts)
    assert "" not in script.guesses


@pytest.mark.slow
@given(st.text(max_size=40))
def test_no_character_raises(command: str) -> None:
    analyse(command)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "a" + " -b c" * 4_000,
        "a -b" + " -c -d e f" * 1_500,
        "git push" + " -f" * 5_000,
        "git branch " + "-" + "f" * 15_000,
        "sudo" + " -b c" * 4_000,
        "npx -a b " * 2_000,
        "uv run " * 2_500,
        "npx -a bash -c 'npx -a b' " * 500,
    ],
)
def test_the_forms_of_a_command_are_bounded(command: str) -> None:
    assert sum(len(part.forms) for part in analyse(command).parts) < 3_000


@pytest.mark.parametrize(
    "piece",
    ["$(", "(", "{ ", "bash -c '", "eval ", "env ", "`", "if ", "((", "<<E ", "! ", "${a:-"],
)
def test_deep_nesting_is_unanalyzable_and_raises_nothing(piece: str) -> None:
    assert analyse(piece * 2_000 + "rm").unanalyzable


STARTS = ["$", "${", "<<", "a=", "", "[[ ", "$(", "@(", "{", "<<-", "echo "]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "start"), [*enumerate(STARTS)])
def test_no_character_ends_the_process(number: int, start: str) -> None:
    """Every third of the characters that are tried, and every one behind three or four of the starts."""
    for code in range(0x80 + number % 3 * 0x1D3, 0x110000, 3 * 0x1D3):
        analyse(start + chr(code) + "1} x")
