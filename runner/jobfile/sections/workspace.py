"""``[workspace]``: what it says, as far as the file alone can tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast, get_args
from urllib.parse import urlsplit

from runner.core.workspace import (
    LARGEST_FILE,
    SETUP_SECONDS,
    Accepted,
    OnUnknown,
    WorkspaceMode,
)
from runner.jobfile.section import Section, shown
from runner.jobfile.sections.permissions import rules_in
from runner.permissions import Rule

WORKSPACE_KEYS = (
    "mode",
    "path",
    "repo",
    "base",
    "uncommitted",
    "accept",
    "remote",
    "setup",
    "setup_timeout",
    "snapshot_ignored",
    "largest_file",
    "external",
    "on_unknown",
    "commit_message",
)
MOST_URL_CHARACTERS = 2_000
MOST_REF_CHARACTERS = 500
MOST_BYTES = 1_000_000_000_000
URL_SCHEMES = ("https", "http", "ssh", "git", "file")

# Keys that mean something in some modes only.
_MODES: dict[str, tuple[WorkspaceMode, ...]] = {
    "path": ("shared", "copy"),
    **dict.fromkeys(
        ("repo", "base", "uncommitted", "accept", "remote", "commit_message"), ("git",)
    ),
    **dict.fromkeys(
        ("setup", "setup_timeout", "snapshot_ignored", "largest_file", "external"), ("git", "copy")
    ),
}
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://|[^/]+:")
# Longer than people's names are, as tokens are: https://TOKEN@example.com/…
_LONGEST_USER = 30


@dataclass(frozen=True, slots=True)
class WorkspaceDraft:
    """The section as it is written, defaults filled in; ``external`` are rules with their index."""

    mode: WorkspaceMode = "shared"
    path: str | None = None
    repo: str | None = None
    base: str | None = None
    uncommitted: bool = False
    accepted: frozenset[Accepted] = frozenset()
    remote: str | None = None
    setup: tuple[str, ...] = ()
    setup_timeout: float = SETUP_SECONDS
    snapshot_ignored: tuple[str, ...] = ()
    largest_file: int = LARGEST_FILE
    external: tuple[tuple[int, Rule], ...] = ()
    on_unknown: OnUnknown = "tell"
    commit_message: str | None = None


def check_workspace(section: Section) -> WorkspaceDraft:
    """What the section says, after noting what is wrong with it."""
    default = WorkspaceDraft()
    modes: tuple[WorkspaceMode, ...] = get_args(WorkspaceMode)
    mode = cast(WorkspaceMode, section.choice("mode", modes, default.mode))
    if section.values.get("mode", default.mode) in modes:
        _expect_keys_of(section, mode)
    if section.has("base") and section.values.get("uncommitted") is True:
        section.note("is HEAD when uncommitted = true: leave one of the two out", "base")
    repo = section.values.get("repo")
    if section.values.get("uncommitted") is True and isinstance(repo, str) and is_url(repo):
        section.note("means nothing for a URL: nobody works in it", "uncommitted")
    if section.has("setup_timeout") and not section.has("setup"):
        section.note("does nothing without setup; give that too", "setup_timeout")
    return WorkspaceDraft(
        mode=mode,
        path=section.text("path"),
        repo=_place(section, "repo"),
        base=_ref(section),
        uncommitted=section.flag("uncommitted"),
        accepted=_accepted(section),
        remote=_place(section, "remote"),
        setup=section.commands("setup"),
        setup_timeout=section.seconds("setup_timeout") or default.setup_timeout,
        snapshot_ignored=_patterns(section),
        largest_file=section.integer("largest_file", default.largest_file, most=MOST_BYTES),
        external=tuple(rules_in(section, "external", "ask")),
        on_unknown=cast(
            OnUnknown, section.choice("on_unknown", get_args(OnUnknown), default.on_unknown)
        ),
        commit_message=section.text("commit_message"),
    )


def is_url(text: str) -> bool:
    """Whether a repository's place is a URL, as git takes it: also ``host:path``, but no path that
    begins with a slash or a dot (https://git-scm.com/docs/git-clone#_git_urls)."""
    return _URL.match(text) is not None


def _expect_keys_of(section: Section, mode: WorkspaceMode) -> None:
    misplaced = [key for key in section.values if mode not in _MODES.get(key, (mode,))]
    for key in misplaced:
        wanted = " or ".join(f'mode = "{each}"' for each in _MODES[key])
        section.note(f'is only for {wanted}; this is mode = "{mode}"', key)
    if mode in ("shared", "copy") and not section.has("path") and "repo" not in misplaced:
        section.note("the key path is missing: the folder that the tools work in")
    if mode == "git" and not section.has("repo") and "path" not in misplaced:
        section.note("the key repo is missing: the path or URL of the repository")


def _place(section: Section, key: str) -> str | None:
    """A path or URL of a repository."""
    text = section.line(key, MOST_URL_CHARACTERS)
    if text is None:
        return None
    wrong = "cannot begin with '-': write ./ before a path" if text.startswith("-") else None
    if wrong is None and is_url(text):
        wrong = _wrong_url(text)
    if wrong is not None:
        section.note(wrong, key)
        return None
    return text


def _wrong_url(url: str) -> str | None:
    scheme, mark, _ = url.partition("://")
    if not mark:
        return None
    if scheme.lower() not in URL_SCHEMES:
        return f"is no URL of a repository: {shown(scheme)} is none of {', '.join(URL_SCHEMES)}"
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return f"is no URL: {error}"
    is_token = scheme.lower().startswith("http") and len(parts.username or "") > _LONGEST_USER
    if parts.password is not None or is_token:
        return (
            "holds a password, which would be stored with the job: take it out and let git find it "
            "(git help credentials)"
        )
    return None


def _ref(section: Section) -> str | None:
    ref = section.line("base", MOST_REF_CHARACTERS)
    if ref is not None and ref.startswith("-"):
        section.note(f"{shown(ref)} is no name of a branch, tag or commit", "base")
        return None
    return ref


def _accepted(section: Section) -> frozenset[Accepted]:
    known: tuple[Accepted, ...] = get_args(Accepted)
    found = set()
    for index, word in section.texts("accept"):
        if word in known:
            found.add(word)
        else:
            section.note(f"must be one of {', '.join(known)}, not {shown(word)}", "accept", index)
    return frozenset(found)


def _patterns(section: Section) -> tuple[str, ...]:
    """Patterns of files below the workspace's folder."""
    found = []
    for index, pattern in section.texts("snapshot_ignored"):
        if pattern.startswith(("/", ":", "-")) or ".." in pattern.split("/"):
            section.note(
                f"{shown(pattern)} must be a pattern of files in the workspace: relative to its "
                "folder, without '..'",
                "snapshot_ignored",
                index,
            )
        else:
            found.append(pattern)
    return tuple(found)
