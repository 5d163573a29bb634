"""A made-up run: its blocks, calls, decisions and events, as a worker would have stored them."""

from __future__ import annotations

import random
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.audit.record import outputs
from bench.audit.record.asked import DENIALS, Rule, answered
from bench.audit.record.bulk import Bulk
from bench.audit.record.repository import Repository
from bench.audit.record.totals import Totals
from runner.core.events import summarise_input
from runner.core.text import shorten
from runner.permissions import ToolContext
from runner.tools.output import MOST_CHARACTERS

_CALLS = ("Bash", "Read", "Edit", "Grep", "Write", "Glob", "lookup_ticket")
_CALL_WEIGHTS = (38, 30, 12, 10, 5, 3, 2)
_CHANGING = frozenset({"Bash", "Edit", "Write"})
_OUTCOMES = ("timed_out", "invalid_input", "unknown_tool", "interrupted", "unknown")
_ERRORS = ("overloaded_error: Overloaded", "api_error: Internal server error", "worker_lost: gone")


@dataclass
class Conversation:
    """One run that is being made up. ``now`` is in seconds since the epoch; ``text`` counts bytes."""

    bulk: Bulk
    chance: random.Random
    repository: Repository
    run_id: str
    job_id: str
    model: str
    rules: dict[str, Rule]
    now: float
    message: int = 0
    turn: int = 0
    number: int = 0
    blocks: int = 0
    denials: int = 0
    events: int = 0
    calls: int = 0
    compactions: int = 0
    attempt: int = 0
    text: int = 0
    sent: int = 3_000
    total: Totals = field(default_factory=Totals)
    tree: str = ""

    def submit(self, prompt: str, submitted: dict[str, Any], at: float) -> None:
        """What is there before a worker takes the run up: its prompt. ``at``: when that was."""
        begun, self.now = self.now, at
        self.event("run_submitted", submitted)
        self._add_block(0, 0, "user", {"type": "text", "text": prompt})
        self.message = 1
        self.now = begun

    def begin(self) -> None:
        """A worker takes the run up."""
        self.tree = f"{self.chance.getrandbits(160):040x}"
        self._take_up()
        self.event("tree_recorded", {"tree": self.tree, "cause": "created"})

    def _take_up(self) -> None:
        self.attempt += 1
        worker = f"worker_{self.attempt:026}"
        self.event("attempt_started", {"attempt": self.attempt, "worker": worker})

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """One line of the record."""
        self.events += 1
        self.bulk.add(
            "events",
            {
                "run_id": self.run_id,
                "number": self.events,
                "at": self.now,
                "attempt": self.attempt,
                "type": kind,
                "data": data,
            },
        )

    def play_turn(self, *, last: bool) -> None:
        """A model call, what it says, and the calls that it asks for."""
        self.turn += 1
        self.event("turn_started", {"turn": self.turn})
        if self.chance.random() < 0.01:
            self._call_model("", error=self.chance.choice(_ERRORS))
        said = self._say(last=last)
        asked = [] if last else self._ask()
        self._call_model("end_turn" if last else "tool_use")
        for at, block in enumerate(said + [block for block, _, _ in asked]):
            self._add_block(self.message, at, "assistant", block)
        self.message += 1
        for index, (block, printed, passed) in enumerate(asked):
            self._work(index, block, printed, passed=passed)
        if asked:
            self.message += 1
        self.event("turn_ended", {"turn": self.turn})

    def _say(self, *, last: bool) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if self.chance.random() < 0.35:
            thought = outputs.prose(self.repository, self.chance, self.chance.randint(4, 30))
            blocks.append({"type": "thinking", "thinking": thought, "signature": "c2lnbmVk" * 8})
        if last or self.chance.random() < 0.5:
            count = self.chance.randint(1, 14 if last else 5)
            said = outputs.prose(self.repository, self.chance, count)
            blocks.append({"type": "text", "text": said})
        return blocks

    def _ask(self) -> list[tuple[dict[str, Any], str, bool]]:
        count = self.chance.choice((1, 1, 1, 2, 2, 3))
        names = self.chance.choices(_CALLS, weights=_CALL_WEIGHTS, k=count)
        return [self._one_call(name) for name in names]

    def _one_call(self, name: str) -> tuple[dict[str, Any], str, bool]:
        given, printed, passed = self._input_of(name)
        identifier = f"toolu_{self.chance.getrandbits(120):030x}"
        block = {"type": "tool_use", "id": identifier, "name": name, "input": given}
        return block, printed, passed

    def _input_of(self, name: str) -> tuple[dict[str, Any], str, bool]:
        chance, repository = self.chance, self.repository
        file = chance.choice(repository.files)
        match name:
            case "Bash":
                command, printed, passed = outputs.bash(repository, chance)
                if chance.random() < 0.004:
                    printed = outputs.logs(repository, chance, chance.randint(700, 2_000))
                return {"command": command, "description": "Look into it"}, printed, passed
            case "Read":
                first, end = outputs.some_of(file, chance)
                part = {} if first == 0 else {"offset": first + 1, "limit": end - first}
                return {"file_path": file.path, **part}, "\n".join(file.numbered[first:end]), True
            case "Edit":
                at, size = chance.randrange(len(file.lines)), chance.randint(1, 12)
                old = file.lines[at : at + size]
                new = [*old, *chance.choice(repository.files).lines[: chance.randint(1, 12)]]
                given = {"file_path": file.path, "old_string": "\n".join(old)}
                return (
                    given | {"new_string": "\n".join(new)},
                    f"Edited {file.path} in 1 place.",
                    True,
                )
            case "Write":
                text = "\n".join(file.lines)
                return {"file_path": file.path, "content": text}, f"Wrote {file.path}.", True
            case "Grep":
                given = {"pattern": chance.choice(repository.names), "output_mode": "content"}
                return given, outputs.matches(repository, chance), True
            case "Glob":
                return {"pattern": "src/**/*.py"}, outputs.listing(repository, chance), True
            case _:
                said = outputs.prose(repository, chance, 6)
                return {"ticket": f"SHOP-{chance.randint(100, 9999)}"}, said, chance.random() < 0.95

    def _call_model(self, stop_reason: str, error: str | None = None) -> None:
        self.number += 1
        call = {"call": self.number, "turn": self.turn, "max_tokens": 32_000}
        self.event("model_call_started", call)
        latency = self.chance.lognormvariate(1.7, 0.6)
        row: dict[str, Any] = {
            "run_id": self.run_id,
            "number": self.number,
            "attempt": self.attempt,
            "turn": self.turn,
            "model": self.model,
            "max_tokens": 32_000,
            "worst_case": self.sent + 32_000,
            "started_at": self.now,
            "hour_cache": False,
            "request_id": f"req_{self.chance.getrandbits(96):024x}",
        }
        self.now += latency
        row["ended_at"] = self.now
        if error is not None:
            self.bulk.add("model_calls", row | {"error": error, "charged_tokens": 0})
            kind, _, message = error.partition(": ")
            told = {"call": self.number, "kind": kind, "message": message, "status": 529}
            self.event("model_call_ended", told | {"charged": 0})
            return
        usage = Totals(
            4, self.sent, self.chance.randint(200, 4_000), self.chance.randint(40, 1_500)
        )
        self.sent += usage.cache_creation + usage.output
        self.total.add(usage)
        replied = {"latency": latency, "stop_reason": stop_reason, **usage.as_columns()}
        self.bulk.add("model_calls", row | replied)
        self.event(
            "model_call_ended",
            call
            | {
                "stop_reason": stop_reason,
                "usage": usage.as_event(),
                "total": self.total.as_event(),
                "request_id": row["request_id"],
                "latency": round(latency, 3),
            },
        )

    def _add_block(self, message: int, position: int, role: str, block: dict[str, Any]) -> None:
        self.blocks += 1
        self.bulk.add(
            "blocks",
            {
                "run_id": self.run_id,
                "message": message,
                "position": position,
                "role": role,
                "type": block["type"],
                "turn": self.turn,
                "content": block,
                "created_at": self.now,
            },
        )
        self.text += _text_bytes(block)

    def _work(self, index: int, block: dict[str, Any], printed: str, *, passed: bool) -> None:
        """Decide on a call, ask where a rule says so, run it, and give its result."""
        chance, name = self.chance, block["name"]
        called = {"turn": self.turn, "call_index": index, "tool_use_id": block["id"], "name": name}
        matched = summarise_input(block["input"])
        luck = chance.random()
        effect = "ask" if luck < 0.03 and name in _CHANGING else "deny" if luck > 0.985 else "allow"
        rule = self.rules[effect]
        row: dict[str, Any] = {
            "run_id": self.run_id,
            "message": self.message - 1,
            "position": index,
            "turn": self.turn,
            "tool_use_id": block["id"],
            "name": name,
            "decision": effect,
            "rule": rule.text,
            "rule_position": rule.position,
            "decision_snapshot": 1,
            "matched": matched,
        }
        grounds = [{"rule": rule.text, "matched": matched}]
        decided = {"decision": effect, "rule": rule.text, "snapshot": 1, "grounds": grounds}
        self.event("permission_decided", called | decided)
        approved = self._answered(row, matched) if effect == "ask" else effect == "allow"
        if not approved:
            self.denials += 1
            row["outcome"] = "denied"
            printed = "Denied: " + (chance.choice(DENIALS) or "by a rule of this job")
        else:
            self._run(row, called, matched, passed=passed)
        self._give_result(row, called, block, printed)

    def _run(
        self, row: dict[str, Any], called: dict[str, Any], matched: str, *, passed: bool
    ) -> None:
        self.event("tool_started", called | {"input": matched})
        duration = self.chance.lognormvariate(-1, 1.5)
        changes = row["name"] in _CHANGING
        row |= {"started_attempt": self.attempt, "started_at": self.now, "duration": duration}
        row["tree_before"] = self.tree if changes else None
        if changes and self.chance.random() < 0.6:
            self.tree = f"{self.chance.getrandbits(160):040x}"
        row["tree_after"] = self.tree if changes else None
        self.now += duration
        odd = self.chance.random() < 0.012
        failed = self.chance.choice(_OUTCOMES) if odd else "failed"
        row["outcome"] = "succeeded" if passed and not odd else failed

    def _give_result(
        self, row: dict[str, Any], called: dict[str, Any], block: dict[str, Any], printed: str
    ) -> None:
        row["ended_at"] = self.now
        shown = printed
        if len(printed) > MOST_CHARACTERS:
            whole = printed.encode()
            shown = printed[:24_000] + "\n[… the middle is left out …]\n" + printed[-24_000:]
            place = {key: row[key] for key in ("run_id", "message", "position")}
            kept = {"size": len(whole), "compressed": zlib.compress(whole)}
            self.bulk.add("tool_outputs", place | kept)
            self.text += len(whole) - len(shown)
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": shown}
        outcome = row["outcome"]
        if outcome != "succeeded":
            result["is_error"] = True
        self._add_block(self.message, row["position"], "user", result)
        self.bulk.add("tool_calls", row)
        self.calls += 1
        done = {"output": shorten(shown, 80), "outcome": outcome, "is_error": "is_error" in result}
        self.event("tool_done", called | done | {"duration": round(row.get("duration") or 0, 4)})

    def _answered(self, row: dict[str, Any], summary: str) -> bool:
        """A person's answer to whether a call may run."""
        self.event("attempt_ended", {"why": "waiting: approval"})
        self.event("waiting", {"reason": "approval"})
        asked_at = self.now
        self.now += self.chance.lognormvariate(6, 2)
        approval = answered(self.chance, row, summary, asked_at, self.now)
        setting = asdict(ToolContext(workspace=f"/srv/{self.repository.name}"))
        self.bulk.add("approvals", approval | {"job_id": self.job_id, "setting": setting})
        told = {
            "by": approval["answered_by"] or "runner",
            "why": approval["reason"],
            "old": {"answer": None},
            "new": {"answer": approval["answer"]},
        }
        self.event("approval_answered", {"approval": approval["id"], **told})
        self._take_up()
        return bool(approval["answer"] == "approved")

    def verify(self, *, passed: bool) -> None:
        """The job's own commands look at what the run leaves."""
        printed = outputs.tests_ran(self.repository, self.chance, passed=passed)
        begun = self.now
        self.now += self.chance.uniform(1, 60)
        self.text += len(printed.encode())
        row = {
            "run_id": self.run_id,
            "number": 1,
            "turn": self.turn,
            "tree": self.tree,
            "attempt": self.attempt,
            "started_at": begun,
            "ended_at": self.now,
            "duration": self.now - begun,
            "outcome": "succeeded" if passed else "failed",
            "command": "make test",
            "content": printed,
        }
        self.bulk.add("verifications", row)
        self.event("verification_started", {"verification": 1, "turn": self.turn})
        told = {"command": "make test", "outcome": row["outcome"], "is_error": not passed}
        self.event("verified", {"verification": 1, **told})

    def compact(self) -> None:
        """A summary stands in for what was long ago."""
        self.compactions += 1
        summary = outputs.prose(self.repository, self.chance, 40)
        before, self.sent = self.sent, 20_000
        self.text += len(summary.encode())
        row = {
            "run_id": self.run_id,
            "number": self.compactions,
            "kind": "summary",
            "first_message": 1,
            "last_message": self.message - 6,
            "text": summary,
            "clips": [],
            "tokens_before": before,
            "tokens_after": self.sent,
            "turn": self.turn + 1,
            "made_by_call": self.number,
            "first_sent_in": self.number + 1,
            "created_at": self.now,
        }
        self.bulk.add("compactions", row)
        told = {"kind": "summary", "first": 1, "last": row["last_message"]}
        self.event("context_compacted", told | {"tokens_before": before, "tokens_after": self.sent})


def _text_bytes(block: dict[str, Any]) -> int:
    """Bytes of what is searched in a block."""
    match block["type"]:
        case "text" | "thinking":
            return len(block[block["type"]].encode())
        case "tool_use":
            return sum(len(str(value).encode()) for value in block["input"].values())
        case _:
            return len(block["content"].encode())
