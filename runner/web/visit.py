"""A request by a person, as the pages and actions see it, and how they become routes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from runner.app import live
from runner.app.handle import App
from runner.app.people import Role, may
from runner.core.run import LONGEST_WHY, Author
from runner.errors import NotFoundError, RunnerError, UnreachableError, UsageError
from runner.web.render import bare, html
from runner.web.safety import Session, own_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that passed the guard."""

    app: App
    session: Session
    path: str
    parts: Mapping[str, str]  # that the path names
    query: Mapping[str, str]
    form: Mapping[str, str]
    back: str  # the page that a form was on
    is_refresh: bool  # a page that is open loads itself again
    is_from_elsewhere: bool  # a link of another site leads here
    extra: Callable[[App], Mapping[str, Any]]  # what every page shows beside its own values

    def author(self) -> Author:
        """Return who changes something, and why, in the words of the form. Raises ``UsageError``."""
        why = " ".join(self.form.get("why", "").split())
        if len(why) > LONGEST_WHY:
            raise UsageError(
                f"the reason has {len(why):,} characters: give {LONGEST_WHY:,} at most"
            )
        return Author(self.session.person, why)

    def page(self, name: str, values: Mapping[str, Any], status: int = 200) -> Response:
        return html(name, {**self.common(), **values}, status)

    def common(self) -> dict[str, Any]:
        """Return what every page shows. Words for the next page are shown by this one."""
        told: list[tuple[str, str]] = []
        with suppress(IndexError):
            while not self.is_refresh:  # one by one: threads of other requests add more
                told.append(self.session.told.pop(0))
        role = self.session.role
        return {
            "person": self.session.person,
            "may_answer": may(role, "answer"),
            "may_operate": may(role, "operate"),
            "csrf": self.session.csrf,
            "path": self.path,
            "query": self.query,
            "told": told,
            **self.extra(self.app),
        }

    def watch(self, topic: str) -> dict[str, Any]:
        """Return what a page watches, and its version before the page is read."""
        return {"topic": topic, "since": live.look(self.app, [topic]).get(topic, "")}

    def tell(self, tone: str, words: str) -> None:
        """Say something on the next page of this session."""
        self.session.told.append((tone, words))

    def later(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return ``work`` for a thread of its own: what goes wrong is told on a later page."""

        def do() -> None:
            try:
                work()
            except RunnerError as error:
                self.tell("bad", str(error))
            except Exception:
                logger.exception("what goes on after a page failed: %s", self.path)
                self.tell("bad", "it failed by a bug of Runner's: its log has more")

        return do

    def go_back(self) -> Response:
        """Return to the page that a form was on."""
        return self.go_to(self.back)

    def go_to(self, address: str) -> Response:
        return RedirectResponse(address, 303)


Handler = Callable[[Visit], Response]
Extra = Callable[[App], Mapping[str, Any]]


def route(
    app: App,
    extra: Extra,
    path: str,
    handler: Handler,
    role: Role = "look",
    *,
    writes: bool = False,
) -> Route:
    """Return the route of a handler, which works in a thread. ``role``: who may use it."""

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(_handle, app, extra, handler, role, request)

    return Route(path, endpoint, methods=["POST"] if writes else ["GET"])


def _handle(app: App, extra: Extra, handler: Handler, role: Role, request: Request) -> Response:
    session: Session = request.state.session
    form: Mapping[str, str] = request.state.form
    back = own_path(form.get("back") or _own_part(request.headers.get("referer", "")))
    visit = Visit(
        app=app,
        session=session,
        path=request.url.path,
        parts=request.path_params,
        query=request.query_params,
        form=form,
        back=back,
        is_refresh="x-refresh" in request.headers,
        is_from_elsewhere=request.headers.get("sec-fetch-site") in ("cross-site", "same-site"),
        extra=extra,
    )
    try:
        if not may(session.role, role):
            raise _RoleError(f"your role is {session.role!r}, and this needs {role!r}")
        return handler(visit)
    except RunnerError as error:
        if request.method == "POST" and not isinstance(error, UnreachableError | _RoleError):
            visit.tell("bad", str(error))
            return visit.go_back()
        told = replace(visit, extra=lambda _: {"inbox": 0, "auth": ""})
        return told.page("error.html", {"words": str(error)}, _status(error))
    except Exception:
        logger.exception("a page failed: %s %s", request.method, request.url.path)
        return bare(500, "this page failed: a bug of Runner's; the log of `runner web` says more")


class _RoleError(UsageError):
    pass


def _status(error: RunnerError) -> int:
    kinds: tuple[tuple[type[RunnerError], int], ...] = (
        (_RoleError, 403),
        (NotFoundError, 404),
        (UsageError, 400),
        (UnreachableError, 503),
    )
    return next((status for kind, status in kinds if isinstance(error, kind)), 500)


def _own_part(referer: str) -> str:
    try:
        found = urlsplit(referer)
    except ValueError:
        return "/"
    return f"{found.path}?{found.query}" if found.query else found.path or "/"
