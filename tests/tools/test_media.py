"""Read of images, PDF documents and notebooks."""

from __future__ import annotations

import base64
import importlib.util
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from runner.core.conversation import ToolResult, result_block
from runner.core.media import LONG_SIDE, MOST_IMAGE_BYTES, Media
from runner.tools.media import MOST_SHOWN
from tests.media import TURNED, image, noise, opened, pdf, widths

from .conftest import Workbench


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    missing = ("PIL", "pypdf")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else found(name)
    )


def read(bench: Workbench, name: str, data: bytes, **given: Any) -> ToolResult:
    (bench.workspace / name).write_bytes(data)
    return bench.run("Read", file_path=name, **given)


def shown(bench: Workbench, name: str, data: bytes, **given: Any) -> Media:
    result = read(bench, name, data, **given)
    assert result.outcome == "succeeded", result.content
    (media,) = result.media
    return media


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_an_image_is_shown_as_it_is(bench: Workbench, kind: str) -> None:
    data = image(kind)
    media = shown(bench, f"shot.{kind.lower()}", data)
    assert media.data == data
    assert (media.media_type, media.width, media.height) == (f"image/{kind.lower()}", 64, 48)


def test_an_image_is_shown_as_it_is_without_the_extra(
    bench: Workbench, without_extra: None
) -> None:
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        media = shown(bench, "shot", image(kind, (1999, 300)))
        assert (media.media_type, media.width, media.height) == (f"image/{kind.lower()}", 1999, 300)


def test_a_gif_with_the_name_of_a_png_is_a_gif(bench: Workbench) -> None:
    assert shown(bench, "shot.png", image("GIF")).media_type == "image/gif"


def test_the_block_names_the_bytes_and_does_not_hold_them(bench: Workbench) -> None:
    result = read(bench, "shot\x1b.png", image(size=(640, 480)))
    _, block = result_block("toolu_1", result)["content"]
    source = block["source"]
    assert (source["width"], source["height"], source["tokens"]) == (640, 480, 410)
    assert len(source["sha256"]) == 64
    assert "\x1b" not in source["name"]
    assert len(json.dumps(block)) < 500


def test_an_image_of_9000_pixels_is_scaled_down(bench: Workbench) -> None:
    media = shown(bench, "wide.png", image(size=(9000, 3000)))
    assert (media.width, media.height) == (LONG_SIDE, 523)
    assert opened(media.data).size == (LONG_SIDE, 523)


def test_an_image_of_9000_pixels_is_refused_without_the_extra(
    bench: Workbench, without_extra: None
) -> None:
    result = read(bench, "wide.png", image(size=(9000, 3000)))
    assert result.outcome == "failed"
    assert "9000x3000" in result.content
    assert "'.[images]'" in result.content


def test_a_photo_that_was_taken_sideways_is_shown_upright(bench: Workbench) -> None:
    sideways = image("JPEG", (640, 480), exif=TURNED)
    result = read(bench, "photo.jpg", sideways)
    assert result.content.endswith("photo.jpg: an image, its 640x480 pixels shown as 480x640")
    assert opened(result.media[0].data).size == (480, 640)
    broken = image("JPEG", exif=b"Exif\0\0" + b"\xff" * 40)
    assert shown(bench, "broken.jpg", broken).data == broken


def test_gray_of_16_bits_keeps_its_shades_when_it_is_scaled_down(bench: Workbench) -> None:
    media = shown(bench, "scan.png", image(size=(3000, 10), color=0x4000, mode="I;16"))
    assert opened(media.data).getpixel((0, 0)) == 0x40


@pytest.mark.slow
def test_an_image_of_too_many_bytes_is_made_smaller(bench: Workbench) -> None:
    data = noise((1500, 1500))
    assert len(data) > MOST_IMAGE_BYTES
    media = shown(bench, "noise.png", data)
    assert (media.media_type, opened(media.data).format) == ("image/jpeg", "JPEG")
    assert len(media.data) <= MOST_IMAGE_BYTES


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises more than there is."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"")), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(image()[:80], id="cut off"),
        pytest.param(image().replace(b"IDAT", b"IDXT"), id="a damaged chunk"),
        pytest.param(bomb(50_000, 50_000), id="a bomb"),
        pytest.param(bomb(0, 10), id="no width"),
        pytest.param(image()[:12], id="only the beginning"),
        pytest.param(b"\xff\xd8\xff" + b"\xff\xe0\x00\x00" * 50, id="a JPEG without a frame"),
        pytest.param(b"%PDF-1.7\nnothing", id="no document"),
        pytest.param(pdf(2, "secret"), id="an encrypted document"),
    ],
)
def test_a_broken_file_is_an_error_for_the_model(bench: Workbench, data: bytes) -> None:
    result = read(bench, "broken.png", data)
    assert (result.outcome, result.media) == ("failed", ())
    assert "broken.png" in result.content
    assert " at 0x" not in result.content


def test_svg_is_text(bench: Workbench) -> None:
    result = read(bench, "a.svg", b"<svg/>")
    assert (result.content, result.media) == ("     1\t<svg/>", ())


def test_pages_of_a_document_are_cut_out(bench: Workbench) -> None:
    media = shown(bench, "report.pdf", pdf(12), pages="2-3")
    assert (media.kind, media.pages, widths(media.data)) == ("document", 2, [2, 3])
    assert widths(shown(bench, "report.pdf", pdf(12), pages="12").data) == [12]
    assert widths(shown(bench, "report.pdf", pdf(12), pages="11-").data) == [11, 12]
    assert shown(bench, "report.pdf", pdf(12)).data == pdf(12)


def test_a_document_that_only_its_owner_may_change_is_shown(bench: Workbench) -> None:
    media = shown(bench, "form.pdf", pdf(3, owner="secret"))
    assert widths(media.data) == [1, 2, 3]
    assert b"/Encrypt" not in media.data


@pytest.mark.parametrize("pages", ["0", "5-2", "12-13", "a", "1-5,7", "-3"])
def test_pages_that_are_not_there_are_an_error(bench: Workbench, pages: str) -> None:
    assert read(bench, "report.pdf", pdf(12), pages=pages).outcome in ("failed", "invalid_input")


def test_a_long_document_is_read_in_parts(bench: Workbench) -> None:
    result = read(bench, "long.pdf", pdf(21))
    assert result.outcome == "failed"
    assert "has 21 pages" in result.content
    assert 'pages="1-20"' in result.content


def test_a_small_document_is_shown_whole_without_the_extra(
    bench: Workbench, without_extra: None
) -> None:
    assert shown(bench, "report.pdf", pdf(3)).pages == 3
    for given in ({"data": pdf(3), "pages": "1"}, {"data": pdf(21)}, {"data": pdf(3, "secret")}):
        assert "'.[images]'" in read(bench, "report.pdf", **given).content


def notebook(*cells: dict[str, Any]) -> bytes:
    return json.dumps({"nbformat": 4, "cells": cells}).encode()


def test_a_notebook_is_shown_as_its_cells(bench: Workbench) -> None:
    encoded = base64.b64encode(image()).decode()
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "text": ["1\n", "2\n"]},
        {"output_type": "display_data", "data": {"image/png": encoded, "text/plain": "<Figure>"}},
        {"output_type": "display_data", "data": {"image/png": "AAAA"}},
        {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []},
    ]
    data = notebook(
        {"cell_type": "markdown", "source": ["# Title\n", "words"]},
        {"cell_type": "code", "source": "print(1)", "outputs": outputs},
    )
    result = read(bench, "a.ipynb", data)
    lines = [line.partition("\t")[2] for line in result.content.splitlines()[:-1]]
    assert lines[:6] == [
        "--- cell 1, markdown ---",
        "# Title",
        "words",
        "--- cell 2, code ---",
        "print(1)",
        "--- output of cell 2 ---",
    ]
    assert "[image: output of cell 2, 64x48]" in lines
    assert any(line.startswith("[image not shown:") for line in lines)
    assert "ValueError: no" in lines
    assert [media.data for media in result.media] == [image()]


def test_a_notebook_without_cells_says_so(bench: Workbench) -> None:
    assert "a notebook without cells" in read(bench, "a.ipynb", notebook()).content


@pytest.mark.parametrize("data", [b"[]", b'{"cells": [1]}', b"[" * 100_000, b"\xff", b"{}"])
def test_a_file_that_is_no_notebook_is_an_error(bench: Workbench, data: bytes) -> None:
    result = read(bench, "a.ipynb", data)
    assert (result.outcome, "not a notebook" in result.content) == ("failed", True)


def test_an_image_that_the_rules_deny_is_not_shown(bench: Workbench) -> None:
    denied = bench.under("allow Read", "deny Read(secret/**)")
    (bench.workspace / "secret").mkdir()
    result = read(denied, "secret/shot.png", image())
    assert (result.outcome, result.media) == ("denied", ())


def test_an_image_outside_the_workspace_is_not_shown(bench: Workbench, tmp_path: Path) -> None:
    (tmp_path / "shot.png").write_bytes(image())
    result = bench.run("Read", file_path=str(tmp_path / "shot.png"))
    assert (result.outcome, result.media) == ("failed", ())


def figure(data: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"image/png": data}}


@pytest.mark.parametrize("data", ["\u00e9", "A", 7, [7], {"a": 1}, None])
def test_a_notebook_image_that_is_no_base64_becomes_a_line(bench: Workbench, data: Any) -> None:
    cell = {"cell_type": "code", "source": "plot()", "outputs": [figure(data)]}
    result = read(bench, "a.ipynb", notebook(cell))
    assert (result.outcome, result.media) == ("succeeded", ())
    assert "not shown" in result.content


def test_only_some_of_many_broken_notebook_images_are_opened(bench: Workbench) -> None:
    broken = figure(base64.b64encode(image()[:80]).decode())
    cell = {"cell_type": "code", "source": "plot()", "outputs": [broken] * 40}
    result = read(bench, "a.ipynb", notebook(cell))
    assert result.content.count("cannot be opened") == MOST_SHOWN
    assert result.content.count("there are too many") == 40 - MOST_SHOWN


def test_a_large_notebook_is_not_taken_apart(bench: Workbench) -> None:
    data = b'{"cells": [' + b"{}," * (6 << 20) + b"{}]}"
    result = read(bench, "a.ipynb", data)
    assert "a.ipynb is larger than" in result.content
