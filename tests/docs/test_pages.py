"""All pages: what they link to is there, and the commands that they show exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from runner.cli.main import cli
from runner.jobfile.check import check
from tests.docs.pages import PAGES, ROOT, blocks, codes, read, rows

EVERY_PAGE = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_pages_that_are_read_first_stay_short() -> None:
    names = ("tutorial", "concepts", "guarantees", "operations", "job-file", "audit", "hooks")
    readme, *pages = (read(name) for name in ("README.md", *(f"docs/{each}.md" for each in names)))
    assert readme.count("\n") <= 110
    assert readme.count("\n") + sum(page.count("\n") for page in pages) <= 2_400


@EVERY_PAGE
def test_links_lead_somewhere(path: Path) -> None:
    for link in _LINK.findall(path.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def commands(page: str) -> Iterator[list[str]]:
    """The ``runner`` commands of a page, in blocks and in running text, as words."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    lines += codes(re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE))
    for line in lines:
        found = re.match(r"(?:\.venv/bin/)?runner (.+)|docker compose run --rm worker (.+)", line)
        if found:
            words = shlex.split((found[1] or found[2]).replace("`", ""), comments=True)
            yield [word for word in words if word != "…"]


@EVERY_PAGE
def test_every_command_and_option_that_is_shown_exists(path: Path) -> None:
    for words in commands(path.read_text()):
        command: Any = cli
        while words and isinstance(command, click.Group) and words[0][0].islower():
            name = words.pop(0)
            assert name in command.commands, f"runner {name}"
            command = command.commands[name]
        known = {option for each in command.params for option in each.opts} | {"--help"}
        shown = {word for word in words if re.match(r"--?[a-z]", word)}
        assert shown <= known, (command.name, shown - known)


def test_commands_are_found_in_text_and_blocks() -> None:
    found = list(commands(read("docs/operations.md") + read("docs/compose.md")))
    assert ["retry", "RUN", "--fresh"] in found
    assert ["db", "check"] in found
    assert ["submit", "jobs/refactor.toml"] in found
    assert len(found) > 30


def test_every_command_is_on_the_pages_by_task() -> None:
    by_task = ("operations", "schedules", "costs", "notices", "web", "metrics", "audit", "exchange")
    shown = {words[0] for page in by_task for words in commands(read(f"docs/{page}.md"))}
    assert shown == set(cli.commands)


def test_the_readme_is_short_and_its_job_file_is_the_quickstart_s() -> None:
    readme = read("README.md")
    assert len(readme.splitlines()) <= 110
    (example,) = map(tomllib.loads, blocks(readme, "toml"))
    assert check(example).problems == []
    real = tomllib.loads(read("jobs/quickstart.toml"))
    items = example.pop("items")["list"]
    assert items == real["items"]["list"][: len(items)]
    assert example.pop("prompt").strip() == real["prompt"].strip()
    for key, value in example.items():
        assert value == real[key] or value.items() <= real[key].items(), key


def test_the_readme_shows_every_run_of_the_quickstart() -> None:
    real = [item["key"] for item in tomllib.loads(read("jobs/quickstart.toml"))["items"]["list"]]
    shown = re.findall(r"^\w{8}  (\w+) +succeeded", read("README.md"), re.MULTILINE)
    assert shown == real


def test_the_glossary_has_each_word_once() -> None:
    words = [word for row in rows(read("docs/glossary.md")) for word in row[0].split(", ")]
    assert len(words) == len(set(words)) > 30
