"""The scenario's variants.

Four in an unrecorded workspace or a copy: one ends at its turn limit, one at its token ceiling, one asks a
person about calls, and one passes its window again and again, at its job's cost. Four in a worktree: calls
that cannot be done twice, the same calls by an MCP server, atomic batches of writing calls, and workers on
hosts that share only a remote. One sends its calls in Message Batches.
"""

from __future__ import annotations

from dataclasses import replace

from runner.core.budget import Budget, Limits
from runner.core.context import Context
from runner.core.workspace import Verify
from runner.permissions import Rule
from tests.crash.scenario import (
    ANSWERED,
    ASKED_ABOUT,
    DENIED,
    EDIT_MARK,
    EDITED,
    LIMITED,
    LOG,
    LOST,
    OVERLOADED,
    REMEMBERED,
    RULES,
    TOO_LONG,
    TURNS,
    Files,
    Planned,
    Scenario,
    asked,
    bash,
    read,
    served,
)
from tests.messages_api import Reply, text, tool_use

_ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
FIXED = "fixed.txt"


def _writes(position: int, index: int, path: str) -> dict[str, object]:
    return tool_use(f"toolu_{position}_{index}", "Write", {"file_path": path, "content": "written"})


def _submits(position: int, **arguments: str) -> Reply:
    return Reply([tool_use(f"toolu_{position}_0", "submit_result", arguments)])


_BEGIN = {
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
            _writes(1, 3, "made/new.txt"),
        ]
    ),
    2: replace(_submits(2, wrong="1"), fail_first=[OVERLOADED]),
}


def _until_verified(position: int) -> dict[int, Reply]:
    """It submits in vain, mends what was verified, and submits again."""
    return {
        position: _submits(position, answer="one"),
        position + 1: Reply([_writes(position + 1, 0, FIXED)]),
        position + 2: _submits(position + 2, answer="two"),
    }


# Its calls cannot be done twice, its end is verified, and the first time in vain.
OWN_FILES = Scenario(
    parallel_tools="safe",
    workspace="git",
    limits=Limits(max_turns=20, max_output_tokens=2_000, token_ceiling=400_000),
    state="succeeded",
    reason="submitted",
    notes=False,
    script={
        **_BEGIN,
        3: Reply([text("That is all.")], stop_reason="end_turn"),
        **_until_verified(4),
    },
    denied=frozenset(),
    rules=(Rule("allow", "*"),),
    files=Files(
        external=(Rule("ask", "Bash(basename *)"),),
        external_calls=frozenset({"toolu_1_1"}),
        invalid=frozenset({"toolu_2_0"}),
        output_schema=_ANSWER,
        verify=Verify((f"echo verified >> {LOG}; test -e {FIXED}",)),
        verified=(False, True),
    ),
)


_SCRIPT: dict[int, Reply] = {
    0: Reply(
        [
            text("I begin with several things at once."),
            bash(0, 0, "; sleep 0.1"),
            read(0, 1),
            tool_use("toolu_0_2", "Grep", {"pattern": "mend"}),
            bash(0, 3, "; sleep 300 & echo started"),
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
            tool_use("toolu_1_1", "Write", {"file_path": DENIED, "content": "no"}),
            bash(1, 2, ""),
        ]
    ),
    2: Reply([text("The third reply is cut once."), bash(2, 0, "; exit 3")], fail_first=[LOST]),
    3: Reply(
        [tool_use("toolu_3_0", "note", {"line": "3.0"}), bash(3, 1, "")], fail_first=[OVERLOADED]
    ),
    4: Reply([read(4, 0), read(4, 1)]),
}


_ASKING_SCRIPT: dict[int, Reply] = {
    0: Reply(
        [
            text("The answer comes while the second call runs."),
            read(0, 0),
            bash(0, 1, f"; until [ -e {ANSWERED} ]; do sleep 0.02; done"),
            asked(0, 2),
            tool_use("toolu_0_3", "Grep", {"pattern": "mend"}),
        ],
        fail_first=[LIMITED],
    ),
    1: Reply(
        [
            asked(1, 0),
            read(1, 1),
            asked(1, 2),
            bash(1, 3, ""),
            tool_use("toolu_1_4", "Write", {"file_path": DENIED, "content": "no"}),
        ]
    ),
    2: Reply([asked(2, 0, says="never")]),
    3: Reply([asked(3, 0), asked(3, 1)], fail_first=[OVERLOADED]),
    4: Reply([tool_use("toolu_4_0", "Read", {"file_path": ASKED_ABOUT}), read(4, 1), asked(4, 2)]),
}
_ANSWERS = {
    "toolu_0_2": Planned("approved", early=True),
    "toolu_1_0": Planned("approved"),
    "toolu_1_2": Planned("denied", reason="Not this one."),
    "toolu_2_0": Planned("approved", command=f"basename 2.0 >> {LOG}"),
    "toolu_3_0": Planned("approved", remember=REMEMBERED),
    "toolu_3_1": Planned("approved", by="rule"),
    "toolu_4_0": Planned("approved"),
}

ALL_AT_ONCE = Scenario(
    parallel_tools="all",
    workspace="shared",
    limits=Limits(max_turns=TURNS, max_output_tokens=2_000, token_ceiling=200_000),
    reason="max_turns",
    notes=True,
    script=_SCRIPT,
    denied=frozenset({"toolu_1_1"}),
    fails=frozenset({"toolu_2_0"}),
)
READS_AT_ONCE = replace(
    ALL_AT_ONCE,
    parallel_tools="safe",
    workspace="copy",
    limits=Limits(max_turns=50, max_output_tokens=1_500, token_ceiling=18_000),
    reason="token_ceiling",
    notes=False,
)
ASKED = replace(
    ALL_AT_ONCE,
    parallel_tools="safe",
    notes=False,
    script=_ASKING_SCRIPT,
    denied=frozenset({"toolu_1_2", "toolu_1_4"}),
    fails=frozenset(),
    answers=_ANSWERS,
    rules=(*RULES, Rule("ask", "Bash(basename *)"), Rule("ask", f"Read({ASKED_ABOUT})")),
)
_NUMBERS = 1_200  # that a call prints: some 5 KB


def _prints(position: int) -> Reply:
    return Reply([bash(position, 0, f"; seq {_NUMBERS}")])


def _muses(position: int) -> Reply:
    """No truncation shortens its own words."""
    return Reply([text(f"I muse ({position}). " * 900), bash(position, 0, "")])


COMPACTED = Scenario(
    parallel_tools="safe",
    workspace="shared",
    limits=Limits(max_turns=10, max_output_tokens=3_000, token_ceiling=500_000),
    reason="max_turns",
    notes=False,
    script={
        **{position: _prints(position) for position in range(5)},
        3: replace(_prints(3), fail_first=[TOO_LONG]),
        **{position: _muses(position) for position in range(5, 10)},
    },
    denied=frozenset(),
    context=Context(window=9_000, reserve=2_000, keep_messages=4),
    budget=Budget(usd=2.0),
    compactions=("clip", "clip", "summary", "prune"),
)

# All its calls but the first go in Message Batches.
LANE = replace(
    ALL_AT_ONCE,
    lane="batch",
    notes=False,
    limits=Limits(max_turns=3, max_output_tokens=2_000, token_ceiling=200_000),
    script={
        0: Reply([text("This goes alone."), bash(0, 0, ""), read(0, 1)], fail_first=[LIMITED]),
        1: _SCRIPT[1],
        2: Reply([bash(2, 0, "; exit 3")], fail_first=[LIMITED]),
    },
)
BATCHES = replace(ALL_AT_ONCE, workspace="git")
HOSTS = replace(
    OWN_FILES, script={**_BEGIN, **_until_verified(3)}, files=replace(OWN_FILES.files, hosts=True)
)
# Its calls cannot be done twice because an MCP server does them.
SERVING = replace(
    OWN_FILES,
    script={
        0: _BEGIN[0],
        1: Reply([_BEGIN[1].blocks[0], served(1, 1), _BEGIN[1].blocks[2]]),
        2: Reply([served(2, 0), _writes(2, 1, FIXED)], fail_first=[OVERLOADED]),
        3: _submits(3, answer="one"),
    },
    files=replace(
        OWN_FILES.files,
        external=(),
        external_calls=frozenset({"toolu_1_1", "toolu_2_0"}),
        invalid=frozenset(),
        verified=(True,),
        served=True,
    ),
)
SCENARIOS = {
    "all": ALL_AT_ONCE,
    "safe": READS_AT_ONCE,
    "asked": ASKED,
    "compacted": COMPACTED,
    "files": OWN_FILES,
    "batches": BATCHES,
    "lane": LANE,
    "hosts": HOSTS,
    "served": SERVING,
}
