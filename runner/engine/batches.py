"""The collector: sends waiting model calls in Message Batches, and stores their results.

A thread of every worker, of which one at a time works for an organization of the API. A batch is stored
as an intent, made with one try, and its id stored; results are stored before their runs are queued. After
a crash at any point, or an unknown outcome, the next pass finds what is stored and goes on from there.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.core import batches as core
from runner.core.batches import ListedBatch, StoredBatch, WaitingCall
from runner.core.entries import SPEND_LIMIT
from runner.core.model_calls import delay, is_retried, request_of
from runner.core.spec import JobSpec
from runner.core.state import RunState
from runner.errors import ModelCallError, RunnerError, UnreachableError
from runner.logs import Outage, log_event
from runner.ports import Batches, Clock
from runner.store import batches as store
from runner.store.database import Database

logger = logging.getLogger(__name__)

PASS_SECONDS = 1.0
_ERROR_SECONDS = 10.0  # after which an API that did not answer is asked again
_STORED_AT_ONCE = 200  # results


class _Stopped(RunnerError):  # noqa: N818 - not wrong
    """The worker ends, or another one collects by now."""


@dataclass(eq=False)
class Collector:
    """Collects for a worker, in ``run``.

    Args:
        api: gives the API, when it is needed first.
        look: the state of a run that waits for a batch; None if it does not.
        may_act: whether the worker's leases are good.
        grace: seconds after which a batch that is not listed is taken for not made.
    """

    database: Database
    worker_id: str
    clock: Clock
    api: Callable[[], Batches]
    look: Callable[[str], RunState | None]
    stopping: threading.Event
    outage: Outage
    may_act: Callable[[], bool] = lambda: True
    grace: float = core.GRACE_SECONDS
    _account: str | None = field(default=None, init=False)
    _specs: dict[str, JobSpec] = field(default_factory=dict, init=False)
    _refusals: int = field(default=0, init=False)  # in a row, that a later try may mend
    _sends_from: float = field(default=0.0, init=False)

    def run(self) -> None:
        """Pass once a second until the worker ends."""
        wait, said = PASS_SECONDS, ""
        while not self.stopping.wait(wait):
            wait = PASS_SECONDS
            try:
                self.collect()
                said = ""
            except _Stopped:
                continue
            except UnreachableError as error:
                self.outage.failed(error)
            except Exception as error:  # any error: what calls the API one by one goes on
                known = isinstance(error, ModelCallError)
                if repr(error) != said:
                    logger.warning("batches wait: %s", error, exc_info=not known)
                said, wait = repr(error), _ERROR_SECONDS

    def collect(self) -> None:
        """One pass. Raises ``UnreachableError``, and ``ModelCallError`` if the API does not answer."""
        store.wake(self.database, self.clock.now())
        if not store.is_there_work(self.database):
            return
        if self._account is None:
            self._account = self.api().organization()
        if not self._collects(self._account):
            return
        failed = self._attend(self._account)
        if self.clock.now() >= self._sends_from:
            self._send(self._account)
        store.wake(self.database, self.clock.now())
        if failed is not None:
            raise failed

    def _attend(self, account: str) -> ModelCallError | None:
        """Look after the batches that are due for it, and return the last error of one: it does not hold
        up the others. Raises ``ModelCallError`` if the API is out of reach."""
        failed = None
        for batch in store.open_batches(self.database, account):
            self._keep()
            now = self.clock.now()
            if batch.next_check(now) > now:
                continue
            try:
                (self._find if batch.api_id is None else self._check)(batch, now)
            except (_Stopped, UnreachableError):
                raise
            except Exception as error:  # any error: it does not hold up the other batches
                self._not_read(batch, error, now)
                if not isinstance(error, ModelCallError):
                    logger.warning("%s waits: %s", batch.id, error, exc_info=True)
                elif error.kind == "connection":
                    raise
                else:
                    failed = error
        return failed

    def _collects(self, account: str) -> bool:
        return store.collect(self.database, account, self.worker_id, self.clock.now())

    def _keep(self) -> None:
        """Raise ``_Stopped`` unless this worker may go on collecting."""
        is_mine = self.may_act() and self._collects(self._account or "")
        if self.stopping.is_set() or not is_mine:
            raise _Stopped

    # --- Batches that were sent ---

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
        # One that was adopted may be another's, which its results tell.
        may_cancel = not batch.cancelled and not batch.adopted
        if may_cancel and store.abandoned(self.database, batch):
            self.api().cancel(batch.api_id, batch.workspace)
            store.cancelled(self.database, batch, now)
        store.checked(self.database, batch, now)

    def _not_read(self, batch: StoredBatch, error: Exception, now: float) -> None:
        """Note that a batch could not be looked after. It is lost if the API does not know it, or has
        its results no more."""
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

    def _send(self, account: str) -> None:
        """Send the calls that are due."""
        waiting = store.waiting_calls(self.database)
        if not waiting:
            return
        job_ids = {call.job_id for call in waiting}
        self._specs = store.specs_of(self.database, self._specs, job_ids)
        shared = {id_: self.api().shared(self._specs[id_].model_options) for id_ in job_ids}
        kinds = {job_id: json.dumps(shared[job_id], sort_keys=True) for job_id in job_ids}
        busy = store.busy_jobs(self.database, job_ids)
        for wave in core.due_waves(waiting, kinds, self._specs, busy, self.clock.now()):
            self._send_wave(account, wave, shared[wave[0].job_id])

    def _send_wave(
        self, account: str, wave: Sequence[WaitingCall], headers: Mapping[str, str]
    ) -> None:
        bodies: dict[WaitingCall, bytes] = {}
        size = 0
        for call in wave:
            body = self._body(call)
            if body is None:
                continue
            is_full = size + len(body) > core.MOST_BYTES or len(bodies) >= core.MOST_REQUESTS
            if bodies and is_full:
                self._make(account, bodies, headers)
                bodies, size = {}, 0
            bodies[call], size = body, size + len(body)
        if bodies:
            self._make(account, bodies, headers)

    def _body(self, call: WaitingCall) -> bytes | None:
        """Return a call's request; None if it is not to be sent (now). A call whose request cannot be made
        is withdrawn: its run meets the same error, and it alone."""
        try:
            return self._made_body(call)
        except UnreachableError:
            raise
        except Exception as error:  # any error: it does not hold up the other calls
            logger.warning("a call of %s goes into no batch: %s", call.run_id, error, exc_info=True)
            store.withdraw(self.database, [call])
            return None

    def _made_body(self, call: WaitingCall) -> bytes | None:
        state = self.look(call.run_id)
        open_call = None if state is None else state.model.open_call
        if state is None or open_call is None or open_call.number != call.number:
            return None
        if not core.may_begin(state, self.clock.now()):
            store.withdraw(self.database, [call])
            return None
        return self.api().body(request_of(state, open_call))

    def _make(
        self, account: str, bodies: Mapping[WaitingCall, bytes], headers: Mapping[str, str]
    ) -> None:
        """Store the intent, make the batch with one try, and store its id."""
        self._keep()
        now, workspace = self.clock.now(), headers.get("anthropic-workspace-id", "")
        intended = store.intend(self.database, account, workspace, bodies, now)
        if intended is None:
            return
        batch, calls = intended
        named = [(core.custom_id(call.run_id, call.number), bodies[call]) for call in calls]
        try:
            found = self.api().create(core.create_body(named), headers)
        except ModelCallError as error:
            self._not_created(batch, error)
            return
        self._refusals = 0
        store.made(self.database, batch, found, self.clock.now())
        log_event(logger, "sent a batch", batch=batch.id, api_id=found.id, calls=len(calls))

    def _not_created(self, batch: StoredBatch, error: ModelCallError) -> None:
        """Note that ``create`` failed. After an unknown outcome the next passes look for the batch."""
        now = self.clock.now()
        logger.warning("%s was not made: %s", batch.id, error)
        if error.billed:
            return
        if error.kind == SPEND_LIMIT or not is_retried(error):
            store.refused(self.database, batch, core.refusal(error), str(error), now)
            return
        self._refusals += 1
        store.not_made(self.database, batch, str(error), now)
        self._sends_from = now + delay(self._refusals, error.retry_after, 1.0)
