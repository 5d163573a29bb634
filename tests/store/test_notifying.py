"""Which due runs a pass takes to notify of."""

from __future__ import annotations

from contextlib import closing

import pytest

from runner.store import jobs
from runner.store.database import Database
from runner.store.due_runs import due_to_notify
from tests.store.examples import NOW, submission
from tests.upgraded import Upgraded

pytestmark = pytest.mark.dialect

# Without these the plan of Postgres is to look anew for each row, as it is now and then by itself.
_PLANS = ("hashjoin", "mergejoin", "hashagg", "sort", "material", "memoize")


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_notification_takes_no_more_than_it_may_whatever_the_plan(
    empty_url: str, upgraded: Upgraded
) -> None:
    upgraded.copy_to(empty_url)
    without = "%20".join(f"-c%20enable_{plan}%3Doff" for plan in _PLANS)
    joined = "&" if "?" in empty_url else "?"
    with closing(Database(f"{empty_url}{joined}options={without}")) as database:
        jobs.submit(database, submission(*"abcdef"), NOW)
        assert len(due_to_notify(database, 4, NOW)) == 4
