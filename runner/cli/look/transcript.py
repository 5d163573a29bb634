"""``transcript``: what was said in a run, and what the model was sent of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from runner.cli.display import cell, duration, lines, moment, say, say_json
from runner.cli.look.verified import verified
from runner.cli.options import json_option, stored, with_settings
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.store.database import Database
    from runner.store.look.decisions import DeniedCall
    from runner.store.look.transcript import CompactionLine, Line
    from runner.store.look.verifications import Verified


@click.command()
@click.argument("run")
@click.option(
    "--as-sent",
    "turn",
    type=click.IntRange(1),
    metavar="TURN",
    help="Print the request of that turn as it was sent.",
)
@json_option
@with_settings
def transcript(settings: Settings, run: str, turn: int | None, as_json: bool) -> None:
    """Show the conversation of a run. With --json: the messages exactly as in the API.

    It is shown whole, also what was shortened or summarised when it was sent. With --as-sent it is
    the body of the request that the model got in a turn, byte for byte (at a terminal: on more lines).

    \b
    Example:
      runner transcript k3x9f2
      runner transcript k3x9f2 --as-sent 12
    """
    from runner.store.look import transcript as stored_transcript
    from runner.store.look.find import find

    with stored(settings) as database:
        run_id = find(database, run, "run").id
        if turn is not None:
            _say_request(database, run_id, turn)
        elif as_json:
            say_json(stored_transcript.messages(database, run_id))
        else:
            _say_conversation(database, run_id)


def _say_request(database: Database, run_id: str, turn: int) -> None:
    from runner.llm.body import request_body
    from runner.store.look.as_sent import as_sent

    body = request_body(as_sent(database, run_id, turn))
    if sys.stdout.isatty():
        say_json(json.loads(body))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(body)


def _say_conversation(database: Database, run_id: str) -> None:
    from runner.store.look import decisions
    from runner.store.look import transcript as stored_transcript
    from runner.store.look.verifications import verifications_of

    denied = {call["id"]: call for call in decisions.denied_calls(database, run_id)}
    asked = {each["call_id"]: each for each in decisions.approvals_of(database, run_id)}
    compactions = stored_transcript.compactions(database, run_id)
    verifications = verifications_of(database, run_id)
    last = -1
    for line in stored_transcript.lines(database, run_id):
        while verifications and _follows(line, verifications[0]):
            _say_verification(verifications.pop(0))
            last = -1
        if line["message"] != last:
            last = line["message"]
            while (
                line["role"] == "assistant" and compactions[:1] and _is_before(compactions[0], line)
            ):
                _say_compaction(compactions.pop(0))
            turn = f", turn {line['turn']}" if line["turn"] else ""
            say(f"── {line['role']}{turn} · {moment(line['created_at'])}")
        say(_readable(line))
        if line["call"] is not None and line["content"]["type"] == "tool_use":
            call_id = line["call"]["id"]
            _say_decision(denied.get(call_id), asked.get(call_id))
    for verification in verifications:
        _say_verification(verification)
    for compaction in compactions:
        _say_compaction(compaction)


def _follows(line: Line, verification: Verified) -> bool:
    """Whether a line was said after a verification: in a later turn, or to tell of it."""
    if line["turn"] != verification["turn"]:
        return line["turn"] > verification["turn"]
    return line["role"] == "user" and line["content"]["type"] == "text"


def _say_verification(verification: Verified) -> None:
    """What the job's commands said when the model was done."""
    say(
        f"── verification {verification['number']}, after turn {verification['turn']} · "
        f"{moment(verification['started_at'])}"
    )
    say(f"[{verified(verification)}]")
    if verification["output"]:
        say(lines(verification["output"]))


def _is_before(compaction: CompactionLine, line: Line) -> bool:
    return compaction["turn"] <= line["turn"]


def _say_compaction(compaction: CompactionLine) -> None:
    """What the model is sent from here on in place of something."""
    before, after = compaction["tokens_before"], compaction["tokens_after"]
    say(
        f"── compacted before turn {compaction['turn']} · {moment(compaction['created_at'])} · "
        f"about {before:,} tokens became {after:,}"
    )
    messages = f"messages {compaction['first_message']} to {compaction['last_message']}"
    if compaction["kind"] == "summary":
        call = compaction["made_by_call"]
        say(f"[{messages} are sent as this summary, the reply to model call {call}]")
    elif compaction["kind"] == "prune":
        say(f"[{messages} are left out, this is sent in their place]")
    if compaction["text"]:
        say(lines(compaction["text"]))
    if compaction["clips"]:
        count = compaction["clips"]
        results = "1 result of a tool is" if count == 1 else f"{count} results of tools are"
        say(f"[{results} sent shortened]")


def _say_decision(denied: DeniedCall | None, asked: dict[str, Any] | None) -> None:
    """Why a call was denied, or what became of the question about it."""
    from runner.cli.permissions.words import answer, denier

    if denied is not None:
        said = denier(denied)
        say(f"[{said if denied['answer'] else f'denied: {said}'}]")
    elif asked is not None:
        edited = ", with another input" if asked["edited_input"] is not None else ""
        say(f"[{answer(asked)}{edited}]")


def _readable(line: Line) -> str:
    content, call = line["content"], line["call"]
    match content["type"]:
        case "text":
            return lines(content["text"])
        case "thinking":
            return "[thinking] " + lines(content.get("thinking", ""))
        case "tool_use" if call is not None:
            arguments = json.dumps(content["input"], ensure_ascii=False)
            return f"[{cell(content['name'])} {call['id']}] {cell(arguments)}"
        case "tool_result" if call is not None:
            outcome = f"{call['state']}, {duration(call['duration'])}"
            return f"[result {call['id']}: {outcome}]\n" + lines(text_of(content["content"]))
        case kind:
            return f"[{cell(kind)}] " + cell(json.dumps(content, ensure_ascii=False))


def text_of(content: Any) -> str:
    """A tool result's content as text; blocks that are no text are shown as JSON."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    return "\n".join(
        block["text"]
        if isinstance(block, dict) and isinstance(block.get("text"), str)
        else json.dumps(block, ensure_ascii=False)
        for block in blocks
    )
