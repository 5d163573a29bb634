"""The lane of batches where the organization's queue of batched requests is full."""

from __future__ import annotations

import pytest

from tests.engine.collecting import Office

COUNT = 3
OTHER_HEADERS = {"betas": ["another-2026-01-01"]}  # such calls share no batch with the others


@pytest.mark.slow
def test_a_batch_waits_until_the_queue_has_room(office: Office) -> None:
    office.server.shelf.most_queued = COUNT
    office.submit(COUNT)
    office.submit(COUNT, model_options=OTHER_HEADERS)
    office.finish()
    assert office.states() == {"succeeded end_turn": 2 * COUNT}
    paid = [(f"Do {number}.", turn) for number in range(COUNT) for turn in range(2)]
    assert office.paid() == sorted(paid * 2)
    assert ("refused",) in office.batches("outcome")
