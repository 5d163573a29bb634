"""``python -m bench.peers [--quick] [--write]``: Runner beside the same loop on LangGraph and on DBOS.

All sides send the same requests to the same local server, which takes no time to think, and read a file of
1 KB once a turn. Peers run in an environment of their own (``.venv-peers``, from ``requirements.txt`` here,
which ``pip-compile --generate-hashes`` makes of ``requirements.in``). ``--write`` writes
``docs/performance.md`` and its plot.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from bench.crowd import LATENCY, TURNS, bare_crowd, runner_crowd
from bench.disk import flush_milliseconds
from bench.peers.environment import environment
from bench.peers.plot import plot
from bench.stage import bare
from bench.stage.databases import Databases
from bench.stage.material import READ, SYSTEM, make_workspace, prompt
from bench.stage.server import serving
from bench.stage.sides import Side, in_worker
from tests.messages_api import API_KEY

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PEERS = ("langgraph", "dbos")
RUNS, THREADS = 200, 50
LENGTHS = {10: 7, 50: 5, 200: 3}
QUICK_LENGTHS = {10: 2, 50: 1}

# What profiles say of the rest, by hand.
REST = """
## What would make it faster

The crowd's target is 1.15 times the loop that stores nothing on SQLite, and 1.25 on Postgres. No
single part of a turn stands out any more. By cProfile over threads' processor time, the SDK and the
HTTP layers below it take a third, the store with SQLAlchemy and the driver a fifth, the state and its
decisions a sixth, tools with their paths and checks a twelfth. On Postgres nine of ten updates of a
run's row are HOT already, and a `fillfactor` of 70 made the table larger (344 to 400 KB at 50 runs of
20 turns). It takes one of these, and none is worth its code yet: an HTTP client in C below
the SDK, statements without SQLAlchemy's transactions, or a worker's runs spread over two processes,
because all of the threads share one interpreter lock.

A turn with 1.4 KB of content adds 4.0 KB on SQLite and 5.1 on Postgres, means of turns 10 to 190: its three
blocks 2.0 and 2.0 (0.4 are ends of pages too short for a result), its seven events 1.4 and 1.5, the rows of
its two calls 0.3 and 0.7, indexes 0.2 and 0.8 (all are primary keys). Less would take events without totals
and ids of calls (0.2 KB), or a number in place of the run's id of 30 characters (0.4 and 0.6 KB). Of 1.6 ms
that Postgres works for a turn, 1.4 execute its two statements and 0.1 plan them: a `prepare_threshold` of 1
and generic plans change nothing (in crowds 2.4, 2.1, 2.7 ms before; then 2.4, 2.1, 2.9 and 2.1, 2.3, 2.7).

Measured without the peers (`python -m bench turns crowd recovery start`, a quiet machine, load 0.8): over
the loop that stores nothing, a turn takes 2.5, 1.3 and 0.2 ms more on SQLite at 10, 50 and 200 turns, and
4.1, 3.1 and 1.4 on Postgres (targets 2 and 3.5). Only 10 turns miss them: a run's claim, start and end
take some 14 ms, which is 1.4 ms of each of 10 turns. To meet them, the start would have to be stored with
the first step. 50 runs at once take 156 MiB and 500 take 223 (targets 130 and 200). The loop that stores
nothing takes 130 at 50: the SDK's import alone is 59, SQLAlchemy's 21. Less takes a client without the
SDK's typed models.
"""

# Takes conversations to work; returns when they began and ended, and the processor time of the process.
Ask = Callable[..., Mapping[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter conversations")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    python = environment("peers", HERE)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="rb-")))
        databases = Databases(folder, opened)
        workspace = make_workspace(folder)
        lengths = QUICK_LENGTHS if options.quick else LENGTHS
        turns = _turns(python, databases, folder, workspace, lengths)
        crowd = _crowd(python, databases, folder, workspace, 1 if options.quick else 3)
    report = _report(turns, crowd, lengths)
    print(report)
    if options.write:
        (ROOT / "docs/performance.md").write_text(report)
        (ROOT / "docs/performance.svg").write_text(plot(turns))


@contextmanager
def _peer(python: Path, name: str, database_url: str, api_url: str, file: Path) -> Iterator[Ask]:
    told = {"system": SYSTEM, "tools": [READ.definition()], "prompt": _prompt()}
    command = [python, HERE / "side.py", name, database_url, api_url, file, json.dumps(told)]
    environment = {**os.environ, "ANTHROPIC_API_KEY": API_KEY}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(keys: list[str], turns: int, threads: int = 1) -> Mapping[str, float]:
            stdin.write(json.dumps({"keys": keys, "turns": turns, "threads": threads}) + "\n")
            stdin.flush()
            answer: Mapping[str, float] = json.loads(stdout.readline())
            return answer

        yield ask
        stdin.close()


def _prompt() -> str:
    """The first message of a conversation, with fields for its number of turns and its key."""
    return prompt("KEY", 12345).replace("KEY", "{key}").replace("12345", "{turns}")


def _turns(
    python: Path, databases: Databases, folder: Path, workspace: Path, lengths: Mapping[int, int]
) -> dict[str, dict[int, float]]:
    """Return the milliseconds of a turn of each side, by the length of the conversation: medians of
    conversations that the sides have in turns."""
    with ExitStack() as opened:
        server = opened.enter_context(serving())
        sides = _sides(python, databases, folder, workspace, server.url, opened)
        found: dict[str, dict[int, float]] = {name: {} for name in sides}
        for turns, repetitions in lengths.items():
            taken: dict[str, list[float]] = {name: [] for name in sides}
            for round_ in range(-1, repetitions):  # the first warms up
                for name, side in sides.items():
                    length = turns if round_ >= 0 else 3
                    seconds = side(f"r{turns}x{round_ + 1}", length)
                    if round_ >= 0:
                        taken[name].append(1000 * seconds / turns)
            for name, each in taken.items():
                found[name][turns] = median(each)
    return found


def _sides(
    python: Path, databases: Databases, folder: Path, workspace: Path, url: str, opened: ExitStack
) -> dict[str, Side]:
    file = workspace / "notes.txt"
    api = opened.enter_context(bare.client(url))

    def loop(key: str, turns: int) -> float:
        began = datetime.now(UTC)
        bare.converse(api, key, turns, file)
        return (datetime.now(UTC) - began).total_seconds()

    sides: dict[str, Side] = {"no storage": loop}
    for kind in databases.kinds:
        database_url = opened.enter_context(databases.empty(kind))
        sides[f"Runner, {kind}"] = opened.enter_context(in_worker(database_url, workspace, url))
    for name in PEERS:
        for kind in databases.kinds:
            at = opened.enter_context(_empty(databases, kind, folder, name))
            ask = opened.enter_context(_peer(python, name, at, url, file))
            sides[f"{name}, {kind}"] = _alone(ask)
    return sides


def _alone(ask: Ask) -> Side:
    def side(key: str, turns: int) -> float:
        answer = ask([key], turns)
        return answer["ended"] - answer["began"]

    return side


@contextmanager
def _empty(databases: Databases, kind: str, folder: Path, name: str) -> Iterator[str]:
    """The URL of a database without any table of Runner's, where a file is enough for that."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(dir=folder) as own:
            yield f"sqlite:///{own}/{name}.db"
    else:
        with databases.empty(kind) as url:
            yield url


def _crowd(
    python: Path, databases: Databases, folder: Path, workspace: Path, repetitions: int
) -> dict[str, tuple[float, float]]:
    """Return, of each side, the seconds from the first conversation's start to the last one's end and
    the processor seconds of its process: medians of crowds that the sides have in turns."""
    taken: dict[str, list[tuple[float, float]]] = {}
    keys = [str(number) for number in range(RUNS)]
    with serving(latency=LATENCY, replay=True) as server:
        for _ in range(repetitions):
            numbers = bare_crowd(workspace, server.url, runs=RUNS, threads=THREADS)
            taken.setdefault("no storage", []).append((numbers["working"], numbers["cpu seconds"]))
            for kind in databases.kinds:
                numbers = runner_crowd(
                    databases, kind, folder, workspace, server.url, runs=RUNS, slots=THREADS
                )
                each = taken.setdefault(f"Runner, {kind}", [])
                each.append((numbers["working"], numbers["cpu seconds"]))
            for name in PEERS:
                for kind in databases.kinds:
                    with (
                        _empty(databases, kind, folder, name) as at,
                        _peer(python, name, at, server.url, workspace / "notes.txt") as ask,
                    ):
                        ask(["warm"], 2)
                        answer = ask(keys, TURNS, THREADS)
                    seconds = answer["ended"] - answer["began"]
                    each = taken.setdefault(f"{name}, {kind}", [])
                    each.append((seconds, answer["cpu_seconds"]))
    return {
        side: (median(one for one, _ in each), median(cpu for _, cpu in each))
        for side, each in taken.items()
    }


def _report(
    turns: Mapping[str, Mapping[int, float]],
    crowd: Mapping[str, tuple[float, float]],
    lengths: Mapping[int, int],
) -> str:
    header = ["side", *(f"{length} turns" for length in lengths), "crowd", "crowd, CPU"]
    bare_seconds, bare_cpu = crowd["no storage"]
    rows = [
        [
            side,
            *(f"{of_side[length]:.1f} ms" for length in lengths),
            f"{crowd[side][0] / bare_seconds:.2f} x",
            f"{crowd[side][1] / bare_cpu:.2f} x",
        ]
        for side, of_side in turns.items()
    ]
    taken = flush_milliseconds(50)
    lines = [
        "# Performance",
        "",
        "What durability costs, beside two libraries that make the same loop durable. A turn is one",
        "streamed reply and one read of a file of 1 KB; the local server takes no time to think, so",
        f"whatever is above the first row is the side's own. A crowd is {RUNS} conversations of {TURNS}",
        f"turns with {1000 * LATENCY:g} ms a reply, {THREADS} at once, in times of the loop that stores",
        'nothing. LangGraph stores each step before the next (`durability="sync"`), and each model call',
        "and tool call is a step of DBOS, as with Runner. Neither checks rules, counts money or runs its",
        "tools in a process of their own; Runner does.",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        "![Milliseconds of a turn against the length of the conversation](performance.svg)",
        "",
        "Medians of conversations that the sides have in turns, in one run of",
        f"`python -m bench.peers --write` on {datetime.now(UTC):%Y-%m-%d}: Python",
        f"{platform.python_version()}, {platform.machine()}, {os.cpu_count()} processors, load "
        f"{os.getloadavg()[0]:.1f}, {taken[25]:.2f} ms for a flush of 16 KB",
        "to the disk. Versions of the peers: `bench/peers/requirements.in`.",
        REST,
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
