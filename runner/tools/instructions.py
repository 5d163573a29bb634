"""Reading what a workspace says to agents."""

# ruff: noqa: PTH118
# (its paths are strings)

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace

from runner.core.files.instructions import (
    INSTRUCTION_FILES,
    MOST_INSTRUCTION_BYTES,
    Instructions,
)
from runner.core.text.plain import plain
from runner.permissions import Policy, ResolvedPath, Rule
from runner.permissions.decisions import may_touch
from runner.tools.failure import ToolFailure
from runner.tools.files.permission import tool_context_of
from runner.tools.files.places import Places, open_file

_READ = "Read"
_ASKED_FOR = Rule("allow", _READ)


def read_instructions(
    root: str, places: Places, policy: Policy
) -> tuple[Sequence[Instructions], Sequence[str]]:
    """The files of instructions in a workspace's root, each once, whatever links there are between
    them.

    Args:
        root: the workspace, symlinks resolved.
        policy: the run's rules. No file is shown that they deny to Read or ask about.

    Returns:
        What they say; and of those that are there and are not used, why, a line each.
    """
    files: dict[str, Instructions] = {}
    left_out = []
    own = {name: os.path.join(root, name) for name in INSTRUCTION_FILES}
    for name, path in own.items():
        if not os.path.lexists(path):
            continue
        try:
            real = places.find(name)
            if real not in files:
                _require(ResolvedPath(path, real), places, policy, asked_for=real in own.values())
                files[real] = _read(name, real)
        except ToolFailure as failure:
            left_out.append(str(failure))
        except ValueError as error:
            left_out.append(f"{name}: {error}")
        except OSError as error:
            left_out.append(f"{name}: {error.strerror}")
    return list(files.values()), left_out


def _require(place: ResolvedPath, places: Places, policy: Policy, *, asked_for: bool) -> None:
    """Raise ``ValueError`` unless the rules let a file be read. One that the job has ``asked_for`` with
    its instructions needs no rule that allows it."""
    if asked_for:
        policy = replace(policy, rules=(*policy.rules, _ASKED_FOR))
    decision = may_touch(policy, _READ, place, tool_context_of(places))
    if decision.effect == "allow" or (asked_for and not decision.matched_rules):
        return
    leads = "" if place.real == place.named else f"it leads to {places.name(place.real)}: "
    raise ValueError(f"{leads}{_READ} is {decision.explain()}")


def _read(name: str, real: str) -> Instructions:
    with open(open_file(real, name), "rb") as file:
        content = file.read(MOST_INSTRUCTION_BYTES + 1)
    if len(content) > MOST_INSTRUCTION_BYTES:
        raise ValueError(f"it has more than {MOST_INSTRUCTION_BYTES:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    if not text.strip():
        raise ValueError("it is empty")
    return Instructions(name, hashlib.sha256(content).hexdigest(), plain(text))
