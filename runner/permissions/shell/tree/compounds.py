"""Functions, loops and ``case``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tree_sitter import Node

from runner.permissions.shell.names import weight

if TYPE_CHECKING:
    from runner.permissions.shell.tree.walk import Walk

TOKENS = frozenset(
    [
        ";",
        "&",
        "&&",
        "||",
        "|",
        "|&",
        "{",
        "}",
        "(",
        ")",
        "do",
        "done",
        "if",
        "then",
        "elif",
        "else",
        "fi",
        "while",
        "until",
        "!",
        ";;",
        ";&",
        ";;&",
    ]
)
_CASE = r"(?:\"[\w .\-/*?:=]*\"|'[\w .\-/*?:=]*'|[\w\-./*?\[\]!:,+=@%^]|\\ )+"
_CASES = re.compile(rf"\(?[ \t\n]*{_CASE}(?:[ \t\n]*\|[ \t\n]*{_CASE})*[ \t\n]*", re.ASCII)


def function(walk: Walk, node: Node) -> None:
    """A function: what it runs is taken for run, at any time from here on."""
    deferred, walk.found.deferred = walk.found.deferred, True
    for child in walk.gaps(node, lines=True):
        if child.type == "word":
            if not re.fullmatch(
                r"[A-Za-z_][A-Za-z0-9_-]*", walk.text[child.start_byte : child.end_byte]
            ):
                walk.obscure(child)
        elif child.type in (
            "compound_statement",
            "subshell",
            "if_statement",
            "while_statement",
        ):
            walk.visit(child)
        elif child.type == "file_redirect":
            if walk.redirect(child):
                walk.obscure(child)
        elif child.type not in ("function", "(", ")"):
            walk.obscure(child)
    walk.found.deferred = deferred


def loop(walk: Walk, node: Node) -> None:
    """``for x in …`` and ``select``."""
    for child in walk.gaps(node, lines=True):
        if child.type == "variable_name":
            name = walk.text[child.start_byte : child.end_byte]
            walk.found.tainted.add(name)
            if weight(name, exported=False) == "grave":
                walk.found.obscure(f"it sets {name}")
        elif child.type in ("do_group", "compound_statement"):
            walk.visit(child)
        elif child.is_named:
            walk.word(child)
        elif child.type not in ("for", "select", "in", ";", "\n"):
            walk.obscure(child)


def counted(walk: Walk, node: Node) -> None:
    """``for ((…))``."""
    children = walk.gaps(node, lines=True)
    header = [c for c in children if c.type not in ("do_group", "compound_statement")]
    walk.expansions.reckon(walk.text[header[0].start_byte + 3 : header[-1].end_byte], header)
    for child in children:
        if child.type in ("do_group", "compound_statement"):
            walk.visit(child)


def choice(walk: Walk, node: Node) -> None:
    """``case``."""
    for child in walk.gaps(node, lines=True):
        if child.type == "case_item":
            _choice_item(walk, child)
        elif child.is_named:
            walk.word(child)
        elif child.type not in ("case", "in", "esac", ";", "\n"):
            walk.obscure(child)


def _choice_item(walk: Walk, node: Node) -> None:
    children = walk.gaps(node, lines=True)
    close = next((i for i, c in enumerate(children) if c.type == ")"), None)
    if close is None:
        walk.obscure(node)
        return
    if not _CASES.fullmatch(walk.text, node.start_byte, children[close].start_byte):
        walk.obscure(node, "a case pattern was not understood")
        return
    for child in children[close + 1 :]:
        if child.is_named:
            walk.visit(child)
        elif child.type not in TOKENS:
            walk.obscure(child)
