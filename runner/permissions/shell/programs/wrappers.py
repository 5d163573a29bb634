"""Commands that run the command in their arguments, and where in the arguments it starts.

The options are those of GNU coreutils, util-linux and the bash manual; one that is not listed makes
the command hide what it runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runner.permissions.shell.words import Word, plain_word

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)
REST = Word("…", "…", exact=False, loose=True)  # stands for the arguments that xargs adds


@dataclass(frozen=True, slots=True)
class Grammar:
    """``flags`` take no value, ``valued`` one; ``operands`` words come before the command."""

    flags: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    operands: int = 0
    assigns: bool = False
    numbers: bool = False


def _grammar(
    flags: str = "",
    valued: str = "",
    operands: int = 0,
    assigns: bool = False,
    numbers: bool = False,
) -> Grammar:
    return Grammar(frozenset(flags.split()), frozenset(valued.split()), operands, assigns, numbers)


TRANSPARENT = {
    "timeout": _grammar(
        "-v --verbose -f --foreground -p --preserve-status", "-k --kill-after -s --signal", 1
    ),
    "time": _grammar("-p", assigns=True),
    "nice": _grammar("", "-n --adjustment", numbers=True),
    "nohup": _grammar(),
    "setsid": _grammar("-c -f -w --ctty --fork --wait"),
    "stdbuf": _grammar("", "-i -o -e --input --output --error"),
    "env": _grammar("- -i --ignore-environment -v --debug", "-u --unset", assigns=True),
    "command": _grammar("-p"),
    "builtin": _grammar(),
    "exec": _grammar("-c -l -cl -lc", "-a"),
    "ionice": _grammar("-t --ignore", "-c --class -n --classdata"),
    "chrt": _grammar("-b -f -i -o -r -v --batch --fifo --idle --other --rr", "", 1),
    "taskset": _grammar("", "", 1),
    "unbuffer": _grammar("-p"),
    "catchsegv": _grammar(),
    "jobs": _grammar("-x"),
    "xargs": _grammar(
        "-0 --null -r --no-run-if-empty -t --verbose -x --exit",
        "-n --max-args -P --max-procs -L --max-lines -I -d --delimiter -s --max-chars -E",
    ),
}

# They change who runs it, where or when, or start a program of their own: never seen through.
HIDING = frozenset(
    [
        "sudo",
        "sudoedit",
        "doas",
        "su",
        "ssh",
        "chroot",
        "flock",
        "parallel",
        "sem",
        "watch",
        "script",
        "busybox",
        "toybox",
        "entr",
        "strace",
        "ltrace",
        "unshare",
        "nsenter",
        "systemd-run",
        "runuser",
        "pkexec",
        "setpriv",
        "sg",
        "newgrp",
        "screen",
        "tmux",
        "at",
        "batch",
        "gdb",
        "lldb",
        "valgrind",
        "perf",
        "hyperfine",
        "rlwrap",
        "proot",
        "fakeroot",
        "fakechroot",
        "firejail",
        "bwrap",
        "start-stop-daemon",
        "setarch",
        "linux32",
        "linux64",
        "i386",
        "x86_64",
        "prlimit",
        "numactl",
        "choom",
        "cgexec",
        "chpst",
        "faketime",
        "expect",
        "dbus-run-session",
        "xvfb-run",
        "torsocks",
        "torify",
        "proxychains",
        "proxychains4",
        "run-parts",
        "scp",
        "sftp",
        "mosh",
        "ssh-agent",
        "dc",
        "m4",
        "dbus-launch",
        "telnet",
        "nc",
        "ncat",
        "socat",
        "netcat",
        "vi",
        "vim",
        "nvim",
        "view",
        "vimdiff",
        "rvim",
        "ex",
        "ed",
        "red",
        "emacs",
        "nano",
        "pico",
        "zsh",
        "ksh",
        "mksh",
        "fish",
        "csh",
        "tcsh",
        "rbash",
        "pwsh",
        "nu",
        "xonsh",
        "elvish",
        "rsh",
        "rexec",
        "crontab",
        "xterm",
        "daemonize",
        "nsjail",
        "capsh",
        "sshpass",
        "zargs",
        "gosu",
        "dtach",
        "abduco",
        "unbound-control",
        "ld.so",
        "ld-linux.so.2",
        "ld-linux-x86-64.so.2",
        "uconv",
        "chronic",
        "ifne",
        "env-update",
        "setuidgid",
        "softlimit",
        "envdir",
        "envuidgid",
        "pgrphack",
        "cpulimit",
        "trickle",
        "eatmydata",
        "nocache",
        "caffeinate",
        "ts",
        "unbuffer-x",
        "cset",
        "schedtool",
        "coreutils",
        "execlineb",
        "multirun",
        "dumb-init",
        "tini",
        "ip",
        "lxc-execute",
        "machinectl",
        "runcon",
        "logsave",
        "lftp",
        "pee",
        "lckdo",
        "setlock",
        "aa-exec",
        "authbind",
        "daemon",
        "nq",
        "tsp",
        "su-exec",
        "s6-setuidgid",
        "s6-setlock",
        "s6-envdir",
        "s6-softlimit",
        "s6-applyuidgid",
        "distcc",
        "ccache",
        "sccache",
        "icecc",
        "systemd-inhibit",
        "systemd-cat",
        "systemd-nspawn",
        "systemd-ask-password",
        "yash",
        "posh",
        "osh",
        "ysh",
        "sash",
        "lksh",
        "oksh",
        "hush",
        "rc",
        "es",
        "scsh",
        "ion",
        "murex",
        "nsh",
        "catatonit",
        "retry",
        "timelimit",
        "turbostat",
        "rr",
        "uftrace",
        "bpftrace",
        "tclsh",
        "wish",
        "zsh-static",
        "bash-static",
        "dbclient",
        "plink",
        "pdsh",
        "dsh",
        "clush",
        "ansible",
        "run0",
        "heaptrack",
        "reptyr",
        "incrond",
        "watchexec",
        "nodemon",
        "reflex",
        "when-changed",
        "xdotool",
        "xdg-open",
        "sensible-pager",
        "sensible-editor",
        "sensible-browser",
        "run-one",
        "run-this-one",
        "flatpak-spawn",
        "distrobox-enter",
        "minijail0",
        "pivot_root",
        "switch_root",
        "tini-static",
    ]
)


@dataclass(frozen=True, slots=True)
class Inner:
    """What a wrapper runs: nothing (``words`` empty), or ``words`` after setting ``assigned``.
    ``hides`` says why it cannot be known for sure."""

    words: tuple[Word, ...] = ()
    assigned: tuple[str, ...] = ()
    hides: str = ""


def unwrap(name: str, arguments: Sequence[Word]) -> Inner:
    """The command inside of the wrapper ``name``, which is one of TRANSPARENT."""
    grammar = TRANSPARENT[name]
    at, replaced, hides = 0, None, ""
    while at < len(arguments):
        word = arguments[at]
        if not word.exact:
            return Inner(hides=f"the arguments of {name} are not literal")
        if word.value == "--":
            at += 1
            break
        if not word.value.startswith("-") or (word.value == "-" and name != "env"):
            break
        taken = _option(grammar, word.value)
        if taken is None:
            return Inner(_guess(arguments, at), hides=f"{name} has an option that is not known")
        if word.value.startswith("-I"):
            replaced = word.value[2:] or (
                arguments[at + 1].value if at + 1 < len(arguments) else ""
            )
        if taken == 2 and at + 1 < len(arguments) and not arguments[at + 1].exact:
            hides = f"the arguments of {name} are not literal"
        at += taken
    assigned, at = _assigned(grammar, arguments, at)
    for operand in arguments[at : at + grammar.operands]:
        if not operand.exact:
            hides = f"the arguments of {name} are not literal"
    words = tuple(arguments[at + grammar.operands :])
    if name == "xargs":
        words = _fed(words or (plain_word("echo"),), replaced)
    return Inner(words, assigned, hides)


def _option(grammar: Grammar, text: str) -> int | None:
    """How many words the option takes, None when it is not known."""
    if text in grammar.flags:
        return 1
    if text in grammar.valued:
        return 2
    if text.startswith("--"):
        return 1 if text.partition("=")[0] in grammar.valued and "=" in text else None
    if grammar.numbers and re.fullmatch(r"-\d+|--\d+", text):
        return 1
    if text[:2] in grammar.valued:
        return 1
    every = all(f"-{letter}" in grammar.flags for letter in text[1:])
    return 1 if every and len(text) > 1 else None


def _assigned(grammar: Grammar, arguments: Sequence[Word], at: int) -> tuple[tuple[str, ...], int]:
    names = []
    while grammar.assigns and at < len(arguments):
        context = ASSIGNMENT.match(arguments[at].value)
        if context is None or arguments[at].loose:
            break
        names.append(context.group(1))
        at += 1
    return tuple(names), at


def _fed(words: tuple[Word, ...], replaced: str | None) -> tuple[Word, ...]:
    if replaced is None:
        return (*words, REST)
    if not replaced:
        return (REST,)
    return tuple(
        Word(w.source, w.value, exact=False, loose=True) if replaced in w.value else w
        for w in words
    )


def _guess(arguments: Sequence[Word], at: int) -> tuple[Word, ...]:
    """Where the command may start after an option that is not known: for deny and ask rules."""
    rest = [
        index for index in range(at, len(arguments)) if not arguments[index].value.startswith("-")
    ]
    return tuple(arguments[rest[0] :]) if rest else ()
