"""Rate limits among the metrics of a worker."""

from __future__ import annotations

from prometheus_client import generate_latest

from runner.core.rate_limits import Bucket, Caps, Pool, PoolKey, Shared, pool_of
from runner.telemetry.prometheus import Metrics, Queue


def test_a_pool_of_rate_limits_is_told_with_what_is_left_and_who_waits() -> None:
    metrics = Metrics(lambda: Queue((), 0.0))
    pool = Pool({"requests": Bucket(480, 470, 12, 1_000.0)}, concurrency=8.0)
    shared = Shared(pool, events=(("held_back", {"until": 9.0}),))
    metrics.governed(PoolKey("org_1", "sonnet-5"), shared, 3)
    of_job = pool_of(Caps(max_requests_per_minute=60), 1_000.0)
    metrics.governed(PoolKey("", "job_1"), Shared(of_job), 0)
    text = generate_latest(metrics.registry).decode()
    of_pool = 'group="sonnet-5"'
    org = 'organization="org_1"'
    for line in (
        f'runner_rate_limit_per_minute{{{of_pool},kind="requests",{org}}} 480.0',
        f'runner_rate_limit_remaining{{{of_pool},kind="requests",{org}}} 12.0',
        f"runner_rate_limit_concurrency{{{of_pool},{org}}} 8.0",
        f"runner_rate_limit_calls_waiting{{{of_pool},{org}}} 3.0",
        'runner_rate_limit_per_minute{group="job_1",kind="requests",organization=""} 60.0',
        'runner_rate_limit_concurrency{group="job_1",organization=""} +Inf',
        'runner_rate_limit_events_total{type="held_back"} 1.0',
    ):
        assert line in text
