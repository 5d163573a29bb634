"""A record in which every text is hostile, and where each page about it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.core.commands import Reply, Target
from runner.core.conversation import Tool
from runner.core.run import Author
from runner.permissions import Rule
from runner.store import jobs as jobs_store
from runner.store.approvals import answer
from runner.store.control import cancel
from runner.store.database import Database
from tests.app.test_transcript_page import EVIL
from tests.store.asked import run_ids
from tests.store.attempts import claim, run_row, text, tool_use
from tests.store.audit.played import PLAYED, bash, questions, turn
from tests.store.examples import NOW, submission

NAME = EVIL.replace("\x00", "").replace("\ud800", "").replace("\r\n", " ")
ATTRIBUTE = (
    '"\'><script>alert(4)</script><img src=x onerror=alert(5)> style="x" autofocus '
    "onfocus=alert(6) "
)


@dataclass(frozen=True)
class Record:
    job: str
    run: str
    call: str
    waiting: str  # the run that asks


def hostile_record(database: Database) -> Record:
    """One run that said and did hostile things, one that failed with a hostile error, and one that asks
    whether it may do a hostile thing."""
    spec = replace(
        PLAYED,
        name=NAME[:150],
        system=EVIL,
        tools=(*PLAYED.tools, Tool("Evil", EVIL, {"type": "object"})),
        rules=(
            *PLAYED.rules,
            Rule("ask", "Bash(uv *)", why=NAME[:300]),
            Rule("deny", "Evil", why=ATTRIBUTE),
        ),
    )
    keys = (f"{NAME[:100]}1", f"{ATTRIBUTE}2", f"{NAME[:60]}3", "4")
    job = jobs_store.submit(
        database, submission(*keys, spec=spec), NOW, author=Author("ada", NAME[:200])
    )
    first, second, third, fourth = run_ids(database, job)
    attempt = claim(database, first)
    turn(
        attempt,
        tool_use(0, "Read", file_path=EVIL, **{ATTRIBUTE: EVIL}),
        tool_use(
            1, "Edit", file_path=ATTRIBUTE, old_string=EVIL, new_string=f"{EVIL}\n{ATTRIBUTE}"
        ),
        tool_use(2, "Evil", x=EVIL),
        tool_use(3, EVIL, x=[EVIL]),
        results=[(EVIL * 30, "succeeded"), (ATTRIBUTE, "failed")],
    )
    attempt.reply(
        {"type": "thinking", "thinking": EVIL, "signature": "x"}, text(EVIL), text(ATTRIBUTE)
    )
    attempt = claim(database, second, NOW + 5)
    attempt.fail("invalid_request_error", f"{EVIL} {ATTRIBUTE}")
    attempt = claim(database, third, NOW + 9)
    turn(attempt, *bash(f"uv lock\n{EVIL} {ATTRIBUTE}", f"uv sync {ATTRIBUTE}"))
    turn(claim(database, fourth, NOW + 9), *bash("uv lock"))
    (asked,) = questions(database, fourth)
    answer(database, [asked], Reply("denied", NAME[:90], reason=NAME), NOW + 60)
    by = Author(NAME[:90], f"{NAME} {ATTRIBUTE}")
    cancel(database, Target("run", fourth), NOW + 70, author=by)
    assert run_row(database, third).state == "waiting"
    number = first.removeprefix("run_")
    return Record(job, first, f"call_{number}_1_1", third)
