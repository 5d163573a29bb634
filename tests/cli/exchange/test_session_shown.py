"""An imported session is shown as a run of ours is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.app.handle import App
from runner.app.run_page import head_of
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.exchange.samples import SESSION, text, use, usual
from tests.store.exchange.files import SETTINGS

Command = Callable[..., Result]


@pytest.fixture
def session(folder: Path) -> Path:
    made = usual()
    png = {"type": "base64", "media_type": "image/png", "data": "aGk=" * 99}
    made.user([{"type": "image", "source": png}, text("Look.")], origin={"kind": "human"})
    prompt = {"type": "queued_command", "prompt": "And the tests.", "commandMode": "prompt"}
    made.add("attachment", attachment=prompt | {"origin": {"kind": "human"}})
    made.reply("msg_3", text("word " * 400), use("toolu_3", "Bash", command="rm"), output_tokens=1)
    made.result("toolu_3", "No.", is_error=True, toolDenialKind="user-rejected")
    made.user("<task-notification>done</task-notification>", origin={"kind": "task-notification"})
    made.add("system", subtype="local_command", content="<command-name>/model</command-name>")
    path = folder / f"{SESSION}.jsonl"
    path.write_bytes(made.file().getvalue())
    return path


def test_the_transcript_has_what_is_to_be_known(command: Command, session: Path) -> None:
    imported = command("import", str(session))
    assert "1 of its replies state fewer tokens" in imported.err
    shown = command("transcript", "Mending the cart").out
    for words in (
        "title      Mending the cart",
        f"session    {SESSION}",
        "too low    1 reply states fewer tokens of output than its text has",
        "(image, image/png, about 297 bytes)",
        "And the tests.",
        "[denied: by the user: No.]",
        "[by a machine]\n  <task-notification>done",
        "local command: <command-name>/model</command-name>",
    ):
        assert words in shown
    assert "aGk=" not in shown
    refused = command("transcript", SESSION, "--as-sent", "1")
    assert (refused.code, "does not say what Claude Code sent" in refused.err) == (2, True)


@pytest.mark.slow
def test_lists_pages_and_searches_have_the_title(
    command: Command, session: Path, database: Database
) -> None:
    (run,) = command("import", str(session), "--json").json["runs"]
    assert "Mending the cart" in command("list", run["job_id"]).out
    facts = dict(head_of(App(SETTINGS, database), run["run_id"]).facts)
    assert (facts["title"], facts["session"]) == ("Mending the cart", SESSION)
    for words, role, count in (
        ("Mending cart", None, 1),
        ("tests", "person", 1),
        ("tests", "machine", 0),
        ("notification", "machine", 1),
        ("command model", None, 1),
    ):
        options = ("--role", role) if role else ()
        found = command("search", *words.split(), *options, "--format", "json").json
        assert len(found) == count, words
    denied = command("audit", "decisions", "--format", "json").json
    assert [row["why"] for row in denied if row["verdict"] == "denied"]
