"""(j) What the sandbox adds to a call, in milliseconds."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from statistics import median

from bench.stage.databases import Databases
from bench.tables import Table, held
from runner.core.sandbox import Sandbox
from runner.permissions import Rule
from runner.permissions.decisions import Policy
from runner.ports import Command, Interrupt, Surroundings
from runner.tools.toolbox import LocalTools

MOST_MILLISECONDS = 12.0  # more than without
RULES = ("Read(.env)", "Read(/secrets/**)", "Read(~/.ssh/**)", "Edit(*.lock)", "Edit(/config/**)")


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Measure calls of `true`, with and without the sandbox in turn, in workspaces of several sizes."""
    table = Table("sandbox", "(j) milliseconds that the sandbox adds to a call")
    repetitions = 15 if quick else 60
    home = folder / "home"
    with closing(LocalTools(home, folder / "locks")) as tools:
        for files in (100, 2_000) if quick else (100, 2_000, 20_000):
            workspace = _workspace(home / "workspaces" / f"run_{files}", files)
            for rules in ((), RULES):
                policy = Policy(tuple(Rule("deny", text) for text in rules))
                table.rows.append(_row(tools, workspace, policy, files, repetitions))
    table.notes += [
        "cold: the first call in a workspace, which reads all its folders",
        "time: the fastest calls are compared; the medians show the load",
        "hosts: what a list of hosts adds to that (fastest): the proxy's port is opened inside",
        f"{len(RULES)} rules deny 12 paths; with them each folder is looked at before and after a call",
    ]
    return [table]


def _row(
    tools: LocalTools, workspace: Path, policy: Policy, files: int, repetitions: int
) -> dict[str, object]:
    cold = _milliseconds(tools, workspace, policy, Sandbox("required"))
    hosts = Sandbox("required", network=("packages.example.org",))
    asked = {"without": None, "with": Sandbox("required"), "hosts": hosts}
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(repetitions):
        for name, sandbox in asked.items():
            taken[name].append(_milliseconds(tools, workspace, policy, sandbox))
    fastest = min(taken["with"]) - min(taken["without"])
    return {
        "files": files,
        "deny rules": len(policy.rules),
        "cold": cold,
        "without": median(taken["without"]),
        "with": median(taken["with"]),
        "added": median(taken["with"]) - median(taken["without"]),
        "fastest added": fastest,
        "hosts": min(taken["hosts"]) - min(taken["with"]),
        "time": held(fastest, MOST_MILLISECONDS),
    }


def _milliseconds(
    tools: LocalTools, workspace: Path, policy: Policy, sandbox: Sandbox | None
) -> float:
    surroundings = Surroundings(workspace, workspace.parent.parent / "outputs" / "run_1")
    command = Command("bench", "run_1", "true", surroundings, 60, sandbox, policy)
    began = time.perf_counter()
    result = tools.command(command, Interrupt())
    taken = (time.perf_counter() - began) * 1_000
    assert result.outcome == "succeeded", result.content
    return taken


def _workspace(folder: Path, files: int) -> Path:
    """Make a tree with 20 files in each folder. RULES deny some of the files."""
    for number in range(files):
        place = folder / f"part{number // 400}" / f"sub{number // 20 % 20}"
        if number % 20 == 0:
            place.mkdir(parents=True)
        (place / f"file{number}.py").touch()
    for name in (".env", "part0/.env", "part0/sub0/.env", "secrets/a", "config/a", "a.lock"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    for number in range(6):
        (folder / "part0" / f"{number}.lock").touch()
    return folder
