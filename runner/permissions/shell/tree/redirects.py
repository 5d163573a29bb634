"""Redirects: the files that are read and written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tree_sitter import Node

from runner.permissions.shell.found import Moment
from runner.permissions.shell.words import Word, path_of

if TYPE_CHECKING:
    from runner.permissions.shell.tree.walk import Walk

_OPERATORS = frozenset([">", ">>", ">|", "&>", "&>>", "<", ">&", "<&"])
_NETWORK = re.compile(r"/+dev/+(?:\.*/+)*(?:tcp|udp)(?:/|$)")
_PLAIN = re.compile(r"[A-Za-z0-9_./~ +=:,@%-]+")
_NO_FILE = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"))


def redirect(walk: Walk, node: Node, moment: Moment) -> list[Word]:
    """Notes the file, opened at that moment; the words after it that belong to the command."""
    operator = ""
    targets: list[Word] = []
    pipe = False
    for child in walk.gaps(node):
        if child.type == "file_descriptor":
            if operator or walk.text[child.end_byte] not in "<>&":
                walk.obscure(node)
        elif child.is_named:
            pipe = pipe or (not targets and child.type == "process_substitution")
            targets.append(walk.word(child))
        else:
            operator = operator or child.type
    if operator in (">&-", "<&-"):
        return targets
    if targets and operator == "<<<":
        return targets[1:]
    if not targets or operator not in _OPERATORS:
        walk.obscure(node)
        return targets
    _target(walk, operator, targets[0], moment, pipe)
    return targets[1:]


def _target(walk: Walk, operator: str, word: Word, moment: Moment, pipe: bool) -> None:
    if operator in (">&", "<&") and word.exact and re.fullmatch(r"[0-9]+-?|-", word.value):
        return
    if "&" in operator and not _PLAIN.fullmatch(word.value):
        # Bash expands the word of ``>&`` a second time, what was quoted in it too.
        walk.found.obscure("bash expands the target of such a redirect twice")
    if _NETWORK.match(word.value):
        walk.found.obscure("it opens a network connection")
    path = path_of(word)
    if operator in ("<", "<&"):
        walk.found.read(path, moment, pipe=pipe)
    elif path not in _NO_FILE:
        walk.found.write(path, moment, pipe=pipe)
