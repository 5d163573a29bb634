"""What hooks are told of the run that they run for."""

from __future__ import annotations

from dataclasses import replace

from runner.core.hook_decisions import payload
from runner.core.hooks import HookRun
from tests.core.story import a_run

START = HookRun(1, 0, "RunStart", None, started_by=1)


def test_a_hook_of_a_sub_agent_is_told_its_item_and_its_place():
    below = replace(a_run(), run_id="run_1.3.1", item_key="src/a.py+3+1", depth=2, agent_type="x")
    told = payload(below, START)
    assert (told["item"], told["run"]) == ("src/a.py", "run_1.3.1")
    assert (told["root"], told["parent"], told["depth"]) == ("run_1", "run_1.3", 2)
    assert told["agent_type"] == "x"


def test_a_hook_of_an_item_s_run_is_told_that_nothing_is_above_it():
    told = payload(replace(a_run(), item_key="a+3"), START)
    assert (told["item"], told["root"], told["parent"], told["depth"]) == ("a+3", "run_1", None, 0)
