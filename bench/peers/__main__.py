"""``python -m bench.peers [--quick] [--write]``: Runner beside the same loop on LangGraph and on DBOS.

All sides send the same requests to the same local server, which takes no time to think, and read a file of
1 KB once a turn. Peers run in an environment of their own (``.venv-peers``, from ``requirements.txt`` here,
which ``pip-compile --generate-hashes`` makes of ``requirements.in``). ``--write`` writes
the measured part of ``docs/performance.md`` and its plot.
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

# From here on the page is written by hand.
BY_HAND = "\n## What would make it faster"

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
        page = ROOT / "docs/performance.md"
        _, heading, by_hand = page.read_text().partition(BY_HAND)
        page.write_text(report + heading + by_hand)
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
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
