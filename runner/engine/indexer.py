"""The indexer thread of a worker: adds what runs say and do to the search index, in small batches.

Nobody waits for it, because a search adds what is missing. So it uses only a small part of its
process's time.
"""

from __future__ import annotations

import logging
import threading
import time

from runner.errors import RunnerError
from runner.ports import Index

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0

# While there is more to do it pauses for so many times as long as it computed.
_PAUSES_PER_WORK = 20


def follow_index(index: Index, stopping: threading.Event, *, pause: float = PAUSE_SECONDS) -> None:
    """Add what is stored to the index until ``stopping`` is set, looking again after ``pause`` seconds.
    What goes wrong is logged, once: a search needs the index, and says so too. No worker ends for it."""
    logged, wait = "", pause
    while not stopping.wait(wait):
        began, least = time.thread_time(), pause
        try:
            least = 0.0 if index.follow() else pause
            logged = ""
        except Exception as error:  # whatever it is: what runs do goes on without an index
            if stopping.is_set():
                return  # it is not waited for: its database may be closed already
            known = isinstance(error, RunnerError)
            said = str(error) if known else repr(error)
            if said != logged:
                logger.warning("the search index waits: %s", said, exc_info=not known)
            logged = said
        worked = time.thread_time() - began
        wait = min(max(least, _PAUSES_PER_WORK * worked), LONGEST_PAUSE_SECONDS)
