"""The bare loop of ``bench.stage.bare``, made durable by a peer: the same requests, the same tool.

Runs in an environment of its own, without Runner: ``python side.py PEER DATABASE_URL API_URL FILE``. Each
line of its input is JSON, ``{"keys": […], "turns": N, "threads": N}``; it works these conversations and
answers with ``{"began", "ended", "cpu_seconds"}``: of the process so far, imports included.

Both peers are set to store a step before the next one begins, as Runner does: LangGraph by
``durability="sync"``, DBOS by making each model call and each tool call a step of its own.
"""

from __future__ import annotations

import json
import operator
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anthropic

MODEL = "claude-sonnet-5"
MAX_TOKENS = 32_000

Message = dict[str, Any]
# Works one conversation, by its key and number of turns.
Converse = Callable[[str, int], None]


class Agent:
    """The loop's two effects: one model call, and the tool calls of its reply."""

    def __init__(self, api_url: str, file: Path, told: dict[str, Any]) -> None:
        self._api = anthropic.Anthropic(base_url=api_url, max_retries=0)
        self._file = file
        self._system, self._tools, self._prompt = told["system"], told["tools"], told["prompt"]

    def first(self, key: str, turns: int) -> list[Message]:
        content = self._prompt.replace("{turns}", str(turns)).replace("{key}", key)
        return [{"role": "user", "content": content}]

    def call_model(self, messages: list[Message]) -> list[Message]:
        with self._api.messages.stream(
            model=MODEL,
            max_tokens=MAX_TOKENS,
            system=self._system,
            tools=self._tools,
            messages=messages,  # type: ignore[arg-type]
            cache_control={"type": "ephemeral"},
        ) as stream:
            reply = stream.get_final_message()
        blocks = [block.to_dict() for block in reply.content]
        return [{"role": "assistant", "content": blocks}]

    def run_tools(self, reply: Message) -> list[Message]:
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": self._file.read_text()}
            for block in reply["content"]
            if block["type"] == "tool_use"
        ]
        return [{"role": "user", "content": results}]


def makes_calls(reply: Message) -> bool:
    return any(block["type"] == "tool_use" for block in reply["content"])


class State(TypedDict):
    messages: Annotated[list[Message], operator.add]


def on_langgraph(agent: Agent, database_url: str, threads: int, opened: ExitStack) -> Converse:
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(State)
    graph.add_node("model", lambda state: {"messages": agent.call_model(state["messages"])})
    graph.add_node("tools", lambda state: {"messages": agent.run_tools(state["messages"][-1])})
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model", lambda state: "tools" if makes_calls(state["messages"][-1]) else END
    )
    graph.add_edge("tools", "model")
    if database_url.startswith("sqlite"):
        from langgraph.checkpoint.sqlite import SqliteSaver

        path = database_url.removeprefix("sqlite:///")
        saver: Any = opened.enter_context(SqliteSaver.from_conn_string(path))
    else:
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool = ConnectionPool(database_url, max_size=min(threads, 8), kwargs=settings, open=True)
        saver = PostgresSaver(opened.enter_context(pool))  # type: ignore[arg-type]
    saver.setup()
    app = graph.compile(checkpointer=saver)

    def converse(key: str, turns: int) -> None:
        app.invoke(
            {"messages": agent.first(key, turns)},
            {"configurable": {"thread_id": key}, "recursion_limit": 3 * turns + 10},
            durability="sync",
        )

    return converse


def on_dbos(agent: Agent, database_url: str, threads: int, opened: ExitStack) -> Converse:
    from dbos import DBOS

    DBOS(
        config={
            "name": "peer",
            "system_database_url": database_url,
            "sys_db_pool_size": min(threads, 8),
            "log_level": "ERROR",
        }
    )

    @DBOS.step(name="call_model")
    def call_model(messages: list[Message]) -> list[Message]:
        return agent.call_model(messages)

    @DBOS.step(name="run_tools")
    def run_tools(reply: Message) -> list[Message]:
        return agent.run_tools(reply)

    @DBOS.workflow(name="converse")
    def workflow(key: str, turns: int) -> None:
        messages = agent.first(key, turns)
        while True:
            messages += call_model(messages)
            if not makes_calls(messages[-1]):
                return
            messages += run_tools(messages[-1])

    DBOS.launch()
    opened.callback(DBOS.destroy)
    return workflow


PEERS = {"langgraph": on_langgraph, "dbos": on_dbos}


def main() -> None:
    peer, database_url, api_url, file, agent_json = sys.argv[1:]
    with ExitStack() as opened:
        agent = Agent(api_url, Path(file), json.loads(agent_json))
        converse = PEERS[peer](agent, database_url, 50, opened)
        for line in sys.stdin:
            asked = json.loads(line)
            began = time.time()
            with ThreadPoolExecutor(asked["threads"]) as pool:
                list(
                    pool.map(lambda key, turns=asked["turns"]: converse(key, turns), asked["keys"])
                )
            told = {"began": began, "ended": time.time(), "cpu_seconds": time.process_time()}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
