"""The permission language: rules, decisions, answers. Pure: it looks at nothing but its arguments."""

from runner.core.permissions.decision import Decision, Ground
from runner.core.permissions.permit import Answer, AnswerEffect, Permit, digest_of
from runner.core.permissions.policy import Default, Policy, evaluate
from runner.core.permissions.request import Place, Request, Setting, paths_of
from runner.core.permissions.rule import Effect, Rule

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
