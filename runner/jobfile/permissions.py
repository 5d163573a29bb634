"""Permission rules: how a job file writes them, and what a job's tools make of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runner.jobfile.table import Node, Section, Table, Type, list_of, text
from runner.jobfile.values import BadValueError, kind, line_problem, read_json_file, shown
from runner.permissions import Effect, Rule
from runner.permissions.claude_settings import ImportedRules, from_settings
from runner.permissions.examples import matches
from runner.permissions.rules import AgentPattern, concerns, name_of, parse, problem

# Deny is stored and listed first, as it is looked at first.
EFFECTS: tuple[Effect, ...] = ("deny", "ask", "allow")

PlacedRules = Iterable[tuple[Node, Rule]]


def rules_of(effect: Effect, table: Table) -> Type:
    """A list of rules, each a string or a table with examples."""

    def read(value: Any, node: Node) -> Rule | None:
        if isinstance(value, str):
            if wrong := problem(value, effect):
                raise BadValueError(wrong)
            return Rule(effect, value)
        if not isinstance(value, dict):
            raise BadValueError(f"must be a rule, a string or a table, not {kind(value)}")
        section = Section(table, value, node)
        if section["rule"] is None:
            return None
        if wrong := problem(section["rule"], effect):
            section.note(wrong, "rule")
            return None
        rule = Rule(effect, section["rule"], section["why"] or "")
        for key, does in {"match": "does not match", "not_match": "matches"}.items():
            for at, example in section[key]:
                try:
                    if matches(rule, example) != (key == "match"):
                        at.note(f"the rule {shown(rule.text)} {does} the example {shown(example)}")
                except ValueError as error:
                    at.note(str(error))
        return rule

    one = Type("", {"$ref": "#/definitions/rule"}, read)
    return list_of(one, "rules", words="[rules](#rules)", placed=True)


def matcher() -> Type:
    """A rule without its effect or a list of them, read as their texts."""

    def read(value: Any, node: Node) -> tuple[str, ...]:
        if isinstance(value, str):
            pairs = [(node, text().read(value, node))]
        else:
            pairs = list_of(text(500), placed=True).read(value, node)
        good = []
        for at, given in pairs:
            # As Claude Code writes several names in one text.
            for rule in [given] if "(" in given else given.split("|"):
                if wrong := problem(rule):
                    at.note(wrong)
                else:
                    good.append(rule)
        return tuple(good)

    strings = {"type": "string"}
    schema = {"anyOf": [strings, {"type": "array", "items": strings}]}
    return Type("[rule](#rules), or a list of them", schema, read)


def note_idle_rules(rules: PlacedRules, tools: Sequence[str], types: Sequence[str]) -> None:
    """Note each rule that is about no tool or type of sub-agent of the job."""

    def said(what: str, name: str, there: Sequence[str]) -> str:
        has = f"it has {', '.join(there)}" if there else "it has none"
        return f"no {what} of this job is called {shown(name)}; {has}"

    for node, rule in rules:
        agent = parse(rule.text).specifier
        if not any(concerns(rule.text, tool) for tool in tools):
            node.note(said("tool", name_of(rule.text), sorted(tools)))
        elif isinstance(agent, AgentPattern) and agent.agent_type not in types:
            node.note(said("type of sub-agent", agent.agent_type, types))


def read_settings(path: Path, tools: Sequence[str]) -> ImportedRules:
    """Return the rules of a settings file of Claude Code that concern these tools. Raises
    ``BadValueError``."""
    # Absolute, so that no file can pass its rules off as a person's answers by its name.
    origin = str(path.absolute())
    if wrong := line_problem(origin, 4_096):
        raise BadValueError(f"the file's whole path {wrong}")
    data = read_json_file(path, once=True)
    if not isinstance(data, dict):
        raise BadValueError(f"{path} must hold an object, not {kind(data)}")
    return from_settings(data, origin, tools)
