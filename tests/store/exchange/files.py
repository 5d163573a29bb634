"""Files that exports are written to, as lines that can be changed."""

from __future__ import annotations

import hashlib
import json
import re
from io import BytesIO
from typing import Any

from runner.exchange.lines import encoded
from runner.store import ids
from runner.store.database import Database
from runner.store.exports import export
from tests.store.examples import NOW

Lines = list[dict[str, Any]]

_IDS = re.compile(r"\b(job|run|apr)_[0-9a-z]{26}")


def lines_of(database: Database, job_id: str) -> Lines:
    """The export of a job, without its end."""
    file = BytesIO()
    export(database, job_id=job_id, write=file.write)
    return [json.loads(line) for line in file.getvalue().splitlines()][:-1]


def signed(lines: Lines) -> bytes:
    """A file of these lines whose end is right."""
    content = b"".join(map(encoded, lines))
    end = {"rows": len(lines) - 1, "sha256": hashlib.sha256(content).hexdigest()}
    return content + encoded({"end": end})


def renamed(lines: Lines) -> Lines:
    """The same with other ids, in the same order."""
    known = sorted({found.group() for found in _IDS.finditer(json.dumps(lines))})
    new = {old: ids.new(old[:3], NOW) for old in known}  # type: ignore[arg-type]
    found: Lines = json.loads(_IDS.sub(lambda match: new[match.group()], json.dumps(lines)))
    return found
