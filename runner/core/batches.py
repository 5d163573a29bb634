"""Message Batches: which calls go into one and when, and which of the API's batches is ours.

A call in a batch costs half, and its reply may take up to a day
(https://platform.claude.com/docs/en/build-with-claude/batch-processing). The API takes no key that makes
``create`` idempotent: after an unknown outcome the list of batches is all that tells whether there is one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from runner.core.conversation import Usage
from runner.core.entries import WARMS_CACHE
from runner.core.spec import LEAST_CACHED_TOKENS, JobSpec
from runner.core.state import Rounds, RunState
from runner.core.times import Times
from runner.errors import ModelCallError

# The API takes 100,000 requests or 256 MB; less keeps little in memory.
MOST_REQUESTS = 10_000
MOST_BYTES = 16 * 1024 * 1024

GRACE_SECONDS = 300.0  # after which a batch that is not listed is taken for not made
CLOCKS_DIFFER_SECONDS = 60.0  # between this machine and the API, at most
# The seconds after which a batch that the API does not know is lost: batches end after 24 hours.
LOST_SECONDS = 26 * 3600.0
RESULTS_SECONDS = 29 * 24 * 3600.0  # that the API keeps results

# Model options that the API does not take in a batch.
BATCHES_REFUSE = ("speed",)

# The results that Runner gives to calls, beside the API's.
LOST: Mapping[str, Any] = {"type": "lost"}  # its batch may not exist, or its outcome is unknown
WITHDRAWN: Mapping[str, Any] = {"type": "withdrawn"}  # it was not sent
GOES_ALONE: Mapping[str, Any] = {"type": WARMS_CACHE}  # it was not sent

CACHE_SECONDS = 3600.0  # in this lane, a prefix stays cached so long after its last use
MOST_WARMING_SECONDS = 600.0  # the longest wait of a job's calls for the one that goes alone


def refusal(error: ModelCallError) -> Mapping[str, Any]:
    """Return the result of each call of a batch that the API refused."""
    names = ("kind", "message", "status", "request_id")
    return {"type": "refused", **{name: getattr(error, name) for name in names}}


def usage_in(result: Mapping[str, Any]) -> Usage | None:
    """Return the tokens that the API billed for a call; None if its result does not say."""
    match result:
        case {"type": "succeeded", "message": {"usage": {**told}}}:
            names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            counts: list[Any] = [told.get(name) or 0 for name in (*names, "output_tokens")]
            return Usage(*counts) if all(type(count) is int for count in counts) else None
        case {"type": "errored" | "expired" | "canceled" | "refused" | "withdrawn"}:
            return Usage()
    return None


_UNKNOWN_TURNS = 10  # that are left, as long as no item of the job has succeeded
_SPARE = 1.25  # of the time: rounds differ

_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_ID = 64


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A model call that no batch has yet."""

    run_id: str
    number: int
    job_id: str
    asked_at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Sendable:
    """The settings of a job for sending its calls in batches."""

    kind: str  # calls of one kind may share a batch
    headers: Mapping[str, str]  # of the request that makes the batch
    linger: float  # the most seconds that a call waits for others
    shared_tokens: int  # length of the prefix that its items share


@dataclass(frozen=True, slots=True)
class ListedBatch:
    """A batch as the API tells of it. Times are in seconds since the epoch."""

    id: str
    count: int  # of its requests
    created_at: float
    expires_at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as it is stored, with its intent at least."""

    id: str
    workspace: str  # of the API, where the job names one
    count: int
    asked_at: float  # seconds since the epoch: when its intent was stored
    api_id: str | None  # None: it may not have been made
    created_at: float | None
    checked_at: float  # when the API was last asked about it
    adopted: bool  # it was found in the API's list
    not_ours: tuple[str, ...]  # the API's ids of batches that were adopted by mistake
    cancelled: bool  # the API was told to cancel it

    def next_check(self, now: float) -> float:
        """Return when to ask about it again: after a twentieth of its age, a minute at most."""
        age = max(0.0, now - (self.created_at or self.asked_at))
        return self.checked_at + min(60.0, max(1.0, age / 20))


def custom_id(run_id: str, number: int) -> str:
    """Return the name of a call in a batch: its run and its number, in characters that the API
    takes."""
    name = f"{_NOT_IN_IDS.sub('-', run_id)}_{number}"
    return name if len(name) <= _LONGEST_ID else sha256(name.encode()).hexdigest()


def due_waves(
    waiting: Iterable[WaitingCall], jobs: Mapping[str, Sendable], busy: Collection[str], now: float
) -> dict[str, list[WaitingCall]]:
    """Return the calls to send now, by kind: calls of one kind may share a batch.

    A wave is due when one of its calls has waited for its job's ``batch_linger``, when nothing else of
    its job is under way, or when it is as large as a batch may be.

    Args:
        jobs: calls of other jobs are not sent.
        busy: the jobs with runs that may ask for another call soon.
    """
    waves: defaultdict[str, list[WaitingCall]] = defaultdict(list)
    for call in waiting:
        if call.job_id in jobs:
            waves[jobs[call.job_id].kind].append(call)

    def is_due(call: WaitingCall) -> bool:
        waited = now - call.asked_at
        return call.job_id not in busy or not 0 <= waited < jobs[call.job_id].linger

    return {
        kind: wave
        for kind, wave in waves.items()
        if len(wave) >= MOST_REQUESTS or any(map(is_due, wave))
    }


def is_worth_warming(shared_tokens: int, prompt_tokens: int, others: int) -> bool:
    """True if one call of a job should go alone before a wave, so that the ``others`` read the prefix from
    the cache. It pays half of its prompt's price more, and each other call saves writing the prefix."""
    return shared_tokens >= LEAST_CACHED_TOKENS and others * shared_tokens >= prompt_tokens


def candidates(
    batch: StoredBatch, listed: Iterable[ListedBatch], known: Collection[str]
) -> list[str]:
    """Return the ids of the API's batches that may be ``batch``, whose creation has an unknown outcome: as
    many requests, made since then, and neither in ``known`` nor found to be another."""
    since = batch.asked_at - CLOCKS_DIFFER_SECONDS
    return [
        each.id
        for each in listed
        if each.count == batch.count
        and each.created_at >= since
        and each.id not in known
        and each.id not in batch.not_ours
    ]


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """The lane that ``auto`` takes for a run's next call."""

    batch: bool
    why: str
    ends_at: float  # when the run is expected to end in batches, in seconds since the epoch


def choose_lane(
    times: Times,
    finish_by: float | None,
    rounds: Rounds,
    now: float,
    *,
    turns: int = 0,
    most_turns: int,
    deadline: float | None = None,
) -> LaneChoice:
    """Return the lane for the next call of a run that has made some ``turns``: a batch, while there is time
    for the turns that are left at the rounds seen so far. Times are in seconds since the epoch."""
    expected = rounds.turns if rounds.turns is not None else turns + _UNKNOWN_TURNS
    left = max(1.0, min(expected, most_turns) - turns)
    ends_at = now + left * rounds.seconds * _SPARE
    bounds = {"finish_by": finish_by, "the deadline": deadline}
    if times.window is not None:
        bounds["the end of the window"] = times.window.around(now)[1]
    limits = {name: at for name, at in bounds.items() if at is not None}
    if not limits:
        return LaneChoice(True, "nothing says when it has to end", ends_at)
    name = min(limits, key=limits.__getitem__)
    fits = ends_at <= limits[name]
    verb = "end" if fits else "would not end"
    return LaneChoice(fits, f"{left:.0f} more rounds {verb} before {name}", ends_at)


def may_begin(state: RunState, now: float) -> bool:
    """True if the job and the run's deadline let model calls begin now."""
    ends = (state.finish_by, state.ends_at)
    is_past = any(at is not None and at <= now for at in ends)
    return not is_past and state.spec.times.next_start(now) is None


def awaits_batch(state: RunState) -> bool:
    """True if a run's open call is in a batch, or is to go into one, and has no result yet."""
    call = state.model.open_call
    return call is not None and call.reservation.batch and state.batch_result is None


def goes_in_batch(state: RunState) -> bool:
    """True if a run's next call goes into a batch. The first one of a job does not: it writes the
    prefix that the others read from the cache, and shows at once if the API refuses such requests.
    Until one is accepted, the others do not either."""
    if state.lane == "realtime" or state.model.warms_cache or state.first_refused:
        return False
    if state.lane == "batch":
        return True
    return choose_lane(
        state.spec.times,
        state.finish_by,
        state.rounds,
        state.now,
        turns=state.turns,
        most_turns=state.limits.max_turns,
        deadline=state.ends_at,
    ).batch


def refused_options(spec: JobSpec) -> list[str]:
    """Return the model options of a job that the API does not take in a batch."""
    given = {**spec.model_options, **(spec.model_options.get("extra_body") or {})}
    return [name for name in BATCHES_REFUSE if name in given]


def create_body(bodies: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the body of ``create``, given each request's ``custom_id`` and its parameters as JSON."""
    each = (b'{"custom_id":"%b","params":%b}' % (name.encode(), body) for name, body in bodies)
    return b'{"requests":[' + b",".join(each) + b"]}"
