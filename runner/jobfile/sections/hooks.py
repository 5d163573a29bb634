"""``hooks``: commands and functions that are told what runs do, and may tighten it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from runner.core.hooks import Hook, HookEvent, OnHookFailure
from runner.errors import Problem
from runner.jobfile.lines import Part, place
from runner.jobfile.section import Section, kind, shown
from runner.jobfile.sections.permissions import about_no_tool
from runner.permissions import Rule
from runner.permissions.rules import problem

# Takes names of functions and the job file's folder, from which they are imported. Gives, by name,
# each as the job stores it, and (name, what is wrong with it) for each other name.
ResolveHooks = Callable[[Sequence[str], Path], tuple[Mapping[str, str], Sequence[tuple[str, str]]]]
RulesInCopies = Callable[[Sequence[Rule]], tuple[Rule, ...]]

EVENTS: tuple[HookEvent, ...] = get_args(HookEvent)
TOOL_EVENTS: tuple[HookEvent, ...] = ("PreToolUse", "PostToolUse")
HOOK_KEYS = ("matcher", "command", "function", "timeout", "on_failure", "repeatable")
MOST_HOOK_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class HookDraft:
    """A hook as it is written, its function not looked at yet, and where it stands in the file."""

    hook: Hook
    at: tuple[Part, ...]

    @property
    def placed(self) -> list[tuple[str, Rule]]:
        """Each text of the matcher as a rule, with its place in the job file."""
        return [(place(*self.at, "matcher"), Rule("ask", text)) for text in self.hook.matcher]

    @property
    def place_of_function(self) -> str:
        return place(*self.at) if isinstance(self.at[1], int) else place(*self.at, "function")


def check_hooks(top: Section) -> tuple[HookDraft, ...]:
    """The hooks of a job, by event in the order of ``EVENTS``, after noting what is wrong with them."""
    if isinstance(top.values.get("hooks"), list):
        return _of_every_event(top)
    section = top.section("hooks")
    if section is None:
        return ()
    for name in section.values:
        if name not in EVENTS:
            near = difflib.get_close_matches(name, EVENTS, n=1)
            meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(EVENTS)}"
            section.note(f"unknown event {shown(name)}; {meant}", name)
    return tuple(draft for event in EVENTS for draft in _of_event(section, event))


def _of_every_event(top: Section) -> tuple[HookDraft, ...]:
    """The functions of a list: each is a hook of every event."""
    functions: dict[str, int] = {}
    if any(isinstance(entry, Mapping) for entry in top.values["hooks"]):
        top.note("name the event of each, as in [[hooks.PreToolUse]]", "hooks")
        return ()
    for index, name in top.texts("hooks"):
        if name in functions:
            top.note(f"{shown(name)} is listed twice", "hooks", index)
        functions.setdefault(name, index)
    return tuple(
        HookDraft(Hook(event, function=name), ("hooks", index))
        for event in EVENTS
        for name, index in functions.items()
    )


def _of_event(section: Section, event: HookEvent) -> list[HookDraft]:
    tables = section.values.get(event, [])
    if not isinstance(tables, list):
        section.note(
            f"must be a list of tables, written [[hooks.{event}]], not {kind(tables)}", event
        )
        return []
    drafts = []
    for index, values in enumerate(tables):
        if not isinstance(values, Mapping):
            section.note(
                f"must be a table, written [[hooks.{event}]], not {kind(values)}", event, index
            )
            continue
        at = (*section.path, event, index)
        hook = _hook(Section(values, at, section.problems), event)
        if hook is not None:
            drafts.append(HookDraft(hook, at))
    return drafts


def _hook(table: Section, event: HookEvent) -> Hook | None:
    """The hook of a table, or None when it does not say what to run."""
    table.expect_keys(HOOK_KEYS, {})
    if table.has("matcher") and event not in TOOL_EVENTS:
        table.note(f"is only for {' and '.join(TOOL_EVENTS)}: no call is there to match", "matcher")
    if table.has("on_failure") and event != "PreToolUse":
        table.note("is only for PreToolUse: nothing else can be denied", "on_failure")
    default = Hook(event)
    failure = table.choice("on_failure", get_args(OnHookFailure), default.on_failure)
    hook = Hook(
        event=event,
        matcher=_matcher(table),
        timeout=table.seconds("timeout", most=MOST_HOOK_SECONDS) or default.timeout,
        on_failure=cast(OnHookFailure, failure),
        repeatable=table.flag("repeatable"),
    )
    match table.exactly_one(("command", "function"), "what the hook runs"):
        case "command":
            command = table.text("command")
            return replace(hook, command=command) if command else None
        case "function":
            function = table.line("function", 500)
            return replace(hook, function=function) if function else None
        case _:
            return None


def _matcher(table: Section) -> tuple[str, ...]:
    value: Any = table.values.get("matcher", [])
    if isinstance(value, str):
        text = table.text("matcher")
        found: list[tuple[tuple[Part, ...], str]] = [] if text is None else [(("matcher",), text)]
    else:
        found = [(("matcher", index), text) for index, text in table.texts("matcher")]
    good = []
    for at, text in found:
        # As Claude Code writes several names in one text.
        for rule in [text] if "(" in text else text.split("|"):
            if wrong := problem(rule):
                table.note(wrong, *at)
            else:
                good.append(rule)
    return tuple(good)


def resolve_hooks(
    drafts: Sequence[HookDraft],
    listed: Sequence[str],
    folder: Path,
    find: ResolveHooks,
    in_copies: RulesInCopies,
    problems: list[Problem],
) -> tuple[Hook, ...]:
    """The hooks with their functions found, after noting what is wrong with what they name.

    Args:
        listed: the names of the job's tools.
        folder: the job file's.
        find: looks at functions.
        in_copies: the rules, with what they mean in a run's copy of the workspace.
    """
    names = dict.fromkeys(draft.hook.function for draft in drafts if draft.hook.function)
    found, unknown = find(tuple(names), folder) if names else ({}, ())
    wrong = dict(unknown)
    hooks = []
    for draft in drafts:
        hook = draft.hook
        if hook.function in wrong and _is_first(draft, drafts):
            problems.append(Problem(draft.place_of_function, wrong[hook.function]))
        rules = [rule for _, rule in draft.placed]
        problems += about_no_tool(draft.placed, listed)
        hooks.append(
            replace(
                hook,
                matcher=tuple(rule.text for rule in in_copies(rules)),
                function=hook.function and found.get(hook.function),
            )
        )
    return tuple(hooks)


def _is_first(draft: HookDraft, drafts: Sequence[HookDraft]) -> bool:
    """Whether it is the first that stands where it does: a function of every event stands there once."""
    return next(each for each in drafts if each.at == draft.at) is draft
