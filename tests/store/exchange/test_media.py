"""Images and documents in the store, in exports and in what is imported."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from sqlalchemy import func, select, update

from runner.core.commands import Target
from runner.core.conversation import ToolResult
from runner.core.entries import ToolFinished
from runner.core.media import Media
from runner.core.run import UNKNOWN, Author
from runner.core.steps import RunTools
from runner.errors import UsageError
from runner.exchange.claude_code import session_lines
from runner.llm.requests import request_body
from runner.queries.transcript import api_messages, sent_request
from runner.store import jobs as jobs_store
from runner.store import schedules
from runner.store.blobs import load_blob
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.exports import export, load_recorded
from runner.store.fork import fork
from runner.store.imports import import_file
from runner.store.prune import erase, old_jobs
from runner.store.retry import retry
from runner.store.schedules import Cron, add, fire_due
from runner.store.sessions import import_session
from runner.store.tables import blobs, blocks, job_blobs, runs
from tests.exchange.samples import raw_of
from tests.media import image, pdf
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, submission
from tests.store.exchange.conftest import MakeDatabase

pytestmark = pytest.mark.dialect

PNG = Media("image", "image/png", "shot.png", image(), 64, 48)
PDF = Media("document", "application/pdf", "a.pdf", pdf(2), pages=2)
LATER = NOW + 90 * 86_400.0
ANN = Author("ann", "retention")


def look(database: Database, *media: Media, key: str = "one") -> str:
    """A run that has looked at media and has ended; its id."""
    run_id = submit_one(database, key)
    attempt = claim(database, run_id)
    attempt.reply(tool_use(1, file_path="shot.png"), stop="tool_use")
    assert isinstance(attempt.effect, RunTools)
    attempt.append(ToolFinished(0, ToolResult("an image", media=media)))
    attempt.reply(text("It is red."))
    return run_id


def count(database: Database, table: Any) -> int:
    return int(database.rows(select(func.count()).select_from(table))[0][0])


def data_in(messages: list[dict[str, Any]]) -> list[bytes]:
    """The bytes of the media in tool results."""
    parts = [part for one in messages for block in one["content"] for part in _parts(block)]
    return [base64.b64decode(part["source"]["data"]) for part in parts]


def _parts(block: dict[str, Any]) -> list[dict[str, Any]]:
    content = block.get("content")
    found = content if isinstance(content, list) else [block]
    return [part for part in found if part["type"] in ("image", "document")]


def test_bytes_are_stored_once_beside_the_conversation(database: Database) -> None:
    first, second = look(database, PNG, PDF), look(database, PNG, key="two")
    assert (count(database, blobs), count(database, job_blobs)) == (2, 3)
    assert load_blob(database, PNG.sha256) == PNG.data
    stored = database.rows(select(blocks.c.content).where(blocks.c.run_id == first))
    assert base64.b64encode(PNG.data).decode()[:40] not in json.dumps([row[0] for row in stored])
    assert data_in(api_messages(database, first)) == [PNG.data, PDF.data]
    assert data_in(api_messages(database, second)) == [PNG.data]


def test_a_request_names_digests_and_sends_bytes(database: Database) -> None:
    run_id = look(database, PNG)
    request = sent_request(database, run_id, 2)
    assert f"sha256:{PNG.sha256}".encode() in request_body(request)
    sent = request_body(request, lambda digest: load_blob(database, digest))
    assert data_in(json.loads(sent)["messages"]) == [PNG.data]


def test_pruning_deletes_what_no_job_refers_to(database: Database) -> None:
    first = look(database, PNG, PDF)
    job_id = run_row(database, first).job_id
    cancelled = look(database, PNG, key="two")
    for job in list(old_jobs(database, LATER, "this host")):
        if job.id == job_id:
            assert erase(database, job, LATER, ANN, LATER)
    assert database.rows(select(blobs.c.sha256)) == [(PNG.sha256,)]
    assert data_in(api_messages(database, cancelled)) == [PNG.data]
    for job in list(old_jobs(database, LATER, "this host")):
        assert erase(database, job, LATER, ANN, LATER)
    assert count(database, blobs) == 0


def test_bytes_stored_again_during_a_pruning_stay(database: Database) -> None:
    look(database, PNG)
    database.execute(update(blobs).values(used_at=LATER))
    (job,) = old_jobs(database, LATER, "this host")
    assert erase(database, job, LATER, ANN, LATER)
    assert count(database, blobs) == 1


def test_the_images_of_an_item_follow_its_prompt_in_forks_and_fresh_runs(
    database: Database,
) -> None:
    given = submission("a")
    (run,) = given.runs
    run = type(run)(run.key, run.item, run.prompt, attached=[PNG.block()])
    given = type(given)(given.source, given.text, given.spec, (run,), media=(PNG,))
    job_id = jobs_store.submit(database, given, NOW)
    ((first,),) = database.rows(select(runs.c.id).where(runs.c.job_id == job_id))
    attempt = claim(database, first)
    assert attempt.state.context.estimate > 0
    attempt.reply(text("It is red."))
    change = fork(database, first, 0, NOW)
    retry(database, Target("run", first), NOW, fresh=True)
    for (run_id,) in database.rows(select(runs.c.id).where(runs.c.job_id == job_id)):
        assert data_in(api_messages(database, run_id)[:1]) == [PNG.data], run_id
    cancel(database, Target("run", change.id), NOW)
    assert count(database, runs) == 3


def test_another_database_imports_an_export_unchanged(
    make_database: MakeDatabase, database: Database
) -> None:
    run_id = look(database, PNG, PDF)
    job_id = run_row(database, run_id).job_id
    other = make_database("sqlite")

    def exported(source: Database) -> bytes:
        file = BytesIO()
        export(source, job_id=job_id, write=file.write)
        return file.getvalue()

    (found,) = import_file(other, BytesIO(exported(database)), "a file", UNKNOWN, NOW)
    assert found.what == "imported"
    assert data_in(api_messages(other, run_id)) == [PNG.data, PDF.data]
    assert count(other, blobs) == 2
    assert exported(other) == exported(database)
    (again,) = import_file(other, BytesIO(exported(database)), "a file", UNKNOWN, NOW)
    assert again.what == "there"


def test_an_image_goes_to_claude_code_and_comes_back(
    make_database: MakeDatabase, database: Database
) -> None:
    recorded = load_recorded(database, look(database, PNG))
    lines = list(session_lines(recorded, "1"))
    said = [line["message"] for line in lines if "toolUseResult" in line]
    assert data_in(said) == [PNG.data]
    hostile = json.loads(json.dumps(lines).replace('"type": "base64"', '"type": "blob"'))
    for some, found in ((lines, [PNG.data]), (hostile, [])):
        other = make_database("sqlite")
        (brought,) = import_session(other, {"": raw_of(some)}, "session.jsonl", ANN, LATER)
        assert data_in(api_messages(other, brought.run_id)) == found
        assert [row.used_at for row in other.rows(select(blobs.c.used_at))] == [LATER] * len(found)


def test_a_schedule_keeps_the_files_of_its_items_up_to_a_size(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = submission("a")
    run = replace(given.runs[0], attached=[PNG.block(), PDF.block()])
    given = replace(given, runs=(run,), media=(PNG, PDF))
    add(database, given, Cron("0 7 * * *", "UTC"), None, NOW, ANN)
    (job_id,) = fire_due(database, NOW + 86_400)
    ((run_id,),) = database.rows(select(runs.c.id).where(runs.c.job_id == job_id))
    assert data_in(api_messages(database, run_id)) == [PNG.data, PDF.data]
    begun = claim(database, run_id, NOW + 86_400).state
    assert begun.messages[0].blocks[1:] == (PNG.block(), PDF.block())
    monkeypatch.setattr(schedules, "_MOST_MEDIA", 100)
    with pytest.raises(UsageError, match="keeps at most 0 MB of files"):
        add(database, given, Cron("0 7 * * *", "UTC"), None, NOW, ANN)
