"""Any job's name and any item's key make a branch."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.workspace.repository import branch_name, ref_part


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("src/a b.py", "src-a-b.py"),
        ("..//..", "item"),
        ("", "item"),
        ("-x", "x"),
        ("a.lock", "a-lock"),
        ("a..b", "a.b"),
        ("@{upstream}", "upstream"),
        ("naïve ~ 日本", "naïve-日本"),
        ("x\nRunner-Run: y", "x-Runner-Run-y"),
    ],
)
def test_what_git_could_take_amiss_becomes_a_dash(text: str, part: str) -> None:
    assert ref_part(text) == part


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_git_takes_every_name(job: str, key: str) -> None:
    name = branch_name(job, key, "run_01m817bq4nabrb16by7zxyeamh")
    done = subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True)
    assert done.returncode == 0, name
    assert max(map(len, name.encode().split(b"/"))) < 200
    assert name.endswith("-xyeamh")
