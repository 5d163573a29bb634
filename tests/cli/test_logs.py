"""What workers log on stderr."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest

from runner.cli.log import log_to_stderr
from runner.errors import UsageError
from runner.logs import log_event
from runner.settings import LOG_FORMATS, Settings
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


def log_one(settings: Settings, capsys: pytest.CaptureFixture[str], **fields: object) -> str:
    """The line that an event with these fields makes."""
    log_to_stderr(settings, logging.INFO)
    log_event(logging.getLogger("runner.engine"), "attempt began", **fields)
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_fields_follow_the_message_and_what_is_not_plain_is_quoted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = log_one(Settings.load({}), capsys, run="run_1", item='a "b"', seconds=0.25, empty="")
    time, level, rest = line.removeprefix("runner: ").split(" ", 2)
    assert datetime.fromisoformat(time).tzinfo is not None
    assert level == "INFO"
    assert rest == r'attempt began run=run_1 item="a \"b\"" seconds=0.25 empty=""'


@pytest.mark.parametrize("log_format", LOG_FORMATS)
def test_a_hostile_field_makes_no_second_line_and_steers_nothing(
    capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    settings = Settings.load({"RUNNER_LOG_FORMAT": log_format, "ANTHROPIC_API_KEY": "k" * 20})
    line = log_one(settings, capsys, item=f"{HOSTILE}\nrunner: ERROR all is lost", key="k" * 20)
    assert not any(map(steers, line))
    assert "k" * 20 not in line


def test_json_lines_have_time_level_message_and_the_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = json.loads(log_one(Settings.load({}, log_format="json"), capsys, item=HOSTILE, turns=3))
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {"level": "info", "message": "attempt began", "item": HOSTILE, "turns": 3}


def test_a_traceback_is_a_part_of_its_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(Settings.load({}, log_format="json"), logging.INFO)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("runner").exception("failed\n")
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert line["exception"].splitlines()[-1] == "ValueError: no"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="RUNNER_LOG_FORMAT='xml': use text or json"):
        log_to_stderr(Settings.load({"RUNNER_LOG_FORMAT": "xml"}), logging.INFO)
