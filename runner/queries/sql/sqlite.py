"""A question to SQLite, in a process of its own.

The file is opened with ``mode=ro``. While SQLite compiles the SQL, it asks an authorizer about every
action (https://sqlite.org/c3ref/set_authorizer.html): only reading and well-known functions are allowed.
From then on the process can open no file and write to none.
"""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from runner.errors import UsageError

_BUSY_SECONDS = 10
_HEAP_SHARE = 2  # SQLite's share of the process's memory is 1 / this
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000_000,  # bytes of a value, and of a row
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4_000_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
# Functions that only compute (https://sqlite.org/lang_corefunc.html and the pages beside it), without
# load_extension, fts3_tokenizer (it takes an address in memory) and the like.
_FUNCTION_NAMES = """
abs char coalesce concat concat_ws format glob hex if ifnull iif instr length like likelihood
likely lower ltrim max min nullif octet_length printf quote random randomblob replace round
rtrim sign soundex sqlite_version substr substring trim typeof unhex unicode unistr
unistr_quote unlikely upper zeroblob current_date current_time current_timestamp date datetime
julianday strftime time timediff unixepoch avg count group_concat median percentile
percentile_cont percentile_disc string_agg sum total cume_dist dense_rank first_value lag
last_value lead nth_value ntile percent_rank rank row_number acos acosh asin asinh atan atan2
atanh ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod pi pow power radians sin
sinh sqrt tan tanh trunc -> ->> json json_array json_array_insert json_array_length json_each
json_error_position json_extract json_group_array json_group_object json_insert json_object
json_patch json_pretty json_quote json_remove json_replace json_set json_tree json_type
json_valid jsonb jsonb_array jsonb_array_insert jsonb_each jsonb_extract jsonb_group_array
jsonb_group_object jsonb_insert jsonb_object jsonb_patch jsonb_remove jsonb_replace jsonb_set
jsonb_tree
"""
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())


def answer(request: dict[str, Any]) -> tuple[list[str], Iterator[list[Any]]]:
    """The names of the columns, and the rows as they come. Raises ``UsageError``."""
    with _refusals():
        connection = _opened(request["sqlite"], request["memory_bytes"] // _HEAP_SHARE)
        cursor = connection.execute(request["sql"])
    if cursor.description is None:
        raise UsageError("the SQL returns no rows: write a SELECT")

    def rows() -> Iterator[list[Any]]:
        with _refusals():
            yield from map(list, cursor)

    return [column[0] for column in cursor.description], rows()


def _opened(path: str, heap_bytes: int) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=ro", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
    )
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    for pragma in (f"hard_heap_limit = {heap_bytes}", "temp_store = MEMORY", "query_only = ON"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    for category, most in _LIMITS.items():
        connection.setlimit(category, most)
    connection.execute("BEGIN")
    # This opens every file, and lets table-valued functions declare themselves.
    connection.execute("SELECT 1 FROM sqlite_master, json_each('[]'), json_tree('[]')").fetchall()
    connection.set_authorizer(_authorize)
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))
    return connection


def _authorize(action: int, _first: str | None, second: str | None, *_: str | None) -> int:
    is_read = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
    is_known = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS
    return sqlite3.SQLITE_OK if is_read or is_known else sqlite3.SQLITE_DENY


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
        return
    except (sqlite3.Error, sqlite3.Warning) as error:
        reason, cause = str(error), error
    if "out of memory" in reason:
        raise MemoryError(reason) from cause
    if "not authorized" in reason or "prohibited" in reason:
        reason += ": a question can only SELECT, with functions that compute"
    elif "one statement" in reason:
        reason = "the SQL has several statements: ask one SELECT at a time"
    elif "unable to open" in reason:
        reason += ": the database's folder has to be writable for its user (SQLite locks there)"
    raise UsageError(f"SQLite says: {reason}") from cause
