"""Runs that read images and documents, over the strict API."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lifecycle.site import Site, wait_until
from tests.media import image, opened, pdf, widths
from tests.messages_api import API_KEY, MessagesServer, Received, Reply, text, tool_use
from tests.upgraded import Upgraded


def read(request: Received, **given: Any) -> Reply:
    call = tool_use(f"toolu_{request.number}", "Read", given)
    return Reply([text("I look at it."), call])


def media_in(request: Received) -> list[dict[str, Any]]:
    """The blocks of media in a request's messages, in order."""
    found = []
    for message in request.body["messages"]:
        for block in message["content"]:
            content = block.get("content")
            parts = content if isinstance(content, list) else [block]
            found += [each for each in parts if each["type"] in ("image", "document")]
    return found


def data_of(block: Mapping[str, Any]) -> bytes:
    return base64.b64decode(block["source"]["data"])


def live(site: Site, server: MessagesServer, **more: Any) -> Path:
    site.environment |= {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": API_KEY}
    return site.live_job(
        ["a"], options={"tools": ["Read"], **more}, permissions={"allow": ["Read"]}
    )


@pytest.mark.slow
def test_a_run_that_reads_an_image_is_killed_and_goes_on(site_of_either: Site) -> None:
    site, held = site_of_either, threading.Event()

    def plan(request: Received) -> Reply:
        if not media_in(request):
            return read(request, file_path="shot.png")
        return Reply([text("It is red.")], held_until=held)

    with MessagesServer(plan) as server:
        job = site.submit(live(site, server))
        (site.workspace / "shot.png").write_bytes(image(size=(640, 480)))
        worker = site.start("worker")
        wait_until(lambda: len(server.requests) == 2, "the image to be sent")
        worker.kill()
        (site.workspace / "shot.png").write_bytes(b"changed")
        held.set()
        site.run("worker", "--burst")
        run = site.runs(job)["a"]
        assert run["state"] == "succeeded"
        assert server.refusals == []
        requests = [each for each in server.requests if each.path == "/v1/messages"]
        assert len(requests) == 3
        for request in requests[1:]:
            (block,) = media_in(request)
            assert data_of(block) == image(size=(640, 480))
        told = site.run("transcript", run["id"], "--as-sent", "2")
        (source,) = [each["source"] for each in _media(json.loads(told))]
        assert source["data"].startswith("sha256:")
        (block,) = _media({"messages": site.json("transcript", run["id"])})
        assert data_of(block) == image(size=(640, 480))
        assert "[image: shot.png, 640x480]" in site.run("transcript", run["id"])


def _media(body: dict[str, Any]) -> list[dict[str, Any]]:
    request = Received.__new__(Received)
    object.__setattr__(request, "body", body)
    return media_in(request)


@pytest.mark.slow
def test_pages_of_a_document_are_sent(site: Site) -> None:
    def plan(request: Received) -> Reply:
        if not media_in(request):
            return read(request, file_path="report.pdf", pages="2-3")
        return Reply([text("Two pages.")])

    with MessagesServer(plan) as server:
        job = site.submit(live(site, server))
        (site.workspace / "report.pdf").write_bytes(pdf(12))
        site.run("worker", "--burst")
        assert site.runs(job)["a"]["state"] == "succeeded"
        assert server.refusals == []
        (block,) = media_in(server.requests[-1])
        assert (block["type"], widths(data_of(block))) == ("document", [2, 3])


@pytest.mark.slow
def test_an_item_carries_an_image_that_is_exported_and_comes_back(
    site: Site, tmp_path: Path, upgraded: Upgraded
) -> None:
    with MessagesServer(lambda request: Reply([text("It is red.")])) as server:
        path = live(site, server, images=["shots/{{ item }}.png"])
        (site.folder / "shots").mkdir()
        (site.folder / "shots/a.png").write_bytes(image(size=(2_500, 100)))
        job = site.submit(path)
        (site.folder / "shots/a.png").unlink()
        site.run("worker", "--burst")
        run = site.runs(job)["a"]
        assert (run["state"], server.refusals) == ("succeeded", [])
        (block,) = media_in(server.requests[-1])
        assert opened(data_of(block)).size == (1_568, 63)
    file = tmp_path / "run.jsonl"
    site.run("export", run["id"], "-o", str(file))
    other = Site(tmp_path / "other", upgraded)
    other._make_database()
    other.run("import", str(file))
    (again,) = _media({"messages": other.json("transcript", run["id"])})
    assert data_of(again) == data_of(block)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_oldest_images_become_lines_if_a_request_has_too_many(site: Site) -> None:
    def plan(request: Received) -> Reply:
        turn = len(request.body["messages"]) // 2
        if turn == 16:
            return Reply([text("I have seen them.")])
        names = [f"{turn}-{number}.png" for number in range(8)]
        calls = [
            tool_use(f"toolu_{turn}_{each}", "Read", {"file_path": name})
            for each, name in enumerate(names)
        ]
        return Reply(calls)

    with MessagesServer(plan) as server:
        job = site.submit(live(site, server))
        for turn in range(16):
            for number in range(8):
                data = image(size=(10 + turn, 10 + number))
                (site.workspace / f"{turn}-{number}.png").write_bytes(data)
        site.run("worker", "--burst")
        assert server.refusals == []
        assert site.runs(job)["a"]["state"] == "succeeded"
        last = server.requests[-1]
        sizes = [opened(data_of(block)).size for block in media_in(last)]
        assert sizes[-1] == (25, 17)
        assert 50 <= len(sizes) <= 100
        assert "[image: 0-0.png, 10x10]" in json.dumps(last.body["messages"])
