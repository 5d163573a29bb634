"""An imported session is shown as a run of ours is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.app.handle import App
from runner.app.run_page import head_of, tree_rows
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.exchange.samples import SESSION, Session, text, use, usual
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
    made.user("Well?", origin={"kind": "human"})
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
        "[by a person]\n  Look.\n  And the tests.",
        "[denied: by the user: No.]",
        "[by a machine]\n  <task-notification>done</task-notification>\n[by a person]\n  Well?",
        "local command: <command-name>/model</command-name>",
    ):
        assert words in shown
    assert "aGk=" not in shown
    facts = command("show", SESSION).out.splitlines()
    assert {f"session    {SESSION}", "turns      3"} <= set(facts)  # a session had no limits
    refused = command("transcript", SESSION, "--as-sent", "1")
    assert (refused.code, "does not say what Claude Code sent" in refused.err) == (2, True)


def test_what_happened_beside_the_conversation_is_shown_where_it_happened(
    command: Command, folder: Path
) -> None:
    made = Session()
    made.user("Go on.")
    made.reply("msg_1", use("toolu_1", "Bash", command="make"))
    made.result("toolu_1", "built")
    made.add("system", subtype="api_error", error={"message": "overloaded"})
    made.reply("msg_2", text("Finished."), stop="end_turn")
    made.add("system", subtype="compact_boundary", compactMetadata={"preTokens": 900})
    made.user("Summed up.", isCompactSummary=True)
    made.user("<command-name>/exit</command-name>")
    path = folder / f"{SESSION}.jsonl"
    path.write_bytes(made.file().getvalue())
    command("import", str(path))
    shown = command("transcript", SESSION).out
    words = ("  built", "overloaded", "Finished.", "Summed up.", "/exit", "• succeeded: end_turn")
    assert sorted(words, key=shown.index) == list(words)


@pytest.mark.slow
def test_lists_pages_and_searches_have_the_title(
    command: Command, session: Path, database: Database
) -> None:
    (run,) = command("import", str(session), "--json").json["runs"]
    assert "Mending the cart" in command("list", run["job_id"]).out
    app = App(SETTINGS, database)
    head = head_of(app, run["run_id"])
    facts = dict(head.facts)
    assert (facts["title"], facts["session"]) == ("Mending the cart", SESSION)
    assert (facts["turns"], facts["tokens"]) == ("3", "1,262")
    (row,) = tree_rows(app, head)
    assert row["cost"].usd > 0
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
    assert {row["why"] for row in denied if row["verdict"] == "denied"} == {"denied by the user"}
