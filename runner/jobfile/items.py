"""A job's items: their sources and keys, and the texts that templates make of them.

Templates are Jinja2's, sandboxed and strict about undefined names. Items are data: their content is put
into a text and never read as a template.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runner.core.text import read_json
from runner.jobfile import values
from runner.jobfile.table import Node, Section
from runner.jobfile.values import BadValueError, kind, line_problem, shown, text_problem

MOST_KEY_CHARACTERS = 500
MOST_TEXT_CHARACTERS = 10_000_000
MOST_REPORTED = 20
MOST_TEXTS_REPORTED = 5
COMMAND_SECONDS = 60.0

Keyed = tuple[str, Any]
# The place of an item, where in it the item stands ("line 3 of x.jsonl: "), and the item.
_Found = tuple[Node, str, Any]
_CHILD_KEY = re.compile(r"(.+)\+[0-9]+", re.DOTALL)


def read_items(
    items: Section, folder: Path, root: Path | Sequence[str], seconds: float = COMMAND_SECONDS
) -> list[Keyed]:
    """Return the items, each with the key that names its run, and note problems. ``jsonl`` is
    relative to the job file's folder, where ``command`` runs with a time limit; ``glob`` searches
    ``root``, a folder or paths of files."""
    (source,) = items.written
    at, value = items.at(source), items[source]
    found: Iterable[_Found] = ()
    match source:
        case "list":
            found = ((at.at(index), "", item) for index, item in enumerate(value))
        case "glob":
            found = _files_matching(value, root, at)
        case "jsonl":
            found = _lines_of_file(folder / value, at)
        case "command":
            words = ("bash", "-c", value) if isinstance(value, str) else value
            found = _lines_of_command(words, folder, seconds, at)
    with at.noting_at_most(MOST_REPORTED, "and {} more such problems"):
        keyed = at.attempt(_with_keys, found)
    if not keyed and not at.is_wrong():
        at.note("gives no item at all")
    return keyed or []


def note_taken_keys(at: Node, keyed: Sequence[Keyed], *, scripted: bool, has_agents: bool) -> None:
    """Note keys of ``at``'s items that belong to a sub-agent's run, or to its replies in a script."""
    keys = {key for key, _ in keyed}
    with at.noting_at_most(MOST_REPORTED, "and {} more such problems"):
        for index, (key, _) in enumerate(keyed):
            parents: list[str] = []  # keys of the runs that this one could be a sub-agent of
            while child := _CHILD_KEY.fullmatch(parents[-1] if parents else key):
                parents.append(child[1])
            parent = next(filter(keys.__contains__, parents), None)
            if scripted and key.startswith("@"):
                message = "begins with '@', as do the keys of sub-agents' replies in a script"
            elif has_agents and parent is not None:
                message = f"is also the key of a sub-agent of the item {shown(parent)}"
            else:
                continue
            node = at.at(index) if at.path[-1] == "list" else at
            node.note(f"the key {shown(key)} {message}: choose another")


def _with_keys(found: Iterable[_Found]) -> list[Keyed]:
    keyed: dict[str, Any] = {}
    places: dict[str, str] = {}
    for at, where, item in found:
        key, problem = _key_of(item)
        if problem is None and key in keyed:
            problem = f"the key {shown(key)} is also that of {places[key]}: give each its own key"
        if problem is None:
            keyed[key] = item
            places[key] = where.removesuffix(": ") or at.place
        else:
            at.note(f"{where}{problem}")
    return list(keyed.items())


def _key_of(item: Any) -> tuple[str, str | None]:
    """Return an item's key, and what is wrong with it or with the item, or None."""
    if isinstance(item, str):
        problem = line_problem(item, MOST_KEY_CHARACTERS)
        advice = "; give it as a table with a key of its own" if item.strip() else ""
        return item, f"the item {problem}{advice}" if problem else None
    if not isinstance(item, dict):
        return "", f"an item is a string or a table, not {kind(item)}"
    if problem := values.json_problem(item):
        return "", f"the item {problem}"
    key = item.get("key")
    if key is None:
        return "", 'the item has no key: add key = "…", which names its run'
    if not isinstance(key, str):
        return "", f"the item's key must be a string, not {kind(key)}"
    problem = line_problem(key, MOST_KEY_CHARACTERS)
    return key, f"the item's key {problem}" if problem else None


def _files_matching(pattern: str, root: Path | Sequence[str], at: Node) -> Iterator[_Found]:
    parts = PurePath(pattern).parts
    where = str(root) if isinstance(root, Path) else "the repository"
    if PurePath(pattern).is_absolute() or ".." in parts:
        raise BadValueError(f"{shown(pattern)} must stay inside {where}: no leading / and no ..")
    try:
        if isinstance(root, Path):
            files = (path for path in root.glob(pattern) if path.is_file())
            names = {str(path.relative_to(root)) for path in files}
        else:
            names = {name for name in root if matches_path(name.split("/"), parts)}
    except (ValueError, NotImplementedError, IndexError) as error:
        raise BadValueError(f"{shown(pattern)} is not a pattern: {error}") from error
    except OSError as error:
        raise BadValueError(f"{shown(pattern)} cannot be searched for: {error}") from error
    if not any(part.startswith(".") for part in parts):
        names = {name for name in names if "/." not in f"/{name}"}
    if not names:
        raise BadValueError(f"no file in {where} matches {shown(pattern)}")
    for name in sorted(names):
        yield at, f"{shown(name)}: ", name


def matches_path(names: Sequence[str], parts: Sequence[str]) -> bool:
    """True if a file's path, in parts, matches a pattern by the rules of ``Path.glob``."""
    if not parts or not names:
        return not parts and not names
    if parts[0] == "**":
        return any(matches_path(names[at:], parts[1:]) for at in range(len(names)))
    return fnmatchcase(names[0], parts[0]) and matches_path(names[1:], parts[1:])


def _lines_of_file(path: Path, at: Node) -> Iterator[_Found]:
    try:
        data = values.read_bytes(path)
    except OSError as error:
        raise BadValueError(f"cannot read {path}: {error.strerror or error}") from error
    for number, line in enumerate(data.split(b"\n"), 1):
        where = f"line {number} of {path.name}: "
        try:
            if line.strip():
                yield at, where, read_json(line.decode())
        except (ValueError, RecursionError) as error:
            at.note(f"{where}is not JSON in UTF-8: {error}")


def _lines_of_command(
    words: Sequence[str], folder: Path, seconds: float, at: Node
) -> Iterator[_Found]:
    for number, line in enumerate(_output_of(words, folder, seconds).split(b"\n"), 1):
        item: Any = os.fsdecode(line).strip()
        if not item:
            continue
        with suppress(ValueError, RecursionError):
            item = read_json(item) if item[0] in '{"' else item
        yield at, f"line {number} of its output: ", item


def _output_of(words: Sequence[str], folder: Path, seconds: float) -> bytes:
    """Run a command to its end and return its output. It goes to files, so that a process left in the
    background cannot keep us waiting."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files: Any = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        try:
            process = subprocess.Popen(words, cwd=folder, start_new_session=True, **files)
        except (OSError, ValueError) as error:
            raise BadValueError(f"cannot start {shown(words[0])}: {error}") from error
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise BadValueError(f"the command did not end within {seconds:.0f} seconds") from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        err.seek(0)
        if code != 0:
            how = f"exited with {code}" if code > 0 else f"was ended by signal {-code}"
            last = os.fsdecode(err.read()).strip().splitlines()[-1:]
            said = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in "".join(last))
            raise BadValueError(f"the command {how}{': ' if said else ''}{said}")
        return out.read()


class _Environment(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        """A table's own keys come first: ``item.values`` is the item's, not a method of dict."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


_ENVIRONMENT = _Environment(undefined=StrictUndefined)


def render_texts(
    text: str | None, at: Node, keyed: Sequence[Keyed], *, has_items: bool, what: str = "prompt"
) -> tuple[str, ...]:
    """Return the text of a template at a place for each item, after noting what is wrong; fewer
    with problems, none without a template. It can use ``item`` if the job ``has_items``; ``what``
    names the texts in messages."""
    template = at.attempt(_parse, text) if text is not None else None
    if text is None or template is None:
        return ()
    known = {"item"} if has_items else set()
    undefined = meta.find_undeclared_variables(_ENVIRONMENT.parse(text))
    unknown = sorted(undefined - set(_ENVIRONMENT.globals) - known)
    meant = "only 'item' is" if has_items else "a job without [items] defines nothing"
    for name in unknown:
        no_item = name == "item" and "'item', but the job has no [items]"
        at.note(f"the template uses {no_item or f'{shown(name)}, which is not defined; {meant}'}")
    if unknown:
        return ()
    texts = []
    rest = f"and so for {{}} more of the {len(keyed):,} items"
    with at.noting_at_most(MOST_TEXTS_REPORTED, rest):
        for key, item in keyed:
            try:
                texts.append(_render(template, {"item": item} if has_items else {}, what))
            except BadValueError as error:
                at.note(f"for the item {shown(key)}: {error}" if has_items else str(error))
    return tuple(texts)


def fields_in(text: str) -> set[str]:
    """Return the fields of ``item`` that a template uses; an empty set if it does not parse."""
    with suppress(TemplateSyntaxError, RecursionError):
        used = _ENVIRONMENT.parse(text).find_all(nodes.Getattr)
        return {each.attr for each in used if each.node == nodes.Name("item", "load")}
    return set()


def _parse(text: str) -> Template:
    try:
        template = _ENVIRONMENT.from_string(text)
        template.globals = dict(template.globals)  # a ChainMap, which takes most of a rendering
        return template
    except TemplateSyntaxError as error:
        message = f"line {error.lineno} of the template does not parse: {error.message}"
        raise BadValueError(message) from error
    except RecursionError as error:
        raise BadValueError("the template is nested too deeply") from error


def _render(template: Template, known: dict[str, Any], what: str) -> str:
    parts = []
    room = MOST_TEXT_CHARACTERS
    try:
        for part in template.generate(known):  # piece by piece: loops in loops may never end
            parts.append(part)
            room -= len(part)
            if room < 0:
                break
    except Exception as error:  # a template can make any function of its values raise anything
        words = " ".join(str(error).split()) or "no more is known"
        raise BadValueError(f"the template fails: {type(error).__name__}: {words}") from error
    if room < 0:
        raise BadValueError(f"the {what} has more than {MOST_TEXT_CHARACTERS:,} characters")
    text = "".join(parts)
    if problem := text_problem(text) if text.strip() else "is empty":
        raise BadValueError(f"the {what} {problem}")
    return text
