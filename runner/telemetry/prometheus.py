"""A worker's metrics for Prometheus and its health, over HTTP.

Loaded only with ``runner worker --metrics``. Names and units follow
https://prometheus.io/docs/practices/naming/. No label holds what a model made up.
"""

from __future__ import annotations

import logging
import math
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runner.core.entries import ModelCallFailed, ModelReplied, SummaryReplied, ToolFinished
from runner.core.fold import Applied
from runner.core.rate_limits import PoolKey, Shared, minute_limit
from runner.core.run import Ended, Lease, Outcome
from runner.errors import RunnerError, UsageError
from runner.ports import Claimed, NoOutcome, Observer, Stored

logger = logging.getLogger(__name__)

QUEUE_SECONDS = 5.0  # how old what is said of the queue may be: many may ask
disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody reads
_TOOL_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
_REQUEST_SECONDS = 10.0


class Watched(Protocol):
    """A worker, as far as its metrics and health go."""

    @property
    def slots(self) -> int: ...
    @property
    def in_hand(self) -> int: ...
    @property
    def unhealthy(self) -> str: ...
    @property
    def unready(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Queue:
    """The runs that have not ended."""

    depths: Sequence[tuple[str, str, str, int]]  # id and name of the job, state, number of runs
    oldest_due_seconds: float  # since when the oldest due run is due


class Metrics(Observer):
    """Counts what a worker does. ``queue`` reads the queue, or raises a ``RunnerError``."""

    def __init__(self, queue: Callable[[], Queue]) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_QueueCollector(queue))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"runner_{name}", text, labels, registry=registry)

        self._claims = counter("claims", "Runs claimed.")
        self._ends = counter("attempts_ended", "Attempts ended.", "state", "reason")
        self._turns = counter("turns", "Replies of models.", "model")
        self._tokens = counter("tokens", "Tokens of model calls.", "model", "kind")
        self._cost = counter("cost_usd", "Cost charged to runs.", "model")
        self._errors = counter(
            "errors", "Failed model calls, faults of the host, and bugs.", "kind"
        )
        self._renewals = counter("lease_renewals", "Renewals of the worker's leases.")
        self._reaped = counter("reaped_runs", "Runs taken over from dead workers.")

        def of_pool(name: str, text: str, *labels: str) -> Gauge:
            names = ("organization", "group", *labels)
            return Gauge(f"runner_rate_limit_{name}", text, names, registry=registry)

        self._limit = of_pool("per_minute", "A rate limit that workers share.", "kind")
        self._left = of_pool("remaining", "What is left of it.", "kind")
        self._concurrency = of_pool("concurrency", "Calls that may be under way at once.")
        self._calls_waiting = of_pool("calls_waiting", "Calls of this worker that wait.")
        self._limit_events = counter(
            "rate_limit_events", "Changes of rate limits that this worker heard of.", "type"
        )
        self._tool_seconds = Histogram(
            "runner_tool_seconds",
            "Duration of tool calls.",
            ("tool", "outcome"),
            buckets=_TOOL_SECONDS,
            registry=registry,
        )

    def watch(self, worker: Watched) -> None:
        """Give the state of a worker, too."""
        for name, text, read in (
            ("slots", "Runs that the worker works at once.", lambda: worker.slots),
            ("runs_in_hand", "Runs that the worker works.", lambda: worker.in_hand),
            ("healthy", "1 if the worker keeps its leases.", lambda: not worker.unhealthy),
            ("ready", "1 if the worker takes runs.", lambda: not worker.unready),
        ):
            Gauge(f"runner_{name}", text, registry=self.registry).set_function(read)

    def claimed(self, claimed: Claimed) -> None:
        self._claims.inc()

    def stored(self, stored: Stored) -> None:
        for applied in stored.applied:
            self._count(applied)

    def released(self, lease: Lease, outcome: Outcome | NoOutcome) -> None:
        if isinstance(outcome, str):
            self._ends.labels("released", outcome).inc()
            if outcome in ("bug", "host_fault"):
                self._errors.labels(outcome).inc()
            return
        state = outcome.state if isinstance(outcome, Ended) else "unended"
        self._ends.labels(state, outcome.reason).inc()

    def renewed(self) -> None:
        self._renewals.inc()

    def reaped(self, count: int) -> None:
        self._reaped.inc(count)

    def governed(self, key: PoolKey, shared: Shared, waiting: int) -> None:
        labels, pool = (key.organisation, key.group), shared.pool
        for kind, bucket in pool.buckets.items():
            self._limit.labels(*labels, kind).set(minute_limit(key, bucket))
            self._left.labels(*labels, kind).set(bucket.level(bucket.at))
        limited = math.inf if pool.concurrency is None else pool.concurrency
        self._concurrency.labels(*labels).set(limited)
        self._calls_waiting.labels(*labels).set(waiting)
        for event, _ in shared.events:
            self._limit_events.labels(event).inc()

    def _count(self, applied: Applied) -> None:
        before, spec = applied.before, applied.before.spec
        call = before.model.open_call
        model = spec.summary_model if call and call.purpose == "summary" else spec.model
        if cost := applied.after.money.charged_cost - before.money.charged_cost:
            self._cost.labels(model).inc(cost / 1e9)
        match applied.entry:
            case ModelReplied(reply) | SummaryReplied(reply):
                usage = reply.usage
                for kind, tokens in (
                    ("input", usage.input_tokens),
                    ("cache_read", usage.cache_read_tokens),
                    ("cache_write", usage.cache_creation_tokens),
                    ("output", usage.output_tokens),
                ):
                    self._tokens.labels(model, kind).inc(tokens)
                if isinstance(applied.entry, ModelReplied):
                    self._turns.labels(model).inc()
            case ModelCallFailed(kind):
                self._errors.labels(kind).inc()
            case ToolFinished(index, result):
                name = before.calls[index].name
                tool = name if spec.tool(name) is not None else "unknown_tool"
                self._tool_seconds.labels(tool, result.outcome).observe(result.duration)


class _QueueCollector(Collector):
    def __init__(self, read: Callable[[], Queue]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._found = Queue((), 0.0)
        self._found_at = -QUEUE_SECONDS

    def describe(self) -> Iterator[Metric]:
        return iter(_families(Queue((), 0.0)))

    def collect(self) -> Iterator[Metric]:
        """Nothing while the queue cannot be read: no number is better than a wrong one."""
        with self._lock:
            if time.monotonic() - self._found_at >= QUEUE_SECONDS:
                try:
                    self._found = self._read()
                except RunnerError:
                    return iter(())
                self._found_at = time.monotonic()
            return iter(_families(self._found))


def _families(queue: Queue) -> list[Metric]:
    depth = GaugeMetricFamily(
        "runner_queue_depth",
        "Runs that have not ended, of all workers.",
        labels=("job_id", "job_name", "state"),
    )
    for job_id, name, state, count in queue.depths:
        depth.add_metric((job_id, name, state), count)
    text = "Age of the oldest due run, of all workers."
    oldest = GaugeMetricFamily("runner_oldest_due_seconds", text, value=queue.oldest_due_seconds)
    return [depth, oldest]


class MetricsServer(socketserver.ThreadingTCPServer):
    """Answers in threads until ``close``. Raises ``UsageError`` if it cannot listen on the address."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, metrics: Metrics, worker: Watched) -> None:
        self.metrics = metrics
        self.worker = worker
        metrics.watch(worker)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family, *_, address = found[0]
            super().__init__(address, _Handler)  # type: ignore[arg-type]
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port} ({error.strerror}): give another --metrics ADDR:PORT"
            ) from error
        threading.Thread(target=self.serve_forever, name="runner-metrics", daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        logger.debug("a request for metrics failed", exc_info=True)  # who asked has gone, mostly

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "runner", ""
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, content_type, encode(self.server.metrics.registry))
            case "/healthz":
                self._answer_why_not(self.server.worker.unhealthy)
            case "/readyz":
                self._answer_why_not(self.server.worker.unready)
            case _:
                self._answer(404, "text/plain", b"/metrics, /healthz or /readyz\n")

    def log_message(self, format: str, *args: object) -> None:
        return

    def _answer_why_not(self, why: str) -> None:
        self._answer(503 if why else 200, "text/plain", f"{why or 'ok'}\n".encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
