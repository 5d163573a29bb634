"""Which turns of a run another can go on from, and how it goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from runner.core.agents import SPLIT_SOURCE, SPLIT_TOOL, Coordinator
from runner.core.commands import Target
from runner.core.conversation import Tool
from runner.core.steps import CallModel
from runner.core.text import CONTINUE_TEXT, SPLIT_TEXT
from runner.core.workspace import result_tool
from runner.errors import NotFoundError, UsageError
from runner.store.children import attend
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.tables import runs
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.children.family import PARENT, submit_parent
from tests.store.compacting import compact, truncation, use_tool
from tests.store.examples import NOW, SPEC
from tests.store.forking import LATER, SAID, begun, contents, forked, three_turns


def test_fork_of_a_fork_knows_what_ended_the_turns_that_were_copied(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    attempt.reply(text("Half a"), stop="max_tokens")
    attempt.reply(tool_use(2), stop="tool_use").finish("two")
    first = forked(database, attempt, 2)
    again = begun(database, fork(database, first, 1, LATER).id)
    assert again.state.model.stop is None
    assert contents(again.state.messages)[-1] == [CONTINUE_TEXT]


# --- how the turn ended ---


def test_turn_in_hand_of_a_running_run_cannot_be_forked_and_the_one_before_can(
    database: Database,
) -> None:
    attempt = claim(database, submit_one(database)).reply(tool_use(1), stop="tool_use")
    attempt.finish("one").reply(tool_use(2), stop="tool_use")
    with pytest.raises(UsageError, match=r"turn 2 of .* has not ended.* fork it at 1"):
        forked(database, attempt, 2)
    again = begun(database, forked(database, attempt, 1))
    assert isinstance(again.effect, CallModel)
    attempt.finish("two")
    assert isinstance(attempt.effect, CallModel)


def test_turn_that_a_cancel_cut_off_cannot_be_forked(database: Database) -> None:
    attempt = claim(database, submit_one(database)).reply(tool_use(1), stop="tool_use")
    cancel(database, Target("run", attempt.lease.run_id), NOW)
    with pytest.raises(UsageError, match="has not ended"):
        forked(database, attempt, 1)


def test_fork_is_told_of_its_folders_when_a_compaction_that_it_has_names_the_other_s(
    database: Database,
) -> None:
    attempt = claim(database, submit_one(database))
    run_id = attempt.lease.run_id
    compact(attempt, truncation(2, said=f"all of it is in /home/outputs/{run_id}/toolu_0.txt"))
    use_tool(attempt, "ok").reply(text("Done."))
    without, with_it = (forked(database, attempt, turn) for turn in (1, 2))
    assert contents(begun(database, without).state.messages)[-1] == ["ok"]
    result, told = contents(begun(database, with_it).state.messages)[-1]
    assert result == "ok"
    assert f"yours have {with_it.removeprefix('run_')} in its place" in told


def test_turn_that_there_is_not_cannot_be_forked(database: Database) -> None:
    attempt = three_turns(database)
    with pytest.raises(UsageError, match="has no turn 4: its last is 3"):
        forked(database, attempt, 4)
    with pytest.raises(NotFoundError):
        fork(database, "run_0", 1, LATER)


def test_nothing_is_stored_when_it_cannot_be_forked(database: Database) -> None:
    attempt = three_turns(database)
    with pytest.raises(UsageError):
        forked(database, attempt, 3)
    query = select(runs.c.id)
    assert database.read(lambda c: c.execute(query).scalars().all()) == [attempt.lease.run_id]


def test_after_a_last_word_somebody_must_speak(database: Database) -> None:
    attempt = three_turns(database)
    with pytest.raises(UsageError, match="was its last word: say what to do next with --say"):
        forked(database, attempt, 3)


def test_after_a_submitted_result_somebody_must_speak(database: Database) -> None:
    tool = result_tool({"type": "object"})
    spec = replace(SPEC, tools=(*SPEC.tools, tool))
    attempt = claim(database, submit_one(database, spec=spec))
    attempt.reply(tool_use(1, tool.name, ok=True), stop="tool_use")
    assert run_row(database, attempt.lease.run_id).state == "succeeded"
    with pytest.raises(UsageError, match="last word"):
        forked(database, attempt, 1)
    again = begun(database, forked(database, attempt, 1, **SAID))
    assert isinstance(again.effect, CallModel)
    assert not again.state.ending.submitted


@pytest.mark.parametrize("said", [None, "Shorter, please."])
def test_reply_that_was_cut_off_is_gone_on_with(database: Database, said: str | None) -> None:
    attempt = claim(database, submit_one(database)).reply(text("Half a"), stop="max_tokens")
    again = begun(database, forked(database, attempt, 1, text=said))
    assert isinstance(again.effect, CallModel)
    assert contents(again.state.messages)[-1] == [said or CONTINUE_TEXT]


def test_reply_of_which_nothing_was_whole_is_tried_again(database: Database) -> None:
    attempt = claim(database, submit_one(database)).reply(stop="max_tokens")
    again = begun(database, forked(database, attempt, 1))
    assert isinstance(again.effect, CallModel)
    assert contents(again.state.messages) == [["Mend one."]]


def test_paused_turn_goes_back_as_it_is(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    attempt.reply({"type": "server_tool_use", "id": "s", "name": "web"}, stop="pause_turn")
    again = begun(database, forked(database, attempt, 1))
    assert isinstance(again.effect, CallModel)
    assert again.state.messages[-1].role == "assistant"


def test_turn_that_the_model_refused_is_tried_again(database: Database) -> None:
    attempt = claim(database, submit_one(database)).reply(text("No."), stop="refusal")
    assert run_row(database, attempt.lease.run_id).reason == "refused"
    again = begun(database, forked(database, attempt, 1, model="claude-other"))
    assert isinstance(again.effect, CallModel)
    assert contents(again.state.messages) == [["Mend one."]]


@pytest.mark.parametrize(
    "options", [{"text": " "}, {"model": ""}, {"text": "\0"}, {"model": "\ud800"}]
)
def test_texts_that_say_nothing_or_cannot_be_stored_are_refused(
    database: Database, options: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match=r"is empty|cannot be stored"):
        forked(database, three_turns(database), 1, **options)


# --- beside the others of its job ---


COORDINATOR = replace(
    PARENT,
    coordinator=Coordinator("reviewer"),
    tools=(*PARENT.tools, Tool(SPLIT_TOOL, "Split it.", {"type": "object"}, source=SPLIT_SOURCE)),
)


@pytest.mark.slow
def test_a_fork_of_a_coordinator_goes_on_from_its_split(database: Database) -> None:
    """It is not told to split a second time what is split, nor anew what it was told once."""
    parent = claim(database, submit_parent(database, COORDINATOR))
    parent.reply(tool_use(1, "Read", file_path="a"), stop="tool_use").finish("There are two.")
    blank = {"description": "a", "prompt": " "}
    parent.reply(tool_use(2, SPLIT_TOOL, parts=[blank]), stop="tool_use")
    parts = [{"description": part, "prompt": f"Do {part}."} for part in "ab"]
    run_id = parent.reply(tool_use(3, SPLIT_TOOL, parts=parts), stop="tool_use").state.run_id
    for number in (1, 2):
        cancel(database, Target("run", f"{run_id}.{number}"), NOW)
    attend(database, NOW)
    claim(database, run_id).reply(text("Done."))
    forks = [begun(database, fork(database, run_id, turn, LATER).id) for turn in range(4)]
    assert [each.state.children.split for each in forks] == [
        "asked",
        "asked",
        "asked_again",
        "done",
    ]
    said = [[text for told in contents(each.state.messages) for text in told] for each in forks]
    assert [texts.count(SPLIT_TEXT) for texts in said] == [1, 1, 1, 1]
    again = fork(database, forks[3].lease.run_id, 3, LATER)
    assert begun(database, again.id).state.children.split == "done"
