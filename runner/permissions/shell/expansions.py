"""Words and what bash evaluates in them: expansions, arithmetic and tests. Which of them are
understood, and the commands inside of them."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

from tree_sitter import Node

from runner.permissions.shell.builtins import variable_risk
from runner.permissions.shell.tree import EXPANSIONS, WORDS, Tree
from runner.permissions.shell.words import Reader, UnclearError, Word, names

_IN_WORDS = names("""
    concatenation word raw_string number string string_content ansi_c_string brace_expression
    variable_name""")
_SIMPLE_WORD = re.compile(r"[A-Za-z0-9_./:@%+,=^-]+")
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
# A regular expression or a pattern with ``*(…)``; bash takes no operators in it, and parentheses in pairs.
_SIGN = r"(?:[^`$'\"\n\\&;<>()]|\$(?![A-Za-z0-9_({\['\"@*#?$!-])|\\[^\n])"
_PATTERN = re.compile(rf"(?:{_SIGN}|\((?:{_SIGN}|\({_SIGN}*\))*\))*")
_NUMBER = re.compile(r"-?[0-9]+|\"?\$(?:[#?]|\{#[A-Za-z_]\w*(?:\[[@*]\])?\})\"?")
_NAMED = re.compile(r"\"?\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?\"?")
_MAY_EVALUATE = "a test may evaluate what a variable holds"


class Expansions(Tree):
    """Reads words and visits what bash evaluates; unknown syntax makes the script unanalyzable."""

    @abstractmethod
    def lone_redirect(self, node: Node) -> None:
        """Visit a redirect that no word may follow."""

    def word(self, node: Node) -> Word:
        """Return a word as written."""
        start, end = node.start_byte, node.end_byte
        if not node.child_count and node.type in ("word", "number"):
            source = self.text[start:end]
            if _SIMPLE_WORD.fullmatch(source):
                return Word(source, source)
        expansions: dict[int, Node] = {}
        reason = ""
        if node.type in WORDS and self._collect(node, expansions):
            try:
                return Reader(self.text, expansions, self.visit_expansion).read(start, end)
            except UnclearError as unclear:
                reason = str(unclear)
        self.give_up(node, reason)
        source = self.source_of(node)
        return Word(source, source, exact=False, loose=True)

    def _collect(self, node: Node, expansions: dict[int, Node]) -> bool:
        """Collect the expansions in a word. Return False if it has a node that is not known."""
        if node.type in EXPANSIONS:
            expansions[node.start_byte] = node
            return True
        if node.is_named and node.type not in _IN_WORDS:
            return False
        return all(self._collect(child, expansions) for child in node.children)

    def visit_expansion(self, node: Node) -> None:
        """Visit an expansion."""
        text = self.text_of(node)
        match node.type:
            case "simple_expansion":
                if not _VARIABLE.fullmatch(text):
                    self.give_up(node, "an expansion was not understood")
            case "expansion":
                if not _PARAMETER.fullmatch(text):
                    self._defaulted(node, text)
            case "arithmetic_expansion":
                self.visit_arithmetic(node)
            case "command_substitution" | "process_substitution":
                if text.startswith("`") and "\\" in text:
                    self.give_up(node, "backticks have escapes inside")
                    return
                tokens = ("$(", ")", "`", "<(", ">(", ";", "&", "\n")
                redirect = {"file_redirect": self.lone_redirect}
                self.visit_each(self.children(node, lines=True), redirect, tokens, named=self.visit)
            case _:
                self.give_up(node)

    def _defaulted(self, node: Node, text: str) -> None:
        default = _DEFAULTED.match(text)
        children = self.children(node)
        if (
            default is None
            or len(children) != 5
            or children[3].start_byte != node.start_byte + default.end()
        ):
            self.give_up(node, "a parameter expansion was not understood")
        elif re.search(r"['\\]", text):
            # Between double quotes and in here-documents single quotes do not quote in here.
            self.give_up(node, "quotes in a parameter expansion may not quote")
        else:
            self.word(children[3])

    def visit_arithmetic(self, node: Node) -> None:
        """Visit ``$((…))`` or ``((…))``."""
        inside = re.fullmatch(r"\$?\(\((.*)\)\)", self.text_of(node), re.DOTALL)
        if inside is None:
            self.give_up(node)
        else:
            self.calculate(inside[1], [node])

    def calculate(self, text: str, nodes: Sequence[Node]) -> None:
        """Note the variables in arithmetic: bash evaluates their values, even a command in them."""
        if not _ARITHMETIC.fullmatch(text):
            for node in nodes:
                self.give_up(node, "bash evaluates what is in this arithmetic")
            return
        self.findings.numeric.update(name for pair in _SETS.findall(text) for name in pair if name)
        for name in _NAME.findall(re.sub(r"\$\{#\w+\}", "", text)):
            self.findings.calculated.add(name)
            if variable_risk(name, exported=False) == "high":
                self.findings.give_up(f"it sets {name}")

    def visit_test(self, node: Node) -> None:
        """Visit the operands of ``[[ … ]]`` or ``[ … ]``; give up when bash may evaluate what they
        hold."""
        children = self.children(node)
        double = bool(children) and children[0].type == "[["
        if double and self.text[children[-1].start_byte - 1] not in " \t\n":
            self.give_up(node)
        tokens = ("[", "]", "[[", "]]")
        self.visit_each(children, {}, tokens, named=partial(self._condition, double))

    def _condition(self, double: bool, node: Node) -> None:
        match node.type:
            case "parenthesized_expression" if double:
                for child in self.children(node):
                    if child.is_named:
                        self._condition(double, child)
            case "unary_expression":
                children = self.children(node)
                operator = self.text_of(children[0])
                if len(children) == 2 and operator == "!":
                    self._condition(double, children[1])
                elif len(children) == 2 and operator in _UNARY:
                    self._operand(double, children[1])
                else:
                    self.give_up(node, _MAY_EVALUATE)
            case "binary_expression":
                self._comparison(double, node)
            case _:
                if double and self._begins_test(node):
                    self.give_up(node)
                self._operand(double, node)

    def _begins_test(self, node: Node) -> bool:
        """True for a word that bash takes for an operator here: ``-f``, ``!``, ``]]``."""
        return re.fullmatch(r"-[A-Za-z]|!|\]\]", self.text_of(node)) is not None

    def _comparison(self, double: bool, node: Node) -> None:
        children = self.children(node, lines=double)
        if len(children) != 3:
            self.give_up(node)
            return
        left, middle, right = children
        operator = self.text_of(middle)
        if operator in ("&&", "||") and double:
            self._condition(double, left)
            self._condition(double, right)
            return
        if double and (self._begins_test(left) or self.text_of(right) == "]]"):
            self.give_up(node)
        if not re.fullmatch(r"[ \t]+\S+[ \t]+", self.text[left.end_byte : right.start_byte]):
            self.give_up(node)
        if operator in _TEXTS:
            self._operand(double, left)
            if right.type not in ("regex", "extglob_pattern"):
                self._operand(double, right)
            elif not _PATTERN.fullmatch(self.text, right.start_byte, right.end_byte):
                self.give_up(right, "a pattern was not understood")
        elif operator in _NUMBERS:
            for side in (left, right):
                source = self._operand(double, side).source
                named = _NAMED.fullmatch(source)
                if double and named:
                    self.findings.calculated.add(named[1])
                elif double and not _NUMBER.fullmatch(source):
                    self.give_up(side, _MAY_EVALUATE)
        else:
            self.give_up(node, _MAY_EVALUATE)

    def _operand(self, double: bool, node: Node) -> Word:
        word = self.word(node)
        special = re.fullmatch(r"\$[#?$!]", word.source)
        if not double and word.loose and not word.source.startswith('"') and not special:
            self.give_up(node, _MAY_EVALUATE)
        return word
