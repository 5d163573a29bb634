"""Images and documents for tests, made with Pillow and pypdf."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image
from pypdf import PdfReader, PdfWriter

TURNED = Image.Exif()
TURNED[0x0112] = 6  # a quarter to the right


def image(
    kind: str = "PNG",
    size: tuple[int, int] = (64, 48),
    color: Any = (200, 30, 30),
    mode: str = "RGB",
    **options: Any,
) -> bytes:
    """The bytes of an image of one colour."""
    buffer = io.BytesIO()
    Image.new(mode, size, color).save(buffer, kind, **options)
    return buffer.getvalue()


def noise(size: tuple[int, int]) -> bytes:
    """A PNG that hardly compresses."""
    buffer = io.BytesIO()
    Image.effect_noise(size, 120).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def pdf(pages: int, password: str = "", owner: str | None = None) -> bytes:
    """A PDF whose page N is N hundred points wide."""
    writer, buffer = PdfWriter(), io.BytesIO()
    for number in range(1, pages + 1):
        writer.add_blank_page(width=100 * number, height=100)
    if password or owner:
        writer.encrypt(password, owner, algorithm="RC4-128")
    writer.write(buffer)
    return buffer.getvalue()


def widths(data: bytes) -> list[int]:
    """The widths of a PDF's pages in hundred points."""
    return [int(page.mediabox.width) // 100 for page in PdfReader(io.BytesIO(data)).pages]


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))
