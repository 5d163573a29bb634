"""docs/tutorial.md: its files and commands, run in order, print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import read

_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_AUTHOR = {"NAME": "Ada", "EMAIL": "ada@example.com"}
# What differs from one time to the next: ids, times, tokens, who runs it, and the width of columns.
_CHANGING = (
    (r" \([\d,]+ unknown\)", ""),  # whether a call was cut off when its worker was killed
    (r"(?m)(^|(?<= ))[0-9a-hjkmnp-tv-z]{8}(?= |_1_1|$)", "SHORT_ID"),
    (r"\b(job|run|apr|call|grp)_[0-9a-z_]+", r"\1_ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME"),
    (r"\b(\d+h)?(\d+m)?\d+(\.\d+)?(ms|s|m)\b", "DURATION"),
    (r"\b[\d,]+ tokens|\b\d+(,\d{3})+\b|\b\d+%|(?<= )\d{3}(?= )", "NUMBER"),
    (r"denied by \w+", "denied by SOMEBODY"),
    (r" +", " "),
)


@pytest.mark.timeout(600)  # a dozen commands, one after the other
def test_the_tutorial_prints_what_it_shows(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commands = tmp_path_factory.mktemp("bin")  # without python3: calls cannot run one in /tmp
    (commands / "runner").symlink_to(Path(sys.executable).parent / "runner")
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        **{f"GIT_{who}_{k}": v for who in ("AUTHOR", "COMMITTER") for k, v in _AUTHOR.items()},
    }
    ran_any = False
    for kind, name, text in _BLOCK.findall(read("docs/tutorial.md")):
        if name:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        elif kind == "console":
            for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                ran = subprocess.run(
                    command,
                    shell=True,
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                )
                assert _settled(ran.stdout) == _settled(shown), f"{command}\n{ran.stderr}"
                ran_any = True
    assert ran_any


def _settled(text: str) -> list[str]:
    for pattern, word in _CHANGING:
        text = re.sub(pattern, word, text)
    return [line.rstrip() for line in text.strip().splitlines()]
