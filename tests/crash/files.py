"""What must hold of a workspace of the run's own: trees and transcript move together."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from tests.crash import repository
from tests.crash.record import Record, hold
from tests.crash.scenario import LOG, OUTSIDE, SERVED, Scenario

_OURS = (".git", ".runner-")


def check(record: Record, folder: Path, home: Path, variant: Scenario) -> None:
    """Raise ``Violation`` unless the files are what the calls made, each once.

    Args:
        folder: the iteration's. home: of the worker that ended the run.
    """
    if variant.workspace not in ("git", "copy"):
        return
    objects = folder / "workspace" / ".git" / "objects"
    clones = home.glob("repositories/*/objects")
    stores = _Stores(list(home.glob("snapshots/*.git")), [objects, *clones])
    last = record.run.progress["files"]["tree"]
    _check_chain(record, last)
    for tree in sorted({call.tree_after for call in record.calls if call.tree_after}):
        _check_log(record, tree, stores)
    found = _work_tree(record.own_workspace)
    hold(found == stores.files(last), "the files are not those of the last tree", sorted(found))
    if variant.workspace == "git":
        repository.check_untouched(folder / "workspace")
        _check_branch(record, found)
        if variant.files.hosts:
            remote = repository.remote_of(folder / "workspace")
            repository.git(remote, "cat-file", "-e", f"{last}^{{tree}}")
    _check_verifications(record, variant)
    _check_outside(record, folder / OUTSIDE)


class _Stores:
    """Where trees are: the git folder of a home, which has what its source has not."""

    def __init__(self, folders: Sequence[Path], sources: Sequence[Path]) -> None:
        hold(len(folders) == 1, "snapshots are in one store", folders)
        self._folder = folders[0]
        alternates = os.pathsep.join(map(str, sources))
        self._environment = {**os.environ, "GIT_ALTERNATE_OBJECT_DIRECTORIES": alternates}

    def files(self, tree: str) -> dict[str, bytes]:
        """The files of a tree."""
        command = ["git", f"--git-dir={self._folder}", "archive", "--format=tar", tree]
        done = subprocess.run(command, env=self._environment, capture_output=True, check=False)
        hold(done.returncode == 0, "a recorded tree is gone", tree, done.stderr)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            return {
                member.name: _content(archive, member)
                for member in archive.getmembers()
                if member.isfile() and not member.name.startswith(_OURS)
            }


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def _work_tree(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    named = {str(path.relative_to(folder)): path for path in found}
    return {name: path.read_bytes() for name, path in named.items() if not name.startswith(_OURS)}


def _wrote(record: Record) -> list[Row[Any]]:
    return [call for call in record.calls if call.tree_after is not None]


def _check_chain(record: Record, last: str) -> None:
    """After one call is before the next: nobody else changes these files."""
    causes = [event.data["cause"] for event in record.events if event.type == "tree_recorded"]
    unknown = any(call.outcome == "unknown" for call in record.calls)  # its effects stay
    allowed = {"restored", "changed"} if unknown else {"restored"}
    strange = [cause for cause in causes[1:] if cause not in allowed]
    hold(causes[:1] == ["created"] and not strange, "someone else changed the files", causes)
    before, batches = record.run.start_tree, set[tuple[str, str]]()
    for call in _wrote(record):
        batch = (call.tree_before, call.tree_after)
        if batch in batches:
            continue
        batches.add(batch)
        known = call.tree_before is None or call.tree_before == before
        hold(known, "what was after a call is not before the next", call, before)
        before = call.tree_after
    hold(before == last, "the last tree is not the last call's", before, last)


def _check_log(record: Record, tree: str, stores: _Stores) -> None:
    """The tree after a call holds what that call and those before it wrote, each once."""
    lines = stores.files(tree).get(LOG, b"").decode().split()
    done: list[str] = []
    for call in _wrote(record):
        if call.name == "Bash" and call.outcome != "denied":
            done.append(call.tool_use_id.removeprefix("toolu_").replace("_", "."))
        if call.tree_after == tree:
            last = len(done)
    unsure = {
        call.tool_use_id.removeprefix("toolu_").replace("_", ".")
        for call in record.calls
        if call.outcome == "unknown"
    }
    expected = [name for name in done[:last] if name not in unsure]
    found = [name for name in lines if name not in unsure]
    hold(sorted(found) == sorted(expected), "a tree holds other effects", tree, lines, expected)


def _check_outside(record: Record, path: Path) -> None:
    """What an MCP server did, which no restored file undoes, happened once: or it is not known."""
    done = Counter(path.read_text().split() if path.exists() else ())
    for call in record.calls:
        if call.name == SERVED.name:
            times = done[call.tool_use_id.removeprefix("toolu_").replace("_", ".")]
            known = times == 1 or call.outcome == "unknown"
            hold(known and times <= 1, "an effect outside happened otherwise", call, times)
    heard = [
        call for call in record.calls if (call.name, call.outcome) == (SERVED.name, "succeeded")
    ]
    changed = [event for event in record.events if event.type == "tools_changed"]
    hold(len(changed) == len(heard), "the server's tools were followed otherwise", changed, heard)


def _check_branch(record: Record, found: dict[str, bytes]) -> None:
    """The branch ends with one commit of ours, and it holds the files."""
    row, worktree = record.run_workspace, record.own_workspace
    hold(row is not None, "a run has no workspace of its own")
    assert row is not None
    said = repository.git(worktree, "log", "--format=%H%x00%B%x01", f"{row.start_commit}..HEAD")
    ours = [
        entry.split("\0")[0].strip()
        for entry in said.split("\1")
        if f"Runner-Run: {record.run.id}" in entry
    ]
    hold(len(ours) == 1, "the run did not end with one commit", said)
    hold(repository.git(worktree, "rev-parse", "HEAD") == ours[0], "the commit is not the last")
    hold(
        row.commit_id == ours[0] == record.run.progress["ending"]["delivered"],
        "another one is recorded",
    )
    branch = repository.git(worktree, "symbolic-ref", "--short", "HEAD")
    own = branch == row.branch and branch.startswith("runner/sweep/one")
    hold(own, "the branch has another name", branch, row.branch)
    committed = repository.git(worktree, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    hold(sorted(committed) == sorted(found), "the commit holds other files", committed)
    hold(repository.git(worktree, "status", "--porcelain") == "", "something is not committed")


def _check_verifications(record: Record, variant: Scenario) -> None:
    rows = record.verifications
    outcomes = tuple(row.outcome == "succeeded" for row in rows)
    hold(outcomes == variant.files.verified, "verifications went otherwise", rows)
    for row in rows:
        hold(row.ended_at is not None, "a verification has no end", row)
    told = [event.data["verification"] for event in record.events if event.type == "verified"]
    hold(told == [row.number for row in rows], "verified is not once a verification", told)
