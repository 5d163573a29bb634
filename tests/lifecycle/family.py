"""A model whose agents have sub-agents: each does what its task says, and knows nothing but the request
that it gets."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from runner.settings import Settings
from runner.store.database import Database
from runner.store.tables import events, runs
from tests.lifecycle.site import Site
from tests.messages_api import API_KEY, MessagesServer, Received, Reply, text, tool_use

_TASK = re.compile(r"\b(?:Do|Task) ([\w-]+)\.")

AGENTS: dict[str, Mapping[str, Any]] = {
    "agents.reviewer": {"description": "Looks at what another made."},
    "agents.tester": {
        "description": "Tests what another made.",
        "system": "Test it.",
        "snapshot": True,
    },
}


@dataclass(frozen=True)
class Moment:
    """Where a conversation is: its task, how many replies it has had to it, and what the calls of the
    last one gave."""

    task: str
    turn: int
    results: tuple[str, ...]
    request: Received


Says = Callable[[Moment], Sequence[Mapping[str, Any]]]


class Family:
    """The plan for ``MessagesServer``: ``tasks`` say for each task what is said in each of its turns, a
    list of blocks or what gives one; after the last it is "TASK is done."."""

    def __init__(self, tasks: Mapping[str, Sequence[Says | Sequence[Mapping[str, Any]]]]) -> None:
        self._tasks = tasks

    def __call__(self, request: Received) -> Reply:
        now = moment(request)
        turns = self._tasks.get(now.task, ())
        if now.turn >= len(turns):
            return Reply([text(f"{now.task} is done.")])
        said = turns[now.turn]
        return Reply(said(now) if callable(said) else said)


def moment(request: Received) -> Moment:
    """Where the conversation of a request is: its task is the last that a user gave it."""
    messages = request.body["messages"]
    task, since = "", 0
    for number, message in enumerate(messages):
        for block in message["content"]:
            if message["role"] == "user" and (found := _TASK.search(block.get("text", ""))):
                task, since = found[1], number
    turn = sum(message["role"] == "assistant" for message in messages[since:])
    last = messages[-1]["content"]
    results = (block["content"] for block in last if block["type"] == "tool_result")
    return Moment(task, turn, tuple(map(str, results)), request)


def delegates(*tasks: str, agent_type: str = "reviewer", **more: Any) -> list[dict[str, Any]]:
    """A reply that has sub-agents do these tasks."""
    return [
        tool_use(
            f"toolu_{task}",
            "Agent",
            {"description": task, "prompt": f"Task {task}.", "agent_type": agent_type, **more},
        )
        for task in tasks
    ]


def runs_bash(command: str, call_id: str) -> list[dict[str, Any]]:
    """A reply that runs a command."""
    return [tool_use(call_id, "Bash", {"command": command})]


def family_job(site: Site, *items: str, **sections: Mapping[str, Any]) -> str:
    """A job whose agents may run commands and have sub-agents; its id."""
    path = site.live_job(
        items,
        options={"tools": ["Bash", "Agent"]},
        **{"permissions": {"allow": ["Bash", "Agent"]}, **AGENTS, **sections},
    )
    return site.submit(path)


class Api:
    """The server with a plan, which the processes of a site talk to."""

    def __init__(self, site: Site, plan: Callable[[Received], Reply]) -> None:
        self.server = MessagesServer(plan).start()
        site.environment |= {"ANTHROPIC_BASE_URL": self.server.url, "ANTHROPIC_API_KEY": API_KEY}

    def moments(self, task: str) -> list[Moment]:
        """What was asked for a task, in order."""
        found = (moment(each) for each in self.server.requests if each.path == "/v1/messages")
        return [each for each in found if each.task == task]


class Tree:
    """A site whose workers talk to a model of a family."""

    def __init__(self, site: Site, plan: Callable[[Received], Reply]) -> None:
        self.site = site
        self.api = Api(site, plan)
        self.database = Database(Settings.load(site.environment).database_url)

    def close(self) -> None:
        self.site.stop_all()
        self.api.server.stop()
        self.database.close()

    def states(self) -> dict[str, tuple[str, str]]:
        """State and reason of every run, by its item's key and its place below."""
        return {row.item_key: (row.state, row.reason) for row in self.rows(select(runs))}

    def rows(self, query: Any) -> Any:
        return self.database.read(lambda connection: connection.execute(query).all())

    def told(self, kind: str, item_key: str) -> list[dict[str, Any]]:
        query = select(events.c.data).join(runs, runs.c.id == events.c.run_id)
        query = query.where(events.c.type == kind, runs.c.item_key == item_key)
        return [row.data for row in self.rows(query.order_by(events.c.number))]

    def work(self) -> None:
        """One worker until nothing is due; the API has taken every request."""
        self.site.run("worker", "-c", "8", "--burst")
        assert self.api.server.refusals == []


def in_a_repository(site: Site) -> None:
    """Have the site's workspace be a repository with a file in it."""
    git = ["git", "-c", "user.name=ann", "-c", "user.email=ann@example.org"]
    (site.workspace / "kept").write_text("as it was\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], cwd=site.workspace, check=True)
