"""The questions that wait, grouped, and which of them the words of a command mean."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.core.agents.place import is_within, place_of
from runner.errors import NotFoundError, UsageError
from runner.store import ids

if TYPE_CHECKING:
    from runner.store.connection.database import Database
    from runner.store.steer.approvals import Asked

_ID_LENGTH = 10
_MOST_CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class Group:
    """Questions of one job that ask for the same, the oldest first."""

    key: str
    asked: tuple[Asked, ...]

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
    def by_input(self) -> list[list[Asked]]:
        """The same questions, those with the same input together; the most frequent first."""
        found: dict[str, list[Asked]] = {}
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


def call_id(asked: Asked) -> str:
    """The id of the tool call that a question is about."""
    return ids.call_id(asked.run_id, asked.turn, asked.position)


def _call_to_json(asked: Asked, label: str) -> dict[str, Any]:
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


def labels_of(database: Database, asked: Iterable[Asked]) -> dict[str, str]:
    """What the calls that questions are about are called in their trees, by the questions' ids."""
    from runner.queries.find import call_labels

    questions = list(asked)
    run_ids = {each.run_id for each in questions}
    labels = database.read(lambda connection: call_labels(connection, run_ids))
    return {each.id: labels[each.run_id, each.turn, each.position] for each in questions}


def grouped(asked: Iterable[Asked]) -> list[Group]:
    """Questions by job, tool and what they ask for; the group with the oldest question first."""
    found: dict[tuple[str, str, str], list[Asked]] = {}
    for each in sorted(asked, key=lambda each: (each.asked_at, each.id)):
        found.setdefault((each.job_id, each.tool, each.group_key), []).append(each)
    return [Group(key, tuple(group)) for (_, _, key), group in found.items()]


def chosen(
    database: Database, waiting: Sequence[Asked], texts: Sequence[str], group_key: str | None
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


def _named(database: Database, waiting: Sequence[Asked], text: str) -> list[str]:
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


def _candidates(waiting: Sequence[Asked], text: str) -> dict[str, list[str]]:
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
