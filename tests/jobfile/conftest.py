"""A job file in a folder of its own, loaded with tools that are only names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from runner.core.conversation import Tool
from runner.core.mcp import McpServer
from runner.core.prices import Price, PriceList, Rates
from runner.core.spec import Submission
from runner.core.workspace import Asked, Found
from runner.errors import SpecError
from runner.jobfile.load import load
from runner.tools.media import media_of_file

_RATES = Rates(*map(Decimal, (1, 2, 3, 0, 5)))
PRICES = PriceList(
    date(2026, 11, 22), "here", {"priced": Price(_RATES), "small": Price(_RATES, window=50_000)}
)
TOOL_NAMES = ("Bash", "Read", "Write", "Edit", "Glob", "Grep")

COMMIT = "0123456789012345678901234567890123456789"
Load = Callable[..., Submission]
Problems = Callable[..., list[str]]


def resolve_names(
    names: Sequence[str], folder: Path
) -> tuple[tuple[Tool, ...], tuple[tuple[str, str], ...]]:
    """Tools by their bare names; an own tool is called after its function."""
    assert folder.is_absolute()
    known = [name for name in names if name in TOOL_NAMES or ":" in name]
    unknown = [name for name in names if name not in known]
    tools = tuple(Tool(name.rpartition(":")[2], f"{name}.", {"type": "object"}) for name in known)
    return tools, tuple((name, f"there is no tool {name!r}") for name in unknown)


def find_functions(
    names: Sequence[str], folder: Path
) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Functions in the module ``hooks``, and none in any other."""
    found = {name: f"{name}@{folder}" for name in names if name.startswith("hooks:")}
    return found, tuple((name, f"there is no {name}") for name in names if name not in found)


def list_tools(servers: Sequence[McpServer]) -> dict[str, tuple[Tool, ...] | str]:
    """Three tools of each server, one with a schema that the API does not take; none of ``broken``."""
    of_a = {"type": "object", "properties": {"repo": {"type": "string"}}}
    schemas = {"get_a": of_a, "get_b": {"type": "object"}, "odd": {"type": "array"}}
    return {
        server.name: "it has ended"
        if server.name == "broken"
        else tuple(
            Tool(server.tool_name(name), name, schema, source=server.source(name))
            for name, schema in schemas.items()
        )
        for server in servers
    }


def find_repository(asked: Asked) -> Found:
    """A repository with two files at every place that is called so."""
    if not asked.source.rpartition("/")[2].startswith("repo"):
        return Found(problems=(("repo", f"{asked.source} is none"),))
    path = None if asked.is_url else asked.source
    notes = (f"{asked.job} begins at {asked.base or 'HEAD'}",)
    return Found(path, COMMIT, ("a.py", "src/b.py", "src/.hidden/c.py"), notes=notes)


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    """Write a job file into the temporary folder and load it."""

    def load_it(text: str, name: str = "job.toml") -> Submission:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return load(
            path,
            resolve_tools=resolve_names,
            resolve_hooks=find_functions,
            list_mcp_tools=list_tools,
            read_media=media_of_file,
            look_at_repository=find_repository,
            prices=PRICES,
        )

    return load_it


@pytest.fixture
def problems_of(load_text: Load) -> Problems:
    """The problems of a job file, each as the line that a reader sees."""

    def problems(text: str, name: str = "job.toml") -> list[str]:
        with pytest.raises(SpecError) as refused:
            load_text(text, name)
        return [str(problem) for problem in refused.value.problems]

    return problems
