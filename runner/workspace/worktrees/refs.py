"""What an agent's git has made of the branches, the tags and the stash of its worktree's repository."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from runner.workspace.identity import beginning
from runner.workspace.worktrees.repository import BRANCHES, Repository

BEGINNING = (
    "runner-refs"  # the file with what they were when it was made, as `packed-refs` has them
)

_STASH = "refs/stash"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Refs:
    """What differs from the beginning: ``changed`` has names with ids (empty: it is gone), ``commits``
    those of the ids that are of commits, and ``stash`` is the stash's log."""

    changed: tuple[tuple[str, str], ...] = ()
    commits: tuple[str, ...] = ()
    stash: str = ""


NO_REFS = Refs()


def read(own: Repository, standing: str | None) -> Refs:
    """The refs of a worktree's repository, save the branch that it stands on.

    Raises:
        GitError, OSError: they cannot be read.
    """
    at_first, now, commits = _at_first(own), dict[str, str](), list[str]()
    for line in own.git(
        "for-each-ref", "--format=%(objectname) %(objecttype) %(refname)"
    ).splitlines():
        object_id, kind, name = line.split(" ", 2)
        if name == f"{BRANCHES}{standing}":
            continue
        now[name] = object_id
        if kind == "commit" and at_first.get(name) != object_id:
            commits.append(object_id)
    at_first.pop(f"{BRANCHES}{standing}", None)
    stash = ""
    if _STASH in now:
        with suppress(OSError):  # a stash without its log: git shows none, either
            logged = beginning(own.folder / "logs" / _STASH, _MOST_BYTES) or b""
            stash = logged.decode("utf-8", "surrogateescape")
    changed = _differences(at_first, now)
    return Refs(tuple(sorted(changed.items())), tuple(dict.fromkeys(commits)), stash)


def put_back(own: Repository, refs: Refs, standing: str | None) -> None:
    """Have the refs be as they were, save the branch ``standing``. What is not here (on another host
    only commits are) is left out.

    Raises:
        GitError, OSError: they cannot be changed.
    """
    now = _named(own.git("for-each-ref", "--format=%(objectname) %(refname)"))
    changes = _differences(now, {**_at_first(own), **dict(refs.changed)})
    changes.pop(f"{BRANCHES}{standing}", None)
    there = _there(own, {object_id for object_id in changes.values() if object_id})
    gone = [f"delete {name}\n" for name, object_id in changes.items() if not object_id]
    made = [
        f"update {name} {object_id}\n" for name, object_id in changes.items() if object_id in there
    ]
    for lines in (gone, made):  # a folder of refs may become a ref
        if lines:
            own.git("update-ref", "--no-deref", "--stdin", given=os.fsencode("".join(lines)))
    if refs.stash and dict(refs.changed).get(_STASH) in {*there, now.get(_STASH)}:
        log = own.folder / "logs" / _STASH
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(refs.stash.encode("utf-8", "surrogateescape"))


def _at_first(own: Repository) -> dict[str, str]:
    return _named(os.fsdecode((own.folder / BEGINNING).read_bytes()))


def _named(listed: str) -> dict[str, str]:
    lines = (line.split(" ", 1) for line in listed.splitlines())
    return {name: object_id for object_id, name in lines}


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """What is to be changed of refs to have others; what is to go is empty."""
    names = {**before, **after}
    wanted = {name: after.get(name, "") for name in names}
    return {name: found for name, found in wanted.items() if before.get(name, "") != found}


def _there(own: Repository, objects: set[str]) -> set[str]:
    given = "".join(f"{object_id}\n" for object_id in sorted(objects)).encode()
    answers = own.git("cat-file", "--batch-check=%(objectname) %(objecttype)", given=given)
    return {line.split(" ")[0] for line in answers.splitlines() if not line.endswith(" missing")}
