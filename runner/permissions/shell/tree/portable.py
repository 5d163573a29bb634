"""What every POSIX shell reads as bash does; dash takes ``[[`` for a program and ``&>`` for ``&``."""

from __future__ import annotations

from tree_sitter import Node

_NODES = frozenset(
    [
        "program",
        "list",
        "pipeline",
        "command",
        "command_name",
        "word",
        "number",
        "string",
        "string_content",
        "raw_string",
        "simple_expansion",
        "special_variable_name",
        "variable_name",
        "variable_assignment",
        "command_substitution",
        "concatenation",
        "redirected_statement",
        "file_redirect",
        "file_descriptor",
        "comment",
        "subshell",
        "negated_command",
    ]
)
_TOKENS = frozenset(
    [";", "&", "&&", "||", "|", "!", "(", ")", "$", "$(", "`", '"', "=", ">", ">>", "<", ">&", "<&"]
)


def is_portable(node: Node) -> bool:
    """Is the tree made of nothing else?"""
    known = node.type in (_NODES if node.is_named else _TOKENS)
    return known and all(is_portable(child) for child in node.children)
