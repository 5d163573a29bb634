"""Settings: an option, else the environment, else the default."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.settings import Settings
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
        {"RUNNER_HOME": "state", "RUNNER_REDIS_URL": "redis://a", "RUNNER_PRICES": "prices.toml"}
    )
    assert settings.prices is not None
    assert settings.prices.is_absolute()
    os.chdir("/")
    assert Settings.load(settings.environment()) == settings


def test_secrets_are_the_keys_and_what_holds_a_password() -> None:
    settings = Settings.load(
        {
            "ANTHROPIC_API_KEY": "sk-1",
            "ANTHROPIC_AUTH_TOKEN": "token",
            "RUNNER_DATABASE_URL": "postgresql://me:pass%20word@db/runner",
            "RUNNER_REDIS_URL": "redis://cache:6379/0",
        }
    )
    assert set(settings.secrets()) == {
        "sk-1",
        "token",
        "postgresql://me:pass%20word@db/runner",
        "pass%20word",
        "pass word",
    }
    assert not any(secret in repr(settings) for secret in settings.secrets())


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
