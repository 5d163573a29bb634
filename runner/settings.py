"""The settings of a process, from options and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

HOME = "RUNNER_HOME"
DATABASE_URL = "RUNNER_DATABASE_URL"
REDIS_URL = "RUNNER_REDIS_URL"
PRICES = "RUNNER_PRICES"

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_DEFAULT_HOME = ".runner"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings."""

    home: Path  # an absolute folder for the database, copies of workspaces and long outputs
    database_url: str = field(repr=False)  # a SQLAlchemy URL
    redis_url: str | None = field(default=None, repr=False)  # None: an embedded server is started
    prices: Path | None = None  # an absolute path; changes the prices that Runner comes with
    # The credentials in the environment, which nothing else may show.
    keys: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def load(
        cls,
        environment: Mapping[str, str] = os.environ,
        *,
        home: str | None = None,
        database_url: str | None = None,
        redis_url: str | None = None,
    ) -> Settings:
        """Load the settings: an option, else the environment, else the default."""
        folder = Path(home or environment.get(HOME) or _DEFAULT_HOME).expanduser().absolute()
        prices = environment.get(PRICES)
        default_url = "sqlite:///" + quote(str(folder / "runner.db"))
        return cls(
            home=folder,
            database_url=database_url or environment.get(DATABASE_URL) or default_url,
            redis_url=redis_url or environment.get(REDIS_URL) or None,
            prices=Path(prices).expanduser().absolute() if prices else None,
            keys=tuple(environment[name] for name in _KEYS if environment.get(name)),
        )

    def environment(self) -> dict[str, str]:
        """The same settings for another process of ours."""
        names = {HOME: str(self.home), DATABASE_URL: self.database_url}
        names |= {REDIS_URL: self.redis_url} if self.redis_url else {}
        return names | ({PRICES: str(self.prices)} if self.prices else {})

    def secrets(self) -> tuple[str, ...]:
        """Secrets to hide from tools, the store and terminals: keys, passwords and URLs with
        passwords; the longest first, so that all of one is hidden."""
        found = set(self.keys)
        for url in (self.database_url, self.redis_url or ""):
            with suppress(ValueError):  # not a URL: opening it says so
                if password := urlsplit(url).password:
                    found |= {url, password, unquote(password)}
        return tuple(sorted(found, key=len, reverse=True))

    def hide(self, text: str) -> str:
        """Return a text without the secrets in it."""
        for secret in self.secrets():
            text = text.replace(secret, "…")
        return text
