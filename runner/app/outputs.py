"""The results of runs: diffs, patches, predictions and structured results."""

from __future__ import annotations

import binascii
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Literal

from runner.app import workspaces
from runner.app.handle import App
from runner.core.run import ENDED, RunStatus
from runner.core.spec import JobSpec
from runner.errors import RunnerError, UsageError
from runner.queries import outcomes as stored
from runner.queries.jobs import show_job
from runner.store.workspaces import (
    RunWorkspace,
    snapshots_around_turn,
    workspace_of,
    workspaces_of_job,
)
from runner.workspace.diffs import CommitText, Form
from runner.workspace.repository import RUN_TRAILER

_LONGEST_NAME = 100
_PREDICTIONS = "preds.json"
_NOTHING = "nothing was changed"

WriteFile = Callable[[str, bytes], None]  # takes the name of a file and its content


def results_of(app: App, job: str) -> tuple[list[stored.RunResult], Mapping[str, Any]]:
    """Return the structured results of a job's runs, and the JSON Schema that each follows. Raises
    ``UsageError`` if the job asks for none."""
    job_id = app.find_job(job)
    spec = JobSpec.from_json(show_job(app.database, job_id)["spec"])
    if spec.result_tool is None:
        raise UsageError(f"{job_id} has no results, because its job file has no output_schema")
    return stored.results_of_job(app.database, job_id), spec.result_tool.input_schema


@dataclass(frozen=True, slots=True)
class Diff:
    content: bytes
    too_large: Sequence[str] = ()  # paths that are too large to be recorded whole
    unrecorded: Sequence[str] = ()  # paths whose content is not recorded


def diff_of(
    app: App, name: str, turn: int | None = None, form: Form = "shown", width: int = 100
) -> Diff:
    """Return the recorded changes of a run or of one turn, for people with a summary of at most
    ``width`` columns. Raises ``UsageError`` if the run has no recorded files."""
    found = workspace_of(app.database, app.find(name, "run").id)
    workspaces.refuse_unrecorded(app, found)
    change: tuple[str, str] | None = (str(found.start_tree), str(found.tree))
    if turn is not None:
        change = snapshots_around_turn(app.database, found.run_id, turn)
    if change is None:
        return Diff(b"")
    recorded, where = workspaces.recorded_in(app), workspaces.whereabouts(app, found)
    return Diff(
        recorded.diff(where, [change], form, width),
        recorded.too_large(where, change),
        recorded.unrecorded(where, change[1]),
    )


@dataclass(frozen=True, slots=True)
class Written:
    run_id: str
    item_key: str
    state: RunStatus
    file: str | None  # that the changes are in
    why: str = ""  # why there is no file, or nothing in it
    failed: bool = False


def runs_to_patch(app: App, name: str, states: Collection[RunStatus]) -> list[RunWorkspace]:
    """Return a run, or a job's runs that are in one of the states. Raises ``UsageError`` if there is
    none, or their workspaces are not recorded."""
    found = app.find(name, "job", "run")
    if found.kind == "run":
        run = workspace_of(app.database, found.id)
        workspaces.refuse_unrecorded(app, run)
        return [run]
    runs = workspaces_of_job(app.database, found.id)
    if runs and not runs[0].is_recorded:
        workspaces.refuse_unrecorded(app, runs[0])
    wanted = [run for run in runs if run.state in states]
    if not wanted:
        what = "has ended" if states == ENDED else f"has {' or '.join(states)}"
        raise UsageError(f"no run of {found.id} {what}: look with `runner list {found.id}`")
    return wanted


def stale_files(folder: Path, written: Iterable[Written], of_run: str | None) -> list[Path]:
    """Return the patches and predictions in a folder that were not written now, sorted. Of a run
    (``of_run``) only its patches."""
    files = {each.file for each in written}
    found = [*folder.glob("*.patch"), *folder.glob(_PREDICTIONS)]
    stale = sorted(path for path in found if path.name not in files and path.is_file())
    if of_run is None:
        return stale
    trailer = f"\n{RUN_TRAILER}: {of_run}\n".encode()
    return [path for path in stale if trailer in path.read_bytes()]


def write_patches(
    app: App, runs: Sequence[RunWorkspace], format: Literal["am", "preds"], write_file: WriteFile
) -> list[Written]:
    """Write what runs changed: a mail for ``git am`` each, or one file of SWE-bench predictions. A run
    whose changes cannot be read does not stop the others."""
    recorded = workspaces.recorded_in(app)
    names = file_names(((run.run_id, run.item_key) for run in runs), ".patch")
    items = stored.items_of_runs(app.database, [run.run_id for run in runs])
    predictions: dict[str, dict[str, str]] = {}
    written = []
    if format == "preds":  # an instance has one prediction: the run's, then a fork's
        runs = sorted(runs, key=lambda run: run.fork_of is not None)
    for run in runs:
        file, why, failed = None, "it was never begun", False
        try:
            if changes := workspaces.delivered_or_recorded(run):
                content = recorded.diff(workspaces.whereabouts(app, run), changes)
                why = "" if content else _NOTHING
                if format == "preds":
                    file, why = _predict(predictions, run, items.get(run.run_id), content)
                elif content:
                    file = names[run.run_id]
                    write_file(file, as_mail(workspaces.commit_text(app, run), content))
        except UsageError:
            raise
        except RunnerError as error:
            file, why, failed = None, str(error), True
        written.append(Written(run.run_id, run.item_key, run.state, file, why, failed))
    if format == "preds":
        text = json.dumps(list(predictions.values()), indent=2) + "\n"
        write_file(_PREDICTIONS, text.encode())
    return written


def _predict(
    predictions: dict[str, dict[str, str]], run: RunWorkspace, item: Any, changes: bytes
) -> tuple[str | None, str]:
    """Add the prediction of a run, as SWE-bench reads it
    (https://www.swebench.com/SWE-bench/guides/evaluation/); return its file and a remark. Its name is the
    item's own instance id, else its key."""
    own = item.get("instance_id") if isinstance(item, dict) else None
    instance = own if isinstance(own, str) and own else run.item_key
    if instance in predictions:
        return None, f"{instance} has a prediction already"
    try:
        text = changes.decode()
    except UnicodeDecodeError as error:
        why = "its changes are not UTF-8, which JSON needs: use --format am"
        raise RunnerError(why) from error
    named = {"instance_id": instance, "model_name_or_path": run.model, "model_patch": text}
    predictions[instance] = named
    return _PREDICTIONS, "" if changes else _NOTHING


def file_names(runs: Iterable[tuple[str, str]], suffix: str) -> dict[str, str]:
    """Return the name of a file for each run, by its id: the item's key with the suffix, and the
    end of the run's id if two would have the same name. None has a separator, a blank or a leading
    dot, and no two are the same on a file system that ignores case."""
    safe = {run_id: re.sub(r"[^A-Za-z0-9._-]+", "-", key).strip("-.") for run_id, key in runs}
    stems = {run_id: key[:_LONGEST_NAME].rstrip("-.") or "run" for run_id, key in safe.items()}
    same = Counter(stem.casefold() for stem in stems.values())
    return {
        run_id: f"{stem}{suffix}" if same[stem.casefold()] == 1 else f"{stem}-{run_id[-8:]}{suffix}"
        for run_id, stem in stems.items()
    }


# A patch as a mail that `git am` takes, whatever its message and its lines are
# (https://git-scm.com/docs/git-mailinfo, https://git-scm.com/docs/git-mailsplit)

# What a message of an mbox begins with; git looks only at the form of it.
_SEPARATOR = b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"

# Of a message's lines: what git takes for the beginning of the patch, or of the next mail.
_ENDS_THE_MESSAGE = re.compile(r"diff -|Index: |---(\s*$| \S)|>*From .*\d:\d\d")
# Of its first lines: what git takes for headers of the mail, or takes out of a subject.
_LOOKS_LIKE_A_HEADER = re.compile(r"(from|date|subject):|>From\s|\[PATCH\]\s", re.IGNORECASE)
_CUT_FROM_A_SUBJECT = re.compile(r"\s|:|\[|re:|.*(\s\s|[\t\x0b\x0c]|=\?)", re.IGNORECASE)

_SPECIALS = re.compile(r'[()<>\[\]:;@\\,."]')


def as_mail(text: CommitText, patch: bytes) -> bytes:
    """Return a patch as a mail; ``git am`` turns it into a commit with this author, time and message.

    Lines of the message that git would read as the beginning of a patch or of another mail are
    indented by a space. Where lines of the patch end in a carriage return, which git would take
    off, the mail is in quoted-printable.
    """
    author = _author(text)
    date = format_datetime(datetime.fromtimestamp(int(text.at), tz=UTC))
    whole = text.message.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "\ufffd")
    readable = whole.encode(errors="replace").decode().strip("\n")
    lines = [line.rstrip() for line in readable.split("\n")]
    first, *rest = (f" {line}" if _ENDS_THE_MESSAGE.match(line) else line for line in lines)
    headers = [f"From: {author}", f"Date: {date}"]
    is_cut = not first or _CUT_FROM_A_SUBJECT.match(first) or (rest and rest[0])
    if is_cut or _LOOKS_LIKE_A_HEADER.match(next(filter(None, rest), "")):
        # A header in the body ends what git reads as headers there: all that follows is the message.
        body = [f"From: {author}", "", first, *rest]
    else:
        headers.append(f"Subject: [PATCH] {first}")
        body = rest[1:]
    quoted = b"\r\n" in patch
    headers += [
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        f"Content-Transfer-Encoding: {'quoted-printable' if quoted else '8bit'}",
    ]
    content = "\n".join([*body, "---", "", ""]).encode() + patch
    if quoted:  # all but printable ASCII and ends of lines (https://www.rfc-editor.org/rfc/rfc2045)
        content = b"\n".join(binascii.b2a_qp(each, istext=False) for each in content.split(b"\n"))
    return _SEPARATOR + "\n".join([*headers, "", ""]).encode() + content


def _author(text: CommitText) -> str:
    name = " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text.name).split())
    email = re.sub(r"[\x00-\x20\x7f<>]", "", text.email) or "unknown"
    if _SPECIALS.search(name):
        name = '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'
    return f"{name} <{email}>".encode(errors="replace").decode().lstrip()
