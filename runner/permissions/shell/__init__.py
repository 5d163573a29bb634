"""What a bash command runs, reads and writes, as far as permission rules must know it."""

from __future__ import annotations

from functools import lru_cache

from runner.permissions.shell.found import Found, Part, Script
from runner.permissions.shell.raw import LONGEST, hidden_character, raw_forms
from runner.permissions.shell.tree.walk import Walk

__all__ = ["Part", "Script", "analyse"]


@lru_cache(maxsize=128)  # a hostile command's analysis takes most of a megabyte
def analyse(command: str) -> Script:
    """The simple commands in ``command`` as bash would run it, and the files it redirects to and
    from. Total: any text has a Script, one that cannot be read with certainty an opaque one.

    The grammar is tree-sitter-bash's, walked as a whitelist; words are read a second time by the
    rules of https://www.gnu.org/software/bash/manual/bash.html#Quoting, and where the two readings
    differ the script is opaque.
    """
    found = Found()
    if len(command) > LONGEST:
        found.miss(f"it is longer than {LONGEST:,} characters", command)
    else:
        hidden = hidden_character(command)
        if hidden:
            found.obscure(hidden)
        try:
            Walk(command, found).all()
        except RecursionError:
            found.miss("it is nested too deeply", command)
    return found.script(command, raw_forms)
