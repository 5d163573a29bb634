"""The forecast of a job, wherever a job is shown."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from runner.app.report import markdown, report_on
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.questions import app_on
from tests.queries.test_forecast import three_of_five
from tests.store.examples import NOW

_WORDS = r"about [\d,]+ tokens \([\d,]+ to [\d,]+\), within its budget; from 3 finished"


@pytest.mark.slow
def test_forecast_is_shown_wherever_a_job_is(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = three_of_five(database)
    for told in (command("list"), command("show", job_id), command("budget", job_id)):
        assert re.search(_WORDS, told.out), told.out
    report = report_on(app_on(database), job_id, NOW, with_changes=False)
    assert re.search(f"- expected in all: {_WORDS}", markdown(report))
    (listed,) = command("list", "--json").json
    for forecast in (
        listed["forecast"],
        *(command(name, job_id, "--json").json["forecast"] for name in ("show", "budget")),
        report.as_json()["forecast"],
    ):
        assert forecast["finished"] == 3
        assert forecast["tokens"]["low"] < forecast["tokens"]["expected"]
        assert (forecast["usd"], forecast["budget_tokens"]) == (None, 100_000_000)
