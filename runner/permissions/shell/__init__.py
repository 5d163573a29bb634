"""The analysis of bash commands for permission rules: what they run, read and write."""

from __future__ import annotations

from functools import lru_cache

from runner.permissions.shell.script import Findings, Part, Script, hidden_character
from runner.permissions.shell.walk import Walk

__all__ = ["LONGEST", "Part", "Script", "analyse"]

LONGEST = 20_000  # characters of a command that is analysed


@lru_cache(maxsize=128)  # a hostile command's analysis takes most of a megabyte
def analyse(command: str) -> Script:
    """Return the simple commands in ``command`` as bash would run it, and the files that it
    redirects to and from. Total: a text that cannot be read with certainty is unanalyzable. The
    grammar is tree-sitter-bash's; words are read a second time by bash's rules of quoting, and
    where the two readings differ the script is unanalyzable."""
    findings = Findings()
    if len(command) > LONGEST:
        findings.give_up(f"it is longer than {LONGEST:,} characters", command)
    else:
        hidden = hidden_character(command)
        if hidden:
            findings.give_up(hidden)
        try:
            Walk(command, findings).all()
        except RecursionError:
            findings.give_up("it is nested too deeply", command)
    return findings.script(command)
