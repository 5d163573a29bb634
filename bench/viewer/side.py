"""Serves a conversation in Inspect's viewer: ``python side.py FOLDER PORT``, in an environment of its own.

Its input is JSON: the ``messages`` of the Messages API, and the ``system`` prompt. They become the log of
one sample in the folder, as ``run.eval``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
from inspect_ai.model import messages_from_anthropic


def main() -> None:
    folder, port = sys.argv[1:]
    told = json.load(sys.stdin)
    messages = asyncio.run(messages_from_anthropic(told["messages"], told["system"]))
    spec = EvalSpec(
        created=datetime.now(UTC).isoformat(),
        task="run",
        dataset=EvalDataset(name="runs", samples=1, sample_ids=["run"]),
        model="claude",
        config=EvalConfig(),
    )
    sample = EvalSample(id="run", epoch=1, input="", target="", messages=messages)
    log = EvalLog(status="success", eval=spec, samples=[sample])
    write_eval_log(log, str(Path(folder) / "run.eval"))
    inspect = str(Path(sys.executable).with_name("inspect"))
    os.execv(inspect, [inspect, "view", "start", "--log-dir", folder, "--port", port])


if __name__ == "__main__":
    main()
