"""A pattern for a program does not allow arguments that run, write or read what a rule denies. It does
allow the everyday commands beside them. The lines are in ``programs/``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from runner.permissions import Request, Rule, ToolContext
from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Policy, evaluate
from tests.permissions.test_corpus import HOME, OUTPUTS, WORKSPACE, place_of

# Under these rules ``Bash(PROGRAM *)`` is allowed for every program of the command.
KEPT = (
    *(Rule("deny", f"Edit({path})") for path in (".git/**", ".env", "secrets/**")),
    *(Rule("deny", f"Read({path})") for path in (".env", "secrets/**", "~/.ssh/**")),
    Rule("deny", "Bash(git push *)"),
)
_FOLDER = Path(__file__).with_name("programs")
# By group: command lines.
ESCAPES, DENIED, EVERYDAY = (
    tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    for name in ("escapes", "denied", "everyday")
)


def decide(command: str, programs: str, rules: tuple[Rule, ...] = ()) -> str:
    allow = [Rule("allow", f"Bash({program} *)") for program in programs.split(",")]
    arguments = {"command": command}
    places = {path: place_of(path, {}, tilde=True) for path in paths_of("Bash", arguments) if path}
    policy = Policy((*allow, *rules), default="ask")
    context = ToolContext(WORKSPACE, OUTPUTS, HOME, places)
    return evaluate(policy, Request("Bash", arguments, context)).effect


def wrongly(commands: str, wanted: str, rules: tuple[Rule, ...] = ()) -> list[str]:
    """Return the commands, one a line, that are decided otherwise than ``wanted``. Every program named
    in a line is allowed with any arguments."""
    wrong = []
    for line in filter(None, map(str.strip, commands.splitlines())):
        programs = line.split()[0]
        programs = ",".join(
            {programs, "cp", "rm", "mv", "xargs", "find", "echo", "cd", "cat", "mkdir", "ln"}
        )
        found = decide(line, programs, rules)
        if (found == "allow") != (wanted == "allow"):
            wrong.append(f"{found}: {line}")
    return wrong


@pytest.mark.parametrize("commands", ESCAPES.values(), ids=ESCAPES)
def test_a_pattern_for_a_program_does_not_allow_what_its_arguments_run_or_write(
    commands: str,
) -> None:
    assert wrongly(commands, "refused") == []


@pytest.mark.parametrize("commands", DENIED.values(), ids=DENIED)
def test_a_denial_holds_whatever_argument_names_the_file(commands: str) -> None:
    assert wrongly(commands, "refused", KEPT) == []


@pytest.mark.parametrize("commands", EVERYDAY.values(), ids=EVERYDAY)
def test_an_everyday_command_stays_allowed_beside_denials(commands: str) -> None:
    assert wrongly(commands, "allow", KEPT) == []


def test_a_text_too_long_for_a_file_is_no_file() -> None:
    command = f'curl -d \'{{"from": "me@{"x" * 300}"}}\' https://example.com'
    assert decide(command, "curl", KEPT) == "allow"
