"""Blocks on the page: whole, folded where they are long, and pictures only where they are harmless."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.app.transcript import Note, OtherBlock, Piece, Text, Thinking, ToolCall, ToolResult
from runner.app.transcript_page import html_environment
from tests.app.parsed import Parsed

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
BLOCKS: Any = html_environment().get_template("blocks.html").module
ANSWERED = Note("succeeded, 1.2s", "good")


def folded(text: str) -> str:
    return str(BLOCKS.folded(text))


def piece(block: Piece) -> str:
    return str(BLOCKS.piece(block))


def prose(text: str) -> str:
    return str(BLOCKS.prose(text))


def picture(kind: str = "image/png", data: Any = PNG, type: str = "base64") -> dict[str, Any]:
    return {"type": "image", "source": {"type": type, "media_type": kind, "data": data}}


@pytest.mark.slow
@given(st.lists(st.text("ab `*#~<&\n", max_size=12)).map("\n".join))
def test_prose_keeps_every_character_but_blank_lines_at_its_edges(text: str) -> None:
    parsed = Parsed.of(prose(text))
    assert "".join(parsed.text.split()) == "".join(text.split())
    assert {tag for tag, _ in parsed.elements} <= {"p", "pre", "code", "b"}


def test_code_and_headings_are_set_off() -> None:
    html = prose("# Plan\nRun `a < b` **now**.\n```sh\n# not a heading `x`\n```\nDone.")
    assert html == (
        "<p><b># Plan</b>\nRun <code>`a &lt; b`</code> <b>**now**</b>.</p>"
        '<pre class="code">```sh\n# not a heading `x`\n```</pre><p>Done.</p>'
    )


def test_fence_that_is_never_closed_is_code_to_the_end() -> None:
    assert prose("a\n```\n<b>") == '<p>a</p><pre class="code">```\n&lt;b&gt;</pre>'


@pytest.mark.slow
@given(st.text("ab\n<", max_size=3_000), st.integers(1, 40))
def test_folding_loses_nothing(text: str, times: int) -> None:
    text = text * times
    parsed = Parsed.of(folded(text).replace("</pre><details>", "</pre>\n<details>"))
    told = parsed.text
    if parsed.named("details"):
        summary = next(each for each in parsed.texts if " more " in each)
        told = told.replace(summary, "", 1)
    assert told.replace("\n", "") == text.replace("\n", "")


def test_short_texts_are_not_folded_and_long_ones_tell_how_long() -> None:
    assert "<details>" not in folded("line\n" * 20)
    assert "<summary>88 more lines</summary>" in folded("line\n" * 100)
    assert "<summary>3,000 more characters</summary>" in folded("x" * 5_000)


def test_picture_is_shown_from_the_block_itself() -> None:
    html = piece(
        ToolResult("call_1", "Bash", ANSWERED, [{"type": "text", "text": "See:"}, picture()])
    )
    (shown,) = Parsed.of(html).named("img")
    assert shown["src"] == f"data:image/png;base64,{PNG}"
    assert "See:" in html


@pytest.mark.parametrize(
    "block",
    [
        picture("image/svg+xml"),
        picture("text/html"),
        picture("image/png,<svg>"),
        picture(data='" onerror="alert(1)'),
        picture(data=PNG + "\n"),
        picture(data=7),
        picture(type="url"),
        {"type": "image", "source": "https://example.org/x.png"},
        {"type": "image"},
        "image",
        None,
    ],
)
def test_what_is_no_harmless_picture_is_text(block: Any) -> None:
    assert Parsed.of(piece(ToolResult("call_1", "Bash", ANSWERED, [block]))).named("img") == []


@pytest.mark.parametrize(
    "block",
    [
        Text("</div><script>x</script>"),
        Thinking("</details><script>x</script>"),
        ToolCall("call_1", "<script>x</script>", {"<script>": "</pre><script>"}),
        ToolCall(
            "call_1", "Bash", {"command": "</pre><script>"}, (Note("<script>"),), ["<script>"]
        ),
        ToolResult("call_1", "Bash", Note("<script>", "bad"), "</pre><script>", 9_000),
        OtherBlock("<script>", {"<script>": "</pre>"}),
    ],
)
def test_no_block_can_leave_its_place(block: Piece) -> None:
    parsed = Parsed.of(piece(block))
    assert parsed.named("script") == []
    assert "<script>" in parsed.text


def test_thinking_is_folded_and_empty_thinking_is_told_of() -> None:
    assert "<summary>Thinking, 2 lines</summary>" in piece(Thinking("a\nb"))
    assert "keeps to itself" in piece(Thinking(""))


def test_edited_input_is_beside_the_model_s() -> None:
    call = ToolCall("call_1", "Bash", {"command": "uv lock"}, (), {"command": "uv lock --offline"})
    html = piece(call)
    assert html.index("<pre>uv lock</pre>") < html.index("<pre>uv lock --offline</pre>")


def test_whole_output_that_the_model_was_not_shown_is_named() -> None:
    html = piece(ToolResult("call_1", "Bash", ANSWERED, "part", 1_000_000))
    assert "all 1,000,000 bytes are stored (runner show call_1)" in html
