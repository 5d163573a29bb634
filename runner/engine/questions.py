"""Questions that wait for a person: in each pass they expire, are answered by new rules, are told of."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from runner.ports import Clock
from runner.store.connection.database import Database
from runner.store.steer.approvals import expire
from runner.store.steer.new_rules import apply_new_rules
from runner.store.steer.notices import Notice, take_notices

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0


class Questions:
    """Attends to all jobs' questions, beside the other workers' dispatchers.

    Args:
        tell: runs a job's notification command, until it ends. Told once of each question; when the
            worker dies meanwhile, nobody is told of it again. One runs at a time: what comes up
            meanwhile stays in the database, for the next pass or another worker, and is told together.
    """

    def __init__(self, database: Database, clock: Clock, tell: Callable[[Notice], None]) -> None:
        self._database = database
        self._clock = clock
        self._tell = tell
        self._telling: threading.Thread | None = None
        self._untold: deque[Notice] = deque()

    def attend(self) -> None:
        """Let late questions expire, and runs go on that new rules answered; tell of new questions.

        Raises:
            UnreachableError: the database does not answer.
        """
        now = self._clock.now()
        expire(self._database, now)
        apply_new_rules(self._database, now)
        self._tell_of_new()

    def leave(self) -> None:
        """Tell of what was asked since the last pass, before the worker ends: maybe it was all that
        there was to do, and the next worker comes when somebody has answered.

        Raises:
            UnreachableError: the database does not answer.
        """
        self._wait()
        self._tell_of_new()
        self._wait()
        for notice in tuple(self._untold):
            logger.warning("on_ask of %s was not run: the worker left", notice.job_id)

    def _tell_of_new(self) -> None:
        if self._telling is not None and self._telling.is_alive():
            return
        self._untold.extend(take_notices(self._database, self._clock.now()))
        if self._untold:
            self._telling = threading.Thread(
                target=self._tell_all, name="runner-notice", daemon=True
            )
            self._telling.start()

    def _tell_all(self) -> None:
        while self._untold:
            self._tell(self._untold.popleft())

    def _wait(self) -> None:
        if self._telling is not None:
            self._telling.join(LEAVE_SECONDS)
