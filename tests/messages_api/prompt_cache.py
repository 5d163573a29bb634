"""The length of a prompt by a fixed rule, and how much of it the prompt cache saves.

Sources: https://docs.claude.com/en/docs/build-with-claude/prompt-caching and its page on pricing. An
entry is written at each breakpoint and can be read once the reply has begun; each breakpoint looks back
at 20 positions for one, itself included. A run of tool calls, or of results, counts as one position on
the Claude API and as many on other platforms: here every block is one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from typing import Any

from PIL import Image
from pypdf import PdfReader

LEAST_CACHED_TOKENS = 1_024  # of Claude Sonnet 5; it is from 512 to 4,096, by model
LOOK_BACK = 20
LIFETIMES = {"5m": 300.0, "1h": 3_600.0}


@dataclass(frozen=True)
class Place:
    """The prompt up to one block: its characters, what it is known by, and the lifetime ("5m", "1h")
    that a breakpoint there asks for."""

    characters: int
    prefix: bytes
    lifetime: str | None


@dataclass(frozen=True)
class Prompt:
    """A request's prompt, block by block: tools, then system, then messages."""

    places: tuple[Place, ...]
    chars_per_token: float

    @classmethod
    def of(cls, body: dict[str, Any], chars_per_token: float = 4.0) -> Prompt:
        return cls(tuple(_places(body)), chars_per_token)

    @property
    def tokens(self) -> int:
        return self.tokens_to(len(self.places) - 1)

    def tokens_to(self, index: int) -> int:
        """The tokens up to a place; -1 is before the first."""
        characters = self.places[index].characters if index >= 0 else 0
        return int(characters / self.chars_per_token)


class PromptCache:
    """What is cached. ``now`` is a clock in seconds; without ``works`` nothing ever is."""

    def __init__(self, now: Callable[[], float], works: bool = True) -> None:
        self._now = now
        self._works = works
        self._entries: dict[bytes, tuple[str, float]] = {}  # prefix -> lifetime and its end

    def find(self, prompt: Prompt) -> int:
        """The last place that a request finds in the cache, -1 without any; what it reads lives on."""
        found = -1
        for index, place in enumerate(prompt.places):
            if place.lifetime is None:
                continue
            seen = range(index, max(-1, index - LOOK_BACK), -1)
            found = max(found, next((at for at in seen if self._holds(prompt.places[at])), -1))
        if found >= 0:
            self._write(prompt.places[found].prefix, self._entries[prompt.places[found].prefix][0])
        return found

    def keep(self, prompt: Prompt, found: int) -> dict[str, Any]:
        """Write what a request asks to keep, as its reply begins; gives the usage of its prompt."""
        written = {"5m": 0, "1h": 0}
        reached = max(found, -1)
        for index, place in enumerate(prompt.places):
            if place.lifetime is None or not self._works:
                continue
            if prompt.tokens_to(index) < LEAST_CACHED_TOKENS:
                continue
            self._write(place.prefix, place.lifetime)
            if index > reached:
                added = prompt.tokens_to(index) - prompt.tokens_to(reached)
                written[place.lifetime] += added
                reached = index
        return {
            "input_tokens": prompt.tokens - prompt.tokens_to(reached),
            "cache_read_input_tokens": prompt.tokens_to(found),
            "cache_creation_input_tokens": sum(written.values()),
            "cache_creation": {
                "ephemeral_5m_input_tokens": written["5m"],
                "ephemeral_1h_input_tokens": written["1h"],
            },
        }

    def _holds(self, place: Place) -> bool:
        _, ends_at = self._entries.get(place.prefix, ("", 0.0))
        return self._now() < ends_at

    def _write(self, prefix: bytes, lifetime: str) -> None:
        kept, _ = self._entries.get(prefix, (lifetime, 0.0))
        longest = max(lifetime, kept, key=LIFETIMES.__getitem__)
        self._entries[prefix] = (longest, self._now() + LIFETIMES[longest])


def _places(body: dict[str, Any]) -> Iterator[Place]:
    blocks = list(_blocks(body))
    automatic = body.get("cache_control")
    # The choice of a tool and thinking are part of what messages are cached by, not of what is before.
    around = json.dumps([body.get("tool_choice"), body.get("thinking")])
    known = sha256(f"{body['model']}{body.get('speed')}".encode())
    characters = 0
    for number, (role, block) in enumerate(blocks, 1):
        text = json.dumps(
            {name: value for name, value in block.items() if name != "cache_control"},
            ensure_ascii=False,
        )
        characters += len(text) + _beyond_text(block)
        known.update(f"{role}{around if role else ''}{text}".encode("utf-8", "surrogatepass"))
        mark = block.get("cache_control") or (automatic if number == len(blocks) else None)
        lifetime = None if mark is None else mark.get("ttl", "5m")
        yield Place(characters, known.digest(), lifetime)


def _beyond_text(block: dict[str, Any]) -> int:
    """The characters that media in a block count as beyond their base64: an image has a token for 750
    pixels, a page of a document 2,000."""
    content = block.get("content")
    found = 0
    for part in [block, *(content if isinstance(content, list) else ())]:
        if part.get("type") in ("image", "document"):
            data = base64.b64decode(part["source"]["data"])
            tokens = 2_000 * page_count(data)
            if part["type"] == "image":
                width, height = Image.open(BytesIO(data)).size
                tokens = width * height // 750
            found += 4 * tokens - len(part["source"]["data"])
    return found


def page_count(data: bytes) -> int:
    """The pages of a PDF, 0 of an image."""
    return len(PdfReader(BytesIO(data)).pages) if data.startswith(b"%PDF") else 0


def _blocks(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for tool in body.get("tools", []):
        yield "", tool
    system = body.get("system") or []
    for block in [_text(system)] if isinstance(system, str) else system:
        yield "", block
    for message in body["messages"]:
        content = message["content"]
        for block in [_text(content)] if isinstance(content, str) else content:
            yield message["role"], block


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
