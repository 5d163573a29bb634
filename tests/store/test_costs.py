"""What calls cost, as the database sums it up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import event, select, update
from sqlalchemy import text as text_of

from runner.core.budget import BILLIONTHS, billionths
from runner.core.commands import Target
from runner.core.context import Context
from runner.core.conversation import Usage
from runner.core.entries import ModelCallFailed
from runner.core.model_calls import charge_for, tariffs_of
from runner.core.prices import BY, By, Price, PriceList, Rates, Spending
from runner.core.spec import JobSpec
from runner.core.steps import CallModel
from runner.errors import ModelCallError
from runner.queries.costs import Cost, call_costs, costs_by, known_costs
from runner.queries.sql.ask import store_prices
from runner.store import jobs as jobs_store
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.tables import model_calls, runs
from tests.store.attempts import USAGE as PLAIN
from tests.store.attempts import Attempt, claim, run_row, submit_one, text, tool_use
from tests.store.children.family import PARENT, asks, start, submit_parent
from tests.store.compacting import ask_for_summary, stand_in, summarise
from tests.store.examples import NOW, SPEC, submission

CHEAP = Rates(Decimal(1), Decimal("1.25"), Decimal(2), Decimal("0.1"), Decimal(5))
DEAR = CHEAP.times(Decimal(10))
PRICES = PriceList(
    date(2026, 11, 10),
    "a page",
    {"claude-test": Price(CHEAP, fast=DEAR, long=DEAR, long_above=1_000)},
)
USAGE = Usage(input_tokens=100, cache_read_tokens=600, cache_creation_tokens=200, output_tokens=10)
USD = Decimal("0.00046")  # of one such call: 100 + 250 + 60 + 50 millionths


def call_tool(attempt: Attempt, number: int, usage: Usage = USAGE) -> Attempt:
    return attempt.reply(tool_use(number), stop="tool_use", usage=usage).finish("ok")


def submit(database: Database, *keys: str, **changes: Any) -> tuple[str, list[str]]:
    """A job and its runs."""
    spec: JobSpec = replace(SPEC, **changes)
    job_id = jobs_store.submit(database, submission(*keys, spec=spec), NOW)
    query = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id)
    return job_id, list(database.read(lambda c: c.execute(query).scalars()))


def one(found: list[Cost]) -> Spending:
    (spent,) = found
    return spent.spending


@pytest.mark.parametrize("by", BY)
def test_calls_are_summed_for_each(database: Database, by: By) -> None:
    job_id, (first, second) = submit(database, "a", "b")
    call_tool(claim(database, first), 1).reply(text("Done."), usage=USAGE)
    claim(database, second, NOW + 86_400).reply(text("Done."), usage=USAGE)
    found = costs_by(database, PRICES, by)
    days = [datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d") for at in (NOW, NOW + 86_400)]
    assert [(each.key, each.label, each.spending.calls) for each in found] == {
        "job": [(job_id, "mend", 3)],
        "run": [(first, "a", 2), (second, "b", 1)],
        "tree": [(first, "a", 2), (second, "b", 1)],
        "model": [("claude-test", "", 3)],
        "day": [(days[0], "", 2), (days[1], "", 1)],
        "purpose": [("turn", "", 3)],
    }[by]
    total = sum((each.spending for each in found), Spending())
    assert total == Spending(3, 0, USAGE + USAGE + USAGE, 3 * USD)
    assert total.cache_share == 6 / 9


def test_days_begin_at_midnight_in_utc(database: Database) -> None:
    _, ids = submit(database, "a", "b", "c", "d")
    midnight = datetime(2026, 11, 22, tzinfo=UTC).timestamp()
    for run_id in ids:
        claim(database, run_id).reply(text("Done."))
    times = dict(
        zip(ids, (midnight - 0.4, midnight, midnight + 0.6, midnight + 86_399.9), strict=True)
    )

    def move(connection: Any) -> None:
        for run_id, at in times.items():
            change = update(model_calls).where(model_calls.c.run_id == run_id)
            connection.execute(change.values(started_at=at))

    database.write(move)
    found = costs_by(database, PRICES, "day")
    assert [(each.key, each.spending.calls) for each in found] == [
        ("2026-11-21", 1),
        ("2026-11-22", 3),
    ]


@pytest.mark.slow
def test_only_the_job_or_the_run_that_is_asked_for_is_counted(database: Database) -> None:
    mine, (first, second) = submit(database, "a", "b")
    other, (third,) = submit(database, "c")
    for run_id in (first, second, third):
        claim(database, run_id).reply(text("Done."), usage=USAGE)
    assert one(costs_by(database, PRICES, "model", job_id=mine)).calls == 2
    assert one(costs_by(database, PRICES, "job", run_id=third)).usd == USD
    assert [each.key for each in costs_by(database, PRICES, "job")] == [mine, other]
    assert costs_by(database, PRICES, "run", job_id="job_none") == []


def test_prompts_are_priced_by_their_own_length_and_not_by_their_sum(database: Database) -> None:
    long = Usage(input_tokens=401, cache_read_tokens=600, output_tokens=10)
    just = Usage(input_tokens=400, cache_read_tokens=600, output_tokens=10)
    attempt = claim(database, submit_one(database))
    for number, usage in enumerate((just, just, long)):
        call_tool(attempt, number, usage)
    spent = one(costs_by(database, PRICES, "run"))
    assert spent.usd == 2 * CHEAP.cost(just, hour_cache=False) + DEAR.cost(long, hour_cache=False)


@pytest.mark.slow
def test_each_job_is_billed_on_its_own_terms(database: Database) -> None:
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    costs = {}
    for name, options in {"plain": {}, "fast": {"speed": "fast"}, "hour": hour}.items():
        job_id, (run_id,) = submit(database, "a", name=name, model_options=options)
        claim(database, run_id).reply(text("Done."), usage=USAGE)
        costs[name] = one(costs_by(database, PRICES, "job", job_id=job_id)).usd
    assert costs == {"plain": USD, "fast": 10 * USD, "hour": USD + Decimal("0.00015")}
    assert one(costs_by(database, PRICES, "model")).usd == sum(costs.values())


def test_summaries_are_told_apart_from_turns_and_priced_by_their_own_model(
    database: Database,
) -> None:
    context = Context(summary_model="claude-cheap")
    _, (run_id,) = submit(database, "a", context=context)
    attempt = ask_for_summary(claim(database, run_id))
    summarise(attempt, stand_in(2), model="claude-cheap", usage=USAGE)
    attempt.reply(text("Done."), usage=USAGE)
    tenth = Price(CHEAP.times(Decimal("0.1")))
    prices = replace(PRICES, models={**PRICES.models, "claude-cheap": tenth})
    found = costs_by(database, prices, "purpose")
    assert [(each.key, each.spending.calls, each.spending.usd) for each in found] == [
        ("summary", 1, USD / 10),
        ("turn", 2, USD + CHEAP.cost(PLAIN, hour_cache=False)),
    ]


@pytest.mark.parametrize(
    ("summary_model", "usd"),
    [(None, 10 * USD), ("claude-test", 10 * USD), ("claude-test-20261122", USD)],
)
def test_summary_is_billed_at_fast_mode_only_by_the_jobs_own_model(
    database: Database, summary_model: str | None, usd: Decimal
) -> None:
    options = {"speed": "fast"}
    context = Context(summary_model=summary_model)
    _, (run_id,) = submit(database, "a", model_options=options, context=context)
    attempt = ask_for_summary(claim(database, run_id))
    summarise(attempt, stand_in(2), usage=USAGE, model=summary_model or "claude-test")
    found = {each.key: each.spending.usd for each in costs_by(database, PRICES, "purpose")}
    assert found["summary"] == usd


@pytest.mark.parametrize("summary_model", [None, "claude-test", "claude-other", "claude-third"])
@pytest.mark.parametrize("kind", ["parent", "child of a type", "child", "fork"])
def test_a_summary_costs_what_its_run_was_charged_for_it(
    database: Database, kind: str, summary_model: str | None
) -> None:
    """Fast mode is for the model of the run, which a sub-agent's type or a fork may have of its own."""
    price = PRICES.models["claude-test"]
    names = ("claude-test", "claude-other", "claude-third")
    prices = replace(PRICES, models=dict.fromkeys(names, price))
    spec = replace(
        PARENT, model_options={"speed": "fast"}, context=Context(summary_model=summary_model)
    )
    run_id = submit_parent(database, spec)
    if kind.startswith("child"):
        asked = asks(1, "tester" if kind == "child of a type" else "reviewer", snapshot=False)
        start(database, asked, run_id=run_id)
        run_id = f"{run_id}.1"
    elif kind == "fork":
        run_id = fork(database, run_id, 0, NOW, model="claude-other").id
    attempt = ask_for_summary(
        claim(database, run_id, tariffs=lambda spec: tariffs_of(spec, prices))
    )
    summarise(attempt, stand_in(2), usage=USAGE).reply(text("Done."), usage=USAGE)
    charged = run_row(database, run_id).progress["money"]["charged_cost"]
    assert charged > 0
    (spent,) = [each for each in costs_by(database, prices, "run") if each.key == run_id]
    assert spent.spending.usd * BILLIONTHS == charged
    calls = call_costs(database, prices, run_id)
    assert sum(call.spending.usd for call in calls) * BILLIONTHS == charged
    assert sum(map(billionths, known_costs(database, prices, run_id).values())) == charged


def test_summary_whose_reply_nobody_has_is_bounded_by_its_own_model_s_price(
    database: Database,
) -> None:
    _, (run_id,) = submit(database, "a", context=Context(summary_model="claude-cheap"))
    ask_for_summary(claim(database, run_id))
    prompt, output = _reserved(database, run_id)
    cancel(database, Target("run", run_id), NOW)
    tenth = CHEAP.times(Decimal("0.1"))
    prices = replace(PRICES, models={**PRICES.models, "claude-cheap": Price(tenth)})
    summaries, _ = costs_by(database, prices, "model")
    assert (summaries.key, summaries.spending.unknown) == ("claude-cheap", 1)
    assert summaries.spending.at_most == tenth.cost_at_most(prompt, output, hour_cache=False)


def test_each_call_is_billed_by_how_long_its_own_cache_lived(database: Database) -> None:
    run_id = submit_one(database)
    call_tool(claim(database, run_id), 1).reply(text("Done."), usage=USAGE)
    change_calls(database, {1: True, 2: False})
    assert one(costs_by(database, PRICES, "run")).usd == 2 * USD + Decimal("0.00015")


def test_call_that_does_not_say_how_long_its_cache_lived_had_the_job_s(database: Database) -> None:
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    _, (run_id,) = submit(database, "a", model_options=hour)
    call_tool(claim(database, run_id), 1).reply(text("Done."), usage=USAGE)
    change_calls(database, {1: None, 2: None})
    assert one(costs_by(database, PRICES, "run")).usd == 2 * (USD + Decimal("0.00015"))


def change_calls(database: Database, hour_cache: dict[int, bool | None]) -> None:
    def work(connection: Any) -> None:
        for number, lived in hour_cache.items():
            change = update(model_calls).where(model_calls.c.number == number)
            connection.execute(change.values(hour_cache=lived))

    database.write(work)


def test_script_costs_nothing_and_is_told_apart(database: Database) -> None:
    _, (run_id,) = submit(database, "a", provider="scripted", script={})
    claim(database, run_id).reply(text("Done."), usage=USAGE)
    spent = one(costs_by(database, PRICES, "model"))
    assert (spent.calls, spent.scripted, spent.usd, spent.unpriced) == (1, 1, 0, frozenset())


def test_model_without_a_price_is_named(database: Database) -> None:
    claim(database, submit_one(database)).reply(text("Done."), usage=USAGE)
    spent = one(costs_by(database, replace(PRICES, models={}), "run"))
    assert (spent.usd, spent.unpriced) == (0, {"claude-test"})


def test_call_whose_reply_nobody_has_is_bounded_apart(database: Database) -> None:
    run_id = submit_one(database)
    call_tool(claim(database, run_id), 1)
    reservation = _reserved(database, run_id)
    assert one(costs_by(database, PRICES, "run")).calls == 1  # the other is under way
    cancel(database, Target("run", run_id), NOW)
    spent = one(costs_by(database, PRICES, "run"))
    assert (spent.calls, spent.usd, spent.unknown) == (2, USD, 1)
    prompt, output = reservation
    assert prompt + output == run_row(database, run_id).charged_tokens - USAGE.total
    rates = DEAR if prompt > 1_000 else CHEAP
    assert spent.at_most == rates.cost_at_most(prompt, output, hour_cache=False)


def cut(attempt: Attempt, output: int) -> Attempt:
    """The stream of the attempt's call is cut after the API has counted its prompt."""
    assert isinstance(attempt.effect, CallModel)
    counted = replace(USAGE, output_tokens=0).by_kind()
    error = ModelCallError("stream_cut", "it ended", counted=counted, most_output=output)
    charge, usage = charge_for(attempt.state, attempt.effect.call, error)
    failed = ModelCallFailed(
        *("stream_cut", "it ended", None, None, charge.tokens, NOW, NOW + 600),
        cost=charge.cost,
        counted=usage,
    )
    return attempt.append(failed)


def test_a_cut_stream_costs_what_was_counted_and_its_reply_is_bounded_apart(
    database: Database,
) -> None:
    run_id = submit_one(database)
    cut(claim(database, run_id), output=70)
    run, known = run_row(database, run_id), replace(USAGE, output_tokens=0)
    assert run.charged_tokens == known.total + 70
    assert Usage(*(run._mapping[name] for name in Usage.__slots__)) == known
    spent = one(costs_by(database, PRICES, "run"))
    assert (spent.unknown, spent.unknown_tokens, spent.usage) == (1, 70, known)
    assert spent.usd == CHEAP.cost(known, hour_cache=False)
    assert spent.at_most == CHEAP.output * 70 / 1_000_000
    store_prices(database, PRICES)
    query = text_of("SELECT usd, usd_at_most, basis FROM v_costs")
    usd, at_most, basis = database.read(lambda connection: connection.execute(query).one())
    assert (usd, at_most) == (pytest.approx(float(spent.usd)), pytest.approx(float(spent.at_most)))
    assert basis == "at most"


def test_call_that_was_refused_costs_nothing(database: Database) -> None:
    attempt = claim(database, submit_one(database, spec=replace(SPEC, model="claude-none")))
    assert isinstance(attempt.effect, CallModel)
    attempt.append(ModelCallFailed("not_found_error", "no", 404, "req_1", 0, NOW, None))
    assert one(costs_by(database, PRICES, "model")) == Spending(calls=1)


@pytest.mark.slow
def test_looking_costs_the_same_number_of_queries_for_any_number_of_runs(
    database: Database,
) -> None:
    def queries() -> int:
        statements: list[str] = []
        note = lambda *arguments: statements.append(arguments[2])  # noqa: E731
        event.listen(database.reader, "before_cursor_execute", note)
        costs_by(database, PRICES, "run")
        event.remove(database.reader, "before_cursor_execute", note)
        return len(statements)

    claim(database, submit_one(database)).reply(text("Done."))
    few = queries()
    for run_id in submit(database, *map(str, range(20)))[1]:
        claim(database, run_id).reply(text("Done."))
    assert queries() == few


def _reserved(database: Database, run_id: str) -> tuple[int, int]:
    """Bounds of prompt and output of the run's call that is under way."""
    query = select(model_calls).where(
        model_calls.c.run_id == run_id, model_calls.c.charged_tokens.is_(None)
    )
    call = database.read(lambda connection: connection.execute(query).one())
    return call.worst_case - call.max_tokens, call.max_tokens
