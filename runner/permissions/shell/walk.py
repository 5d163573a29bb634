"""The walk over a script's syntax tree: a whitelist of what is understood.

Every node type has its visitor; any other node, an error node, or text that no node covers makes the
script unanalyzable, and what is inside is still walked for the sake of deny and ask rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from tree_sitter import Node

from runner.permissions.shell.builtins import variable_risk
from runner.permissions.shell.commands import Commands
from runner.permissions.shell.expansions import (
    calculate,
    visit_arithmetic,
    visit_expansion,
    visit_test,
)
from runner.permissions.shell.redirects import visit_heredoc, visit_redirect
from runner.permissions.shell.script import Findings, Moment
from runner.permissions.shell.tree import EXPANSIONS, TOKENS, WORDS, Tree, Visitor, is_portable
from runner.permissions.shell.words import Reader, UnclearError, Word, names, plain_word

_DEEPEST = 150  # nodes below one another

_CONTAINERS = names("""
    program list pipeline compound_statement subshell do_group if_statement elif_clause else_clause
    negated_command""")
_BODIES = names("do_group compound_statement")
_FUNCTION_BODIES = names("compound_statement subshell if_statement while_statement")
_IN_WORDS = names("""
    concatenation word raw_string number string string_content ansi_c_string brace_expression
    variable_name""")
_REDIRECTS = names("file_redirect herestring_redirect heredoc_redirect")
_DASH = re.compile(r"[ \t]+-[ \t]+(?=[<>&0-9])")
_SIMPLE_WORD = re.compile(r"[A-Za-z0-9_./:@%+,=^-]+")
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_CASE = r"(?:\"[\w .\-/*?:=]*\"|'[\w .\-/*?:=]*'|[\w\-./*?\[\]!:,+=@%^]|\\ )+"
_CASES = re.compile(rf"\(?[ \t\n]*{_CASE}(?:[ \t\n]*\|[ \t\n]*{_CASE})*[ \t\n]*", re.ASCII)


class Walk(Tree):
    """Walks one script and adds what it runs to ``findings``.

    Args:
        shell: who reads it. Anything else than bash understands less, and the rest in another way.
        level: how many commands with a script in their arguments it is inside of.
    """

    def __init__(
        self, command: str, findings: Findings, shell: str = "bash", level: int = 0
    ) -> None:
        super().__init__(command, findings)
        self.shell = shell
        self.level = level
        self.depth = 0
        self.base = findings.here  # the command that runs this text
        self.commands = Commands(findings, self._nested)
        self._visit_expansion = partial(visit_expansion, self)

    def _nested(self, findings: Findings, text: str, shell: str, level: int) -> None:
        Walk(text, findings, self.shell if shell == "here" else shell, level).all()

    def all(self) -> None:
        """Walk the whole script."""
        root = self.root
        if root.has_error:
            self.findings.give_up("it cannot be parsed as bash", self.text)
        if self.shell != "bash" and not is_portable(root):
            self.findings.give_up(f"it uses what {self.shell} may read in another way than bash")
        self.gap(0, root.start_byte, lines=True)
        self.gap(root.end_byte, len(self.text), lines=True)
        self.visit(root)

    def visit(self, node: Node) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.findings.give_up("it is nested too deeply", self.text_of(node))
        elif node.type == "command":
            self._command(node, [])
        elif node.type in _CONTAINERS:
            self._container(node)
        else:
            visitor = _VISITORS.get(node.type)
            if visitor is not None:
                visitor(self, node)
            elif node.type not in EXPANSIONS:
                self.give_up(node)
            else:
                self.findings.give_up("a command is an expansion")
                visit_expansion(self, node)
        self.depth -= 1

    # --- Compound commands.

    def _container(self, node: Node) -> None:
        children = self.children(node, lines=True)
        if node.type == "compound_statement" and children and children[0].type == "((":
            visit_arithmetic(self, node)
            return
        for child in children:
            if child.is_named:
                self.visit(child)
                if child.type == "function_definition" and node.type == "program":
                    self._define(child)
            elif child.type not in TOKENS and child.type != "\n":
                self.give_up(child)

    def _function(self, node: Node) -> None:
        """What a function runs is taken for run, at any time from here on."""
        deferred, self.findings.deferred = self.findings.deferred, True
        visitors: dict[str, Visitor] = dict.fromkeys(_FUNCTION_BODIES, self.visit)
        visitors |= {"word": self._function_name, "file_redirect": self.lone_redirect}
        self.visit_each(self.children(node, lines=True), visitors, ("function", "(", ")"))
        self.findings.deferred = deferred

    def _function_name(self, node: Node) -> None:
        if not _FUNCTION_NAME.fullmatch(self.text_of(node)):
            self.give_up(node)

    def _define(self, node: Node) -> None:
        """Note the name of a function that is defined for sure."""
        following = node.next_sibling
        name = next((c for c in node.children if c.type == "word"), None)
        if not self.level and name is not None and (following is None or following.type != "&"):
            self.findings.functions.add(self.source_of(name))

    def _loop(self, node: Node) -> None:
        outer = self.findings.loop
        if outer is None:
            self.findings.loop = self._moment(node)
        _LOOPS[node.type](self, node)
        self.findings.loop = outer

    def _for(self, node: Node) -> None:
        """``for x in …`` and ``select``."""
        visitors: dict[str, Visitor] = dict.fromkeys(_BODIES, self.visit)
        visitors["variable_name"] = self._loop_variable
        tokens = ("for", "select", "in", ";", "\n")
        self.visit_each(self.children(node, lines=True), visitors, tokens, named=self.word)

    def _loop_variable(self, node: Node) -> None:
        name = self.text_of(node)
        self.findings.tainted.add(name)
        if variable_risk(name, exported=False) == "high":
            self.findings.give_up(f"it sets {name}")

    def _counted_for(self, node: Node) -> None:
        """``for ((…))``."""
        children = self.children(node, lines=True)
        header = [child for child in children if child.type not in _BODIES]
        calculate(self, self.text[header[0].start_byte + 3 : header[-1].end_byte], header)
        for child in children:
            if child.type in _BODIES:
                self.visit(child)

    def _case(self, node: Node) -> None:
        tokens = ("case", "in", "esac", ";", "\n")
        children = self.children(node, lines=True)
        self.visit_each(children, {"case_item": self._case_item}, tokens, named=self.word)

    def _case_item(self, node: Node) -> None:
        children = self.children(node, lines=True)
        close = next((i for i, c in enumerate(children) if c.type == ")"), None)
        if close is None:
            self.give_up(node)
        elif not _CASES.fullmatch(self.text, node.start_byte, children[close].start_byte):
            self.give_up(node, "a case pattern was not understood")
        else:
            self.visit_each(children[close + 1 :], {}, TOKENS, named=self.visit)

    # --- Simple commands.

    def _command(self, node: Node, more: Sequence[Word]) -> None:
        words: list[Word] = []
        assigned: list[tuple[str, str]] = []
        for child in self.children(node):
            if child.type == "variable_assignment":
                assigned.append(self._assignment(child))
            elif child.type == "command_name":
                self.gap(child.start_byte, child.children[0].start_byte)
                words.append(self.word(child.children[0]))
                if child.child_count != 1:
                    self.give_up(child)
            elif child.type in _REDIRECTS:
                words.extend(self.redirect(child, node))
            elif child.type == "subshell" and [w.value for w in words] == ["time"]:
                self.visit(child)
                return
            else:
                words.append(self.word(child))
        words.extend(more)
        self.findings.here = self._moment(node)
        if words:
            self.commands.simple(words, assigned, self.source_of(node), self.level)
        else:
            self.give_up(node)

    def _moment(self, node: Node) -> Moment:
        return (*self.base, node.start_byte)

    def _assignment(self, node: Node, declared: bool = False) -> tuple[str, str]:
        """Return the name that is set, and the assignment as written.

        Args:
            declared: by ``declare`` or its like, which evaluates the text of a value for an array
                once more.
        """
        source = self.source_of(node)
        children = self.children(node)
        name = source.partition("=")[0].removesuffix("+")
        if not children or children[0].type != "variable_name":
            self.give_up(node, "a subscript is evaluated by bash")
            return name.partition("[")[0], source
        value = children[2] if len(children) == 3 else None
        numeric = value is None
        if value is not None and value.type == "array":
            self.findings.arrays = True
            for child in self.children(value, lines=True):
                if child.type not in "()" and self.word(child).source.startswith("["):
                    self.findings.give_up("a subscript is evaluated by bash")
        elif value is not None:
            number = re.fullmatch(r"-?[0-9]+", self.text_of(value)) is not None
            numeric = number or value.type == "arithmetic_expansion"
            word = self.word(value)
            if declared and not word.exact:
                self.findings.declares_dynamic = True
            if declared and word.value.lstrip().startswith("("):
                self.findings.give_up("bash evaluates the text of such a value")
        if len(children) not in (2, 3) or children[1].type not in ("=", "+="):
            self.give_up(node)
        (self.findings.numeric if numeric else self.findings.tainted).add(name)
        return name, source

    def _assignments(self, node: Node) -> None:
        alone = node.type == "variable_assignment"
        for child in [node] if alone else self.children(node):
            if child.type != "variable_assignment":
                self.give_up(child)
                continue
            name, source = self._assignment(child)
            risk = variable_risk(name, exported=False)
            if risk != "none":
                hides = f"it sets {name}" if risk == "high" else ""
                self.findings.add(source, {source: None}, hides)

    def _declaration(self, node: Node) -> None:
        children = self.children(node)
        program = children[0].type
        words: list[Word] = []
        assigned: list[tuple[str, str]] = []
        for child in children[1:]:
            if child.type == "variable_assignment":
                assigned.append(self._assignment(child, declared=True))
            elif child.type == "variable_name":
                words.append(plain_word(self.source_of(child)))
            else:
                words.append(self.word(child))
        exports = program == "export" or any(
            "x" in word.value for word in words if word.value[:1] == "-"
        )
        self.commands.declared(program, words, assigned, self.source_of(node), exports)

    # --- Redirects and words.

    def _redirected(self, node: Node) -> None:
        body = next((c for c in node.children if not c.type.endswith("_redirect")), None)
        # The grammar has a redirect of the last command in a list or pipeline stand after all of it.
        first = body is not None and body.type in _ALONE
        first = first and all(child.type != "heredoc_redirect" for child in node.children)
        more: list[Word] = []
        dash = -1
        if body is not None and body.type == "command" and _DASH.match(self.text, body.end_byte):
            # The grammar drops a lone ``-`` before a redirect.
            dash = body.end_byte
            more.append(plain_word("-"))
        for child in self.children(node, skipped=dash):
            if child.type.endswith("_redirect"):
                more.extend(self.redirect(child, body if first else None))
        if body is None:
            if more:
                self.give_up(node)
        elif body.type == "command":
            self._command(body, more)
        else:
            if more:
                self.findings.give_up("words follow a redirect in an unexpected place")
            self.visit(body)

    def redirect(self, node: Node, command: Node | None = None) -> list[Word]:
        if node.type == "heredoc_redirect":
            return visit_heredoc(self, node)
        return visit_redirect(self, node, self._moment(command or node))

    def word(self, node: Node) -> Word:
        start, end = node.start_byte, node.end_byte
        if not node.child_count and node.type in ("word", "number"):
            source = self.text[start:end]
            if _SIMPLE_WORD.fullmatch(source):
                return Word(source, source)
        expansions: dict[int, Node] = {}
        reason = ""
        if node.type in WORDS and self._collect(node, expansions):
            try:
                return Reader(self.text, expansions, self._visit_expansion).read(start, end)
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


_LOOPS = {
    "for_statement": Walk._for,
    "c_style_for_statement": Walk._counted_for,
    "while_statement": Walk._container,
}
# What a redirect after it belongs to for sure.
_ALONE = {"command", "compound_statement", "subshell", "if_statement", "case_statement", *_LOOPS}
_VISITORS = {
    "redirected_statement": Walk._redirected,
    "variable_assignment": Walk._assignments,
    "variable_assignments": Walk._assignments,
    "declaration_command": Walk._declaration,
    "unset_command": Walk._declaration,
    "function_definition": Walk._function,
    **dict.fromkeys(_LOOPS, Walk._loop),
    "case_statement": Walk._case,
    "test_command": visit_test,
}
