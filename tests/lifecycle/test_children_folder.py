"""Real workers, and folders in which sub-agents work: their parent's, also while it is taken up, or their
own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from tests.lifecycle.family import Tree, delegates, family_job, in_a_repository, runs_bash

pytestmark = pytest.mark.timeout(900)

TWO_AT_ONCE = {
    "limits": {"max_agents_at_once": 2},
    "workspace": {"repo": "workspace", "mode": "git"},
}


def test_what_sub_agents_have_half_done_is_in_no_tree(tree: Callable[..., Tree]) -> None:
    """Their parent is taken up when the first has ended, to start the third; the second is at work."""
    here = tree({"a": [delegates("one", "two", "three")]})
    site = here.site
    half = "touch half begun; while [ ! -e go ]; do sleep 0.05; done; rm half go; echo two > two"
    here.api.server._plan._tasks.update(
        one=[runs_bash("while [ ! -e begun ]; do sleep 0.05; done; echo one > one", "toolu_one")],
        two=[runs_bash(half, "toolu_two")],
        three=[runs_bash("touch go; echo three > three", "toolu_three")],
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
    family_job(site, "a", sandbox={"mode": "off"}, **TWO_AT_ONCE)
    here.work()
    assert here.states() == {
        "a": ("failed", "workspace"),
        "a+1": ("succeeded", "end_turn"),
        "a+2": ("cancelled", "cancelled"),
    }
    (cancelled,) = here.told("cancelled", "a+2")
    assert cancelled["why"] == "its parent is about to end"


def _commit_in(result: str) -> str:
    (commit,) = re.findall(r"the commit ([0-9a-f]{40})", result)
    return commit


def test_children_work_in_their_parent_s_worktree_or_in_one_of_their_own(
    tree: Callable[..., Tree],
) -> None:
    here = tree(
        {
            "a": [
                runs_bash("echo parent > made", "toolu_made"),
                [*delegates("shares"), *delegates("own", agent_type="apart")],
                lambda now: runs_bash(
                    f"cat made shared; ls; git show {_commit_in(now.results[1])}:made", "toolu_look"
                ),
            ],
            "shares": [runs_bash("cat made; echo child > shared", "toolu_shares")],
            "own": [runs_bash("cat made; echo own > made; echo x > apart", "toolu_own")],
        }
    )
    in_a_repository(here.site)
    apart = {"description": "Tries it elsewhere.", "workspace": "own"}
    family_job(
        here.site, "a", workspace={"repo": "workspace", "mode": "git"}, **{"agents.apart": apart}
    )
    here.work()
    assert set(here.states().values()) == {("succeeded", "end_turn")}
    looked = here.api.moments("a")[3].results[0]
    assert looked.split() == ["parent", "child", "kept", "made", "shared", "own"]
    assert here.api.moments("shares")[1].results[0].strip() == "parent"
    assert here.api.moments("own")[1].results[0].strip() == "parent"
    _, own = here.api.moments("a")[2].results
    assert "the branch runner/job/a-2" in own
    branch = ["git", "show", "runner/job/a-2:made"]
    shown = subprocess.run(branch, cwd=here.site.workspace, check=True, capture_output=True)
    assert shown.stdout == b"own\n"
    assert [data["cause"] for data in here.told("tree_recorded", "a")] == ["created", "children"]
    assert here.told("tree_recorded", "a+1") == []


@pytest.mark.parametrize("mode", ["git", "copy"])
def test_a_folder_of_its_own_below_a_shared_one_begins_with_what_is_there(
    tree: Callable[..., Tree], mode: str
) -> None:
    """Nobody has recorded what the one between has changed."""
    here = tree(
        {
            "a": [runs_bash("echo parent > made", "toolu_made"), delegates("shares")],
            "shares": [
                runs_bash("echo shared > made; echo new > new", "toolu_shares"),
                delegates("own", agent_type="apart"),
                runs_bash("cat made; ls", "toolu_look"),
            ],
            "own": [runs_bash("cat made new; echo own > made", "toolu_own")],
        }
    )
    in_a_repository(here.site)
    apart = {"description": "Tries it elsewhere.", "workspace": "own"}
    asked = {"repo" if mode == "git" else "path": "workspace", "mode": mode}
    family_job(here.site, "a", workspace=asked, **{"agents.apart": apart})
    here.work()
    assert set(here.states().values()) == {("succeeded", "end_turn")}
    assert here.api.moments("own")[1].results[0].split() == ["shared", "new"]
    looked = here.api.moments("shares")[3].results[0]
    assert looked.split() == ["shared", "kept", "made", "new"]
