"""Jobs for the store's tests."""

from __future__ import annotations

from runner.core.conversation import Tool
from runner.core.spec import JobSpec, NewRun, Submission
from runner.permissions import Rule

NOW = 1_700_000_000.0

SPEC = JobSpec(
    name="mend",
    model="claude-test",
    system="Be brief.",
    tools=(Tool("Read", "Reads a file.", {"type": "object"}, read_only=True),),
    rules=(Rule("allow", "Read"), Rule("deny", "Bash")),
)


def submission(*keys: str, spec: JobSpec = SPEC) -> Submission:
    """A job of one run for each key."""
    return Submission(
        source="jobs/mend.toml",
        text='name = "mend"  # é\n',
        spec=spec,
        runs=tuple(NewRun(key, {"file": key}, f"Mend {key}.") for key in keys or ("one",)),
    )
