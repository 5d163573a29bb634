"""``[permissions]``: its rules with their examples, a settings file's, a mode's, and how to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from runner.core.spec import Asking, OnTimeout
from runner.core.text import KeyTwiceError, read_json
from runner.errors import Problem
from runner.jobfile.content import line_problem, read_bytes
from runner.jobfile.section import Section, kind, shown
from runner.permissions import Default, Effect, Rule
from runner.permissions.claude_settings import ImportedRules, from_settings
from runner.permissions.examples import matches
from runner.permissions.modes import Mode, rules_of
from runner.permissions.rules import AgentPattern, allows_nothing, concerns, name_of, parse, problem

# Deny is stored and listed first, as it is looked at first.
EFFECTS: tuple[Effect, ...] = ("deny", "ask", "allow")
PERMISSION_KEYS = (
    *get_args(Effect),
    "default",
    "mode",
    "from",
    "ask_timeout",
    "on_timeout",
    "on_ask",
)
RULE_KEYS = ("rule", "why", "match", "not_match")
MOST_WHY_CHARACTERS = 500
MOST_COMMAND_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Permissions:
    """The section as it is written, defaults filled in. ``rules`` stand in the order in which they
    are stored, each with its index in the list of its effect; ``settings`` is the path under
    ``from``."""

    rules: tuple[tuple[int, Rule], ...] = ()
    mode: Mode | None = None
    settings: str | None = None
    asking: Asking = field(default_factory=Asking)

    @property
    def placed(self) -> list[tuple[str, Rule]]:
        """Each rule with its place in the job file."""
        return [(f"permissions.{rule.effect}[{index}]", rule) for index, rule in self.rules]


@dataclass(frozen=True, slots=True)
class Expanded:
    """All rules that a job begins with, in order; what was left out of its settings file, one line
    for each thing; and what is wrong."""

    rules: tuple[Rule, ...]
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]


def check_permissions(section: Section) -> Permissions:
    """What the section says, after noting what is wrong with it as far as the file alone can tell."""
    rules = [found for effect in EFFECTS for found in rules_in(section, effect, effect)]
    modes: tuple[Mode, ...] = get_args(Mode)
    mode = section.choice("mode", modes, "read_only") if section.has("mode") else None
    timeout = section.seconds("ask_timeout")
    if section.has("on_timeout") and not section.has("ask_timeout"):
        section.note("does nothing without ask_timeout; give that too", "on_timeout")
    default = Asking()
    return Permissions(
        rules=tuple(rules),
        mode=cast(Mode | None, mode),
        settings=section.text("from"),
        asking=Asking(
            default=cast(Default, section.choice("default", get_args(Default), default.default)),
            timeout=timeout,
            on_timeout=cast(
                OnTimeout, section.choice("on_timeout", get_args(OnTimeout), default.on_timeout)
            ),
            notify=section.line("on_ask", MOST_COMMAND_CHARACTERS),
        ),
    )


def rules_in(section: Section, key: str, effect: Effect) -> list[tuple[int, Rule]]:
    """The rules of a list, each with its index, after noting what is wrong with them."""
    entries = section.values.get(key, [])
    if not isinstance(entries, list):
        section.note(f"must be a list of rules, not {kind(entries)}", key)
        return []
    found = (
        (index, _rule(section, key, effect, index, entry)) for index, entry in enumerate(entries)
    )
    return [(index, rule) for index, rule in found if rule]


def _rule(section: Section, key: str, effect: Effect, index: int, entry: Any) -> Rule | None:
    """The rule of an entry, a string or a table, or None after noting what is wrong with it."""
    if isinstance(entry, str):
        if wrong := _wrong(effect, entry):
            section.note(wrong, key, index)
        return None if wrong else Rule(effect, entry)
    if not isinstance(entry, dict):
        section.note(f"must be a rule, a string or a table, not {kind(entry)}", key, index)
        return None
    table = Section(entry, (*section.path, key, index), section.problems)
    table.expect_keys(RULE_KEYS, {})
    if not table.has("rule"):
        table.note("the key rule is missing: the rule itself, such as 'Bash(git diff *)'")
    text = table.text("rule")
    why = table.line("why", MOST_WHY_CHARACTERS) or ""
    if text is not None and (wrong := _wrong(effect, text)):
        table.note(wrong, "rule")
        text = None
    rule = Rule(effect, text, why) if text else None
    for examples in ("match", "not_match"):
        _check_examples(table, examples, rule)
    return rule


def _wrong(effect: Effect, text: str) -> str | None:
    return problem(text) or (allows_nothing(text) if effect == "allow" else None)


def _check_examples(table: Section, key: str, rule: Rule | None) -> None:
    for index, example in table.texts(key, any_lines=True):
        if rule is None:
            continue
        try:
            matched = matches(rule, example)
        except ValueError as error:
            table.note(str(error), key, index)
            continue
        if matched != (key == "match"):
            does = "matches" if matched else "does not match"
            table.note(
                f"the rule {shown(rule.text)} {does} the example {shown(example)}", key, index
            )


def expand(
    written: Permissions, has: Sequence[str], listed: Sequence[str], folder: Path
) -> Expanded:
    """The rules of a section, with those of its settings file and of its mode.

    Args:
        has: the names of the tools that the job has.
        listed: those, and the names of tools that it lists and that cannot be found: a rule for one
            of them is no second problem.
        folder: the job file's, to which ``from`` is relative.
    """
    rules = [rule for _, rule in written.rules]
    problems = about_no_tool(written.placed, listed)
    notes: tuple[str, ...] = ()
    if written.settings is not None:
        taken = _from_settings(folder / written.settings, listed)
        rules += taken.rules
        notes = tuple(f"left out: {line}" for line in taken.left_out)
        problems += [Problem("permissions.from", line) for line in taken.problems]
    if written.mode is not None:
        rules += rules_of(written.mode, has)
    return Expanded(tuple(rules), notes, tuple(problems))


def about_no_tool(rules: Sequence[tuple[str, Rule]], listed: Sequence[str]) -> list[Problem]:
    """A problem for each rule, given with its place, that is about none of the tools listed."""
    return [
        Problem(place, _no_tool(rule.text, listed))
        for place, rule in rules
        if not any(concerns(rule.text, tool) for tool in listed)
    ]


def about_no_agent(rules: Sequence[tuple[str, Rule]], types: Sequence[str]) -> list[Problem]:
    """A problem for each rule, given with its place, that is about a type of sub-agent that is none of
    these."""
    there = f"it has {', '.join(types)}" if types else "it has none"
    problems = []
    for at, rule in rules:
        named = parse(rule.text).specifier
        if isinstance(named, AgentPattern) and named.agent_type not in types:
            wrong = f"no type of sub-agent of this job is called {shown(named.agent_type)}"
            problems.append(Problem(at, f"{wrong}; {there}"))
    return problems


def _no_tool(text: str, tools: Sequence[str]) -> str:
    there = f"it has {', '.join(sorted(tools))}" if tools else "it has none"
    return f"no tool of this job is called {shown(name_of(text))}; {there}"


def _from_settings(path: Path, tools: Sequence[str]) -> ImportedRules:
    # Absolute, so that no file can pass its rules off as a person's answers by its name.
    origin = str(path.absolute())
    if wrong := line_problem(origin, 4_096):
        return _no_use(f"the file's whole path {wrong}")
    try:
        text = read_bytes(path).decode("utf-8-sig")
        data = read_json(text, once=True)
    except OSError as error:
        return _no_use(f"{path} cannot be read: {error.strerror or error}")
    except RecursionError:
        return _no_use(f"{path} is not JSON that can be read: nested too deeply")
    except KeyTwiceError as error:
        return _no_use(f"{path} has the key {shown(error.key)} twice in one object: leave one")
    except ValueError as error:
        return _no_use(f"{path} is not JSON in UTF-8: {error}")
    if not isinstance(data, dict):
        return _no_use(f"{path} must hold an object, not {kind(data)}")
    return from_settings(data, origin, tools)


def _no_use(problem: str) -> ImportedRules:
    return ImportedRules((), (), (problem,))
