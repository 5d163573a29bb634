"""Texts from templates, one for each run: Jinja2, sandboxed, strict about names that nobody defines.

Items are data: their content is put into the prompt and never read as a template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runner.errors import Problem
from runner.jobfile.content import text_problem
from runner.jobfile.section import shown

MOST_REPORTED = 5


class _Environment(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        """A table's own keys come first: ``item.values`` is the item's, not a method of dict."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


MOST_CHARACTERS = 10_000_000

_ENVIRONMENT = _Environment(undefined=StrictUndefined)


def parse(text: str, origin: str, *, has_items: bool) -> tuple[Template | None, list[Problem]]:
    """Read a template.

    Args:
        text: the template.
        origin: where it stands, for the problems: ``prompt``, ``workspace.commit_message`` …
        has_items: whether ``item`` will be there to use.
    """
    try:
        tree = _ENVIRONMENT.parse(text)
        template = _ENVIRONMENT.from_string(text)
    except TemplateSyntaxError as error:
        problem = f"line {error.lineno} of the template does not parse: {error.message}"
        return None, [Problem(origin, problem)]
    except RecursionError:
        return None, [Problem(origin, "the template is nested too deeply")]
    known = {"item"} if has_items else set()
    names = meta.find_undeclared_variables(tree) - set(_ENVIRONMENT.globals) - known
    return template, [Problem(origin, _undefined(name, has_items)) for name in sorted(names)]


def _undefined(name: str, has_items: bool) -> str:
    if name == "item":
        return "the template uses 'item', but the job has no [items]"
    meant = "only 'item' is" if has_items else "a job without [items] defines nothing"
    return f"the template uses {shown(name)}, which is not defined; {meant}"


def render(
    template: Template,
    origin: str,
    items: Sequence[tuple[str, Any]],
    *,
    has_items: bool,
    what: str = "prompt",
) -> tuple[tuple[str, ...], list[Problem]]:
    """The text for each item.

    Args:
        template: from ``parse``, without problems.
        origin: where the template stands, for the problems.
        items: key and value of each.
        what: what the text is, for the problems.

    Returns:
        The texts, and what went wrong with the first few items that could not be rendered.
    """
    texts = []
    problems: list[Problem] = []
    failed = 0
    for key, item in items:
        text, problem = _render_one(template, {"item": item} if has_items else {}, what)
        if problem is None:
            texts.append(text)
            continue
        failed += 1
        if failed <= MOST_REPORTED:
            whose = f"for the item {shown(key)}: " if has_items else ""
            problems.append(Problem(origin, f"{whose}{problem}"))
    if failed > MOST_REPORTED:
        more = failed - MOST_REPORTED
        problems.append(Problem(origin, f"and so for {more:,} more of the {len(items):,} items"))
    return tuple(texts), problems


def _render_one(template: Template, values: dict[str, Any], what: str) -> tuple[str, str | None]:
    try:
        parts = []
        room = MOST_CHARACTERS
        for part in template.generate(values):  # piece by piece: loops in loops know no end
            parts.append(part)
            room -= len(part)
            if room < 0:
                return "", f"the {what} has more than {MOST_CHARACTERS:,} characters"
        text = "".join(parts)
    except Exception as error:  # a template can make any function of its values raise anything
        words = " ".join(str(error).split()) or "no more is known"
        return "", f"the template fails: {type(error).__name__}: {words}"
    if not text.strip():
        return "", f"the {what} is empty"
    problem = text_problem(text)
    return text, f"the {what} {problem}" if problem else None
