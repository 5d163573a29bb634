"""The page: whole in itself, and no script but its own could run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html import unescape

import pytest

from runner.app.transcript import (
    Compaction,
    Event,
    Message,
    Note,
    OtherBlock,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Transcript,
    Verification,
)
from runner.app.transcript_page import page
from runner.core.text import visible
from tests.app.parsed import Parsed
from tests.cli.test_terminal import HOSTILE, steers
from tests.store.examples import NOW

EVIL = (
    f"{HOSTILE}</title></style></script></pre><script>alert(1)</script>"
    "<img src=https://example.org/x onerror=alert(2)><a href='javascript:alert(3)'>x</a>"
    "<!-- \"'` --><base href=//example.org><meta http-equiv=refresh content=0>"
)
NOTE = Note(EVIL, "bad")


def parts() -> Iterator[Part]:
    """One of each, of which every text is hostile."""
    yield Event(NOW, NOTE, True)
    yield Message(
        "assistant",
        1,
        NOW,
        (
            Text(EVIL),
            Text(f"```{EVIL}\n{EVIL}\n```\n# {EVIL}\n`{EVIL}` **{EVIL}**"),
            Thinking(EVIL),
            ToolCall("call_1", EVIL, {EVIL: EVIL, "n": [EVIL]}, (NOTE,), {"command": EVIL}),
            OtherBlock(EVIL, {EVIL: EVIL}),
        ),
        EVIL,
    )
    yield Message("user", 1, NOW, (ToolResult("call_1", "Bash", NOTE, EVIL * 40, 3),))
    yield Message(
        "user", 1, NOW, (ToolResult("call_1", "Bash", NOTE, [{"type": "text", "text": EVIL}]),)
    )
    yield Compaction(2, NOW, EVIL, (NOTE,), EVIL)
    yield Verification(1, 1, NOW, NOTE, EVIL)


@pytest.fixture
def html() -> str:
    facts = (("run", "run_1"), ("state", EVIL), ("job", EVIL), ("submitted", NOW))
    return "".join(page(Transcript("run_1", EVIL, facts, NOTE, EVIL, parts())))


@pytest.fixture
def parsed(html: str) -> Parsed:
    return Parsed.of(html)


def test_hostile_content_adds_no_element_and_no_attribute(parsed: Parsed) -> None:
    assert len(parsed.named("script")) == len(parsed.named("style")) == 1
    for name in ("img", "iframe", "base", "object", "form", "svg"):
        assert parsed.named(name) == []
    names = {name for _, attributes in parsed.elements for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("style", "srcset")}
    assert len(parsed.named("meta")) == 5
    assert "alert(1)" in parsed.text


def test_nothing_in_it_steers_or_hides(html: str) -> None:
    assert not any(map(steers, html.replace("\n", "")))
    html.encode()


def test_its_title_is_the_item_and_no_markup(html: str) -> None:
    (title,) = re.findall(r"<title>(.*?)</title>", html)
    assert unescape(title) == f"{visible(EVIL)} · run_1"


def test_it_leads_nowhere_but_to_itself(parsed: Parsed) -> None:
    links = {
        value
        for _, attributes in parsed.elements
        for name, value in attributes.items()
        if name in ("src", "href", "action", "poster", "data")
    }
    assert links == {"data:,", "#turn-1"}


def test_its_policy_allows_its_own_style_and_script_alone(parsed: Parsed) -> None:
    policies = [m["content"] for m in parsed.named("meta") if m.get("http-equiv")]
    (policy,) = policies
    rules = dict(rule.split(" ", 1) for rule in (policy or "").split("; "))
    assert rules == {
        "default-src": "'none'",
        "style-src": f"'{digest(parsed.sources['style'])}'",
        "script-src": f"'{digest(parsed.sources['script'])}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def digest(source: list[str]) -> str:
    hashed = hashlib.sha256("".join(source).encode()).digest()
    return f"sha256-{base64.b64encode(hashed).decode()}"


def test_its_own_style_and_script_end_where_they_should(parsed: Parsed) -> None:
    (style,), (script,) = parsed.sources["style"], parsed.sources["script"]
    assert style.rstrip().endswith("}")
    assert script.rstrip().endswith("})();")
    for source in (style, script):
        assert "</" not in source
        assert "<!" not in source
        assert "http" not in source
        assert "url(" not in source
        assert "import" not in source.replace("!important", "")


def test_ids_are_there_once(parsed: Parsed) -> None:
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "turn-1" in ids


def test_controls_say_what_they_are_and_are_there_with_the_script_only(parsed: Parsed) -> None:
    (bar,) = [each for tag, each in parsed.elements if each.get("class") == "bar"]
    assert "hidden" in bar
    for field in parsed.named("input"):
        assert field.get("aria-label") or field["type"] == "checkbox"


def test_light_and_dark_follow_the_reader_s_system(html: str) -> None:
    assert "color-scheme: light dark" in html
    assert "@media (prefers-color-scheme: dark)" in html


def test_results_are_told_from_what_people_say() -> None:
    result = ToolResult("call_1", "Bash", Note("succeeded", "good"), "ok")
    told = (
        Message("user", 1, NOW, (result,)),
        Message("user", 1, NOW, (result, Text("Also mend the docs."))),
        Message("user", 0, NOW, (Text("Mend it."),)),
    )
    reading = Transcript("run_1", "one", (("run", "run_1"),), Note("running"), "", iter(told))
    html = "".join(page(reading))
    assert re.findall(r'<article class="(\w+)"', html) == ["results", "user", "user"]


def test_parts_are_written_as_they_come() -> None:
    read: list[int] = []

    def many() -> Iterator[Part]:
        for turn in range(1, 4):
            read.append(turn)
            yield Message("assistant", turn, NOW, (Text("x"),))

    pieces = page(Transcript("run_1", "one", (), Note("running"), "", many()))
    seen = next(each for each in pieces if 'id="turn-1"' in each)
    assert 'id="turn-2"' not in seen
    assert read == [1]
