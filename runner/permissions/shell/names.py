"""Which variables a command may set without a say of the rules.

A program's environment decides what it loads and runs, so what is not known to be harmless is not.
"""

from __future__ import annotations

import re
from typing import Literal

Weight = Literal["harmless", "plain", "grave"]

_HARMLESS = frozenset(
    [
        "CI",
        "DEBUG",
        "NODE_ENV",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "RUST_BACKTRACE",
        "RUST_LOG",
        "PYTHONUNBUFFERED",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHASHSEED",
        "LOG_LEVEL",
        "VERBOSE",
        "CGO_ENABLED",
        "GOOS",
        "GOARCH",
    ]
)
_GRAVE = re.compile(
    r"PATH|(?:CD|F|MAN|INFO|LIBRARY_|GCONV_)PATH|LD_.*|DYLD_.*|IFS|BASH.*|ENV|PROMPT_COMMAND|PS[0-4]|GIT_.*|PYTHON[A-OQ-Z].*|NODE_.*|NPM_.*|"
    r"PERL.*|RUBY.*|GEM_.*|.*JAVA.*|JDK_.*|.*PAGER|.*EDITOR|VISUAL|BROWSER|.*SHELL.*|HOME|.*TMP.*|"
    r"TEMP|GLOBIGNORE|HIST.*|LESS.*|MAN.*|.*_PROXY|.*_proxy|npm_.*|SSH_.*|GREP_.*|TAR_.*|RSYNC_.*|"
    r"MAKE.*|CC|CXX|CPP|LD|AR|.*FLAGS|RUSTC.*|CARGO_.*|GO.*|PIP_.*|UV_.*|DOCKER_.*|KUBECONFIG|AWS_CONFIG.*|AWS_SHARED.*|"
    r"MAIL.*|OPT.*|POSIXLY_CORRECT|XDG_.*|GCONV_.*|LOCALE_.*|LOCPATH|NLSPATH|TERMINFO.*|TERMCAP|"
    r"COMP_.*|COMPREPLY|DIRSTACK|EUID|UID|FUNC.*|EXECIGNORE|FIGNORE|INPUTRC|TIMEFORMAT|USER|LOGNAME|_"
)


def weight(name: str, exported: bool) -> Weight:
    """How much setting the variable matters: ``harmless`` needs no rule, ``plain`` one that names
    the assignment, ``grave`` one without ``*`` too. An exported one reaches the programs that are run."""
    if name in _HARMLESS or re.fullmatch(r"LC_[A-Z]+", name):
        return "harmless"
    if _GRAVE.fullmatch(name):
        return "grave"
    return "harmless" if name.islower() and not exported else "plain"
