from __future__ import annotations

from typing import Any

import pytest

from runner.jobfile import items as reading
from runner.jobfile.table import Node


def rendered(text: str, *items: Any, has_items: bool = True) -> tuple[list[str], list[str]]:
    keyed = [(f"k{number}", item) for number, item in enumerate(items)]
    at = Node(("prompt",), [], {})
    texts = reading.render_texts(text, at, keyed, has_items=has_items)
    return list(texts), [str(problem) for problem in at.problems]


def test_every_item_has_its_prompt() -> None:
    assert rendered("Do {{ item }}.", "a", "b") == (["Do a.", "Do b."], [])
    assert rendered("{% for x in item.l %}{{ x }}{% endfor %}", {"l": [1, 2]}) == (["12"], [])


def test_the_text_of_an_item_is_never_a_template() -> None:
    assert rendered("{{ item }}", "{{ 7 * 7 }}{% raise %}") == (["{{ 7 * 7 }}{% raise %}"], [])


def test_a_key_of_an_item_comes_before_a_method_of_tables() -> None:
    assert rendered("{{ item.values }} {{ item.key }}", {"values": "v", "key": "k"}) == (
        ["v k"],
        [],
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\n{{ item", "prompt: line 2 of the template does not parse: "),
        ("{{ itme }}", "prompt: the template uses 'itme', which is not defined; only 'item' is"),
        ("{% if false %}{{ x }}{% endif %}", "the template uses 'x', which is not defined"),
        ("{{ item.nope }}", "for the item 'k0': the template fails: UndefinedError: "),
        ("{{ item.__class__.__mro__ }}", "for the item 'k0': the template fails: SecurityError: "),
        ("{{ item.append(1) }}", "the template fails: "),
        ("{{ 1 / 0 }}", "the template fails: ZeroDivisionError: division by zero"),
        ("{% include '/etc/passwd' %}", "the template fails: "),
        ("{% for _ in range(10 ** 9) %}.{% endfor %}", "the template fails: OverflowError: "),
        ("{{ ' ' }}", "for the item 'k0': the prompt is empty"),
        ("{{ '\\x00' }}x", "for the item 'k0': the prompt holds a NUL"),
        ("{{ '(' * 2 }}" + "(" * 50 + "{{ " + "(" * 9_000 + "1" + ")" * 9_000 + " }}", "deeply"),
    ],
)
def test_a_template_that_does_not_work_is_a_problem(text: str, expected: str) -> None:
    prompts_made, problems = rendered(text, ["item"])
    assert prompts_made == []
    assert len(problems) == 1
    assert expected in problems[0]


def test_a_template_cannot_change_an_item() -> None:
    item = {"key": "a"}
    assert rendered("{{ item.update({'key': 'b'}) }}", item)[0] == []
    assert item == {"key": "a"}


def test_a_template_has_no_item_in_a_job_without_items() -> None:
    assert rendered("Go.", None, has_items=False) == (["Go."], [])
    _, problems = rendered("{{ item }}", None, has_items=False)
    assert problems == ["prompt: the template uses 'item', but the job has no [items]"]


def test_only_the_first_failing_items_are_listed() -> None:
    good, problems = rendered("{{ item.x }}", *([{}] * 9), {"x": 1})
    assert good == ["1"]
    assert len(problems) == reading.MOST_TEXTS_REPORTED + 1
    assert problems[-1] == "prompt: and so for 4 more of the 10 items"


@pytest.mark.slow
def test_an_endless_prompt_is_refused() -> None:
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    assert rendered(loops, None, has_items=False) == (
        [],
        ["prompt: the prompt has more than 10,000,000 characters"],
    )
