"""What the search child does: walks a folder and matches. Knows nothing of Runner but its request.

Symlinks are never followed, only regular files are opened, and ``.git`` and the folders that the
request excludes are passed over. Results are in the order of their paths.
"""

# ruff: noqa: PTH112, PTH119
# (pathlib costs a walk time)

from __future__ import annotations

import json
import os
import re
import stat
import sys

from runner.tools.host.report import Report
from runner.tools.search.patterns import translate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_FILE_BYTES = 64 << 20
MOST_LINE_CHARACTERS = 500
_LOOKED_AT = 1 << 13

_TYPES = {
    "c": "*.{c,h}",
    "cpp": "*.{cpp,cc,cxx,hpp,hh,hxx,h}",
    "cs": "*.cs",
    "css": "*.{css,scss}",
    "go": "*.go",
    "html": "*.{html,htm}",
    "java": "*.java",
    "js": "*.{js,jsx,mjs,cjs}",
    "json": "*.json",
    "kotlin": "*.{kt,kts}",
    "lua": "*.lua",
    "md": "*.{md,markdown}",
    "php": "*.php",
    "py": "*.{py,pyi}",
    "ruby": "*.rb",
    "rust": "*.rs",
    "scala": "*.scala",
    "sh": "*.{sh,bash,zsh}",
    "sql": "*.sql",
    "swift": "*.swift",
    "toml": "*.toml",
    "ts": "*.{ts,tsx,mts,cts}",
    "xml": "*.xml",
    "yaml": "*.{yaml,yml}",
}


class Unusable(Exception):  # noqa: N818 - what is wrong with the request, for the model
    """The request makes no sense; the text says what to change."""


def main() -> None:
    """Answer the request on stdin, a JSON object."""
    report = Report()
    request = json.load(sys.stdin)
    try:
        text = _grep(request) if "output_mode" in request else _glob(request)
    except Unusable as error:
        report.end("invalid_input", str(error))
    report.end("succeeded", text)


def _glob(request: dict[str, Any]) -> str:
    matching = _translated(request["pattern"])
    base = request["base"]
    found = [path for path in _files(request) if matching.fullmatch(os.path.relpath(path, base))]
    if not found:
        return f"No files match {request['pattern']}"
    return "\n".join(_name(path, request) for path in found)


def _grep(request: dict[str, Any]) -> str:
    search = _compiled(request)
    mode = request["output_mode"]
    lines: list[str] = []
    skipped: list[str] = []
    for path in _chosen(request):
        text = _text(path, skipped)
        matches = [] if text is None else _matching_lines(search, text, request["multiline"])
        if text is None or not matches:
            continue
        name = _name(path, request)
        if mode == "content":
            if lines and (request["before"] or request["after"]):
                lines.append("--")
            lines += _content_lines(name, text, matches, request)
        else:
            lines.append(name if mode == "files_with_matches" else f"{name}:{len(matches)}")
        if request["head_limit"] and len(lines) >= request["head_limit"]:
            del lines[request["head_limit"] :]
            lines.append(f"[only the first {request['head_limit']} lines of the result]")
            break
    if skipped:
        lines.append(
            f"[passed over, larger than 64 MiB: {', '.join(_name(p, request) for p in skipped)}]"
        )
    return "\n".join(lines) or "No matches found"


def _compiled(request: dict[str, Any]) -> re.Pattern[str]:
    flags = re.IGNORECASE if request["ignore_case"] else re.NOFLAG
    if request["multiline"]:
        flags |= re.MULTILINE | re.DOTALL
    try:
        return re.compile(request["pattern"], flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unusable(
            f"pattern is not a regular expression in Python's syntax: {error}"
        ) from error


def _translated(pattern: str) -> re.Pattern[str]:
    try:
        return translate(pattern.removeprefix("./"))
    except re.error as error:
        raise Unusable(f"{pattern!r} is not a glob pattern: {error}") from error


def _chosen(request: dict[str, Any]) -> Iterator[str]:
    """The files to search: those below the base that ``glob`` and ``type`` leave. A pattern without a
    slash is matched with the file's name, in whatever folder."""
    patterns = []
    if request["glob"]:
        patterns.append(request["glob"])
    if request["type"]:
        if request["type"] not in _TYPES:
            raise Unusable(
                f"type {request['type']!r} is not known (known: {', '.join(_TYPES)}): use glob"
            )
        patterns.append(_TYPES[request["type"]])
    matching = [(_translated(pattern), "/" in pattern) for pattern in patterns]
    for path in _files(request):
        relative = os.path.relpath(path, request["base"])
        if all(
            pattern.fullmatch(relative if whole else os.path.basename(path))
            for pattern, whole in matching
        ):
            yield path


def _files(request: dict[str, Any]) -> list[str]:
    """All regular files below the base (or the base, if it is one), by path."""
    base = request["base"]
    if not os.path.isdir(base):
        return [base]
    excluded = frozenset(request["excluded"])
    found: list[str] = []
    folders = [base]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:  # not ours to read, or gone meanwhile: there is nothing to find in it
            continue
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                found.append(entry.path)
            elif entry.is_dir(follow_symlinks=False) and not (
                entry.name == ".git" or entry.path in excluded
            ):
                folders.append(entry.path)
    return sorted(found)


def _text(path: str, skipped: list[str]) -> str | None:
    """A file's text, or None when it is binary, not readable, or too large to search."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size > MOST_FILE_BYTES:
                skipped.append(path)
                return None
            content = file.read(MOST_FILE_BYTES)
    except OSError:  # not ours to read, gone meanwhile, or on a disk that fails
        return None
    return None if b"\0" in content[:_LOOKED_AT] else content.decode("utf-8", "replace")


def _matching_lines(search: re.Pattern[str], text: str, multiline: bool) -> list[int]:
    """The numbers (from 0) of the lines that the pattern matches or, across lines, touches."""
    if not multiline:
        return [number for number, line in enumerate(_split(text)) if search.search(line)]
    touched: dict[int, None] = {}
    counted, line = 0, 0
    for match in search.finditer(text):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        last = line + text.count("\n", match.start(), max(match.start(), match.end() - 1))
        touched.update(dict.fromkeys(range(line, last + 1)))
    return sorted(touched)


def _content_lines(name: str, text: str, matches: list[int], request: dict[str, Any]) -> list[str]:
    lines = _split(text)
    matched = frozenset(matches)
    shown: list[str] = []
    last = -1
    for match in matches:
        first = max(match - request["before"], last + 1)
        if last >= 0 and first > last + 1 and (request["before"] or request["after"]):
            shown.append("--")
        for number in range(first, min(match + request["after"] + 1, len(lines))):
            mark = ":" if number in matched else "-"
            place = (
                f"{name}{mark}{number + 1}{mark}" if request["line_numbers"] else f"{name}{mark}"
            )
            line = lines[number]
            if len(line) > MOST_LINE_CHARACTERS:
                line = f"{line[:MOST_LINE_CHARACTERS]} [… the line goes on]"
            shown.append(place + line)
            last = number
    return shown


def _split(text: str) -> list[str]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _name(path: str, request: dict[str, Any]) -> str:
    workspace = request["workspace"]
    inside = workspace is not None and path.startswith(workspace.rstrip("/") + "/")
    return (os.path.relpath(path, workspace) if inside else path).replace("\n", "\\n")
