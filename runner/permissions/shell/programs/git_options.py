"""Git's options in full, each by itself, for deny and ask rules (https://git-scm.com/docs/gitcli)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Git takes the start of a long option for it; of these the start is read as the whole.
_LONG = (
    "abort",
    "all",
    "amend",
    "delete",
    "discard-changes",
    "force",
    "force-create",
    "force-with-lease",
    "hard",
    "keep",
    "merge",
    "mirror",
    "mixed",
    "move",
    "no-verify",
    "pathspec-from-file",
    "prune",
    "rebase",
    "skip",
    "soft",
    "tags",
)
_VALUED = {  # letters that take the rest of their word for a value
    "commit": "mFCctuS",
    "tag": "mFun",
    "branch": "u",
    "merge": "mFXsS",
    "grep": "efOmABC",
    "log": "nLSG",
    "diff": "USGO",
    "clean": "e",
}
_NAMED = {"-f": "--force"}
_NAMED_DELETE = {"-d": "--delete", "-D": "--delete", **_NAMED}
_DELETES = frozenset(["branch", "tag", "push"])
_HOISTED = 8
_BRANCHES = re.compile(r"-[bBtdl]|--(?:orphan|track|detach)(?:=.*)?")
_CHECKOUT_VALUED = frozenset(["-b", "-B", "--orphan", "--conflict"])
_HERE = frozenset(["HEAD", "@"])


def git_spellings(values: Sequence[str]) -> Iterator[list[str]]:
    """The command ``git`` and its subcommand with abbreviated options in full and bundled ones apart,
    with each option in front, with short options by their long names, and with the default that
    loses work spelled out: ``git checkout f`` is ``git checkout --overlay f``."""
    head, rest = list(values[:2]), list(values[2:])
    if not rest:
        return
    plain = _plain(head[1], rest)
    if plain != rest:
        yield [*head, *plain]
    options = [at for at, value in enumerate(plain) if _is_option(value)]
    for at in options[:_HOISTED]:
        if at:
            yield [*head, plain[at], *plain[:at], *plain[at + 1 :]]
    names = _NAMED_DELETE if head[1] in _DELETES else _NAMED
    for at in options[:_HOISTED]:
        if plain[at] in names:
            yield [*head, names[plain[at]], *plain[:at], *plain[at + 1 :]]
    default = _default(head[1], plain)
    if default:
        yield [*head, default, *plain]


def _is_option(value: str) -> bool:
    return value.startswith("-") and value not in ("-", "--")


def _plain(name: str, rest: Sequence[str]) -> list[str]:
    valued, found = _VALUED.get(name, ""), list[str]()
    for at, value in enumerate(rest):
        if value == "--":
            return [*found, *rest[at:]]
        if value.startswith("--"):
            found += _in_full(value)
        elif re.fullmatch(r"-[A-Za-z]{2,}.*", value, re.DOTALL):
            found += _apart(value[1:], valued)
        else:
            found.append(value)
    return found


def _in_full(value: str) -> list[str]:
    named, equals, given = value[2:].partition("=")
    if named in _LONG:
        return [value]
    meant = [option for option in _LONG if option.startswith(named)]
    return [f"--{option}{equals}{given}" for option in meant] or [value]


def _apart(letters: str, valued: str) -> list[str]:
    found: list[str] = []
    for at, letter in enumerate(letters):
        if not letter.isalpha():
            return [*found, letters[at:]]
        found.append(f"-{letter}")
        if letter in valued:
            return [*found, *filter(None, [letters[at + 1 :]])]
    return found


def _default(name: str, rest: list[str]) -> str:
    """What ``git checkout`` and ``git reset`` do unless an option says otherwise; "" when that cannot
    lose anything: a new branch, a reset of the index."""
    if name == "reset":
        before = rest[: rest.index("--")] if "--" in rest else rest
        operand = next((value for value in before if not _is_option(value)), "HEAD")
        return "" if operand in _HERE else "--mixed"
    if name != "checkout" or any(_BRANCHES.fullmatch(value) for value in rest):
        return ""
    valued = False
    for value in rest:
        if not valued and not _is_option(value) and value not in ("-", "--"):
            return "--overlay"
        valued = value in _CHECKOUT_VALUED
    return ""
