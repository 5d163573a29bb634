"""``results``: what the runs of a job have submitted, for programs and spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from runner.cli.audit import harmless
from runner.cli.options import stored, with_settings
from runner.cli.patch import write_file
from runner.cli.terminal import note, say_bytes
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.queries.runs import RunResult


Format = Literal["jsonl", "json", "csv"]

_COLUMNS = ("run_id", "item_key", "state", "reason", "fork_of")


@click.command()
@click.argument("job")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to this file.",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["jsonl", "json", "csv"]),
    help="By default that of the file's name, else jsonl.",
)
@with_settings
def results(settings: Settings, job: str, output: Path | None, shape: Format | None) -> None:
    """Export the results that the runs of a job have submitted (`output_schema`).

    There is a line for each run, also for those without a result. In CSV each property of the
    results is a column; what a spreadsheet would take for a formula has a ' in front.

    \b
    Example:
      runner results job_01jd9k -o results.csv
      runner results job_01jd9k | jq .result
    """
    from runner.core.spec import JobSpec
    from runner.queries.find import find
    from runner.queries.jobs import show_job
    from runner.queries.runs import results_of_job

    with stored(settings) as database:
        job_id = find(database, job, "job").id
        spec = JobSpec.from_json(show_job(database, job_id)["spec"])
        if spec.result_tool is None:
            raise UsageError(f"{job_id} asks for no result: a job does with output_schema")
        found = results_of_job(database, job_id)
        schema = spec.result_tool.input_schema
    content = _content(found, schema, shape or _shape_of(output))
    if output is None:
        say_bytes(content)
    else:
        write_file(output, content)
    count = sum(each.result is not None for each in found)
    note(f"{count} of {len(found)} runs have submitted a result")


def _shape_of(output: Path | None) -> Format:
    suffixes: dict[str, Format] = {".json": "json", ".csv": "csv"}
    return suffixes.get(output.suffix.lower(), "jsonl") if output else "jsonl"


def _content(found: Sequence[RunResult], schema: Mapping[str, Any], shape: Format) -> bytes:
    if shape == "csv":
        return _csv(found, schema)
    values = [asdict(each) for each in found]
    if shape == "json":
        return (json.dumps(values, indent=2) + "\n").encode()
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def _csv(found: Sequence[RunResult], schema: Mapping[str, Any]) -> bytes:
    """A column for each property that the schema names, then for those that results have beside."""
    names = dict.fromkeys(schema.get("properties") or {})
    for each in found:
        names |= dict.fromkeys(each.result or {})
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*_COLUMNS, *(f"result.{name}" for name in names)])
    for each in found:
        of_run = (getattr(each, name) for name in _COLUMNS)
        of_result = ((each.result or {}).get(name) for name in names)
        writer.writerow([_cell(value) for value in (*of_run, *of_result)])
    return text.getvalue().encode(errors="backslashreplace")


def _cell(value: Any) -> str:
    """A value as a cell that no spreadsheet runs: numbers stay what they are."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return harmless(value)
