"""Whether the rows of a file can be what a Runner stored: those who read them rely on it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Mapping
from typing import Any, get_args

from runner.core.agents.agent import DEEPEST
from runner.core.agents.place import place_of
from runner.core.hooks.hook import HookEvent
from runner.core.run import ENDED, STATES
from runner.core.spec import JobSpec
from runner.core.text.plain import visible
from runner.exchange.events import check_event
from runner.exchange.fitting import misfit

# A sub-agent's id goes on with its numbers in its parents.
_ID = re.compile(
    rf"(?:job|apr)_[0-9a-z]{{26}}|run_[0-9a-z]{{26}}(?:\.[1-9][0-9]{{0,3}}){{0,{DEEPEST}}}",
    re.ASCII,
)
LARGEST_OUTPUT = 64 * 1024 * 1024  # bytes; a tool's whole output has 10 MB at most

Row = Mapping[str, Any]
Place = tuple[int, int]  # of a call: its message, and its position there


def check_id(value: str, kind: str) -> None:
    """Refuse what is no id of a job, a run or an approval: ids become parts of paths.

    Raises:
        ValueError: it is none.
    """
    if _ID.fullmatch(value) is None or not value.startswith(f"{kind}_"):
        raise ValueError(f"{value[:60]!a} is no id of ours ({kind}_ and 26 letters and digits)")


class JobCheck:
    """The rows of a job's own section, one after the other, its own row first. ``spec`` is what that
    says."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self.spec: JobSpec | None = None

    def add(self, table: str, row: Row) -> None:
        """Look at a row. Raises ``ValueError``."""
        if table == "jobs":
            self._job(row)
        elif row["job_id"] != self._job_id:
            raise ValueError(f"{table}.job_id is not {self._job_id}")
        if table == "job_events":
            check_event(table, row["type"], row["data"])
        if table == "permission_rules":
            _check_rule(row)

    def _job(self, row: Row) -> None:
        check_id(row["id"], "job")
        if row["id"] != self._job_id:
            raise ValueError(f"it is of another job than {self._job_id}")
        try:
            spec = JobSpec.from_json(row["spec"])
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"jobs.spec is no job's ({type(error).__name__}: {error})") from error
        wrong = misfit(spec, JobSpec)
        if wrong is not None:
            raise ValueError(f"jobs.spec is no job's ({wrong} is of another kind)")
        if spec.limits.max_agent_depth > DEEPEST:
            raise ValueError(f"jobs.spec is no job's (limits.max_agent_depth is over {DEEPEST})")
        self.spec = spec


class RunCheck:
    """The rows of a run's section, one after the other, its own row first.

    Args:
        spec: the job's.
        known: the runs that came before it in the file, each with its ``starts``.
    """

    def __init__(self, job_id: str, spec: JobSpec, known: Mapping[str, Collection[Place]]) -> None:
        self._job_id = job_id
        self._spec = spec
        self._known = known
        self._starts: set[Place] = set()
        self._run: Row = {}
        self._events = 0
        self._uses: dict[int, list[Mapping[str, Any]]] = {}
        self._calls: dict[int, int] = {}
        self._has_item = False
        self.has_open_questions = False

    @property
    def run_id(self) -> str:
        return str(self._run["id"])

    @property
    def starts(self) -> frozenset[Place]:
        """The places of the calls that may have started sub-agents."""
        return frozenset(self._starts)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of the run goes on or waits."""
        return self._run["state"] in ENDED and not self.has_open_questions

    def add(self, table: str, row: Row) -> None:
        """Look at a row. Raises ``ValueError``."""
        if table == "runs":
            self._add_run(row)
            return
        if row["run_id"] != self.run_id:
            raise ValueError(f"{table}.run_id is not {self.run_id}")
        match table:
            case "run_items":
                self._has_item = True
            case "blocks":
                self._add_block(row)
            case "tool_calls":
                self._add_call(row)
            case "tool_outputs":
                self._of_a_call(table, row)
                _check_output(table, row)
            case "approvals":
                self._add_question(row)
            case "events":
                self._add_event(row)
            case "permission_rules":
                _check_rule(row)
                self._of_the_job(table, row)
            case "model_calls" | "compactions" | "verifications":
                _check_small(table, row)
            case "hook_runs":
                self._add_hook(row)

    def end(self) -> None:
        """Look at the section as a whole. Raises ``ValueError``."""
        if not self._has_item:
            raise ValueError("the run has no row in run_items")
        if self._events != self._run["event_count"]:
            raise ValueError(
                f"the run has {self._events} events, and its row says {self._run['event_count']}"
            )
        for message, uses in self._uses.items():
            if self._calls.get(message, 0) != len(uses):
                raise ValueError(f"a call of message {message} has no row in tool_calls")
        calls = len(self._uses[max(self._uses)]) if self._uses else 0
        if len(self._run["progress"].get("hooked", {}).get("decided", ())) not in (0, calls):
            raise ValueError("runs.progress is no run's (hooked.decided is not of its last calls)")

    def _add_run(self, row: Row) -> None:
        check_id(row["id"], "run")
        self._run = row
        self._of_the_job("runs", row)
        if row["id"] in self._known:
            raise ValueError(f"{row['id']} is in the file twice")
        if row["state"] not in STATES:
            raise ValueError(f"runs.state is {row['state'][:20]!a}, which is no state")
        if (row["state"] == "running") != (row["worker_id"] is not None):
            raise ValueError("runs.worker_id is for a run that is running, and only for it")
        if (row["state"] == "queued") != (row["due_at"] is not None):
            raise ValueError("runs.due_at is for a run that is queued, and only for it")
        for name in ("fresh_of", "fork_of"):
            if row[name] is not None and row[name] not in self._known:
                raise ValueError(f"runs.{name} names no run that is in the file before it")
        if (row["fork_of"] is None) != (row["fork_turn"] is None):
            raise ValueError("runs.fork_turn goes with runs.fork_of")
        self._check_place(row)

    def _check_place(self, row: Row) -> None:
        """Whether a run is where its id says that it is."""
        place = place_of(row["id"])
        parent, is_child = place["parent"], place["parent"] is not None
        wanted = {
            "parent_run": parent,
            "root_run": place["root"] if is_child else None,
            "depth": place["depth"],
            "child_number": int(row["id"].rpartition(".")[2]) if is_child else None,
        }
        for name, value in wanted.items():
            if row[name] != value:
                raise ValueError(f"runs.{name} is not what the run's id says")
        if parent is not None and parent not in self._known:
            raise ValueError("runs.parent_run names no run that is in the file before it")
        types = [agent.name for agent in self._spec.agents] if is_child else [None]
        if row["agent_type"] not in types:
            raise ValueError("runs.agent_type is no type of sub-agent that the job has")
        if row["parent_position"] is None:
            return
        if parent is None:
            raise ValueError("runs.parent_position is for sub-agents")
        if (row["parent_message"], row["parent_position"]) not in self._known[parent]:
            raise ValueError("runs.parent_position is of no call of its parent that starts one")

    def _of_the_job(self, table: str, row: Row) -> None:
        if row["job_id"] != self._job_id:
            raise ValueError(f"{table}.job_id is not {self._job_id}")

    def _add_block(self, row: Row) -> None:
        content = row["content"]
        if not isinstance(content, dict) or content.get("type") != row["type"]:
            raise ValueError("blocks.content is no block of that type")
        if row["role"] not in ("user", "assistant"):
            raise ValueError("blocks.role is neither user nor assistant")
        _check_block(content)
        # What a sub-agent's conversation began with are its parent's calls.
        is_own = row["turn"] > 0 or self._run["parent_run"] is None
        if row["type"] == "tool_use" and row["role"] == "assistant" and is_own:
            self._uses.setdefault(row["message"], []).append(content)

    def _add_call(self, row: Row) -> None:
        message, position = row["message"], row["position"]
        uses = self._uses.get(message, [])
        if position >= len(uses) or position != self._calls.get(message, 0):
            raise ValueError(f"tool_calls has a row that no block of message {message} asks for")
        use = uses[position]
        updated = row["updated_input"]
        if not (updated is None or isinstance(updated, dict)):
            raise ValueError("tool_calls.updated_input is no object")
        if row["tool_use_id"] != visible(use["id"]) or row["name"] != visible(use["name"]):
            raise ValueError("tool_calls names another call than its block")
        self._calls[message] = position + 1
        # A call of a tool that the job does not have is refused before anything waits for it.
        if self._spec.tool(row["name"]) is None or self._spec.starts_children(row["name"]):
            self._starts.add((message, position))

    def _of_a_call(self, table: str, row: Row) -> None:
        if row["position"] >= self._calls.get(row["message"], 0):
            raise ValueError(f"{table} has a row of no tool call")

    def _add_question(self, row: Row) -> None:
        check_id(row["id"], "apr")
        self._of_the_job("approvals", row)
        self._of_a_call("approvals", row)
        if row["answer"] not in _ANSWERS or row["answered_via"] not in _WAYS:
            raise ValueError("approvals.answer or answered_via is none that there is")
        if (row["answer"] is None) != (row["answered_at"] is None):
            raise ValueError("approvals.answered_at goes with approvals.answer")
        edited = row["edited_input"]
        if not (edited is None or isinstance(edited, dict)):
            raise ValueError("approvals.edited_input is no object")
        self.has_open_questions |= row["answer"] is None

    def _add_hook(self, row: Row) -> None:
        if row["event"] not in get_args(HookEvent):
            raise ValueError("hook_runs.event is none at which hooks run")
        hooks = self._spec.hooks
        if row["hook"] >= len(hooks) or hooks[row["hook"]].event != row["event"]:
            raise ValueError("hook_runs.hook is no hook that the job has at that event")
        if row["decision"] not in (None, "allow", "ask", "deny", "block"):
            raise ValueError("hook_runs.decision is neither allow, ask, deny nor block")
        if (row["message"] is None) != (row["position"] is None):
            raise ValueError("hook_runs.position goes with hook_runs.message")
        if row["message"] is not None:
            self._of_a_call("hook_runs", row)

    def _add_event(self, row: Row) -> None:
        self._events += 1
        if row["number"] != self._events:
            raise ValueError(f"events.number is not {self._events}: they are numbered without gaps")
        check_event("events", row["type"], row["data"])


_ANSWERS = (None, "approved", "denied", "expired", "cancelled")
_WAYS = (None, "person", "rule", "timeout", "cancel", "end")
_BLOCK_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "text": {"text": str},
    "tool_use": {"id": str, "name": str, "input": object},
    "tool_result": {"tool_use_id": str, "content": (str, list)},
}


def _check_block(content: Mapping[str, Any]) -> None:
    for name, kind in _BLOCK_FIELDS.get(str(content["type"]), {}).items():
        if name not in content or not isinstance(content[name], kind):
            raise ValueError(f"a block of type {content['type']} has no {name} as the API has it")


def _check_rule(row: Row) -> None:
    if row["effect"] not in ("allow", "ask", "deny"):
        raise ValueError("permission_rules.effect is neither allow, ask nor deny")


def _check_small(table: str, row: Row) -> None:
    match table:
        case "model_calls":
            if row["purpose"] not in ("turn", "summary"):
                raise ValueError("model_calls.purpose is neither turn nor summary")
            if not (row["cut"] is None or _are_blocks(row["cut"])):
                raise ValueError("model_calls.cut is no list of blocks")
        case "compactions":
            _check_compaction(row)
        case _:
            if not (row["content"] is None or isinstance(row["content"], str)):
                raise ValueError("verifications.content is no text")
            if row["compressed"] is not None:
                _check_output(table, row)


def _check_compaction(row: Row) -> None:
    if row["kind"] not in ("clip", "summary", "prune"):
        raise ValueError("compactions.kind is neither clip, summary nor prune")
    if not isinstance(row["text"], str):
        raise ValueError("compactions.text is no text")
    clips = row["clips"]
    if not isinstance(clips, list) or not all(map(_is_clip, clips)):
        raise ValueError("compactions.clips is no list of message, position and text")


def _is_clip(value: Any) -> bool:
    return isinstance(value, list) and list(map(type, value)) == [int, int, str]


def _are_blocks(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in value
    )


def _check_output(table: str, row: Row) -> None:
    """A bomb is not unpacked: not more is than the row says."""
    size = row["size"]
    if size is None or size > LARGEST_OUTPUT:
        raise ValueError(f"{table}.size is no size of an output")
    unpacking = zlib.decompressobj()
    try:
        unpacked = len(unpacking.decompress(row["compressed"], size + 1))
    except zlib.error as error:
        raise ValueError(f"{table}.compressed is damaged ({error})") from error
    if unpacked != size or not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"{table}.compressed does not hold the {size} bytes that the row says")
