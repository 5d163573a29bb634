"""What a tool printed becomes text that is harmless, never blank, and never too long."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.core.text import plain
from runner.settings import Secrets, tool_environment
from runner.tools.checking import input_problem
from runner.tools.output import MOST_CHARACTERS, present


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n", "a\tb\n"),
        ("10%\r20%\r\n", "10%\n20%\n"),
        ("\x00\x07\x1b[0m\x7f\x9b", "\\x00\\x07\\x1b[0m\\x7f\\x9b"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\ufffd"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    printed=st.one_of(
        st.binary(),
        st.builds(
            lambda piece, times: piece * times, st.binary(min_size=1), st.integers(1, 40_000)
        ),
    ),
    cut=st.booleans(),
    ending=st.sampled_from(["", "Exit code 1"]),
)
def test_any_bytes_become_text_within_the_cap(
    tmp_path: Path, printed: bytes, cut: bool, ending: str
) -> None:
    copy = tmp_path / "outputs" / "call.txt"
    text, whole = present(printed, copy, cut=cut, ending=ending)
    assert len(text) <= MOST_CHARACTERS
    assert text.strip()
    assert plain(text) == text
    assert text.endswith(ending)
    assert (whole is None) == (str(copy) not in text)
    if whole is not None:
        assert copy.read_bytes() == whole == printed.decode("utf-8", "replace").encode()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no file of more bytes: the kernel refuses the rest, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def test_copy_that_cannot_be_written_costs_nothing_but_itself(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file in the way of the folder")
    copy = tmp_path / "outputs" / "call.txt"
    printed = b"line\n" * 20_000
    text, whole = present(printed, copy, ending="Exit code 1")
    assert whole == printed
    assert str(tmp_path) not in text
    assert "no copy to read could be written (File exists)" in text
    assert text.startswith("line\nline\n")
    assert text.endswith("line\nExit code 1")
    assert len(text) <= MOST_CHARACTERS


def test_copy_that_was_half_written_leaves_nothing(tmp_path: Path) -> None:
    copy = tmp_path / "outputs" / "call.txt"
    with largest_file(1_000):
        text, whole = present(b"line\n" * 20_000, copy)
    assert "no copy to read could be written (File too large)" in text
    assert whole is not None
    assert list(copy.parent.iterdir()) == []


def test_environment_loses_settings_and_secrets_by_name_and_by_value() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/root",
        "RUNNER_HOME": "x",
        "ANTHROPIC_MODEL": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "github_token": "x",
        "DB_PASSWORD": "x",
        "GOOGLE_APPLICATION_CREDENTIALS": "x",
        "SENTRY_DSN": "x",
        "DATABASE_URL": "x",
        "CELERY_REDIS_URL": "x",
        "PGHOST": "x",
        "COPY": "sk-1",
    }
    assert tool_environment(environ, Secrets(["sk-1", ""])) == {"PATH": "/bin", "HOME": "/root"}


def test_environment_loses_passwords_by_their_shorter_names_and_keeps_names_like_them() -> None:
    secret = """
        DBPASS DB_PASS PASS pass MYSQL_PASS_RO PGPASSFILE DB_PWD DBPWD MYSQL_PWD HTTP_AUTH
        BASIC_AUTH _auth DOCKER_AUTH_CONFIG AUTHORIZATION NPM_CONFIG__AUTH OAUTH_CLIENT DSN DSN_READER
        AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN AWS_BEARER_TOKEN_BEDROCK AWS_SHARED_CREDENTIALS_FILE
        AWS_WEB_IDENTITY_TOKEN_FILE GOOGLE_APPLICATION_CREDENTIALS CLOUDSDK_AUTH_ACCESS_TOKEN
        SENTRY_DSN COOKIE SESSION_COOKIE COOKIE_JAR DB_CREDS CI_JWT CELERY_BROKER_URL MONGODB_URI
        AZURE_STORAGE_CONNECTION_STRING"""
    harmless = """
        PATH PWD OLDPWD SSH_AUTH_SOCK SSH_ASKPASS XAUTHORITY GIT_AUTHOR_NAME AUTHOR COMPASS BYPASS_CACHE
        PASSENGER_ROOT INIT_CWD USER"""
    plain = dict.fromkeys(harmless.split(), "x")
    assert tool_environment(plain | dict.fromkeys(secret.split(), "x")) == plain


def test_environment_loses_what_steers_a_shell() -> None:
    steering = [
        *("BASH_ENV", "ENV", "BASH_FUNC_git%%", "BASH_FUNC_a\nb%%", "PROMPT_COMMAND", "SHELLOPTS"),
        *("BASHOPTS", "PS4", "CDPATH", "GLOBIGNORE"),
    ]
    plain = {"PATH": "/bin", "BASH": "/bin/bash", "VIRTUAL_ENV": "/v", "ENVIRONMENT": "test"}
    assert tool_environment(plain | dict.fromkeys(steering, "x")) == plain


def test_invalid_input_is_told_place_by_place_and_shortly() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "integer"}},
            "b": {"type": "string"},
        },
        "required": ["b"],
    }
    problem = input_problem("Tool", schema, {"a": [1, "x" * 10_000]})
    assert problem is not None
    assert "a.1: 'xxx" in problem
    assert "'b' is a required property" in problem
    assert len(problem) < 1_000


@pytest.mark.slow
def test_schemas_that_come_and_go_are_told_apart() -> None:
    for number in range(1_000):
        schema = {"type": "object", "required": [str(number)]}
        assert input_problem("Tool", schema, {str(number): 1}) is None
        assert input_problem("Tool", schema, {}) is not None
