"""What the sweep's run goes through: tools side by side, retries, a message on the way, a denial, a
limit at the end. Four variants: one ends at its turn limit, one at its token ceiling, one is about
calls that a person is asked about, and one passes its window again and again, at its job's cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from runner.core.budget import Budget, Limits
from runner.core.context.compaction import CompactionKind
from runner.core.context.window import Context
from runner.core.conversation import Tool, Usage
from runner.core.permissions import Rule
from runner.core.prices import Terms
from runner.core.run import EndState
from runner.core.spec import JobSpec, NewRun, ParallelTools, Submission, Workspace, WorkspaceMode
from runner.llm.prices import load_prices
from runner.tools.registry import resolve
from tests.messages_api import Break, Reply, text, tool_use

SAID_FIRST = "Said before the run began."
SAID_LATER = "Said while the model was at its third reply."
SAID_LATER_AT = 2  # the reply's position

LOG = "log.txt"  # each Bash call appends its name, as in its id
EDITED, EDIT_MARK = "tasks.txt", "[x]"
NOTED = "noted.txt"
DENIED = "denied.txt"
ASKED_ABOUT = "asked.txt"
ANSWERED = "answered.txt"  # is there once the first question has its answer

MODEL = "claude-sonnet-5"
SUMMARY = "Summary"
_USAGE = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)

_TURNS = 6
_RULES = (Rule("allow", "*"), Rule("deny", "Write"))
_TOOLS = ("Bash", "Read", "Write", "Edit", "Grep", "own_note:note")
_LOST = Break("cut", after=4)
_LIMITED = Break("status", status=429, message="Slow down", headers={"retry-after": "1"})
_TOO_LONG = Break("status", status=400, message="prompt is too long: 9001 tokens > 9000 maximum")
_OVERLOADED = Break("status", status=529, headers={"retry-after": "30"})  # longer than in hand


@dataclass(frozen=True)
class Planned:
    """An answer. ``early``: it is given while a call before it in the reply still runs; ``by`` is
    who gives it: a person, or a rule that was remembered with another."""

    effect: Literal["approved", "denied"]
    by: Literal["person", "rule"] = "person"
    early: bool = False
    reason: str = ""
    command: str | None = None
    remember: str | None = None


@dataclass(frozen=True)
class Scenario:
    """A variant: how tools go side by side, where the run works, what ends it, and whether it calls
    a tool of one's own (which takes longer than all else). Calls are named by their ids: those that
    are denied, those that fail, and what a person answers about those that are asked. ``compactions``
    are the kinds of those that it needs, in order."""

    parallel_tools: ParallelTools
    workspace: WorkspaceMode
    limits: Limits
    reason: str
    notes: bool
    script: Mapping[int, Reply]
    denied: frozenset[str]
    fails: frozenset[str] = frozenset()
    answers: Mapping[str, Planned] = field(default_factory=dict)
    rules: tuple[Rule, ...] = _RULES
    state: EndState = "stopped"
    context: Context = field(default_factory=Context)
    budget: Budget = field(default_factory=Budget)
    compactions: tuple[CompactionKind, ...] = ()

    def submission(self, workspace: Path, tools: tuple[Tool, ...]) -> Submission:
        """The job, of one run."""
        spec = JobSpec(
            name="sweep",
            model=MODEL,
            system="Be brief.",
            tools=tools,
            rules=self.rules,
            limits=self.limits,
            budget=self.budget,
            context=self.context,
            parallel_tools=self.parallel_tools,
            workspace=Workspace(str(workspace), self.workspace),
        )
        return Submission("sweep.toml", "", spec, (NewRun("one", "one", "Do what you can."),))

    def reply(self, position: int) -> Reply:
        """The model's reply after so many of its messages; it never ends by itself."""
        scripted = self.script.get(position) or Reply([_bash(position, 0, "")])
        if self.notes:
            return scripted
        blocks = [block for block in scripted.blocks if block.get("name") != "note"]
        return replace(scripted, blocks=blocks)


def position_of(messages: list[dict[str, Any]]) -> int:
    """How many replies came before a request, whatever is left out of it: calls are named by theirs."""
    ids = [
        block["id"]
        for message in messages
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    return 1 + max((int(name.split("_")[1]) for name in ids), default=-1)


def summary(messages: list[dict[str, Any]], number: int) -> Reply:
    """The summary that the model writes when it is asked for the ``number``-th time: the first time
    that there is none yet it is of use, later it is empty."""
    if SUMMARY in json.dumps(messages):
        return Reply()
    return Reply([text(f"{SUMMARY} {number}: I printed numbers.")])


def tools() -> tuple[Tool, ...]:
    """The tools of the job, one of one's own among them."""
    return resolve(_TOOLS, Path(__file__).parent)


def furnish(workspace: Path) -> None:
    """Make the folder that the run works in, or on a copy of."""
    workspace.mkdir(parents=True)
    (workspace / EDITED).write_text("mend the fence\n")
    (workspace / ASKED_ABOUT).write_text("secret\n")


def _bash(position: int, index: int, after: str) -> dict[str, object]:
    command = f"echo {position}.{index} >> {LOG}{after}"
    return tool_use(f"toolu_{position}_{index}", "Bash", {"command": command})


def _read(position: int, index: int) -> dict[str, object]:
    return tool_use(f"toolu_{position}_{index}", "Read", {"file_path": EDITED})


_SCRIPT: dict[int, Reply] = {
    0: Reply(
        [
            text("I begin with several things at once."),
            _bash(0, 0, "; sleep 0.1"),
            _read(0, 1),
            tool_use("toolu_0_2", "Grep", {"pattern": "mend"}),
            _bash(0, 3, "; sleep 300 & echo started"),
        ],
        fail_first=[_LIMITED],
    ),
    1: Reply(
        [
            tool_use(
                "toolu_1_0",
                "Edit",
                {"file_path": EDITED, "old_string": "mend", "new_string": f"{EDIT_MARK} mend"},
            ),
            tool_use("toolu_1_1", "Write", {"file_path": DENIED, "content": "no"}),
            _bash(1, 2, ""),
        ]
    ),
    2: Reply([text("The third reply is cut once."), _bash(2, 0, "; exit 3")], fail_first=[_LOST]),
    3: Reply(
        [tool_use("toolu_3_0", "note", {"line": "3.0"}), _bash(3, 1, "")],
        fail_first=[_OVERLOADED],
    ),
    4: Reply([_read(4, 0), _read(4, 1)]),
}


def _asked(position: int, index: int, says: str | None = None) -> dict[str, object]:
    """A command that appends its name, and that the rules ask about."""
    command = f"basename {says or f'{position}.{index}'} >> {LOG}"
    return tool_use(f"toolu_{position}_{index}", "Bash", {"command": command})


_ASKING_SCRIPT: dict[int, Reply] = {
    0: Reply(
        [
            text("The answer comes while the second call runs."),
            _read(0, 0),
            _bash(0, 1, f"; until [ -e {ANSWERED} ]; do sleep 0.02; done"),
            _asked(0, 2),
            tool_use("toolu_0_3", "Grep", {"pattern": "mend"}),
        ],
        fail_first=[_LIMITED],
    ),
    1: Reply(
        [
            _asked(1, 0),
            _read(1, 1),
            _asked(1, 2),
            _bash(1, 3, ""),
            tool_use("toolu_1_4", "Write", {"file_path": DENIED, "content": "no"}),
        ]
    ),
    2: Reply([_asked(2, 0, says="never")]),
    3: Reply([_asked(3, 0), _asked(3, 1)], fail_first=[_OVERLOADED]),
    4: Reply(
        [
            tool_use("toolu_4_0", "Read", {"file_path": ASKED_ABOUT}),
            _read(4, 1),
            _asked(4, 2),
        ]
    ),
}
REMEMBERED = "Bash(basename *)"
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
    limits=Limits(max_turns=_TURNS, max_output_tokens=2_000, token_ceiling=200_000),
    reason="max_turns",
    notes=True,
    script=_SCRIPT,
    denied=frozenset({"toolu_1_1"}),
    fails=frozenset({"toolu_2_0"}),
)
READS_AT_ONCE = Scenario(
    parallel_tools="safe",
    workspace="copy",
    limits=Limits(max_turns=50, max_output_tokens=1_500, token_ceiling=22_500),
    reason="token_ceiling",
    notes=False,
    script=_SCRIPT,
    denied=frozenset({"toolu_1_1"}),
    fails=frozenset({"toolu_2_0"}),
)
ASKED = Scenario(
    parallel_tools="safe",
    workspace="shared",
    limits=Limits(max_turns=_TURNS, max_output_tokens=2_000, token_ceiling=200_000),
    reason="max_turns",
    notes=False,
    script=_ASKING_SCRIPT,
    denied=frozenset({"toolu_1_2", "toolu_1_4"}),
    answers=_ANSWERS,
    rules=(*_RULES, Rule("ask", "Bash(basename *)"), Rule("ask", f"Read({ASKED_ABOUT})")),
)
_NUMBERS = 1_200  # that a call prints: some 5 KB


def _prints(position: int) -> Reply:
    return Reply([_bash(position, 0, f"; seq {_NUMBERS}")])


def _muses(position: int) -> Reply:
    """What it says itself no clip shortens."""
    return Reply([text(f"I muse ({position}). " * 400), _bash(position, 0, "")])


COMPACTED = Scenario(
    parallel_tools="safe",
    workspace="shared",
    limits=Limits(max_turns=10, max_output_tokens=3_000, token_ceiling=500_000),
    reason="max_turns",
    notes=False,
    script={
        **{position: _prints(position) for position in range(5)},
        3: replace(_prints(3), fail_first=[_TOO_LONG]),
        **{position: _muses(position) for position in range(5, 10)},
    },
    denied=frozenset(),
    context=Context(window=9_000, reserve=2_000, keep_messages=4),
    budget=Budget(usd=2.0),
    compactions=("summary", "clip", "clip", "prune"),
)
SCENARIOS = {"all": ALL_AT_ONCE, "safe": READS_AT_ONCE, "asked": ASKED, "compacted": COMPACTED}


def cost_of(answer: Reply) -> int:
    """What a reply with its usage costs, in billionths of a USD."""
    usage = Usage(*(answer.usage[name] for name in _USAGE))
    tariff = load_prices().tariff(MODEL, Terms())
    assert tariff is not None
    return tariff.cost(usage, hour_cache=False)


def with_usage(answer: Reply, prompt_tokens: int) -> Reply:
    """The reply, with tokens of all four kinds that are known exactly."""
    quarter = prompt_tokens // 4
    return replace(
        answer,
        usage={
            "input_tokens": prompt_tokens - 2 * quarter,
            "cache_read_input_tokens": quarter,
            "cache_creation_input_tokens": quarter,
            "output_tokens": answer.output_tokens(),
        },
    )
