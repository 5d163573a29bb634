"""The views of the record, which docs/views.md lists: their names, columns and what these mean.

The initial migration creates them. They are stable: a column keeps its name, its kind and its
meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.queries.rows import Kind


@dataclass(frozen=True, slots=True)
class ViewColumn:
    name: str
    kind: Kind
    meaning: str


@dataclass(frozen=True, slots=True)
class View:
    name: str
    meaning: str
    columns: tuple[ViewColumn, ...]


_OF_RUN = """\
run_id text the run
job_id text its job
item text the key of its item"""
_OF_CALL = """\
call_id text the tool call, as `runner show` takes it
message integer the message that asked for it, from 0
position integer its place among the calls of that message, from 0
turn integer the turn, from 1
tool text the tool's name"""
_TOKENS = """\
input_tokens integer tokens of input, without those read from or written to the cache
cache_read_tokens integer tokens of input that were read from the cache
cache_creation_tokens integer tokens of input that were written to the cache
output_tokens integer tokens of output"""

# What comes to a view after its first version stands at its end.
_OF_TREE = """\
root_run text the run of the item at the top of its tree, which may be itself
parent_run text of a sub-agent: the run that started it
depth integer how many runs are above it: 0 for the run of an item
agent_type text of a sub-agent: its type, as the job file names it"""
_IN_TREE = f"""\
{_OF_TREE}
label text its place in its tree: `3.1` is the first child of the third; empty for a root"""
_CALL_IN_TREE = f"""\
{_OF_TREE}
label text its place in its tree: `3.2` is the second call of the third child"""

_VIEWS = f"""\
# v_runs: One row for each run.
run_id text the run
job_id text its job
job text the job's name
item text the key of its item
state text `queued`, `running`, `waiting`, `succeeded`, `failed`, `cancelled` or `stopped`
reason text why it is in this state (docs/operations.md lists the reasons)
detail text more about the reason
model text the model that it calls
created_at time when it was submitted
started_at time when a worker first had it
ended_at time when it ended
seconds seconds from `started_at` to `ended_at`
attempts integer how often a worker took it
turns integer turns so far, in a fork the copied ones too
messages integer messages so far, in a fork the copied ones too
denials integer tool calls that were denied
{_TOKENS}
max_turns integer its limit of turns
fork_of text the run that it was forked from
fork_turn integer the turn after which it was forked
fresh_of text the run that it replaces (`retry --fresh`)
workspace text the path of its own workspace
branch text the branch that it works on
commit_id text the commit that it was delivered in
{_IN_TREE}
parent_call text of a sub-agent: the tool call that asked for it

# v_turns: One row for each turn of a run: a reply of the model with its tool calls, without
# summaries (`v_costs` has them) and without the turns that a fork copied.
{_OF_RUN}
turn integer the turn, from 1
started_at time when its first model call began
ended_at time when its last call ended
seconds seconds from `started_at` to `ended_at`
model_calls integer model calls, failed ones included
tool_calls integer tool calls
failed_calls integer tool calls with another outcome than `succeeded` and `denied`
denied_calls integer tool calls that were denied
stop_reason text why the model stopped; NULL: it has not replied
{_TOKENS}
{_IN_TREE}

# v_messages: One row for each block of a conversation, copied ones included.
{_OF_RUN}
message integer the message, from 0
position integer the block's place in it, from 0
turn integer the turn that it belongs to; 0 for the prompt
role text `user` or `assistant`
type text `text`, `thinking`, `tool_use`, `tool_result` …
at time when it was stored
text text the text, thinking, tool input as JSON, or result as the model saw it
tool text of a `tool_use`: the tool's name
tool_use_id text of a `tool_use` and its `tool_result`: the API's id of the call
content text the whole block as JSON
copied integer 1: copied by a fork from its original, or by a sub-agent from its parent
{_IN_TREE}
spoken_by text of a user's words in an imported session: `person`, `machine` or `peer`

# v_tool_calls: One row for each tool call, without the calls that a fork copied.
{_OF_RUN}
{_OF_CALL}
tool_use_id text the API's id of the call
input text its input as JSON, as the model asked for it
command text `command` of the input, as Bash has it
path text `file_path` or `path` of the input
decision text `allow`, `ask` or `deny`; NULL before it was decided
rule text the rule that decided; NULL: none did
outcome text `succeeded`, `failed`, `denied` …; NULL before it ended
interrupted integer 1: its run ended before it did
started_at time when it began
ended_at time when its result was stored
seconds seconds how long it ran
output text the result, as the model saw it
whole_output_bytes integer size of the whole output, if the model saw less
tree_before text snapshot of the workspace before it, if it may write
tree_after text snapshot of the workspace after it, if it may write
{_CALL_IN_TREE}
updated_input text the input as a hook changed it, as JSON
containment text what contained its processes (`none`: nothing) and held its limits; NULL: it started none

# v_decisions: One row for each decided tool call, with the question and the answer if there was
# one, without the calls that a fork copied.
{_OF_RUN}
{_OF_CALL}
input text its input as JSON, as the model asked for it
at time when the reply that asked for it was stored
decision text `allow`, `ask` or `deny`
rule text the rule that decided; NULL: none did
rule_effect text the effect of that rule
rule_origin text where the rule is from (`job`, `remembered`, `standing` …); NULL: a sub-agent's type
rule_author text who wrote it
rule_why text its own reason (`why`)
rules_snapshot integer the snapshot of the job's rules that it was decided by
matched text the text that the rule matched
decision_reason text more about why; of a hook or Claude Code: who denied it
denial text why it was denied although its decision or the answer allowed it
approval_id text the question
asked_at time when it was asked
answer text `approved`, `denied`, `expired` or `cancelled`
answered_at time when it was answered
waited_seconds seconds from `asked_at` to `answered_at`
answered_by text who answered
answered_via text `person`, `rule`, `timeout`, `cancel` or `end`
answer_reason text the reason that was given
edited_input text the input as the answer changed it, as JSON
outcome text the outcome of the call
{_CALL_IN_TREE}
updated_input text the input as a hook changed it, as JSON
asked_by_hook integer 1: a hook asked although the rules allowed

# v_costs: One row for each model call that has ended, summaries and failed calls included. The
# sums of `usd` are those of `runner costs`.
{_OF_RUN}
number integer the call's number in its run, from 1
turn integer the turn that it was made for
purpose text `turn` or `summary`
model text the model, as the API names it
at time when it began
seconds seconds how long it took
{_TOKENS}
usd usd its cost at list prices; NULL if unknown
usd_at_most usd the most that it can have cost, if its usage is unknown
basis text `usage`, `at most` (usage unknown), `no price` (of its model) or `scripted` (free)
{_IN_TREE}
batch integer 1: it went into a Message Batch, at half the price

# v_events: One row for each event of a run, and for each of a job as a whole (then `run_id`,
# `item` and `attempt` are NULL).
job_id text the job
run_id text the run
item text the key of the run's item
attempt integer the attempt of the run
number integer the event's number in its run, or in its job, from 1
at time when it happened
type text what happened (docs/events.md lists the types)
who text who did it (`runner`: Runner itself), if a person can do it
why text the reason that was given, or why it happened
old_value text of a change: the old values, as JSON
new_value text of a change: the new values, as JSON
data text all data of the event, as JSON
{_IN_TREE}

# v_hooks: One row for each time that a hook ran.
{_OF_RUN}
number integer its number among those of the run, from 1
event text its event: `RunStart`, `PreToolUse`, `PostToolUse`, `TurnEnd` or `RunEnd`
name text its command, or its function in Python
turn integer the turn; 0 before the first
call_id text of a tool call: the call, as `runner show` takes it
tool text of a tool call: the tool's name
attempt integer the attempt of the run
started_at time when it began
ended_at time when it ended
seconds seconds how long it ran
outcome text `succeeded`, `failed`, `timed_out`, `interrupted` or `unknown`; NULL before it ended
exit_code integer its exit code; negative: the signal that ended it
decision text `allow`, `ask`, `deny` or `block`, if it gave one
reason text why it decided so
context text its text for the model
stops integer 1: it stopped the run
output text its standard output, as far as it is kept
errors text its standard error, as far as it is kept
tree_before text snapshot of the workspace before it
tree_after text snapshot of the workspace after it, if it changed files
{_OF_TREE}
label text the place of its call in the tree; without a call, of its run

# v_connections: One row for each connection that a call asked the proxy of its sandbox for; many
# alike of one call are one.
{_OF_RUN}
number integer the number of its event in its run, from 1
made_by text `call`, `verify` or `hook`
turn integer the turn; 0 before the first
call_id text of a tool call: the call, as `runner show` takes it
tool text of a tool call: the tool's name
at time when it was asked for
host text the name of the host
port integer the port
outcome text `allowed`, `refused` or `failed`
why text why it was not made
connections integer how many there were
sent_bytes integer bytes that the host was sent
received_bytes integer bytes that it sent
{_OF_TREE}
label text the place of its call in the tree; without a call, of its run"""


def _view(text: str) -> View:
    """A view from its name and meaning, and its columns, one a line: name, kind and meaning. A time has
    its text in UTC beside it."""
    said, columns = [], []
    for line in text.splitlines():
        if line.startswith("# "):
            said.append(line.removeprefix("# "))
            continue
        name, kind, meaning = line.split(maxsplit=2)
        columns.append(ViewColumn(name, kind, meaning))  # type: ignore[arg-type]  # a test reads all
        if kind == "time":
            as_text = f"`{name}` as 2026-11-22T22:00:00Z"
            columns.append(ViewColumn(f"{name}_text", "text", as_text))
    name, _, meaning = " ".join(said).partition(": ")
    return View(name, meaning, tuple(columns))


VIEWS = tuple(map(_view, _VIEWS.split("\n\n")))
