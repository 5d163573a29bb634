"""A worker to be killed in a test: runs one Bash command and prints what came of it.

    worker_process.py HOME WORKSPACE WATCHDOG_SECONDS COMMAND
"""

from __future__ import annotations

import sys
from pathlib import Path

from runner.engine.ports import Interrupt, Surroundings, ToolCall
from runner.errors import Interrupted
from runner.tools.builtin import BUILTIN
from runner.tools.toolbox import LocalTools


def main() -> None:
    home, workspace = Path(sys.argv[1]), Path(sys.argv[2])
    tools = LocalTools(home, home / "locks", watchdog_seconds=float(sys.argv[3]))
    surroundings = Surroundings(workspace, home / "outputs")
    given = {"command": sys.argv[4]}
    try:
        call = ToolCall("call_1", "run_1", BUILTIN["Bash"], given, surroundings, 100.0)
        print(tools.run(call, Interrupt()).outcome)
    except Interrupted as interrupted:
        print(interrupted)
    tools.close()


main()
