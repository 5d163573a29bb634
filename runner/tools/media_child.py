"""The child process that opens images with Pillow and documents with pypdf, because a file may be hostile.

https://pillow.readthedocs.io/en/stable/reference/Image.html, https://pypdf.readthedocs.io
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from typing import Any

from runner.core.media import LONG_SIDE, MOST_DOCUMENT_BYTES, MOST_IMAGE_BYTES
from runner.tools.host_process import Report

MOST_PIXELS = 100_000_000
MOST_PAGES = 20  # of a document in one call

_MOST_MEMORY = 2 << 30  # bytes of address space
_ORIENTATION = 0x0112  # of Exif: 1 is upright
_PLAIN_MODES = ("L", "LA", "RGB", "RGBA")


class Unusable(Exception):  # noqa: N818 - what is wrong with the file, for the model
    """The file cannot be shown; the text says why."""


def main() -> None:
    """Open the file on stdin, and answer with a line of JSON about it, then the bytes to show. The first
    argument is ``image`` or ``document``, the second the image's format or the pages."""
    report = Report()
    action, wanted = sys.argv[1:]
    with suppress(OSError, ValueError):  # a lower limit is set already
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    data = sys.stdin.buffer.read()
    try:
        about, shown = _image(data, wanted) if action == "image" else _pages(data, wanted)
    except Unusable as error:
        report.end("failed", str(error))
    except Exception as error:  # decoders raise all kinds of errors for broken files
        what = str(error).partition(" <_io")[0]  # an address in memory would differ each time
        report.end("failed", f"cannot be opened: {type(error).__name__}: {what}")
    report.end("succeeded", json.dumps(about) + "\n", shown)


def _image(data: bytes, kind: str) -> tuple[dict[str, Any], bytes]:
    """Return a complete image: unchanged if the API shows it well, else upright and scaled down."""
    from PIL import Image, ImageOps

    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    image: Image.Image = Image.open(BytesIO(data), formats=[kind])
    is_turned = _is_turned(image)
    if max(image.size) <= LONG_SIDE and len(data) <= MOST_IMAGE_BYTES and not is_turned:
        image.load()
        return {"width": image.width, "height": image.height}, data
    if image.mode.startswith("I"):  # gray of 16 bits, which Pillow cuts off at 255
        image = image.point(lambda value: value / 256).convert("L")
    if image.mode not in _PLAIN_MODES:
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    image.thumbnail((LONG_SIDE, LONG_SIDE))
    if is_turned:
        image = ImageOps.exif_transpose(image)
    for media_type, saved in _saved(image, kind):
        if len(saved) <= MOST_IMAGE_BYTES:
            size = {"width": image.width, "height": image.height}
            return {**size, "media_type": media_type}, saved
    raise Unusable("is too large even when it is scaled down")


def _is_turned(image: Any) -> bool:
    with suppress(Exception):  # what a file says of its camera may be broken
        return bool(image.getexif().get(_ORIENTATION, 1) != 1)
    return False


def _saved(image: Any, kind: str) -> Iterator[tuple[str, bytes]]:
    ways: list[tuple[str, dict[str, Any]]] = [("JPEG", {"quality": 85}), ("JPEG", {"quality": 50})]
    if kind != "JPEG":
        ways.insert(0, ("PNG", {}))
    for name, options in ways:
        buffer = BytesIO()
        (image.convert("RGB") if name == "JPEG" else image).save(buffer, name, **options)
        yield f"image/{name.lower()}", buffer.getvalue()


def _pages(data: bytes, wanted: str) -> tuple[dict[str, Any], bytes]:
    """Return a document with the pages ``first-last``; an empty text means all pages."""
    from pypdf import PdfReader, PdfWriter

    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):  # many documents only forbid changes
        raise Unusable("is encrypted with a password: it cannot be shown")
    count = len(reader.pages)
    first, dash, last = wanted.partition("-")
    begin, end = int(first or 1), int(last or (count if dash or not first else first))
    if not 1 <= begin <= end <= count:
        raise Unusable(f"has {count} pages: there are no pages {wanted or 'to show'}")
    if end - begin >= MOST_PAGES:
        raise Unusable(
            f"has {count} pages, and at most {MOST_PAGES} can be shown at a time, "
            f'as with pages="{begin}-{begin + MOST_PAGES - 1}"'
        )
    about = {"pages": end - begin + 1, "first": begin, "last": end, "count": count}
    is_whole = end - begin + 1 == count
    if is_whole and len(data) <= MOST_DOCUMENT_BYTES and not reader.is_encrypted:
        return about, data
    writer, buffer = PdfWriter(), BytesIO()
    writer.append(reader, pages=(begin - 1, end), import_outline=False)
    writer.write(buffer)
    if len(buffer.getvalue()) > MOST_DOCUMENT_BYTES:
        raise Unusable(f"has more than {MOST_DOCUMENT_BYTES:,} bytes in these pages: ask for fewer")
    return about, buffer.getvalue()
