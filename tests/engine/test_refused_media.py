"""Images that the API refuses: the run goes on without them, and the record says so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.conversation import ModelReply, ModelRequest
from runner.core.media import Media, media_blocks
from runner.core.run import Ended
from runner.core.spec import NewRun
from runner.errors import ModelCallError
from runner.llm.scripted import ScriptedModel
from runner.permissions import Rule
from runner.ports import Interrupt
from runner.queries.transcript import sent_request
from runner.store import jobs
from runner.store.tables import events
from tests.engine.test_asking import DONE, Desk, Listening, desk, ports, reply
from tests.engine.test_attempt import scripted
from tests.media import image
from tests.store.examples import submission

__all__ = ["desk", "ports"]

WORDS = "messages.2.content.0.image.source.base64.data: Could not process image"


@dataclass
class Picky(Listening):
    """A model that refuses a request with an image that it was not sent before."""

    always: bool = False

    def complete(self, request: ModelRequest, interrupt: Interrupt, heard: Any) -> ModelReply:
        newest = request.messages[-1].blocks
        if self.always or any(any(media_blocks(block)) for block in newest):
            self.requests.append(request)
            raise ModelCallError("media_refused", WORDS, status=400, billed=False)
        return super().complete(request, interrupt, heard)


def look(path: str) -> dict[str, Any]:
    return {"name": "Read", "input": {"file_path": path}}


def happened(desk: Desk, kind: str) -> list[dict[str, Any]]:
    query = select(events.c.data).where(events.c.type == kind).order_by(events.c.number)
    return [row.data for row in desk.database.rows(query)]


@pytest.mark.dialect
def test_a_refused_image_is_sent_as_a_line_that_says_so(desk: Desk) -> None:
    (desk.folder / "a.png").write_bytes(image())
    lease = desk.begin(reply(look("a.png"), look("a.png")), rules=[Rule("allow", "Read")])
    desk.model = Picky(desk.model.scripted)
    assert desk.work(lease) == Ended("succeeded", "end_turn")
    sent = desk.model.requests
    assert len(sent) == 3, "it is tried again once"
    for result in desk.model.results:
        assert "[image: a.png, 64x48]" in result
        assert f"[The API refused this image or document, and it is not shown: {WORDS}]" in result
    assert sent_request(desk.database, lease.run_id, 2).messages == sent[-1].messages
    ended = [each["kind"] for each in happened(desk, "model_call_ended") if "kind" in each]
    assert ended == ["media_refused"]
    assert [each["kind"] for each in happened(desk, "context_compacted")] == ["clip"]


def test_a_refused_image_of_the_item_ends_the_run_and_is_named(desk: Desk) -> None:
    shot = Media("image", "image/png", "shot.png", image(), 64, 48)
    spec = scripted(DONE)
    desk.model = Picky(ScriptedModel(spec.script or {}))
    desk.ports = replace(desk.ports, models=desk._model)
    item = NewRun("one", {}, "Look.", attached=[shot.block()])
    job = replace(submission("one", spec=spec), runs=(item,), media=(shot,))
    jobs.submit(desk.database, job, desk.ports.clock.now())
    outcome = desk.work()
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", "media_refused")
    assert outcome.detail == (
        "the API refused [image: shot.png, 64x48] of the item; correct the file and submit it again: "
        + WORDS
    )
    assert len(desk.model.requests) == 1


def test_a_request_that_is_refused_without_new_images_ends_the_run(desk: Desk) -> None:
    (desk.folder / "a.png").write_bytes(image())
    lease = desk.begin(reply(look("a.png")), rules=[Rule("allow", "Read")])
    desk.model = replace(Picky(desk.model.scripted), always=True)
    outcome = desk.work(lease)
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", "media_refused")
    assert WORDS in outcome.detail
    assert len(desk.model.requests) == 1
