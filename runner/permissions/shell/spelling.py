"""Other ways to write a command, for deny and ask rules: a rule that names a subcommand also means the
command that has options before it, in another order or by another name.

More forms only deny and ask more. Which options take a value is not known of most programs, so both
readings count: ``kubectl -n prod delete`` is also ``kubectl prod delete`` and ``kubectl delete``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations

from runner.permissions.shell.programs.git_options import git_spellings

_SIGNS = ("-", "+")
_MOST = 48  # forms of one command
_DEEPEST = 3  # subcommands below one another
_BUNDLED = frozenset(["rm", "rmdir", "cp", "mv", "ln", "chmod", "chown", "chgrp", "mkdir"])
_MOST_LETTERS = 4
_LETTERS = {"--recursive": "r", "--force": "f", "--verbose": "v", "--interactive": "i"}
_CAPITAL = frozenset(["chmod", "chown", "chgrp"])  # where -r is not --recursive


def spellings(values: Sequence[str]) -> Iterator[list[str]]:
    """The command ``values`` (a program's name and its arguments) in other words."""
    if len(values) < 2:
        return
    whole = list(values)
    if any(value[:1] in _SIGNS for value in whole):
        yield from islice(_shortened(whole[:1], whole[1:], _DEEPEST), _MOST)
    if values[0] == "git":
        for at in starts(whole[1:]):
            yield from git_spellings(["git", *whole[1 + at :]])
    elif values[0] in _BUNDLED:
        yield from _bundled(whole)


def starts(values: Sequence[str]) -> list[int]:
    """Where the first word that is neither an option nor the value of one may be. The last ones are
    kept when there are many: the very last is it when every option takes a value."""
    found, row = [], 0
    for at, value in enumerate(values):
        row = 0 if is_option(value) else row + 1
        if row:
            found.append(at)
        if row == 2 or (row == 1 and at == 0):
            break
    return found if len(found) <= 8 else [*found[:5], *found[-3:]]


def is_option(value: str) -> bool:
    """Does it begin like an option, or like a toolchain (``cargo +nightly``)?"""
    return value[:1] in _SIGNS and value != "-"


def _shortened(head: list[str], rest: list[str], deep: int) -> Iterator[list[str]]:
    if deep == 0 or not rest:
        return
    if not is_option(rest[0]):
        yield from _shortened([*head, rest[0]], rest[1:], deep - 1)
        return
    found = starts(rest)
    for at in found:
        yield [*head, *rest[at:]]
    for at in reversed(found):
        yield from _shortened([*head, rest[at]], rest[at + 1 :], deep - 1)


def _bundled(values: list[str]) -> Iterator[list[str]]:
    """The short options in every order, in one word: ``rm -r -f`` as ``rm -rf`` and ``rm -fr``."""
    letters: dict[str, None] = {}
    operands = []
    for value in values[1:]:
        if value.startswith("--"):
            short = (letter for long, letter in _LETTERS.items() if long.startswith(value))
            letters.update(dict.fromkeys(short if value != "--" else ()))
        elif is_option(value):
            letters.update(dict.fromkeys(value[1:].replace("R", "r")))
        else:
            operands.append(value)
    few = list(letters)
    few = [*(letter for letter in "rf" if letter in letters), *(c for c in few if c not in "rf")]
    if values[0] in _CAPITAL:
        few = ["R" if letter == "r" else letter for letter in few]
    for count in range(1, min(len(few), _MOST_LETTERS - 1) + 1):
        for chosen in permutations(few[:_MOST_LETTERS], count):
            yield [values[0], f"-{''.join(chosen)}", *operands]
