"""The walk over a script's syntax tree: a whitelist of what is understood.

Every node type has its visitor; any other node, an error node, or text that no node covers makes the
script unanalyzable, and what is inside is still walked for the sake of deny and ask rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, takewhile

from tree_sitter import Node

from runner.permissions.shell.builtins import variable_risk
from runner.permissions.shell.commands import Commands, SimpleCommand
from runner.permissions.shell.expansions import Expansions
from runner.permissions.shell.files import ANY_READ, written
from runner.permissions.shell.mentions import runs_input
from runner.permissions.shell.script import Findings, Moment, raw_forms
from runner.permissions.shell.tree import EXPANSIONS, REDIRECTS, TOKENS, Visitor, is_portable
from runner.permissions.shell.words import (
    DEVICES,
    Assignment,
    Printed,
    Word,
    names,
    targets_of,
    unicode,
)

_DEEPEST = 150  # nodes below one another

_CONTAINERS = names("""
    program list pipeline compound_statement subshell do_group if_statement elif_clause else_clause
    negated_command""")
_SEPARATORS = TOKENS | {"\n"}
_CASE_ENDS = TOKENS | names(";; ;& ;;&")
_LOOPS = names("for_statement c_style_for_statement while_statement")
# What a redirect after it belongs to for sure.
_ALONE = _LOOPS | names("command compound_statement subshell if_statement case_statement")
_BODIES = names("do_group compound_statement")
_WHOLE = names("program redirected_statement subshell")  # they hold one statement
_FUNCTION_BODIES = names("compound_statement subshell if_statement while_statement")
_DASH = re.compile(r"[ \t]+-[ \t]+(?=[<>&0-9])")
_END = re.compile(r"[ \t]*(?:[|;)\n`]|&&|\Z)|[ \t]+#")
_AFTER_THEN = names("fi elif_clause else_clause")  # where nothing is between
# ``time`` is a keyword in them, before a subshell as well; elsewhere a program.
_BEFORE_TIME = names("""
    program list pipeline compound_statement do_group if_statement redirected_statement""")
_FUNCTION = re.compile(r"\(\s*\)|\bfunction\b")  # where one may be defined
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_CASE = r"(?:\"[\w .\-/*?:=]*\"|'[\w .\-/*?:=]*'|[\w\-./*?\[\]!:,+=@%^]|\\ )+"
_CASES = re.compile(rf"\(?[ \t\n]*{_CASE}(?:[ \t\n]*\|[ \t\n]*{_CASE})*[ \t\n]*", re.ASCII)
_OPERATORS = names("> >> >| &> &>> < >& <&")
_NETWORK = re.compile(r"/+dev/+(?:\.*/+)*(?:tcp|udp)(?:/|$)")
_PLAIN = re.compile(r"[A-Za-z0-9_./~ +=:,@%-]+")
_FROM_FILE = re.compile(r"(?:cat|head|tail|sort|shuf|tac) (?!.*\|.*\|)")
_HEREDOC_PARTS = names("heredoc_start heredoc_body heredoc_end")
_HEREDOC_START = re.compile(r"\\?([A-Za-z0-9_.-]+)|'([A-Za-z0-9_. -]+)'|\"([A-Za-z0-9_. -]+)\"")
# Literal texts that a command reads: of a here-document, of ``echo`` before it, or behind ``<<<``.
_QUOTED_TEXT = re.compile(r"(.*)", re.DOTALL)
_TEXT = re.compile(r"([^$`\\]*)")
_ECHO = re.compile(r"echo (?:'([^'\\]*)'|\"([^\"$`\\]*)\")")
_HERESTRING = re.compile(r"<<<[ \t]*(?:'([^']*)'|\"([^\"$`\\]*)\")")
_OUTPUT = re.compile(r"(?:[0-9]*|&)>[^&]|[0-9]*>&[0-9]")
_HEREDOC_EXPANSIONS = names("simple_expansion expansion command_substitution arithmetic_expansion")


class Walk(Expansions):
    """Walks one script and adds what it runs to ``findings``. ``shell`` reads it: anything else than
    bash understands less, and the rest in another way. It is inside of ``level`` commands with a script
    in their arguments."""

    def __init__(
        self, command: str, findings: Findings, shell: str = "bash", level: int = 0
    ) -> None:
        super().__init__(command, findings)
        self.shell = shell
        self.level = level
        self.depth = 0
        self.base = findings.here  # the command that runs this text
        self.commands = Commands(findings, self._nested)

    def _nested(self, findings: Findings, text: str, shell: str, level: int) -> None:
        Walk(text, findings, self.shell if shell == "here" else shell, level).all()

    def all(self) -> None:
        root = self.root
        if ("(" in self.text or "function" in self.text) and _FUNCTION.search(self.text):
            self.findings.defines_functions = True
        elif not self.base:
            if "$" in self.text or "`" in self.text:
                self.know_variables()
            self.findings.enters = next(filter(None, map(self._enters, root.named_children)), 0)
        if root.has_error:
            self.findings.give_up("it cannot be parsed as bash", self.text)
        if self.shell != "bash" and not is_portable(root):
            self.findings.give_up(f"it uses what {self.shell} may read in another way than bash")
        self.gap(0, root.start_byte, lines=True)
        self.gap(root.end_byte, len(self.text), lines=True)
        self.visit(root)

    def _enters(self, node: Node) -> int:
        """Return the end of a statement that begins with a ``cd`` and runs its other commands only if the
        ``cd`` succeeds (``cd sub && make``); 0 for any other statement."""
        end = node.end_byte
        while node.type in _WHOLE:
            bodies = [
                child
                for child in node.named_children
                if child.type != "comment" and child.type not in REDIRECTS
            ]
            if len(bodies) != 1:
                return 0
            node = bodies[0]
        chained = node.type == "list"
        # The redirect of a command is behind the list that ends with it.
        while node.type == "redirected_statement" or (
            node.type == "list" and node.children[1].type == "&&"
        ):
            node = node.children[0]
        enters = chained and node.type == "command" and self.text_of(node).startswith("cd ")
        return end if enters else 0

    def visit(self, node: Node) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.findings.give_up("it is nested too deeply", self.text_of(node))
        elif visitor := _VISITORS.get(node.type):
            visitor(self, node)
        elif node.type in EXPANSIONS:
            self.findings.give_up("a command is an expansion")
            self.visit_expansion(node)
        else:
            self.give_up(node)
        self.depth -= 1

    # --- Compound commands.

    def _container(self, node: Node) -> None:
        children = self.children(node, lines=True)
        if node.type == "compound_statement" and children and children[0].type == "((":
            self.visit_arithmetic(node)
        else:
            for child in children[1:] if node.type == "pipeline" else ():
                before, last = self.text[node.start_byte : child.start_byte], self.text_of(child)
                if child.is_named and runs_input(last, names=child is children[-1]):
                    self.findings.fed.append(unicode(before))
                if _FROM_FILE.match(before) and last.startswith("xargs"):
                    self.findings.listed.append(ANY_READ)
            if _is_refused(node, children):
                self.give_up(node)
            self.visit_each(children, {}, _SEPARATORS, named=self.visit)

    def _function(self, node: Node) -> None:
        """Count a function's commands as run, at any time from here on."""
        deferred, self.findings.deferred = self.findings.deferred, True
        self.findings.defines_functions = True
        visitors: dict[str, Visitor] = dict.fromkeys(_FUNCTION_BODIES, self.visit)
        visitors |= {"word": self._function_name, "file_redirect": self.lone_redirect}
        self.visit_each(self.children(node, lines=True), visitors, ("function", "(", ")"))
        self.findings.deferred = deferred
        above, following = node.parent, node.next_sibling
        name = next((child for child in node.children if child.type == "word"), None)
        at_once = following is None or following.type != "&"
        if above and above.type == "program" and name and at_once and not self.level:
            self.findings.functions.add(self.source_of(name))  # it is defined for sure

    def _function_name(self, node: Node) -> None:
        if not _FUNCTION_NAME.fullmatch(self.text_of(node)):
            self.give_up(node)

    def _loop(self, node: Node) -> None:
        outer = self.findings.loop
        if outer is None:
            self.findings.loop = self._moment(node)
        children = self.children(node, lines=True)
        match node.type:
            case "for_statement":  # and ``select``
                visitors: dict[str, Visitor] = dict.fromkeys(_BODIES, self.visit)
                values = [each for each in children if each.is_named and each.type not in _BODIES]
                numeric = len(values) > 1 and all(map(self.is_number, values[1:]))
                visitors["variable_name"] = partial(self._loop_variable, numeric)
                tokens = ("for", "select", "in", ";", "\n")
                words = [each for each in children[2:] if each.type not in (*tokens, *_BODIES)]
                if words and re.search(
                    r"(?<!\\)\n", self.text[node.start_byte : words[-1].start_byte]
                ):
                    self.give_up(node)
                self.visit_each(children, visitors, tokens, named=self.word)
            case "c_style_for_statement":
                header = [child for child in children if child.type not in _BODIES]
                begin, end = header[0].start_byte + 3, header[-1].end_byte
                self.calculate(self.text[begin:end], header)
                for child in children:
                    if child.type in _BODIES:
                        self.visit(child)
            case _:
                self.visit_each(children, {}, _SEPARATORS, named=self.visit)
        self.findings.loop = outer

    def _loop_variable(self, numeric: bool, node: Node) -> None:
        name = self.text_of(node)
        (self.findings.numeric if numeric else self.findings.tainted).add(name)
        if variable_risk(name, exported=False) == "high":
            self.findings.give_up(f"it sets {name}")

    def _case(self, node: Node) -> None:
        tokens = ("case", "in", "esac", ";", "\n")
        children = self.children(node, lines=True)
        last = children[-2] if len(children) > 1 else node
        if last.type == "case_item" and last.children[-1].is_named:
            between = self.text[last.children[-1].end_byte : children[-1].start_byte]
            if not re.search(r"[;\n]", between):
                self.give_up(node, "it is not clear where a case ends")
        self.visit_each(children, {"case_item": self._case_item}, tokens, named=self.word)

    def _case_item(self, node: Node) -> None:
        children = self.children(node, lines=True)
        close = next((i for i, c in enumerate(children) if c.type == ")"), None)
        if close is None:
            self.give_up(node)
        elif not _CASES.fullmatch(self.text, node.start_byte, children[close].start_byte):
            self.give_up(node, "a case pattern was not understood")
        else:
            self.visit_each(children[close + 1 :], {}, _CASE_ENDS, named=self.visit)

    # --- Simple commands.

    def _command(self, node: Node, more: Sequence[Word] = ()) -> None:
        words: list[Word] = []
        assigned: list[Assignment] = []
        for child in self.children(node):
            kind = child.type
            if kind == "variable_assignment":
                assigned.append(self._assignment(child))
            elif kind == "command_name":
                self.gap(child.start_byte, child.children[0].start_byte)
                words.append(self.word(child.children[0]))
                if child.child_count != 1:
                    self.give_up(child)
            elif kind in REDIRECTS:
                words += self._redirect(child, node)
            elif kind == "subshell" and [w.source for w in words] == ["time"]:
                above = node.parent
                first = (
                    above is not None
                    and above.type in _BEFORE_TIME
                    and (above.type != "pipeline" or above.start_byte == node.start_byte)
                )
                if assigned or not first:
                    self.give_up(node)
                self.visit(child)
                return
            else:
                words.append(self.word(child))
        words += more
        self.findings.here = self._moment(node)
        self.findings.feeds = _feeds(node)
        if words:
            command = SimpleCommand(
                words,
                level=self.level,
                piped=self._piped(node),
                fed=self._fed(node),
                given=self._given(node) if words[0].value == "xargs" else "",
            )
            self.commands.simple(command, assigned, self.source_of(node))
        else:
            self.give_up(node)

    def _piped(self, node: Node) -> bool:
        """True for a command behind ``|`` with no redirect of its own, which would be at its end."""
        above = node.parent
        if above is None or above.type != "pipeline" or node.prev_sibling is None:
            return False
        redirects = any(child.type in REDIRECTS for child in node.children)
        return not redirects and bool(_END.match(self.text, node.end_byte))

    def _given(self, node: Node) -> Printed:
        """Return what a command reads from a pipe, "" if that is not known."""
        before = takewhile(
            lambda child: child != node, node.parent.named_children if node.parent else ()
        )
        return self.prints(list(before)) if self._piped(node) else ""

    def _fed(self, node: Node) -> str | None:
        """Return the text that a command reads from its input, None if that is not literal."""
        # Most scripts redirect no input, and a search of the tree for a redirect is slow.
        given = self._input(node) if "<" in self.text else self._echoed(node)
        return unicode("".join(filter(None, given.groups()))) if given else None

    def _echoed(self, node: Node) -> re.Match[str] | None:
        before = node.prev_named_sibling if self._piped(node) else None
        return _ECHO.fullmatch(self.text_of(before)) if before else None

    def _input(self, node: Node) -> re.Match[str] | None:
        top = node
        while top.parent and top.parent.type in ("list", "pipeline") and not top.next_sibling:
            top = top.parent  # a redirect of its last command stands behind it
        beside = top.parent.children if top.parent and top.parent.type in _WHOLE else []
        redirects = [c for c in (*node.children, *beside) if c.type in REDIRECTS]
        redirects += [c for each in redirects for c in each.children if c.type in REDIRECTS]
        inputs = [each for each in redirects if not _OUTPUT.match(self.text_of(each))]
        if not inputs:
            return self._echoed(node)
        if len(inputs) > 1:
            return None
        if inputs[0].type == "herestring_redirect":
            return _HERESTRING.fullmatch(self.text_of(inputs[0]))
        parts = {child.type: child for child in inputs[0].children}
        start, end = parts.get("heredoc_start"), parts.get("heredoc_end")
        if start is None or end is None:
            return None
        text = _QUOTED_TEXT if self.text[start.start_byte] in "\\'\"" else _TEXT
        return text.fullmatch(self.text, self.text.find("\n", start.end_byte), end.start_byte)

    def _moment(self, node: Node) -> Moment:
        return (*self.base, node.start_byte)

    def _assignment(self, node: Node, declared: bool = False) -> Assignment:
        """Return the assignment of a node. ``declared``: it is in a ``declare``, which evaluates the
        values of arrays again."""
        source = self.source_of(node)
        children = self.children(node)
        name = source.partition("=")[0].removesuffix("+")
        if not children or children[0].type != "variable_name":
            self.give_up(node, "a subscript is evaluated by bash")
            return Assignment(name.partition("[")[0], source, None)
        value = children[2] if len(children) == 3 else None
        word = Word("", "") if value is None else None
        numeric = value is None
        if value is not None and value.type == "array":
            self.findings.arrays = True
            for child in self.children(value, lines=True):
                if child.type not in "()" and self.word(child).source.startswith("["):
                    self.findings.give_up("a subscript is evaluated by bash")
        elif value is not None:
            numeric = self.is_number(value)
            word = self.word(value)
            if declared and not word.exact:
                self.findings.declares_dynamic = True
            if declared and word.value.lstrip().startswith("("):
                self.findings.give_up("bash evaluates the text of such a value")
        if len(children) not in (2, 3) or children[1].type not in ("=", "+="):
            self.give_up(node)
        (self.findings.numeric if numeric else self.findings.tainted).add(name)
        return Assignment(name, source, word if children[1].type == "=" else None)

    def _assignments(self, node: Node) -> None:
        for child in [node] if node.type == "variable_assignment" else self.children(node):
            if child.type != "variable_assignment":
                self.give_up(child)
                continue
            each = self._assignment(child)
            risk = variable_risk(each.name, False, each.value)
            if risk != "none":
                hides = f"it sets {each.name}" if risk == "high" else ""
                forms = (each.source, *(raw_forms(each.source) if hides else ()))
                self.findings.add(each.source, dict.fromkeys(forms), hides)

    def _declaration(self, node: Node) -> None:
        first, *children = self.children(node)
        words: list[Word] = []
        assigned: list[Assignment] = []
        for child in children:
            if child.type == "variable_assignment":
                assigned.append(self._assignment(child, declared=True))
            elif child.type == "variable_name":
                words.append(Word(self.source_of(child), self.source_of(child)))
            else:
                words.append(self.word(child))
        self.commands.declared(first.type, words, assigned, self.source_of(node))

    # --- Redirects: the files that are read and written.

    def _redirected(self, node: Node) -> None:
        body = next((c for c in node.children if c.type not in REDIRECTS), None)
        # The grammar has a redirect of the last command in a list or pipeline stand after all of it.
        first = body is not None and body.type in _ALONE
        first = first and all(child.type != "heredoc_redirect" for child in node.children)
        more: list[Word] = []
        dash = -1
        if body is not None and body.type == "command" and _DASH.match(self.text, body.end_byte):
            # The grammar drops a lone ``-`` before a redirect.
            dash = body.end_byte
            more.append(Word("-", "-"))
        for child in self.children(node, skipped=dash):
            if child.type in REDIRECTS:
                more += self._redirect(child, body if first else None)
        if body is None:
            if more:
                self.give_up(node)
        elif body.type == "command":
            self._command(body, more)
        else:
            if more:
                self.findings.give_up("words follow a redirect in an unexpected place")
            self.visit(body)

    def lone_redirect(self, node: Node) -> None:
        if self._redirect(node):
            self.give_up(node)

    def _redirect(self, node: Node, command: Node | None = None) -> list[Word]:
        """Add what a redirect reads or writes. Return the words after it that belong to the command.
        The file is opened before ``command``, where it is certain that the redirect belongs to it."""
        if node.type == "heredoc_redirect":
            return self._heredoc(node)
        operator = descriptor = ""
        targets: list[Word] = []
        pipe = False
        for child in self.children(node):
            if child.type == "file_descriptor":
                descriptor = self.text_of(child)
                if operator or self.text[child.end_byte] not in "<>&":
                    self.give_up(node)
            elif child.is_named:
                pipe = pipe or (not targets and child.type == "process_substitution")
                targets.append(self.word(child))
            else:
                operator = operator or child.type
        if operator in (">&-", "<&-"):
            return targets
        above = self.text_of(node.parent) if node.parent is not None else ""
        if operator == "<" and re.search(r"\bxargs\b", above):
            self.findings.listed.append(ANY_READ)
        if targets and operator in _OPERATORS:
            self._connect(operator, descriptor, targets[0])
            self._open(operator, targets[0], self._moment(command or node), pipe)
        elif not targets or operator != "<<<":
            self.give_up(node)
            return targets
        elif node.parent is not None and runs_input(self.text_of(node.parent)):
            self.findings.fed.append(targets[0].value)
        return targets[1:]

    def _connect(self, operator: str, descriptor: str, word: Word) -> None:
        """Note a redirect that connects ``/dev/stderr`` to a file opened for reading, or ``/dev/stdin`` to
        one opened for writing: through these names a program can then do both."""
        number = descriptor or ("0" if operator.startswith("<") else "1")
        if operator in (">&", "<&") and re.fullmatch(r"[0-9]+-?", word.value):
            from_output = word.value.rstrip("-") in ("1", "2")
            other = word.value.rstrip("-") not in ("0", "1", "2")
        else:
            from_output, other = not operator.startswith("<"), False
        if number in ("1", "2") and (other or not from_output):
            self.findings.sources_written = True
        elif number == "0" and (other or from_output):
            self.findings.targets_read = True

    def _open(self, operator: str, word: Word, moment: Moment, pipe: bool) -> None:
        if operator in (">&", "<&") and word.exact and re.fullmatch(r"[0-9]+-?|-", word.value):
            return
        if "&" in operator and not _PLAIN.fullmatch(word.value):
            # Bash expands the word of ``>&`` a second time, what was quoted in it too.
            self.findings.give_up("bash expands the target of such a redirect twice")
        if any(map(_NETWORK.match, (word.value, *word.choices))):
            self.findings.give_up("it opens a network connection")
        reads = operator in ("<", "<&")
        if reads and word.choices and targets_of(word) == ("",):
            self.findings.globs += word.choices
            return
        # Where a redirect's target is a glob, bash writes the file that matches, or makes one of that name.
        known = word.choices and not reads
        paths, globs = written(word) if known else (targets_of(word), [])
        self.findings.matches += globs
        for path in paths:
            if reads:
                self.findings.reads.append(self.findings.target(path, moment, pipe))
            elif path not in DEVICES:
                self.findings.writes.append(self.findings.target(path, moment, pipe))

    # --- Here-documents: the grammar reads their text only in part.

    def _heredoc(self, node: Node) -> list[Word]:
        """Visit a here-document. Return the words after its operator, which are the command's."""
        words: list[Word] = []
        found: dict[str, Node] = {}  # its beginning, body and end, by type
        at = node.start_byte
        self.children(node, lines=True)
        for child in node.children:
            self.gap(at, child.start_byte, child.type in ("heredoc_body", "heredoc_end"))
            at = max(at, child.end_byte)
            if child.type in _HEREDOC_PARTS:
                found[child.type] = child
            elif child.type in ("file_redirect", "herestring_redirect"):
                words += self._redirect(child)
            elif child.type in ("pipeline", "list", "command"):
                statements = self.children(child) if child.type == "pipeline" else [child]
                if any(each.type == "negated_command" for each in statements) or (
                    "\n" in self.text_of(child)
                ):
                    self.give_up(child)
                self.visit_each(statements, {}, ("|", "|&"), named=self.visit)
            elif child.is_named:
                words.append(self.word(child))
            elif child.type not in ("<<", "<<-", "&&", "||"):
                self.give_up(child)
        start, end = found.get("heredoc_start"), found.get("heredoc_end")
        if start is None or end is None:
            self.give_up(node, "a here-document has no end")
        else:
            self._check_heredoc(node, start, found.get("heredoc_body"), end)
        return words

    def _check_heredoc(self, node: Node, start: Node, body: Node | None, end: Node) -> None:
        tag = _HEREDOC_START.fullmatch(self.text, start.start_byte, start.end_byte)
        word = next(filter(None, tag.groups())) if tag else None
        first = self.text.find("\n", start.end_byte) + 1
        strip = self.text.startswith("<<-", node.start_byte)
        lines = self.text[first : end.end_byte].split("\n")
        ends = [line.lstrip("\t") if strip else line for line in lines]
        following = self.text[end.end_byte : end.end_byte + 1]
        if first and runs_input(self.text[(node.parent or node).start_byte : first]):
            self.findings.fed.append(unicode(self.text[first : end.end_byte]))
        clear = first and ends[-1] == word and word not in ends[:-1] and following in ("", "\n")
        if not clear or (body is not None and body.start_byte < first):
            self.give_up(node, "the end of a here-document is not clear")
        elif self.text[start.start_byte] not in "\\'\"":
            self._expanded(node, self.text[first : end.start_byte], first, body)

    def _expanded(self, node: Node, text: str, first: int, body: Node | None) -> None:
        """Visit the expansions in the text of a here-document, which begins at ``first``."""
        expansions = (
            {self.begin_of(child): child for child in body.children} if body is not None else {}
        )
        for child in expansions.values():
            if child.type in _HEREDOC_EXPANSIONS:
                self.visit_expansion(child)
            elif child.type != "heredoc_content":
                self.give_up(child)
        at = 0
        while at < len(text):
            inner = expansions.get(first + at)
            if text[at] == "\\":
                if text[at + 1 : at + 2] == "\n":
                    self.give_up(node, "a line goes on inside of a here-document")
                    return
                at += 2
            elif text[at] in "$`" and inner is not None and inner.type != "heredoc_content":
                at = inner.end_byte - first
            elif text[at] == "`" or re.match(r"\$[A-Za-z0-9_({\[`@*#?$!\\-]", text[at : at + 2]):
                self.give_up(node, "an expansion in a here-document was not understood")
                return
            else:
                at += 1


def _feeds(node: Node) -> bool:
    """True if another command may read what a command prints."""
    above = node.parent
    while above is not None:
        piped = above.type == "pipeline" and node.next_sibling is not None
        if piped or above.type in EXPANSIONS:
            return True
        node, above = above, above.parent
    return False


def _is_refused(node: Node, children: Sequence[Node]) -> bool:
    """True for scripts that the grammar accepts and bash does not: a list without a command, ``!`` after a
    pipe."""
    kinds = [child.type for child in children]
    if node.type == "pipeline" and "negated_command" in kinds[1:]:
        return True
    nothing = node.type != "program" and not any(child.is_named for child in children)
    return nothing or any(
        kind == "then" and after in _AFTER_THEN for kind, after in pairwise([*kinds, "fi"])
    )


_VISITORS: dict[str, Callable[[Walk, Node], object]] = {
    "command": Walk._command,
    **dict.fromkeys(_CONTAINERS, Walk._container),
    **dict.fromkeys(_LOOPS, Walk._loop),
    "redirected_statement": Walk._redirected,
    "variable_assignment": Walk._assignments,
    "variable_assignments": Walk._assignments,
    "declaration_command": Walk._declaration,
    "unset_command": Walk._declaration,
    "function_definition": Walk._function,
    "case_statement": Walk._case,
    "test_command": Walk.visit_test,
}
