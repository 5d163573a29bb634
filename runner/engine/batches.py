"""The collector: sends waiting model calls in Message Batches, and stores their results.

A thread of every worker, of which one at a time works for an organization of the API. A batch is stored
as an intent, made with one try, and its id stored; results are stored before their runs are queued. After
a crash at any point, or an unknown outcome, the next pass finds what is stored and goes on from there.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

from runner.core import batches as core
from runner.core.agents import lineage
from runner.core.batches import ListedBatch, Sendable, StoredBatch, WaitingCall
from runner.core.entries import SPEND_LIMIT
from runner.core.model_calls import request_of
from runner.core.prices import Tariff
from runner.core.retries import delay, is_retried
from runner.core.run import RUNNER
from runner.core.spec import JobSpec
from runner.core.state import RunState
from runner.errors import KeyRefused, ModelCallError, RunnerError, UnreachableError
from runner.logs import Outage, log_event
from runner.ports import Batches, Clock
from runner.store import batches as store
from runner.store.database import Database
from runner.store.write_offs import charge_by_results, charged_by_results, wake

logger = logging.getLogger(__name__)

PASS_SECONDS = 1.0
_ERROR_SECONDS = 10.0  # after which an API that did not answer is asked again
_STORED_AT_ONCE = 200  # results


class _Stopped(RunnerError):  # noqa: N818 - not wrong
    """The worker ends, or another one has become the collector."""


def _is_of_key(error: Exception) -> TypeGuard[ModelCallError]:
    """True if an error says that the API refuses the key."""
    return isinstance(error, ModelCallError) and error.kind == "authentication_error"


@dataclass(eq=False)
class Collector:
    """Sends and collects the batches of all jobs, for a worker: ``run`` is its loop.

    Args:
        api: returns the API; called when it is first needed.
        look: returns the state of a run that waits for a batch; None if the run does not wait.
        tariffs: returns the prices of a job's models, by model.
        may_act: returns whether the worker's leases are valid.
        key_refused: told, with words, that the API refuses the key; it asks when to try again.
        grace: seconds after which a batch that the API does not list counts as not made.
    """

    database: Database
    worker_id: str
    clock: Clock
    api: Callable[[], Batches]
    look: Callable[[str], RunState | None]
    tariffs: Callable[[JobSpec], Mapping[str, Tariff]]
    stopping: threading.Event
    outage: Outage
    may_act: Callable[[], bool] = lambda: True
    key_refused: Callable[[KeyRefused, str], None] = lambda refused, fault: None
    grace: float = core.GRACE_SECONDS
    _account: str = field(default="", init=False)  # the organization
    _is_known: bool = field(default=False, init=False)  # the API has confirmed it
    _jobs: dict[str, Sendable] = field(default_factory=dict, init=False)
    # By kind of batch: how many temporary refusals came in a row, and when the next try is due.
    _backoffs: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)
    # By job whose cache is being warmed up: since when.
    _warming: dict[str, float] = field(default_factory=dict, init=False)
    _said: dict[str, str] = field(default_factory=dict, init=False)

    def run(self) -> None:
        """Pass once a second until the worker ends."""
        wait = PASS_SECONDS
        while not self.stopping.wait(wait):
            wait = PASS_SECONDS
            try:
                self.collect()
            except _Stopped:
                continue
            except UnreachableError as error:
                self.outage.failed(error)
            except Exception as error:  # any error: runs whose calls need no batch continue
                if _is_of_key(error):
                    refused = KeyRefused("anthropic", error.message, self._refuses_key)
                    self.key_refused(refused, str(refused))
                else:
                    self._warn("the lane of batches", error)
                wait = _ERROR_SECONDS

    def collect(self) -> None:
        """One pass. Raises ``UnreachableError``, and ``ModelCallError`` if the API does not answer. A host
        that cannot call the API leaves the batches to others, and begins with the account again."""
        try:
            self._pass()
        except ModelCallError as error:
            if _is_of_key(error) or error.is_unreached:
                self._is_known = False
                store.leave(self.database, self.worker_id)
            raise

    def _pass(self) -> None:
        store.wake(self.database, self.clock.now())
        self._correct_charges()
        if not store.is_there_work(self.database):
            return
        self._learn_account()
        if not self._collects():
            return
        for batch in store.open_batches(self.database, self._account):
            self._keep()
            now = self.clock.now()
            if batch.next_check(now) <= now:
                with self._isolated(batch.id):
                    self._attend(batch, now)
        self._send()
        store.wake(self.database, self.clock.now())

    def _refuses_key(self) -> bool:
        try:
            self.api().organization()
        except ModelCallError as error:
            return _is_of_key(error)
        return False

    def _correct_charges(self) -> None:
        jobs = set[str | None]()
        for run_id in charged_by_results(self.database):
            with self._isolated(f"the charge of {run_id}"):
                jobs.add(charge_by_results(self.database, run_id, self.tariffs, self.clock.now()))
        if freed := sorted(filter(None, jobs)):
            wake(self.database, freed, RUNNER, self.clock.now())

    def _learn_account(self) -> None:
        """Ask the API for the id of the organization, until it answers. Until then, use the id in the
        database if there is only one. Raises ``ModelCallError``."""
        if self._is_known:
            return
        try:
            self._account, self._is_known = self.api().organization(), True
        except ModelCallError as error:
            known = store.accounts(self.database)
            if error.is_unreached or not is_retried(error) or len(known) != 1:
                raise
            self._warn("the id of the organization", error)
            self._account = known[0]

    @contextmanager
    def _isolated(self, what: str) -> Iterator[None]:
        """Catch and log an error of one job or batch, so that others go on. A later pass tries again."""
        try:
            yield
        except (_Stopped, UnreachableError):
            raise
        except Exception as error:  # any error of one job or batch: the others go on
            if _is_of_key(error):
                raise
            self._warn(what, error)
            if isinstance(error, ModelCallError) and error.kind == "connection":
                raise
        else:
            self._said.pop(what, None)

    def _warn(self, what: str, error: Exception) -> None:
        """Log that ``what`` waits, once for each error."""
        if self._said.get(what) != repr(error):
            known = isinstance(error, ModelCallError)
            logger.warning("%s waits: %s", what, error, exc_info=not known)
            self._said[what] = repr(error)

    def _collects(self) -> bool:
        return store.collect(self.database, self._account, self.worker_id, self.clock.now())

    def _keep(self) -> None:
        """Raise ``_Stopped`` unless this worker may go on collecting."""
        if self.stopping.is_set() or not self.may_act() or not self._collects():
            raise _Stopped

    # --- Batches that were sent ---

    def _attend(self, batch: StoredBatch, now: float) -> None:
        try:
            (self._find if batch.api_id is None else self._check)(batch, now)
        except (_Stopped, UnreachableError):
            raise
        except Exception as error:  # any error: the batch notes it, and the pass logs it
            self._not_read(batch, error, now)
            raise

    def _find(self, batch: StoredBatch, now: float) -> None:
        """Look for a batch whose creation has an unknown outcome."""
        since = batch.asked_at - core.CLOCKS_DIFFER_SECONDS
        listed = {each.id: each for each in self.api().listed(since, batch.workspace)}
        found = core.candidates(batch, listed.values(), store.known_ids(self.database))
        if len(found) == 1:
            store.made(self.database, batch, listed[found[0]], now, adopted=True)
            log_event(logger, "adopted a batch", batch=batch.id, api_id=found[0])
            return
        why = f"{len(found)} batches of the API may be this one"
        if now - batch.asked_at >= self.grace:
            store.lost(self.database, batch, why, now)
            log_event(logger, "a batch is lost", batch=batch.id, why=why)
        else:
            store.checked(self.database, batch, now, why)

    def _check(self, batch: StoredBatch, now: float) -> None:
        """Ask how far a batch is, and read its results if it has ended."""
        assert batch.api_id is not None
        found = self.api().look(batch.api_id, batch.workspace)
        if found.ended_at is not None:
            self._read(batch, found)
            return
        # An adopted batch may belong to somebody else: only its results tell.
        may_cancel = not batch.cancelled and not batch.adopted
        if may_cancel and store.abandoned(self.database, batch):
            self.api().cancel(batch.api_id, batch.workspace)
            store.cancelled(self.database, batch, now)
        store.checked(self.database, batch, now)

    def _not_read(self, batch: StoredBatch, error: Exception, now: float) -> None:
        """Note that a batch could not be checked. It is lost if the API does not know it, or no longer
        has its results."""
        age = now - batch.asked_at
        is_unknown = isinstance(error, ModelCallError) and error.status == 404
        is_gone = is_unknown and batch.api_id is not None and age >= core.LOST_SECONDS
        if is_gone or age >= core.RESULTS_SECONDS:
            store.lost(self.database, batch, str(error), now)
        else:
            store.checked(self.database, batch, now, str(error))

    def _read(self, batch: StoredBatch, found: ListedBatch) -> None:
        """Store the results of a batch that has ended. Raises ``ModelCallError`` if some are missing."""
        ours = {core.custom_id(*call): call for call in store.members(self.database, batch)}
        seconds = max(0.0, (found.ended_at or 0.0) - found.created_at)
        lot: list[tuple[tuple[str, int], Mapping[str, object]]] = []
        count = 0
        for name, result in self.api().results(found.id, batch.workspace):
            count += 1
            if name in ours:
                lot.append((ours[name], result))
            elif batch.adopted:
                why = f"{found.id} was taken for it, and holds other requests"
                store.not_ours(self.database, batch, why)
                return
            if len(lot) >= _STORED_AT_ONCE:
                self._keep()
                store.store_results(self.database, batch, lot, seconds)
                store.wake(self.database, self.clock.now())
                lot = []
        store.store_results(self.database, batch, lot, seconds)
        if count < batch.count:
            why = f"results of {found.id} incomplete: {count} of {batch.count}"
            raise ModelCallError("stream_cut", why)
        store.ended(self.database, batch, self.clock.now())
        log_event(logger, "a batch has ended", batch=batch.id, calls=batch.count)

    # --- Calls that wait ---

    def _send(self) -> None:
        """Send the calls that are due."""
        waiting = store.waiting_calls(self.database)
        now, jobs = self.clock.now(), self._jobs_of({call.job_id for call in waiting})
        busy = store.busy_jobs(self.database, jobs) if jobs else set()
        for kind, wave in core.due_waves(waiting, jobs, busy, now).items():
            if self._backoffs.get(kind, (0, now))[1] > now:
                continue
            with self._isolated(f"a batch for {wave[0].job_id}"):
                self._send_wave(kind, self._warmed(wave, jobs, busy, now), jobs[wave[0].job_id])

    def _jobs_of(self, job_ids: Collection[str]) -> dict[str, Sendable]:
        """The jobs whose calls may be sent, without jobs that cannot be read."""
        found = {}
        for job_id in job_ids:
            with self._isolated(f"the lane of {job_id}"):
                found[job_id] = self._jobs.get(job_id) or self._read_job(job_id)
        self._jobs = found
        return found

    def _read_job(self, job_id: str) -> Sendable:
        spec = store.spec_of(self.database, job_id)
        headers = self.api().shared(spec.model_options)
        kind = json.dumps(headers, sort_keys=True)
        return Sendable(kind, headers, spec.batch_linger, spec.shared_tokens)

    def _warmed(
        self,
        wave: Sequence[WaitingCall],
        jobs: Mapping[str, Sendable],
        busy: Collection[str],
        now: float,
    ) -> Iterator[WaitingCall]:
        """Yield the calls of a wave, without jobs whose cache is being warmed up."""
        by_job: dict[str, list[WaitingCall]] = {}
        for call in wave:
            by_job.setdefault(call.job_id, []).append(call)
        for job_id, calls in by_job.items():
            since = self._warming.get(job_id)
            may_wait = since is None or (job_id in busy and now - since < core.MOST_WARMING_SECONDS)
            if may_wait and self._is_cold(job_id, calls, jobs[job_id].shared_tokens, now):
                self._warming.setdefault(job_id, now)
            else:
                self._warming.pop(job_id, None)
                yield from calls

    def _is_cold(
        self, job_id: str, calls: Sequence[WaitingCall], shared_tokens: int, now: float
    ) -> bool:
        """True if the calls of a job must wait for one of them to write their shared prefix. Sends that one
        alone, if none is under way."""
        pays = partial(core.is_worth_warming, shared_tokens, others=len(calls) - 1)
        is_warming = job_id in self._warming
        if not (pays(shared_tokens) or is_warming) or store.used_cache(
            self.database, job_id, now - core.CACHE_SECONDS
        ):
            return False
        first = next((call for call in calls if len(lineage(call.run_id)) == 1), None)
        if is_warming or first is None:
            return is_warming
        with self._isolated(f"the warm-up of {job_id}"):
            state = self.look(first.run_id)
            if state is not None and pays(state.context.tokens):
                store.withdraw(self.database, first, core.GOES_ALONE)
                return True
        return False

    def _send_wave(self, kind: str, wave: Iterable[WaitingCall], job: Sendable) -> None:
        bodies: dict[WaitingCall, bytes] = {}
        size = 0
        for call in wave:
            body = self._body(call)
            if body is None:
                continue
            is_full = size + len(body) > core.MOST_BYTES or len(bodies) >= core.MOST_REQUESTS
            if bodies and is_full:
                self._make(kind, bodies, job.headers)
                bodies, size = {}, 0
            bodies[call], size = body, size + len(body)
        if bodies:
            self._make(kind, bodies, job.headers)

    def _body(self, call: WaitingCall) -> bytes | None:
        """Return a call's request; None if it is not to be sent (now). A call whose request cannot be made
        is withdrawn: its run meets the same error, and it alone."""
        try:
            return self._made_body(call)
        except UnreachableError:
            raise
        except Exception as error:  # any error: it does not hold up the other calls
            logger.warning("a call of %s goes into no batch: %s", call.run_id, error, exc_info=True)
            store.withdraw(self.database, call)
            return None

    def _made_body(self, call: WaitingCall) -> bytes | None:
        state = self.look(call.run_id)
        open_call = None if state is None else state.model.open_call
        if state is None or open_call is None or open_call.number != call.number:
            return None
        if not core.may_begin(state, self.clock.now()):
            store.withdraw(self.database, call)
            return None
        return self.api().body(request_of(state, open_call))

    def _make(
        self, kind: str, bodies: Mapping[WaitingCall, bytes], headers: Mapping[str, str]
    ) -> None:
        """Store the intent, make the batch with one try, and store its id. After an unknown outcome the
        next passes look for the batch."""
        self._keep()
        now, workspace = self.clock.now(), headers.get("anthropic-workspace-id", "")
        intended = store.intend(self.database, self._account, workspace, bodies, now)
        if intended is None:
            return
        batch, calls = intended
        named = [(core.custom_id(call.run_id, call.number), bodies[call]) for call in calls]
        try:
            found = self.api().create(core.create_body(named), headers)
        except ModelCallError as error:
            if not _is_of_key(error):
                logger.warning("%s was not made: %s", batch.id, error)
            if not error.billed:
                self._refused(kind, batch, error, self.clock.now())
            return
        self._backoffs.pop(kind, None)
        store.made(self.database, batch, found, self.clock.now())
        log_event(logger, "sent a batch", batch=batch.id, api_id=found.id, calls=len(calls))

    def _refused(self, kind: str, batch: StoredBatch, error: ModelCallError, now: float) -> None:
        if _is_of_key(error) or error.is_unreached:
            store.not_made(self.database, batch, str(error), now)
            raise error
        if error.kind == SPEND_LIMIT or not is_retried(error):
            store.refused(self.database, batch, core.refusal(error), str(error), now)
            return
        refusals = self._backoffs.get(kind, (0, now))[0] + 1
        self._backoffs[kind] = refusals, now + delay(refusals, error.retry_after, 1.0)
        store.not_made(self.database, batch, str(error), now)
