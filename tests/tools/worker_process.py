"""A worker to be killed in a test: runs one Bash command, says all the while that it is alive, and
prints what came of it.

    worker_process.py HOME WORKSPACE WATCHDOG_SECONDS COMMAND [IMAGE]
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from runner.core.sandbox import Sandbox
from runner.errors import Interrupted
from runner.permissions import Decision, Rule, digest_of
from runner.permissions.decisions import Authorization, Policy
from runner.ports import Interrupt, Surroundings, ToolCall
from runner.tools.registry import BUILTIN
from runner.tools.toolbox import LocalTools


def main() -> None:
    home, workspace = Path(sys.argv[1]), Path(sys.argv[2])
    tools = LocalTools(home, home / "locks", watchdog_seconds=float(sys.argv[3]))
    surroundings = Surroundings(workspace, home / "outputs")
    done = threading.Event()

    def say_alive() -> None:
        while not done.wait(0.05):
            tools.alive()

    threading.Thread(target=say_alive).start()
    given = {"command": sys.argv[4]}
    policy = Policy((Rule("allow", "Bash"),))
    try:
        authorization = Authorization(Decision("allow"), None, digest_of(given), policy)
        bash, sandbox = BUILTIN["Bash"], Sandbox(image=sys.argv[5]) if sys.argv[5:] else None
        call = ToolCall("call_1", "run_1", bash, given, authorization, surroundings, 100.0, sandbox)
        print(tools.run(call, Interrupt()).outcome)
    except Interrupted as interrupted:
        print(interrupted)
    done.set()
    tools.close()


main()
