"""Sending notices: a real HTTP server, a real shell, and programs of the desktop."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from runner.core.notices import Channel, Notify, about, with_link
from runner.tools.notices import NotSentError, send

NOTICE = about("done", "job_1", "nightly", "done: 2 <b>succeeded</b> & more")


class Hook:
    """A webhook that keeps what it gets, and answers as it is told to."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.got.append((dict(self.headers), body))
                self.send_response(hook.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/secret-path"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.close()


def deliver(
    channel: Channel, notify: Notify, notice: dict[str, Any] = NOTICE, **environ: str
) -> None:
    send(channel, notify, "job_1/done", notice, environ, {"PATH": os.environ["PATH"]})


def test_a_webhook_gets_the_notice_signed(hook: Hook) -> None:
    notify = Notify(webhook="RUNNER_HOOK", secret="RUNNER_KEY")
    deliver("webhook", notify, RUNNER_HOOK=hook.url, RUNNER_KEY="k3y")
    ((headers, body),) = hook.got
    assert json.loads(body) == NOTICE
    assert headers["Runner-Notice"] == "job_1/done"
    signed = headers["Runner-Timestamp"].encode() + b"." + body
    expected = hmac.new(b"k3y", signed, hashlib.sha256).hexdigest()
    assert headers["Runner-Signature"] == f"sha256={expected}"


def test_slack_gets_a_message_in_which_nothing_is_markup(hook: Hook) -> None:
    deliver("webhook", Notify(webhook="RUNNER_HOOK", format="slack"), RUNNER_HOOK=hook.url)
    ((headers, body),) = hook.got
    expected = "nightly: done: 2 &lt;b&gt;succeeded&lt;/b&gt; &amp; more"
    assert json.loads(body) == {"text": expected}
    assert "Runner-Signature" not in headers


def test_slack_gets_a_link_to_the_page(hook: Hook) -> None:
    notice = with_link(about("done", "job_1", "nightly", "done"), "https://runner.example.com")
    deliver("webhook", Notify(webhook="RUNNER_HOOK", format="slack"), notice, RUNNER_HOOK=hook.url)
    ((_, body),) = hook.got
    assert json.loads(body)["text"] == "nightly: done <https://runner.example.com/jobs/job_1>"


@pytest.mark.parametrize("status", [302, 404, 500])
def test_an_answer_that_is_no_success_is_an_error_that_names_no_address(
    hook: Hook, status: int
) -> None:
    hook.status = status
    with pytest.raises(NotSentError) as refused:
        deliver("webhook", Notify(webhook="RUNNER_HOOK"), RUNNER_HOOK=hook.url)
    assert str(refused.value) == f"the webhook answered {status}"
    assert len(hook.got) == 1


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "the environment variable RUNNER_HOOK is not set for this worker"),
        (
            {"RUNNER_HOOK": "file:///etc/passwd"},
            "the address in RUNNER_HOOK does not begin with https://",
        ),
        (
            {"RUNNER_HOOK": "http://127.0.0.1:1/secret"},
            "the webhook did not answer (ConnectionRefusedError)",
        ),
        ({"RUNNER_HOOK": "http://h/sec ret"}, "the webhook did not answer (InvalidURL)"),
        ({"RUNNER_HOOK": "http://[secret"}, "the webhook did not answer (ValueError)"),
    ],
)
def test_a_webhook_that_cannot_be_reached_says_why(environ: dict[str, str], words: str) -> None:
    with pytest.raises(NotSentError) as refused:
        deliver("webhook", Notify(webhook="RUNNER_HOOK"), **environ)
    assert str(refused.value) == words


def test_a_command_gets_the_notice_and_no_address(tmp_path: Path) -> None:
    command = f"cat > {tmp_path}/told; env > {tmp_path}/env"
    deliver("command", Notify(command=command), RUNNER_HOOK="https://hooks.example/secret")
    assert json.loads((tmp_path / "told").read_text()) == NOTICE
    assert "hooks.example" not in (tmp_path / "env").read_text()
    with pytest.raises(NotSentError, match="the command ended with exit code 3"):
        deliver("command", Notify(command="exit 3"))


def test_the_desktop_gets_the_words_as_arguments_never_through_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/shown\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    deliver("desktop", Notify(desktop=True))
    shown = (tmp_path / "shown").read_text().splitlines()
    assert shown == ["--app-name=Runner", "--", "Runner: nightly", NOTICE["text"]]
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotSentError, match="notify-send is not installed here"):
        deliver("desktop", Notify(desktop=True))
