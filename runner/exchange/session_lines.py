"""Reads the lines of Claude Code's sessions: those that it keeps, and those that
``claude -p --output-format stream-json`` prints.

The format is not documented and varies from version to version: unknown lines and fields are ignored,
missing ones have defaults. Content that cannot be read is an error, as it would be lost silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from runner.core.conversation import Block, check_block
from runner.core.media import shown_text
from runner.core.text import read_json_line
from runner.core.times import MOST_REAL

SpokenBy = Literal["person", "machine", "peer"]  # a peer is another agent

# The names that `stream-json` has for fields of the kept lines.
_STREAMED = {
    "session_id": "sessionId",
    "claude_code_version": "version",
    "parent_tool_use_id": "agentId",
    "tool_use_result": "toolUseResult",
    "compact_metadata": "compactMetadata",
}


@dataclass(frozen=True, slots=True)
class Line:
    fields: Mapping[str, Any]
    at: float  # seconds since the epoch; of the line before where the line says none
    blocks: tuple[Block, ...] = ()  # of its message, or those that its attachment gave to the model
    by: SpokenBy | None = None  # who spoke, of a line of the user

    @property
    def kind(self) -> str:
        return self.text("type") or ""

    @property
    def message(self) -> Mapping[str, Any]:
        return self.object("message")

    def text(self, name: str) -> str | None:
        """Return a field that is a text and not empty, or None."""
        return as_text(self.fields.get(name))

    def object(self, name: str) -> Mapping[str, Any]:
        """Return a field that is an object, or an empty one."""
        return as_object(self.fields.get(name))


_ORIGINS: dict[str, SpokenBy] = {
    **dict.fromkeys(("human", "channel"), "person"),
    **dict.fromkeys(("peer", "coordinator", "teammate"), "peer"),
}
_BY_MACHINES = re.compile(
    r"<(?:task-notification|local-command-\w+|system-reminder|bash-std\w+)>|\[Request interrupted by "
    r"user|Stop hook feedback:|Caveat: The messages below were generated|Unknown slash command: "
)


def speaker_of(fields: Mapping[str, Any], words: str) -> SpokenBy:
    """The speaker of a user's words; in older versions only the words tell."""
    origin = as_object(fields.get("origin")).get("kind")
    if isinstance(origin, str):
        return _ORIGINS.get(origin, "machine")
    if fields.get("isMeta") is True or fields.get("isSidechain") is True:
        return "machine"
    if source := as_text(fields.get("promptSource")):
        return "machine" if source == "system" else "person"
    if words.startswith("<teammate-message"):
        return "peer"
    return "machine" if _BY_MACHINES.match(words) else "person"


class UnreadableLineError(ValueError):
    """A line of a file that cannot be read."""

    def __init__(self, file: str, number: int, why: ValueError) -> None:
        super().__init__(str(why))
        self.file, self.number = file, number


def read_lines(file: str, raw: Iterable[bytes]) -> Iterator[Line]:
    """Yield the lines of a file in order. A line without a time gets the time of the line before it, or 0.
    Raises ``UnreadableLineError``."""
    at = 0.0
    for number, content in enumerate(raw, 1):
        try:
            value = read_json_line(content)
            at = _moment(value.get("timestamp"), at)
            value |= {
                ours: value[theirs]
                for theirs, ours in _STREAMED.items()
                if ours not in value and value.get(theirs) is not None
            }
            if value.get("agentId") is not None and "parent_tool_use_id" in value:
                value["isSidechain"] = True
            for fields in _progress_of(value) or (value,):
                yield _line_of(fields, _moment(fields.get("timestamp"), at))
        except ValueError as error:
            raise UnreadableLineError(file, number, error) from error


def _line_of(fields: Mapping[str, Any], at: float) -> Line:
    match fields.get("type"):
        case "assistant":
            return Line(fields, at, tuple(blocks_of(fields.get("message"))))
        case "user":
            said = tuple(blocks_of(fields.get("message")))
            return Line(fields, at, said, speaker_of(fields, shown_text(said)))
        case "attachment":
            return _attached(fields, at)
    return Line(fields, at)


def _progress_of(value: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return an agent's lines that are repeated in a line of its session (versions before 2.1.60)."""
    data = as_object(value.get("data"))
    if value.get("type") != "progress" or data.get("type") != "agent_progress":
        return ()
    own = ("data", "type", "uuid", "parentUuid", "timestamp")
    common = {name: each for name, each in value.items() if name not in own}
    common |= {"agentId": data.get("agentId"), "isSidechain": True}
    said = as_list(data.get("normalizedMessages")) or [data.get("message")]
    return [{**each, **common} for each in said if isinstance(each, dict)]


def blocks_of(message: Any) -> Iterator[Block]:
    """Yield the blocks of a message, each with all that readers rely on. Raises ``ValueError``."""
    if not isinstance(message, dict | None):
        raise ValueError("its message is no object")
    content = (message or {}).get("content")
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list | None):
        raise ValueError("its message's content is neither text nor a list of blocks")
    for written in content or ():
        block = {"type": "text", "text": written} if isinstance(written, str) else written
        kind = as_object(block).get("type")
        if kind == "tool_use":
            block = {"input": {}, **block}
        elif kind == "tool_result" and block.get("content") is None:
            block = {**block, "content": ""}
        yield check_block(block)


def _moment(value: Any, before: float) -> float:
    """Return the seconds since the epoch of a time in ISO 8601, or ``before``."""
    try:
        at = datetime.fromisoformat(value)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):  # no text, no time, or a year that no clock has
        return before
    return seconds if 0 <= seconds <= MOST_REAL else before


def as_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


# --- Attachments: what a version since 2.1 keeps beside the messages ---

# Attachments that the model was given in the conversation.
_GIVEN = (
    *("file", "directory", "compact_file_reference", "selected_lines_in_ide", "mcp_resource"),
    *("edited_text_file", "nested_memory", "instructions", "invoked_skills"),
    *("hook_blocking_error", "hook_additional_context", "hook_success"),
    "hook_stopped_continuation",
)
# Attachments that only a person was shown.
NOTED_ATTACHMENTS = (
    *("hook_system_message", "hook_cancelled", "hook_non_blocking_error"),
    *("hook_error_during_execution", "hook_permission_decision", "command_permissions"),
)
_NAMES_OF_FILES = ("displayPath", "filename", "path", "hookName")
_CONTENTS = ("content", "blockingError", "message", "snippet", "file", "stderr", "decision")


def _attached(fields: Mapping[str, Any], at: float) -> Line:
    attachment = as_object(fields.get("attachment"))
    kind = attachment.get("type")
    if kind == "queued_command":
        said = tuple(blocks_of({"content": attachment.get("prompt")}))
        is_typed = attachment.get("commandMode") in (None, "prompt", "bash")
        by = speaker_of(attachment, shown_text(said)) if is_typed else "machine"
        return Line(fields, at, said, by)
    text = inner_text(fields.get("rendered")) or attachment_text(attachment)
    is_empty = kind == "hook_success" and not attachment.get("content")
    if kind not in _GIVEN or is_empty or not text:
        return Line(fields, at)
    return Line(fields, at, ({"type": "text", "text": text},), "machine")


def attachment_text(attachment: Mapping[str, Any]) -> str:
    """Return the text of an attachment, after the name of its file or hook."""
    name = next((text for each in _NAMES_OF_FILES if (text := as_text(attachment.get(each)))), None)
    inner = "\n".join(text for each in _CONTENTS if (text := inner_text(attachment.get(each))))
    return "\n".join(filter(None, (name, inner)))


def inner_text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(filter(None, map(inner_text, value)))
    if isinstance(value, dict):
        found = (value.get(name) for name in ("file", "text", "content", "blockingError"))
        return next(filter(None, map(inner_text, found)), "")
    return value if isinstance(value, str) else ""


def api_error(line: Line) -> str:
    """Return the text of a line's API error. Its fields differ between versions of Claude Code."""
    error = line.object("error")
    cause = as_object(error.get("cause")).get("code")
    told = (line.text("content"), error.get("formatted"), error.get("message"), cause)
    status = f"status {error['status']}" if "status" in error else "an unknown error"
    words = next(filter(None, map(as_text, told)), status)
    attempt, most = (line.fields.get(name) for name in ("retryAttempt", "maxRetries"))
    return words if attempt is None else f"{words} (try {attempt} of {most})"


# --- Denials ---

# Who denied a call, by Claude Code's name of the denial.
_DENIERS = {
    "user-rejected": "the user",
    "automode-blocked": "the classifier of auto mode",
    "automode-unavailable": "auto mode: its classifier could not be reached",
    "sandbox-denied": "the sandbox",
    "ungranted": "the permission mode: nobody had granted it",
    "dont-ask": "the permission mode: it asks nobody",
    "permission-rule": "a permission rule",
    "hook": "a hook",
}
# What older versions, which name no denial, told the model.
_TOLD = (
    ("user-rejected", r"The user doesn't want to (?:proceed with|take)"),
    ("automode-blocked", r"Permission for this action (?:has been|was) denied by the Claude"),
    ("ungranted", r"Claude requested permissions? to .{0,4000}?haven't granted it yet"),
    ("dont-ask", r"Permission to use \S+ (?:has been|was) auto-denied"),
    ("permission-rule", r"Permission to \S+ .{0,4000}? (?:has been|was) denied"),
    ("permission-rule", r"File is in a directory that is denied by your permission"),
    ("hook", r"(?:PreToolUse:\S+ |\S+ operation |Hook \S+ |Error: )?hook (?:blocking )?error:"),
    ("hook", r"\S+ operation blocked by hook|Hook \S+ denied this tool"),
)
_NO_DENIALS = ("cancelled", "interrupted")
INTERRUPTED = ("[Request interrupted by user", "Permission prompt was aborted")


def denier_of(kind: str | None, shown: str, is_error: bool) -> str | None:
    """Return who denied a call, in words, judged by its result; None if nobody did."""
    if kind is not None:
        return None if kind in _NO_DENIALS else _DENIERS.get(kind, kind)
    if not is_error or shown.startswith(INTERRUPTED):
        return None
    shown = shown.removeprefix("<tool_use_error>").removeprefix("Error: ")
    told = (_DENIERS[name] for name, words in _TOLD if re.match(words, shown, re.DOTALL))
    return next(told, None)
