"""Expansions: which are understood, and the commands inside of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tree_sitter import Node

from runner.permissions.shell.names import weight

if TYPE_CHECKING:
    from runner.permissions.shell.tree.walk import Walk

_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_PARAMETER = re.compile(
    r"\$\{#?(?:[A-Za-z_][A-Za-z0-9_]*(?:\[(?:[0-9]+|[@*])\])?|[0-9]+|[@*#?])"
    r"(?:(?::?[-+?]|##?|%%?)[^$`\\\"'<>{}()&|;]*|//?[#%]?[^$`\\\"'<>{}()&|;]*|\^\^?|,,?"
    r"|:[0-9]+(?::[0-9]+)?|: -[0-9]+)?\}"
)
_DEFAULTED = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:?[-+]")
_ARITHMETIC = re.compile(
    r"(?:[0-9A-Za-z_+\-*/%<>=!&|^~?:, \t\n();]|\$(?=[A-Za-z_#?])|\$\{#?\w+\}|#)*", re.ASCII
)
_NAME = re.compile(r"(?<![0-9A-Za-z_])[A-Za-z_][A-Za-z0-9_]*")
_SETS = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)


class Expansions:
    """Visits the expansions of one walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def visit(self, node: Node) -> None:
        """One expansion; what is not understood makes the script obscure."""
        text = self.walk.text[node.start_byte : node.end_byte]
        if node.type == "simple_expansion":
            if not _VARIABLE.fullmatch(text):
                self.walk.obscure(node, "an expansion was not understood")
        elif node.type == "expansion":
            self._parameter(node, text)
        elif node.type == "arithmetic_expansion":
            self.arithmetic(node)
        elif node.type in ("command_substitution", "process_substitution"):
            self._substitution(node, text)
        else:
            self.walk.obscure(node)

    def _parameter(self, node: Node, text: str) -> None:
        if _PARAMETER.fullmatch(text):
            return
        default = _DEFAULTED.match(text)
        children = self.walk.gaps(node)
        if (
            default is None
            or len(children) != 5
            or children[3].start_byte != node.start_byte + default.end()
        ):
            self.walk.obscure(node, "a parameter expansion was not understood")
            return
        if re.search(r"['\\]", text):
            # Between double quotes and in here-documents single quotes do not quote in here.
            self.walk.obscure(node, "quotes in a parameter expansion may not quote")
            return
        self.walk.word(children[3])

    def _substitution(self, node: Node, text: str) -> None:
        if text.startswith("`") and "\\" in text:
            self.walk.obscure(node, "backticks have escapes inside")
            return
        for child in self.walk.gaps(node, lines=True):
            if child.type == "file_redirect":
                if self.walk.redirect(child):
                    self.walk.obscure(child)
            elif child.is_named:
                self.walk.visit(child)
            elif child.type not in ("$(", ")", "`", "<(", ">(", ";", "&", "\n"):
                self.walk.obscure(child)

    def arithmetic(self, node: Node) -> None:
        """``$((…))`` or ``((…))``."""
        text = self.walk.text[node.start_byte : node.end_byte]
        inside = re.fullmatch(r"\$?\(\((.*)\)\)", text, re.DOTALL)
        if inside is None:
            self.walk.obscure(node)
            return
        self.reckon(inside.group(1), [node])

    def reckon(self, text: str, nodes: Sequence[Node]) -> None:
        """Arithmetic: bash evaluates what the variables in it hold, as far as a command in it."""
        if not _ARITHMETIC.fullmatch(text):
            for node in nodes:
                self.walk.obscure(node, "bash evaluates what is in this arithmetic")
            return
        found = self.walk.found
        found.numeric.update(name for pair in _SETS.findall(text) for name in pair if name)
        for name in _NAME.findall(re.sub(r"\$\{#\w+\}", "", text)):
            found.reckoned.add(name)
            if weight(name, exported=False) == "grave":
                found.obscure(f"it sets {name}")
