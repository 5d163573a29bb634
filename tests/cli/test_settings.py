"""Settings: an option, else the environment, else the default."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from runner.settings import Settings, tool_environment
from runner.store.database import Database
from tests.cli.conftest import Result


def test_state_lives_in_the_current_directory_by_default(folder: Path) -> None:
    settings = Settings.load({})
    assert settings.home == folder / ".runner"
    assert settings.database_url == f"sqlite:///{folder}/.runner/runner.db"
    assert settings.redis_url is None
    assert settings.prices is None


def test_environment_says_where_and_options_overrule_it(folder: Path) -> None:
    environment = {
        "RUNNER_HOME": "state",
        "RUNNER_REDIS_URL": "redis://a",
        "RUNNER_DATABASE_URL": "",
    }
    settings = Settings.load(environment)
    assert settings.home == folder / "state"
    assert settings.database_url == f"sqlite:///{folder}/state/runner.db"
    settings = Settings.load(environment, home="/other", redis_url="redis://b")
    assert (settings.home, settings.redis_url) == (Path("/other"), "redis://b")


def test_another_process_gets_the_same_settings() -> None:
    settings = Settings.load(
        {
            "RUNNER_HOME": "state",
            "RUNNER_REDIS_URL": "redis://a",
            "RUNNER_PRICES": "prices.toml",
            "RUNNER_WEB_URL": "https://runner.example.com/",
        }
    )
    assert settings.page("jobs", "job_1") == "https://runner.example.com/jobs/job_1"
    assert settings.prices is not None
    assert settings.prices.is_absolute()
    os.chdir("/")
    assert Settings.load(settings.environment()) == settings


POSTGRES = "postgresql://runner:runner@postgres/runner"
LONG = "k3x9-f2 / 8m@0q: 7"


def test_the_default_image_s_words_survive_a_password_that_is_one_of_them() -> None:
    secrets = Settings.load({"RUNNER_DATABASE_URL": POSTGRES}).secrets()
    for text in ("HOME=/home/runner", "/home/runner", "runner: worker 1 began", "say runner"):
        assert secrets.hide(text) == text
    environment = {"HOME": "/home/runner", "COPY": POSTGRES, "SAME": "runner"}
    assert tool_environment(environment, secrets) == {"HOME": "/home/runner"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x", "…"),
        ("six axes: x, y and x", "six axes: x, y and x"),
        ("x=1&key=x&y=x", "x=1&key=…&y=…"),
        ('{"key": "x", "text": "an x"}', '{"key": "…", "text": "an x"}'),
        (r'{"in": "{\"key\": \"x\"}"}', r'{"in": "{\"key\": \"…\"}"}'),
        ("Key(value='x', size=xl)", "Key(value='…', size=xl)"),
        ("PATH=x/bin", "PATH=x/bin"),
    ],
)
def test_a_short_secret_is_hidden_where_it_is_a_whole_value(text: str, shown: str) -> None:
    assert Settings.load({"ANTHROPIC_API_KEY": "x"}).secrets().hide(text) == shown


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "PGPASSWORD"])
def test_a_long_secret_is_hidden_anywhere(name: str) -> None:
    settings = Settings.load({name: LONG})
    assert settings.secrets().hide(f"a{LONG}b") == "a…b"
    assert LONG not in repr(settings)


@pytest.mark.parametrize("password", ["x", "p%40ss", "p@ss", "a/b", "a:b", quote(LONG, safe="")])
@pytest.mark.parametrize("name", ["RUNNER_DATABASE_URL", "RUNNER_REDIS_URL"])
def test_user_and_password_of_our_urls_are_hidden_always(name: str, password: str) -> None:
    url = f"redis://me:{password}@host:1/name"
    settings = Settings.load({name: url})
    hide = settings.secrets().hide
    assert hide(f"no answer from {url}") == "no answer from redis://…@host:1/name"
    assert hide(f"password={unquote(password)}, x") == "password=…, x"
    assert password == "x" or password not in repr(settings)


@pytest.mark.parametrize("url", ["sqlite:////x:y@z/runner.db", "redis://host/0", "nonsense", "::@"])
def test_a_url_without_a_password_hides_nothing(url: str) -> None:
    secrets = Settings.load({"RUNNER_DATABASE_URL": url}).secrets()
    assert secrets.hide(f"{url} y=y, 'y'") == f"{url} y=y, 'y'"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before", "after", "both"])
def test_global_options_are_taken_before_and_after_the_command(
    command: Callable[..., Result], folder: Path, place: str
) -> None:
    chosen = ("--home", str(folder / "chosen"))
    other = ("--home", str(folder / "other"))
    arguments = {
        "before": (*chosen, "db", "upgrade"),
        "after": ("db", "upgrade", *chosen),
        "both": (*other, "db", "upgrade", *chosen),
    }[place]
    assert command(*arguments).code == 0
    assert (folder / "chosen" / "runner.db").exists()
    assert not (folder / "other").exists()


@pytest.mark.slow
def test_a_state_folder_that_cannot_be_written_is_named(folder: Path, database: Database) -> None:
    (folder / ".runner" / "runner.db").chmod(0o400)
    (folder / ".runner").chmod(0o500)
    # Root may write anywhere, unless it gives that right up.
    drop = ["setpriv", "--bounding-set=-dac_override"] if os.getuid() == 0 else []
    command = [*drop, sys.executable, "-m", "runner", "list"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    (folder / ".runner").chmod(0o700)
    assert done.returncode == 5
    assert f"{folder}/.runner/runner.db cannot be written" in done.stderr
    assert "this user must be allowed to write to it" in done.stderr
