"""``approvals``, ``approve`` and ``deny``: what waits for a person, and the person's answers.

The questions that wait, grouped, and which of them the words of a command mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from runner.app.humanize import cell, duration
from runner.cli import exit_codes
from runner.cli.control import measured_now, patiently, say_who_works
from runner.cli.options import json_option, signed_with, stored, with_settings
from runner.cli.terminal import note, say, say_json, say_table
from runner.core.agents import is_within, place_of
from runner.core.run import Author
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.core.commands import Answered, Question, Reply
    from runner.queries.decisions import Why
    from runner.store.database import Database
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from runner.errors import NotFoundError

if TYPE_CHECKING:
    from runner.core.commands import Question
    from runner.store.database import Database


_MOST_INPUTS = 5
_LONGEST_KEY = 80


@click.command()
@click.argument("id", metavar="[JOB|RUN]", required=False)
@json_option
@with_settings
def approvals(settings: Settings, id: str | None, as_json: bool) -> None:
    """List the tool calls that wait for a person, those that ask for the same together.

    Runs that wait for an answer take no worker, and wait as long as it takes. Of a run are also the
    calls of the sub-agents below it: "3.2 in its tree" is the second call of the third of these.

    One that asks whether to run again had started when its worker died, and may have taken effect
    outside the workspace (on_unknown = "ask"): `approve` runs it again from the files as they were
    before it, `deny` tells the model that its outcome is unknown, with your reason.

    \b
    Example:
      runner approvals
      runner approve grp_3f9c2a71d0 --remember job
    """
    from runner.queries import decisions

    with stored(settings) as database:
        asked = _waiting(database, id)
        groups, labels = grouped(asked), labels_of(database, asked)
        if as_json:
            say_json([group.to_json(labels) for group in groups])
            return
        reasons = decisions.whys(database, [group.asked[0].id for group in groups])
        now = measured_now(database)
    for group in groups:
        _say_group(group, labels, reasons.get(group.asked[0].id), now)
    if groups:
        note("answer: `runner approve ID` or `runner deny ID`; a call whole: `runner show CALL`")
    else:
        note("nothing waits for an answer")


def _waiting(database: Database, id: str | None) -> Sequence[Question]:
    """What waits: all of it, or of a job, or of a run and all below it."""
    from runner.core.commands import Target
    from runner.queries.find import find
    from runner.queries.jobs import show_run
    from runner.store.questions import waiting

    if id is None:
        return waiting(database)
    found = find(database, id, "job", "run")
    if found.kind == "job":
        return waiting(database, Target("job", found.id))
    job_id = show_run(database, found.id)["job_id"]
    of_job = waiting(database, Target("job", job_id))
    return [each for each in of_job if is_within(each.run_id, found.id)]


def _say_group(group: Group, labels: Mapping[str, str], why: Why | None, now: float) -> None:
    from runner.app.humanize import decider
    from runner.core.text import shorten

    one = group.asked[0]
    runs = "1 run" if group.run_count == 1 else f"{group.run_count} runs"
    waited = duration(max(now - one.asked_at, 0))
    say(f"{shorten(group.key, _LONGEST_KEY)} — {runs} of {one.job_id} — waiting {waited}")
    fields = [("group", group.id), ("job", cell(one.job_name)), ("tool", cell(one.tool))]
    if why is not None and one.asked_again:
        fields.append(("asks", f"run it again? {decider(why)}"))
    elif why is not None:
        fields.append(("asked by", decider(why)))
    if group.expires_at is not None:
        fields.append(("expires", f"in {duration(max(group.expires_at - now, 0))}"))
    if group.suggested_rule:
        fields.append(("rule", f"{cell(group.suggested_rule)}  (with --remember)"))
    for name, value in fields:
        say(f"  {name:<8}  {value}")
    inputs = group.by_input
    for alike in inputs[:_MOST_INPUTS]:
        first = alike[0]
        more = f", and {len(alike) - 1} more" if len(alike) > 1 else ""
        say(f"  {'call':<8}  {cell(first.summary)}")
        place = f", {labels[first.id]} in its tree" if place_of(first.run_id)["depth"] else ""
        say(f"  {'':<8}    {call_id(first)} of {cell(first.item_key)}{place}{more}")
    if len(inputs) > _MOST_INPUTS:
        say(f"  {'':<8}  … and {len(inputs) - _MOST_INPUTS} other inputs (all: --json)")
    say()


def _answering(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options that ``approve`` and ``deny`` share."""
    for decorate in (
        with_settings,
        json_option,
        signed_with("Why; on a denial for the model."),
        click.option(
            "--rule", metavar="RULE", help="The rule to remember (default: the suggested one)."
        ),
        click.option(
            "--remember",
            type=click.Choice(["call", "run", "job"]),
            default="call",
            show_default=True,
            help="Answer this call only, or store a rule for its run or its job.",
        ),
        click.option(
            "--group", "group_key", metavar="TEXT", help="Only calls of this group: 'uv lock'."
        ),
        click.argument("ids", metavar="[ID]...", nargs=-1),
    ):
        command = decorate(command)
    return command


@click.command()
@click.option("--edit", metavar="INPUT", help="Run it with this input: JSON, or Bash's command.")
@_answering
def approve(
    settings: Settings,
    ids: tuple[str, ...],
    group_key: str | None,
    edit: str | None,
    author: Author,
    as_json: bool,
    **options: Any,
) -> int:
    """Let tool calls run that wait for a person: a call, a group, or all of a run or a job.

    A run is meant with the sub-agents below it. With --edit a call runs with another input, and the
    model is told. With --remember run or job the rule that is stored answers all others that it covers,
    at once. Exits with 1 when nothing was changed: somebody else had answered, or the run has ended.

    \b
    Example:
      runner approve call_01jd9kqy5m8v0z3t7w2r4x6n1b_3_1
      runner approve grp_3f9c2a71d0 --remember job --rule 'Bash(uv lock)'
      runner approve k3x9f2 --edit 'uv lock --offline'
    """

    def reply(database: Database, asked: Sequence[Question]) -> Reply:
        from runner.core.commands import Reply

        edited = None if edit is None else _edited(database, asked, edit)
        return Reply("approved", str(author.name), author.why, edited, **options)

    return _answer(settings, ids, group_key, reply, as_json)


@click.command()
@_answering
def deny(
    settings: Settings,
    ids: tuple[str, ...],
    group_key: str | None,
    author: Author,
    as_json: bool,
    **options: Any,
) -> int:
    """Refuse tool calls that wait for a person. The model is told, with the reason.

    Exits with 1 when nothing was changed: somebody else had answered, or the run has ended.

    \b
    Example:
      runner deny grp_3f9c2a71d0 --reason "The lock file stays as it is."
      runner deny job_01jd9k --group 'git push' --remember job
    """

    def reply(database: Database, asked: Sequence[Question]) -> Reply:
        from runner.core.commands import Reply

        return Reply("denied", str(author.name), author.why, **options)

    return _answer(settings, ids, group_key, reply, as_json)


def _answer(
    settings: Settings,
    ids: tuple[str, ...],
    group_key: str | None,
    reply_to: Callable[[Database, Sequence[Question]], Reply],
    as_json: bool,
) -> int:
    from runner.store.approvals import answer
    from runner.store.questions import waiting

    with stored(settings) as database:
        now = measured_now(database)
        asked = waiting(database)
        approval_ids = chosen(database, asked, ids, group_key)
        by_id = {each.id: each for each in asked}
        reply = reply_to(database, [by_id[id] for id in approval_ids if id in by_id])
        # An edited input is for one call at a time.
        lots = [approval_ids] if reply.edited is None else [[id] for id in approval_ids]
        answered: list[Answered] = []
        for lot in filter(None, lots):
            answered += patiently(partial(answer, database, lot, reply, now))
        if as_json:
            say_json([asdict(each) for each in answered])
        else:
            _say_answered(answered)
        jobs = {by_id[each.id].job_id for each in answered if each.changed and each.id in by_id}
        _say_who_works(database, sorted(jobs), now)
    if any(each.changed for each in answered):
        return exit_codes.SUCCEEDED
    note("nothing was changed" if answered else "nothing there waits for an answer")
    return exit_codes.FAILED


def _edited(database: Database, asked: Sequence[Question], text: str) -> dict[str, Any]:
    """The input that ``--edit`` gives calls that all have one and the same.

    Raises:
        UsageError: their inputs differ, or the text is no input for their tool.
    """
    if not asked:
        raise UsageError("no call that waits is named: there is nothing to edit")
    if len({(each.tool, each.input_digest) for each in asked}) > 1:
        raise UsageError(
            f"{len(asked)} calls with different inputs are not edited alike: name one of them"
        )
    one = asked[0]
    value = _read(text)
    if not isinstance(value, dict):
        if one.tool != "Bash" or not isinstance(value, str):
            raise UsageError(f"--edit: the input of {one.tool} is a JSON object")
        value = {**one.input, "command": value}
    _refuse_unfit(database, one, value)
    return value


def _read(text: str) -> Any:
    """The JSON that a text is, or the text itself where it is a command; None when it is neither."""
    try:
        value = json.loads(text)
    except ValueError:
        return text if text.strip() and not text.lstrip().startswith('{"') else None
    return text if isinstance(value, bool) else value if isinstance(value, dict) else None


def _refuse_unfit(database: Database, one: Question, value: dict[str, Any]) -> None:
    from runner.queries.jobs import show_job
    from runner.tools.checking import InputCheck

    tools = show_job(database, one.job_id)["spec"]["tools"]
    schema = next(tool["input_schema"] for tool in tools if tool["name"] == one.tool)
    problem = InputCheck().problem(one.tool, schema, value)
    if problem is not None:
        raise UsageError(f"--edit: {problem}")


def _say_answered(answered: Sequence[Answered]) -> None:
    named = [each for each in answered if not each.by_rule]
    by_rule = [each for each in answered if each.by_rule]
    if len(answered) == 1:
        (one,) = answered
        say(f"{one.id} ({cell(one.item_key)}): {cell(one.detail)}")
    elif answered:
        columns = ("approval", "run", "item", "")
        say_table(
            columns, ((each.id, each.run_id, each.item_key, each.detail) for each in answered)
        )
        count = sum(each.changed for each in named)
        more = f", and {len(by_rule)} more by the rule" if by_rule else ""
        note(f"{count} of {len(named)} answered{more}")


def _say_who_works(database: Database, job_ids: Sequence[str], now: float) -> None:
    from runner.queries.jobs import list_runs

    queued = (list_runs(database, job_id, "queued", whole_trees=True) for job_id in job_ids)
    first = next((runs[0]["id"] for runs in queued if runs), None)
    say_who_works(database, first, now)


_ID_LENGTH = 10
_MOST_CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class Group:
    """Questions of one job that ask for the same, the oldest first."""

    key: str
    asked: tuple[Question, ...]

    @property
    def id(self) -> str:
        """A short id that stays the same as long as the group has questions: ``grp_…``."""
        one = self.asked[0]
        named = "\0".join((one.job_id, one.tool, self.key)).encode(errors="surrogatepass")
        return f"grp_{hashlib.sha256(named).hexdigest()[:_ID_LENGTH]}"

    @property
    def run_count(self) -> int:
        return len({each.run_id for each in self.asked})

    @property
    def expires_at(self) -> float | None:
        """When the first of its questions expires; None when none does."""
        return min((each.expires_at for each in self.asked if each.expires_at), default=None)

    @property
    def suggested_rule(self) -> str | None:
        """The rule that would answer all of them; None when they differ or there is none."""
        rules = {each.suggested_rule for each in self.asked}
        return (rules.pop() or None) if len(rules) == 1 else None

    @property
    def by_input(self) -> list[list[Question]]:
        """The same questions, those with the same input together; the most frequent first."""
        found: dict[str, list[Question]] = {}
        for each in self.asked:
            found.setdefault(each.input_digest, []).append(each)
        return sorted(found.values(), key=len, reverse=True)

    def to_json(self, labels: Mapping[str, str]) -> dict[str, Any]:
        """The group for JSON.

        Args:
            labels: what the calls are called in their trees, by the ids of their questions.
        """
        one = self.asked[0]
        return {
            "id": self.id,
            "group_key": self.key,
            "job_id": one.job_id,
            "job_name": one.job_name,
            "tool": one.tool,
            "runs": self.run_count,
            "asked_at": one.asked_at,
            "expires_at": self.expires_at,
            "suggested_rule": self.suggested_rule,
            "calls": [_call_to_json(each, labels[each.id]) for each in self.asked],
        }


def call_id(asked: Question) -> str:
    """The id of the tool call that a question is about."""
    from runner.store import ids

    return ids.call_id(asked.run_id, asked.turn, asked.position)


def _call_to_json(asked: Question, label: str) -> dict[str, Any]:
    return {
        "id": asked.id,
        "call_id": call_id(asked),
        "run_id": asked.run_id,
        **place_of(asked.run_id),
        "label": label,
        "item_key": asked.item_key,
        "turn": asked.turn,
        "input": asked.input,
        "input_digest": asked.input_digest,
        "summary": asked.summary,
        "asked_again": asked.asked_again,
        "suggested_rule": asked.suggested_rule,
        "asked_at": asked.asked_at,
        "expires_at": asked.expires_at,
    }


def labels_of(database: Database, asked: Iterable[Question]) -> dict[str, str]:
    """What the calls that questions are about are called in their trees, by the questions' ids."""
    from runner.queries.find import call_labels

    questions = list(asked)
    run_ids = {each.run_id for each in questions}
    labels = database.read(lambda connection: call_labels(connection, run_ids))
    return {each.id: labels[each.run_id, each.turn, each.position] for each in questions}


def grouped(asked: Iterable[Question]) -> list[Group]:
    """Questions by job, tool and what they ask for; the group with the oldest question first."""
    found: dict[tuple[str, str, str], list[Question]] = {}
    for each in sorted(asked, key=lambda each: (each.asked_at, each.id)):
        found.setdefault((each.job_id, each.tool, each.group_key), []).append(each)
    return [Group(key, tuple(group)) for (_, _, key), group in found.items()]


def chosen(
    database: Database, waiting: Sequence[Question], texts: Sequence[str], group_key: str | None
) -> list[str]:
    """The ids of the approvals that a command is about.

    Args:
        waiting: all questions that wait.
        texts: each an id, or a beginning or an ending of one, of a group, an approval, a tool call, a
            run (with all below it) or a job; none of them: all that waits in ``group_key``.
        group_key: only questions that ask for this, as ``runner approvals`` shows it.

    Returns:
        In the order of ``texts``, each once. One that has been answered is among them when it is
        named itself.

    Raises:
        UsageError: nothing is chosen by anything. NotFoundError: a text names nothing that was
            asked, or more than one thing; nothing that waits is in the group.
    """
    if not texts and group_key is None:
        raise UsageError("say which: an id that `runner approvals` shows, a run, a job, or --group")
    members = {each.id for each in waiting if group_key in (None, each.group_key)}
    if group_key is not None and not members:
        raise NotFoundError(f"nothing waits in a group {group_key[:60]!a}: see `runner approvals`")
    if not texts:
        return [each.id for each in waiting if each.id in members]
    found = [id for text in texts for id in _named(database, waiting, text)]
    if group_key is not None:
        found = [id for id in found if id in members]
    return list(dict.fromkeys(found))


def _named(database: Database, waiting: Sequence[Question], text: str) -> list[str]:
    from runner.queries import decisions
    from runner.queries.find import find

    candidates = _candidates(waiting, text)
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    if candidates:
        names = ", ".join(list(candidates)[:_MOST_CANDIDATES])
        raise NotFoundError(f"{text[:60]!a} could be {names}: give more of it")
    if text.startswith("grp_"):
        raise NotFoundError(f"nothing waits in a group {text[:60]!a}: see `runner approvals`")
    if text.startswith("apr_"):
        answered = decisions.find_approval(database, text)
        if answered is None:
            raise NotFoundError(f"no approval is named {text[:60]!a}: see `runner approvals`")
        return [answered]
    thing = find(database, text, "job", "run", "call")
    if thing.kind == "call":
        about = decisions.find_approval(database, thing.id)
        if about is None:
            raise UsageError(f"nobody was asked about {thing.id}: see `runner show {thing.id}`")
        return [about]
    if thing.kind == "job":
        return [each.id for each in waiting if each.job_id == thing.id]
    return [each.id for each in waiting if is_within(each.run_id, thing.id)]


def _candidates(waiting: Sequence[Question], text: str) -> dict[str, list[str]]:
    """What has that name, or begins or ends so, with the approvals that it stands for."""
    from runner.queries.find import SHORTEST_SUFFIX

    names = {each.id: [each.id] for each in waiting}
    names |= {group.id: [each.id for each in group.asked] for group in grouped(waiting)}
    if text in names:
        return {text: names[text]}
    short = text.lower()
    beginning = {
        name: of for name, of in names.items() if len(short) > 4 and name.startswith(short)
    }
    if beginning or len(short) < SHORTEST_SUFFIX:
        return beginning
    return {name: of for name, of in names.items() if name.endswith(short)}
