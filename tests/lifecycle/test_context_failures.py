"""Prompts that the API finds too long, and summaries that are of no use: runs go on, or end for good."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select

from runner import wiring
from runner.settings import Settings
from runner.store.tables import compactions, model_calls
from tests.lifecycle.reader import Reader, facts_in, last_text, write_reports
from tests.lifecycle.site import Site
from tests.messages_api import API_KEY, Break, MessagesServer, Received, Reply, text

REPORTS = 16
AT = 9  # the report before which a prompt is too long
ALOUD = "I think aloud, as I like to do. " * 120  # no result of a tool: only a summary shortens it

pytestmark = pytest.mark.timeout(900)  # the first test waits for the whole run

COUNT = "/v1/messages/count_tokens"

TOO_LONG = Break("status", status=400, message="prompt is too long: 250000 tokens > 200000 maximum")
OVERFULL = Break(
    "status",
    status=400,
    message="input length and `max_tokens` exceed context limit: 199000 + 8000 > 200000",
)
TOO_LARGE = Break("status", status=413, message="Request exceeds the maximum size")
REFUSED = Break("status", status=400, message="messages: this is not for me")

TROUBLE: Mapping[str, Reply] = {
    "too-long": Reply(broken=TOO_LONG),
    "overfull": Reply(broken=OVERFULL),
    "too-large": Reply(broken=TOO_LARGE),
    "cut": Reply([text("I was about to")], stop_reason="model_context_window_exceeded"),
}
USELESS: Mapping[str, Reply] = {
    "fails": Reply(broken=REFUSED),
    "is-too-long": Reply(broken=TOO_LONG),
    "is-empty": Reply(),
    "is-blank": Reply([text("\n")]),
    "grows": Reply([text("And then, and then. " * 10_000)]),
    "is-refused": Reply([text("No.")], stop_reason="refusal"),
}


class Troubled:
    """The plan: what goes wrong in a run is what its item says, once or always."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()  # for the reply in question, by item
        self.summaries: Counter[str] = Counter()

    def turn(self, request: Received, known: Mapping[int, str]) -> Reply | None:
        item = _item(request)
        often, _, what = item.partition("-")
        if what not in TROUBLE or max(known, default=0) + 1 != AT:
            return None
        self.asked[item] += 1
        return TROUBLE[what] if often == "always" or self.asked[item] == 1 else None

    def summary(self, request: Received, known: Mapping[int, str]) -> Reply | None:
        item = _item(request)
        self.summaries[item] += 1
        return USELESS.get(item.removeprefix("summary-"))


def _item(request: Received) -> str:
    found = re.search(r"item ([a-z-]+);", json.dumps(request.body["messages"]))
    assert found, "every prompt and every reply names the item"
    return found[1]


@dataclass
class Ended:
    """What became of all the runs."""

    site: Site
    server: MessagesServer
    plan: Troubled
    runs: dict[str, dict[str, Any]]
    facts: dict[int, str]

    def kinds(self, item: str) -> list[str]:
        """The compactions of a run."""
        table = compactions
        query = select(table.c.kind).where(table.c.run_id == self.runs[item]["id"])
        return [row.kind for row in self._rows(query.order_by(table.c.number))]

    def errors(self, item: str, purpose: str) -> list[str | None]:
        table = model_calls
        query = select(table.c.error).where(
            table.c.run_id == self.runs[item]["id"], table.c.purpose == purpose
        )
        return [row.error for row in self._rows(query.order_by(table.c.number))]

    def said_last(self, item: str) -> str:
        return last_text(self.site.json("transcript", self.runs[item]["id"]))

    def _rows(self, query: Any) -> Any:
        settings = Settings.load(self.site.environment)
        with closing(wiring.open_database(settings)) as database:
            return database.read(lambda connection: connection.execute(query).all())


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """A job with a run for each kind of trouble, and the one worker that drove them all."""
    plan = Troubled()
    reader = Reader(
        REPORTS, lambda request: f"item {_item(request)}; {ALOUD}", plan.turn, plan.summary
    )
    items = [
        *(f"{often}-{what}" for often in ("once", "always") for what in TROUBLE),
        *(f"summary-{what}" for what in USELESS),
    ]
    with MessagesServer(reader, broken={COUNT: Break("status", status=500)}) as server:
        folder = tmp_path_factory.mktemp("ended") / "site"
        site = Site(folder, ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY=API_KEY)
        try:
            facts = write_reports(site.workspace, REPORTS, size=900)
            job = site.live_job(
                items,
                options={"prompt": "Read the reports for item {{ item }};"},
                limits={"max_output_tokens": 3_000},
                context={"window": 20_000},
            )
            job_id = site.submit(job)
            site.run("worker", "--burst", "-c", "6")
            yield Ended(site, server, plan, site.runs(job_id), facts)
        finally:
            site.stop_all()


@pytest.mark.parametrize("what", TROUBLE)
def test_prompt_that_was_too_long_is_compacted_and_sent_again(what: str, ended: Ended) -> None:
    item = f"once-{what}"
    assert (ended.runs[item]["state"], ended.runs[item]["detail"]) == ("succeeded", "")
    assert ended.plan.asked[item] == 2
    assert ended.kinds(item)
    assert facts_in(ended.said_last(item)) == ended.facts


@pytest.mark.parametrize("what", TROUBLE)
def test_prompt_that_stays_too_long_is_compacted_twice_at_most_and_ends_the_run(
    what: str, ended: Ended
) -> None:
    item = f"always-{what}"
    run = ended.runs[item]
    assert (run["state"], run["reason"]) == ("stopped", "context_window")
    assert run["detail"]
    # After the first compaction little may be left that a second could make shorter.
    assert 2 <= ended.plan.asked[item] <= 3
    assert ended.kinds(item)


@pytest.mark.parametrize("what", USELESS)
def test_run_goes_on_without_a_summary_that_is_of_no_use(what: str, ended: Ended) -> None:
    item = f"summary-{what}"
    assert (ended.runs[item]["state"], ended.runs[item]["detail"]) == ("succeeded", "")
    assert ended.plan.summaries[item] >= 1
    assert set(ended.kinds(item)) == {"prune"}
    assert all(ended.errors(item, "summary")), "each says why it was of no use"


def test_no_request_is_invalid_whatever_went_wrong(ended: Ended) -> None:
    assert [refusal.message for refusal in ended.server.refusals] == []


def test_no_run_needs_the_api_to_count(ended: Ended) -> None:
    """It was asked to, when the gate was close, and did not answer once."""
    asked = [request for request in ended.server.others if request.path == COUNT]
    assert asked
    assert all(run["state"] in ("succeeded", "stopped") for run in ended.runs.values())
