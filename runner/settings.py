"""The settings of a process, from options and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

HOME = "RUNNER_HOME"
DATABASE_URL = "RUNNER_DATABASE_URL"
REDIS_URL = "RUNNER_REDIS_URL"
PRICES = "RUNNER_PRICES"
LOG_FORMAT = "RUNNER_LOG_FORMAT"
WEB_URL = "RUNNER_WEB_URL"
LOG_FORMATS = ("text", "json")

# PGPASSWORD is read by libpq: https://www.postgresql.org/docs/current/libpq-envars.html
_KEYS = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "PGPASSWORD"),
    *(
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_BEARER_TOKEN_BEDROCK",
    ),
)
_DEFAULT_HOME = ".runner"
_LONG = 16  # characters of a secret that no other text contains by chance
# User and password in a URL, up to the first @ and up to the last: only a malformed URL has two.
_USER_PARTS = [re.compile(rf"[\w+.-]+://(?!/)([^:]*):({end})@") for end in (".+?", ".+")]

# The socket of the agent is no secret, and git over SSH needs it, as it needs GIT_ASKPASS.
_HARMLESS_NAMES = frozenset(("PWD", "OLDPWD", "SSH_AUTH_SOCK"))
_WITHHELD_NAMES = re.compile(
    r"^(RUNNER_|ANTHROPIC_|PG)"
    r"|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PASSFILE|CREDENTIAL|CREDS|COOKIE|BEARER|JWT"
    r"|(?<!ASK)(?<!BY)(?<!COM)PASS(?![A-Z])|PWD|AUTH(?!OR)|AUTHORIZ"  # not GIT_AUTHOR_NAME, XAUTHORITY
    r"|DATABASE_URL|REDIS_URL|BROKER_URL|AMQP_URL|MONGO(DB)?_UR[IL]|CONNECTION_?STRING|DSN"
    r"|^OTEL_EXPORTER_",  # headers and addresses may hold a password
    re.IGNORECASE,
)
# Variables that make bash or sh run or redefine something around a command. Rules trust that the
# name is the program: https://www.gnu.org/software/bash/manual/html_node/Bash-Variables.html.
_STEERING_NAMES = re.compile(
    r"^(BASH_FUNC_.*|BASH_ENV|ENV|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|PS4|CDPATH|GLOBIGNORE)$",
    re.DOTALL,
)


def looks_secret(name: str) -> bool:
    """True if the name of a variable looks like a setting of Runner's or a secret: tools do not see it."""
    return name not in _HARMLESS_NAMES and _WITHHELD_NAMES.search(name) is not None


def user_home() -> str | None:
    """Return the home of this process's user, symlinks resolved; None if it has none."""
    home = os.path.expanduser("~")  # noqa: PTH111 (Path.expanduser raises where there is none)
    return os.path.realpath(home) if Path(home).is_absolute() else None


class Secrets:
    """Texts that must not reach a tool, the store or a terminal: credentials, and the user and
    password of Runner's own URLs. A long one is recognised anywhere; a short one, which may be an
    ordinary word, as a whole text, a quoted string, or behind an ``=``."""

    def __init__(self, credentials: Iterable[str] = (), urls: Iterable[str] = ()) -> None:
        found, users = set(filter(None, credentials)), set()
        for match in filter(None, (part.match(url) for url in urls for part in _USER_PARTS)):
            user, password = match.groups()
            for form in (password, unquote(password), quote(unquote(password), safe="")):
                found.add(form)
                users.add(f"{user}:{form}")
        short = _any(secret for secret in found if len(secret) < _LONG)
        patterns = (
            f"(?<=://)(?:{_any(users)})(?=@)",
            _any(secret for secret in found if len(secret) >= _LONG),
            rf"\A(?:{short})\Z",
            rf"""(?<=["'`])(?:{short})(?=\\?["'`])""",
            rf"""(?<==)(?:{short})(?![^\s"'`,;&)}}\]\\])""",
        )
        self._pattern = re.compile("|".join(patterns))

    def hide(self, text: str) -> str:
        return self._pattern.sub("…", text)

    def are_in(self, text: str) -> bool:
        """True if ``hide`` would change the text."""
        return self._pattern.search(text) is not None


def _any(texts: Iterable[str]) -> str:
    """A pattern that matches any of the texts, the longest first; nothing if there are none."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path  # an absolute folder for the database, copies of workspaces and long outputs
    database_url: str = field(repr=False)  # a SQLAlchemy URL
    redis_url: str | None = field(default=None, repr=False)  # None: an embedded server is started
    prices: Path | None = None  # an absolute path; changes the prices that Runner comes with
    log_format: str = LOG_FORMATS[0]  # of the lines that workers log
    web_url: str | None = (
        None  # where people open the pages of `runner web`, without a "/" at its end
    )
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
        log_format: str | None = None,
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
            log_format=log_format or environment.get(LOG_FORMAT) or LOG_FORMATS[0],
            web_url=environment.get(WEB_URL, "").rstrip("/") or None,
            keys=tuple(environment[name] for name in _KEYS if environment.get(name)),
        )

    def environment(self) -> dict[str, str]:
        """The same settings for another process of ours."""
        names = {HOME: str(self.home), DATABASE_URL: self.database_url}
        names[LOG_FORMAT] = self.log_format
        names |= {REDIS_URL: self.redis_url} if self.redis_url else {}
        names |= {WEB_URL: self.web_url} if self.web_url else {}
        return names | ({PRICES: str(self.prices)} if self.prices else {})

    def page(self, kind: Literal["jobs", "runs"], id: str) -> str | None:
        """Return the address of a job's or run's page; None without ``RUNNER_WEB_URL``."""
        return f"{self.web_url}/{kind}/{id}" if self.web_url else None

    def secrets(self) -> Secrets:
        """Secrets to hide from tools, the store and terminals."""
        return Secrets(self.keys, (self.database_url, self.redis_url or ""))


def tool_environment(environ: Mapping[str, str], secrets: Secrets | None = None) -> dict[str, str]:
    """Return the environment that tools run in: variables whose names do not look like a setting of
    Runner's or a secret, and steer no shell, and whose values contain no secret."""
    return {
        name: value
        for name, value in environ.items()
        if not looks_secret(name)
        and not _STEERING_NAMES.search(name)
        and not (secrets and secrets.are_in(value))
    }
