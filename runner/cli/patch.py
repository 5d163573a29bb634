"""``patch``: what runs have changed, as files that land in a repository or that are scored.

A patch as a mail that ``git am`` takes, whatever its message and its lines are.

How git reads it: https://git-scm.com/docs/git-mailinfo and https://git-scm.com/docs/git-mailsplit.

``diff``: what a run has changed.

Writing what comes out to files of the person who asked for it.
"""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.workspace.changes import CommitText
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from runner.cli import exit_codes
from runner.cli.options import json_option, state_option, stored, with_settings
from runner.cli.terminal import note, say_bytes, say_json, say_table
from runner.core.run import ENDED, RunStatus
from runner.errors import RunnerError, UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.queries.runs import RunSnapshots
    from runner.store.database import Database


# What a message of an mbox begins with; git looks only at the form of it.
_SEPARATOR = b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"

# Of a message's lines: what git takes for the beginning of the patch, or of the next mail.
_ENDS_THE_MESSAGE = re.compile(r"diff -|Index: |---(\s*$| \S)|>*From .*\d:\d\d")
# Of its first lines: what git takes for headers of the mail, or takes out of a subject.
_LOOKS_LIKE_A_HEADER = re.compile(r"(from|date|subject):|>From\s|\[PATCH\]\s", re.IGNORECASE)
_CUT_FROM_A_SUBJECT = re.compile(r"\s|:|\[|re:|.*(\s\s|[\t\x0b\x0c]|=\?)", re.IGNORECASE)

_SPECIALS = re.compile(r'[()<>\[\]:;@\\,."]')


def as_mail(text: CommitText, patch: bytes) -> bytes:
    """The mail of a patch: ``git am`` makes a commit of it with this author, time and message.

    Lines of the message that git would read as the beginning of a patch or of another mail are
    indented by a space. Where lines of the patch end in a carriage return, which git would take
    off, the mail is in quoted-printable.
    """
    author = _author(text)
    headers = [f"From: {author}", f"Date: {_date(text.at)}"]
    lines = _lines(text.message)
    if _fits_a_subject(lines):
        headers.append(f"Subject: [PATCH] {lines[0]}")
        body = lines[2:]
    else:
        # A header in the body ends what git reads as headers there: all that follows is the message.
        body = [f"From: {author}", "", *lines]
    said = "\n".join([*body, "---", "", ""]).encode()
    quoted = b"\r\n" in patch
    headers += [
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        f"Content-Transfer-Encoding: {'quoted-printable' if quoted else '8bit'}",
    ]
    head = "\n".join([*headers, "", ""]).encode()
    content = said + patch
    return _SEPARATOR + head + (_quoted(content) if quoted else content)


def _lines(message: str) -> list[str]:
    """The message's lines as they can stand in a mail."""
    whole = message.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "\ufffd")
    readable = whole.encode(errors="replace").decode()
    lines = [line.rstrip() for line in readable.strip("\n").split("\n")]
    return [f" {line}" if _ENDS_THE_MESSAGE.match(line) else line for line in lines]


def _fits_a_subject(lines: list[str]) -> bool:
    """Whether git would give the first line back as it is, and take none after it for a header."""
    first, *rest = lines
    if not first or _CUT_FROM_A_SUBJECT.match(first) or (rest and rest[0]):
        return False
    told = next((line for line in rest if line), "")
    return not _LOOKS_LIKE_A_HEADER.match(told)


def _author(text: CommitText) -> str:
    name = " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text.name).split())
    email = re.sub(r"[\x00-\x20\x7f<>]", "", text.email) or "unknown"
    if _SPECIALS.search(name):
        name = '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'
    return f"{name} <{email}>".encode(errors="replace").decode().lstrip()


def _date(at: float) -> str:
    return format_datetime(datetime.fromtimestamp(int(at), tz=UTC))


def _quoted(content: bytes) -> bytes:
    """In quoted-printable (https://www.rfc-editor.org/rfc/rfc2045#section-6.7): all that is no
    printable ASCII is escaped, the ends of lines apart."""
    return b"\n".join(binascii.b2a_qp(line, istext=False) for line in content.split(b"\n"))


@click.command()
@click.argument("run")
@click.option(
    "--turn", type=click.IntRange(1), metavar="N", help="Only what was changed in that turn."
)
@click.option("--stat", is_flag=True, help="Only how many lines of which files.")
@with_settings
def diff(settings: Settings, run: str, turn: int | None, stat: bool) -> None:
    """Show what a run has changed in its workspace since its first turn, as it is recorded now.

    It needs a workspace of the run's own (mode "git" or "copy"). Into a file or a pipe it is written
    byte for byte, binary files too, as `git apply` takes it; at a terminal control characters are shown.

    \b
    Example:
      runner diff k3x9f2 --stat
      runner diff k3x9f2 --turn 12
    """
    from runner.app.snapshots import recorded_in, refuse_unrecorded, whereabouts
    from runner.queries.find import find
    from runner.queries.runs import snapshots_around_turn, snapshots_of_run

    with stored(settings) as database:
        found = snapshots_of_run(database, find(database, run, "run").id)
        refuse_unrecorded(found)
        change: tuple[str, str] | None = (str(found.start_tree), str(found.tree))
        if turn is not None:
            change = snapshots_around_turn(database, found.run_id, turn)
        where = whereabouts(database, found)
    recorded = recorded_in(settings)
    content = b"" if change is None else recorded.diff(where, [change], stat=stat)
    large = () if change is None else recorded.too_large(where, change)
    for path in large:
        note(f"not shown: {path}, which is too large to be recorded whole")
    for path in () if change is None else recorded.unrecorded(where, change[1]):
        note(f"not shown: what is in {path}, of which nothing is recorded")
    if not content and not large:
        note("nothing was changed" + (f" in turn {turn}" if turn else ""))
    say_bytes(content)


_LONGEST_NAME = 100


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a link at ``path`` is replaced and not followed.

    Raises:
        UsageError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name[:_LONGEST_NAME]}.{os.getpid()}")
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Make a folder where there is none. Raises ``UsageError`` when it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {path} cannot be made: {error.strerror}") from error


def file_names(runs: Iterable[tuple[str, str]], suffix: str) -> dict[str, str]:
    """A name for the file of each run, made of its item's key; of its id's end, too, where two
    would have the same one.

    Args:
        runs: ids with the items' keys. suffix: of each name, with its dot.

    Returns:
        Names by the runs' ids; none has a separator, a blank or a dot in front, and no two are the
        same to a file system that ignores case.
    """
    stems = {run_id: _stem(key) for run_id, key in runs}
    same = Counter(stem.casefold() for stem in stems.values())
    return {
        run_id: f"{stem}{suffix}" if same[stem.casefold()] == 1 else f"{stem}-{run_id[-8:]}{suffix}"
        for run_id, stem in stems.items()
    }


def _stem(key: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", key).strip("-.")
    return safe[:_LONGEST_NAME].rstrip("-.") or "run"


Format = Literal["am", "preds"]

PREDICTIONS = "preds.json"
_NOTHING = "nothing was changed"


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a run: the file that its changes are in (None: in none), and what is to be said
    of it."""

    run_id: str
    item_key: str
    state: RunStatus
    file: str | None
    why: str = ""
    failed: bool = False


@click.command()
@click.argument("id", metavar="RUN|JOB")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder to write to; it is made.",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["am", "preds"]),
    default="am",
    show_default=True,
    help="A file for each run that `git am` takes, or one file of predictions for SWE-bench's tools.",
)
@state_option
@json_option
@with_settings
def patch(
    settings: Settings,
    id: str,
    output: Path,
    shape: Format,
    state: RunStatus | None,
    as_json: bool,
) -> int:
    """Write what a run, or each run of a job that has ended, has changed.

    A patch is one commit on top of the job's base, with the message and the author of the one
    that the run was delivered in. Runs that changed nothing are named; they get no patch, and a
    prediction that is empty.

    \b
    Example:
      runner patch job_01jd9k -o patches --state succeeded
      git switch -c landing && git am patches/src-a.py.patch
      runner patch job_01jd9k -o out --format preds
    """
    with stored(settings) as database:
        chosen = _chosen(database, id, state)
        make_folder(output)
        write = _patches if shape == "am" else _predictions
        written = write(settings, database, chosen, output)
    if as_json:
        say_json([asdict(each) for each in written])
    else:
        columns = ("run", "item", "state", "file", "")
        say_table(columns, ((w.run_id, w.item_key, w.state, w.file, w.why) for w in written))
    files = len({each.file for each in written if each.file})
    note(f"{files} {'file' if files == 1 else 'files'} written to {output}")
    return exit_codes.FAILED if any(each.failed for each in written) else exit_codes.SUCCEEDED


def _chosen(database: Database, text: str, state: RunStatus | None) -> list[RunSnapshots]:
    """The runs that are meant: of a job, those in the state, or all that have ended."""
    from runner.app.snapshots import refuse_unrecorded
    from runner.queries.find import find
    from runner.queries.runs import snapshots_of_job, snapshots_of_run

    found = find(database, text, "job", "run")
    if found.kind == "run":
        run = snapshots_of_run(database, found.id)
        refuse_unrecorded(run)
        runs = [run]
    else:
        runs = snapshots_of_job(database, found.id)
        if runs and not runs[0].is_recorded:
            refuse_unrecorded(runs[0])
        wanted = ENDED if state is None else {state}
        runs = [run for run in runs if run.state in wanted]
    if not runs:
        what = f"is {state}" if state else "has ended"
        raise UsageError(f"no run of {found.id} {what}: look with `runner list {found.id}`")
    return runs


def _patches(
    settings: Settings, database: Database, runs: Sequence[RunSnapshots], folder: Path
) -> list[Written]:
    """A mail for each run that changed anything."""
    from runner.app.snapshots import commit_text

    names = file_names(((run.run_id, run.item_key) for run in runs), ".patch")

    def write(run: RunSnapshots, changes: bytes) -> Written:
        if not changes:
            return _written(run, None, _NOTHING)
        mail = as_mail(commit_text(settings, database, run), changes)
        write_file(folder / names[run.run_id], mail)
        return _written(run, names[run.run_id])

    return _each(settings, database, runs, write)


def _predictions(
    settings: Settings, database: Database, runs: Sequence[RunSnapshots], folder: Path
) -> list[Written]:
    """One array of objects, as SWE-bench reads it
    (https://www.swebench.com/SWE-bench/guides/evaluation/). An instance has one prediction: forks of a
    run are left out where that one is there."""
    from runner.queries.runs import items_of_runs

    items = items_of_runs(database, [run.run_id for run in runs])
    predictions: dict[str, dict[str, str]] = {}

    def write(run: RunSnapshots, changes: bytes) -> Written:
        instance = _instance(run, items.get(run.run_id))
        if instance in predictions:
            return _written(run, None, f"{instance} has a prediction already")
        try:
            text = changes.decode()
        except UnicodeDecodeError:
            return _failed(run, "its changes are not UTF-8, which JSON needs: use --format am")
        predictions[instance] = {
            "instance_id": instance,
            "model_name_or_path": run.model,
            "model_patch": text,
        }
        return _written(run, PREDICTIONS, "" if changes else _NOTHING)

    originals_first = sorted(runs, key=lambda run: run.fork_of is not None)
    written = _each(settings, database, originals_first, write)
    content = json.dumps(list(predictions.values()), indent=2) + "\n"
    write_file(folder / PREDICTIONS, content.encode())
    return written


def _each(
    settings: Settings,
    database: Database,
    runs: Sequence[RunSnapshots],
    write: Callable[[RunSnapshots, bytes], Written],
) -> list[Written]:
    """Write each run's changes; one of which they cannot be had is told of and keeps no other back."""
    from runner.app.snapshots import delivered_or_recorded, recorded_in, whereabouts

    recorded = recorded_in(settings)
    written = []
    for run in runs:
        changes = delivered_or_recorded(run)
        if not changes:
            written.append(_written(run, None, "it was never begun"))
            continue
        try:
            content = recorded.diff(whereabouts(database, run), changes)
        except UsageError:
            raise
        except RunnerError as error:
            written.append(_failed(run, str(error)))
        else:
            written.append(write(run, content))
    return written


def _instance(run: RunSnapshots, item: Any) -> str:
    """The id that the item has of its own, else its key."""
    own = item.get("instance_id") if isinstance(item, dict) else None
    return own if isinstance(own, str) and own else run.item_key


def _written(run: RunSnapshots, file: str | None, why: str = "") -> Written:
    return Written(run.run_id, run.item_key, run.state, file, why)


def _failed(run: RunSnapshots, why: str) -> Written:
    return Written(run.run_id, run.item_key, run.state, None, why, failed=True)
