"""The rules of batches in the strict server, by its shelf alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.messages_api.batches import LIFETIME, RESULTS_LIVE, BatchShelf
from tests.messages_api.conversation_rules import Refusal


class Shelf(BatchShelf):
    """A shelf whose clock is ``time``; each request succeeds, save one that says ``bad``."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.time = 1_000.0
        super().__init__(self._answer, lambda: self.time, lambda number: seconds)

    def _answer(self, custom_id: str, params: dict[str, Any], version: str) -> dict[str, Any]:
        if "bad" in params:
            raise Refusal("bad: Extra inputs are not permitted")
        return {"type": "succeeded", "message": {}}

    def make(self, *params: dict[str, Any]) -> str:
        requests = [{"custom_id": f"c{n}", "params": each} for n, each in enumerate(params)]
        return self.create({"requests": requests}, "2023-06-01").id

    def kinds(self, batch_id: str) -> list[str]:
        return sorted(each["type"] for each in self.results(batch_id).results.values())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"requests": []},
        {"requests": [{"custom_id": "a"}]},
        {"requests": [{"custom_id": "a.b", "params": {}}]},
        {"requests": [{"custom_id": "a" * 65, "params": {}}]},
        {"requests": [{"custom_id": "a", "params": {}}] * 2},
        {"requests": [{"custom_id": f"c{n}", "params": {}} for n in range(100_001)]},
    ],
)
def test_a_body_that_the_api_refuses_makes_no_batch(body: dict[str, Any]) -> None:
    shelf = Shelf()
    with pytest.raises(Refusal):
        shelf.create(body, "2023-06-01")
    assert shelf.batches == {}


def test_requests_are_checked_only_at_the_end() -> None:
    shelf = Shelf()
    batch_id = shelf.make({}, {"bad": 1}, {"stream": True}, {"speed": "fast"})
    assert shelf.find(batch_id).told()["request_counts"]["processing"] == 4
    shelf.time += 60
    assert shelf.kinds(batch_id) == ["errored"] * 3 + ["succeeded"]


def test_a_full_queue_takes_no_batch_until_one_ends() -> None:
    shelf = Shelf()
    shelf.most_queued = 2
    shelf.make({}, {})
    with pytest.raises(Refusal) as refused:
        shelf.make({})
    assert refused.value.status == 429
    shelf.time += 60
    shelf.make({})


def test_a_batch_expires_after_a_day_and_its_results_after_29() -> None:
    shelf = Shelf(seconds=LIFETIME + 1)
    batch_id = shelf.make({}, {})
    shelf.time += LIFETIME
    assert shelf.kinds(batch_id) == ["expired"] * 2
    shelf.time += RESULTS_LIVE
    with pytest.raises(Refusal, match="gone"):
        shelf.results(batch_id)


def test_the_list_has_pages_the_newest_first() -> None:
    shelf = Shelf()
    ids = [shelf.make({}) for _ in range(5)][::-1]
    first = shelf.page("limit=2")
    assert [each["id"] for each in first["data"]] == ids[:2]
    assert first["has_more"]
    rest = shelf.page(f"limit=10&after_id={first['last_id']}")
    assert [each["id"] for each in rest["data"]] == ids[2:]
    assert not rest["has_more"]
    before = shelf.page(f"before_id={ids[2]}")
    assert [each["id"] for each in before["data"]] == ids[:2]
