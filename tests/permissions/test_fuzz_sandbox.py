"""A sample of `make fuzz`: random commands in the sandbox, judged by what they did to canaries."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

import pytest

from runner.tools.sandbox import Sandboxes
from runner.tools.toolbox import LocalTools

from .fuzz_sandbox import Judge, command_of, rules_of

HERE = Sandboxes(Path("/nowhere"), os.environ).probe()
pytestmark = pytest.mark.skipif(
    HERE.kind != "bubblewrap", reason=f"this host has no bubblewrap: {HERE.missing}"
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links into /proc lead this process to its own folder."""
    monkeypatch.chdir(tmp_path)


def findings(folder: Path, count: int, *, blind: bool = False) -> list[str]:
    dice = random.Random(7)
    with closing(LocalTools(folder / "home", folder / "locks")) as tools:
        judge = Judge(folder, tools, blind)
        looked = [judge.look(command_of(dice), rules_of(dice)) for _ in range(count)]
    assert judge.seen
    assert judge.changed
    return [each for each in looked if each]


@pytest.mark.slow
def test_no_canary_is_read_or_written_against_the_rules(tmp_path: Path) -> None:
    assert findings(tmp_path, 15) == []


def test_the_judge_finds_what_a_sandbox_without_the_rules_lets_through(tmp_path: Path) -> None:
    assert len(findings(tmp_path, 15, blind=True)) > 3
