"""Lines of an attacker are not allowed, and everyday lines beside the same denials are. ``attacks.toml``
has them, one a line; ``⏎`` stands for a line break.

The rules allow the group's programs with any arguments, and if it has some, the one that a line begins
with.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from runner.permissions import Request, Rule, ToolContext
from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Policy, evaluate
from tests.permissions.test_corpus import HOME, OF_EACH_PROCESS, OUTPUTS, WORKSPACE, place_of

GROUPS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8"))


def decide(command: str, group: dict[str, Any]) -> str:
    programs = group["programs"].split()
    programs += [word for word in command.split() if "=" not in word][:1] if programs else []
    texts = dict.fromkeys([*group["allow"], *(f"Bash({program} *)" for program in programs)])
    rules = [*(Rule("allow", text) for text in texts), *(Rule("deny", t) for t in group["deny"])]
    arguments = {"command": command}
    places = {path: place_of(path, {}, tilde=True) for path in paths_of("Bash", arguments)}
    places = {p: at for p, at in places.items() if not f"{at.real}/".startswith(OF_EACH_PROCESS)}
    context = ToolContext(WORKSPACE, OUTPUTS, HOME, places)
    return evaluate(Policy(tuple(rules), "ask"), Request("Bash", arguments, context)).effect


@pytest.mark.parametrize("about", GROUPS)
def test_lines_are_allowed_only_where_they_do_no_harm(about: str) -> None:
    group = GROUPS[about]
    lines = [line.replace("⏎", "\n") for line in group["lines"].splitlines() if line]
    assert len(lines) == len(set(lines)) >= 100
    wanted = group["expect"] == "allow"
    assert [line for line in lines if (decide(line, group) == "allow") != wanted] == []


SPELLINGS = ["./.env", '".env"', ".e''nv", "$PWD/.env", '"${PWD}/.env"', "src/../.env", "$'.env'"]
BARE = re.compile(r"(?<= )\.env(?= |\Z)")
AROUND = [
    "({})",
    "if true; then {}; fi",
    "true && {}",
    "{} | head -5",
    'echo "$({})"',
    "f() {{ {}; }}; f",
]


@pytest.mark.parametrize(
    "every", [pytest.param(100, id="sample"), pytest.param(4, id="many", marks=pytest.mark.slow)]
)
def test_a_refused_line_stays_refused_in_other_words(every: int) -> None:
    wrong = []
    for group in GROUPS.values():
        lines = [line for line in group["lines"].splitlines() if line and "⏎" not in line]
        for line in lines[::every] if group["expect"] != "allow" else ():
            first = next(word for word in line.split() if "=" not in word)
            known = group | {"allow": [*group["allow"], f"Bash({first} *)"]}
            simple = not re.search(r"<<|#|^\(|\\$", line)
            others = [way.format(line) for way in AROUND] if simple and group["programs"] else []
            if not re.search("['\"]", line) and BARE.search(line):
                others += [BARE.sub(way.replace("\\", ""), line) for way in SPELLINGS]
            wrong += [other for other in others if decide(other, known) == "allow"]
    assert wrong == []
