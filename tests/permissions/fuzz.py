"""Looks for commands that the rules allow and that run something else: real bash is the judge.

Texts are made from pieces of shell and from the corpus. A text that was allowed must not run
``canary``, which no rule allows; an analyzable text that runs it must be caught by a denial of it;
a denial more never allows; nothing raises. Run as ``python -m tests.permissions.fuzz``; it
prints each finding and exits 1 when there was one.

Bash runs restricted (no redirect, no command by a path), with a folder of five programs for its PATH,
in a folder of its own, on texts without a slash.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from runner.permissions import Request, ResolvedPath, Rule, ToolContext
from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Policy, evaluate
from runner.permissions.shell import analyse

CORPUS = Path(__file__).parent / "corpus"
NAMES = """
echo ls cat true printf test [ : cd pwd xargs find declare export read unset let readonly mapfile local
getopts set shift type wait typeset
"""
ALLOWED = NAMES.split()
DENIED = Rule("deny", "Bash(canary *)")
PROGRAMS = ("ls", "cat", "xargs", "find", "env")
PIECES = """
echo ls cat true printf test [ ] [[ ]] : canary canary canary a b x=1 x=canary y= a[0]= -v -n -e --
$x ${x} ${x:- ${x@P} ${!x} $( $(canary) `canary` ` $(( )) (( <( >( ( ) { } ; & | && || |& ;; ;& !
# ' " \\ $' $" \\x63 ${ <<E <<'E' <<-E E <<< < > 2>&1 >&2 1>&- <& for while until if then else fi
do done in case esac function f() select coproc time eval command builtin exec trap local declare
export readonly unset let read alias source . xargs env find -exec {} + \\; 'a[$(canary)]' -eq =~ ==
~ * ? PATH=a PATH $((PATH=1)) PS4='$(canary)' -x -a -i '$(canary)' '($(canary))' "${z:-'$(canary)'}"
${z:=a ${z+ ${x# ${x/ {a,b} {canary,a} = += \u200b é $@ $* $# $? $$ ^ % , EXIT DEBUG -c -p
"""
WORDS = PIECES.split()
JOINTS = ("", " ", " ", " ", " ", "\n", ";", "\\\n", "  ", "\t", "\r", "\u00a0")


def commands_of_corpus() -> list[str]:
    """The short commands of the corpus; ``canary`` stands for the ones that run what they must not."""
    found = []
    for file in sorted(CORPUS.glob("*.toml")):
        for group in tomllib.loads(file.read_text(encoding="utf-8"))["group"]:
            found += [
                case["bash"] for case in group["cases"] if len(case.get("bash", "a" * 999)) < 300
            ]
    return [text.replace("id", "canary").replace("curl", "canary") for text in found]


def make(dice: random.Random, seeds: Sequence[str]) -> str:
    """One text: pieces put together, or commands of the corpus that were changed."""
    kind = dice.random()
    if kind < 0.3:
        few = "".join(dice.choice(WORDS) + dice.choice(JOINTS) for _ in range(dice.randint(1, 4)))
        return f"{dice.choice(ALLOWED)} {few}"
    if kind < 0.55:
        count = dice.randint(1, 14)
        return "".join(dice.choice(WORDS) + dice.choice(JOINTS) for _ in range(count))
    text = dice.choice(seeds)
    if dice.random() < 0.4:
        text += dice.choice(JOINTS) + dice.choice(seeds)
    for _ in range(dice.randint(0, 4)):
        at, end = sorted(dice.choices(range(len(text) + 1), k=2))
        match dice.randint(0, 3):
            case 0:
                text = text[:at] + dice.choice(WORDS) + text[at:]
            case 1:
                text = text[:at] + text[at + dice.randint(1, 3) :]
            case 2:
                text = text[:end] + text[at:end][:40] + text[end:]
            case _:
                text = text[:at] + dice.choice(WORDS) + text[at + 1 :]
    return text


def decide(text: str, rules: Sequence[Rule]) -> str:
    """The effect that the rules have on a command."""
    context = ToolContext("/ws", "/out", "/home/dev")
    places = {
        path: ResolvedPath(f"/ws/{path}", f"/ws/{path}")
        for path in paths_of("Bash", {"command": text})
    }
    context = ToolContext("/ws", "/out", "/home/dev", places)
    return evaluate(Policy(tuple(rules)), Request("Bash", {"command": text}, context)).effect


class Judge:
    """Real bash in a folder of its own: says whether a text runs ``canary``."""

    def __init__(self, folder: Path) -> None:
        self._programs, self._ran = folder / "bin", folder / "ran"
        self._place = folder / "place"
        self._programs.mkdir()
        self._place.mkdir()
        for name in PROGRAMS:
            (self._programs / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
        canary = self._programs / "canary"
        canary.write_text(f"#!/bin/sh\n: > {self._ran}\n")
        canary.chmod(0o755)

    def runs_canary(self, text: str) -> bool:
        """Whether it does; False for a text that would not be safe to try."""
        if any(
            word in text
            for word in ("/", "\0", "kill", "BASH", "()", "function", "delete", "history")
        ):
            return False
        self._ran.unlink(missing_ok=True)
        bash = subprocess.Popen(
            ["/bin/bash", "-r", "-c", text],
            cwd=self._place,
            env={"PATH": str(self._programs), "x": "canary"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):  # what a loop runs is known by then
            bash.wait(1)
        with contextlib.suppress(ProcessLookupError):  # all of it ended by itself
            os.killpg(bash.pid, signal.SIGKILL)
        bash.wait()
        return self._ran.exists()


def look(text: str, judge: Judge) -> str:
    """What is wrong with the decisions on a text, "" when nothing is."""
    commands = (Rule("allow", f"Bash({name} *)") for name in ALLOWED)
    allows = (*commands, Rule("allow", "Edit(/**)"))
    try:
        plain, barred = decide(text, allows), decide(text, (*allows, DENIED))
        caught = decide(text, (Rule("allow", "Bash"), DENIED)) == "deny"
        unanalyzable = analyse(text).unanalyzable
    except Exception as error:  # whatever is raised is the finding
        return f"raised {error!r}"
    if barred == "allow" != plain:
        return "a denial more allowed it"
    if plain == "allow" and judge.runs_canary(text):
        return "allowed, and it runs canary"
    if not caught and not unanalyzable and "canary" in text and judge.runs_canary(text):
        return "runs canary, and its denial did not catch it"
    return ""


def asked_for() -> tuple[float, int]:
    """Return the options of the command line: for how many seconds, and the seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    return options.seconds, options.seed


def main() -> int:
    """Fuzzes for the given time; prints every finding as a Python string."""
    seconds, seed = asked_for()
    dice, seeds = random.Random(seed), commands_of_corpus()
    end, tried, findings = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder))
        while time.monotonic() < end:
            text = make(dice, seeds)
            tried += 1
            if wrong := look(text, judge):
                findings += 1
                print(f"{wrong}: {text!r}", flush=True)
    print(f"{tried} texts, {findings} findings (seed {seed})", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
