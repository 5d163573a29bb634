"""``[[ … ]]`` and ``[ … ]``, which evaluate some of what they compare."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tree_sitter import Node

from runner.permissions.shell.words import Word

if TYPE_CHECKING:
    from runner.permissions.shell.tree.walk import Walk

_UNARY = frozenset(f"-{letter}" for letter in "abcdefghknprstuwxzLNOSG")
_TEXTS = frozenset(["=", "==", "!=", "<", ">", "=~", "-nt", "-ot", "-ef"])
_NUMBERS = frozenset(["-eq", "-ne", "-lt", "-le", "-gt", "-ge"])
_PATTERN = re.compile(r"(?:[^`$'\"\n\\]|\$(?![A-Za-z0-9_({\['\"@*#?$!-])|\\[^\n])*")
_NUMBER = re.compile(r"-?[0-9]+|\"?\$(?:[#?]|\{#[A-Za-z_]\w*(?:\[[@*]\])?\})\"?")
_NAMED = re.compile(r"\"?\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?\"?")


def condition(walk: Walk, node: Node) -> None:
    """Visits the operands; obscure when bash may evaluate what they hold."""
    children = walk.gaps(node)
    double = bool(children) and children[0].type == "[["
    for child in children:
        if child.is_named:
            _condition(walk, child, double)
        elif child.type not in ("[", "]", "[[", "]]"):
            walk.obscure(child)


def _condition(walk: Walk, node: Node, double: bool) -> None:
    if node.type == "parenthesized_expression" and double:
        for child in walk.gaps(node):
            if child.is_named:
                _condition(walk, child, double)
    elif node.type == "unary_expression":
        _unary(walk, node, double)
    elif node.type == "binary_expression":
        _binary(walk, node, double)
    else:
        _operand(walk, node, double)


def _unary(walk: Walk, node: Node, double: bool) -> None:
    children = walk.gaps(node)
    operator = walk.text[children[0].start_byte : children[0].end_byte]
    if len(children) == 2 and operator == "!":
        _condition(walk, children[1], double)
    elif len(children) == 2 and operator in _UNARY:
        _operand(walk, children[1], double)
    else:
        walk.obscure(node, "a test may evaluate what a variable holds")


def _binary(walk: Walk, node: Node, double: bool) -> None:
    children = walk.gaps(node, lines=double)
    if len(children) != 3:
        walk.obscure(node)
        return
    left, middle, right = children
    operator = walk.text[middle.start_byte : middle.end_byte]
    if operator in ("&&", "||") and double:
        _condition(walk, left, double)
        _condition(walk, right, double)
    elif operator in _TEXTS:
        _operand(walk, left, double)
        if right.type in ("regex", "extglob_pattern"):
            if not _PATTERN.fullmatch(walk.text, right.start_byte, right.end_byte):
                walk.obscure(right, "a pattern was not understood")
        else:
            _operand(walk, right, double)
    elif operator in _NUMBERS:
        for side in (left, right):
            word = _operand(walk, side, double)
            if double:
                _number(walk, side, word)
    else:
        walk.obscure(node, "a test may evaluate what a variable holds")


def _number(walk: Walk, node: Node, word: Word) -> None:
    named = _NAMED.fullmatch(word.source)
    if named:
        walk.found.reckoned.add(named.group(1))
    elif not _NUMBER.fullmatch(word.source):
        walk.obscure(node, "a test may evaluate what a variable holds")


def _operand(walk: Walk, node: Node, double: bool) -> Word:
    word = walk.word(node)
    special = re.fullmatch(r"\$[#?$!]", word.source)
    if not double and word.loose and not word.source.startswith('"') and not special:
        walk.obscure(node, "a test may evaluate what a variable holds")
    return word
