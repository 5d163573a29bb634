"""Text of others is never markup, and hides nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.app.transcript_page import shown
from runner.core.text import visible
from tests.app.parsed import Parsed
from tests.cli.test_terminal import HOSTILE, steers

MARKUP = st.sampled_from(
    [
        "<script>",
        "</pre>",
        "&lt;",
        '"',
        "'",
        "<!--",
        "]]>",
        "\x1b[31m",
        "\x1b]0;x\x07",
        "\u202e",
        "\r\n",
    ]
)
TEXTS = st.lists(st.one_of(MARKUP, st.text(st.characters()))).map("".join)


@pytest.mark.slow
@given(TEXTS)
def test_any_text_is_text_and_nothing_in_it_steers(text: str) -> None:
    html = shown(text)
    parsed = Parsed.of(html)
    assert {tag for tag, _ in parsed.elements} <= {"span"}
    assert all(each == {"class": "control"} for each in parsed.named("span"))
    left = parsed.text.replace("\n", "").replace("\t", "").replace("\u200d", "")
    assert not any(map(steers, left))
    html.encode()


@pytest.mark.slow
@given(TEXTS.filter(lambda text: "\t" not in text and "\u200d" not in text))
def test_every_character_is_shown_as_at_a_terminal(text: str) -> None:
    lines = (visible(line) for line in text.split("\n"))
    assert Parsed.of(shown(text)).text == "\n".join(lines)


def test_colours_stand_out_whole_and_a_title_is_not_set() -> None:
    html = shown("\x1b[1;31mred\x1b[0m \x1b]0;title\x07")
    assert html.startswith(
        '<span class="control">␛[1;31m</span>red<span class="control">␛[0m</span>'
    )
    assert html.endswith('<span class="control">␛</span>]0;title<span class="control">␇</span>')


def test_text_that_runs_backwards_is_shown_for_what_it_is() -> None:
    assert shown("a\u202egpj.exe") == 'a<span class="control">\\u202e</span>gpj.exe'


@pytest.mark.parametrize("emoji", ["👨‍👩‍👧", "🏳️‍🌈"])
def test_emoji_stay_whole_and_hidden_joiners_do_not(emoji: str) -> None:
    assert shown(emoji) == emoji
    assert shown("pass\u200dword") == 'pass<span class="control">\\u200d</span>word'


def test_hostile_example_is_harmless() -> None:
    assert "\x1b" not in shown(HOSTILE)
    assert "\u202e" not in shown(HOSTILE)
