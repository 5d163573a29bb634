"""The rules of a job in snapshots."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest

from runner.core.run import Author
from runner.errors import NotFoundError, UsageError
from runner.permissions import ResolvedPath, Rule, ToolContext
from runner.permissions.decisions import Policy
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.rules import list_rules, policy_for, revoke, rules_at
from runner.store.run_state import tool_context_from_json
from tests.store.asked import ASKING, add_rules, run_ids, submit_asking
from tests.store.examples import NOW, submission


def texts_at(database: Database, job_id: str, snapshot: int) -> list[str]:
    return [rule.text for rule in database.read(lambda c: rules_at(c, job_id, snapshot))]


def test_submitted_rules_are_the_first_snapshot_with_their_author(database: Database) -> None:
    job_id = submit_asking(database)
    stored = list_rules(database, job_id)
    assert [(rule.position, rule.effect, rule.rule) for rule in stored] == [
        (0, "allow", "Read"),
        (1, "ask", "Bash"),
        (2, "deny", "Bash(rm *)"),
    ]
    assert {(rule.author, rule.created_at, rule.origin, rule.added_in) for rule in stored} == {
        ("ada", NOW, "job", 1)
    }


def test_rule_that_no_database_holds_is_refused(database: Database) -> None:
    spec = replace(ASKING, rules=(Rule("deny", "Bash", why="no\0"),))
    with pytest.raises(UsageError, match="the rule 'Bash' has a character"):
        jobs_store.submit(database, submission(spec=spec), NOW)


def test_rules_are_read_back_as_they_were_stored(database: Database) -> None:
    job_id = submit_asking(database)
    (run_id,) = run_ids(database, job_id)
    rule = Rule("deny", "Bash(git push:*)", "not at night", "remembered", run_id)
    snapshot = add_rules(database, job_id, rule)
    *_, last = database.read(lambda c: rules_at(c, job_id, snapshot))
    assert last == Rule(rule.effect, rule.text, rule.why, rule.origin, run_id, len(ASKING.rules))


def test_older_snapshots_stay_as_they_were(database: Database) -> None:
    job_id = submit_asking(database)
    first = [rule.text for rule in ASKING.rules]
    second = add_rules(database, job_id, Rule("allow", "Bash(ls)", origin="remembered"))
    revoked = revoke(database, job_id, 1, Author("cy"), NOW + 2, force=True)
    assert (second, revoked.revoked_in) == (2, 3)
    assert texts_at(database, job_id, 1) == first
    assert texts_at(database, job_id, 2) == [*first, "Bash(ls)"]
    assert texts_at(database, job_id, 3) == ["Read", "Bash(rm *)", "Bash(ls)"]


def test_revoked_rule_is_listed_with_who_and_when(database: Database) -> None:
    job_id = submit_asking(database)
    revoked = revoke(database, job_id, 0, Author("cy"), NOW + 2, force=True)
    assert revoked == (0, "allow", "Read", "", "job", None, "ada", NOW, 1, 2, "cy", NOW + 2)
    assert list_rules(database, job_id)[0] == revoked


def test_rule_is_revoked_once(database: Database) -> None:
    job_id = submit_asking(database)
    revoke(database, job_id, 0, Author("cy"), NOW, force=True)
    with pytest.raises(UsageError, match="already revoked, by cy"):
        revoke(database, job_id, 0, Author("di"), NOW, force=True)
    with pytest.raises(UsageError, match="no rule at position 9"):
        revoke(database, job_id, 9, Author("di"), NOW, force=True)
    with pytest.raises(NotFoundError, match="job_none"):
        revoke(database, "job_none", 0, Author("di"), NOW)
    assert texts_at(database, job_id, 2) == ["Bash", "Bash(rm *)"]


def test_only_what_was_remembered_is_revoked_without_force(database: Database) -> None:
    job_id = submit_asking(database)
    with pytest.raises(UsageError, match=r"submitted with the job.*--force"):
        revoke(database, job_id, 0, Author("cy"), NOW)
    add_rules(database, job_id, Rule("allow", "Bash(ls)", origin="remembered"))
    revoke(database, job_id, len(ASKING.rules), Author("cy"), NOW)
    assert texts_at(database, job_id, 3) == [rule.text for rule in ASKING.rules]


def test_changes_at_the_same_time_make_a_snapshot_each(
    database: Database, open_database: Callable[[], Database]
) -> None:
    job_id = submit_asking(database)
    connections = [database, *(open_database() for _ in range(3))]

    def change(one: tuple[int, Database]) -> list[int]:
        rule = Rule("allow", f"Bash(ls {one[0]})", origin="remembered")
        return [add_rules(one[1], job_id, rule) for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        numbers = [n for each in pool.map(change, enumerate(connections)) for n in each]
    assert sorted(numbers) == list(range(2, 22))
    stored = list_rules(database, job_id)
    assert [rule.position for rule in stored] == list(range(len(ASKING.rules) + 20))
    assert [rule.added_in for rule in stored[len(ASKING.rules) :]] == list(range(2, 22))


def test_rule_of_a_run_holds_for_no_other(database: Database) -> None:
    everyone, one, other = (Rule("allow", "Read", run_id=run_id) for run_id in (None, "1", "2"))
    policy = policy_for((everyone, one, other), "1", ASKING, 4)
    assert policy == Policy((everyone, one), "ask", 4)


def test_setting_is_read_back_as_it_was_stored() -> None:
    tool_context = ToolContext("/w", "/out", "/home/ada", {"a": ResolvedPath("/w/a", "/w/b")})
    assert tool_context_from_json(asdict(tool_context)) == tool_context
