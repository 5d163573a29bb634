"""The server of ``runner web``: its routes, and how it starts and ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from runner.app import approvals, load_all, people
from runner.app.handle import App
from runner.app.people import Role
from runner.errors import UsageError
from runner.web import actions, asking, pages
from runner.web.live import Hub, live
from runner.web.render import bare, html, static
from runner.web.safety import Access, Guard, Sessions
from runner.web.visit import Handler, Visit, route

READS: tuple[tuple[str, Handler], ...] = (
    ("/", pages.jobs),
    ("/jobs/{job}", pages.job),
    ("/jobs/{job}/charts", pages.charts),
    ("/runs/{run}", pages.run),
    ("/runs/{run}/changes", pages.changes),
    ("/runs/{run}/costs", pages.costs),
    ("/runs/{run}/tree", pages.tree),
    ("/runs/{run}/events", pages.events),
    ("/runs/{run}/sent/{turn:int}", pages.sent),
    ("/calls/{call}", pages.call),
    ("/inbox", actions.inbox),
    ("/search", asking.search),
    ("/audit", asking.questions),
    ("/audit/{question}", asking.question),
    ("/sql", asking.sql),
    ("/jobs/{job}/report", asking.morning),
    ("/jobs/{job}/all", actions.confirm),
)
_WRITES: tuple[tuple[str, Handler, Role], ...] = (
    ("/answer", actions.answer, "answer"),
    ("/jobs/{job}/all", actions.act_on_all, "answer"),
    ("/do", actions.do, "operate"),
)


def web_app(app: App, access: Access, sessions: Sessions, hub: Hub) -> ASGIApp:
    """Return the app: its routes behind the guard."""
    load_all()

    def extra(app: App) -> Mapping[str, Any]:
        return {"inbox": approvals.waiting_count(app), "auth": access.auth}

    def new_link(visit: Visit) -> Response:
        """Give a link that opens the pages in another browser, once."""
        visit.tell("good", f"opens one other browser, once: {_link(access, sessions)}")
        return visit.go_back()

    def login(request: Request) -> Response:
        query = request.query_params
        return html("login.html", {"failed": "failed" in query, "next": query.get("next", "/")})

    routes: list[BaseRoute] = [route(app, extra, path, handler) for path, handler in READS]
    routes += [route(app, extra, *one, writes=True) for one in _WRITES]
    routes.append(Route("/static/{digest}/{name}", _static))
    routes.append(Route("/login", login))
    routes.append(Route("/live", partial(live, hub, app)))
    if access.auth == "local":
        routes.append(route(app, extra, "/link", new_link, role="operate", writes=True))
    inner = Starlette(routes=routes, exception_handlers={404: _not_found})
    return Guard(
        inner,
        access,
        sessions,
        by_token=lambda token_hash: people.person_of(app, token_hash),
        by_name=lambda name: people.role_of(app, name),
    )


def serve(
    app: App,
    access: Access,
    listener: socket.socket,
    tell: Callable[[str], None],
    stopping: threading.Event | None = None,
) -> None:
    """Serve the pages until SIGINT or SIGTERM, or ``stopping`` is set. ``tell`` gets the address to
    open."""
    sessions, hub = Sessions(), Hub(app)
    config = uvicorn.Config(
        web_app(app, access, sessions, hub),
        log_config=None,
        access_log=False,  # its lines would have the login's token; the guard logs what matters
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    tell(_link(access, sessions) if access.auth == "local" else access.home)
    _Server(config, hub, stopping or threading.Event()).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends at once, whatever streams are open, and without raising the signal that it ended for."""

    def __init__(self, config: uvicorn.Config, hub: Hub, stopping: threading.Event) -> None:
        super().__init__(config)
        self._hub = hub
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping.set()

    async def on_tick(self, counter: int) -> bool:
        return self._stopping.is_set() or await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ``UsageError`` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another --port"
        ) from error


def _link(access: Access, sessions: Sessions) -> str:
    return f"{access.home}/login?token={sessions.link()}"


def _static(request: Request) -> Response:
    found = static(request.path_params["name"])
    return PlainTextResponse("there is no such file\n", 404) if found is None else found


def _not_found(request: Request, error: Exception) -> Response:
    return bare(404, "there is no such page")
