"""Calls that a person is asked about, from reply to result, over real tools and a real database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.commands import Question, Reply, Target
from runner.core.conversation import ModelReply, ModelRequest
from runner.core.entries import Entry
from runner.core.run import Ended, Lease, Outcome, Requeued, Waiting
from runner.core.spec import Asking, JobSpec
from runner.core.state import Call, RunState
from runner.core.steps import RunTools
from runner.core.workspace import Workspace
from runner.engine.attempt import Ports, run_attempt
from runner.llm.scripted import ScriptedModel
from runner.permissions import Answer, Rule, digest_of
from runner.ports import Decide, Interrupt, Model
from runner.store.approvals import answer, expire
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.questions import waiting
from runner.store.retry import retry
from runner.tools.registry import resolve_tools
from runner.workspace.folders import identify
from tests.engine.test_attempt import claim, claimed, ports, row, scripted
from tests.store.asked import add_rules

__all__ = ["ports"]

DONE = {"text": "Done."}
MAKE = {"name": "Bash", "input": {"command": "touch made"}}
_TOOLS = ("Bash", "Read", "Write")


@dataclass
class Listening:
    """A scripted model that keeps what it is asked, and calls ``then`` when it has answered."""

    scripted: ScriptedModel
    requests: list[ModelRequest] = field(default_factory=list)

    def complete(self, request: ModelRequest, interrupt: Interrupt, heard: Any) -> ModelReply:
        self.requests.append(request)
        return self.scripted.complete(request, interrupt, heard)

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        return self.scripted.count(request, interrupt)

    def window(self, model: str) -> int | None:
        return self.scripted.window(model)

    @property
    def results(self) -> list[str]:
        """The texts of the tool results in the last request."""
        blocks = (block for message in self.requests[-1].messages for block in message.blocks)
        return [block["content"] for block in blocks if block["type"] == "tool_result"]


@dataclass
class Desk:
    """A run in a folder, what works on it, and a person who answers."""

    database: Database
    ports: Ports
    folder: Path
    model: Listening = field(init=False)

    def begin(
        self,
        *replies: dict[str, Any],
        rules: Sequence[Rule],
        asking: Asking = Asking("ask"),  # noqa: B008 - a value
    ) -> Lease:
        """A new run with these replies and rules, held."""
        spec = replace(
            scripted(*replies, DONE),
            tools=resolve_tools(_TOOLS, self.folder)[0],
            rules=tuple(rules),
            asking=asking,
            workspace=Workspace(str(self.folder)),
        )
        self.model = Listening(ScriptedModel(spec.script or {}))
        self.ports = replace(self.ports, models=self._model)
        return claimed(self.database, spec, identify(self.folder))

    def _model(self, spec: JobSpec) -> Model:
        return self.model

    def work(self, lease: Lease | None = None) -> Outcome:
        """One attempt at the run."""
        return run_attempt(lease or claim(self.database), self.ports, Interrupt())

    def asked(self) -> list[Question]:
        return waiting(self.database)

    def answer(self, reply: Reply, *asked: Question) -> None:
        chosen = asked or self.asked()
        answer(self.database, [one.id for one in chosen], reply, self.ports.clock.now())


@pytest.fixture
def desk(database: Database, ports: Ports, tmp_path: Path) -> Desk:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return Desk(database, ports, folder)


def reply(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"tools": list(calls)}


def write(path: str) -> dict[str, Any]:
    return {"name": "Write", "input": {"file_path": path, "content": "new"}}


@pytest.mark.slow
def test_an_approved_call_runs_once_and_the_run_goes_on(desk: Desk) -> None:
    lease = desk.begin(reply(MAKE), rules=[Rule("ask", "Bash")])
    assert desk.work(lease) == Waiting("approval")
    assert not (desk.folder / "made").exists()
    desk.answer(Reply("approved", "ada"))
    assert desk.work() == Ended("succeeded", "end_turn")
    assert (desk.folder / "made").exists()
    assert len(desk.model.requests) == 2


def test_the_models_next_request_holds_the_reason_of_a_denial(desk: Desk) -> None:
    lease = desk.begin(reply(MAKE), rules=[Rule("ask", "Bash")])
    desk.work(lease)
    desk.answer(Reply("denied", "ada", "Make it by hand."))
    assert desk.work() == Ended("succeeded", "end_turn")
    assert desk.model.results == ["Permission denied by the person who was asked: Make it by hand."]
    assert not (desk.folder / "made").exists()
    assert row(desk.database, lease).denials == 1


@pytest.mark.slow
def test_the_edited_input_runs_and_the_model_is_told_of_it(desk: Desk) -> None:
    lease = desk.begin(reply(MAKE), rules=[Rule("ask", "Bash")])
    desk.work(lease)
    edited = {"command": "touch other; echo made other"}
    desk.answer(Reply("approved", "ada", edited=edited))
    desk.work()
    assert sorted(path.name for path in desk.folder.glob("[a-z]*")) == ["other"]
    (result,) = desk.model.results
    note, _, output = result.partition("\n\n")
    assert '{"command": "touch other; echo made other"}' in note
    assert output.startswith("made other")
    use = desk.model.requests[-1].messages[1].blocks[-1]
    assert use["input"] == MAKE["input"], "what the model said is never rewritten"


@pytest.mark.slow
def test_a_failure_of_the_edited_input_is_told_with_it(desk: Desk) -> None:
    lease = desk.begin(reply(MAKE), rules=[Rule("ask", "Bash")])
    desk.work(lease)
    desk.answer(Reply("approved", "ada", edited={"command": "exit 3"}))
    desk.work()
    (result,) = desk.model.results
    assert '{"command": "exit 3"}' in result


@pytest.mark.slow
def test_what_was_asked_first_waits_and_what_follows_it_too(desk: Desk) -> None:
    calls = [
        {"name": "Bash", "input": {"command": f"echo {name} >> log"}}
        for name in ("allowed", "asked", "after")
    ]
    rules = [Rule("ask", "Bash(echo asked *)"), Rule("allow", "*")]
    lease = desk.begin(reply(*calls), rules=rules)
    assert desk.work(lease) == Waiting("approval")
    log = desk.folder / "log"
    assert log.read_text().split() == ["allowed"]
    desk.answer(Reply("approved", "ada"))
    desk.work()
    assert log.read_text().split() == ["allowed", "asked", "after"]


@pytest.mark.parametrize("through", ["a folder", "the file itself"])
def test_an_approved_call_whose_path_leads_elsewhere_now_is_refused(
    desk: Desk, through: str
) -> None:
    for name in ("first", "second"):
        (desk.folder / name).mkdir()
        (desk.folder / name / "file").write_text("old")
    link = desk.folder / "link"
    link.symlink_to("first" if through == "a folder" else "first/file")
    path = "link/file" if through == "a folder" else "link"
    read = {"name": "Read", "input": {"file_path": path}}
    lease = desk.begin(reply(read), rules=[Rule("ask", "Read")])
    assert desk.work(lease) == Waiting("approval")
    link.unlink()
    link.symlink_to("second" if through == "a folder" else "second/file")
    desk.answer(Reply("approved", "ada"))
    assert desk.work() == Ended("succeeded", "end_turn")
    (result,) = desk.model.results
    assert "denied" in result
    assert "old" not in result
    assert row(desk.database, lease).denials == 1


@pytest.mark.slow
def test_an_approved_write_whose_folder_leads_elsewhere_now_writes_nothing(desk: Desk) -> None:
    for name in ("first", "second"):
        (desk.folder / name).mkdir()
    link = desk.folder / "link"
    link.symlink_to("first")
    lease = desk.begin(reply(write("link/file")), rules=[Rule("ask", "Write")])
    desk.work(lease)
    link.unlink()
    link.symlink_to("second")
    desk.answer(Reply("approved", "ada"))
    desk.work()
    assert list(desk.folder.rglob("file")) == []
    assert "denied" in desk.model.results[0]


def test_calls_that_were_not_decided_on_before_a_drain_are_located_after_it(desk: Desk) -> None:
    (desk.folder / "notes").write_text("noted")
    read = {"name": "Read", "input": {"file_path": "notes"}}
    lease = desk.begin(reply(read), rules=[Rule("allow", "Read(notes)")], asking=Asking("deny"))
    desk.ports.stopping.set()
    assert isinstance(desk.work(lease), Requeued)
    desk.ports.stopping.clear()
    assert desk.work() == Ended("succeeded", "end_turn")
    assert "noted" in desk.model.results[0]


@pytest.mark.slow
def test_a_run_that_stopped_unanswered_goes_on_without_the_call_when_it_is_retried(
    desk: Desk,
) -> None:
    asking = Asking("ask", timeout=1e-9, on_timeout="stop")
    lease = desk.begin(reply(MAKE, MAKE), rules=[Rule("ask", "Bash")], asking=asking)
    desk.work(lease)
    now = desk.ports.clock.now()
    assert expire(desk.database, now) == [lease.run_id]
    outcome = desk.work()
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("stopped", "approval_timeout")
    retry(desk.database, Target("run", lease.run_id), now)
    assert desk.asked() == []
    assert desk.work() == Ended("succeeded", "end_turn")
    assert [result.split(":")[0] for result in desk.model.results] == ["Interrupted"] * 2
    assert not (desk.folder / "made").exists()


@pytest.mark.slow
def test_an_answer_that_comes_while_an_earlier_call_runs_is_seen_by_the_same_attempt(
    desk: Desk,
) -> None:
    calls = [{"name": "Bash", "input": {"command": each}} for each in ("true", "touch made")]
    rules = [Rule("ask", "Bash(touch *)"), Rule("allow", "*")]
    lease = desk.begin(reply(*calls), rules=rules)
    run = desk.ports.tools.run
    tools = _Tools(desk, run)
    desk.ports = replace(desk.ports, tools=tools)
    assert desk.work(lease) == Ended("succeeded", "end_turn")
    assert (desk.folder / "made").exists()
    assert row(desk.database, lease).attempt == 1


class _Tools:
    """The real tools; a person answers what is asked while they run."""

    def __init__(self, desk: Desk, run: Any) -> None:
        self._desk = desk
        self._run = run
        self.locate = desk.ports.tools.locate
        self.problem = desk.ports.tools.problem

    def run(self, call: Any, interrupt: Interrupt) -> Any:
        if asked := self._desk.asked():
            self._desk.answer(Reply("approved", "ada"), *asked)
        return self._run(call, interrupt)


class _RunsAnything(StoredJournal):
    """A journal gone wrong: a reply's first call is to be run, whatever was decided."""

    answer: Answer | None = None
    changed: dict[str, Any] | None = None

    def commit(
        self, lease: Lease, state: RunState, entries: Sequence[Entry], decide: Decide[Any]
    ) -> tuple[RunState, Any]:
        state, effect = super().commit(lease, state, entries, decide)
        if not state.calls:
            return state, effect
        return state, RunTools((self._answered(state.calls[0]),))

    def _answered(self, call: Call) -> Call:
        return replace(call, answer=self.answer, input=self.changed or call.input)


_DIGEST = digest_of(MAKE["input"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("effect", "given", "changed", "problem"),
    [
        ("deny", None, None, "not allowed"),
        ("ask", None, None, "not allowed"),
        ("ask", Answer("denied", _DIGEST), None, "not allowed"),
        ("ask", Answer("expired", _DIGEST), None, "not allowed"),
        ("deny", Answer("approved", _DIGEST), None, "not allowed"),
        ("ask", Answer("approved", "0" * 64), None, "another input"),
        ("ask", Answer("approved", _DIGEST), {"command": "touch made other"}, "another input"),
    ],
)
def test_an_attempt_runs_no_call_that_is_not_allowed_or_approved_as_it_is(
    desk: Desk, effect: Any, given: Answer | None, changed: dict[str, Any] | None, problem: str
) -> None:
    # The call beside it waits, so that the reply of a denied one is not done with.
    beside = {"name": "Bash", "input": {"command": "sleep 1"}}
    rules = [Rule(effect, "Bash(touch *)"), Rule("ask", "Bash(sleep *)")]
    lease = desk.begin(reply(MAKE, beside), rules=rules)
    journal = _RunsAnything(desk.database, desk.ports.clock.now, lambda spec: {})
    journal.answer, journal.changed = given, changed
    desk.ports = replace(desk.ports, journal=journal)
    with pytest.raises(ValueError, match=problem):
        desk.work(lease)
    assert list(desk.folder.glob("[a-z]*")) == []


@pytest.mark.slow
def test_a_denial_that_is_newer_than_the_approval_holds(desk: Desk) -> None:
    lease = desk.begin(reply(MAKE), rules=[Rule("ask", "Bash")])
    desk.work(lease)
    (asked,) = desk.asked()
    desk.answer(Reply("approved", "ada"))
    add_rules(desk.database, asked.job_id, Rule("deny", "Bash(touch *)"))
    assert desk.work() == Ended("succeeded", "end_turn")
    assert not (desk.folder / "made").exists()
    assert desk.model.results[0].startswith("Permission denied")


@pytest.mark.slow
def test_an_edited_call_is_judged_by_where_its_path_leads_when_it_is_about_to_run(
    desk: Desk,
) -> None:
    for name in ("first", "second"):
        (desk.folder / name).mkdir()
    link = desk.folder / "link"
    link.symlink_to("first")
    rules = [Rule("ask", "Write"), Rule("deny", "Edit(second/**)")]
    lease = desk.begin(reply(write("file")), rules=rules)
    desk.work(lease)
    desk.answer(Reply("approved", "ada", edited=write("link/file")["input"]))
    link.unlink()
    link.symlink_to("second")
    desk.work()
    assert list(desk.folder.rglob("file")) == []
    assert "denied" in desk.model.results[0]
