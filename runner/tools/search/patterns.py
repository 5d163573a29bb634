"""Glob patterns as regular expressions. Runs in the search child."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\*\*/|\*\*|\*|\?|\[(?P<negated>[!^]?)(?P<set>\]?[^\]/]*)\]|[{},]|.", re.DOTALL
)


def translate(pattern: str) -> re.Pattern[str]:
    """A pattern that fully matches the relative paths that a glob pattern names.

    ``*`` and ``?`` stay inside one folder, ``**`` crosses folders, ``[ab]`` and ``[!ab]`` are sets,
    ``{a,b}`` are alternatives.

    Raises:
        re.error: a set is not one.
    """
    parts: list[str] = []
    depth = 0
    closes = pattern.count("}")
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "{" and closes > 0:
            depth += 1
            closes -= 1
            parts.append("(?:")
        elif text == "}" and depth:
            depth -= 1
            parts.append(")")
        elif text == "," and depth:
            parts.append("|")
        elif token["set"] is not None:
            inside = token["set"].replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[{'^/' if token['negated'] else ''}{inside}]")
        else:
            parts.append(_WILD.get(text) or re.escape(text))
    return re.compile("".join(parts) + ")" * depth, re.DOTALL)


_WILD = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
