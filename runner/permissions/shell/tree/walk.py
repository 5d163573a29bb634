"""The walk over a script's syntax tree: a whitelist of what is understood.

Every node type has its handler; any other node, an error node, or text that no node covers makes the
script obscure, and what is inside is still walked for the sake of deny and ask rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from runner.permissions.shell.commands import Commands
from runner.permissions.shell.found import Found, Moment
from runner.permissions.shell.names import weight
from runner.permissions.shell.tree import compounds, conditions, heredocs, redirects
from runner.permissions.shell.tree.compounds import TOKENS
from runner.permissions.shell.tree.expansions import Expansions
from runner.permissions.shell.tree.portable import is_portable
from runner.permissions.shell.words import Reader, UnclearError, Word, unicode

_PARSER = Parser(Language(tree_sitter_bash.language()))
# The grammar's scanner asks C's isalpha() about any character, which ends the process for some beyond
# ASCII. To bash their bytes are letters of a word like others, so the parser gets a letter for each.
_ASCII = bytes(byte if byte < 0x80 else ord("Q") for byte in range(256))
_DEEPEST = 150  # nodes below one another

_CONTAINERS = frozenset(
    [
        "program",
        "list",
        "pipeline",
        "compound_statement",
        "subshell",
        "do_group",
        "if_statement",
        "elif_clause",
        "else_clause",
        "negated_command",
    ]
)
_WORDS = frozenset(
    [
        "word",
        "number",
        "string",
        "raw_string",
        "concatenation",
        "simple_expansion",
        "expansion",
        "command_substitution",
        "process_substitution",
        "arithmetic_expansion",
        "ansi_c_string",
        "brace_expression",
    ]
)
_WORDLIKE = frozenset(("command_name", "variable_assignment", "heredoc_start"))
_EXPANSIONS = frozenset(
    [
        "simple_expansion",
        "expansion",
        "command_substitution",
        "process_substitution",
        "arithmetic_expansion",
    ]
)
_INSIDE = frozenset(
    [
        "concatenation",
        "word",
        "raw_string",
        "number",
        "string",
        "string_content",
        "ansi_c_string",
        "brace_expression",
        "variable_name",
    ]
)
_BLANK = re.compile(r"[ \t]*(?:(?<=[ \t\n])\\\n[ \t]*)*")
_BLANK_LINES = re.compile(r"[ \t\n]*(?:(?<=[ \t\n])\\\n[ \t\n]*)*")


class Walk:
    """Walks one script and adds what it runs to ``found``. ``shell`` is who reads it: anything else
    than bash understands less, and the rest in another way."""

    def __init__(self, command: str, found: Found, shell: str = "bash", level: int = 0) -> None:
        source = command.encode("utf-8", "replace")
        self.text = source.decode("latin-1")
        self.source = source
        self.found = found
        self.shell = shell
        self.level = level
        self.depth = 0
        self.base = found.here  # the command that runs this text
        self.commands = Commands(found, self._nested)
        self.expansions = Expansions(self)

    def _nested(self, text: str, shell: str, level: int) -> None:
        kind = self.shell if shell == "here" else shell
        Walk(text, self.found, kind, level).all()

    def all(self) -> None:
        """The whole script."""
        root = _PARSER.parse(self.source.translate(_ASCII)).root_node
        if root.has_error:
            self.found.miss("it cannot be parsed as bash", self.text)
        if self.shell != "bash" and not is_portable(root):
            self.found.obscure(f"it uses what {self.shell} may read in another way than bash")
        self.gap(0, root.start_byte, lines=True)
        self.gap(root.end_byte, len(self.text), lines=True)
        self.visit(root)

    def obscure(self, node: Node, reason: str = "") -> None:
        """This node is not understood; whatever commands are visible in it are still parts."""
        self.found.miss(
            reason or f"it has {node.type.replace('_', ' ')!r} in an unexpected place",
            self.text[node.start_byte : node.end_byte],
        )
        for child in node.named_children:
            self.visit(child)

    def gap(self, start: int, end: int, lines: bool = False) -> None:
        """Obscure when there is more than blanks from ``start`` to ``end``."""
        if start == end or (end == start + 1 and self.text[start] == " "):
            return
        blank = (_BLANK_LINES if lines else _BLANK).fullmatch(self.text, start, end)
        if blank is None:
            self.found.miss("some of its text was not understood", self.text[start:end])

    def gaps(self, node: Node, lines: bool = False, skipped: int = -1) -> list[Node]:
        """The node's children, comments left out, once nothing but blanks was found between (save
        at ``skipped``)."""
        at, children = node.start_byte, node.children
        word = False
        for child in children:
            if at != skipped:
                self.gap(at, child.start_byte, lines)
            follows, word = word, child.type in _WORDS or child.type in _WORDLIKE
            if child.type.endswith("_redirect") and self._names_descriptor(child):
                self.found.obscure("a redirect sets a variable")
            if follows and word and at == child.start_byte:
                self.found.obscure("it is not clear where a word ends")
            at = max(at, child.end_byte)
        self.gap(at, node.end_byte, lines)
        if any(child.type == "comment" for child in children):
            for child in children:
                if child.type == "comment" and not self._is_comment(child, lines):
                    self.found.obscure("a comment is in an unexpected place")
            return [child for child in children if child.type != "comment"]
        return children

    def _names_descriptor(self, node: Node) -> bool:
        """``{name}> file`` sets the variable."""
        before = self.text[max(0, node.start_byte - 200) : node.start_byte]
        return before.endswith("}") and re.search(r"\{[^{}\s]*\}$", before) is not None

    def _is_comment(self, node: Node, lines: bool) -> bool:
        before = self.text[node.start_byte - 1] if node.start_byte else "\n"
        after = self.text[node.end_byte : node.end_byte + 1]
        whole = "\n" not in self.text[node.start_byte : node.end_byte] and after in ("", "\n")
        return lines and whole and before in " \t\n;&|()"

    def visit(self, node: Node) -> None:
        """A statement, or whatever else stands where one may."""
        self.depth += 1
        if self.depth > _DEEPEST:
            text = self.text[node.start_byte : node.end_byte]
            self.found.miss("it is nested too deeply", text)
        elif node.type == "command":
            self._command(node, [])
        elif node.type in _CONTAINERS:
            self._container(node)
        else:
            handler = _HANDLERS.get(node.type)
            if handler is not None:
                handler(self, node)
            elif node.type not in _EXPANSIONS:
                self.obscure(node)
            else:
                self.found.obscure("a command is an expansion")
                self.expansions.visit(node)
        self.depth -= 1

    def _looped(self, node: Node) -> None:
        outer = self.found.loop
        if outer is None:
            self.found.loop = self._moment(node)
        _LOOPS[node.type](self, node)
        self.found.loop = outer

    def _moment(self, node: Node) -> Moment:
        return (*self.base, node.start_byte)

    def _container(self, node: Node) -> None:
        children = self.gaps(node, lines=True)
        if node.type == "compound_statement" and children and children[0].type == "((":
            self.expansions.arithmetic(node)
            return
        for child in children:
            if child.is_named:
                self.visit(child)
                if (
                    node.type == "program"
                    and child.type == "function_definition"
                    and not self.level
                ):
                    self._defined(child)
            elif child.type not in TOKENS and child.type != "\n":
                self.obscure(child)

    def _defined(self, node: Node) -> None:
        following = node.next_sibling
        if following is not None and following.type == "&":
            return
        name = next((c for c in node.children if c.type == "word"), None)
        if name is not None:
            self.found.functions.add(unicode(self.text[name.start_byte : name.end_byte]))

    def word(self, node: Node) -> Word:
        """A word as it is written; one that is not understood makes the script obscure."""
        start, end = node.start_byte, node.end_byte
        if not node.child_count and node.type in ("word", "number"):
            source = self.text[start:end]
            if _SIMPLE.fullmatch(source):
                return Word(source, source)
        expansions: dict[int, Node] = {}
        if node.type not in _WORDS or not self._collect(node, expansions):
            self.obscure(node)
            source = unicode(self.text[start:end])
            return Word(source, source, exact=False, loose=True)
        try:
            return Reader(self.text, expansions, self.expansions.visit).read(start, end)
        except UnclearError as unclear:
            self.obscure(node, str(unclear))
            source = unicode(self.text[start:end])
            return Word(source, source, exact=False, loose=True)

    def _collect(self, node: Node, expansions: dict[int, Node]) -> bool:
        if node.type in _EXPANSIONS:
            expansions[node.start_byte] = node
            return True
        if node.is_named and node.type not in _INSIDE:
            return False
        return all(self._collect(child, expansions) for child in node.children)

    def _command(self, node: Node, more: Sequence[Word]) -> None:
        words: list[Word] = []
        assigned: list[tuple[str, str]] = []
        for child in self.gaps(node):
            if child.type == "variable_assignment":
                assigned.append(self.assignment(child))
            elif child.type == "command_name":
                self.gap(child.start_byte, child.children[0].start_byte)
                words.append(self.word(child.children[0]))
                if child.child_count != 1:
                    self.obscure(child)
            elif child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
                words.extend(self.redirect(child, node))
            elif child.type == "subshell" and [w.value for w in words] == ["time"]:
                self.visit(child)
                return
            else:
                words.append(self.word(child))
        words.extend(more)
        source = unicode(self.text[node.start_byte : node.end_byte])
        self.found.here = self._moment(node)
        if words:
            self.commands.simple(words, assigned, source, self.level)
        else:
            self.obscure(node)

    def assignment(self, node: Node, declared: bool = False) -> tuple[str, str]:
        """The name that is set, and the assignment as written; ``declared``: by ``declare`` or its
        like, which evaluates the text of a value for an array once more."""
        source = unicode(self.text[node.start_byte : node.end_byte])
        children = self.gaps(node)
        name = source.partition("=")[0].removesuffix("+")
        if not children or children[0].type != "variable_name":
            self.obscure(node, "a subscript is evaluated by bash")
            return name.partition("[")[0], source
        value = children[2] if len(children) == 3 else None
        numeric = value is None
        if value is not None and value.type == "array":
            self.found.arrays = True
            for child in self.gaps(value, lines=True):
                if child.type not in "()" and self.word(child).source.startswith("["):
                    self.found.obscure("a subscript is evaluated by bash")
        elif value is not None:
            numeric = value.type == "arithmetic_expansion" or (
                re.fullmatch(r"-?[0-9]+", self.text[value.start_byte : value.end_byte]) is not None
            )
            word = self.word(value)
            self.found.late = self.found.late or (declared and not word.exact)
            if declared and word.value.lstrip().startswith("("):
                self.found.obscure("bash evaluates the text of such a value")
        if len(children) not in (2, 3) or children[1].type not in ("=", "+="):
            self.obscure(node)
        (self.found.numeric if numeric else self.found.tainted).add(name)
        return name, source

    def _assignments(self, node: Node) -> None:
        alone = node.type == "variable_assignment"
        for child in [node] if alone else self.gaps(node):
            if child.type != "variable_assignment":
                self.obscure(child)
                continue
            name, source = self.assignment(child)
            heavy = weight(name, exported=False)
            if heavy != "harmless":
                self.found.add(
                    source, {source: None}, f"it sets {name}" if heavy == "grave" else ""
                )

    def _declaration(self, node: Node) -> None:
        children = self.gaps(node)
        program = children[0].type
        words: list[Word] = []
        settings: list[tuple[str, str]] = []
        for child in children[1:]:
            if child.type == "variable_assignment":
                settings.append(self.assignment(child, declared=True))
            elif child.type == "variable_name":
                source = unicode(self.text[child.start_byte : child.end_byte])
                words.append(Word(source, source))
            else:
                words.append(self.word(child))
        source = unicode(self.text[node.start_byte : node.end_byte])
        exports = program == "export" or any(
            "x" in word.value for word in words if word.value[:1] == "-"
        )
        self.commands.declared(program, words, settings, source, exports)

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
            more.append(Word("-", "-"))
        children = self.gaps(node, skipped=dash)
        for child in children:
            if child.type.endswith("_redirect"):
                more.extend(self.redirect(child, body if first else None))
        if body is None:
            if more:
                self.obscure(node)
        elif body.type == "command":
            self._command(body, more)
        else:
            if more:
                self.found.obscure("words follow a redirect in an unexpected place")
            self.visit(body)

    def redirect(self, node: Node, command: Node | None = None) -> list[Word]:
        """Notes what is read or written, before the ``command`` that it belongs to runs, where that is
        certain; the words after it that belong to the command."""
        if node.type == "heredoc_redirect":
            return heredocs.heredoc(self, node)
        return redirects.redirect(self, node, self._moment(command or node))


_DASH = re.compile(r"[ \t]+-[ \t]+(?=[<>&0-9])")
_SIMPLE = re.compile(r"[A-Za-z0-9_./:@%+,=^-]+")

_LOOPS = {
    "for_statement": compounds.loop,
    "c_style_for_statement": compounds.counted,
    "while_statement": Walk._container,
}
_ALONE = {"command", "compound_statement", "subshell", "if_statement", "case_statement", *_LOOPS}
_HANDLERS = {
    "redirected_statement": Walk._redirected,
    "variable_assignment": Walk._assignments,
    "variable_assignments": Walk._assignments,
    "declaration_command": Walk._declaration,
    "unset_command": Walk._declaration,
    "function_definition": compounds.function,
    **dict.fromkeys(_LOOPS, Walk._looped),
    "case_statement": compounds.choice,
    "test_command": conditions.condition,
}
