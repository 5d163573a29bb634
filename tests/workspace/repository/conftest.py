"""A repository with one commit, and a look at it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.workspace import Asked, Found
from runner.workspace.submission import inspect_repository

from .made import Made

Look = Callable[..., Found]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a person without settings of their own."""
    home = tmp_path / "person"
    home.mkdir()
    return {"PATH": os.environ["PATH"], "HOME": str(home)}


@pytest.fixture
def repository(tmp_path: Path, environment: dict[str, str]) -> Made:
    made = Made(tmp_path / "project", environment)
    made.commit(a__py="1\n", b__py="2\n")
    return made


@pytest.fixture
def look(repository: Made, tmp_path: Path, environment: dict[str, str]) -> Look:
    """Look at the repository as a job asks for it."""

    def look_at_it(**asked: Any) -> Found:
        given = replace(Asked("night", str(repository.path), is_url=False), **asked)
        return inspect_repository(given, home=tmp_path / "home", environment=environment)

    return look_at_it
