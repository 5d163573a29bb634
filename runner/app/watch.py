"""The view of a person who watches a job, computed from looks at the database. Pure: it reads no clock
and no database (``app.live`` does).

All words are safe to print: control characters of untrusted parts are visible.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from runner.app import times
from runner.app.humanize import TONES, cell, counts, duration, moment, plural, tokens_of, usd_of
from runner.core.budget import billionths
from runner.core.events import SIGNED
from runner.core.run import ENDED, RUNNERS_NAME
from runner.queries.jobs import RunSummary, current_runs

MOST_RUNS = 12
_RATE_SECONDS = 60.0  # over which turns a minute are counted
_LEAST_RATE_SECONDS = 5.0
# A run is slow if it takes _SLOW_TIMES the median of the ended runs, once _SLOW_ENDED of them have ended.
_SLOW_TIMES, _SLOW_ENDED, _SLOW_SECONDS = 2.0, 3, 10.0
# Reasons of queued runs that have begun and go on by themselves in a moment.
_PASSING = ("shutdown", "lease_lost", "yielded", "")
_LONGEST_WORDS = 600


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job."""

    runs: Sequence[RunSummary]  # all runs, sub-agents included

    @property
    def items(self) -> list[RunSummary]:
        """The run of each item; the newest, where one was begun afresh."""
        return [run for run in current_runs(self.runs) if not run["depth"]]

    @property
    def has_ended(self) -> bool:
        """True if every run has ended."""
        return all(run["state"] in ENDED for run in self.runs)

    def rests(self, *, asks: bool) -> bool:
        """True if nothing is left to do and, if a person is there (``asks``), nothing to ask. A run
        that waits for its sub-agents rests when these do: it goes on when the last has ended."""
        unended = [run for run in self.runs if run["state"] not in ENDED]
        waited_for = {run["parent"] for run in unended}
        return all(
            run["state"] == "waiting"
            and run["reason"] != "batch"
            and not (asks and run["reason"] == "approval")
            and (run["reason"] != "children" or run["id"] in waited_for)
            for run in unended
        )


@dataclass(frozen=True, slots=True)
class Money:
    """Costs and forecast: slower to read, so they may be older than the rest."""

    cost: str = ""  # in words
    ends_at: float | None = None  # expected; None: unknown
    expected: str = ""  # the forecast, in words


@dataclass(frozen=True, slots=True)
class Look:
    """The findings of one look at the database."""

    at: float  # seconds since the epoch, by the database's clock, as are all times here
    job: Mapping[str, Any]  # ``queries.jobs.JobSummary``
    progress: Progress
    events: Mapping[str, Sequence[Any]] = field(
        default_factory=dict
    )  # by run: the newest, in order
    job_events: Sequence[Any] = ()  # since the last look
    texts: Mapping[str, str] = field(default_factory=dict)  # by run: what the model said last
    lost: frozenset[str] = frozenset()  # runs whose workers have died, and nobody has taken over
    asking: int = 0  # tool calls that wait for a person's answer
    workers: int = 0  # that are alive and work this job
    money: Money = field(default_factory=Money)


@dataclass(frozen=True, slots=True)
class Doing:
    """The present doings of a run."""

    words: str  # such as ``Bash pytest -q``, or why it waits
    since: float | None = None
    until: float | None = None  # when it goes on; None if it does not wait
    call: int = 0  # the number of the event with which the model's last call began


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run that is being worked on."""

    id: str
    name: str
    turn: str  # ``3/50``
    seconds: float
    doing: Doing
    is_slow: bool
    text: str  # what the model said last


@dataclass(frozen=True, slots=True)
class Happening:
    """An event in one line, for a person who watches."""

    type: str  # ended, waits, person, runner, workers
    words: str
    data: Mapping[str, Any] = field(default_factory=dict)
    tone: str = "plain"  # as in ``humanize.Tone``


@dataclass(frozen=True, slots=True)
class View:
    """One screen of a job."""

    name: str
    job_id: str
    counts: Mapping[str, int]  # items by state (``interrupted``: it runs, and its worker is gone)
    total: int
    seconds: float  # since the job was submitted
    facts: Sequence[str]  # cost, tokens and so on
    runs: Sequence[RunLine]  # at most ``MOST_RUNS``
    more_runs: int
    asking: int  # tool calls that wait for a person's answer
    unworked: bool  # no worker is alive that would work what is due
    line: str  # the numbers in one line

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.counts.items() if state in ENDED)


def doing_now(events: Iterable[Any]) -> Doing:
    """Return what a run does by its newest events, which may be of any shape."""
    open_calls: dict[Any, Doing] = {}
    now, failure, call = Doing("begins"), "", 0
    for event in events:
        data = event.data if isinstance(event.data, dict) else {}
        key = data.get("turn"), data.get("call_index")
        match event.type:
            case "attempt_started":
                open_calls.clear()
                now = Doing("begins", event.at)
            case "tool_started":
                words = f"{cell(data.get('name'))} {cell(data.get('input'))}".strip()
                open_calls[key] = Doing(words, event.at)
            case "tool_done":
                open_calls.pop(key, None)
                now = Doing("", event.at)
            case "model_call_started":
                call = event.number
                now = Doing("summary" if data.get("purpose") == "summary" else "model", event.at)
            case "model_call_ended":
                failure = ": ".join(cell(data[n]) for n in ("kind", "message") if data.get(n))
            case "retry_scheduled":
                until = data.get("at")
                is_time = isinstance(until, int | float)
                now = Doing(f"tries again: {failure}", event.at, until if is_time else None)
            case "verification_started":
                now = Doing("verifies", event.at)
            case "hook_started":
                now = Doing(f"hook {cell(data.get('hook'))}".strip(), event.at)
            case "verified" | "hook_finished" | "turn_started":
                now = Doing("", event.at)
    if open_calls:
        first, *others = open_calls.values()
        words = f"{first.words} (+{len(others)})" if others else first.words
        now = Doing(words, first.since)
    return Doing(now.words, now.since, now.until, call)


class Watch:
    """Follows a job from look to look. Runs that ended before ``since`` are not reported."""

    def __init__(self, since: float = 0.0) -> None:
        self._look: Look | None = None
        self._since = since
        self._begun_at = 0.0
        self._states: dict[str, tuple[str, str]] = {}
        self._turns: deque[tuple[float, int]] = deque()
        self._told: set[tuple[str, int]] = set()
        self._unworked_since: float | None = None
        self._begins: set[float] = set()  # when runs go on that wait for their job's times
        self._faults: set[str] = set()  # of hosts, that were told

    @property
    def look(self) -> Look | None:
        return self._look

    def see(self, look: Look) -> list[Happening]:
        """Take another look. Returns what matters of what has happened since the last one."""
        is_first, self._look = self._look is None, look
        if is_first:
            self._begun_at = look.at
        told = [*self._of_people(look), *self._of_runs(look, is_first), *self._of_workers(look)]
        turns = sum(run["turns"] for run in look.progress.runs)
        self._turns.append((look.at, turns))
        while self._turns[0][0] < look.at - _RATE_SECONDS and len(self._turns) > 2:
            self._turns.popleft()
        return told

    def _of_runs(self, look: Look, is_first: bool) -> Iterable[Happening]:
        items = look.progress.items
        for run in items:
            before, now = self._states.get(run["id"]), (run["state"], run["reason"])
            self._states[run["id"]] = now
            rests = run["state"] in ENDED or (run["state"] == "waiting" and not _goes_on(run))
            is_old = is_first and (run["ended_at"] or 0.0) < self._since and not _asks(run)
            if before == now or not rests or is_old:
                continue
            ended = sum(state in ENDED for state, _ in self._states.values())
            is_end = run["state"] in ENDED
            told = {name: run[name] for name in ("state", "reason", "detail", "turns")}
            yield Happening(
                "ended" if is_end else "waits",
                f"[{ended}/{len(items)}] {run_in_words(run)}",
                {"run_id": run["id"], "item": run["item_key"], **told},
                TONES.get(run["state"], "plain"),
            )
        begins = {run["due_at"] for run in items if times.begins_later(run)}
        if begins - self._begins:
            yield Happening("waits", counter_line(look))
        self._begins = begins
        faults = {run["detail"] for run in items if run["reason"] == "host_fault"}
        for fault in sorted(faults - self._faults):
            yield Happening("waits", f"given back by host {cell(fault)}", {}, "wait")
        self._faults |= faults

    def _of_people(self, look: Look) -> Iterable[Happening]:
        """The acts of people, and of Runner by itself, on the job and its runs; equal ones in one line."""
        of_job = {"paused", "resumed", "cancelled"}
        done = [("job", event, look.job["id"]) for event in look.job_events]
        told_of_job = {(e.type, *_signature(e)) for _, e, _ in done if e.type in of_job}
        for run_id, newest in look.events.items():
            for event in newest:
                is_new = event.type in SIGNED and event.at >= self._begun_at
                if is_new and (run_id, event.number) not in self._told:
                    self._told.add((run_id, event.number))
                    done.append(("run", event, run_id))
        names = {run["id"]: run["item_key"] for run in look.progress.runs}
        groups: dict[tuple[Any, ...], list[str]] = {}
        for kind, event, of in done:
            type_ = "paused" if event.type == "pause_requested" else event.type
            by, why = _signature(event)
            if kind == "run" and (by == RUNNERS_NAME or (type_, by, why) in told_of_job):
                continue
            if type_ == "approval_answered":
                type_ = str(event.data.get("answer"))
                why = why or cell(event.data.get("name"))
            if type_ in _VERBS:
                what = _what(event) if kind == "job" else ""
                groups.setdefault((kind, type_, by, why or what), []).append(of)
        for (kind, type_, by, why), of in groups.items():
            whom = "the job" if kind == "job" else cell(names.get(of[0], of[0]))
            if len(of) > 1:
                whom = plural(len(of), "run")
            who = cell(by) if by else "somebody"
            because = f": {cell(why)}" if why else ""
            how = _HOW_TO_GO_ON.get(type_, "").format(look.job["id"] if len(of) > 1 else of[0])
            words = f"{who} {_VERBS[type_]} {whom}{because}{how}"
            data = {"did": type_, "by": by, "why": why, "runs": [] if kind == "job" else of}
            is_person = by != RUNNERS_NAME
            yield Happening("person" if is_person else "runner", words, data, "person")

    def _of_workers(self, look: Look) -> Iterable[Happening]:
        is_unworked = _is_unworked(look)
        if is_unworked and self._unworked_since is None:
            self._unworked_since = look.at
            how = f"`runner run --resume {look.job['id']}` or `runner worker`"
            yield Happening("workers", f"no worker is alive: start one with {how}", {}, "wait")
        elif not is_unworked and self._unworked_since is not None:
            self._unworked_since = None
            if look.workers:
                yield Happening("workers", f"{plural(look.workers, 'worker')} alive")

    def view(self, now: float, live: Mapping[str, str] | None = None) -> View:
        """Return the screen of a time, with the texts that are being written (``live``, by run)."""
        look = self._look
        assert look is not None  # ``see`` comes first
        items, job = look.progress.items, look.job
        shown = in_hand(look.progress.runs)
        typical = _typical_seconds(items)
        counts = Counter("interrupted" if run["id"] in look.lost else run["state"] for run in items)
        order = (
            "succeeded",
            "failed",
            "stopped",
            "cancelled",
            "running",
            "interrupted",
            "waiting",
            "queued",
        )
        return View(
            name=cell(job["name"]),
            job_id=job["id"],
            counts={state: counts[state] for state in order if counts[state]},
            total=len(items),
            seconds=max(0.0, now - job["created_at"]),
            facts=[*filter(None, self._facts(look, now))],
            runs=[_line(run, look, now, typical, live or {}) for run in shown],
            more_runs=sum(map(_is_in_hand, look.progress.runs)) - len(shown),
            asking=look.asking,
            unworked=self._unworked_since is not None,
            line=counter_line(look),
        )

    def _facts(self, look: Look, now: float) -> Iterable[str]:
        runs, ends_at = look.progress.runs, look.money.ends_at
        yield f"ends in {duration(max(0.0, ends_at - now))}" if ends_at else ""
        yield cost_in_words(look)
        read = sum(run["cache_read_tokens"] for run in runs)
        prompt = sum(sum(run[name] for name in _PROMPT_TOKENS) for run in runs)
        yield tokens_in_words(look) + (f", {read / prompt:.0%} cached" if prompt else "")
        if denials := sum(run["denials"] for run in runs):
            yield f"{plural(denials, 'call')} denied"
        (first_at, first), (last_at, last) = self._turns[0], self._turns[-1]
        if (seconds := last_at - first_at) >= _LEAST_RATE_SECONDS:
            yield f"{(last - first) * 60 / seconds:.0f} turns/min"


_PROMPT_TOKENS = ("input_tokens", "cache_read_tokens", "cache_creation_tokens")
_VERBS = {
    "paused": "paused",
    "cancelled": "cancelled",
    "resumed": "resumed",
    "retried": "retried",
    "begun_afresh": "began afresh",
    "forked": "forked",
    "message_queued": "sent a message to",
    "approved": "approved a call of",
    "denied": "denied a call of",
    "priority_changed": "changed the priority of",
    "budget_changed": "changed the budget of",
    "finish_by_moved": "moved finish_by of",
    "pilot_ended": "ended the pilot of",
}
_HOW_TO_GO_ON = {
    "paused": "; `runner resume {0}` goes on",
    "cancelled": "; `runner retry {0}` begins again",
}


def _signature(event: Any) -> tuple[str, str]:
    """Return who did something, and why."""
    data = event.data if isinstance(event.data, dict) else {}
    return str(data.get("by") or ""), str(data.get("why") or "")


def _what(event: Any) -> str:
    new = event.data.get("new") if isinstance(event.data, dict) else None
    return str(new.get("detail") or "") if isinstance(new, dict) else ""


def _line(
    run: RunSummary, look: Look, now: float, typical: float | None, live: Mapping[str, str]
) -> RunLine:
    doing = doing_now(look.events.get(run["id"], ()))
    if run["id"] in look.lost:
        doing = Doing("interrupted: its worker is gone", doing.since, None, doing.call)
    elif run["state"] == "queued":
        why = doing.words if doing.until else f"waits: {cell(run['detail'] or run['reason'])}"
        doing = Doing(why, doing.since, run["due_at"], doing.call)
    elif doing.until is not None and doing.until <= now:
        doing = Doing("", doing.since, None, doing.call)
    seconds = max(0.0, now - _began(run))
    name = cell(run["item_key"])
    if run["depth"]:
        name = f"{name} › {run['label']} {cell(run['agent_type'] or '')}".rstrip()
    said = live.get(run["id"]) or look.texts.get(run["id"], "")
    return RunLine(
        id=run["id"],
        name=name,
        turn=f"{run['turns'] + 1}/{run['max_turns']}",
        seconds=seconds,
        doing=doing,
        is_slow=typical is not None and not run["depth"] and seconds > typical,
        text=cell(" ".join(said[-_LONGEST_WORDS:].split())),
    )


def _typical_seconds(items: Iterable[RunSummary]) -> float | None:
    """Return from when on a run is slow; None while too few have ended."""
    took = [
        run["ended_at"] - run["started_at"]
        for run in items
        if run["state"] == "succeeded" and run["started_at"] is not None
    ]
    return max(_SLOW_SECONDS, _SLOW_TIMES * median(took)) if len(took) >= _SLOW_ENDED else None


def _began(run: RunSummary) -> float:
    return float(run["created_at"] if run["started_at"] is None else run["started_at"])


def _is_in_hand(run: RunSummary) -> bool:
    """True if a run is worked on, or goes on at a known time."""
    is_back_off = run["state"] == "queued" and run["started_at"] and run["reason"] not in _PASSING
    return run["state"] == "running" or bool(is_back_off)


def in_hand(runs: Iterable[RunSummary]) -> list[RunSummary]:
    """Return the runs that a screen shows: of the running ones, those that began first."""
    return sorted(filter(_is_in_hand, runs), key=_began)[:MOST_RUNS]


def _asks(run: RunSummary) -> bool:
    return bool((run["state"], run["reason"]) == ("waiting", "approval"))


def _goes_on(run: RunSummary) -> bool:
    """True if a run waits only for its sub-agents."""
    return bool((run["state"], run["reason"]) == ("waiting", "children"))


def _is_unworked(look: Look) -> bool:
    return not look.workers and any(
        run["state"] == "running" or (run["state"] == "queued" and run["due_at"] <= look.at)
        for run in look.progress.runs
    )


def cost_in_words(look: Look) -> str:
    """Return the cost so far, and of what budget: ``cost $1.23 of $40.00``; nothing before a call ended."""
    budget, cost = look.job["budget_usd"], look.money.cost
    of = "" if budget is None else f" of {usd_of(billionths(budget))}"
    return f"cost {cost}{of}" if cost else ""


def tokens_in_words(look: Look) -> str:
    """Return the tokens so far, and of what budget: ``12,345 of 900,000 tokens``."""
    job = look.job
    budget = job["budget_tokens"]
    if budget is None:
        return f"{tokens_of(job['charged_tokens'], job['unknown_tokens'])} tokens"
    return f"{job['spent_tokens']:,} of {budget:,} tokens"


def counter_line(look: Look) -> str:
    """Return how far a job is: ``3/8 ended, 2 queued, 3 running, 3 succeeded; 12,345 tokens``."""
    runs = look.progress.items
    by_state = Counter(run["state"] for run in runs)
    words = [f"{sum(by_state[state] for state in ENDED)}/{len(runs)} ended"]
    words.append(counts(by_state))
    if later := [run for run in runs if times.begins_later(run)]:
        first = min(later, key=lambda run: run["due_at"])
        words.append(f"{len(later)} until {moment(first['due_at'])} ({first['reason']})")
    told = (", ".join(words), tokens_in_words(look), cost_in_words(look))
    expected = f"expected: {look.money.expected}" if look.money.expected else ""
    return "; ".join(filter(None, (*told, expected)))


def run_in_words(run: RunSummary) -> str:
    """Return the state of a run in words: ``succeeded  slugs  5 turns, 4.3s``."""
    why = f" ({cell(run['reason'])})" if run["reason"] not in ("", "end_turn") else ""
    took = ""
    if run["ended_at"] is not None and run["started_at"] is not None:
        took = f", {duration(run['ended_at'] - run['started_at'])}"
    below = f", {run['below']} below" if run["below"] else ""
    return (
        f"{run['state']}{why}  {cell(run['item_key'])}  {plural(run['turns'], 'turn')}{below}{took}"
    )
