"""The child process of Grep and Glob: walks a folder and matches.

It knows nothing of Runner but its request. It opens regular files only, follows no symlink even if
one appears meanwhile, and reports results in the order of their paths.
"""

# ruff: noqa: PTH112, PTH115, PTH119 - pathlib costs a walk time, and has no descriptors of folders

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys

from runner.tools.host_process import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_FILE_BYTES = 64 << 20
MOST_LINE_CHARACTERS = 500

_LOOKED_AT = 1 << 13
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_TOKEN = re.compile(
    r"\*\*/|\*\*|\*|\?|\[(?P<negated>[!^]?)(?P<set>\]?[^\]/]*)\]|[{},]|.", re.DOTALL
)
_WILD = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_ENDINGS = (
    "c:c,h cpp:cpp,cc,cxx,hpp,hh,hxx,h cs:cs css:css,scss go:go html:html,htm java:java "
    "js:js,jsx,mjs,cjs json:json kotlin:kt,kts lua:lua md:md,markdown php:php py:py,pyi ruby:rb "
    "rust:rs scala:scala sh:sh,bash,zsh sql:sql swift:swift toml:toml ts:ts,tsx,mts,cts xml:xml "
    "yaml:yaml,yml"
)
_TYPES = {
    kind: f"*.{{{endings}}}"
    for kind, _, endings in (each.partition(":") for each in _ENDINGS.split())
}


class Unusable(Exception):  # noqa: N818 - what is wrong with the request, for the model
    """The request makes no sense; the text says what to change."""


def main() -> None:
    """Answer the request on stdin, a JSON object."""
    report = Report()
    request = json.load(sys.stdin)
    try:
        lines = _grep(request) if "output_mode" in request else _glob(request)
    except Unusable as error:
        report.end("invalid_input", str(error))
    report.end("succeeded", "\n".join(lines))


def _files(request: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the files below the base that may be shown, by path, and a line on the others if there
    are any. It counts all of them: a count by pattern would reveal their names."""
    found = regular_files(request["base"], frozenset(request["excluded"]))
    if request["permission"] is None:
        return found, []
    # Rules need what is installed, and a search that shows everything starts sooner without.
    from runner.tools.search_filter import shown

    kept = shown(found, request["base"], request["permission"])
    left_out = len(found) - len(kept)
    files = "1 file" if left_out == 1 else f"{left_out} files"
    return kept, [f"[{files} left out: no permission to read them]"] if left_out else []


def regular_files(base: str, excluded: frozenset[str]) -> list[str]:
    """Return all regular files below a folder (or the base, if it is none), by path. ``.git`` and the
    folders in ``excluded`` are passed over."""
    if not os.path.isdir(base):
        return [base]
    found: list[str] = []
    folders = [base]
    while folders:
        folder = folders.pop()
        above = folder.rstrip("/")
        try:
            descriptor = open_in_place(folder, os.O_DIRECTORY)
        except OSError:  # not ours to read, or gone meanwhile: there is nothing to find in it
            continue
        files, inner = [], []
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    path = f"{above}/{entry.name}"
                    if entry.is_file(follow_symlinks=False):
                        files.append(path)
                    elif entry.is_dir(follow_symlinks=False) and entry.name != ".git":
                        inner.append(path)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        found += files
        folders += [path for path in inner if path not in excluded]
    return sorted(found)


def open_in_place(path: str, flags: int = 0) -> int:
    """Return a descriptor of what is at a path that has no symlinks. Raises ``OSError`` if it
    cannot be opened, or a symlink has come to be on the way."""
    descriptor = os.open(path, _OPEN | flags)
    if sys.platform == "linux" and os.readlink(f"/proc/self/fd/{descriptor}") != path:
        os.close(descriptor)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return descriptor


def _translated(pattern: str) -> re.Pattern[str]:
    """Return a pattern that fully matches the relative paths that a glob pattern names.

    ``*`` and ``?`` stay inside one folder, ``**`` crosses folders, ``[ab]`` and ``[!ab]`` are sets,
    ``{a,b}`` are alternatives. Raises ``Unusable`` if a set is not one.
    """
    parts: list[str] = []
    depth = 0
    closes = pattern.count("}")
    for token in _TOKEN.finditer(pattern.removeprefix("./")):
        text = token[0]
        if text == "{" and closes > 0:
            depth += 1
            closes -= 1
            parts.append("(?:")
        elif text == "}" and depth:
            depth -= 1
            parts.append(")")
        elif text == "," and depth:
            parts.append("|")
        elif token["set"] is not None:
            inside = token["set"].replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[{'^/' if token['negated'] else ''}{inside}]")
        else:
            parts.append(_WILD.get(text) or re.escape(text))
    try:
        return re.compile("".join(parts) + ")" * depth, re.DOTALL)
    except re.error as error:
        raise Unusable(f"{pattern!r} is not a glob pattern: {error}") from error


def _glob(request: dict[str, Any]) -> list[str]:
    matching, base = _translated(request["pattern"]), request["base"]
    files, note = _files(request)
    found = [path for path in files if matching.fullmatch(os.path.relpath(path, base))]
    lines = [_name(path, request) for path in found] or [f"No files match {request['pattern']}"]
    return lines + note


def _grep(request: dict[str, Any]) -> list[str]:
    flags = re.IGNORECASE if request["ignore_case"] else re.NOFLAG
    if request["multiline"]:
        flags |= re.MULTILINE | re.DOTALL
    try:
        search = re.compile(request["pattern"], flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unusable(
            f"pattern is not a regular expression in Python's syntax: {error}"
        ) from error
    mode, limit = request["output_mode"], request["head_limit"]
    lines: list[str] = []
    skipped: list[str] = []
    files, note = _files(request)
    for path in _chosen(files, request):
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
        if limit and len(lines) >= limit:
            lines[limit:] = [f"[only the first {limit} lines of the result]"]
            break
    if skipped:
        names = ", ".join(_name(path, request) for path in skipped)
        lines.append(f"[passed over, larger than 64 MiB: {names}]")
    return (lines or ["No matches found"]) + note


def _chosen(files: list[str], request: dict[str, Any]) -> Iterator[str]:
    """Yield the files that ``glob`` and ``type`` leave. A pattern without a slash is matched with the
    file's name, in whatever folder."""
    kind = request["type"]
    if kind and kind not in _TYPES:
        raise Unusable(f"type {kind!r} is not known (known: {', '.join(_TYPES)}): use glob")
    patterns = filter(None, (request["glob"], kind and _TYPES[kind]))
    matching = [(_translated(pattern), "/" in pattern) for pattern in patterns]
    for path in files:
        relative = os.path.relpath(path, request["base"])
        if all(
            pattern.fullmatch(relative if whole else os.path.basename(path))
            for pattern, whole in matching
        ):
            yield path


def _text(path: str, skipped: list[str]) -> str | None:
    """Return a file's text, or None when it is binary, not readable, or too large to search."""
    try:
        descriptor = open_in_place(path)
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
    """Return the numbers (from 0) of the lines that the pattern matches or, across lines, touches."""
    if not multiline:
        return [number for number, line in enumerate(_split(text)) if search.search(line)]
    touched: set[int] = set()
    counted, line = 0, 0
    for match in search.finditer(text):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        last = line + text.count("\n", match.start(), max(match.start(), match.end() - 1))
        touched.update(range(line, last + 1))
    return sorted(touched)


def _content_lines(name: str, text: str, matches: list[int], request: dict[str, Any]) -> list[str]:
    lines, matched = _split(text), frozenset(matches)
    before, after = request["before"], request["after"]
    shown: list[str] = []
    last = -1
    for match in matches:
        first = max(match - before, last + 1)
        if last >= 0 and first > last + 1 and (before or after):
            shown.append("--")
        for number in range(first, min(match + after + 1, len(lines))):
            mark = ":" if number in matched else "-"
            place = f"{number + 1}{mark}" if request["line_numbers"] else ""
            line = lines[number]
            if len(line) > MOST_LINE_CHARACTERS:
                line = f"{line[:MOST_LINE_CHARACTERS]} [… the line goes on]"
            shown.append(f"{name}{mark}{place}{line}")
            last = number
    return shown


def _split(text: str) -> list[str]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _name(path: str, request: dict[str, Any]) -> str:
    workspace = request["workspace"]
    inside = workspace is not None and path.startswith(workspace.rstrip("/") + "/")
    return (os.path.relpath(path, workspace) if inside else path).replace("\n", "\\n")
