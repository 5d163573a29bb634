"""The permission language: rules, decisions, answers. Pure: nothing here looks at anything but its
arguments."""

from runner.permissions.accesses import Request, paths_of
from runner.permissions.decisions import (
    Answer,
    AnswerEffect,
    Authorization,
    Decision,
    Default,
    MatchedRule,
    Policy,
    digest_of,
    evaluate,
)
from runner.permissions.paths import ResolvedPath, ToolContext
from runner.permissions.rules import Effect, Rule

__all__ = [
    "Answer",
    "AnswerEffect",
    "Authorization",
    "Decision",
    "Default",
    "Effect",
    "MatchedRule",
    "Policy",
    "Request",
    "ResolvedPath",
    "Rule",
    "ToolContext",
    "digest_of",
    "evaluate",
    "paths_of",
]
