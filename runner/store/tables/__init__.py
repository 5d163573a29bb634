"""The tables, as the newest migration leaves them.

Small tables that are read by run have no rowid on SQLite: their rows lie together in one tree, so a
turn writes one page a table and not two. ``blocks`` and ``tool_outputs`` can be large and keep theirs.
"""

from runner.store.tables.conversation import (
    approvals,
    blocks,
    compactions,
    events,
    model_calls,
    tool_calls,
    tool_outputs,
    verifications,
)
from runner.store.tables.hooks import hook_runs, run_instructions
from runner.store.tables.jobs import job_events, jobs, permission_rules, prices, purses
from runner.store.tables.metadata import metadata
from runner.store.tables.runs import queued_messages, run_items, run_workspaces, runs, workers

__all__ = [
    "approvals",
    "blocks",
    "compactions",
    "events",
    "hook_runs",
    "job_events",
    "jobs",
    "metadata",
    "model_calls",
    "permission_rules",
    "prices",
    "purses",
    "queued_messages",
    "run_instructions",
    "run_items",
    "run_workspaces",
    "runs",
    "tool_calls",
    "tool_outputs",
    "verifications",
    "workers",
]
