"""The same conversation in the page of a run and in Inspect's viewer, as Chromium shows it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.environment import environment

HERE = Path(__file__).parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Milliseconds to the first byte, the end of the HTML, and whatever was loaded, as the browser counts them.
_LOADED = """() => {
  const all = performance.getEntriesByType("resource");
  const [page] = performance.getEntriesByType("navigation");
  return [page.responseStart, [page, ...all].reduce((sum, each) => sum + each.encodedBodySize, 0)];
}"""


@dataclass(frozen=True)
class Shown:
    """Times and size of a page that a browser with an empty cache opened."""

    first_byte: float  # seconds
    until_shown: float  # seconds until a message is to be read
    bytes: int  # of everything that was loaded


def show(address: str, words: str, looks: int, cookie: str = "") -> Shown:
    """Open a page so many times, each in a new browser context, until the words are to be read; the fastest
    of each number counts. ``cookie``: as ``name=value``."""
    from playwright.sync_api import sync_playwright

    found: list[Shown] = []
    with sync_playwright() as playwright:
        options = ["--disable-dev-shm-usage", "--disable-gpu"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []
        browser: Any = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        for _ in range(looks + 1):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            if cookie:
                name, _, value = cookie.partition("=")
                context.add_cookies([{"name": name, "value": value, "url": address}])
            page = context.new_page()
            page.set_default_timeout(120_000)
            began = time.perf_counter()
            page.goto(address, wait_until="commit")
            page.get_by_text(words).first.wait_for()
            seconds = time.perf_counter() - began
            first_byte, size = page.evaluate(_LOADED)
            found.append(Shown(first_byte / 1000, seconds, size))
            context.close()
        browser.close()
    del found[0]  # it warmed up the server
    return Shown(
        min(each.first_byte for each in found),
        min(each.until_shown for each in found),
        found[0].bytes,
    )


@contextmanager
def viewer(folder: Path, conversation: Mapping[str, Any]) -> Iterator[str]:
    """Serve a conversation in Inspect's viewer, and give its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [environment("viewer", HERE), HERE / "side.py", folder, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(conversation).encode())
            process.stdin.close()
            _wait_for(f"http://127.0.0.1:{port}/", process)
            yield f"http://127.0.0.1:{port}/#/logs/run.eval"
        finally:
            process.terminate()


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.2)  # it makes the log first
        else:
            return
    raise OSError("Inspect's viewer did not start: see what it printed")
