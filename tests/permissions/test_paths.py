import pytest

from runner.permissions import ResolvedPath, ToolContext
from runner.permissions.paths import path_pattern

SETTING = ToolContext("/w", "/out", "/home/me")


def covers(pattern, path, *, folder=False, context=SETTING):
    return path_pattern(pattern).covers(ResolvedPath(path, path), context, folder=folder)


def catches(pattern, path, context=SETTING):
    return path_pattern(pattern).catches((path,), context) is not None


@pytest.mark.parametrize(
    ("pattern", "path", "covered"),
    [
        ("src/**", "/w/src/a/b", True),
        ("src/**", "/w/src", False),
        ("src/**", "/w/lib/src/a", False),
        ("src/**", "/src/a", False),
        ("src", "/w/lib/src/a", True),
        ("src", "/w/src", True),
        ("src/", "/w/src", False),
        ("src/", "/w/lib/src/a", True),
        ("/src", "/w/src/a", True),
        ("/src", "/w/lib/src/a", False),
        ("./src", "/w/src/a", True),
        ("./src", "/w/lib/src", False),
        ("*.env", "/w/a/b/.env", True),
        ("*.env", "/x/.env", False),
        ("/docs/*.md", "/w/docs/a.md", True),
        ("/docs/*.md", "/w/docs/a/b.md", False),
        ("/docs/**/*.md", "/w/docs/b.md", True),
        ("/docs/**/*.md", "/w/docs/x/y/b.md", True),
        ("/docs/**/x", "/w/docsx", False),
        ("//etc/**", "/etc/passwd", True),
        ("//etc/**", "/w/etc/passwd", False),
        ("//**", "/anything", True),
        ("//", "/anything", True),
        ("~/notes/*", "/home/me/notes/a", True),
        ("~/notes/*", "/w/notes/a", False),
        ("~", "/home/me/a", True),
        ("**", "/w/a", True),
        ("**", "/w", True),
        ("**", "/w2/a", False),
        (".", "/w/a/b", True),
        ("a?c", "/w/abc", True),
        ("[a-c]x", "/w/bx", True),
        ("a[!b]c", "/w/axc", True),
        ("/a[!b]c", "/w/a/c", False),
        ("/a[.-9]c", "/w/a/c", False),
        ("[[]x", "/w/[x", True),
        ("\\*", "/w/*", True),
        ("\\*", "/w/a", False),
        ("#a", "/w/#a", True),
        ("a", "/w/a\n", False),
        (".env", "/w/a\nb/.env", True),
        ("a*", "/w/a\nb", True),
        ("A", "/w/a", False),
        ("é", "/w/e\u0301", False),
        ("*a*b*c*d*", "/w/xaxbxcxdx", True),
        ("*a*a", "/w/a", False),
        ("*ab", "/w/aab", True),
    ],
)
def test_a_pattern_covers_what_gitignore_says_below_its_anchor(pattern, path, covered):
    assert covers(pattern, path) is covered


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (".env", "/w/.ENV"),
        (".env", "/W/.env"),
        ("café", "/w/cafe\u0301"),
        ("straße", "/w/STRASSE"),
        (".git", "/w/.g\u200cit/hooks"),
        ("src/", "/w/src"),
        ("src/**", "/w/src"),
        ("[A-Z]x", "/w/qx"),
        ("a", "/w/" + "b" * 300),
        ("a", "/w" + "/b" * 3000),
    ],
)
def test_a_denial_holds_for_every_spelling_a_file_system_may_take_for_the_same(pattern, path):
    assert catches(pattern, path)
    assert not covers(pattern, path)


def test_a_denial_holds_at_any_depth_when_its_anchor_is_not_known():
    assert catches("~/.ssh/**", "/root/.ssh/id", ToolContext("/w"))
    assert catches("src/a", "/x/y/src/a", ToolContext())
    assert not covers("~/.ssh/**", "/root/.ssh/id", context=ToolContext("/w"))
    assert not covers("**", "/x", context=ToolContext())


def test_a_folder_is_searched_where_what_is_in_it_is_covered():
    assert covers("src/**", "/w/src", folder=True)
    assert covers("src/", "/w/src", folder=True)
    assert not covers("src/*.py", "/w/src", folder=True)


@pytest.mark.parametrize(
    "pattern",
    ["!a", "../a", "/a/../b", "~you/a", " a", "a ", "a//b", "a[b", "a\\", "[[:alpha:]]", "[z-a]"],
)
def test_a_pattern_that_would_not_mean_what_it_says_is_refused(pattern):
    with pytest.raises(ValueError, match=r"."):
        path_pattern(pattern)


def test_a_pattern_full_of_wildcards_looks_at_each_name_once():
    steps = path_pattern("**/a/**/a/**/*a*a*a*a*a*b").exact
    looked = []

    class Watched:
        def __init__(self, name):
            self.name = name

        def search(self, part):
            looked.append(part)
            return self.name.search(part)

    names = tuple(None if name is None else Watched(name) for name in steps.names)
    path = "/".join(["a"] * 500 + ["a" * 255])
    assert not type(steps)(names, steps.inside).match(path, folder=True)
    assert len(looked) <= len(names) * 501


@pytest.mark.parametrize("pattern", ["**", "**/**", "**/**/**", "**/", "/**/**/**", "//**/**/**"])
def test_any_number_of_stars_covers_everything(pattern):
    assert covers(pattern, "/w/a/b")
    assert catches(pattern, "/w/a/b")
