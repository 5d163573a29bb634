"""A run in a worktree of its own: it does what cannot be done twice, commits, and submits a result
that is verified, the first time in vain."""

from __future__ import annotations

from runner.core.budget import Limits
from runner.core.workspace import Verify
from runner.permissions import Rule
from tests.crash.scenario import (
    EDIT_MARK,
    EDITED,
    LIMITED,
    LOG,
    OVERLOADED,
    Files,
    Scenario,
    asked,
    bash,
    read,
)
from tests.messages_api import Reply, text, tool_use

_ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
FIXED = "fixed.txt"


def _submits(position: int, **arguments: str) -> Reply:
    return Reply([tool_use(f"toolu_{position}_0", "submit_result", arguments)])


_FILES_SCRIPT = {
    0: Reply(
        [
            text("What I begin with cannot be done twice."),
            tool_use(
                "toolu_0_0", "Bash", {"command": f"mkdir made && mkdir empty && echo 0.0 >> {LOG}"}
            ),
            read(0, 1),
        ],
        fail_first=[LIMITED],
    ),
    1: Reply(
        [
            tool_use(
                "toolu_1_0",
                "Edit",
                {"file_path": EDITED, "old_string": "mend", "new_string": f"{EDIT_MARK} mend"},
            ),
            asked(1, 1),
            bash(1, 2, "; git add -A; git commit -qm 'by the agent'"),
        ]
    ),
    2: Reply([tool_use("toolu_2_0", "Write", {"file_path": "made/new.txt", "content": "new"})]),
    3: Reply([text("That is all.")], stop_reason="end_turn", fail_first=[OVERLOADED]),
    4: _submits(4, wrong="1"),
    5: _submits(5, answer="one"),
    6: Reply([tool_use("toolu_6_0", "Write", {"file_path": FIXED, "content": "fixed"})]),
    7: _submits(7, answer="two"),
}

# Its calls cannot be done twice, its end is verified, and the first time in vain.
OWN_FILES = Scenario(
    parallel_tools="safe",
    workspace="git",
    limits=Limits(max_turns=20, max_output_tokens=2_000, token_ceiling=400_000),
    state="succeeded",
    reason="submitted",
    notes=False,
    script=_FILES_SCRIPT,
    denied=frozenset(),
    rules=(Rule("allow", "*"),),
    files=Files(
        external=(Rule("ask", "Bash(basename *)"),),
        external_calls=frozenset({"toolu_1_1"}),
        invalid=frozenset({"toolu_4_0"}),
        output_schema=_ANSWER,
        verify=Verify((f"echo verified >> {LOG}; test -e {FIXED}",)),
        verified=(False, True),
    ),
)
