"""The databases, and worker processes at the price of a fork."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runner.core.conversation import Tool
from tests.crash import scenario
from tests.crash.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def tools() -> tuple[Tool, ...]:
    return scenario.tools()
