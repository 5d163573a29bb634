"""``python -m bench [NAMES…] [--quick] [--json] [--database-url URL]``."""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import os
import platform
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import runner
from bench.disk import flush_milliseconds
from bench.stage.databases import Databases
from bench.tables import Table

NAMES = (
    "turns",
    "growth",
    "crowd",
    "recovery",
    "start",
    "permissions",
    "snapshots",
    "audit",
    "fleet",
    "sandbox",
    "context",
    "governor",
    "batch",
    "web",
    "mcp",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}: all")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, smaller crowds")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")
    parser.add_argument("--database-url", help="measure on this server (or in this folder) alone")
    parser.add_argument(
        "--folder", type=Path, help="where files are put; by default a temporary one"
    )
    parser.add_argument(
        "--beside",
        action="store_true",
        help="web: beside Inspect's viewer, too, which is installed in .venv-viewer",
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}: choose from {', '.join(NAMES)}")
    # Installed, it has its bytecode. Without, each command would compile all of it anew.
    compileall.compile_dir(Path(runner.__file__).parent, quiet=1)
    machine = _machine()
    if not options.json:
        print(machine, flush=True)
    tables = []
    for name in options.names or NAMES:
        more = {"beside": True} if options.beside and name == "web" else {}
        for table in _measure(name, options.folder, options.database_url, options.quick, **more):
            tables.append(asdict(table))
            if not options.json:
                print(table.render(), flush=True)
    if options.json:
        print(json.dumps({"machine": machine, "tables": tables}, indent=1))


def _measure(
    name: str, folder: Path | None, url: str | None, quick: bool, **more: bool
) -> list[Table]:
    module = importlib.import_module(f"bench.{name}")
    with ExitStack() as opened:
        place = opened.enter_context(tempfile.TemporaryDirectory(prefix="rb-", dir=folder))
        databases = Databases(Path(place), opened, url)
        tables: list[Table] = module.measure(databases, Path(place), quick=quick, **more)
        return tables


def _machine() -> str:
    """What it is measured on: processors, load, and what a flush to this disk takes."""
    taken = flush_milliseconds(50)
    return (
        f"Python {sys.version.split()[0]}, {platform.machine()}, {os.cpu_count()} processors, "
        f"load {os.getloadavg()[0]:.1f}; a flush of 16 KB to the disk takes {taken[25]:.2f} ms "
        f"(a tenth of them over {taken[45]:.2f} ms)"
    )


if __name__ == "__main__":
    main()
