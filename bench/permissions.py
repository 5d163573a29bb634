"""(f) Decisions a second: commands of 80 characters, none seen before, under 200 rules."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.stage.databases import Databases
from bench.tables import Table
from runner.permissions import Request, ResolvedPath, Rule, ToolContext
from runner.permissions.decisions import Policy, evaluate

LEAST = 2_000  # decisions a second
LENGTH = 80
PROGRAMS = [f"tool{number}" for number in range(60)]
SHAPES = {
    "one command": "{program} run --target build/{word} --level 3",
    "three in a row": "{program} lint && {program} test {word} | tee -a log; {program} pack",
    "a redirect": "{program} report --format json {word} 2>&1 > out.txt",
    "a loop": "for f in a b; do {program} check $f --name {word}; done",
    "hides what it runs": "{program} start && $RUN {word} --then `{program} stop`",
}


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Decisions a second for each shape of command, the shell parsed anew for each."""
    table = Table("permissions", "(f) decisions a second, under 200 rules")
    count = 500 if quick else 4_000
    policy = Policy(_rules())
    context = ToolContext("/w", places={"out.txt": ResolvedPath("/w/out.txt", "/w/out.txt")})
    decide(policy, [Request("Bash", {"command": "warm up"}, context)])
    for name, shape in SHAPES.items():
        requests = [Request("Bash", {"command": text}, context) for text in _commands(shape, count)]
        taken = _seconds(lambda asked=requests: decide(policy, asked))  # type: ignore[misc]
        rate = count / taken
        table.rows.append(
            {
                "command": name,
                "decisions": count,
                "us each": taken / count * 1e6,
                "a second": round(rate),
                "rate": f"{'ok' if rate >= LEAST else 'UNDER'} (>= {LEAST:,})",
            }
        )
    table.notes += [
        "seconds of processor time: nothing here waits",
        f"commands of {LENGTH} characters, each different: nothing that is kept of one helps another",
        "100 rules of allow, 50 of ask, 50 of deny; no deny rule matches, so that all are looked at",
    ]
    return [table]


def decide(policy: Policy, requests: Sequence[Request]) -> None:
    """Takes one decision after the other."""
    for request in requests:
        evaluate(policy, request)


def _rules() -> tuple[Rule, ...]:
    allow = [Rule("allow", f"Bash({program} *)") for program in PROGRAMS]
    allow += [Rule("allow", f"Bash(make * {number}:*)") for number in range(30)]
    allow += [Rule("allow", f"Edit(/*.txt{'?' * number})") for number in range(10)]
    ask = [Rule("ask", f"Bash(git * --option{number}*)") for number in range(50)]
    deny = [Rule("deny", f"Bash(danger{number} *)") for number in range(25)]
    deny += [Rule("deny", f"Bash(* --danger{number} *)") for number in range(15)]
    deny += [Rule("deny", f"Edit(/secret{number}/**)") for number in range(10)]
    return (*deny, *ask, *allow)


def _commands(shape: str, count: int) -> list[str]:
    chance = random.Random(3)
    found = []
    for number in range(count):
        word = f"{number:06d}"
        text = shape.format(program=chance.choice(PROGRAMS), word=word)
        found.append(text.replace(word, word + "x" * (LENGTH - len(text))))
    return found


def _seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
