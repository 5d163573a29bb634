"""Analyses words: which expansions, arithmetic and tests bash evaluates in them, and the commands
inside."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from types import MappingProxyType

from tree_sitter import Node

from runner.permissions.shell.builtins import variable_risk
from runner.permissions.shell.harmless import PASSES_ON, printed
from runner.permissions.shell.script import INTEGERS, Part
from runner.permissions.shell.tree import EXPANSIONS, WORDS, Tree
from runner.permissions.shell.words import IS_GLOB, Printed, Reader, UnclearError, Word, names

_IN_WORDS = names("""
    concatenation word raw_string number string string_content ansi_c_string brace_expression
    variable_name""")
_SIMPLE_WORD = re.compile(r"[A-Za-z0-9_./:@%+,=^-]+")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_PIECE = r"(?:[^$`\\\"'<>{}()&|;]|\\[/.*?\[\]#%^_-])*"  # of a pattern or a text in an expansion
_PARAMETER = re.compile(
    r"\$\{#?(?:[A-Za-z_][A-Za-z0-9_]*(?:\[(?:[0-9]+|[@*])\])?|[0-9]+|[@*#?])"
    rf"(?:(?::?[-+?]|##?|%%?){_PIECE}|//?[#%]?{_PIECE}|\^\^?|,,?"
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

# Words that are globs for what they become.
_GLOB_TEXT = re.compile(r"[A-Za-z0-9_./+@:,=%*?-]*")
_TAKEN_OFF = re.compile(r"\$\{([A-Za-z_]\w*)(?:(%%?|##?)([^{}$]+))?\}")
_PART_OF_PATH = re.compile(
    r"\$\((basename|dirname) \"?\$\{?([A-Za-z_]\w*)\}?\"?(?: \"?(\.[A-Za-z0-9.]+)\"?)?\)"
)
_PARTS = {"basename": ("##", "*/", None), "dirname": ("%", "/*", ".")}
_MOST_GLOBS = 16
_LONGEST_GLOB = 1000
_ENDS = re.compile(r"[;\n]|\Z")
_UNARY = frozenset(f"-{letter}" for letter in "abcdefghknprstuwxzLNOSG")
_TEXTS = names("= == != < > =~ -nt -ot -ef")
_NUMBERS = names("-eq -ne -lt -le -gt -ge")
# A regular expression or a pattern with ``*(…)``; bash takes no operators in it, and parentheses in pairs.
_SIGN = r"(?:[^`$'\"\n\\&;<>()]|\$(?![A-Za-z0-9_({\['\"@*#?$!-])|\\[^\n])"
_PATTERN = re.compile(rf"(?:{_SIGN}|\((?:{_SIGN}|\({_SIGN}*\))*\))*")
_NUMBER = re.compile(r"-?[0-9]+|\"?\$(?:[#?]|\{#[A-Za-z_]\w*(?:\[[@*]\])?\})\"?")
_NAMED = re.compile(r"\"?\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?\"?")
# They set variables that are only known when they run, or what they do is not in the tree.
_SET_VARIABLES = names("""
    eval source . trap read mapfile readarray getopts let wait builtin command exec coproc""")
_CHANGES = re.compile(r"\s[-+]\w*[^\Wgprx]")  # options of ``declare`` that change values
_BEGINS_TEST = re.compile(r"-[A-Za-z]|!|\]\]")  # bash takes such a word for an operator
_MAY_EVALUATE = "a test may evaluate what a variable holds"


class Expansions(Tree):
    """Reads words and visits what bash evaluates; unknown syntax makes the script unanalyzable."""

    known: Mapping[str, Printed] = MappingProxyType({})  # what variables hold
    given: Mapping[str, Sequence[Node | None]] = MappingProxyType({})  # the words that set them

    def know_variables(self) -> None:
        """Find the variables that hold nothing but literal words, or what known commands print,
        wherever they are set. None is known when a command sets variables in another way."""
        values: dict[str, set[Printed]] = {}
        given: dict[str, list[Node | None]] = {}
        left = [self.root]
        while left:
            node = left.pop()
            left += node.children
            if node.type == "command_name":
                text = self.text_of(node)
                if text in _SET_VARIABLES or not _SIMPLE_WORD.fullmatch(text):
                    return
            elif node.type == "subscript" or (
                node.type == "declaration_command" and _CHANGES.search(self.text_of(node))
            ):
                return
            elif node.type == "variable_assignment":
                value = node.children[2] if len(node.children) == 3 else None
                kind = self._held(value, loop=False) if value is not None else ""
                name = self.text_of(node.children[0])
                values.setdefault(name, set()).add(kind)
                given.setdefault(name, []).append(value if node.children[1].type == "=" else None)
            elif node.type == "for_statement":
                words = [child for child in node.named_children[1:] if child.type in WORDS]
                name = self.text_of(node.named_children[0])
                values.setdefault(name, set()).update(
                    {self._held(word, loop=True) for word in words} or {""}
                )
                given.setdefault(name, []).extend(words or [None])
            elif node.type in (
                "arithmetic_expansion",
                "c_style_for_statement",
                "compound_statement",
            ):
                for name in filter(None, chain(*_SETS.findall(self.text_of(node)))):
                    given.setdefault(name, []).append(None)
        order: tuple[Printed, ...] = ("", "path", "word", "number")
        self.known = {name: min(kinds, key=order.index) for name, kinds in values.items()}
        self.given = given

    def _held(self, node: Node, *, loop: bool) -> Printed:
        """Return what a variable holds that is set to this word; in a ``loop``, or to its files."""
        text = self.text_of(node)
        if node.type == "command_substitution":
            kind = self._printed(node)
            return "" if loop and kind == "path" else kind
        if node.type == "arithmetic_expansion" or re.fullmatch("[0-9]+", text):
            return "number"
        if loop and re.fullmatch(
            r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\.{1,2}|)/[A-Za-z0-9_./*?-]+", text
        ):
            return "path"
        return "word" if re.fullmatch(r"[A-Za-z0-9_./][A-Za-z0-9_./^~-]*", text) else ""

    def _globs_of(self, node: Node) -> tuple[str, ...]:
        """Return globs for all that a word may become by what its variables hold, () if that is not
        known."""
        text = self.text_of(node)
        if node.type in ("string", "concatenation"):
            inside = text[1:-1] if node.type == "string" else text
            parts = [part for part in node.children if part.type != '"']
            if "".join(map(self.text_of, parts)) != inside:
                return ()
            found: dict[str, None] = {"": None}
            for part in parts:
                ends = self._globs_of(part)
                found = {start + end: None for start in found for end in ends}
                if len(found) > _MOST_GLOBS or any(len(glob) > _LONGEST_GLOB for glob in found):
                    return ()
            return tuple(found)
        if node.type == "raw_string":
            text = text[1:-1]
        if text in ("$(mktemp)", "$(mktemp -d)") and not re.search(r"TMPDIR|mktemp *\(", self.text):
            return ("/tmp/tmp.*",)
        if taken := _TAKEN_OFF.fullmatch(re.sub(r"^\$(\w+)$", r"${\1}", text)):
            return _without(self._globs_in(taken[1]), taken[2] or "", taken[3] or "")
        if named := _PART_OF_PATH.fullmatch(text):
            globs = self._globs_in(named[2])
            if any(re.match(r"-|/+\Z", glob) for glob in globs):
                return ()  # it may be an option
            shown = _without(tuple(glob.rstrip("/") for glob in globs), *_PARTS[named[1]])
            if named[1] == "dirname":
                shown = tuple(each or "/" for each in shown)
            fails = ("",) if any(glob[:1] in ("*", "?") for glob in globs) else ()
            return shown and (*fails, *_without(shown, "%", named[3] or ""))
        return (text,) if _GLOB_TEXT.fullmatch(text) else ()

    def _globs_in(self, name: str) -> tuple[str, ...]:
        """Return globs for all that a variable may hold, and nothing if it may not be set yet."""
        if name not in self._globs:
            self._globs[name] = ()  # a variable that holds itself is not known
            nodes = self.given.get(name, ()) if self._looked_up < _MOST_GLOBS else ()
            self._looked_up += 1
            own = variable_risk(name, exported=False) == "none"
            globs = [self._globs_of(node) if node is not None and own else () for node in nodes]
            if globs and all(globs):
                unset = () if self._is_set(name, nodes) else ("",)
                self._globs[name] = tuple(dict.fromkeys((*unset, *chain(*globs))))
            self._looked_up -= 1
        return self._globs[name]

    def _is_set(self, name: str, nodes: Sequence[Node | None]) -> bool:
        """True if a variable is set wherever it is named: after an assignment that is a command of the
        script, or in a loop over its values."""
        where = []
        for node in filter(None, nodes):
            by = node.parent
            if by is not None and by.type == "for_statement" and by.children[0].type == "for":
                where.append((by.start_byte, by.end_byte))
            elif by is not None and by.parent == self.root and _ENDS.match(self.text, by.end_byte):
                where.append((by.end_byte, len(self.text)))
        named = [use.start() for use in re.finditer(rf"\$\{{?{name}\b", self.text)]
        return "unset" not in self.text and all(
            any(start <= at < end for start, end in where) for at in named
        )

    _looked_up = 0  # variables that hold one another

    @cached_property
    def _globs(self) -> dict[str, tuple[str, ...]]:
        return {}

    @abstractmethod
    def lone_redirect(self, node: Node) -> None:
        """Visit a redirect that no word may follow."""

    def word(self, node: Node) -> Word:
        word = self._read(node)
        self.findings.words.append(word)
        return word

    def _read(self, node: Node) -> Word:
        start, end = node.start_byte, node.end_byte
        if not node.child_count and node.type in ("word", "number"):
            source = self.text[start:end]
            if _SIMPLE_WORD.fullmatch(source):
                return Word(source, source)
        expansions: dict[int, Node] = {}
        reason = ""
        if node.type in WORDS and self._collect(node, expansions):
            try:
                reader = Reader(self.text, expansions, self.visit_expansion, self._printed)
                word = reader.read(start, end)
                globs = self._globs_of(node) if reader.met and self.given else ()
                if reader.bare and any(map(IS_GLOB.search, globs)):
                    return word
                return word._replace(choices=tuple(filter(None, globs))) if globs else word
            except UnclearError as unclear:
                reason = str(unclear)
        self.give_up(node, reason)
        source = self.source_of(node)
        return Word(source, source, exact=False, loose=True)

    def _collect(self, node: Node, expansions: dict[int, Node]) -> bool:
        """Collect the expansions in a word. Return False if it has a node that is not known."""
        if node.type in EXPANSIONS:
            expansions[self.begin_of(node)] = node
            return True
        if node.is_named and node.type not in _IN_WORDS:
            return False
        return all(self._collect(child, expansions) for child in node.children)

    def begin_of(self, expansion: Node) -> int:
        """Return where an expansion begins: the grammar has blanks before it in some."""
        text = self.text_of(expansion)
        return expansion.start_byte + len(text) - len(text.lstrip(" \t\n"))

    def visit_expansion(self, node: Node) -> None:
        text = self.text[self.begin_of(node) : node.end_byte]
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
                if text == "$(pwd)" and not self.findings.defines_functions:
                    self.findings.calls.append(Part("pwd", ("pwd",)))  # it is $PWD
                    return
                redirect = {"file_redirect": self.lone_redirect}
                self.visit_each(self.children(node, lines=True), redirect, tokens, named=self.visit)
            case _:
                self.give_up(node)

    def is_number(self, node: Node) -> bool:
        """True if a word is a number, or becomes numbers and nothing else."""
        text = self.text_of(node)
        if node.type == "string" and node.named_child_count == 1:
            inner = node.named_children[0]
            node = inner if text == f'"{self.text_of(inner)}"' else node
        return (
            node.type == "arithmetic_expansion"
            or _NUMBER.fullmatch(text) is not None
            or re.fullmatch(r"\{-?[0-9]+\.\.-?[0-9]+(?:\.\.-?[0-9]+)?\}", text) is not None
            or (node.type == "command_substitution" and self._printed(node) == "number")
        )

    def _printed(self, node: Node) -> Printed:
        """Return what an expansion becomes, "" if that is not known."""
        text = self.text[self.begin_of(node) : node.end_byte]
        if node.type == "arithmetic_expansion":
            return "number"
        if self.findings.defines_functions:
            return ""  # one may have the name of a program
        if re.fullmatch(r"\$(?:HOME|PWD|\{HOME\}|\{PWD\})", text):
            return "path"
        if named := re.fullmatch(r"\s*\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", text):
            # What a program may have in its environment can hold anything before it is set.
            own = variable_risk(named[1], exported=False) == "none"
            return self.known.get(named[1], "") if own else ""
        if node.type != "command_substitution" or (text.startswith("`") and "\\" in text):
            return "number" if text in ("$#", "$?", "$$") else ""
        inside = [child for child in node.children if child.is_named]
        last = inside[0] if len(inside) == 1 else node
        return self.prints(last.named_children if last.type == "pipeline" else [last])

    def prints(self, commands: Sequence[Node]) -> Printed:
        """Return what the last command of a pipe prints, "" if that is not known."""
        commands = list(commands)
        whole = printed(" | ".join(map(self.text_of, commands))) if len(commands) > 1 else ""
        if whole:
            self.findings.trusts_output = True
            return whole
        while len(commands) > 1 and PASSES_ON.fullmatch(self.text_of(commands[-1])):
            commands.pop()
        last = commands[-1]
        if last.type == "redirected_statement" and all(
            re.fullmatch(r"<[^<>&()]+|2> ?/dev/null", self.text_of(child))
            for child in last.children[1:]
        ):
            last = last.children[0]
        if last.type != "command":
            return ""
        kind = printed(self.text_of(last))
        self.findings.trusts_output = self.findings.trusts_output or kind != ""
        return kind

    def _defaulted(self, node: Node, text: str) -> None:
        default = _DEFAULTED.match(text)
        children = self.children(node)
        if (
            default is None
            or len(children) != 5
            or children[3].start_byte != self.begin_of(node) + default.end()
        ):
            self.give_up(node, "a parameter expansion was not understood")
        elif re.search(r"['\\]", text):
            # Between double quotes and in here-documents single quotes do not quote in here.
            self.give_up(node, "quotes in a parameter expansion may not quote")
        else:
            self.word(children[3])

    def visit_arithmetic(self, node: Node) -> None:
        """Visit ``$((…))`` or ``((…))``."""
        text = self.text_of(node)
        for child in reversed(node.children):
            for inner in reversed(list(_substitutions(child))):
                begin, end = inner.start_byte - node.start_byte, inner.end_byte - node.start_byte
                alone = not re.search(r"[\w$]", text[begin - 1] + text[end : end + 1])
                if alone and self._printed(inner) == "number":
                    self.visit_expansion(inner)
                    text = f"{text[:begin]}1{text[end:]}"
        inside = re.fullmatch(r"\s*\$?\(\((.*)\)\)", text, re.DOTALL)
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
        for name in _NAME.findall(re.sub(r"\$\{#\w+\}|\b[0-9]+#\w+", "", text)):
            self.findings.calculated.add(name)
            if name not in INTEGERS and variable_risk(name, exported=False) == "high":
                self.findings.give_up(f"it sets {name}")

    def visit_test(self, node: Node) -> None:
        """Visit the operands of ``[[ … ]]`` or ``[ … ]``; give up if bash may evaluate them."""
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
                if double and _BEGINS_TEST.fullmatch(self.text_of(node)):
                    self.give_up(node)
                self._operand(double, node)

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
        if double and (_BEGINS_TEST.fullmatch(self.text_of(left)) or self.text_of(right) == "]]"):
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
                elif double and not (_NUMBER.fullmatch(source) or self.is_number(side)):
                    self.give_up(side, _MAY_EVALUATE)
        else:
            self.give_up(node, _MAY_EVALUATE)

    def _operand(self, double: bool, node: Node) -> Word:
        word = self.word(node)
        special = re.fullmatch(r"\$[#?$!]", word.source)
        if not double and (named := re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", word.source)):
            self.findings.calculated.add(named[1])  # a number is no operator
            return word
        if not double and word.loose and not word.source.startswith('"') and not special:
            self.give_up(node, _MAY_EVALUATE)
        return word


def _without(
    globs: tuple[str, ...], operator: str, pattern: str, otherwise: str | None = None
) -> tuple[str, ...]:
    """Return globs for the results of ``${x%pattern}`` on all texts that ``globs`` match; () if they are
    not known. A text that the pattern does not match becomes ``otherwise``, or stays as it is if that is
    None."""
    found: list[str] = []
    for glob in globs:
        tail = re.split(r"[*?]", glob)[-1]  # what it ends with for sure
        name, slash, last = glob.rpartition("/")
        match operator, pattern:
            case "##", "*/":
                found.append(last)
            case "%", "/*" if "**" not in glob:
                found.append(name if slash else glob if otherwise is None else otherwise)
            case "%", ".*" if "." in last and "." in tail:
                found.append(name + slash + last.rpartition(".")[0])
            case "%", ".*" if glob == tail and "." not in glob:
                found.append(glob)
            case (("" | "%"), _) if re.fullmatch(r"[\w.-]*", pattern):
                if len(tail) < len(pattern) and glob != tail and (tail or glob[-1] != "*"):
                    return ()
                found.append(glob.removesuffix(pattern))
            case _:
                return ()
    return tuple(dict.fromkeys(found))


def _substitutions(node: Node) -> Iterator[Node]:
    """Yield the outermost substitutions of commands in arithmetic."""
    if node.type == "command_substitution":
        yield node
        return
    for child in node.children:
        yield from _substitutions(child)
