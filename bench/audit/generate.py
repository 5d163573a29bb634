"""``python -m bench.audit.generate URL [--blocks N] [--seed N]``: fills a database with a made-up record.

The same seed gives the same rows. Jobs, runs, prices and outcomes are mixed as a year of work might
leave them: a few runs are very long, most succeed, some wait for people or cost too much.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from bench.audit.record.asked import Rule
from bench.audit.record.bulk import Bulk, opened
from bench.audit.record.conversation import Conversation
from bench.audit.record.repository import Repository
from bench.audit.record.vocabulary import Vocabulary
from runner import permissions
from runner.core.budget import Limits
from runner.core.conversation import Tool
from runner.core.spec import JobSpec
from runner.core.state import Files, ModelState, Progress
from runner.core.workspace import Workspace
from runner.store import migrate
from runner.store.database import Database
from runner.store.run_state import progress_to_json
from runner.tools.registry import BUILTIN

NEWEST = 1_795_300_000.0  # 2026-11-21, seconds since the epoch
_SPAN = 300 * 86_400.0
_RUNS_A_JOB = 60
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
REPOSITORIES = (
    "storefront",
    "ledger",
    "invoicing",
    "warehouse",
    "gateway",
    "mobile",
    "search",
    "infra",
)
_MODELS = ("claude-sonnet-5", "claude-sonnet-5", "claude-opus-5", "claude-haiku-5-5")
_TASKS = ("migrate to the new client", "remove dead flags", "add types", "find the flaky test")
_RULES = (
    Rule(0, "deny", "Bash(rm -rf *)"),
    Rule(1, "deny", "Read(.env)"),
    Rule(2, "ask", "Bash(git push *)"),
    Rule(3, "allow", "*"),
)
_ENDS = (
    (0.82, "succeeded", "end_turn"),
    (0.86, "failed", "verify"),
    (0.88, "failed", "refusal"),
    (0.89, "failed", "overloaded_error"),
    (0.90, "failed", "bug"),
    (0.93, "stopped", "max_turns"),
    (0.95, "stopped", "token_ceiling"),
    (0.97, "stopped", "cost_ceiling"),
    (1.00, "cancelled", "cancelled"),
)
_TICKETS = Tool("lookup_ticket", "Looks a ticket up.", {"type": "object"}, read_only=True)


@dataclass(frozen=True)
class Generated:
    """What was made: rows, and bytes of text that a search can find."""

    jobs: int
    runs: int
    blocks: int
    calls: int
    text: int


def generate(
    url: str,
    blocks: int = 1_000_000,
    seed: int = 1,
    tell: Callable[[int], None] = lambda blocks: None,
) -> Generated:
    """Fill the database at ``url``, which is brought up to date first.

    Args:
        blocks: how many at least; the last run is told to its end.
        tell: is given the number of blocks so far, run by run.
    """
    with closing(Database(url)) as database:
        migrate.upgrade(database)
    with opened(url) as bulk:
        maker = Maker(bulk, random.Random(seed), blocks)
        while maker.blocks < blocks:
            maker.make_job()
            tell(maker.blocks)
        return Generated(maker.jobs, maker.runs, maker.blocks, maker.calls, maker.text)


class Maker:
    def __init__(self, bulk: Bulk, chance: random.Random, blocks: int) -> None:
        self.jobs = self.runs = self.blocks = self.calls = self.text = 0
        self._bulk = bulk
        self._chance = chance
        self._wanted = blocks
        vocabulary = Vocabulary(chance)
        self._repositories = [Repository(name, vocabulary, chance) for name in REPOSITORIES]

    def _id(self, kind: str, now: float) -> str:
        value = (int(now * 1000) << 80) | self._chance.getrandbits(79)
        return f"{kind}_" + "".join(_DIGITS[value >> shift & 31] for shift in range(125, -1, -5))

    def make_job(self) -> None:
        """A job and all of its runs, up to the number of blocks that is wanted."""
        chance = self._chance
        self.jobs += 1
        repository = chance.choice(self._repositories)
        now = NEWEST - _SPAN * (1 - min(1.0, self.blocks / self._wanted))
        spec = self._spec(repository, chance.choice(_MODELS))
        job_id = self._id("job", now)
        self._add_job(job_id, spec, now)
        for number in range(chance.randint(1, 2 * _RUNS_A_JOB)):
            if self.blocks >= self._wanted:
                break
            self._make_run(job_id, spec, repository, now, number)
            self._bulk.flush_when_full()

    def _spec(self, repository: Repository, model: str) -> JobSpec:
        system = " ".join(repository.sentences[:12])
        task = self._chance.choice(_TASKS)
        return JobSpec(
            name=f"{repository.name}: {task}",
            model=model,
            system=f"You work on {repository.name}. {system}",
            tools=(*BUILTIN.values(), _TICKETS),
            rules=tuple(permissions.Rule(rule.effect, rule.text) for rule in _RULES),  # type: ignore[arg-type]
            limits=Limits(max_turns=2_000),
            workspace=Workspace(f"/srv/{repository.name}"),
        )

    def _add_job(self, job_id: str, spec: JobSpec, now: float) -> None:
        row: dict[str, Any] = {
            "id": job_id,
            "name": spec.name,
            "source": "jobs/nightly.toml",
            "spec_text": f'name = "{spec.name}"\n',
            "spec_digest": f"{self._chance.getrandbits(256):064x}",
            "spec": spec.to_json(),
            "created_at": now,
        }
        self._bulk.add("jobs", row)
        told = {"by": "lena", "why": "nightly", "old": None, "new": {"name": spec.name}}
        event = {"number": 1, "at": now, "type": "submitted", "data": told}
        self._bulk.add("job_events", {"job_id": job_id, **event})
        self.text += len((spec.system or "").encode())
        for rule in _RULES:
            told = {"position": rule.position, "effect": rule.effect, "rule": rule.text}
            made = {"job_id": job_id, "author": "lena", "created_at": now}
            self._bulk.add("permission_rules", told | made)

    def _make_run(
        self, job_id: str, spec: JobSpec, repository: Repository, now: float, number: int
    ) -> None:
        chance = self._chance
        file = chance.choice(repository.files)
        prompt = f"{file.path}: {' '.join(chance.sample(repository.sentences, k=4))}"
        open_at = now + number * 0.001
        run_id = self._id("run", open_at)
        key = f"{number:04}-{file.path}"
        item = {"path": file.path, "number": number}
        rules = {rule.effect: rule for rule in _RULES}
        begun = open_at + chance.uniform(0.5, 3_000)
        run = Conversation(self._bulk, chance, repository, run_id, job_id, spec.model, rules, begun)
        submitted = {"job_id": job_id, "item_key": key, "by": "lena", "why": "nightly"}
        run.submit(prompt, submitted, open_at)
        self._bulk.add("run_items", {"run_id": run_id, "item": item})
        self.play(run)
        self._bulk.add("runs", _row(run, spec, key, open_at, begun))
        self.runs += 1
        self.blocks += run.blocks
        self.calls += run.calls
        self.text += run.text

    def play(self, run: Conversation) -> None:
        most = self._wanted - self.blocks
        turns = max(1, min(2_000, most // 4, int(self._chance.lognormvariate(3.3, 0.9))))
        run.begin()
        for turn in range(1, turns + 1):
            run.play_turn(last=turn == turns)
            if turn % 120 == 0 and turn < turns:
                run.compact()
        if self._chance.random() < 0.3:
            run.verify(passed=self._chance.random() < 0.9)


def _row(
    run: Conversation, spec: JobSpec, key: str, created_at: float, begun: float
) -> dict[str, Any]:
    """The row of a run whose conversation is told, but for its end."""
    luck = run.chance.random()
    state, reason = next((state, reason) for most, state, reason in _ENDS if luck <= most)
    data = {"state": state, "reason": reason, "detail": ""}
    if state == "stopped":
        run.event("limit_reached", data)
    if state == "failed":
        run.event("error", data)
    run.event("attempt_ended", {"why": "run ended"})
    run.event("done", data | {"total": run.total.as_event()})
    return {
        "id": run.run_id,
        "job_id": run.job_id,
        "item_key": key,
        "created_at": created_at,
        "max_turns": spec.limits.max_turns,
        "token_ceiling": spec.limits.token_ceiling,
        "workspace_path": spec.workspace and spec.workspace.path,
        "progress": progress_to_json(
            Progress(model=ModelState(calls=run.number), files=Files(run.tree))
        ),
        **data,
        **run.total.as_columns(),
        "started_at": begun,
        "ended_at": run.now,
        "attempt": run.attempt,
        "last_worker_id": f"worker_{run.attempt:026}",
        "revision": 2 * run.turn + 1,
        "event_count": run.events,
        "message_count": run.message,
        "turns": run.turn,
        "denials": run.denials,
        "compaction_count": run.compactions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit.generate", description=__doc__)
    parser.add_argument("url", metavar="URL", help="sqlite:///path or postgresql://…")
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    def tell(blocks: int) -> None:
        print(f"\r{blocks:>12,} blocks", end="", file=sys.stderr, flush=True)

    made = generate(options.url, options.blocks, options.seed, tell)
    print(f"\n{made}, {made.text / made.blocks:,.0f} bytes a block")


if __name__ == "__main__":
    main()
