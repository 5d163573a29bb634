"""Where a run stands in its tree, as its id says it."""

from __future__ import annotations

from typing import TypedDict

from runner.core.agents.agent import label, lineage


class Place(TypedDict):
    """``root`` is the run of an item, itself at ``depth`` 0 and without ``parent``; ``label`` is what the
    run is called in its tree, or one of its tool calls."""

    root: str
    parent: str | None
    depth: int
    label: str


def place_of(run_id: str) -> Place:
    """The place of a run.

    >>> place_of("run_a.3.1")
    {'root': 'run_a', 'parent': 'run_a.3', 'depth': 2, 'label': '3.1'}
    """
    line = lineage(run_id)
    parent = line[-2] if len(line) > 1 else None
    return Place(root=line[0], parent=parent, depth=len(line) - 1, label=label(run_id))


def call_label(run_id: str, number: int) -> str:
    """What a run's tool call is called in its tree.

    Args:
        number: of the call among all of its run, from 1.

    >>> call_label("run_a.3", 2)
    '3.2'
    """
    return f"{label(run_id)}.{number}".lstrip(".")


def is_within(run_id: str, top: str) -> bool:
    """Whether a run is ``top`` or below it."""
    return run_id == top or run_id.startswith(f"{top}.")


def item_of(run_id: str, item_key: str) -> str:
    """The key of the item at the top of a run's tree.

    Args:
        item_key: the run's own: each run below the top adds ``+`` and its number in its parent.

    >>> item_of("run_a.3.1", "src/a.py+3+1")
    'src/a.py'
    """
    for _ in range(run_id.count(".")):
        item_key = item_key.rpartition("+")[0]
    return item_key


def tree_order(run_id: str) -> tuple[str | int, ...]:
    """A key by which runs sort: each before those that it has started, and these by their numbers."""
    root, *numbers = run_id.split(".")
    return root, *map(int, numbers)
