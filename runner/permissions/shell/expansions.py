"""What bash evaluates: expansions, arithmetic and tests. Which of them are understood, and the
commands inside of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from tree_sitter import Node

from runner.permissions.shell.builtins import variable_risk
from runner.permissions.shell.tree import Tree
from runner.permissions.shell.words import Word, names

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

_UNARY = frozenset(f"-{letter}" for letter in "abcdefghknprstuwxzLNOSG")
_TEXTS = names("= == != < > =~ -nt -ot -ef")
_NUMBERS = names("-eq -ne -lt -le -gt -ge")
_PATTERN = re.compile(r"(?:[^`$'\"\n\\]|\$(?![A-Za-z0-9_({\['\"@*#?$!-])|\\[^\n])*")
_NUMBER = re.compile(r"-?[0-9]+|\"?\$(?:[#?]|\{#[A-Za-z_]\w*(?:\[[@*]\])?\})\"?")
_NAMED = re.compile(r"\"?\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?\"?")
_MAY_EVALUATE = "a test may evaluate what a variable holds"


def visit_expansion(tree: Tree, node: Node) -> None:
    """Visit an expansion; one that is not understood makes the script unanalyzable."""
    match node.type:
        case "simple_expansion":
            if not _VARIABLE.fullmatch(tree.text_of(node)):
                tree.give_up(node, "an expansion was not understood")
        case "expansion":
            _visit_parameter(tree, node)
        case "arithmetic_expansion":
            visit_arithmetic(tree, node)
        case "command_substitution" | "process_substitution":
            _visit_substitution(tree, node)
        case _:
            tree.give_up(node)


def _visit_parameter(tree: Tree, node: Node) -> None:
    text = tree.text_of(node)
    if _PARAMETER.fullmatch(text):
        return
    default = _DEFAULTED.match(text)
    children = tree.children(node)
    if (
        default is None
        or len(children) != 5
        or children[3].start_byte != node.start_byte + default.end()
    ):
        tree.give_up(node, "a parameter expansion was not understood")
    elif re.search(r"['\\]", text):
        # Between double quotes and in here-documents single quotes do not quote in here.
        tree.give_up(node, "quotes in a parameter expansion may not quote")
    else:
        tree.word(children[3])


def _visit_substitution(tree: Tree, node: Node) -> None:
    text = tree.text_of(node)
    if text.startswith("`") and "\\" in text:
        tree.give_up(node, "backticks have escapes inside")
        return
    tokens = ("$(", ")", "`", "<(", ">(", ";", "&", "\n")
    children = tree.children(node, lines=True)
    tree.visit_each(children, {"file_redirect": tree.lone_redirect}, tokens, named=tree.visit)


def visit_arithmetic(tree: Tree, node: Node) -> None:
    """Visit ``$((…))`` or ``((…))``."""
    inside = re.fullmatch(r"\$?\(\((.*)\)\)", tree.text_of(node), re.DOTALL)
    if inside is None:
        tree.give_up(node)
    else:
        calculate(tree, inside.group(1), [node])


def calculate(tree: Tree, text: str, nodes: Sequence[Node]) -> None:
    """Note the variables in arithmetic: bash evaluates what they hold, as far as a command in it."""
    if not _ARITHMETIC.fullmatch(text):
        for node in nodes:
            tree.give_up(node, "bash evaluates what is in this arithmetic")
        return
    findings = tree.findings
    findings.numeric.update(name for pair in _SETS.findall(text) for name in pair if name)
    for name in _NAME.findall(re.sub(r"\$\{#\w+\}", "", text)):
        findings.calculated.add(name)
        if variable_risk(name, exported=False) == "high":
            findings.give_up(f"it sets {name}")


def visit_test(tree: Tree, node: Node) -> None:
    """Visit the operands of ``[[ … ]]`` or ``[ … ]``; give up when bash may evaluate what they hold."""
    children = tree.children(node)
    double = bool(children) and children[0].type == "[["
    visit = partial(_visit_condition, tree, double)
    tree.visit_each(children, {}, ("[", "]", "[[", "]]"), named=visit)


def _visit_condition(tree: Tree, double: bool, node: Node) -> None:
    if node.type == "parenthesized_expression" and double:
        for child in tree.children(node):
            if child.is_named:
                _visit_condition(tree, double, child)
    elif node.type == "unary_expression":
        _visit_unary(tree, node, double)
    elif node.type == "binary_expression":
        _visit_binary(tree, node, double)
    else:
        _operand(tree, node, double)


def _visit_unary(tree: Tree, node: Node, double: bool) -> None:
    children = tree.children(node)
    operator = tree.text_of(children[0])
    if len(children) == 2 and operator == "!":
        _visit_condition(tree, double, children[1])
    elif len(children) == 2 and operator in _UNARY:
        _operand(tree, children[1], double)
    else:
        tree.give_up(node, _MAY_EVALUATE)


def _visit_binary(tree: Tree, node: Node, double: bool) -> None:
    children = tree.children(node, lines=double)
    if len(children) != 3:
        tree.give_up(node)
        return
    left, middle, right = children
    operator = tree.text_of(middle)
    if operator in ("&&", "||") and double:
        _visit_condition(tree, double, left)
        _visit_condition(tree, double, right)
    elif operator in _TEXTS:
        _operand(tree, left, double)
        if right.type not in ("regex", "extglob_pattern"):
            _operand(tree, right, double)
        elif not _PATTERN.fullmatch(tree.text, right.start_byte, right.end_byte):
            tree.give_up(right, "a pattern was not understood")
    elif operator in _NUMBERS:
        for side in (left, right):
            word = _operand(tree, side, double)
            if double:
                _check_number(tree, side, word)
    else:
        tree.give_up(node, _MAY_EVALUATE)


def _check_number(tree: Tree, node: Node, word: Word) -> None:
    named = _NAMED.fullmatch(word.source)
    if named:
        tree.findings.calculated.add(named.group(1))
    elif not _NUMBER.fullmatch(word.source):
        tree.give_up(node, _MAY_EVALUATE)


def _operand(tree: Tree, node: Node, double: bool) -> Word:
    word = tree.word(node)
    special = re.fullmatch(r"\$[#?$!]", word.source)
    if not double and word.loose and not word.source.startswith('"') and not special:
        tree.give_up(node, _MAY_EVALUATE)
    return word
