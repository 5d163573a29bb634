"""A patch as a mail that ``git am`` takes, whatever its message and its lines are.

How git reads it: https://git-scm.com/docs/git-mailinfo and https://git-scm.com/docs/git-mailsplit.
"""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.workspace.changes import CommitText

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
