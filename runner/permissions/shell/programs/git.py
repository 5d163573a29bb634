"""Where git runs what its arguments say (https://git-scm.com/docs)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner.permissions.shell.words import Word, risky_option

_GLOBAL = frozenset(
    [
        "--no-pager",
        "-P",
        "--no-optional-locks",
        "--version",
        "-v",
        "--help",
        "-h",
        "--literal-pathspecs",
        "--glob-pathspecs",
        "--noglob-pathspecs",
        "--icase-pathspecs",
        "--no-replace-objects",
        "--no-lazy-fetch",
    ]
)
_VALUED = frozenset(
    [
        "-C",
        "-c",
        "--git-dir",
        "--work-tree",
        "--namespace",
        "--exec-path",
        "--config-env",
        "--super-prefix",
        "--attr-source",
        "--list-cmds",
    ]
)
_RUNS = frozenset(
    [
        "difftool",
        "mergetool",
        "filter-branch",
        "filter-repo",
        "daemon",
        "instaweb",
        "web--browse",
        "send-email",
        "p4",
        "svn",
        "cvsserver",
        "credential",
        "credential-store",
        "credential-cache",
        "upload-pack",
        "receive-pack",
        "upload-archive",
        "hook",
        "for-each-repo",
        "maintenance",
        "gui",
        "citool",
        "gitk",
        "shell",
        "remote-ext",
        "remote-fd",
        "remote-http",
        "remote-https",
        "http-backend",
        "fast-import",
        "quiltimport",
        "imap-send",
        "cvsimport",
        "archimport",
        "scalar",
        "sh-setup",
        "merge-index",
        "merge-one-file",
        "sh-i18n",
    ]
)
# Parts of other commands (submodule--helper foreach, difftool--helper) and of transports.
_INTERNAL = re.compile(r".*--.*|remote-.*|credential-.*|mergetool-.*|gui-.*|citool-.*")
_OPTIONS = [
    "upload-pack",
    "receive-pack",
    "exec",
    "output",
    "ext-diff",
    "textconv",
    "open-files-in-pager",
    "template",
    "config",
    "extcmd",
    "filters",
    "exec-path",
    "output-directory",
    "config-env",
    "upload-archive",
    "strategy",
]
_LETTERS = {
    "rebase": "xis",
    "grep": "O",
    "clone": "uc",
    "ls-remote": "u",
    "archive": "o",
    "format-patch": "o",
    "am": "i",
    "merge": "s",
    "pull": "s",
}
# Of these no option runs anything, so what a variable or a glob becomes in them does not matter.
_HARMLESS = frozenset(
    [
        "add",
        "commit",
        "status",
        "checkout",
        "switch",
        "branch",
        "tag",
        "rm",
        "mv",
        "restore",
        "reset",
        "merge",
        "cherry-pick",
        "revert",
        "rev-parse",
        "worktree",
        "describe",
        "ls-files",
    ]
)
_TRANSPORT = re.compile(r"(?:ext|fd)::", re.IGNORECASE)


def subcommand(arguments: Sequence[Word]) -> int:
    """The index of git's subcommand; the number of arguments when there is none."""
    at = 0
    while at < len(arguments) and arguments[at].value.startswith("-"):
        at += 2 if arguments[at].value in _VALUED else 1
    return min(at, len(arguments))


def git_hides(arguments: Sequence[Word]) -> str:
    """Why git may run something that is not git; "" when it does not."""
    at = subcommand(arguments)
    for word in arguments[:at]:
        if word.value not in _GLOBAL:
            return f"git reads other configuration by {word.value}"
    if at == len(arguments):
        return ""
    if not arguments[at].exact:
        return "the subcommand of git is not literal"
    name, rest = arguments[at].value, arguments[at + 1 :]
    if name in _RUNS or _INTERNAL.fullmatch(name) or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        return f"git {name} can run any command"
    return _first_word(name, rest) or _option(name, rest)


def _first_word(name: str, rest: Sequence[Word]) -> str:
    first = rest[0].value if rest and rest[0].exact else ""
    values = [word.value for word in rest]
    if name == "bisect" and (
        not first or "run" in values or first == "visualize" or first == "view"
    ):
        return "git bisect can run any command"
    if name == "submodule" and ("foreach" in values or not all(word.exact for word in rest)):
        return "git submodule foreach runs any command"
    if name == "config" and not (
        first
        in ("get", "list", "--get", "--list", "-l", "--get-all", "--get-regexp", "--show-origin")
        and all(word.exact for word in rest)
        and not any(
            value.startswith(("--unset", "--add", "--replace", "-e", "--e")) for value in values
        )
    ):
        return "git config can make git run any command"
    return ""


def _option(name: str, rest: Sequence[Word]) -> str:
    options = tuple(_OPTIONS)
    message = False
    for word in rest:
        if message and not (word.loose and not word.source.startswith('"')):
            message = False
            continue
        if word.value == "--":
            return ""
        message = (
            name in ("commit", "tag", "merge")
            and re.fullmatch(r"-[a-z]*[mF]|--message|--file", word.value) is not None
        )
        if word.loose and name not in _HARMLESS:
            return f"git {name} gets arguments that are not literal"
        if risky_option(word.value, _LETTERS.get(name, ""), options):
            return f"git {name} runs or writes what {word.value.partition('=')[0]} says"
        if _TRANSPORT.search(word.value):
            return "git can run any command by such a URL"
    return ""
