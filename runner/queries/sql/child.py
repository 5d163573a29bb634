"""The process of one question: ``main`` reads it from stdin and answers on stdout, one line of JSON each.

Before it looks at the SQL it limits itself: its time, which the kernel enforces even when the parent is
gone, its memory, and that it writes to no file.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import sys
from typing import Any, NoReturn

from runner.errors import UsageError

_MOST_SQL = 1_000_000  # characters
_GRACE_SECONDS = 2.0  # Postgres reports its own timeout first


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        request = json.load(sys.stdin)
        seconds = request["seconds"] + ("postgres" in request) * _GRACE_SECONDS
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, seconds)
        if sys.platform == "linux":  # other kernels do not enforce it
            resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"],) * 2)
        _answer(request)
    except UsageError as error:
        _say_error(str(error), usage=True)
    except (MemoryError, OverflowError):
        _say_error(
            f"the question needs more memory than the {request['memory_bytes'] >> 20} MiB that it "
            "may have: narrow it",
            usage=False,
        )
    except BrokenPipeError:
        sys.exit(1)


def _answer(request: dict[str, Any]) -> None:
    sql = request["sql"]
    if len(sql) > _MOST_SQL or any(c == "\0" or "\ud800" <= c <= "\udfff" for c in sql):
        raise UsageError(f"the SQL is not text, or has over {_MOST_SQL:,} characters")
    if "sqlite" in request:
        from runner.queries.sql.sqlite import answer
    else:
        from runner.queries.sql.postgres import answer
    names, rows = answer(request)
    _say({"columns": names})
    said, most_bytes, is_cut = 0, request["answer_bytes"], False
    for count, row in enumerate(rows):
        if count == request["rows"]:
            is_cut = True
            break
        said += _say([_value(value) for value in row])
        if said > most_bytes:
            raise UsageError(
                f"the answer is larger than {most_bytes >> 20} MiB: select fewer columns or rows "
                "(LIMIT), or shorter texts (substr)"
            )
    _say({"cut": is_cut})
    sys.stdout.flush()


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value


def _say(line: Any) -> int:
    text = json.dumps(line)
    sys.stdout.write(text + "\n")
    return len(text)


def _say_error(error: str, *, usage: bool) -> NoReturn:
    _say({"error": " ".join(error.split()), "usage": usage})
    sys.stdout.flush()
    sys.exit(0)
