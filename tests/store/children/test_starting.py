"""Sub-agents are stored with the step of their parent that asks for them, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import insert, select, update

from runner.core.budget import Limits
from runner.core.commands import Target
from runner.core.conversation import ModelReply
from runner.core.entries import ModelReplied, SnapshotRecorded
from runner.core.steps import CallModel
from runner.core.workspace import Workspace
from runner.errors import LeaseLost
from runner.permissions import ResolvedPath, ToolContext
from runner.store import leases
from runner.store.children import Family, attend, family_of
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.journal import StoredJournal
from runner.store.retry import retry
from runner.store.tables import runs
from runner.store.workspaces import WorkspaceRecord, origins, save_record, workspace_of
from tests.store.attempts import USAGE, WORKER, claim, event_types, free, run_row, text, tool_use
from tests.store.children.family import (
    PARENT,
    WAITS,
    asks,
    end,
    said_in,
    start,
    submit_parent,
    told,
    tree_of,
)
from tests.store.examples import NOW

SOON = NOW + 60
MOST_OF_TREE = Limits().max_agents


class _CrashError(Exception):
    """The process dies."""


def test_children_are_stored_with_the_reply_that_asks_for_them(database: Database) -> None:
    parent = start(database, asks(1), asks(2, "tester", "Test it.", snapshot=False))
    assert parent.effect == WAITS
    reviewer, tester = tree_of(database, parent.state.run_id).values()
    assert [reviewer.id, tester.id] == [f"{parent.state.run_id}.1", f"{parent.state.run_id}.2"]
    assert (reviewer.item_key, reviewer.agent_type) == ("src/a.py+1", "reviewer")
    assert (tester.parent_run, tester.parent_message, tester.parent_position) == (
        parent.state.run_id,
        1,
        1,
    )
    assert (tester.root_run, tester.depth, tester.child_number) == (parent.state.run_id, 1, 2)
    assert (tester.max_turns, tester.working_time) == (7, 60.0)
    assert tester.token_ceiling == 30_000
    left = 1_000_000 - parent.state.money.charged_tokens
    assert reviewer.token_ceiling == left // 3
    assert (tester.state, tester.due_at) == ("queued", NOW)
    assert said_in(database, tester.id) == [("user", [text("Test it.")])]
    (submitted,) = told(database, tester.id, "run_submitted")
    assert (
        submitted
        | {"parent": parent.state.run_id, "agent_type": "tester", "snapshot": False, "by": "runner"}
        == submitted
    )
    assert run_row(database, parent.state.run_id).reason == "children"
    assert event_types(database, tester.id) == ["run_submitted"]


def test_a_child_works_by_its_type_and_within_what_it_was_given(database: Database) -> None:
    parent = start(database, asks(1, "tester", snapshot=False))
    child = claim(database, f"{parent.state.run_id}.1")
    assert isinstance(child.effect, CallModel)
    spec, state = child.state.spec, child.state
    assert (spec.model, spec.system) == ("claude-other", "Test it.")
    assert [tool.name for tool in spec.tools] == ["Read", "Agent"]
    assert (state.limits.token_ceiling, state.limits.deadline) == (30_000, 600.0)
    assert [one.agent_type for one in state.policy.restrictions] == ["tester"]
    assert (state.depth, state.agent_type, state.children.tree_size) == (1, "tester", 1)


def test_a_crash_before_the_commit_starts_nobody_and_the_next_attempt_starts_them_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = submit_parent(database)
    parent = claim(database, run_id)

    def dies(*args: object) -> None:
        raise _CrashError

    with monkeypatch.context() as dying:
        dying.setattr("runner.store.journal.start_children", dies)
        with pytest.raises(_CrashError):
            parent.reply(asks(1), asks(2), stop="tool_use")
    assert not tree_of(database, run_id)
    assert said_in(database, run_id) == [("user", [text("Mend src/a.py.")])]
    leases.take_from(database, [WORKER], NOW)
    claim(database, run_id, SOON).reply(asks(1), asks(2), stop="tool_use")
    assert len(tree_of(database, run_id)) == 2


def test_a_crash_after_the_commit_starts_nobody_twice(database: Database) -> None:
    parent = start(database, asks(1), asks(2))
    run_id = parent.state.run_id
    end(database, f"{run_id}.1", "One.")
    end(database, f"{run_id}.2", "Two.")
    again = claim(database, run_id)
    leases.take_from(database, [WORKER], NOW)
    last = claim(database, run_id, SOON)
    assert again.state.messages == last.state.messages
    assert len(tree_of(database, run_id)) == 2
    results = last.state.messages[-1].blocks
    assert [block["content"] for block in results] == ["One.", "Two."]


def test_a_stale_attempt_starts_nobody(database: Database) -> None:
    run_id = submit_parent(database)
    stale = claim(database, run_id)
    leases.take_from(database, [WORKER], NOW)
    claim(database, run_id, SOON)
    with pytest.raises(LeaseLost):
        stale.reply(asks(1), stop="tool_use")
    assert not tree_of(database, run_id)


@pytest.mark.slow
def test_the_limits_of_a_job_hold_at_every_depth_and_for_forks_and_after_a_retry(
    database: Database,
) -> None:
    limits = replace(PARENT.limits, max_agent_depth=2, max_agents_at_once=2, max_agents=4)
    spec = replace(PARENT, limits=limits)
    parent = start(database, asks(1), asks(2, "tester"), asks(3), spec=spec)
    root = parent.state.run_id
    assert len(tree_of(database, root)) == 2
    child = claim(database, f"{root}.2").reply(asks(4), asks(5), asks(6), stop="tool_use")
    assert len(tree_of(database, root)) == 4
    assert "4 sub-agents have been started" in child.state.calls[2].result["content"]
    grandchild = claim(database, f"{root}.2.1").reply(asks(7), stop="tool_use")
    (refused,) = grandchild.state.messages[-1].blocks
    assert "as deep as this one" in refused["content"]
    cancel(database, Target("run", root), NOW)
    retry(database, Target("run", root), NOW + 1)
    revived = claim(database, root, NOW + 1)
    assert revived.state.limits == parent.state.limits == limits
    assert revived.state.children.tree_size == 4
    forked = fork(database, root, 1, NOW + 2, text="Again.").id
    again = claim(database, forked, NOW + 2).reply(asks(8), asks(9), asks(10), stop="tool_use")
    assert again.state.limits == replace(limits, max_turns=again.state.limits.max_turns)
    assert len(tree_of(database, forked)) == 2


@pytest.mark.slow
def test_no_more_are_started_than_a_tree_may_have_though_others_start_some_meanwhile(
    database: Database, open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = start(database, asks(1), asks(2))
    root = parent.state.run_id
    child = claim(database, f"{root}.1")

    def meanwhile(connection, run_id: str) -> None:
        """A sibling has started all that there is room for, between the look and the lock."""
        first = runs.c.id == f"{root}.2"
        row = connection.execute(select(runs).where(first)).one()._mapping
        for number in range(1, MOST_OF_TREE - 1):
            grown = {**row, "id": f"{root}.2.{number}", "parent_run": f"{root}.2", "depth": 2}
            connection.execute(insert(runs).values({**grown, "child_number": number}))

    monkeypatch.setattr("runner.store.journal.lock_tree", meanwhile)
    child.reply(asks(3), stop="tool_use")
    assert isinstance(child.effect, CallModel)
    (refused,) = child.state.messages[-1].blocks
    assert refused["is_error"]
    assert str(MOST_OF_TREE) in refused["content"]
    assert len(tree_of(database, root)) == MOST_OF_TREE


def test_a_child_of_a_run_with_a_model_of_its_own_has_that_model(database: Database) -> None:
    run_id = submit_parent(database)
    own = update(runs).where(runs.c.id == run_id).values(model="claude-own")
    database.write(lambda connection: connection.execute(own))
    start(database, asks(1), asks(2, "tester", snapshot=False), run_id=run_id)
    assert claim(database, f"{run_id}.1").state.spec.model == "claude-own"
    assert claim(database, f"{run_id}.2").state.spec.model == "claude-other"


def test_children_of_children_have_no_tool_and_no_right_that_these_lack(database: Database) -> None:
    parent = start(database, asks(1, "tester", snapshot=False))
    child = claim(database, f"{parent.state.run_id}.1").reply(asks(2), stop="tool_use")
    assert child.effect == WAITS
    grandchild = claim(database, f"{parent.state.run_id}.1.1")
    assert [tool.name for tool in grandchild.state.spec.tools] == ["Read", "Agent"]
    assert [one.agent_type for one in grandchild.state.policy.restrictions] == ["tester"]
    assert grandchild.state.spec.model == "claude-test"
    assert run_row(database, grandchild.state.run_id).item_key == "src/a.py+1+1"


def test_a_decision_by_a_type_s_rule_is_read_back_as_it_was_made(database: Database) -> None:
    parent = start(database, asks(1, "tester", snapshot=False))
    child = claim(database, f"{parent.state.run_id}.1")
    call = tool_use(2, "Read", file_path="secret")
    blocks = (call, tool_use(3, "Read", file_path="a"))
    places = {name: ResolvedPath(f"/w/{name}", f"/w/{name}") for name in ("a", "secret")}
    contexts = (ToolContext("/w", places=places),) * 2
    child.append()
    child.append(ModelReplied(ModelReply(blocks, "tool_use", USAGE, "claude-test"), contexts))
    journal = StoredJournal(database, lambda: NOW, free)
    loaded = journal.load(child.lease)
    assert loaded.calls == child.state.calls
    (denied, _) = loaded.calls
    assert denied.decision is not None
    assert denied.decision.rule == "Read(secret)"


def test_workers_that_know_nothing_of_types_are_told_apart(database: Database) -> None:
    """Two types of one job share a cache and nothing else."""
    parent = start(database, asks(1), asks(2, "tester", snapshot=False))
    journal = StoredJournal(database, lambda: NOW, free)
    held = [claim(database, f"{parent.state.run_id}.{number}").lease for number in (1, 2)]
    first, second = (journal.load(lease) for lease in held)
    assert (first.spec.model, second.spec.model) == ("claude-test", "claude-other")
    assert not first.policy.restrictions
    assert second.policy.restrictions
    assert first.spec == replace(PARENT, verify=None)


def test_while_children_work_in_a_folder_only_its_host_can_have_it(database: Database) -> None:
    """Elsewhere what they changed would not be there: nobody has recorded it."""
    workspace = Workspace("/project", "git", commit="c0ffee", remote="/elsewhere")
    apart = replace(PARENT.agents[0], name="apart", workspace="own")
    spec = replace(PARENT, workspace=workspace, agents=(*PARENT.agents, apart))
    run_id = submit_parent(database, spec)
    parent = claim(database, run_id)
    kept = WorkspaceRecord("here", "/home/workspaces/1", "runner/mend/one", "5ta47")
    save_record(database, parent.lease, kept, None, NOW)
    parent.append(SnapshotRecorded("7ree", "created"))
    parent.reply(asks(1), asks(2, "apart"), stop="tool_use")
    assert places(database, run_id) == ("/home/workspaces/1", "snap_here")
    assert places(database, f"{run_id}.1") == ("/home/workspaces/1", "snap_here")
    assert places(database, f"{run_id}.2") == (None, None)
    first, second = (run_row(database, f"{run_id}.{number}") for number in (1, 2))
    assert (first.start_tree, second.start_tree) == (None, "7ree")
    assert second.progress["files"]["tree"] == "7ree"
    assert workspace_of(database, f"{run_id}.1").asked == replace(workspace, mode="shared")
    assert origins(database, f"{run_id}.2") == [run_id]
    for number in (1, 2):
        cancel(database, Target("run", f"{run_id}.{number}"), NOW)
    attend(database, NOW)
    claim(database, run_id)
    assert places(database, run_id) == (None, None)


def test_children_with_folders_of_their_own_keep_their_parent_on_no_host(
    database: Database,
) -> None:
    """With a remote it can go on anywhere: nobody changes its files meanwhile."""
    workspace = Workspace("/project", "git", commit="c0ffee", remote="/elsewhere")
    apart = replace(PARENT.agents[0], workspace="own")
    run_id = submit_parent(database, replace(PARENT, workspace=workspace, agents=(apart,)))
    parent = claim(database, run_id)
    save_record(database, parent.lease, WorkspaceRecord("here", "/home/workspaces/1"), None, NOW)
    parent.append(SnapshotRecorded("7ree", "created"))
    parent.reply(asks(1), stop="tool_use")
    assert parent.effect == WAITS
    assert places(database, run_id) == (None, None)


def places(database: Database, run_id: str) -> tuple[str | None, str | None]:
    row = run_row(database, run_id)
    return row.workspace_path, row.workspace_id


@pytest.mark.slow
def test_what_children_may_use_is_held_from_their_parent_until_they_have_ended(
    database: Database,
) -> None:
    """And what those below them were charged, or may use, is the parent's as well."""
    parent = start(database, asks(1), asks(2))
    root = parent.state.run_id
    own = parent.state.money.charged_tokens
    given = [run_row(database, f"{root}.{number}").token_ceiling for number in (1, 2)]
    assert family(database, root).reserved.tokens == sum(given)
    first = claim(database, f"{root}.1").reply(asks(3), stop="tool_use")
    below = run_row(database, f"{root}.1.1").token_ceiling
    assert first.state.used.tokens == 110 + below
    assert below < given[0] - 110
    end(database, f"{root}.1.1")
    end(database, f"{root}.2")
    assert family(database, root).reserved.tokens == given[0] + 110
    claim(database, f"{root}.1").reply(text("Fine."))
    assert family(database, root).reserved.tokens == 2 * 110 + 110 + 110
    again = claim(database, root)
    assert again.state.used.tokens == own + 4 * 110
    assert again.state.children.tree_size == 3


def family(database: Database, run_id: str) -> Family:
    return database.read(lambda connection: family_of(connection, run_id))
