"""The pages over real HTTP, on a real database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from runner.app.handle import App
from runner.settings import Settings
from runner.store.database import Database
from runner.web import asking, server
from runner.web.safety import Access
from tests.web.browser import Browser


class Site:
    """A server of pages in this process."""

    def __init__(self, app: App, **changes: Any) -> None:
        self.app = app
        self._listener = server.listen("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        options: dict[str, Any] = {
            "hosts": frozenset({f"127.0.0.1:{self.port}"}),
            "origins": frozenset({self.origin}),
            "home": self.origin,
            "auth": "local",
            "person": "ada",
            "cookie": "runner",
        }
        self.access = Access(**{**options, **changes})
        self.told: list[str] = []
        self._cookie = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 60
        while not self.told and time.monotonic() < deadline:
            time.sleep(0.005)

    def _serve(self) -> None:
        server.serve(self.app, self.access, self._listener, self.told.append, self._stop)

    @property
    def link(self) -> str:
        return self.told[0].removeprefix(self.origin)

    def stranger(self) -> Browser:
        return Browser(self.origin)

    def browser(self) -> Browser:
        """A browser that is logged in."""
        browser = self.stranger()
        if not self._cookie:
            assert browser.get(self.link).status == 303
            self._cookie = browser.cookie
        browser.cookie = self._cookie
        return browser

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        for thread in threading.enumerate():
            if thread.name in ("live", "search"):  # they would use the database after its end
                thread.join(60)
        self._listener.close()


@pytest.fixture
def app(database: Database, tmp_path: Path) -> App:
    url = str(database.url.render_as_string(hide_password=False))
    return App(Settings(home=tmp_path / "home", database_url=url), database)


@pytest.fixture
def open_site(app: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    """Opens a site, with other ``Access`` if the test wants it."""
    monkeypatch.setattr(asking, "_PATIENCE_SECONDS", 60.0)  # else a slow search refreshes its page
    with ExitStack() as opened:

        def open_one(**changes: Any) -> Site:
            site = Site(app, **changes)
            opened.callback(site.close)
            return site

        yield open_one


@pytest.fixture
def site(open_site: Callable[..., Site]) -> Site:
    return open_site()


@pytest.fixture
def browser(site: Site) -> Browser:
    return site.browser()
