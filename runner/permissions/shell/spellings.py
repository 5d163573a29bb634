"""Other ways to write a command, for deny and ask rules: a rule that names a subcommand also means the
command that has options before it, in another order or by another name.

More forms only deny and ask more. Which options take a value is not known of most programs, so both
readings count: ``kubectl -n prod delete`` is also ``kubectl prod delete`` and ``kubectl delete``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, permutations

from runner.permissions.shell import programs
from runner.permissions.shell.words import Word

_SIGNS = ("-", "+")
_MOST = 48  # forms of one command
_DEEPEST = 3  # subcommands below one another
_MOST_LETTERS = 4
_MOST_HOISTED = 8
# Short options of git's subcommands and their long names.
_LONG = {
    **{name: {"-d": "--delete", "-D": "--delete"} for name in ("branch", "tag", "push")},
    "commit": {"-n": "--no-verify"},
}
_SHORT = re.compile("-[A-Za-z]+")
_BRANCHES = re.compile(r"-[bBtdl]|--(?:orphan|track|detach)(?:=.*)?")
_CHECKOUT_VALUED = frozenset(["-b", "-B", "--orphan", "--conflict"])


def spellings(values: Sequence[str]) -> Iterator[list[str]]:
    """Yield the command ``values`` (a program's name and its arguments) in other words."""
    if len(values) < 2:
        return
    whole = list(values)
    if any(value[:1] in _SIGNS for value in whole):
        yield from islice(_shortened(whole[:1], whole[1:], _DEEPEST), _MOST)
        yield from islice(_hoisted(whole), _MOST)
    if values[0] in programs.BUILDERS:
        for at, value in enumerate(whole[2:], 2):
            if not is_option(value):
                yield [whole[0], value, *whole[1:at], *whole[at + 1 :]]
    for at in starts(whole[1:]) if values[0] in programs.OTHER_NAMES else ():
        for many in (1, 2):
            name = " ".join(whole[1 + at : 1 + at + many])
            for other, same in programs.OTHER_NAMES[values[0]]:
                if name == other:
                    renamed = [values[0], same, *whole[1 + at + many :]]
                    yield renamed
                    yield from islice(_hoisted(renamed), _MOST)
    if values[0] == "git":
        for at in starts(whole[1:]):
            yield from _git_spellings(["git", *whole[1 + at :]])
    elif values[0] in programs.BUNDLED:
        yield from _bundled(whole)


def starts(values: Sequence[str]) -> list[int]:
    """Return where the first word that is neither an option nor the value of one may be. Of many the
    last ones are kept: the very last is it when every option takes a value."""
    found, row = [], 0
    for at, value in enumerate(values):
        row = 0 if is_option(value) else row + 1
        if row:
            found.append(at)
        if row == 2 or (row == 1 and at == 0):
            break
    return found if len(found) <= 8 else [*found[:5], *found[-3:]]


def is_option(value: str) -> bool:
    """True if the word begins like an option, or like a toolchain (``cargo +nightly``)."""
    return value[:1] in _SIGNS and value != "-"


def git_parts(arguments: Sequence[Word]) -> tuple[list[Sequence[Word]], Sequence[Word]]:
    """Return git's own options, each with its value if it takes one, and the words that start with the
    subcommand."""
    options, at = [], 0
    while at < len(arguments) and arguments[at].value.startswith("-"):
        taken = 2 if arguments[at].value in programs.GIT_GLOBAL_VALUED else 1
        options.append(arguments[at : at + taken])
        at += taken
    return options, arguments[at:]


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


def _hoisted(values: list[str]) -> Iterator[list[str]]:
    """Yield the command with each option in front, behind the program and behind its first operand, by
    each of its names: ``sed p -ni.bak x`` is ``sed -i p x``."""
    first = next((at for at, value in enumerate(values) if at and not is_option(value)), 0)
    end = first or len(values)
    operand, rest = values[end : end + 1], [*values[1:end], *values[end + 1 :]]
    own = rest[: first - 1] if first and programs.PASSES_ON.fullmatch(values[0]) else rest
    same = programs.SAME_OPTIONS.get(values[0], ())
    for at, value in enumerate(own):
        if value == "--":
            return
        if not is_option(value):
            continue
        letters = _SHORT.match(value)
        short = (
            [f"-{letter}" for letter in letters[0][1:]] if letters else [value.partition("=")[0]]
        )
        others = [*rest[:at], *rest[at + 1 :]]
        for option in dict.fromkeys((value, *short[:_MOST_LETTERS])):
            for name in (option, *_other_names(option, same)):
                yield [values[0], name, *operand, *others]
                yield [values[0], *operand, name, *others]


def _other_names(option: str, same: Collection[Sequence[str]]) -> Iterator[str]:
    for group in same:
        short = len(option) > 3 and option.startswith("--")
        if option in group or (short and any(name.startswith(option) for name in group)):
            yield from group


def _bundled(values: list[str]) -> Iterator[list[str]]:
    """Yield the short options in every order, in one word: ``rm -r -f`` as ``rm -rf``, ``rm -fr``."""
    letters: dict[str, None] = {}
    operands = []
    for value in values[1:]:
        if value.startswith("--"):
            short = (letter for long, letter in programs.LETTERS.items() if long.startswith(value))
            letters.update(dict.fromkeys(short if value != "--" else ()))
        elif is_option(value):
            letters.update(dict.fromkeys(value[1:].replace("R", "r")))
        else:
            operands.append(value)
    few = sorted(letters, key=lambda letter: "rf".index(letter) if letter in "rf" else 2)
    if values[0] in programs.CAPITAL_RECURSIVE:
        few = ["R" if letter == "r" else letter for letter in few]
    for count in range(1, min(len(few), _MOST_LETTERS - 1) + 1):
        for chosen in permutations(few[:_MOST_LETTERS], count):
            yield [values[0], f"-{''.join(chosen)}", *operands]


def _git_spellings(values: Sequence[str]) -> Iterator[list[str]]:
    """Yield a command of git with abbreviated options in full and bundled ones apart, with each option
    in front, with short options by their long names, and with the default that loses work spelled
    out: ``git checkout f`` is ``git checkout --overlay f`` (https://git-scm.com/docs/gitcli)."""
    head, rest = list(values[:2]), list(values[2:])
    if not rest:
        return
    plain = _plain(head[1], rest)
    if plain != rest:
        yield [*head, *plain]
    options = [at for at, value in enumerate(plain) if _is_git_option(value)][:_MOST_HOISTED]
    others = {at: [*plain[:at], *plain[at + 1 :]] for at in options}
    for at in options:
        if at:
            yield [*head, plain[at], *others[at]]
    long = {"-f": "--force"} | _LONG.get(head[1], {})
    for at in options:
        if plain[at] in long:
            yield [*head, long[plain[at]], *others[at]]
            yield [*head, *others[at], long[plain[at]]]
    given = set(plain)
    if head[1] == "branch" and given & {"-d", "--delete"} and given & {"-f", "--force"}:
        yield [*head, "-D", *plain]
    if head[1] == "push" and any(value.startswith("+") for value in plain):
        yield [*head, "--force", *plain]
    default = _default(head[1], plain)
    if default:
        yield [*head, default, *plain]


def _is_git_option(value: str) -> bool:
    return value.startswith("-") and value not in ("-", "--")


def _plain(name: str, rest: Sequence[str]) -> list[str]:
    """Return the arguments of a subcommand with long options in full and bundled letters apart."""
    valued, found = programs.GIT_VALUED.get(name, ""), list[str]()
    for at, value in enumerate(rest):
        if value == "--":
            return [*found, *rest[at:]]
        if value.startswith("--"):
            named, equals, given = value[2:].partition("=")
            meant = [option for option in programs.GIT_LONG if option.startswith(named)]
            full = [f"--{option}{equals}{given}" for option in meant]
            found += [value] if named in meant or not meant else full
        elif re.match(r"-[A-Za-z]{2}", value):
            for index, letter in enumerate(value[1:], 1):
                if not letter.isalpha():
                    found.append(value[index:])
                    break
                found.append(f"-{letter}")
                if letter in valued:
                    found += filter(None, [value[index + 1 :]])
                    break
        else:
            found.append(value)
    return found


def _default(name: str, rest: list[str]) -> str:
    """Return what ``git checkout`` or ``git reset`` does unless an option says otherwise; "" when that
    cannot lose anything: a new branch, a reset of the index."""
    if name == "reset":
        before = rest[: rest.index("--")] if "--" in rest else rest
        operand = next((value for value in before if not _is_git_option(value)), "HEAD")
        return "" if operand in ("HEAD", "@") else "--mixed"
    if name != "checkout" or any(_BRANCHES.fullmatch(value) for value in rest):
        return ""
    valued = False
    for value in rest:
        if not valued and not _is_git_option(value) and value not in ("-", "--"):
            return "--overlay"
        valued = value in _CHECKOUT_VALUED
    return ""
