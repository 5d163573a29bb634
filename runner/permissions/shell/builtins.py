"""Bash's own commands that run text, or that evaluate what they are given, and the variables that
change what is run (https://www.gnu.org/software/bash/manual/bash.html#Shell-Builtin-Commands)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runner.permissions.shell.harmless import is_harmless
from runner.permissions.shell.words import Word, names

Risk = Literal["none", "low", "high"]

_HIGH_RISK = re.compile(
    r"PATH|(?:CD|F|MAN|INFO|LIBRARY_|GCONV_)PATH|LD_.*|DYLD_.*|IFS|BASH.*|ENV|PROMPT_COMMAND|PS[0-4]|"
    r"GIT_.*|PYTHON[A-OQ-Z].*|NODE_.*|NPM_.*|PERL.*|RUBY.*|GEM_.*|.*JAVA.*|JDK_.*|.*PAGER|.*EDITOR|"
    r"VISUAL|BROWSER|.*SHELL.*|HOME|.*TMP.*|TEMP|GLOBIGNORE|HIST.*|LESS.*|MAN.*|.*_PROXY|.*_proxy|"
    r"npm_.*|SSH_.*|GREP_.*|TAR_.*|RSYNC_.*|MAKE.*|CC|CXX|CPP|LD|AR|.*FLAGS|RUSTC.*|CARGO_.*|GO.*|"
    r"PIP_.*|UV_.*|DOCKER_.*|KUBECONFIG|AWS_CONFIG.*|AWS_SHARED.*|MAIL.*|OPT.*|POSIXLY_CORRECT|XDG_.*|"
    r"GCONV_.*|LOCALE_.*|LOCPATH|NLSPATH|TERMINFO.*|TERMCAP|COMP_.*|COMPREPLY|DIRSTACK|EUID|UID|FUNC.*|"
    r"EXECIGNORE|FIGNORE|INPUTRC|TIMEFORMAT|USER|LOGNAME|_|S?RANDOM|SECONDS"  # the last: bash calculates
)


# Names that scripts use for their own variables, and that no program reads.
_OWN = re.compile(
    r"[A-Z]|(?:(?:NEW|OLD|PREV|CURRENT|LAST|LATEST|FIRST|BASE|HEAD|TEST|TOTAL|MAX|MIN|CHANGED|BUILD|IMAGE|POD|DB|CLUSTER|NAMESPACE"
    r"|SERVICE|CONTAINER|OUT|OUTPUT|SRC|SOURCE|DATA|RESULT|PKG|JOB|ISSUE|TARGET|FAIL|PASS)_)?(?:VERSION|BRANCH|SHA|COMMIT|FILES?|COUNT|NAMES?|RESULTS?|OUTPUT|OUT|STATUS|TAGS?"
    r"|START|END|TOTAL|LINES?|NUM|MSG|RESPONSE|BODY|CODE|PID|ID|URL|DIFF|LOG|SIZE|DATE|NOW|HASH|MERGE_BASE|BASE_SHA|DIRS?"
    r"|PKGS?|PACKAGES?|MODULES?|TARGETS?|SRC|DEST|ROOT|REPO|IMAGE|PODS?|NS|PR|KEY|VARS?|VALUES?|TEXT|LIST|ITEMS?|TESTS?"
    r"|CHANGED|DATA|JSON|TITLE|LABEL|PATTERN|REF|BASE|HEAD|ISSUE|FAILED|FOUND|EXIT_CODE|IMG|FMT|MODE|POD|CONTAINER|SERVICE|NAMESPACE|CLUSTER|REGION|USERS?|QUERY|SQL|PORT|HOSTS?|WORD|EXPECTED|ACTUAL|PASS|FAIL|DAYS?|RC|RET|ERRORS?|RETRIES|ATTEMPTS?|MAX|INDEX|IDX)"
)


def variable_risk(name: str, exported: bool, value: Word | None = None, program: str = "") -> Risk:
    """Return how much setting a variable to ``value`` (None: unknown) matters: ``none`` needs no
    rule, ``low`` one that names the assignment, ``high`` one without ``*``. ``exported``: it
    reaches ``program``, or all that run from here on ("")."""
    if is_harmless(name, value, program):
        return "none"
    if _HIGH_RISK.fullmatch(name):
        return "high"
    own = (name.islower() or _OWN.fullmatch(name)) and not exported
    return "none" if own else "low"


_SHELLS = names("bash sh dash ash")
_SHELL_FLAGS = names("--norc --noprofile --login --posix")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET = re.compile(r"[-+][euxvfnCbhmpET]*o?")
_SET_NAMES = names("pipefail errexit nounset xtrace verbose noglob noclobber errtrace functrace")
_SHOPT = names("""
    nullglob failglob globstar nocaseglob nocasematch inherit_errexit lastpipe -s -u -q -p""")
_NEVER = names("""
    let alias unalias bind complete compgen compopt hash fc suspend logout caller enable wait_for""")
_READING = names("read mapfile readarray")
_DECLARING = names("declare typeset local export readonly")
_SETTING = _READING | _DECLARING | {"getopts", "unset"}


@dataclass(frozen=True, slots=True)
class Text:
    """A script in the arguments of a command."""

    text: str | None  # None when it is not literal
    shell: str = "here"  # who reads it: "bash", "sh", or "here", this very shell
    hides: str = ""  # why it is not known


# They look at the shell itself, or change what holds in it alone.
_OF_SHELL = names("true false shopt test wait shift return read jobs")
_OWN_JOBS = re.compile(r"(?:-(?:s ?)?(?:[A-Z]+|[0-9]+) )?(?:%[0-9%+-]?|\$!)(?: (?:%[0-9]|\$!))*")


def concerns_shell(program: str, arguments: Sequence[Word]) -> bool:
    """True for a builtin, one that hides nothing, which neither runs nor shows anything else."""
    if program in _OF_SHELL:
        return True
    values = [word.value for word in arguments]
    match program:
        case "command":
            return values[:1] == ["-v"]
        case "exec":  # it redirects
            return not values
        case "kill":
            return _OWN_JOBS.fullmatch(" ".join(values)) is not None
        case "set":  # without an option it shows variables, or gives the script arguments
            return bool(values) and all(
                (v[:1] in ("-", "+") and v != "--") or v in _SET_NAMES for v in values
            )
    return False


def runs_text(program: str, arguments: Sequence[Word]) -> Text | None:
    """Return the script in the arguments, None for a command that runs none."""
    if program in _SHELLS:
        return _shell(program, arguments)
    if program not in ("eval", "trap", "source", "."):
        return None
    not_literal = Text(None, hides=f"{program} runs what is not literal")
    if program in ("source", "."):
        literal = bool(arguments) and arguments[0].exact and _names_file(arguments[0].value)
        return None if literal else not_literal
    words = list(arguments[1:] if arguments and arguments[0].value == "--" else arguments)
    if program == "eval":
        literal = all(word.exact for word in arguments)
        return Text(" ".join(word.value for word in words)) if literal else not_literal
    if not words or (words[0].exact and words[0].value in ("-", "-l", "-p")):
        return None  # trap removes or lists its commands
    return Text(words[0].value) if words[0].exact else not_literal


def _shell(program: str, arguments: Sequence[Word]) -> Text | None:
    shell = "bash" if program == "bash" else "sh"
    unclear = Text(None, shell, f"{program} runs what its arguments or its input say")
    run_text, at = False, 0
    while at < len(arguments):
        word = arguments[at]
        if not word.exact:
            break
        if word.value in ("--version", "--help"):
            return None
        if word.value in ("--", "-"):
            at += 1
            break
        if not word.value.startswith(("-", "+")):
            break
        if word.value in _SHELL_FLAGS:
            at += 1
        elif re.fullmatch(r"[-+][ceuxvfnlCT]+o?|[-+]o", word.value):
            run_text = run_text or (word.value[0] == "-" and "c" in word.value)
            at += 2 if word.value.endswith("o") else 1
        else:
            return unclear
    only_reads = any(re.fullmatch(r"-[euxvf]*n", word.value) for word in arguments[:at])
    if only_reads and at < len(arguments) and not run_text and not arguments[at].loose:
        return None
    if at >= len(arguments) or not arguments[at].exact:
        return unclear
    if run_text:
        return Text(arguments[at].value, shell)
    return None if _names_file(arguments[at].value) else unclear


def _names_file(path: str) -> bool:
    """True for a file that a rule can name, as it can any program; False for what is piped in."""
    return not path.startswith(("-", "/dev/", "/proc/")) and "//" not in path and "/../" not in path


def names_set(program: str, arguments: Sequence[Word]) -> set[str]:
    """Return the variables that the builtin gives a value that is not known."""
    if program not in _SETTING and program not in ("printf", "wait"):
        return set()
    return {name[0] for word in arguments if (name := _IDENTIFIER.match(word.value))}


def builtin_hides(program: str, arguments: Sequence[Word]) -> str:
    """Return why the builtin may run something that is not among its words, "" if it does not."""
    if program in _NEVER:
        return f"{program} changes or evaluates what the shell runs"
    if program in _SETTING:
        return _sets(program, arguments)
    values = [word.value for word in arguments]
    match program:
        case "set":
            return _set(arguments)
        case "shopt" if not _SHOPT.issuperset(values):
            return "shopt changes how the shell reads commands"
        case "jobs":
            if any(not word.exact or re.match(r"-[a-z]*x", word.value) for word in arguments):
                return "jobs -x runs what its arguments say"
        case "test" | "[":
            safe = all(not word.loose or word.source.startswith('"') for word in arguments)
            operator = len(values) == 2 and arguments[0].loose and "=" not in values[1]
            if not safe or operator or not {"-v", "-R", "-a", "-o"}.isdisjoint(values):
                return "test may evaluate what a variable holds"
        case "printf" | "wait" if arguments:
            if arguments[0].loose or re.match(r"-[a-z]*[vp]", values[0]):
                return f"{program} may set a variable that bash evaluates"
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


def _sets(program: str, arguments: Sequence[Word]) -> str:
    evaluates = f"{program} may evaluate what a variable holds"
    skip = False
    for at, word in enumerate(arguments):
        if skip:
            skip = False
        elif not word.exact:
            return evaluates
        elif option := re.fullmatch(r"[-+]([A-Za-z]+)", word.value):
            if program in ("mapfile", "readarray") and "C" in option[1]:
                return f"{program} -C runs commands"
            if program in _DECLARING and set("inIuAfF") & set(option[1]):
                return evaluates
            skip = program in _READING and option[1][-1] in "dnNptuiOc"
        elif not (program == "getopts" and at == 0) and (
            not _IDENTIFIER.fullmatch(word.value)
            or variable_risk(word.value, exported=False) == "high"
        ):
            return f"{program} may change what the shell runs"
    return ""
