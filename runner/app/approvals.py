"""Questions that wait for a person: grouped, named by parts of ids, and answered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner.app.handle import App
from runner.app.humanize import cell, decider
from runner.app.humanize import lines as visible_lines
from runner.core.agents import is_within, place_of
from runner.core.commands import Answered, Question, Reply, Target
from runner.errors import NotFoundError, UsageError
from runner.permissions import STANDING
from runner.queries import decisions
from runner.queries.decisions import Why
from runner.queries.filters import Call, call_labels
from runner.queries.jobs import list_runs, show_job
from runner.queries.names import SHORTEST_SUFFIX, Found
from runner.store import ids
from runner.store.approvals import answer as store_answer
from runner.store.questions import waiting
from runner.tools.checking import input_problem

_ID_LENGTH = 10
_MOST_CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class Group:
    """Questions of one job that ask for the same, the oldest first."""

    key: str
    questions: tuple[Question, ...]
    labels: Mapping[Call, str] = field(default_factory=dict)  # of calls in their trees (3.2)
    why: Why | None = None  # why the first was asked

    @property
    def id(self) -> str:
        """``grp_…``; it stays the same as long as the group has questions."""
        one = self.questions[0]
        named = "\0".join((one.job_id, one.tool, self.key)).encode(errors="surrogatepass")
        return f"grp_{hashlib.sha256(named).hexdigest()[:_ID_LENGTH]}"

    @property
    def run_count(self) -> int:
        return len({each.run_id for each in self.questions})

    @property
    def expires_at(self) -> float | None:
        """The time at which the first question expires; None if none does."""
        return min((each.expires_at for each in self.questions if each.expires_at), default=None)

    @property
    def suggested_rule(self) -> str | None:
        """The rule that would answer all questions; None if they differ or there is none."""
        rules = {each.suggested_rule for each in self.questions}
        return (rules.pop() or None) if len(rules) == 1 else None

    @property
    def by_input(self) -> list[list[Question]]:
        """The questions by their input, the most frequent first."""
        found: dict[str, list[Question]] = {}
        for each in self.questions:
            found.setdefault(each.input_digest, []).append(each)
        return sorted(found.values(), key=len, reverse=True)

    def label(self, question: Question) -> str:
        """Return the name of a question's call in its tree; empty if no sub-agent made it."""
        is_nested = place_of(question.run_id)["depth"] > 0
        key = question.run_id, question.turn, question.position
        return self.labels[key] if is_nested else ""

    def as_json(self) -> dict[str, Any]:
        one = self.questions[0]
        names = (
            *("item_key", "turn", "input", "input_digest", "summary", "asked_again"),
            *("suggested_rule", "asked_at", "expires_at"),
        )
        return {
            "id": self.id,
            "group_key": self.key,
            **{name: getattr(one, name) for name in ("job_id", "job_name", "tool")},
            "runs": self.run_count,
            "asked_at": one.asked_at,
            "expires_at": self.expires_at,
            "suggested_rule": self.suggested_rule,
            "calls": [
                {
                    "id": each.id,
                    "call_id": call_id_of(each),
                    "run_id": each.run_id,
                    **place_of(each.run_id),
                    "label": self.labels[each.run_id, each.turn, each.position],
                    **{name: getattr(each, name) for name in names},
                }
                for each in self.questions
            ],
        }


def call_id_of(question: Question) -> str:
    """Return the id of the tool call of a question."""
    return ids.call_id(question.run_id, question.turn, question.position)


def waiting_groups(app: App, name: str | None = None) -> list[Group]:
    """Return the questions that wait, grouped; the group with the oldest question first. A ``name``
    is of a job, or of a run with its sub-agents."""
    thing = None if name is None else app.find(name, "job", "run")
    job = Target("job", thing.id) if thing is not None and thing.kind == "job" else None
    questions = waiting(app.database, job)
    groups = grouped(questions if thing is None else _of(questions, thing))
    firsts = [group.questions[0].id for group in groups]
    run_ids = {each.run_id for group in groups for each in group.questions}
    whys = decisions.whys(app.database, firsts)
    labels = app.database.read(lambda connection: call_labels(connection, run_ids))
    return [
        replace(group, labels=labels, why=whys.get(first))
        for group, first in zip(groups, firsts, strict=True)
    ]


def _of(questions: Iterable[Question], thing: Found) -> list[Question]:
    if thing.kind == "job":
        return [each for each in questions if each.job_id == thing.id]
    return [each for each in questions if is_within(each.run_id, thing.id)]


def grouped(questions: Iterable[Question]) -> list[Group]:
    """Group questions, oldest first, by job, tool and what they ask for."""
    found: dict[tuple[str, str, str], list[Question]] = {}
    for each in questions:
        found.setdefault((each.job_id, each.tool, each.group_key), []).append(each)
    return [Group(key, tuple(group)) for (_, _, key), group in found.items()]


def waiting_count(app: App) -> int:
    """Return the number of questions that wait, of all jobs."""
    return sum(decisions.waiting_by_job(app.database).values())


def is_open(app: App, question: Question) -> bool:
    return decisions.is_approval_open(app.database, question.id)


def answer(app: App, question_ids: Sequence[str], reply: Reply) -> list[Answered]:
    """Answer questions, and by the rule that is remembered all others that it covers. Raises
    ``UsageError``, and stores no answer, if the reply does not fit them."""
    return app.change(lambda now: store_answer(app.database, question_ids, reply, now))


def answer_named(
    app: App, names: Sequence[str], group_key: str | None, reply: Reply, edit: str | None = None
) -> tuple[list[Answered], str | None]:
    """Answer the questions that ``choose`` returns, and return the outcome for each and the first
    job that goes on while no worker is alive. ``edit`` is the input to run the call with instead:
    JSON, or the command of Bash. Raises ``UsageError`` if the reply does not fit."""
    questions = waiting(app.database)
    chosen = choose(app, questions, names, group_key)
    by_id = {each.id: each for each in questions}
    if edit is not None:
        edited = edited_input(app, [by_id[id] for id in chosen if id in by_id], edit)
        reply = replace(reply, edited=edited)
    # An edited input is for one call at a time.
    lots = [chosen] if reply.edited is None else [[id] for id in chosen]
    answered = [each for lot in filter(None, lots) for each in answer(app, lot, reply)]
    jobs = sorted({by_id[each.id].job_id for each in answered if each.changed and each.id in by_id})
    queued = (list_runs(app.database, job, "queued", whole_trees=True) for job in jobs)
    first = next((runs[0]["id"] for runs in queued if runs), None)
    return answered, app.job_without_worker(first)


def choose(
    app: App, questions: Sequence[Question], names: Sequence[str], group_key: str | None
) -> list[str]:
    """Return the ids of the questions that a person names, each once, in the order of ``names``: ids,
    or their beginnings or endings, of groups, approvals (answered ones, too), tool calls, runs (with
    their sub-agents) or jobs; without any, all that wait in the group that ``runner approvals`` shows
    by this key. Raises ``UsageError`` without a name and a group, and ``NotFoundError`` if a name fits
    nothing or more than one thing, or nothing waits in the group."""
    if not names and group_key is None:
        raise UsageError("name an id from `runner approvals`, a run or a job, or give --group")
    members = {each.id for each in questions if group_key in (None, each.group_key)}
    if group_key is not None and not members:
        raise NotFoundError(f"no call waits in group {group_key[:60]!a}: see `runner approvals`")
    found = [id for name in names for id in _named(app, questions, name)]
    chosen = found if names else (each.id for each in questions)
    return list(dict.fromkeys(id for id in chosen if group_key is None or id in members))


def _named(app: App, questions: Sequence[Question], name: str) -> list[str]:
    candidates = _candidates(questions, name)
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    if candidates:
        names = ", ".join(list(candidates)[:_MOST_CANDIDATES])
        raise NotFoundError(f"{name[:60]!a} could be {names}: give more of the name")
    if name.startswith("grp_"):
        raise NotFoundError(f"no call waits in group {name[:60]!a}: see `runner approvals`")
    if name.startswith("apr_"):
        if (answered := decisions.find_approval(app.database, name)) is None:
            raise NotFoundError(f"no approval is named {name[:60]!a}: see `runner approvals`")
        return [answered]
    thing = app.find_to_change(name, "job", "run", "call")
    if thing.kind == "call":
        if (about := decisions.find_approval(app.database, thing.id)) is None:
            raise UsageError(f"nobody was asked about {thing.id}: see `runner show {thing.id}`")
        return [about]
    return [each.id for each in _of(questions, thing)]


def _candidates(questions: Sequence[Question], name: str) -> dict[str, list[str]]:
    """The approvals and groups with this name, beginning or ending, with their approvals."""
    names = {each.id: [each.id] for each in questions}
    names |= {group.id: [each.id for each in group.questions] for group in grouped(questions)}
    if name in names:
        return {name: names[name]}
    short = name.lower()
    beginning = {each for each in names if len(short) > 4 and each.startswith(short)}
    ending = {each for each in names if len(short) >= SHORTEST_SUFFIX and each.endswith(short)}
    return {each: of for each, of in names.items() if each in (beginning or ending)}


def why_asked(app: App, group: Group) -> list[str]:
    """Return why the first question of a group was asked, in lines: what decided, who wrote the rule, and
    what the model had said before the call."""
    one, why = group.questions[0], group.why
    lines = []
    if why is not None:
        lines.append(f"asked by {decider(why)}")
        if why["origin"] is not None:
            sources = {"job": "the job file", STANDING: "the standing rules"}
            lines.append(f"the rule is from: {sources.get(why['origin'], why['origin'])}")
        if why["matched"]:
            lines.append(f"it matched: {cell(why['matched'])}")
    said = decisions.text_before(app.database, one.run_id, one.message)
    lines.append(
        f"in turn {one.turn} the model {'said:' if said else 'said nothing before the call'}"
    )
    return lines + [f"  {line}" for line in visible_lines(said).split("\n") if said]


def editable(question: Question) -> str:
    """Return the input of a call as ``edited_input`` reads it: the command of Bash, else JSON. An input
    with hidden or control characters is JSON with these escaped, so that an edit changes nothing
    else."""
    text = json.dumps(question.input, indent=2, ensure_ascii=False)
    if question.tool == "Bash" and isinstance(command := question.input.get("command"), str):
        text = command
    is_plain = all(line.expandtabs() == visible_lines(line) for line in text.split("\n"))
    return text if is_plain else json.dumps(question.input, indent=2)


def edited_input(app: App, questions: Sequence[Question], text: str) -> dict[str, Any]:
    """The edited input of questions whose calls all have the same input. Raises ``UsageError`` if
    their inputs differ, or the text is no input for their tool."""
    if not questions:
        raise UsageError("no waiting call is named: name one to edit its input")
    if len({(each.tool, each.input_digest) for each in questions}) > 1:
        raise UsageError(
            f"{len(questions)} calls have different inputs: name one of them to edit its input"
        )
    one = questions[0]
    try:
        value = json.loads(text)
        is_command = isinstance(value, bool)  # such as `true`
    except ValueError:
        value, is_command = None, bool(text.strip()) and not text.lstrip().startswith('{"')
    if not isinstance(value, dict):
        if one.tool != "Bash" or not is_command:
            raise UsageError(f"the edited input of {one.tool} must be a JSON object")
        value = {**one.input, "command": text}
    tools = show_job(app.database, one.job_id)["spec"]["tools"]
    schema = next(tool["input_schema"] for tool in tools if tool["name"] == one.tool)
    problem = input_problem(one.tool, schema, value)
    if problem is not None:
        raise UsageError(f"the edited input: {problem}")
    return value
