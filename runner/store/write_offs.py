"""Take back charges for calls of unknown usage: a person writes them off, or the batch of a call that its
run gave up has ended and says what the call cost.

Tokens that the API has counted stay charged. While a worker has a run, its charges stay, because the worker
holds them in memory. The order of locks is in ``store.budgets``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, and_, func, literal, select, update

from runner.core.batches import usage_in
from runner.core.commands import Change
from runner.core.conversation import Usage
from runner.core.events import Event, signed_event
from runner.core.prices import FREE, Tariff
from runner.core.run import Author
from runner.core.spec import JobSpec
from runner.errors import NotFoundError
from runner.store import caps
from runner.store.budgets import look_into, sums, wake_for_budget
from runner.store.changes import changed, locked_runs, store_change, unchanged
from runner.store.database import MOST_AT_ONCE, Database, in_lots, writes
from runner.store.exports import IMPORTED
from runner.store.run_state import progress_from_row, progress_to_json
from runner.store.tables import batch_calls, events, job_budgets, jobs, model_calls, runs

_COUNTED = func.coalesce(sum((model_calls.c[kind] for kind in Usage.__slots__), literal(0)), 0)
_NO_DAY = ""  # of a call that began without a cap
_IS_UNKNOWN = model_calls.c.charged_tokens > _COUNTED


def write_off(
    database: Database,
    job_id: str,
    now: float,
    *,
    author: Author,
    call: tuple[str, int] | None = None,
) -> tuple[list[Change], list[Change]]:
    """Write off the unknown charges of a job's ended calls, or of one ``call`` (its run, its number).

    Returns the runs of these calls, and the runs that waited for the job's budget or for the cap of the
    day and go on. A charge of an older version is written off in tokens only: it did not store the cost.

    Raises:
        NotFoundError: no ended call has such a charge.
    """
    query = select(model_calls.c.run_id).join(runs, runs.c.id == model_calls.c.run_id).distinct()
    query = query.where(runs.c.job_id == job_id, _IS_UNKNOWN).order_by(model_calls.c.run_id)
    number = None
    if call is not None:
        run_id, number = call
        query = query.where(runs.c.id == run_id, model_calls.c.number == number)
    run_ids = [row.run_id for row in database.rows(query)]
    if not run_ids:
        which = "no call" if call is None else f"no call {call[0]}/{call[1]}"
        raise NotFoundError(
            f"{job_id} has {which} that was charged for unknown usage: look with "
            f"`runner costs {job_id} --by run`"
        )
    work = partial(_write_off, job_id=job_id, number=number, author=author, now=now)
    changes = [
        each for lot in in_lots(run_ids) for each in database.write(partial(work, run_ids=lot))
    ]
    return changes, wake(database, [job_id], author, now)


def wake(database: Database, job_ids: Iterable[str], author: Author, now: float) -> list[Change]:
    """Queue the runs that wait for the budgets of jobs or for the cap, after charges were taken back."""
    woken = [each for job in job_ids for each in wake_for_budget(database, job, author, now)]
    return woken + caps.wake(database, author, now, {}, {})


def _write_off(
    connection: Connection,
    run_ids: Sequence[str],
    job_id: str,
    number: int | None,
    author: Author,
    now: float,
) -> list[Change]:
    changes, tokens, costs = [], 0, Counter[str]()
    for run in locked_runs(connection, run_ids):
        if run.state == "running":
            why = "is being worked on: its charge can be written off when it has ended or waits"
            changes.append(unchanged(run, why))
            continue
        of_run, costs_of_run, count = _write_off_run(connection, run, number, author, now)
        tokens += of_run
        costs.update(costs_of_run)
        calls = "1 call" if count == 1 else f"{count} calls"
        changes.append(changed(run, run.state, f"{of_run:,} tokens of {calls} written off"))
    _reduce_job(connection, job_id, tokens, costs, now)
    return changes


def _reduce_job(
    connection: Connection, job_id: str, tokens: int, costs: Counter[str], now: float
) -> None:
    """Take charges of locked runs off their job's budget, and off the cap's days; ``costs`` are by day."""
    if (budget := look_into(connection, job_id, lock=True)) is not None:
        spent = {
            "spent_tokens": budget.spent_tokens - tokens,
            "spent_cost": budget.spent_cost - costs.total(),
        }
        of_job = job_budgets.c.job_id == job_id
        connection.execute(update(job_budgets).where(of_job).values(sums(replace(budget, **spent))))
    costs.pop(_NO_DAY, None)
    caps.write_off(connection, costs, now)


def _write_off_run(
    connection: Connection, run: Row[Any], number: int | None, author: Author, now: float
) -> tuple[int, Counter[str], int]:
    """Write off charges of a locked run. Returns the tokens, their cost by the day that it was charged to,
    and the number of calls."""
    unknown = (model_calls.c.charged_tokens - _COUNTED).label("unknown")
    query = select(model_calls.c.number, unknown).where(model_calls.c.run_id == run.id, _IS_UNKNOWN)
    if number is not None:
        query = query.where(model_calls.c.number == number)
    charged, reductions = _charged_to(connection, run.id), list[_Reduction]()
    for call in connection.execute(query.order_by(model_calls.c.number)).all():
        day, cost = charged.get(call.number, (_NO_DAY, 0))
        old = {"tokens": call.unknown, "cost": cost}
        event = signed_event("charge_written_off", author, {"call": call.number}, old=old)
        left = {"charged_tokens": _COUNTED, "written_off_tokens": call.unknown}
        reductions.append(_Reduction(call.number, call.unknown, cost, day, left, event))
    return (*_reduce_run(connection, run, reductions, now), len(reductions))


@dataclass(frozen=True, slots=True)
class _Reduction:
    """The reduction of the charge for one call."""

    number: int
    tokens: int
    cost: int
    day: str  # the day that it was charged to
    columns: Mapping[str, Any]  # the changed columns of the call
    event: Event


def _reduce_run(
    connection: Connection,
    run: Row[Any],
    reductions: Sequence[_Reduction],
    now: float,
    counted: Usage | None = None,
) -> tuple[int, Counter[str]]:
    """Take charges off a locked run and its calls, and add the usage that the API has ``counted``. Returns
    the tokens taken off, and their cost by day."""
    costs = Counter[str]()
    for each in reductions:
        this = model_calls.c.run_id == run.id, model_calls.c.number == each.number
        connection.execute(update(model_calls).where(*this).values(each.columns))
        costs[each.day] += each.cost
    tokens, progress = sum(each.tokens for each in reductions), progress_from_row(run)
    money = replace(progress.money, charged_cost=progress.money.charged_cost - costs.total())
    changes: dict[str, Any] = {}
    if counted is not None:
        changes |= (progress.money.usage + counted).by_kind()
    changes |= {"charged_tokens": run.charged_tokens - tokens}
    changes |= {"progress": progress_to_json(replace(progress, money=money))}
    store_change(connection, run, now, [each.event for each in reductions], **changes)
    return tokens, costs


def _charged_to(connection: Connection, run_id: str) -> dict[int, tuple[str, int]]:
    """Return, by the number of a run's ended call, the day that it was charged to, and the cost of its
    unknown usage."""
    kinds = ("model_call_started", "model_call_ended", IMPORTED)
    query = select(events.c.type, events.c.data).where(events.c.run_id == run_id)
    days, costs = dict[int, str](), dict[int, int]()
    for kind, data in connection.execute(
        query.where(events.c.type.in_(kinds)).order_by(events.c.number)
    ):
        if kind == IMPORTED:
            days.clear()  # they are another database's
        elif kind == "model_call_started":
            days[data["call"]] = data.get("cap_day", _NO_DAY)
        else:
            costs[data["call"]] = data.get("unknown_cost", 0)
    return {call: (days.get(call, _NO_DAY), cost) for call, cost in costs.items()}


_given_up = and_(batch_calls.c.ended_at.is_not(None), batch_calls.c.result.is_not(None))
_of_call = and_(
    model_calls.c.run_id == batch_calls.c.run_id, model_calls.c.number == batch_calls.c.number
)
_GIVEN_UP = (
    select(batch_calls.c.run_id)
    .distinct()
    .join(runs, runs.c.id == batch_calls.c.run_id)
    .where(_given_up, runs.c.state != "running")
    .order_by(batch_calls.c.run_id)
    .limit(MOST_AT_ONCE)
)


def charged_by_results(database: Database) -> list[str]:
    """Return the runs that gave up calls in batches whose results have arrived."""
    return [row.run_id for row in database.find(_GIVEN_UP, {})]


@writes
def charge_by_results(
    connection: Connection,
    run_id: str,
    tariffs: Callable[[JobSpec], Mapping[str, Tariff]],
    now: float,
) -> str | None:
    """Correct the charges of calls in batches that a run gave up to what their results say. Returns the
    run's job if a charge changes. Charges that a person wrote off stay, and so do those of a run that a
    worker has."""
    for run in locked_runs(connection, [run_id], runs.c.state != "running"):
        names = ("number", "model", "hour_cache", "charged_tokens", "written_off_tokens")
        given_up = batch_calls.c.run_id == run.id, _given_up
        query = select(*(model_calls.c[name] for name in names), batch_calls.c.result)
        query = query.join(batch_calls, _of_call).where(*given_up).order_by(model_calls.c.number)
        spec = connection.execute(select(jobs.c.spec).where(jobs.c.id == run.job_id)).scalar_one()
        charged, counted, reductions = _charged_to(connection, run.id), Usage(), list[_Reduction]()
        for call in connection.execute(query).all():
            usage = usage_in(call.result)
            if usage is None or call.written_off_tokens is not None or call.charged_tokens is None:
                continue
            own = replace(JobSpec.from_json(spec), model=call.model)
            tariff = tariffs(own).get(call.model, FREE).in_lane(batch=True)
            cost = tariff.cost(usage, hour_cache=bool(call.hour_cache))
            reductions.append(
                _corrected(call, usage, cost, *charged.get(call.number, (_NO_DAY, 0)))
            )
            counted += usage
        connection.execute(update(batch_calls).where(*given_up).values(result=None))
        if reductions:
            tokens, costs = _reduce_run(connection, run, reductions, now, counted)
            _reduce_job(connection, run.job_id, tokens, costs, now)
            return str(run.job_id)
    return None


def _corrected(call: Any, usage: Usage, cost: int, day: str, old_cost: int) -> _Reduction:
    told = {
        "call": call.number,
        "old": {"tokens": call.charged_tokens, "cost": old_cost},
        "new": {"tokens": usage.total, "cost": cost},
    }
    real = {**usage.by_kind(), "charged_tokens": usage.total}
    tokens, event = call.charged_tokens - usage.total, Event("charge_corrected", told)
    return _Reduction(call.number, tokens, old_cost - cost, day, real, event)
