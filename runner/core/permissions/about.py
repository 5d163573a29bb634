"""Whether a call is one that rules are about, whatever they would decide."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from runner.core.permissions.policy import Policy, evaluate
from runner.core.permissions.request import Request
from runner.core.permissions.rule import Rule


def is_about(rules: tuple[Rule, ...], request: Request) -> bool:
    """Whether one of the rules matches any part of a call: a command of its script, a path. A call with
    too many parts to look at is one."""
    decision = evaluate(_asking_about(rules), request)
    return decision.effect == "deny" or bool(decision.grounds)


@lru_cache(maxsize=64)
def _asking_about(rules: tuple[Rule, ...]) -> Policy:
    """A policy that has grounds for what one of the rules matches, and none for anything else."""
    return Policy(tuple(replace(rule, effect="ask", origin="job") for rule in rules), "ask")
