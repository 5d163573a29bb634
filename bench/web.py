"""(l) How long pages take with 10,000 runs and a run of 5,000 turns, and how large they are."""

from __future__ import annotations

import http.client
import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import select

from bench.audit.generate import Maker
from bench.audit.record.bulk import opened
from bench.audit.record.conversation import Conversation
from bench.stage.databases import Databases
from bench.tables import Table, held
from bench.viewer import browser
from runner.app.handle import App
from runner.app.transcript import api_messages
from runner.core.spec import JobSpec, NewRun, Submission
from runner.queries.transcript import system_prompt
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


def measure(
    databases: Databases, folder: Path, *, quick: bool, beside: bool = False
) -> list[Table]:
    """Seconds to the first byte of each page, over HTTP on this machine, after a first look; with
    ``beside`` also how the long run comes up in Chromium, beside Inspect's viewer."""
    table = Table("web", "(l) pages of `runner web`")
    tables = [table]
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
                    seconds, worked, size = _looks(port, cookie, path, repetitions)
                    table.rows.append(
                        {
                            "database": kind,
                            "page": name,
                            "first byte": seconds,
                            "time": held(seconds, MOST_SECONDS),
                            "processor": worked,
                            "bytes": size,
                            "size": held(size, MOST_BYTES),
                        }
                    )
                if beside and len(tables) == 1:
                    home = f"http://127.0.0.1:{port}/runs/{long}"
                    tables.append(_beside(app, long, folder, home, cookie, 3 if quick else 5))
    table.notes.append(
        f"seconds; the fastest of {repetitions} looks, and the median of their processor time"
    )
    return tables


def _beside(app: App, run: str, folder: Path, address: str, cookie: str, looks: int) -> Table:
    messages, system = api_messages(app, run), system_prompt(app.database, run) or ""
    table = Table("web beside", f"a run of {len(messages):,} messages in Chromium")

    def add(side: str, shown: browser.Shown) -> None:
        numbers = {"first byte": shown.first_byte, "first message": shown.until_shown}
        table.rows.append({"side": side, **numbers, "bytes": shown.bytes})

    if browser.CHROMIUM is None:
        table.notes.append("not measured: no chromium is installed")
        return table
    add("runner web", browser.show(address, _first_words(messages[-1]), looks, cookie))
    place = folder / "inspect"
    place.mkdir()
    try:
        with browser.viewer(place, {"messages": messages, "system": system}) as viewer:
            add("inspect view", browser.show(viewer, _first_words(messages[0]), looks))
    except (OSError, subprocess.CalledProcessError) as error:
        table.notes.append(f"Inspect's viewer is not measured: {error}")
    table.notes.append(
        f"seconds, the fastest of {looks} looks, each in a browser that had nothing of the page. The first "
        "message that each shows: the newest one here, the oldest one there"
    )
    return table


def _first_words(message: Mapping[str, Any]) -> str:
    """The beginning of a message's text, as far as no markup can be in it."""
    content = message["content"]
    texts = [content] if isinstance(content, str) else [b["text"] for b in content if "text" in b]
    return re.split(r"[^\w ,.:-]", texts[0].strip())[0][:40].strip()


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


def _looks(port: int, cookie: str, path: str, repetitions: int) -> tuple[float, float, int]:
    """The fewest seconds to the first byte, the median of this process's processor seconds for a page, and
    its bytes. Before the first look nothing counts."""
    taken, worked, size = [], [], 0
    for _ in range(repetitions + 1):
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            began, had = time.perf_counter(), time.process_time()
            connection.request("GET", path, headers={"cookie": cookie})
            response = connection.getresponse()
            taken.append(time.perf_counter() - began)
            size = len(response.read())
            worked.append(time.process_time() - had)
            assert response.status == 200, path
    return min(taken[1:]), median(worked[1:]), size
