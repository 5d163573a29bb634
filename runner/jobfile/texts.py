"""Texts of a job that stand in its file, or in a file of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.errors import Problem
from runner.jobfile.content import read_bytes, text_problem
from runner.jobfile.lines import Part, place
from runner.jobfile.section import Section

TextSource = Literal["text", "file"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text of the job: written in the file, or the path of the file that holds it."""

    source: TextSource
    value: str


def text_of(section: Section, key: str) -> Text | None:
    """The text under a key; one that ends in ``_file`` holds the path of a file."""
    value = section.text(key)
    return Text("file" if key.endswith("_file") else "text", value) if value else None


def system_of(section: Section) -> Text | None:
    """The system prompt of a section, or None without one."""
    there = [key for key in ("system", "system_file") if section.has(key)]
    if not there:
        return None
    key = section.exactly_one(("system", "system_file"), "")
    return text_of(section, key) if key else None


def read_text(
    text: Text | None, path: tuple[Part, ...], folder: Path, problems: list[Problem]
) -> str | None:
    """The text itself, or None without one (or with a problem).

    Args:
        path: where the text stands in the job file, without ``_file``.
        folder: the job file's, to which the file is relative.
    """
    if text is None or text.source == "text":
        return text.value if text else None
    file = folder / text.value
    content = ""
    try:
        content = read_bytes(file).decode().replace("\r\n", "\n")
        problem = text_problem(content) if content.strip() else "is empty"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    if problem:
        problems.append(Problem(f"{place(*path)}_file", f"{file} {problem}"))
        return None
    return content
