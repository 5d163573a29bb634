"""The composition root: the only place that builds databases, queues, models, tools and workers.

What is slow to import (anthropic, rq, redis, what submits a job) is imported where it is needed.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.run import ALL_RUNS, Assignment
from runner.errors import UnreachableError
from runner.logs import Outage, log_event
from runner.settings import Settings, tool_environment
from runner.store import ids, migrate
from runner.store.database import POSTGRES_CONNECTIONS, Database, DatabaseClock, connections_for

if TYPE_CHECKING:
    from runner.core.prices import PriceList
    from runner.core.run import Author
    from runner.core.spec import JobSpec, Provider, Submission
    from runner.engine.attempt import Ports
    from runner.engine.batches import Collector
    from runner.engine.dispatcher import Machine
    from runner.engine.worker import Worker
    from runner.jobfile.load import Preflight
    from runner.jobfile.overrides import Overrides
    from runner.ports import Answers, Batches, Live, Model, Notifier, Observer, Tools
    from runner.queue.embedded import EmbeddedServer
    from runner.queue.live import Listener
    from runner.store.notices import DueNotice
    from runner.tools.sandbox import Sandboxes
    from runner.tools.toolbox import LocalTools
    from runner.workspace.run_workspaces import RunWorkspaces

logger = logging.getLogger(__name__)


def open_database(
    settings: Settings, *, upgrade: bool = False, slots: int | None = None
) -> Database:
    """Open the database, upgraded with ``upgrade``, for a worker with ``slots`` or for a command.
    Raises ``UsageError`` if its schema is not current, ``UnreachableError`` if it does not answer."""
    connections = POSTGRES_CONNECTIONS if slots is None else connections_for(slots)
    database = Database(settings.database_url, connections)
    if upgrade:
        migrate.upgrade(database)
    else:
        migrate.require_current(database)
    return database


def load_prices(settings: Settings) -> PriceList:
    """Load the user's price list, else the built-in one. Raises ``UsageError`` if it is invalid."""
    from runner.llm.prices import load_prices

    return load_prices(settings.prices)


def missing_credentials(provider: Provider) -> str | None:
    """Return what this host lacks to call a provider and what to do, in one line; None: nothing."""
    from runner.core.spec import PLATFORMS

    if provider in PLATFORMS:
        from runner.llm.platforms import lacks

        return lacks(provider)
    if provider == "scripted" or _has_key():
        return None
    return "no API key is in the environment: set ANTHROPIC_API_KEY before the job runs"


def _has_key() -> bool:
    """True if calls of the Messages API find a key in the environment or in the SDK's profile."""
    if os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN"):
        return True
    import anthropic

    try:
        return anthropic.Anthropic().credentials is not None
    except anthropic.AnthropicError:
        return False


def load_submission(
    path: Path,
    settings: Settings,
    preflight: Preflight | None = None,
    overrides: Overrides | None = None,
) -> Submission:
    """Read and check a job file, changed by ``overrides``. Raises ``SpecError`` with every problem,
    those that ``preflight`` finds included."""
    from runner.jobfile.load import load
    from runner.tools.mcp import list_tools
    from runner.tools.media import media_of_file
    from runner.tools.registry import resolve_hooks, resolve_tools
    from runner.workspace.submission import inspect_repository

    return load(
        path,
        resolve_tools=resolve_tools,
        resolve_hooks=resolve_hooks,
        list_mcp_tools=list_tools,
        read_media=media_of_file,
        look_at_repository=partial(
            inspect_repository, home=settings.home, environment=tool_environment(os.environ)
        ),
        prices=load_prices(settings),
        preflight=preflight,
        overrides=overrides,
    )


def sandboxes_here(settings: Settings) -> Sandboxes:
    """Return what this host has to contain calls of tools."""
    from runner.tools.sandbox import Sandboxes

    return Sandboxes(settings.home, tool_environment(os.environ))


def submit(
    database: Database, submission: Submission, key: str | None = None, *, author: Author
) -> str:
    """Submit a job that ``load_submission`` found nothing wrong with, and return its id; the first
    job's when ``key`` has been used. Raises ``UnreachableError``, and ``UsageError`` if its
    workspace cannot be marked or its commit not be kept."""
    from runner.store import jobs

    workspace_id = mark_workspace(submission)
    clock = DatabaseClock(database)
    clock.measure()
    return jobs.submit(database, submission, clock.now(), key, workspace_id, author)


def mark_workspace(submission: Submission) -> str | None:
    """Mark the folder of a job's workspace, or keep the commit that its runs begin at, and return the id
    of what a worker has to see; None where any worker can work. Raises ``UsageError`` if that
    cannot be done."""
    from runner.workspace.folders import identify
    from runner.workspace.submission import keep_base

    workspace = submission.spec.workspace
    if workspace and workspace.mode == "git" and workspace.path is not None:
        keep_base(workspace, tool_environment(os.environ))
        return None if workspace.remote else f"git_{workspace.commit}"
    if workspace and workspace.path is not None:
        return identify(Path(workspace.path))
    return None


def mend_workspaces(database: Database, of: str) -> list[str]:
    """Restore missing id files (removed by ``git clean``, say) in the workspaces that runs of a job
    wait for, and return their paths. The user vouches for the folders."""
    from runner.store.due_runs import missing_workspaces
    from runner.workspace.folders import MARKED, restore_id

    return [
        path
        for path, workspace_id in missing_workspaces(database, of)
        if workspace_id.startswith(MARKED) and restore_id(Path(path), workspace_id)
    ]


def start_worker(
    settings: Settings,
    database: Database,
    slots: int,
    assigned: Assignment = ALL_RUNS,
    metrics: tuple[str, int] | None = None,
) -> Worker:
    """Start a worker in threads of this process, with ``slots`` runs at once. ``metrics``: serve metrics
    and health on this address. Raises ``UnreachableError``, and ``UsageError`` if the address cannot be
    used."""
    from runner.engine.process_setup import allow_open_files, close_to_others, make_home
    from runner.engine.worker import Worker
    from runner.queue.connection import connect
    from runner.queue.notify import QUEUE_NAME, RqNotifier
    from runner.queue.worker import QueueWorker
    from runner.store import due_runs

    close_to_others()
    allow_open_files(slots)
    make_home(settings.home)
    opened = ExitStack()
    try:
        url, server = _queue(settings, opened)
        connection = connect(url)
        opened.callback(connection.close)
        notifier: Notifier = opened.enter_context(closing(RqNotifier(connection)))
        if server is not None:
            notifier = _RestartingNotifier(server, notifier)
        observers: list[Observer] = []
        machine, ports = _surroundings(settings, database, notifier, url, observers, opened)
        worker_id = ids.new("worker", machine.clock.now())
        worker = Worker(
            worker_id,
            machine,
            ports,
            slots=slots,
            assigned=assigned,
            collector=_collector(worker_id, machine, ports, load_prices(settings), opened),
            queue_side=lambda handle, on_slot_free: QueueWorker(
                connection,
                name=worker_id,
                queue_name=f"{QUEUE_NAME}:{assigned.job_id}" if assigned.job_id else QUEUE_NAME,
                slots=slots,
                handle=handle,
                on_slot_free=on_slot_free,
                outage=machine.queue_outage,
            ),
        )
        if metrics is not None:
            _serve_metrics(metrics, observers, worker, database, opened)
        if due_runs.calls_api(database, assigned.job_id):
            import runner.llm.anthropic  # noqa: F401 - takes a second, so import it before a run waits
        worker.start()
    except BaseException:
        opened.close()
        raise
    return worker


def _collector(
    worker_id: str, machine: Machine, ports: Ports, prices: PriceList, opened: ExitStack
) -> Callable[..., Collector]:
    """Return a function that makes the collector of batches, given the rest of its arguments."""
    from runner.core.model_calls import tariffs_of
    from runner.engine.batches import Collector
    from runner.store.blobs import load_blob

    @lru_cache(maxsize=1)
    def api() -> Batches:
        from runner.llm.batches import AnthropicBatches

        found = AnthropicBatches(blobs=partial(load_blob, machine.database))
        opened.callback(found.close)
        return found

    return partial(
        Collector,
        database=machine.database,
        worker_id=worker_id,
        clock=machine.clock,
        api=api,
        look=ports.journal.look,
        tariffs=partial(tariffs_of, prices=prices),
        stopping=ports.stopping,
        outage=machine.database_outage,
    )


def _serve_metrics(
    address: tuple[str, int],
    observers: list[Observer],
    worker: Worker,
    database: Database,
    opened: ExitStack,
) -> None:
    from runner.queries.workers import oldest_due_at, queue_depths
    from runner.telemetry.prometheus import Metrics, MetricsServer, Queue

    def queue() -> Queue:
        oldest, now = oldest_due_at(database), DatabaseClock(database)
        now.measure()
        age = 0.0 if oldest is None else max(0.0, now.now() - oldest)
        return Queue(queue_depths(database), age)

    observers.append(metrics := Metrics(queue))
    server = opened.enter_context(closing(MetricsServer(*address, metrics, worker)))
    log_event(logger, "serving metrics", port=server.server_address[1])


def _surroundings(
    settings: Settings,
    database: Database,
    notifier: Notifier,
    queue_url: str,
    observers: list[Observer],
    opened: ExitStack,
) -> tuple[Machine, Ports]:
    from runner.engine.attempt_log import AttemptLog
    from runner.engine.dispatcher import Machine
    from runner.engine.governor import Governor
    from runner.ports import Observers
    from runner.queries.search.search import open_index
    from runner.queue.connection import connect
    from runner.queue.live import RedisLive
    from runner.store.host_locks import HostLocks
    from runner.store.rate_limits import StoredRateLimits
    from runner.tools.host_process import run_is_quiet
    from runner.workspace.host_check import find_host_fault
    from runner.workspace.run_workspaces import RunWorkspaces

    clock, locks, secrets = DatabaseClock(database), HostLocks(), settings.secrets()
    others = [*_other_observers(settings.home, database, clock, opened)]
    tools = _open_tools(settings, database, locks.folder, opened)
    live = opened.enter_context(closing(RedisLive(connect(queue_url))))
    workspaces = RunWorkspaces(database, settings.home, tools)
    observers += [AttemptLog(), tools.servers, *others]
    observer = Observers(observers)
    governor = Governor(StoredRateLimits(database), clock, observer)
    machine = Machine(
        database=database,
        locks=locks,
        clock=clock,
        notifier=notifier,
        visible=workspaces.visible,
        quiet=lambda run_id: run_is_quiet(locks.folder, run_id),
        find_fault=partial(find_host_fault, settings.home, tools.environment),
        still_alive=tools.alive,
        run_apart=lambda run_id, stopping: _run_apart(settings, run_id, stopping),
        hide=secrets.hide,
        send=lambda notice: send_notice(notice, settings),
        index=open_index(database, logger.warning),
        close=opened.close,
        observer=observer,
        database_outage=Outage("the database", logger),
        queue_outage=Outage("Redis", logger),
        governor=governor,
    )
    return machine, _ports(machine, tools, live, workspaces, load_prices(settings))


def _open_tools(
    settings: Settings, database: Database, lock_dir: Path, opened: ExitStack
) -> LocalTools:
    from runner.jobfile.values import schema_problem
    from runner.queries.transcript import tool_output
    from runner.store.due_runs import job_of
    from runner.tools.toolbox import LocalTools

    tools = LocalTools(
        home=settings.home,
        lock_dir=lock_dir,
        secrets=settings.secrets(),
        stored_output=partial(tool_output, database),
        job_of=partial(job_of, database),
        schema_problem=schema_problem,
    )
    opened.callback(tools.close)
    tools.sandboxes.containers.remove_left_aside()
    return tools


def _other_observers(
    home: Path, database: Database, clock: DatabaseClock, opened: ExitStack
) -> Iterator[Observer]:
    """Yield the observers that clean up after attempts, and OpenTelemetry's if it is set up."""
    from runner.store.changes import store_connections
    from runner.store.due_runs import endings
    from runner.telemetry.start import start_telemetry
    from runner.tools.connection_notes import NotesStorer
    from runner.tools.sandbox import TmpRemover

    yield TmpRemover(home)
    yield NotesStorer(
        home,
        lambda run, about, made: store_connections(database, run, about, made, clock.now()),
        lambda error: log_event(logger, "connections are not stored", error=str(error)),
    )
    if (telemetry := start_telemetry(os.environ, partial(endings, database))) is not None:
        opened.callback(telemetry.close)
        yield telemetry


def _ports(
    machine: Machine, tools: Tools, live: Live, workspaces: RunWorkspaces, prices: PriceList
) -> Ports:
    from runner.core.model_calls import tariffs_of
    from runner.engine.attempt import Ports
    from runner.store.blobs import load_blob
    from runner.store.journal import StoredJournal
    from runner.store.leases import is_untried

    clock, host_id = machine.clock, machine.locks.host_id
    tariffs, database, governor = (
        partial(tariffs_of, prices=prices),
        machine.database,
        machine.governor,
    )
    return Ports(
        journal=StoredJournal(database, clock.now, tariffs, machine.observer),
        models=models(governor, partial(load_blob, database)),
        tools=tools,
        workspaces=workspaces,
        live=live,
        clock=clock,
        jitter=random.random,
        call_id=ids.call_id,
        stopping=threading.Event(),
        known_window=prices.window,
        permits=governor,
        is_untried=lambda run_id: is_untried(database, run_id, host_id, clock.now()),
    )


@contextmanager
def follow_text(settings: Settings, run_id: str) -> Iterator[Iterator[str | None]]:
    """Yield the live text of a run; None each time that there is nothing new."""
    from runner.queue.live import follow

    with ExitStack() as opened:
        url, _ = _queue(settings, opened)
        yield opened.enter_context(closing(follow(url, run_id)))  # type: ignore[type-var]


@contextmanager
def listen(settings: Settings) -> Iterator[Listener]:
    """Yield a listener to the live text of runs. Raises ``UnreachableError``."""
    from runner.queue.live import Listener

    with ExitStack() as opened:
        url, _ = _queue(settings, opened)
        yield opened.enter_context(closing(Listener(url)))


def _queue(settings: Settings, opened: ExitStack) -> tuple[str, EmbeddedServer | None]:
    """The queue's URL; without a configured one, that of the embedded server, running."""
    from runner.queue.embedded import EmbeddedServer

    if settings.redis_url is not None:
        return settings.redis_url, None
    server = EmbeddedServer(settings.home)
    server.enter()
    opened.callback(server.leave)
    return server.url, server


class _RestartingNotifier:
    """The notifier of an embedded server, which is started again when it died."""

    def __init__(self, server: EmbeddedServer, notifier: Notifier) -> None:
        self._server = server
        self._notifier = notifier

    def notify(self, run_ids: Sequence[str]) -> None:
        try:
            self._notifier.notify(run_ids)
        except UnreachableError:
            self._server.ensure()
            self._notifier.notify(run_ids)


def models(
    answers: Answers | None = None, blobs: Callable[[str], bytes] | None = None
) -> Callable[[JobSpec], Model]:
    """Return a function from a job to its model: one API client a process and region, or the job's
    script. It raises ``HostLacks`` if the extra of the job's provider is not installed here.
    ``answers`` receives what the API says about its limits; ``blobs`` returns the bytes of a digest."""
    one_at_a_time = threading.Lock()  # lru_cache alone lets all first callers make a client

    from runner.core.spec import PLATFORMS

    @cache
    def anthropic(provider: Provider, region: str | None, project: str | None) -> Model:
        from runner.llm.anthropic import AnthropicModel

        clients = None
        if provider in PLATFORMS:
            from runner.llm.platforms import PlatformClients

            clients = PlatformClients(provider=provider, region=region or "", project=project)
        return AnthropicModel(answers=answers, blobs=blobs, clients=clients)

    def model_of(spec: JobSpec) -> Model:
        from runner.llm.scripted import ScriptedModel

        if spec.provider == "scripted":
            return ScriptedModel(spec.script or {})
        with one_at_a_time:
            return anthropic(spec.provider, spec.region, spec.project)

    return model_of


def leave_worker(
    settings: Settings, job_id: str, slots: int
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a worker of one job in a session of its own, so that it outlives this terminal. Returns its
    process and the file of its log."""
    from runner.engine.process_setup import make_home

    make_home(settings.home)
    folder = settings.home / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    log = folder / f"{job_id}.log"
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", "worker", "--job", job_id, "-c", str(slots)],
            env={**os.environ, **settings.environment()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return process, log


def _run_apart(settings: Settings, run_id: str, stopping: threading.Event) -> None:
    """Work a run in a process of its own: the last workers that had it died."""
    child = subprocess.Popen(
        [sys.executable, "-m", "runner", "worker", "--only", run_id],
        env={**os.environ, **settings.environment()},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    while child.poll() is None:
        if stopping.wait(0.2):
            child.send_signal(signal.SIGTERM)
            child.wait()


def send_notice(notice: DueNotice, settings: Settings) -> None:
    """Send a notice by its channel. Raises ``NotSentError``."""
    from runner.core.notices import with_link
    from runner.tools.notices import send

    environment = tool_environment(os.environ, settings.secrets())
    data = with_link(notice.data, settings.web_url)
    send(notice.channel, notice.notify, notice.id, data, os.environ, environment)
