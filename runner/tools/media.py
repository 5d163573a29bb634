"""Images, PDF documents and notebooks of Read and MCP servers, made fit for the API.

With the extra ``images`` a child process opens them, scales images down and cuts out pages. Without it only
the header is read, and a file that the API would not take unchanged is refused.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import subprocess
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from runner.core.conversation import ToolResult
from runner.core.media import (
    MOST_DOCUMENT_BYTES,
    MOST_IMAGE_BYTES,
    MOST_SIDE,
    PDF,
    Media,
    image_header,
    page_count,
    shown_text,
)
from runner.core.text import plain
from runner.errors import HostFaultError, UsageError
from runner.ports import Interrupt, ToolCall
from runner.tools import media_child
from runner.tools.file_access import ToolFailure, explained, open_file
from runner.tools.host import Ended, Start, Starter, boot, reported

MOST_FILE_BYTES = 64 << 20
MOST_NOTEBOOK_BYTES = 16 << 20  # parsed JSON takes 25 times as much memory, in the worker itself
MOST_SHOWN = 20  # media of one result

_SUBMIT_SECONDS = 60.0

_MISSING = "the extra images is not installed here (`pip install '.[images]'` in Runner's folder)"
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"\xff\xd8\xff")
_PAGES = re.compile(r"[1-9][0-9]{0,5}(-([1-9][0-9]{0,5})?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Opener:
    """Makes media from bytes, in a child process if the extra is installed."""

    tool: str  # the tool to name in errors
    folder: Path  # where the child runs
    run_id: str
    timeout: float  # seconds
    host: Starter
    interrupt: Interrupt

    @classmethod
    def of(cls, call: ToolCall, host: Starter, interrupt: Interrupt) -> Opener:
        folder = call.surroundings.workspace or Path("/")
        return cls(call.tool.name, folder, call.run_id, call.timeout, host, interrupt)

    def image(self, data: bytes, name: str) -> Media:
        """Return an image within the API's sizes. Raises ``ToolFailure``."""
        found = image_header(data)
        if found is None:
            raise ToolFailure(
                f"{name} has no header of a PNG, JPEG, GIF or WebP: the file is broken"
            )
        media_type, width, height = found
        if not width or not height:
            raise ToolFailure(f"{name} is an image without a size: the file is broken")
        if width * height > media_child.MOST_PIXELS:
            raise ToolFailure(
                f"{name} has {width}x{height} pixels: at most "
                f"{media_child.MOST_PIXELS:,} are opened. Scale it down first."
            )
        if _is_installed("PIL"):
            about, shown = self._open(
                "image", media_type.removeprefix("image/").upper(), data, name
            )
            return Media("image", data=shown, name=name, **{"media_type": media_type, **about})
        if max(width, height) > MOST_SIDE or len(data) > MOST_IMAGE_BYTES:
            raise ToolFailure(
                f"{name} has {width}x{height} pixels and {len(data):,} bytes: the API takes at most "
                f"{MOST_SIDE}x{MOST_SIDE} and {MOST_IMAGE_BYTES:,}, and {_MISSING}. Scale it down first."
            )
        return Media("image", media_type, name, data, width, height)

    def document(self, data: bytes, name: str, pages: str) -> Media:
        """Return some pages of a PDF, all of them if ``pages`` is empty. Raises ``ToolFailure``."""
        if pages and not _PAGES.fullmatch(pages):
            raise ToolFailure(f'pages: {pages!r} is not a range like "1-5" or "3"', "invalid_input")
        if _is_installed("pypdf"):
            about, shown = self._open("document", pages, data, name)
            called = f"{name}, pages {about['first']} to {about['last']} of {about['count']}"
            return Media("document", PDF, called, shown, pages=about["pages"])
        count = page_count(data)
        too_much = len(data) > MOST_DOCUMENT_BYTES or not 1 <= count <= media_child.MOST_PAGES
        if pages or too_much or b"/Encrypt" in data:
            raise ToolFailure(
                f"{name}: only a small PDF without encryption can be shown, and only whole: {_MISSING}"
            )
        return Media("document", PDF, name, data, pages=count)

    def _open(
        self, action: str, wanted: str, data: bytes, name: str
    ) -> tuple[dict[str, Any], bytes]:
        command = boot(media_child.__name__, action, wanted, site=True)
        start = Start(command, self.folder, self.run_id, self.timeout, stdin=data)
        outcome, told, _ = reported(self.tool, start, self.host, self.interrupt)
        if outcome != "succeeded":
            raise ToolFailure(f"{name} {plain(told.decode('utf-8', 'replace'))}")
        about, _, shown = told.partition(b"\n")
        return json.loads(about), shown


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def is_media(beginning: bytes) -> bool:
    """True if a file with this beginning is shown as an image or a document, whatever its name."""
    is_webp = beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP"
    return beginning.startswith((*_BEGINNINGS, b"%PDF-")) or is_webp


def read_media(file: BufferedReader, path: str, pages: str, opener: Opener) -> ToolResult:
    """Return the result of a Read of an image or a PDF. Raises ``ToolFailure``."""
    data, name = read_whole(file, path), path.rpartition("/")[2]
    if data.startswith(b"%PDF-"):
        document = opener.document(data, name, pages)
        return ToolResult(f"{plain(path)}: a PDF document", media=(document,))
    image, told = opener.image(data, name), f"{plain(path)}: an image"
    if image.data != data:
        _, width, height = image_header(data) or ("", 0, 0)
        told += f", its {width}x{height} pixels shown as {image.width}x{image.height}"
    return ToolResult(told, media=(image,))


def media_of_file(path: Path) -> Media:
    """Return the image or PDF in a file, for a submission. Raises ``UsageError``."""
    opener = Opener("submit", Path("/"), "", _SUBMIT_SECONDS, _Alone(), Interrupt())
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a folder that is closed to us
        raise UsageError(f"{plain(str(path))} does not exist, or is not a file")
    try:
        real = os.path.realpath(path)
        with explained(str(path)), open(open_file(real, str(path)), "rb") as file:
            if is_media(file.peek(16)):
                (media,) = read_media(file, str(path), "", opener).media
                return media
    except ToolFailure as failure:
        raise UsageError(plain(str(failure))) from failure
    raise UsageError(f"{plain(str(path))} is not a PNG, JPEG, GIF, WebP or PDF")


class _Alone:
    """Starts processes where no worker, and so no tool host, runs."""

    def call(self, start: Start, interrupt: Interrupt) -> Ended:
        try:
            done = subprocess.run(
                start.arguments,
                input=start.stdin,
                capture_output=True,
                cwd=start.folder,
                timeout=start.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ended("timed_out")
        return Ended("exited", done.returncode, done.stdout, done.stderr)


def read_whole(file: BufferedReader, path: str, most: int = MOST_FILE_BYTES) -> bytes:
    """Return the bytes of a file. Raises ``ToolFailure`` if they are too many for memory."""
    data = file.read(most + 1)
    if len(data) > most:
        raise ToolFailure(f"{path} is larger than {most:,} bytes: make it smaller first")
    return data


def decoded_image(data: Any, name: str, opener: Opener) -> Media | str:
    """Return an image from its base64, or a line that says why it is not shown. A broken image is no error,
    because the call that made it has run and is not repeated."""
    try:
        decoded = base64.b64decode("".join(data))
    except (TypeError, ValueError):
        return f"[{name}: not shown: its bytes are no base64]"
    try:
        return opener.image(decoded, name)
    except (ToolFailure, HostFaultError) as failure:
        return f"[image not shown: {failure}]"


def notebook_cells(data: bytes, path: str, opener: Opener) -> tuple[str, tuple[Media, ...]]:
    """Return a notebook's cells with their outputs as text, and the images among the outputs. Raises
    ``ToolFailure`` if it is no notebook (https://nbformat.readthedocs.io/en/latest/format_description.html)."""
    try:
        cells = json.loads(data)["cells"]
        shown = [part for number, cell in enumerate(cells, 1) for part in _cell(cell, number)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ToolFailure(f"{path} is not a notebook in format 4: read it with Bash") from error
    media: list[Media] = []
    texts: list[str] = []
    opened = 0  # each costs a process, even if it fails
    for part in shown:
        if isinstance(part, str):
            texts.append(part)
        elif opened == MOST_SHOWN:
            texts.append("[image not shown: there are too many]")
        else:
            name, encoded = part
            opened += 1
            image = decoded_image(encoded, name, opener)
            if isinstance(image, Media):
                media.append(image)
                image = shown_text([image.block()])
            texts.append(image)
    return "\n".join(texts) or "(a notebook without cells)", tuple(media)


def _cell(cell: Any, number: int) -> list[str | tuple[str, Any]]:
    """Return the shown parts of a cell: texts, and images as a name and base64."""
    parts: list[str | tuple[str, Any]] = [f"--- cell {number}, {cell['cell_type']} ---"]
    parts.append("".join(cell["source"]).rstrip("\n"))
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        image = next((kind for kind in ("image/png", "image/jpeg") if kind in data), None)
        text = output.get("text") or data.get("text/plain") or ""
        if output["output_type"] == "error":
            text = [f"{output['ename']}: {output['evalue']}"]
        parts.append(f"--- output of cell {number} ---")
        if image is not None:
            parts.append((f"output of cell {number}", data[image]))
        elif text:
            parts.append("".join(text).rstrip("\n"))
    return parts
