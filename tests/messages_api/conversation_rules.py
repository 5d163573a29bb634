"""What the Messages API refuses in the messages of a request: blocks, order, pairing.

Sources: as in ``rules``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from io import BytesIO
from typing import Any

from PIL import Image
from pypdf import PdfReader

# block type -> (required fields, optional fields)
_BLOCKS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "text": (frozenset({"text"}), frozenset({"cache_control", "citations"})),
    "image": (frozenset({"source"}), frozenset({"cache_control"})),
    "document": (
        frozenset({"source"}),
        frozenset({"cache_control", "citations", "context", "title"}),
    ),
    "thinking": (frozenset({"thinking", "signature"}), frozenset()),
    "redacted_thinking": (frozenset({"data"}), frozenset()),
    "tool_use": (
        frozenset({"id", "name", "input"}),
        frozenset({"cache_control", "caller", "toolset_name"}),
    ),
    "tool_result": (
        frozenset({"tool_use_id"}),
        frozenset({"content", "is_error", "cache_control", "toolset_name"}),
    ),
    "server_tool_use": (frozenset({"id", "name", "input"}), frozenset({"cache_control", "caller"})),
    "web_search_tool_result": (
        frozenset({"tool_use_id", "content"}),
        frozenset({"cache_control", "caller"}),
    ),
}
_ASSISTANT_ONLY = frozenset({"thinking", "redacted_thinking", "tool_use", "server_tool_use"})
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_SECRET = b"the strict server's own signing key"


class Refusal(Exception):  # noqa: N818 - the API's word is an error type, given in ``kind``
    """The API's answer to a request that it does not accept."""

    def __init__(
        self, message: str, status: int = 400, kind: str = "invalid_request_error"
    ) -> None:
        self.status = status
        self.kind = kind
        self.message = message
        super().__init__(message)


def sign(thinking: str) -> str:
    """The signature that the API gives a thinking block; it must come back unchanged."""
    return hmac.new(_SECRET, thinking.encode(), hashlib.sha256).hexdigest()


def check_messages(messages: Any, issued: Collection[str]) -> None:
    if not isinstance(messages, list):
        raise Refusal("messages: Input should be a valid list")
    if not messages:
        raise Refusal("messages: at least one message is required")
    for index, message in enumerate(messages):
        _check_message(message, f"messages.{index}", issued)
    if messages[0]["role"] != "user":
        raise Refusal('messages: first message must use the "user" role')
    _check_pairs(messages)
    _check_all_media(messages)
    last = messages[-1]
    if last["role"] == "assistant":
        content = last["content"]
        text = content if isinstance(content, str) else content[-1].get("text", "")
        if text != text.rstrip():
            raise Refusal("messages: final assistant content cannot end with trailing whitespace")


def _check_message(message: Any, at: str, issued: Collection[str]) -> None:
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
        raise Refusal(f"{at}.role: Input should be 'user' or 'assistant'")
    for name in sorted(message.keys() - {"role", "content"}):
        raise Refusal(f"{at}.{name}: Extra inputs are not permitted")
    content = message.get("content")
    if isinstance(content, str):
        if not content.strip():
            raise Refusal(f"{at}: messages must have non-empty content")
        return
    if not isinstance(content, list):
        raise Refusal(f"{at}.content: Input should be a valid list")
    if not content:
        raise Refusal(f"{at}: messages must have non-empty content")
    role = message["role"]
    for index, block in enumerate(content):
        check_block(block, f"{at}.content.{index}", issued)
        kind = block["type"]
        if (role == "user" and kind in _ASSISTANT_ONLY) or (
            role == "assistant" and kind == "tool_result"
        ):
            raise Refusal(
                f"{at}.content.{index}: `{kind}` blocks are not allowed in {role} messages"
            )
    if role == "assistant":
        _check_order(content, at)


def _check_order(content: list[dict[str, Any]], at: str) -> None:
    called = False
    for index, block in enumerate(content):
        if block["type"] == "tool_use":
            called = True
        elif block["type"] == "text" and called:
            raise Refusal(f"{at}.content.{index}: `text` blocks cannot follow `tool_use` blocks")
    if content[-1]["type"] in ("thinking", "redacted_thinking"):
        raise Refusal(f"{at}: The final block in an assistant message cannot be `thinking`.")


def check_block(block: Any, at: str, issued: Collection[str]) -> None:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise Refusal(f"{at}.type: Field required")
    kind = block["type"]
    if kind in issued and kind not in _BLOCKS:
        return
    if kind not in _BLOCKS:
        tags = ", ".join(f"'{name}'" for name in sorted(_BLOCKS))
        raise Refusal(
            f"{at}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {tags}"
        )
    required, optional = _BLOCKS[kind]
    for name in sorted(required - block.keys()):
        raise Refusal(f"{at}.{kind}.{name}: Field required")
    for name in sorted(block.keys() - required - optional - {"type"}):
        raise Refusal(f"{at}.{kind}.{name}: Extra inputs are not permitted")
    _check_values(block, kind, at)


def _check_values(block: dict[str, Any], kind: str, at: str) -> None:
    if kind == "text":
        if not isinstance(block["text"], str):
            raise Refusal(f"{at}.text.text: Input should be a valid string")
        if not block["text"]:
            raise Refusal("messages: text content blocks must be non-empty")
        if not block["text"].strip():
            raise Refusal("messages: text content blocks must contain non-whitespace text")
    elif kind == "tool_use":
        if not isinstance(block["input"], dict):
            raise Refusal(f"{at}.tool_use.input: Input should be a valid dictionary")
        if not isinstance(block["id"], str) or not _TOOL_ID.fullmatch(block["id"]):
            raise Refusal(f"{at}.tool_use.id: String should match pattern '^{_TOOL_ID.pattern}$'")
        if not isinstance(block["name"], str) or not NAME.fullmatch(block["name"]):
            raise Refusal(f"{at}.tool_use.name: String should match pattern '^{NAME.pattern}$'")
    elif kind == "tool_result":
        _check_result(block, at)
    elif kind in ("image", "document"):
        _check_media(block, kind, at)
    elif kind == "thinking" and block["signature"] != sign(block["thinking"]):
        raise Refusal(f"{at}: Invalid `signature` in `thinking` block")


def _check_result(block: dict[str, Any], at: str) -> None:
    content = block.get("content", "")
    if not isinstance(block.get("is_error", False), bool):
        raise Refusal(f"{at}.tool_result.is_error: Input should be a valid boolean")
    if isinstance(content, str):
        return  # an empty result is accepted
    if not isinstance(content, list):
        raise Refusal(f"{at}.tool_result.content: Input should be a valid list")
    for index, part in enumerate(content):
        check_block(part, f"{at}.tool_result.content.{index}", ())
        if part["type"] not in ("text", "image", "document"):
            raise Refusal(f"{at}.tool_result.content.{index}.type: not allowed in a tool_result")


_MOST_BASE64 = 5 * 1024 * 1024
_MOST_SIDE, _MOST_SIDE_OF_MANY, _MANY = 8_000, 2_000, 20
_MOST_PAGES = _MOST_IMAGES = 100


def _check_media(block: dict[str, Any], kind: str, at: str) -> None:
    """Decode the bytes, as the API does: it refuses a broken file, and one of another type than stated."""
    source, at = block["source"], f"{at}.{kind}.source"
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise Refusal(f"{at}: Input tag found using 'type' does not match 'base64'")
    for name in sorted(source.keys() ^ {"type", "media_type", "data"}):
        wrong = "Extra inputs are not permitted" if name in source else "Field required"
        raise Refusal(f"{at}.base64.{name}: {wrong}")
    try:
        data = base64.b64decode(source["data"], validate=True)
    except ValueError:
        raise Refusal(f"{at}.base64.data: Invalid base64 data") from None
    if kind == "document":
        _check_pdf(source["media_type"], data, at)
    elif len(source["data"]) > _MOST_BASE64:
        raise Refusal(f"{at}.base64: image exceeds 5 MB maximum: {len(source['data'])} bytes")
    elif source["media_type"] not in _IMAGES:
        raise Refusal(f"{at}.base64.media_type: Input should be one of {sorted(_IMAGES)}")
    else:
        width, height = _size_of(data, source["media_type"], at)
        if max(width, height) > _MOST_SIDE:
            raise Refusal(
                f"{at}.base64.data: image dimensions exceed max allowed size: 8000 pixels"
            )


_IMAGES = {f"image/{name.lower()}": name for name in ("PNG", "JPEG", "GIF", "WEBP")}


def _size_of(data: bytes, media_type: str, at: str) -> tuple[int, int]:
    try:
        image = Image.open(BytesIO(data), formats=[*_IMAGES.values()])
        image.load()
    except Exception:
        raise Refusal(f"{at}.base64: Could not process image") from None
    if image.format != _IMAGES[media_type]:
        raise Refusal(f"{at}.base64: the image appears to be {image.format}, not {media_type}")
    return image.size


def _check_pdf(media_type: str, data: bytes, at: str) -> None:
    if media_type != "application/pdf":
        raise Refusal(f"{at}.base64.media_type: Input should be 'application/pdf'")
    try:
        count = len(PdfReader(BytesIO(data), strict=True).pages)
    except Exception:
        raise Refusal(f"{at}: The PDF specified was not valid.") from None
    if count > _MOST_PAGES:
        raise Refusal(f"{at}: A maximum of {_MOST_PAGES} PDF pages may be provided.")


def _check_all_media(messages: list[dict[str, Any]]) -> None:
    """The limits of a whole request."""
    blocks = [block for message in messages for block in blocks_of(message)]
    parts = [
        part
        for block in blocks
        if isinstance(block.get("content"), list)
        for part in block["content"]
    ]
    media = [each for each in [*blocks, *parts] if each["type"] in ("image", "document")]
    images = [each["source"] for each in media if each["type"] == "image"]
    if len(images) > _MOST_IMAGES:
        raise Refusal(f"messages: Too many images: {len(images)} > {_MOST_IMAGES}")
    if sum(len(each["source"]["data"]) for each in media) > 32_000_000:
        raise Refusal("Request exceeds the maximum size", 413, "request_too_large")
    for source in images if len(images) > _MANY else ():
        size = _size_of(base64.b64decode(source["data"]), source["media_type"], "messages")
        if max(size) > _MOST_SIDE_OF_MANY:
            raise Refusal(
                "messages: image dimensions exceed max allowed size for many-image requests"
            )


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [] if isinstance(content, str) else content


def _check_pairs(messages: list[dict[str, Any]]) -> None:
    """Every tool_use has exactly one tool_result, first thing in the very next message."""
    seen: set[str] = set()
    open_ids: list[str] = []
    for index, message in enumerate(messages):
        blocks = blocks_of(message)
        _check_results(blocks, open_ids, index)
        open_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for tool_id in open_ids:
            if tool_id in seen:
                raise Refusal(f"messages.{index}: `tool_use` ids must be unique")
            seen.add(tool_id)
    if open_ids:
        raise Refusal(_unanswered(len(messages) - 1, open_ids))


def _check_results(blocks: list[dict[str, Any]], open_ids: list[str], index: int) -> None:
    answered: set[str] = set()
    others = False
    for position, block in enumerate(blocks):
        if block["type"] != "tool_result":
            others = True
            continue
        tool_id = block["tool_use_id"]
        if tool_id not in open_ids:
            raise Refusal(
                f"messages.{index}.content.{position}: unexpected `tool_use_id` found in "
                f"`tool_result` blocks: {tool_id}. Each `tool_result` block must have a "
                "corresponding `tool_use` block in the previous message."
            )
        if tool_id in answered:
            raise Refusal(
                f"messages.{index}.content.{position}: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {tool_id}"
            )
        if others:
            raise Refusal(
                f"messages.{index}: `tool_result` blocks must come first in the content of the "
                "message that follows `tool_use`"
            )
        answered.add(tool_id)
    missing = [tool_id for tool_id in open_ids if tool_id not in answered]
    if missing:
        raise Refusal(_unanswered(index - 1, missing))


def _unanswered(index: int, ids: Iterable[str]) -> str:
    return (
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately "
        f"after: {', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` "
        "block in the next message."
    )
