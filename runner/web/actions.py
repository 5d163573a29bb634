"""Routes that change something: answers, and actions on runs and jobs. A change records the person."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

from starlette.responses import Response

from runner.app import approvals, control, humanize, overview, run_table
from runner.app.control import Outcome
from runner.app.people import may
from runner.app.run_table import ROLE_OF
from runner.core.commands import Answered, Change, Reply
from runner.core.run import Author
from runner.errors import UsageError
from runner.web.render import url
from runner.web.visit import Visit

_MOST_WAITED_FOR = 500  # runs; more are changed while the reader goes on
_ANSWERS = {"approve": "approved", "deny": "denied"}
_DONE = {
    "retry": "queued again",
    "cancel": "cancelled",
    "pause": "paused",
    "resume": "resumed",
    "approve": "approved",
    "deny": "denied",
}


def inbox(visit: Visit) -> Response:
    """All questions that wait, or those of a job or a run, grouped by what is asked."""
    watched = visit.watch("inbox")
    name = visit.query.get("run") or visit.query.get("job")
    groups = approvals.waiting_groups(visit.app, name)
    values = {"groups": groups[:100], "total": len(groups), "of": name, "watched": watched}
    values["calls"] = sum(len(group.questions) for group in groups)
    return visit.page("inbox.html", values)


def answer(visit: Visit) -> Response:
    """Answer a group of questions, or one of them."""
    form = visit.form
    action = form.get("action", "")
    if action not in _ANSWERS:
        raise UsageError("choose approve or deny")
    remember = form.get("remember") or "call"
    if remember not in ("call", "run", "job", "always"):
        raise UsageError(f"{remember[:20]!a} is not a scope: choose call, run, job or always")
    if remember == "always" and not may(visit.session.role, "operate"):
        raise UsageError(
            "a rule for all new jobs needs the role 'operate': remember it for the job"
        )
    names = [name for name in form.get("names", "").split() if name]
    reply = Reply(
        cast(Any, _ANSWERS[action]),
        visit.session.person,
        form.get("why", "").strip(),
        remember=cast(Any, remember),
        rule=form.get("rule", "").strip() or None if remember != "call" else None,
    )
    edit = form.get("edit", "") if action == "approve" and "edited" in form else None
    found, unworked = approvals.answer_named(visit.app, names, None, reply, edit)
    _tell_answers(visit, action, found)
    _tell_unworked(visit, unworked)
    return visit.go_back()


def _tell_answers(visit: Visit, action: str, found: Sequence[Answered]) -> None:
    done = [each for each in found if each.changed]
    by_rule = sum(each.by_rule for each in done)
    if done:
        more = f", {by_rule} of them by the rule that was remembered" if by_rule else ""
        visit.tell("good", f"{humanize.plural(len(done), 'call')} {_DONE[action]}{more}")
    for each in [each for each in found if not each.changed][:5]:
        visit.tell("wait", f"{each.item_key}: {each.detail}: nothing was changed")


def do(visit: Visit) -> Response:
    """Do something with one run, or with a whole job."""
    form, author, app = visit.form, visit.author(), visit.app
    name, action = form.get("run") or form.get("job") or "", form.get("action", "")
    match action:
        case "cancel":
            outcome = control.cancel(app, name, author)
        case "pause":
            outcome = control.pause(app, name, author)
        case "resume":
            outcome = control.resume(app, name, author)
        case "retry":
            limits: dict[str, Any] = dict.fromkeys(
                ("max_turns", "token_ceiling", "cost_ceiling_usd", "working_time")
            )
            limits |= run_table.limits_of(form)
            is_fresh = "fresh" in form
            outcome = control.retry(app, name, author, limits, fresh=is_fresh)
        case "say":
            outcome = control.say(app, name, form.get("text", ""), author)
        case "fork":
            outcome = _fork(visit, name, author)
        case _:
            raise UsageError(f"{action[:20]!a} is not an action on a run")
    _tell_outcome(visit, outcome)
    return visit.go_back()


def _fork(visit: Visit, name: str, author: Author) -> Outcome:
    form = visit.form
    turn = form.get("turn", "")
    if not (turn.isascii() and turn.isdigit() and len(turn) < 10):
        raise UsageError(f"{turn[:20]!a} is not a turn: give its number")
    text, model = form.get("text", "").strip() or None, form.get("model", "").strip() or None
    outcome = control.fork(visit.app, name, int(turn), author, text=text, model=model)
    visit.tell("good", f"the fork is {outcome.changes[0].id}")
    return outcome


def _tell_outcome(visit: Visit, outcome: Outcome) -> None:
    done = [each for each in outcome.changes if each.changed]
    left = [each for each in outcome.changes if not each.changed]
    if done:
        more = f", and {humanize.plural(len(done) - 1, 'other run')}" if done[1:] else ""
        visit.tell("good", f"{done[0].item_key}: {done[0].detail}{more}")
    if left:
        more = f", and {humanize.plural(len(left) - 1, 'other run')}" if left[1:] else ""
        visit.tell("wait", f"not changed: {left[0].item_key} {left[0].detail}{more}")
    _tell_unworked(visit, outcome.unworked_job)


def _tell_unworked(visit: Visit, job: str | None) -> None:
    if job is not None:
        visit.tell("wait", "no worker is alive: start one with `runner worker`")


def confirm(visit: Visit) -> Response:
    """Show what an action on all that match would change."""
    app, action = visit.app, visit.query.get("action", "")
    if action not in ROLE_OF:
        raise UsageError(f"{action[:20]!a} is not an action: choose {', '.join(ROLE_OF)}")
    job_id = app.find_job(visit.parts["job"])
    filters = run_table.filters_of(visit.query)
    values = {
        "line": overview.job_line(app, job_id),
        "action": action,
        "given": run_table.as_given(filters),
        "matching": run_table.matching(app, job_id, filters),
        "done": _DONE[action],
        "asked": run_table.asked_of(app, job_id, filters) if action in _ANSWERS else None,
    }
    return visit.page("confirm.html", values)


def act_on_all(visit: Visit) -> Response:
    """Do the action with all runs that match by now."""
    app, action, form = visit.app, visit.form.get("action", ""), visit.form
    if not may(visit.session.role, ROLE_OF.get(action, "operate")):
        raise UsageError(f"your role is {visit.session.role!r}, and this needs 'operate'")
    job_id = app.find_job(visit.parts["job"])
    filters = run_table.filters_of(form)
    count = run_table.matching(app, job_id, filters).count
    author = visit.author()

    def act() -> None:
        _tell_all(visit, action, *run_table.act_on_all(app, job_id, filters, action, author))

    if count <= _MOST_WAITED_FOR:
        act()
    else:
        visit.tell(
            "wait", f"{count:,} runs: this goes on by itself, and this page shows how far it is"
        )
        threading.Thread(target=visit.later(act), name=f"{action} all", daemon=True).start()
    return visit.go_to(url("/jobs/{}", job_id, **run_table.as_given(filters)))


def _tell_all(
    visit: Visit, action: str, found: Sequence[Change | Answered], unworked: str | None
) -> None:
    what = "call" if action in _ANSWERS else "run"
    left = [each for each in found if not each.changed]
    changed = len(found) - len(left)
    visit.tell("good" if changed else "wait", f"{humanize.plural(changed, what)} {_DONE[action]}")
    if left:
        why = f"{left[0].item_key}: {left[0].detail}"
        visit.tell("wait", f"{humanize.plural(len(left), what)} left as it is: {why}")
    _tell_unworked(visit, unworked)
