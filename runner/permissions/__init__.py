"""The permission language: rules, decisions, answers. Pure: it looks at nothing but its arguments."""

from runner.permissions.accesses import Request, paths_of
from runner.permissions.authorization import Answer, AnswerEffect, Permit, digest_of
from runner.permissions.decisions import Decision, Default, Ground, Policy, evaluate
from runner.permissions.paths import Place, Setting
from runner.permissions.rules import Effect, Rule

__all__ = [
    "Answer",
    "AnswerEffect",
    "Decision",
    "Default",
    "Effect",
    "Ground",
    "Permit",
    "Place",
    "Policy",
    "Request",
    "Rule",
    "Setting",
    "digest_of",
    "evaluate",
    "paths_of",
]
