"""(l) How long pages take with 10,000 runs and a run of 5,000 turns, and how large they are."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from sqlalchemy import select

from bench.audit.generate import Maker
from bench.audit.record.bulk import opened
from bench.audit.record.conversation import Conversation
from bench.stage.databases import Databases
from bench.tables import Table, held
from runner.app.handle import App
from runner.core.spec import JobSpec, NewRun, Submission
from runner.settings import Settings
from runner.store import jobs
from runner.store.database import Database
from runner.store.tables import runs as runs_table
from runner.web import server
from runner.web.safety import Access

MOST_SECONDS, MOST_BYTES = 0.15, 200_000


class _OneLongRun(Maker):
    """A job of one run with as many turns as are wanted."""

    turns = 5_000

    def play(self, run: Conversation) -> None:
        run.begin()
        for turn in range(1, self.turns + 1):
            run.play_turn(last=turn == self.turns)
            if turn % 120 == 0 and turn < self.turns:
                run.compact()


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Seconds to the first byte of each page, over HTTP on this machine, after a first look."""
    table = Table("web", "(l) pages of `runner web`")
    runs, repetitions = (2_000, 5) if quick else (10_000, 15)
    for kind in databases.kinds:
        with databases.empty(kind) as url, closing(Database(url)) as database:
            with opened(url) as bulk:
                maker = _OneLongRun(bulk, random.Random(7), 1)
                maker.turns = 500 if quick else 5_000
                maker.make_job()
            long = database.rows(select(runs_table.c.id).limit(1))[0].id
            spec = JobSpec(name="many", model="claude-test")
            some = tuple(NewRun(f"item-{number:05}", {}, "Go.") for number in range(runs))
            job = jobs.submit(database, Submission("many.toml", "", spec, some), time.time())
            pages = {
                "jobs": "/",
                f"{runs:,} runs": f"/jobs/{job}",
                "the same by cost": f"/jobs/{job}?sort=-cost",
                f"newest of {maker.turns:,} turns": f"/runs/{long}",
                "turns in the middle": f"/runs/{long}?last={maker.turns // 2}",
                "its costs": f"/runs/{long}/costs",
                "inbox": "/inbox",
            }
            app = App(Settings(home=folder, database_url=url), database)
            with _served(app) as (port, cookie):
                for name, path in pages.items():
                    seconds, size = _looks(port, cookie, path, repetitions)
                    table.rows.append(
                        {
                            "database": kind,
                            "page": name,
                            "first byte": seconds,
                            "time": held(seconds, MOST_SECONDS),
                            "bytes": size,
                            "size": held(size, MOST_BYTES),
                        }
                    )
    table.notes.append(f"first byte: the median of {repetitions} looks")
    return [table]


@contextmanager
def _served(app: App) -> Iterator[tuple[int, str]]:
    """Serve pages in a thread; give the port and the cookie of a browser that is logged in."""
    listener: socket.socket = server.listen("127.0.0.1", 0)
    port = int(listener.getsockname()[1])
    home = f"http://127.0.0.1:{port}"
    hosts = frozenset({f"127.0.0.1:{port}"})
    access = Access(hosts, frozenset({home}), home, "local", "bench", "runner")
    links: list[str] = []
    told, stopping = threading.Event(), threading.Event()

    def tell(link: str) -> None:
        links.append(link.removeprefix(home))
        told.set()

    arguments = (app, access, listener, tell, stopping)
    thread = threading.Thread(target=server.serve, args=arguments)
    thread.start()
    try:
        told.wait(30)
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", links[0])
            cookie = connection.getresponse().getheader("set-cookie", "").partition(";")[0]
        yield port, cookie
    finally:
        stopping.set()
        thread.join()
        listener.close()


def _looks(port: int, cookie: str, path: str, repetitions: int) -> tuple[float, int]:
    """The median of the seconds to the first byte, and the bytes of the page."""
    taken, size = [], 0
    for _ in range(repetitions + 1):
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            began = time.perf_counter()
            connection.request("GET", path, headers={"cookie": cookie})
            response = connection.getresponse()
            taken.append(time.perf_counter() - began)
            size = len(response.read())
            assert response.status == 200, path
    return median(taken[1:]), size
