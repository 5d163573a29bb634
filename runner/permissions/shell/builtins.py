"""Bash's own commands that run text, or that evaluate what they are given
(https://www.gnu.org/software/bash/manual/bash.html#Shell-Builtin-Commands)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runner.permissions.shell.names import weight
from runner.permissions.shell.words import Word

_SHELLS = frozenset(("bash", "sh", "dash", "ash"))
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET = re.compile(r"[-+][euxvfnCbhmpET]*o?")
_SET_NAMES = frozenset(
    [
        "pipefail",
        "errexit",
        "nounset",
        "xtrace",
        "verbose",
        "noglob",
        "noclobber",
        "errtrace",
        "functrace",
    ]
)
_SHOPT = frozenset(
    [
        "nullglob",
        "failglob",
        "globstar",
        "dotglob",
        "nocaseglob",
        "nocasematch",
        "inherit_errexit",
        "lastpipe",
    ]
)
_NEVER = frozenset(
    [
        "let",
        "alias",
        "unalias",
        "bind",
        "complete",
        "compgen",
        "compopt",
        "hash",
        "fc",
        "suspend",
        "logout",
        "caller",
        "enable",
        "wait_for",
    ]
)
_SETS_NAMES = frozenset(
    (
        "read",
        "mapfile",
        "readarray",
        "getopts",
        "declare",
        "typeset",
        "local",
        "export",
        "readonly",
        "unset",
    )
)


@dataclass(frozen=True, slots=True)
class Text:
    """The script that a command runs, None when it is not literal. ``shell`` says who reads it:
    ``bash``, ``sh``, or ``here``, this very shell."""

    text: str | None
    shell: str = "here"
    hides: str = ""


def runs_text(program: str, arguments: Sequence[Word]) -> Text | None:
    """The script in the arguments, None for a command that runs none."""
    if program == "eval":
        values = [word.value for word in arguments]
        if all(word.exact for word in arguments):
            return Text(" ".join(values[1:] if values[:1] == ["--"] else values))
        return Text(None, hides="eval runs what is not literal")
    if program == "trap":
        return _trap(arguments)
    if program in ("source", "."):
        literal = bool(arguments) and arguments[0].exact and _names_file(arguments[0].value)
        return None if literal else Text(None, hides=f"{program} runs what is not literal")
    if program in _SHELLS:
        return _shell(program, arguments)
    return None


def _trap(arguments: Sequence[Word]) -> Text | None:
    words = list(arguments[1:] if arguments and arguments[0].value == "--" else arguments)
    if not words or (words[0].exact and words[0].value in ("-", "-l", "-p")):
        return None
    if not words[0].exact:
        return Text(None, hides="trap runs what is not literal")
    return Text(words[0].value)


def _shell(program: str, arguments: Sequence[Word]) -> Text | None:
    shell = "bash" if program == "bash" else "sh"
    unclear = Text(None, shell, f"{program} runs what its arguments or its input say")
    run_text, at = False, 0
    while at < len(arguments):
        word = arguments[at]
        if not word.exact:
            return unclear
        if word.value in ("--version", "--help"):
            return None
        if word.value in ("--", "-"):
            at += 1
            break
        if not word.value.startswith(("-", "+")):
            break
        if word.value in ("--norc", "--noprofile", "--login", "--posix"):
            at += 1
        elif re.fullmatch(r"[-+][ceuxvfnlCT]+o?", word.value):
            run_text = run_text or (word.value[0] == "-" and "c" in word.value)
            at += 2 if word.value.endswith("o") else 1
        elif re.fullmatch(r"[-+]o", word.value):
            at += 2
        else:
            return unclear
    if at >= len(arguments) or not arguments[at].exact:
        return unclear
    if run_text:
        return Text(arguments[at].value, shell)
    return None if _names_file(arguments[at].value) else unclear


def _names_file(path: str) -> bool:
    """A file that a rule can name, as it can any program, not what is piped in."""
    return not path.startswith(("-", "/dev/", "/proc/")) and "//" not in path and "/../" not in path


def names_set(program: str, arguments: Sequence[Word]) -> set[str]:
    """The variables that the builtin gives a value that is not known."""
    if program in _SETS_NAMES or program in ("printf", "wait"):
        names = (_IDENTIFIER.match(word.value) for word in arguments)
        return {name.group() for name in names if name}
    return set()


def builtin_hides(program: str, arguments: Sequence[Word]) -> str:
    """Why the builtin may run something that is not among its words; "" when it does not."""
    if program in _NEVER:
        return f"{program} changes or evaluates what the shell runs"
    values = [word.value for word in arguments]
    if program == "set":
        return _set(arguments)
    if program == "shopt":
        known = all(v in _SHOPT or v in ("-s", "-u", "-q", "-p") for v in values)
        return "" if known else "shopt changes how the shell reads commands"
    if program == "jobs":
        runs = any(not word.exact or re.match(r"-[a-z]*x", word.value) for word in arguments)
        return "jobs -x runs what its arguments say" if runs else ""
    if program in ("test", "["):
        return _test(arguments)
    if program in ("printf", "wait"):
        first = arguments[0] if arguments else None
        variable = first is not None and (first.loose or re.match(r"-[a-z]*[vp]", first.value))
        return f"{program} may set a variable that bash evaluates" if variable else ""
    if program in _SETS_NAMES:
        return _sets(program, arguments)
    return ""


def _set(arguments: Sequence[Word]) -> str:
    named = False
    for word in arguments:
        if named and word.exact and word.value in _SET_NAMES:
            named = False
        elif word.value == "--" and word.exact:
            return ""
        elif word.exact and _SET.fullmatch(word.value) and not named:
            named = word.value.endswith("o")
        else:
            return "set changes how the shell reads commands"
    return ""


def _test(arguments: Sequence[Word]) -> str:
    safe = all(not word.loose or word.source.startswith('"') for word in arguments)
    values = [word.value for word in arguments]
    if not safe or "-v" in values or "-R" in values or "-a" in values or "-o" in values:
        return "test may evaluate what a variable holds"
    if (
        len(arguments) in (2, 3)
        and arguments[0].loose
        and "=" not in values[1]
        and len(values) == 2
    ):
        return "test may evaluate what a variable holds"
    return ""


def _sets(program: str, arguments: Sequence[Word]) -> str:
    skip = False
    for word in arguments:
        if skip:
            skip = False
            continue
        if not word.exact:
            return f"{program} may evaluate what a variable holds"
        option = re.fullmatch(r"[-+]([A-Za-z]+)", word.value)
        if option:
            letters = option.group(1)
            if program in ("mapfile", "readarray") and "C" in letters:
                return f"{program} -C runs commands"
            if program in ("declare", "typeset", "local", "export", "readonly") and set(
                "inIuAfF"
            ) & set(letters):
                return f"{program} may evaluate what a variable holds"
            skip = (
                program in ("read", "mapfile", "readarray")
                and letters[-1] in "dnNptuiOcs"
                and letters[-1] not in "s"
            )
            continue
        if program == "getopts" and word is arguments[0]:
            continue
        if not _IDENTIFIER.fullmatch(word.value) or weight(word.value, exported=False) == "grave":
            return f"{program} may change what the shell runs"
    return ""
