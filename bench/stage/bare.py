"""The bare loop that Runner is measured against: the SDK's own stream helper, nothing stored.

``python -m bench.stage.bare THREADS CONVERSATIONS TURNS FILE`` runs many of them in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic

from bench.stage.material import MAX_TOKENS, MODEL, READ, SYSTEM, prompt
from tests.messages_api import API_KEY


def client(url: str) -> anthropic.Anthropic:
    """A client for the server at ``url``."""
    return anthropic.Anthropic(base_url=url, api_key=API_KEY, max_retries=0)


def converse(api: anthropic.Anthropic, key: str, turns: int, file: Path) -> None:
    """One conversation to its end, reading ``file`` once a turn in this process."""
    messages: list[Any] = [{"role": "user", "content": prompt(key, turns)}]
    tools: list[Any] = [READ.definition()]
    while True:
        with api.messages.stream(
            model=MODEL,
            max_tokens=MAX_TOKENS,
            system=SYSTEM,
            tools=tools,
            messages=messages,
            cache_control={"type": "ephemeral"},
        ) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": file.read_text()}
            for block in message.content
            if block.type == "tool_use"
        ]
        if not results:
            return
        messages.append({"role": "user", "content": results})


def main() -> None:
    threads, conversations, turns = map(int, sys.argv[1:4])
    file = Path(sys.argv[4])
    api = client(sys.argv[5])
    began = time.time()
    with ThreadPoolExecutor(threads) as pool:
        keys = [str(number) for number in range(conversations)]
        list(pool.map(lambda key: converse(api, key, turns, file), keys))
    print(json.dumps({"began": began, "ended": time.time(), "cpu_seconds": time.process_time()}))


if __name__ == "__main__":
    main()
