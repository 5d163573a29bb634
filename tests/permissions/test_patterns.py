import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.permissions.rules import Glob, command_pattern, host_pattern


@pytest.mark.parametrize(
    ("pattern", "command", "matches"),
    [
        ("npm run *", "npm run test", True),
        ("npm run *", "npm run", True),
        ("npm run *", "npm runx", False),
        ("npm run:*", "npm run test", True),
        ("npm run:*", "npm run", True),
        ("npm run:*", "npm runx", False),
        ("ls*", "lsof", True),
        ("ls*", "ls", True),
        ("ls", "ls -l", False),
        ("ls", "ls", True),
        ("ls", "LS", False),
        ("* --version", "node --version", True),
        ("* --version", "node --version x", False),
        ("git * main", "git push origin main", True),
        ("git * main", "git main", False),
        ("git * push *", "git -C x push", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a**a", "aba", True),
        ("**", "anything at all", True),
        ("ls ?", "ls a", False),
        ("ls [ab]", "ls [ab]", True),
    ],
)
def test_a_star_matches_any_characters_and_a_last_word_of_it_is_optional(pattern, command, matches):
    assert command_pattern(pattern).matches(command) is matches


@pytest.mark.parametrize("pattern", [":*", " *", "* *", " ls", "ls ", "git:* push", "a:*:*"])
def test_a_pattern_that_matches_nothing_or_everything_by_mistake_is_refused(pattern):
    with pytest.raises(ValueError, match=r"."):
        command_pattern(pattern)


@pytest.mark.slow
@given(st.text("ab*", max_size=8), st.text("ab\n", max_size=12))
def test_a_glob_matches_as_the_regular_expression_that_it_stands_for(pattern, text):
    expected = re.fullmatch(pattern.replace("*", ".*"), text.replace("**", "*"), re.DOTALL)
    glob = Glob(tuple(re.split(r"\*+", pattern)))
    assert glob.matches(text) is (expected is not None)


@pytest.mark.parametrize(
    "host", ["", "a b", "https://a", "a/b", "a:80", "münchen.de", "a*b", "*.", "@a"]
)
def test_an_invalid_host_is_refused(host):
    with pytest.raises(ValueError, match=r"."):
        host_pattern(f"domain:{host}")
