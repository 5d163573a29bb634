"""``Progress`` as the row of a run holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from runner.core.context.window import estimate
from runner.core.conversation import Message, Usage
from runner.core.ending.verify import Verification
from runner.core.hooks.run import Hooked
from runner.core.journal.view import Call, Failure, Fullness, OpenCall, Pace, Progress, Stop
from runner.core.money.budget import Reservation
from runner.core.spec import JobSpec


def progress_to_json(progress: Progress) -> dict[str, Any]:
    """What ``runs.progress`` holds: the progress without the counters that have columns."""
    call = progress.open_call
    return {
        "model_calls": progress.model_calls,
        "tries": progress.tries,
        "last_prompt_tokens": progress.last_prompt_tokens,
        "appended_bytes": progress.appended_bytes,
        "continuations": progress.continuations,
        "nudges": progress.nudges,
        "charged_cost": progress.charged_cost,
        "worked": progress.worked,
        "warms": progress.warms,
        "budget_waits": progress.budget_waits,
        "tree": progress.tree,
        "verification": _fields(progress.verification),
        "verify_failures": progress.verify_failures,
        "submitted": progress.submitted,
        "result_nudges": progress.result_nudges,
        "delivered": progress.delivered,
        "children": progress.children,
        "split": progress.split,
        "hooked": _fields(progress.hooked),
        "instructed": progress.instructed,
        "fullness": _fields(progress.fullness),
        "pace": _fields(progress.pace),
        "stop": _fields(progress.stop),
        "failure": _fields(progress.failure),
        "open_call": call
        and {
            "number": call.number,
            "attempt": call.attempt,
            "reservation": _fields(call.reservation),
            "purpose": call.purpose,
        },
    }


def _fields(
    value: Stop | Failure | Fullness | Pace | Reservation | Verification | Hooked | None,
) -> dict[str, Any] | None:
    return None if value is None else {name: getattr(value, name) for name in value.__slots__}


def progress_from_row(row: Any) -> Progress:
    """The progress that a row of ``runs`` tells."""
    data = dict(row.progress)
    stop, failure, open_call = data.pop("stop"), data.pop("failure"), data.pop("open_call")
    fullness, pace = data.pop("fullness", {}), data.pop("pace", {})
    verification, hooked = data.pop("verification", None), data.pop("hooked", {})
    return Progress(
        **data,
        turns=row.turns,
        usage=Usage(
            row.input_tokens, row.cache_read_tokens, row.cache_creation_tokens, row.output_tokens
        ),
        charged_tokens=row.charged_tokens,
        fullness=Fullness(**fullness),
        pace=Pace(**pace),
        hooked=Hooked(**{**hooked, "decided": tuple(hooked.get("decided", ()))}),
        verification=Verification(**verification) if verification else None,
        stop=Stop(**stop) if stop else None,
        failure=Failure(**failure) if failure else None,
        open_call=OpenCall(**{**open_call, "reservation": Reservation(**open_call["reservation"])})
        if open_call
        else None,
    )


def counted(
    progress: Progress, spec: JobSpec, messages: Sequence[Message], calls: Sequence[Call]
) -> Progress:
    """The progress of a run that a Runner stored which kept no sums of its context: with the sums of
    what there is by now. Every other has some and stays as it is."""
    if progress.fullness.sent:
        return progress
    per_token = spec.context.chars_per_token
    sizes = [
        (message.role, sum(estimate(block, per_token) for block in message.blocks))
        for message in messages
    ]
    results = sum(estimate(call.result, per_token) for call in calls if call.result is not None)
    replies = [number for number, (role, _) in enumerate(sizes) if role == "assistant"]
    since = sizes[replies[-1] :] if replies else []
    fullness = Fullness(
        sent=spec.shared_tokens + results + sum(size for _, size in sizes),
        since=results + sum(size for _, size in since),
        measured=progress.last_prompt_tokens,
    )
    return replace(progress, fullness=fullness)
