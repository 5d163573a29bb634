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


class Indexer:
    """Follows what is stored.

    Args:
        index: the database's.
        pause: how many seconds it waits at least before it looks again.
    """

    def __init__(self, index: Index, *, pause: float = PAUSE_SECONDS) -> None:
        self._index = index
        self._pause = pause

    def run(self, stopping: threading.Event) -> None:
        """Follow until ``stopping`` is set. What goes wrong is logged, once: it is a search that needs
        the index, and it says so too. No worker ends for it."""
        logged = ""
        pause = self._pause
        while not stopping.wait(pause):
            began = time.thread_time()
            least = self._pause
            try:
                least = 0.0 if self._index.follow() else self._pause
                logged = ""
            except Exception as error:  # whatever it is: what runs do goes on without an index
                if stopping.is_set():
                    return  # it is not waited for: its database may be closed already
                if _said(error) != logged:
                    known = isinstance(error, RunnerError)
                    logger.warning("the search index waits: %s", _said(error), exc_info=not known)
                logged = _said(error)
            worked = time.thread_time() - began
            pause = min(max(least, _PAUSES_PER_WORK * worked), LONGEST_PAUSE_SECONDS)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, RunnerError) else repr(error)
