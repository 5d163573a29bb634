"""What workers log on stderr."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from runner.cli.options import log_to_stderr
from runner.settings import Settings
from tests.cli.test_terminal import HOSTILE, steers


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("runner")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def test_secrets_and_control_characters_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings.load({"RUNNER_REDIS_URL": "redis://:hunter2@cache/0"})
    log_to_stderr(settings, logging.INFO)
    logging.getLogger("runner.engine").warning("no answer from %s: %s", settings.redis_url, HOSTILE)
    err = capsys.readouterr().err
    assert "no answer from redis://…@cache/0: " in err
    assert not any(map(steers, err.replace("\n", "")))


def test_libraries_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(Settings.load({}), logging.INFO)
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("trouble")
    logging.getLogger("runner.engine").info("ours")
    err = capsys.readouterr().err
    assert "chatter" not in err
    assert "trouble" in err
    assert "ours" in err
