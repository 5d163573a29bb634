"""docs/grafana-dashboard.json shows metrics that workers serve, and all of Runner's."""

from __future__ import annotations

import json
import re

from runner.telemetry.prometheus import Metrics, Queue
from tests.docs.pages import read

FUNCTIONS = {"by", "count", "histogram_quantile", "max", "rate", "sum"}


class Idle:
    slots, in_hand, unhealthy, unready = 1, 0, "", ""


def served() -> dict[str, set[str]]:
    """The series of a worker and the labels that they have."""
    metrics = Metrics(lambda: Queue((), 0.0))
    metrics.watch(Idle())
    named = metrics.registry._collector_to_names.items()
    labels = {
        name: set(getattr(metric, "_labelnames", ())) for metric, names in named for name in names
    }
    own: dict[str, set[str]] = {metric.name: set() for metric in metrics.registry.collect()}
    return own | labels | {"runner_queue_depth": {"job_id", "job_name", "state"}}


def of_metric(name: str) -> str:
    """The name of the metric that a series belongs to."""
    return re.sub("_(total|bucket|count|sum|created)$", "", name)


def test_the_dashboard_names_only_metrics_and_labels_that_are_served() -> None:
    dashboard = json.loads(read("docs/grafana-dashboard.json"))
    known, shown = served(), set[str]()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expr = re.sub(r"\[\w+\]", "", target["expr"])
            words = set(re.findall(r"[a-z_]{2,}", expr)) - FUNCTIONS
            metrics = words & set(known)
            assert metrics, target
            labels = set().union(*(known[name] for name in metrics)) | {"le", "instance"}
            assert words - metrics <= labels, target
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, target
            shown |= metrics
    ours = {name for name in known if name.startswith("runner_")}
    assert {of_metric(name) for name in ours} == {of_metric(name) for name in shown & ours}


def test_panels_do_not_overlap() -> None:
    panels = json.loads(read("docs/grafana-dashboard.json"))["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len({panel["id"] for panel in panels}) == len(panels)
