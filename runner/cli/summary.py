"""What a job has come to: a table of its runs, and how to look further."""

from __future__ import annotations

from collections.abc import Sequence

from runner.cli.display import duration, first_line, note, say, say_json, say_table
from runner.cli.exit_codes import exit_code
from runner.store.database import Database
from runner.store.look import queries
from runner.store.look.queries import RunSummary


def summarise(database: Database, job_id: str, *, interrupted: bool, as_json: bool) -> int:
    """Print what became of a job's runs.

    Returns:
        The exit code that says it.
    """
    runs = queries.current_runs(queries.list_runs(database, job_id))
    code = exit_code((run["state"] for run in runs), interrupted=interrupted)
    texts = queries.last_texts(database, job_id)
    if as_json:
        job = queries.show_job(database, job_id)
        say_json(job | {"run_summaries": [{**r, "last_text": texts.get(r["id"])} for r in runs]})
        return code
    say_table(
        ("run", "item", "state", "reason", "turns", "tokens", "time", "denied", "last text"),
        (
            (
                run["id"],
                run["item_key"],
                run["state"],
                run["reason"],
                run["turns"],
                f"{run['charged_tokens']:,}",
                _took(run),
                run["denials"] or "",
                first_line(run["detail"] or texts.get(run["id"], "")),
            )
            for run in runs
        ),
    )
    _say_totals(runs)
    _say_further(runs)
    return code


def _took(run: RunSummary) -> str:
    if run["started_at"] is None or run["ended_at"] is None:
        return ""
    return duration(run["ended_at"] - run["started_at"])


def _say_totals(runs: Sequence[RunSummary]) -> None:
    by_state: dict[str, int] = {}
    for run in runs:
        by_state[run["state"]] = by_state.get(run["state"], 0) + 1
    states = ", ".join(f"{count} {state}" for state, count in by_state.items())
    turns = sum(run["turns"] for run in runs)
    tokens = sum(run["charged_tokens"] for run in runs)
    say(f"\n{states}; {turns:,} turns, {tokens:,} tokens")
    denials = sum(run["denials"] for run in runs)
    if denials:
        denied = sum(run["denials"] > 0 for run in runs)
        calls = "1 tool call was" if denials == 1 else f"{denials} tool calls were"
        where = "1 run" if denied == 1 else f"{denied} runs"
        say(f"{calls} denied, in {where}: the work may be incomplete")


def _say_further(runs: Sequence[RunSummary]) -> None:
    if not runs:
        return
    telling = next((run for run in runs if run["state"] != "succeeded"), runs[0])
    note(f"\nlook further: runner transcript {telling['id']}")
    note(f"              runner events {telling['id']}")
