"""Questions that wait for a person: in each pass they expire, are answered by new rules, are told of."""

from __future__ import annotations

import threading
from collections.abc import Callable

from runner.engine.ports import Clock
from runner.store.database import Database
from runner.store.steer.approvals import expire
from runner.store.steer.new_rules import apply_new_rules
from runner.store.steer.notices import Notice, take_notices

LEAVE_SECONDS = 5.0


class Questions:
    """Attends to all jobs' questions, beside the other workers' dispatchers.

    Args:
        tell: runs a job's notification command, until it ends. Told once of each question; when the
            worker dies meanwhile, nobody is told of it again.
    """

    def __init__(self, database: Database, clock: Clock, tell: Callable[[Notice], None]) -> None:
        self._database = database
        self._clock = clock
        self._tell = tell
        self._telling: list[threading.Thread] = []

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
        self._tell_of_new()
        ends_at = self._clock.monotonic() + LEAVE_SECONDS
        for thread in self._telling:
            thread.join(max(0.0, ends_at - self._clock.monotonic()))

    def _tell_of_new(self) -> None:
        self._telling = [thread for thread in self._telling if thread.is_alive()]
        for notice in take_notices(self._database, self._clock.now()):
            thread = threading.Thread(
                target=self._tell, args=(notice,), name="runner-notice", daemon=True
            )
            thread.start()
            self._telling.append(thread)
