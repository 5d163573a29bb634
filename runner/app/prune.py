"""Removes jobs that ended long ago, with their outputs, snapshots, workspaces and search rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from runner.app.handle import App
from runner.app.humanize import plural
from runner.app.workspaces import environment
from runner.core.run import Author
from runner.errors import RunnerError
from runner.queries.jobs import pruned_jobs
from runner.queries.search.search import open_index
from runner.store import prune as store
from runner.store.prune import OldJob
from runner.tools.sandbox_caches import FOLDER as CACHES
from runner.tools.sandbox_mounts import TMP
from runner.workspace import leftovers
from runner.workspace.snapshot_store import collect, forget, store_id, store_of, stores_in

_GOES_ON = "one of its runs continues"


def prune(
    app: App,
    older_than: float,
    author: Author,
    *,
    force: bool,
    dry_run: bool,
    warn: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yield each job whose runs have all ended so many seconds ago, once it is removed, or why it is kept.
    With ``dry_run`` nothing is removed. With ``force`` changes of files are lost that are saved
    nowhere else, and files on other hosts are left there. ``warn`` takes what else went wrong.

    May be killed at any time: what is left is removed by the next one.
    """
    now = app.now()
    before, this_host = now - older_than, store_id(app.settings.home)
    for job in store.old_jobs(app.database, before, this_host):
        found = leftovers.list_workspaces(
            app.database, app.settings.home, environment(app), job_id=job.id
        )
        here = [each for each in found if each.here]
        size = sum(each.size() for each in here)
        why = "" if force else _why_kept(job, here, dry_run=dry_run)
        if not why and not dry_run:
            why = _remove_files(app, job, author, now, force=force)
            if not why and job.elsewhere and not force:
                why = _elsewhere(job)
            if not why and not store.erase(app.database, job, before, author, now):
                why = _GOES_ON
        told = {name: value for name, value in asdict(job).items() if name not in _INNER}
        yield {**told, "workspaces": len(here), "bytes": size, "why_kept": why}
    if not dry_run:
        for folder in stores_in(app.settings.home):
            try:
                collect(folder, environment(app))
            except RunnerError as error:
                warn(f"the space of removed snapshots in {folder} is not freed: {error}")
        open_index(app.database).drop_gone()
        store.forget_workers(app.database, before)


def pruned(app: App) -> list[dict[str, Any]]:
    """Return what is left of the jobs that were removed, the last one last."""
    return pruned_jobs(app.database)


_INNER = ("source", "run_ids", "elsewhere", "undelivered")


def _why_kept(job: OldJob, here: list[leftovers.Leftover], *, dry_run: bool) -> str:
    if job.undelivered:
        return f"{plural(job.undelivered, 'run')} with changes on no branch: `runner patch {job.id} --all`"
    unsaved = next((each for each in here if each.unsaved), None)
    if unsaved is not None:
        return f"workspace of {unsaved.run_id}: {unsaved.unsaved}"
    return _elsewhere(job) if dry_run and job.elsewhere else ""


def _elsewhere(job: OldJob) -> str:
    return f"files of {plural(job.elsewhere, 'run')} are on other hosts: prune there, too"


def _remove_files(app: App, job: OldJob, author: Author, now: float, *, force: bool) -> str:
    """Remove the files of a job from this host; return why that cannot be done, or ""."""
    home, git = app.settings.home, environment(app)
    options: Any = {"author": author, "job_id": job.id, "force": force}
    for each in leftovers.prune(app.database, home, git, now, **options):
        if not each.removed:
            return f"workspace of {each.leftover.run_id}: {each.why_kept}"
    try:
        if job.source is not None and (folder := store_of(home, job.source)).is_dir():
            forget(folder, git, job.run_ids)
    except RunnerError as error:
        return f"its snapshots cannot be removed: {error}"
    for run_id in job.run_ids:
        shutil.rmtree(home / "outputs" / run_id, ignore_errors=True)
        shutil.rmtree(home / TMP / run_id, ignore_errors=True)
    shutil.rmtree(home / CACHES / job.id, ignore_errors=True)
    store.forget_workspaces(app.database, job.id, store_id(home))
    return ""
