"""Images and documents of a conversation: the blocks that stand for them, and their sizes.

A stored block names the bytes by their digest; they join a request when it is sent (``llm.requests``).
Limits: https://platform.claude.com/docs/en/build-with-claude/vision and …/pdf-support. Base64 makes
four bytes of three, and an image may have 5 MB as base64. A request with more than 20 images takes none
with a side over 2,000 pixels, and a side over 1,568 is scaled down by the API itself.
"""

from __future__ import annotations

import hashlib
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from runner.core.text import visible

MOST_IMAGE_BYTES = 5 * 1024 * 1024 * 3 // 4
MOST_SIDE = 2_000  # pixels
LONG_SIDE = 1_568  # pixels; the API scales longer sides down, so more only costs time
MOST_DOCUMENT_BYTES = 9_500_000  # 13 MB as base64, of the 32 MB that a request may have
PDF = "application/pdf"

_PIXELS_PER_TOKEN = 750
_TOKENS_PER_PAGE = 3_000  # the API sends a page as its text and as an image
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_MOST_NAME = 120  # characters
_BLOB = "blob"


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a document for the model."""

    kind: Literal["image", "document"]
    media_type: str
    name: str
    data: bytes = field(repr=False)
    width: int = 0  # pixels of an image
    height: int = 0
    pages: int = 0  # of a document
    sha256: str = ""  # of ``data``

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha256", hashlib.sha256(self.data).hexdigest())

    @property
    def tokens(self) -> int:
        """Its estimated tokens."""
        if self.kind == "document":
            return self.pages * _TOKENS_PER_PAGE
        scale = min(1.0, LONG_SIDE / max(self.width, self.height))
        return math.ceil(self.width * self.height * scale * scale / _PIXELS_PER_TOKEN)

    def block(self) -> dict[str, Any]:
        """Return the stored block that names it by its digest."""
        size = {"pages": self.pages}
        if self.kind == "image":
            size = {"width": self.width, "height": self.height}
        source = {"media_type": self.media_type, "sha256": self.sha256, "bytes": len(self.data)}
        name = visible(self.name)[-_MOST_NAME:]
        source |= {**size, "tokens": self.tokens, "name": name}
        return {"type": self.kind, "source": {"type": _BLOB, **source}}


def is_media(block: Any) -> bool:
    """True if a stored block is an image or a document; its bytes are stored apart from it."""
    source = block.get("source") if isinstance(block, dict) else None
    return isinstance(source, dict) and source.get("type") == _BLOB


def media_blocks(block: Any) -> Iterator[dict[str, Any]]:
    """Yield the media blocks in a stored block: the block itself, or those in a tool's result."""
    content = block.get("content") if isinstance(block, dict) else None
    yield from filter(is_media, (block, *(content if isinstance(content, list) else ())))


def media_line(block: dict[str, Any]) -> str:
    """Return the line that replaces a media block in a text: ``[image: shot.png, 640x480]``."""
    source = block["source"]
    size = f"{source.get('width')}x{source.get('height')}"
    if block.get("type") == "document":
        size = "1 page" if source.get("pages") == 1 else f"{source.get('pages')} pages"
    return f"[{block.get('type')}: {source.get('name')}, {size}]"


def shown_text(content: Any) -> str:
    """Return the texts of a message's content or of a tool's result, with a line for each of its media."""
    parts = content if isinstance(content, list | tuple) else [content]
    return "\n".join(text for text in map(_part_text, parts) if text is not None)


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if is_media(part):
        return media_line(part)
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def media_tokens(block: dict[str, Any]) -> tuple[int, int]:
    """Return the estimated tokens of the media in a block, and the most tokens that they may have."""
    tokens = [each["source"]["tokens"] for each in media_blocks(block)]
    # A newer model counts patches of 28 pixels, and a narrow image has a whole row of them.
    return sum(tokens), sum(2 * each + 256 for each in tokens)


# Returns the bytes with a digest; raises ``LookupError`` if they are not stored.
LoadBlob: TypeAlias = Callable[[str], bytes]


def with_bytes(block: dict[str, Any], load: LoadBlob | None, *names: str) -> dict[str, Any]:
    """Return a stored block as the API takes it, with the bytes of its media; without ``load``, with their
    digests instead. ``names`` are the fields to keep of each media source."""
    content = block.get("content")
    if isinstance(content, list):
        parts = (with_bytes(p, load, *names) if isinstance(p, dict) else p for p in content)
        return {**block, "content": [*parts]}
    if not is_media(block):
        return block
    stored = block["source"]
    digest = stored["sha256"]
    data = f"sha256:{digest}" if load is None else b64encode(load(digest)).decode()
    source = {"type": "base64", "media_type": stored["media_type"], "data": data}
    return {**block, "source": source | {name: stored[name] for name in names}}


def without_bytes(block: dict[str, Any]) -> tuple[dict[str, Any], tuple[Media, ...]]:
    """Return an imported block in its stored form, and its media, whose bytes are stored apart. A block
    that is no image or PDF for the API stays unchanged; one that already names a digest, or is too large
    for a request, becomes a line."""
    content, source = block.get("content"), block.get("source")
    if isinstance(source, dict) and source.get("type") == _BLOB:
        return {"type": "text", "text": media_line(block)}, ()
    if isinstance(content, list):
        found = [without_bytes(part) if isinstance(part, dict) else (part, ()) for part in content]
        media = tuple(each for _, some in found for each in some)
        return {**block, "content": [part for part, _ in found]}, media
    if block.get("type") not in ("image", "document"):
        return block, ()
    if not isinstance(source, dict) or source.get("type") != "base64":
        return block, ()
    try:
        data = b64decode(str(source.get("data")), validate=True)
    except ValueError:
        return block, ()
    name = str(source.get("name") or f"an {block['type']}")
    if (one := _media_of(block["type"], data, name)) is None:
        return block, ()
    if len(data) > (MOST_IMAGE_BYTES if one.kind == "image" else MOST_DOCUMENT_BYTES):
        return {"type": "text", "text": media_line(one.block())}, ()
    return {**block, **one.block()}, (one,)


def _media_of(kind: str, data: bytes, name: str) -> Media | None:
    if kind == "document":
        pages = max(1, page_count(data))
        return (
            Media("document", PDF, name, data, pages=pages) if data.startswith(b"%PDF-") else None
        )
    found = image_header(data)
    if found is None or not found[1] or not found[2]:
        return None
    media_type, width, height = found
    return Media("image", media_type, name, data, width, height)


def page_count(data: bytes) -> int:
    """Return the number of pages of a PDF that can be counted without parsing it."""
    return len(_PAGE.findall(data))


_MOST_IN_REQUEST = 100  # images, and pages of documents: the API's limit for small windows
_MOST_BYTES_IN_REQUEST = 18_000_000  # 24 MB as base64


def left_out(sent: Sequence[dict[str, Any]]) -> int:
    """Return how many of a request's media blocks, the oldest, are left out because the API takes no more.
    Half of them go at once, so that the prompt stays the same, and cached, for some turns."""
    first, places, size = 0, 0, 0
    for number, block in enumerate(sent):
        places, size = places + _places(block), size + block["source"]["bytes"]
        if places <= _MOST_IN_REQUEST and size <= _MOST_BYTES_IN_REQUEST:
            continue
        while first < number and (
            places * 2 > _MOST_IN_REQUEST or size * 2 > _MOST_BYTES_IN_REQUEST
        ):
            places, size = places - _places(sent[first]), size - sent[first]["source"]["bytes"]
            first += 1
    return first


def _places(block: dict[str, Any]) -> int:
    return int(block["source"].get("pages") or 1)


def image_header(data: bytes) -> tuple[str, int, int] | None:
    """Return the media type, width and height (pixels) of an image; None if the API does not take its type.
    Only the header is read: the rest may be broken."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and len(data) >= 24:
        return "image/png", _big(data[16:20]), _big(data[20:24])
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return "image/gif", _little(data[6:8]), _little(data[8:10])
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        return _webp(data)
    if data[:3] == b"\xff\xd8\xff":
        return _jpeg(data)
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _webp(data: bytes) -> tuple[str, int, int] | None:
    """https://developers.google.com/speed/webp/docs/riff_container"""
    width = height = 0
    if data[12:16] == b"VP8X":
        width, height = _little(data[24:27]) + 1, _little(data[27:30]) + 1
    elif data[12:16] == b"VP8L":
        bits = _little(data[21:25])
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif data[12:16] == b"VP8 ":
        width, height = _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF
    return ("image/webp", width, height) if width else None


def _jpeg(data: bytes) -> tuple[str, int, int] | None:
    """The size is in the first frame header (https://www.w3.org/Graphics/JPEG/itu-t81.pdf, B.2.2)."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return "image/jpeg", _big(data[at + 7 : at + 9]), _big(data[at + 5 : at + 7])
        else:
            at += 2 + _big(data[at + 2 : at + 4])
    return None
