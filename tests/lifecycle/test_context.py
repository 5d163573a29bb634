"""A worker, a run of forty turns, and an API with a window: what is sent fits, is cheap, and is told
again exactly; nothing that the task needs is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, select

from bench.context import play
from runner import wiring
from runner.core.conversation import Usage
from runner.core.prices import Terms
from runner.llm.prices import load_prices
from runner.llm.requests import request_body
from runner.queries.transcript import sent_request
from runner.settings import Settings
from runner.store.tables import compactions, model_calls, runs
from tests.lifecycle.reader import Reader, facts_in, last_text, wants_summary, write_reports
from tests.lifecycle.site import Site
from tests.messages_api import API_KEY, MessagesServer, Received
from tests.messages_api.prompt_cache import Prompt

WINDOW = 100_000
REPORTS = 40
LONG = 45_000  # characters of a report: forty take four and a half windows
SHORT = 4_500  # forty of them fit
ALOUD = "I think aloud, as I like to do. " * 40  # no truncation shortens it
MARK = re.compile(rb',"cache_control":\{"type":"ephemeral"(,"ttl":"1h")?\}')

pytestmark = pytest.mark.timeout(900)  # the first test waits for the whole run


@dataclass
class Read:
    """A run that has read its reports, and what the API saw of it."""

    site: Site
    server: MessagesServer
    run: dict[str, Any]
    facts: dict[int, str]

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.site.json("transcript", self.run["id"])
        return messages

    @cached_property
    def asked(self) -> list[Received]:
        """The requests for replies and for summaries, in order."""
        return [request for request in self.server.requests if request.path == "/v1/messages"]

    @property
    def turns(self) -> list[Received]:
        return [request for request in self.asked if not wants_summary(request)]

    @cached_property
    def calls(self) -> list[Row[Any]]:
        return self._rows(model_calls)

    @cached_property
    def compactions(self) -> list[Row[Any]]:
        return self._rows(compactions)

    @property
    def usages(self) -> list[Usage]:
        return [
            Usage(
                call.input_tokens,
                call.cache_read_tokens,
                call.cache_creation_tokens,
                call.output_tokens,
            )
            for call in self.calls
        ]

    def sent_request(self, turn: int) -> bytes:
        with closing(self._database()) as database:
            return request_body(sent_request(database, self.run["id"], turn))

    def row(self, table: Any) -> Row[Any]:
        """The run's row."""
        query = select(table).where(table.c.id == self.run["id"])
        with closing(self._database()) as database:
            return database.read(lambda connection: connection.execute(query).one())  # type: ignore[no-any-return]

    def _rows(self, table: Any) -> list[Row[Any]]:
        query = select(table).where(table.c.run_id == self.run["id"]).order_by(table.c.number)
        with closing(self._database()) as database:
            return list(database.read(lambda connection: connection.execute(query).all()))

    def _database(self) -> Any:
        return wiring.open_database(Settings.load(self.site.environment))


@contextmanager
def _read(
    folder: Path, size: int, aloud: str = "", chars_per_token: float = 4.0, **limits: int
) -> Iterator[Read]:
    reader = Reader(REPORTS, lambda request: aloud)
    with MessagesServer(reader, window=WINDOW, chars_per_token=chars_per_token) as server:
        site = Site(folder, ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY=API_KEY)
        try:
            facts = write_reports(site.workspace, REPORTS, size)
            job = site.submit(site.live_job(["a"], limits={"max_turns": 60, **limits}))
            site.run("worker", "--burst")
            yield Read(site, server, site.runs(job)["a"], facts)
        finally:
            site.stop_all()


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    """Forty reports that take four and a half windows."""
    with _read(tmp_path_factory.mktemp("long") / "site", LONG, ALOUD) as read:
        yield read


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    """Forty reports that fit the window of an API that counts more tokens than Runner guesses."""
    folder = tmp_path_factory.mktemp("short") / "site"
    with _read(folder, SHORT, chars_per_token=3.2, max_output_tokens=8_000) as read:
        yield read


def test_forty_turns_of_45_kb_in_a_window_of_100k_keep_every_fact(long: Read) -> None:
    assert (long.run["state"], long.run["reason"]) == ("succeeded", "end_turn")
    assert len(long.turns) == REPORTS + 1
    assert facts_in(last_text(long.messages)) == long.facts
    assert {row.kind for row in long.compactions} == {"clip"}


def test_no_request_is_refused_as_too_long_or_for_any_other_reason(long: Read) -> None:
    assert long.server.refusals == []
    assert [call.error for call in long.calls] == [None] * len(long.calls)


def test_every_result_is_stored_whole_whatever_was_sent(long: Read) -> None:
    reports = [(long.site.workspace / f"report-{n}.txt").read_text() for n in sorted(long.facts)]
    results = [
        block["content"]
        for message in long.messages
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert results == reports


def test_what_fits_costs_at_most_a_fifth_of_the_same_without_a_cache(short: Read) -> None:
    assert short.compactions == []
    assert facts_in(last_text(short.messages)) == short.facts
    same = _cost(map(_without_cache, short.usages))
    print(f"\nof the same without a cache: {_cost(short.usages) / same:.3f}")
    assert _cost(short.usages) <= same / 5


def test_what_does_not_fit_costs_at_most_a_fifth_of_all_of_it_sent_each_time_without_a_cache(
    long: Read,
) -> None:
    """With the window of 100k nobody could send it. In the window, each turn has 45 KB that are new
    and cost the full price, an eighth of the prompt and more: there a cache alone cannot save
    four fifths (docs/decisions/0009). ``pytest -rP`` shows what is printed."""
    replies = [call.output_tokens for call in long.calls if call.purpose == "turn"]
    whole = _cost(
        Usage(input_tokens=tokens, output_tokens=output)
        for tokens, output in zip(_whole_prompts(long), replies, strict=True)
    )
    same, ours = _cost(map(_without_cache, long.usages)), _cost(long.usages)
    print(f"\nof all of it without a cache: {ours / whole:.3f}; of the same: {ours / same:.3f}")
    assert ours <= whole / 5
    assert ours <= same * 7 / 10


@pytest.mark.parametrize(("size", "growth"), [("long", LONG), ("short", SHORT)])
def test_input_costs_what_the_bench_of_compactions_says(
    size: str, growth: int, request: pytest.FixtureRequest
) -> None:
    """``python -m bench context`` plays the same decisions without a worker. 900,000 is the issue's
    most for the long one, in tokens of input: a summary's tokens count five."""
    read: Read = request.getfixturevalue(size)
    units = sum(
        usage.input_tokens
        + 1.25 * usage.cache_creation_tokens
        + 0.1 * usage.cache_read_tokens
        + 5 * usage.output_tokens * (call.purpose == "summary")
        for call, usage in zip(read.calls, read.usages, strict=True)
    )
    played = play(growth / 1_000, WINDOW, 8).units
    print(f"\n{units:,.0f} units, {played:,.0f} by the bench; {len(read.compactions)} compactions")
    assert units <= 900_000
    assert units == pytest.approx(played, rel=0.25)


@pytest.mark.parametrize("size", ["long", "short"])
def test_prefix_stays_byte_for_byte_and_breaks_only_where_it_compacted(
    size: str, request: pytest.FixtureRequest
) -> None:
    read: Read = request.getfixturevalue(size)
    sent = [
        (call.number, MARK.sub(b"", asked.raw))
        for call, asked in zip(read.calls, read.asked, strict=True)
        if call.purpose == "turn"
    ]
    broken = {
        number
        for (_, before), (number, after) in pairwise(sent)
        if not after.startswith(before.removesuffix(b"]}"))
    }
    numbers = [number for number, _ in sent]
    compacted = {
        min(number for number in numbers if number >= row.first_sent_in) for row in read.compactions
    }
    assert broken == compacted
    heads = {body.partition(b'"messages":')[0] for _, body in sent}
    assert len(heads) == 1


def test_what_was_sent_in_each_turn_can_be_told_again_exactly(long: Read) -> None:
    for turn, asked in enumerate(long.turns, 1):
        assert long.sent_request(turn) == asked.raw
    shown = long.site.run("transcript", long.run["id"], "--as-sent", "30")
    assert shown.strip().encode() == long.turns[29].raw


def test_gate_learns_how_the_api_counts(short: Read) -> None:
    progress = short.row(runs).progress
    assert progress["context"]["correction"] == pytest.approx(4 / 3.2, rel=0.05)


def _cost(usages: Any) -> int:
    """Billionths of a USD."""
    tariff = load_prices().tariff("claude-sonnet-5", Terms())
    assert tariff is not None
    return sum(tariff.cost(usage, hour_cache=False) for usage in usages)


def _whole_prompts(read: Read) -> Iterator[int]:
    """The tokens of each turn's prompt, had nothing ever been left out of it."""
    body = read.turns[0].body
    for number, message in enumerate(read.messages):
        if message["role"] == "assistant":
            yield Prompt.of({**body, "messages": read.messages[:number]}).tokens


def _without_cache(usage: Usage) -> Usage:
    return Usage(input_tokens=usage.prompt_tokens, output_tokens=usage.output_tokens)
