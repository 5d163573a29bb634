"""The proof that a call may run: what it is given for, and what it holds to at the file."""

from __future__ import annotations

import pytest

from runner.permissions import (
    Answer,
    Decision,
    MatchedRule,
    Request,
    ResolvedPath,
    Rule,
    ToolContext,
    digest_of,
)
from runner.permissions.decisions import Authorization, Policy

INPUT = {"command": "echo x > out"}
ALLOW = Decision("allow")
ASK = Decision("ask")
APPROVED = Answer("approved", digest_of(INPUT), "ann", places=("/work/out",))
SETTING = ToolContext("/work")


def authorization(
    policy: Policy, decision: Decision = ASK, answer: Answer | None = APPROVED
) -> Authorization:
    return Authorization(decision, answer, digest_of(INPUT), policy)


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        (Decision("deny"), None),
        (Decision("deny", (MatchedRule(Rule("deny", "Bash"), "Bash"),)), APPROVED),
        (ASK, None),
        (ASK, Answer("denied", digest_of(INPUT))),
        (ASK, Answer("expired", digest_of(INPUT))),
        (ASK, Answer("approved", digest_of({"command": "echo y"}))),
        (ASK, Answer("approved", digest_of(INPUT), input={"command": "echo y"})),
    ],
)
def test_what_was_not_allowed_cannot_be_authorized(decision, answer):
    with pytest.raises(ValueError, match="cannot run"):
        authorization(Policy(), decision, answer)


def test_authorization_is_for_the_input_that_a_person_edited():
    edited = {"command": "echo y"}
    answer = Answer("approved", digest_of(INPUT), input=edited)
    assert Authorization(ASK, answer, digest_of(edited), Policy())


@pytest.mark.parametrize(
    ("rules", "real", "effect"),
    [
        ((Rule("ask", "Edit"),), "/work/out", "allow"),  # what was approved
        ((Rule("ask", "Edit"),), "/etc/out", "deny"),  # it leads elsewhere by now
        ((), "/work/out", "allow"),  # the job's default asked, or a person overruled it
        ((Rule("deny", "Edit(/out)"),), "/work/out", "deny"),
        ((Rule("allow", "Edit(/**)"),), "/work/other", "allow"),
    ],
)
def test_approval_holds_for_the_place_that_it_was_given_for_and_never_against_a_denial(
    rules, real, effect
):
    place = ResolvedPath("/work/out", real)
    policy = Policy(rules)
    assert authorization(policy).check("Write", place, SETTING).effect == effect


def test_command_is_judged_again_by_where_it_leads_when_it_runs():
    policy = Policy((Rule("allow", "Bash(echo *)"), Rule("allow", "Edit(/src/**)")))
    request = {"command": "echo x > src/out"}
    allowed = Authorization(ALLOW, None, digest_of(request), policy)

    def leading_to(real: str) -> str:
        places = {"src/out": ResolvedPath("/work/src/out", real)}
        return allowed.check_again(
            Request("Bash", request, ToolContext("/work", places=places))
        ).effect

    assert leading_to("/work/src/out") == "allow"
    assert leading_to("/etc/out") == "deny"
