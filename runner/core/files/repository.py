"""A repository as a job asks for it, and as it was found when the job was submitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# What of a repository runs may be told to do without: they do not see it as its users do.
Accepted = Literal["submodules", "lfs", "links", "case"]


@dataclass(frozen=True, slots=True)
class Asked:
    """``job`` is the job's name. ``source`` is a URL, or an absolute path (``is_url``). ``base`` is
    where runs begin, None when the job doesn't say: at HEAD then. ``uncommitted`` adds what is changed
    there and not committed. ``remote`` is the URL or absolute path of the repository that snapshots
    are pushed to."""

    job: str
    source: str
    is_url: bool
    base: str | None = None
    uncommitted: bool = False
    remote: str | None = None
    accepted: frozenset[Accepted] = frozenset()


@dataclass(frozen=True, slots=True)
class Found:
    """``path`` is the repository's folder with links resolved, None for a URL. ``commit`` is what
    runs begin at, and ``files`` the paths of its files, sorted.

    ``problems`` are keys of ``[workspace]`` and what is wrong there; with one, the rest says nothing.
    ``notes`` are for whoever submits the job, one line each.
    """

    path: str | None = None
    commit: str = ""
    files: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


LookAtRepository = Callable[[Asked], Found]
