"""Real workers, and a run that is taken up while its sub-agents work in its folder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.lifecycle.family import Tree, delegates, family_job, in_a_repository, runs_bash

pytestmark = pytest.mark.timeout(300)

TWO_AT_ONCE = {
    "limits": {"max_agents_at_once": 2},
    "workspace": {"repo": "workspace", "mode": "git"},
}


def test_what_sub_agents_have_half_done_is_in_no_tree(tree: Callable[..., Tree]) -> None:
    """Their parent is taken up when the first has ended, to start the third; the second is at work."""
    here = tree({"a": [delegates("one", "two", "three")]})
    site = here.site
    go = site.folder / "go"
    half = f"touch half begun; while [ ! -e {go} ]; do sleep 0.05; done; rm half; echo two > two"
    here.api.server._plan._tasks.update(
        one=[runs_bash("while [ ! -e begun ]; do sleep 0.05; done; echo one > one", "toolu_one")],
        two=[runs_bash(half, "toolu_two")],
        three=[runs_bash(f"touch {go}; echo three > three", "toolu_three")],
    )
    in_a_repository(site)
    family_job(site, "a", **TWO_AT_ONCE)
    here.work()
    assert set(here.states().values()) == {("succeeded", "end_turn")}
    recorded = here.told("tree_recorded", "a")
    assert [data["cause"] for data in recorded] == ["created", "children"]
    listed = ["git", "ls-tree", "--name-only", "runner/job/a"]
    names = subprocess.run(listed, cwd=site.workspace, check=True, capture_output=True).stdout
    assert names.decode().split() == ["begun", "kept", "one", "three", "two"]


def test_a_run_whose_folder_is_of_no_use_leaves_nobody_at_work_in_it(
    tree: Callable[..., Tree],
) -> None:
    """One sub-agent takes its files away with all trees of them, while another works."""
    here = tree({"a": [delegates("breaks", "works", "waits")]})
    site = here.site
    moves = 'mv "$PWD" "$PWD.away" && ln -s "$PWD.away" "$PWD"'
    breaks = (
        f"while [ ! -e begun ]; do sleep 0.05; done; rm -r {site.home}/snapshots/*/objects; {moves}"
    )
    here.api.server._plan._tasks.update(
        breaks=[runs_bash(breaks, "toolu_breaks")],
        works=[runs_bash("touch begun; exec sleep 628.5", "toolu_works")],
    )
    in_a_repository(site)
    family_job(site, "a", **TWO_AT_ONCE)
    here.work()
    assert here.states() == {
        "a": ("failed", "workspace"),
        "a+1": ("succeeded", "end_turn"),
        "a+2": ("cancelled", "cancelled"),
    }
    (cancelled,) = here.told("cancelled", "a+2")
    assert cancelled["why"] == "its parent is about to end"
