"""Git where nothing of a repository's own may run: no hook, filter, fsmonitor or transport."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runner.workspace.git import Git, GitError, one_line

# Of the user's settings, those that say how their files are to be read; none names a program.
_READING_SETTINGS = (
    "autocrlf",
    "checkstat",
    "eol",
    "excludesfile",
    "filemode",
    "ignorecase",
    "precomposeunicode",
    "symlinks",
    "trustctime",
)
# A repository without all of its objects would fetch them by programs that it names.
_NOTHING_FETCHED = {"GIT_ALLOW_PROTOCOL": "none"}


def discovering(environment: Mapping[str, str], folder: Path) -> Git:
    """git that looks for the repository that a folder is in.

    Args:
        environment: this process's, without secrets.
    """
    return Git(folder, environment, _NOTHING_FETCHED, user_settings=True)


def reader(environment: Mapping[str, str], git_dir: Path) -> Git:
    """git that looks into a repository's own folder. Its settings are the repository's, so only for
    commands that read refs, settings and attributes.

    Args:
        environment: this process's, without secrets.
    """
    variables = {**_NOTHING_FETCHED, "GIT_DIR": str(git_dir)}
    return Git(git_dir, environment, variables, user_settings=True)


def private(environment: Mapping[str, str], folder: Path, objects: Path, names: str) -> Git:
    """git with a folder of its own, made empty, that borrows the objects of a repository: no setting
    of the repository counts.

    Args:
        environment: this process's, without secrets.
        folder: where the folder is made.
        objects: the repository's folder of objects, which is written to as well.
        names: how the repository names objects (``sha1``).
    """
    made = ("init", "-q", "--bare", "--template=", f"--object-format={names}", str(folder))
    Git(folder.parent, environment).run(*made)
    (folder / "info").mkdir()
    variables = {"GIT_DIR": str(folder), "GIT_OBJECT_DIRECTORY": str(objects)}
    return Git(folder, environment, {**_NOTHING_FETCHED, **variables})


def reaching(own: Git) -> Git:
    """git that talks to other repositories, with the user's settings (credentials, proxies), and asks
    nobody anything.

    Args:
        own: made by ``private``.
    """
    variables = {
        name: own.variables[name] for name in own.variables if name not in _NOTHING_FETCHED
    }
    if "GIT_ASKPASS" not in own.environment:
        variables["GIT_ASKPASS"] = "true"
    return replace(own, variables=variables, user_settings=True)


def with_variables(git: Git, **variables: str) -> Git:
    """The same git with more variables in its environment."""
    return replace(git, variables={**git.variables, **variables})


def line(git: Git, *arguments: str) -> str:
    """What a command prints, without the line's end. Raises ``GitError``."""
    return os.fsdecode(git.run(*arguments)).removesuffix("\n")


def answer(git: Git, *arguments: str) -> str | None:
    """The same, None when the command fails."""
    try:
        return line(git, *arguments)
    except GitError:
        return None


def records(git: Git, *arguments: str, given: bytes = b"") -> list[bytes]:
    """What a command prints with ``-z``. Raises ``GitError``."""
    return git.run(*arguments, given=given).split(b"\0")[:-1]


def reading_settings(git: Git) -> tuple[str, ...]:
    """Settings that have git read files as the repository's and the user's say; see ``reader``."""
    names = "|".join(_READING_SETTINGS)
    pattern = f"^core\\.({names})$"
    output = git.run("config", "-z", "--get-regexp", pattern, accept=(0, 1))
    settings: list[str] = []
    for record in output.split(b"\0")[:-1]:
        name, _, value = os.fsdecode(record).partition("\n")
        if name == "core.excludesfile":
            value = answer(git, "config", "--path", "--get", name) or value
        settings.append(f"{name}={value}")
    return tuple(settings)


def blobs(git: Git, ids: Sequence[str], most: int) -> Iterator[tuple[str, bytes]]:
    """The contents of blobs, each with its id; those that are not there or have more than ``most``
    bytes are left out."""
    known = git.run("cat-file", "--batch-check", given="\n".join(ids).encode() + b"\n")
    small = [
        words[0]
        for words in (line.split() for line in known.decode().splitlines())
        if len(words) == 3 and int(words[2]) <= most
    ]
    if not small:
        return
    found = git.run("cat-file", "--batch", given="\n".join(small).encode() + b"\n")
    at = 0
    for _ in small:
        end = found.index(b"\n", at)
        id_, _, size = found[at:end].decode().split()
        at = end + 1 + int(size) + 1
        yield id_, found[end + 1 : at - 1]


def shown_path(path: bytes | str) -> str:
    """A path of a repository as a message quotes it: one line, nothing that a terminal would obey."""
    text = os.fsdecode(path) if isinstance(path, bytes) else path
    plain = one_line(text)
    return f"'{plain if len(plain) <= 120 else f'{plain[:120]}…'}'"


def some(paths: Sequence[bytes | str]) -> str:
    """The first of some paths, and how many more there are."""
    more = len(paths) - 1
    return f"{shown_path(paths[0])}{f' and {more:,} more' if more else ''}"
