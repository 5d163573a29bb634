"""The rate limits that workers share: who gets permits, and what the API's answers change."""

from __future__ import annotations

import json
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.rate_limits import (
    COOLDOWN_SECONDS,
    FORGET_SECONDS,
    KINDS,
    NOTHING,
    Bucket,
    Caps,
    Demand,
    News,
    Observation,
    Pool,
    Refusal,
    Report,
    changes,
    group_of,
    observed,
    pool_of,
    share,
    urgency,
)

NOW = 1_000_000.0
EACH = {"requests": 1.0, "input_tokens": 100.0, "output_tokens": 10.0}


def demand(calls: int, urgency: float = 4.0) -> Demand:
    return Demand(urgency, calls, {kind: calls * EACH[kind] for kind in KINDS})


def wants(calls: int, urgency: float = 4.0, busy: int = 0) -> Report:
    held = {kind: busy * EACH[kind] for kind in KINDS}
    return Report(held, busy, (demand(calls, urgency),))


def pool(requests: float, left: float, **more: float) -> Pool:
    return Pool({"requests": Bucket(requests, requests, left, NOW)}, **more)


def granted(pool: Pool, mine: Report, *others: Report, now: float = NOW) -> int:
    return share(pool, mine, others, News(), now).granted


def heard(pool: Pool, news: News, now: float = NOW, busy: int = 0) -> Pool:
    return share(pool, Report(busy=busy), (), news, now).pool


def refusal(began_at: float = NOW, retry_after: float | None = None) -> News:
    return News(refusals=(Refusal(began_at, NOW, retry_after),))


def test_without_a_known_limit_every_call_gets_a_permit() -> None:
    assert granted(Pool(), wants(7)) == 7


def test_permits_that_others_hold_are_not_granted_again() -> None:
    assert granted(pool(60, 10), wants(9), wants(0, busy=4)) == 6
    assert granted(pool(60, 10), wants(9)) == 9, "a dead worker's come back: it reports nothing"


def test_what_flows_in_is_granted_as_it_comes() -> None:
    empty = pool(120, 0)
    assert granted(empty, wants(9), now=NOW + 2) == 4
    assert granted(empty, wants(900), now=NOW + 600) == 120, "no more than the bucket holds"


def test_the_most_urgent_calls_of_all_workers_come_first() -> None:
    few = pool(60, 6)
    assert granted(few, wants(5, urgency=1), wants(4, urgency=16)) == 2
    assert granted(few, wants(4, urgency=16), wants(5, urgency=1)) == 4
    assert granted(few, wants(5, urgency=16), wants(9, urgency(0, 1.0))) == 0
    assert urgency(0, 1.0) > urgency(1, 1_000.0), "interrupted runs come before all jobs"


def test_equals_share_by_the_number_of_their_calls_and_somebody_gets_the_last_one() -> None:
    assert granted(pool(60, 9), wants(10), wants(20)) == 3
    assert granted(pool(60, 1), wants(1), *[wants(1)] * 3) == 1


def test_tokens_limit_calls_as_requests_do_and_no_call_is_too_large_for_ever() -> None:
    tokens = Pool({"input_tokens": Bucket(6_000, 6_000, 350, NOW)})
    assert granted(tokens, wants(9)) == 3
    full = Pool({"input_tokens": Bucket(60, 60, 60, NOW)})
    assert granted(full, wants(1)) == 1


def test_an_answer_says_what_is_left_and_an_older_one_says_nothing() -> None:
    found = News(Observation(NOW + 1, {"requests": (1_000, 500)}))
    now = heard(Pool(), found, NOW + 1)
    assert now.buckets["requests"].level(NOW + 1) == 480, "less a spare part of the limit"
    older = News(Observation(NOW, {"requests": (1_000, 900)}))
    assert heard(now, older, NOW + 1).buckets == now.buckets


def test_headers_that_cannot_be_read_are_no_limits() -> None:
    names = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-input-tokens-limit": "many",
        "anthropic-ratelimit-input-tokens-remaining": "few",
        "anthropic-ratelimit-output-tokens-limit": "0",
        "anthropic-ratelimit-output-tokens-remaining": "0",
    }
    assert observed(names, NOW) == Observation(NOW, {"requests": (50, 49)})
    assert observed({}, NOW) is None


def test_a_retry_after_holds_all_calls_back_until_then() -> None:
    held = heard(pool(60, 60), refusal(retry_after=7.0), busy=9)
    assert granted(held, wants(3), now=NOW + 6.9) == 0
    assert granted(held, wants(3), now=NOW + 7.1) == 3


def test_an_episode_of_refusals_lowers_the_concurrency_once() -> None:
    cut = heard(Pool(), refusal(), busy=19)
    assert (cut.concurrency, cut.cut_at) == (16.0, NOW)
    late = NOW + COOLDOWN_SECONDS
    same_episode = heard(cut, refusal(began_at=NOW - 1), late, busy=16)
    assert same_episode.concurrency == 17
    again = heard(cut, refusal(began_at=NOW + 1), late, busy=16)
    assert again.concurrency == pytest.approx(12.8)
    assert heard(cut, refusal(began_at=NOW + 1), NOW + 2, busy=16).concurrency == 16, "too soon"


def test_the_concurrency_grows_slowly_where_it_holds_calls_back_and_is_forgotten() -> None:
    cut = heard(Pool(), refusal(), busy=19)
    assert granted(cut, wants(9, busy=14)) == 2
    late = NOW + COOLDOWN_SECONDS
    assert heard(cut, News(), late, busy=16).concurrency == 17
    assert heard(cut, News(), late, busy=3).concurrency == 16
    assert heard(cut, News(), NOW + FORGET_SECONDS, busy=16).concurrency is None


def test_failures_of_the_api_itself_change_nothing() -> None:
    before = pool(60, 30)
    assert heard(before, News(), busy=9) == before


def test_changes_are_told_as_events() -> None:
    before, after = pool(60, 30), pool(30, 30, concurrency=4.0, cut_at=NOW, held_until=NOW + 9)
    assert changes(before, after, NOW) == [
        ("limit_changed", {"kind": "requests", "old": 60, "new": 30}),
        ("concurrency_lowered", {"old": None, "new": 4.0}),
        ("held_back", {"until": NOW + 9}),
    ]
    assert changes(after, after, NOW) == []


@pytest.mark.parametrize(
    ("model", "group"),
    [
        ("claude-sonnet-5", "sonnet-5"),
        ("claude-sonnet-5-5-20260901", "sonnet-5"),
        ("claude-3-5-haiku-20241022", "haiku-3"),
        ("claude-opus-4-1", "opus-4"),
        ("my-model", "my-model"),
    ],
)
def test_models_of_a_family_and_main_version_share_limits(model: str, group: str) -> None:
    assert group_of(model) == group
    assert group_of(model, fast=True) == f"{group}-fast"


@given(
    pools=st.builds(
        lambda limit, left, concurrency, cut: Pool(
            {"requests": Bucket(limit, limit, left, NOW)}, concurrency, cut
        ),
        st.floats(1, 1e6),
        st.floats(-1e6, 1e6),
        st.none() | st.floats(1, 1e4),
        st.floats(0, NOW),
    ),
    reports=st.lists(
        st.builds(wants, st.integers(0, 50), st.sampled_from([-1.0, 4.0, 16.0]), st.integers(0, 9))
    ),
)
def test_pools_and_reports_survive_json(pools: Pool, reports: list[Report]) -> None:
    assert Pool.from_json(json.loads(json.dumps(pools.to_json()))) == pools
    stored = [Report.from_json(json.loads(json.dumps(each.to_json()))) for each in reports]
    assert stored == reports


@given(
    asked=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 9), st.sampled_from([1.0, 4.0, 16.0])),
        min_size=1,
        max_size=60,
    ),
    passed=st.lists(st.floats(0.01, 3.0), min_size=60, max_size=60),
    limit=st.integers(30, 600),
)
def test_workers_never_hold_more_than_the_api_would_let_through(
    asked: list[tuple[int, int, float]], passed: list[float], limit: int
) -> None:
    """Four workers ask in any order. The calls begin at once, and each answer tells what is left."""
    api = Bucket(limit, limit, limit, NOW)
    reports = {worker: Report() for worker in range(4)}
    shared, now = heard(Pool(), News(Observation(NOW, {"requests": (limit, limit)}))), NOW
    for (worker, calls, level), seconds in zip(asked, passed, strict=False):
        now += seconds
        mine = Report(NOTHING, 0, (demand(calls, level),))
        others = [report for name, report in reports.items() if name != worker]
        done = share(shared, mine, others, News(), now)
        reports[worker] = done.report
        left = api.level(now) - done.granted
        assert left >= 0, "the API refused a call"
        api = Bucket(limit, limit, left, now)
        found = News(Observation(now, {"requests": (limit, left)}))
        shared = share(done.pool, Report(), others, found, now).pool
        reports[worker] = Report(NOTHING, 0, reports[worker].demands)


@given(limit=st.integers(2, 500), seconds=st.lists(st.floats(0.05, 9.0), min_size=20, max_size=200))
def test_in_no_minute_a_job_makes_more_requests_than_its_file_says(
    limit: int, seconds: list[float]
) -> None:
    shared, now, made = pool_of(Caps(max_requests_per_minute=limit), NOW), NOW, deque[float]()
    used = NOTHING
    for passed in seconds:
        now += passed
        done = share(shared, wants(limit), (), News(used=used), now)
        made += [now] * done.granted
        used = {kind: done.granted * EACH[kind] for kind in KINDS}
        shared = done.pool
        while made and made[0] <= now - 60:
            made.popleft()
        assert len(made) <= limit
