"""What a wake-up looks like in the queue, and how one is read without trusting it."""

from __future__ import annotations

import json
import re
import zlib

from runner.core.agents.agent import DEEPEST

QUEUE_NAME = "runner"

FUNCTION_NAME = "runner.wake_up"
"""What RQ is told to call. It does not exist: only Runner's own worker takes wake-ups, and it calls
nothing that is named in Redis. A stock RQ worker on this queue fails the wake-up, and the
dispatcher rings again."""

_RUN_ID = re.compile(rf"run_[0-9a-z]{{26}}(\.[0-9]{{1,4}}){{0,{DEEPEST}}}", re.ASCII)
_LONGEST_DATA = 4096


def is_run_id(value: object) -> bool:
    """Whether ``value`` is the text of a whole run id."""
    return isinstance(value, str) and _RUN_ID.fullmatch(value) is not None


def read_run_id(data: bytes) -> str:
    """The run id in an RQ job's ``data`` field.

    The field is what RQ's JSON serializer made of (function, instance, args, kwargs), compressed
    (``rq.job.Job.restore``). Whoever can write to Redis can put anything here, so it is parsed
    within bounds, nothing in it is imported, and only the first argument is looked at.

    Raises:
        ValueError: anything else than a run id was found.
    """
    try:
        plain = zlib.decompressobj().decompress(data, _LONGEST_DATA)
        _function, _instance, arguments, _keywords = json.loads(plain)
        run_id = arguments[0]
    except (zlib.error, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"not a wake-up ({type(error).__name__}: {error})") from error
    if not is_run_id(run_id):
        raise ValueError("not a wake-up (its argument is not a run id)")
    return str(run_id)
