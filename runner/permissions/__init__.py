"""The permission language: rules, decisions, answers. Pure: nothing here looks at anything but its
arguments."""

from runner.permissions.values import (
    REMEMBERED,
    STANDING,
    Answer,
    AnswerEffect,
    Decision,
    Default,
    Effect,
    MatchedRule,
    Request,
    ResolvedPath,
    Rule,
    ToolContext,
    digest_of,
)

__all__ = [
    "REMEMBERED",
    "STANDING",
    "Answer",
    "AnswerEffect",
    "Decision",
    "Default",
    "Effect",
    "MatchedRule",
    "Request",
    "ResolvedPath",
    "Rule",
    "ToolContext",
    "digest_of",
]
