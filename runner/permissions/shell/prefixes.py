"""The reach of an allow rule that ends in a folder or an address: ``rm build/*``, ``curl https://x/*``.

Its ``*`` stands for what is below. Without this, ``rm build/../src``, ``rm build/x /home`` and
``curl https://x/a https://evil`` would fit.
"""

from __future__ import annotations

import re
import shlex

from runner.permissions.shell.files import operands_of
from runner.permissions.shell.words import names

_CLIMBS = re.compile(r"(?:^|[/{,\"'])\.(?:\.(?:[/},\"']|$)|[*?\[])|[$`]")
# Programs that do the same with each of their operands.
_ALIKE = names("""
    rm rmdir unlink shred truncate touch mkdir chmod chown chgrp cat head tail less more wc nl od xxd
    strings base64 bat md5sum sha256sum curl wget""")
# Their options that reach another host.
_ELSEWHERE = re.compile(
    r"-x.*|-:|--(?:url|next|proxy|preproxy|socks\w*|connect-to|resolve|doh-url|dns-servers|variable)(?:[=.-].*)?"
)


def stays_below(command: str, prefix: str, ends: bool) -> bool:
    """True if a command that begins with ``prefix``, a text up to a slash, names only paths below that.
    ``ends``: the rule allows any text after the prefix, so the command may have more operands."""
    rest = command[len(prefix) :]
    first, _, others = rest.partition(" ")
    if _CLIMBS.search(first):
        return False
    before = prefix.split(" ")
    program, start = before[0].rpartition("/")[2], before[-1]
    if not ends or program not in _ALIKE or len(before) == 1:
        return True
    try:
        words = shlex.split(others)
    except ValueError:
        return False
    reaches = program in ("curl", "wget") and any(map(_ELSEWHERE.fullmatch, words))
    operands = [each.removeprefix("./") for each in operands_of(program, words)]
    return not reaches and all(
        each.isdigit() or (each.startswith(start) and not _CLIMBS.search(each[len(start) :]))
        for each in operands
    )
