"""A model that reads reports, one a turn, and states in the end what it found in them. It is honest:
it knows only what is in the request that it gets."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.messages_api import Received, Reply, text, tool_use

_FACT = re.compile(r"fact (\d+) is ([a-z]+-\d+)")
_WORDS = (
    "amber",
    "birch",
    "cobalt",
    "dune",
    "ember",
    "fjord",
    "garnet",
    "heath",
    "iris",
    "juniper",
)

# What a model does at a moment instead of reading on: None for nothing else.
Instead = Callable[[Received, Mapping[int, str]], Reply | None]


def write_reports(folder: Path, count: int, size: int) -> dict[int, str]:
    """Reports 1 to ``count`` of ``size`` characters, each with a fact in the midst of noise.

    Returns:
        The facts, by the number of their report.
    """
    dice = random.Random(f"{count} reports of {size}")
    facts = {
        number: f"{dice.choice(_WORDS)}-{dice.randrange(10_000)}" for number in range(1, count + 1)
    }
    for number, fact in facts.items():
        noise = " ".join(f"{dice.choice(_WORDS)} {dice.random()}" for _ in range(size // 20))
        said = f"\nfact {number} is {fact}\n"
        at = dice.randrange(size // 3, size // 2)
        whole = noise[:at] + said + noise[at:]
        (folder / f"report-{number}.txt").write_text(whole[:size])
    return facts


def facts_in(text: str) -> dict[int, str]:
    """The facts that stand in a text, by the numbers of their reports."""
    return {int(number): fact for number, fact in _FACT.findall(text)}


def wants_summary(request: Received) -> bool:
    """Whether a request asks for a summary: no other comes without tools."""
    return "tools" not in request.body


class Reader:
    """The plan for ``MessagesServer``.

    Args:
        reports: how many there are to read.
        aloud: what it says in each turn beside what it found.
        turn, summary: what it does instead of reading on, and of summarising.
    """

    def __init__(
        self,
        reports: int,
        aloud: Callable[[Received], str] = lambda request: "",
        turn: Instead = lambda request, known: None,
        summary: Instead = lambda request, known: None,
    ) -> None:
        self._reports = reports
        self._aloud = aloud
        self._turn = turn
        self._summary = summary

    def __call__(self, request: Received) -> Reply:
        known = facts_in(json.dumps(request.body["messages"], ensure_ascii=False))
        if wants_summary(request):
            return self._summary(request, known) or Reply([text(_summary(known))])
        return self._turn(request, known) or self._read_on(request, known)

    def _read_on(self, request: Received, known: Mapping[int, str]) -> Reply:
        last = max(known, default=0)
        if last == self._reports:
            return Reply([text(f"I have read them all. {_stated(known)}")])
        found = f"I note that fact {last} is {known[last]}. " if known else ""
        command = f"cat report-{last + 1}.txt"
        call = tool_use(f"toolu_{request.number}", "Bash", {"command": command})
        return Reply([text(f"{found}I go on. {self._aloud(request)}"), call])


def _summary(known: Mapping[int, str]) -> str:
    return f"## Goal\nRead all reports.\n## Done\n{_stated(known)}\n## Next steps\nRead on."


def _stated(known: Mapping[int, str]) -> str:
    return "; ".join(f"fact {number} is {fact}" for number, fact in sorted(known.items()))


def last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last message."""
    return "".join(block.get("text", "") for block in messages[-1]["content"])
