"""The rules for what a visitor may do in a browser: an approval runs code.

``Guard`` is the outermost part of the app. It answers by itself what does not pass: a name of another
host (DNS rebinding), a visitor who is not logged in, a write that did not come from one of our own
forms. It also puts the headers on every response that keep a page from loading or running anything
that is not ours.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.app.people import Role, hash_of
from runner.logs import log_event
from runner.web.render import bare

logger = logging.getLogger(__name__)

MOST_BYTES = 1 << 20  # of a form
_IDLE_SECONDS = 12 * 3600.0
_MOST_SESSIONS = 1_000
_LOGINS, _LOGIN_SECONDS = 10, 300.0  # failed ones from one address, in so many seconds
_MOST_ADDRESSES = 10_000
_READS = ("GET", "HEAD")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

Auth = Literal["local", "users", "proxy"]


@dataclass(frozen=True, slots=True)
class Access:
    """The way in which visitors log in, and the addresses of the pages."""

    hosts: frozenset[str]  # that a request may name, with the port
    origins: frozenset[str]  # that our own forms come from
    home: str  # the origin that links name
    auth: Auth
    person: str  # the one who started it, whom ``local`` logs in
    cookie: str  # its name: browsers send a host's cookies to all of its ports
    is_secure: bool = False  # the browser reaches us over https
    proxy_header: str = ""  # of ``proxy``: has the person's name
    proxy_secret: str = field(default="", repr=False)  # and what proves that the proxy wrote it


@dataclass(slots=True)
class Session:
    person: str
    role: Role
    token_hash: str = field(default="", repr=False)  # of the login, if people have tokens
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    used_at: float = field(default_factory=time.monotonic)
    told: list[tuple[str, str]] = field(default_factory=list)  # tones and words for the next page


class Sessions:
    """The sessions of one process, by the hash of what the browser keeps of them."""

    def __init__(self) -> None:
        self._by_key: dict[str, Session] = {}
        self._links: set[str] = set()

    def link(self) -> str:
        """Return a token that opens one session."""
        token = secrets.token_urlsafe(32)
        self._links.add(hash_of(token))
        return token

    def take_link(self, token: str) -> bool:
        """Use up a token; False if it is none, or was used."""
        is_one = (key := hash_of(token)) in self._links
        self._links.discard(key)
        return is_one

    def open(self, person: str, role: Role, token_hash: str) -> str:
        """Begin a session, and return what the browser keeps of it."""
        self._drop_old()
        key = secrets.token_urlsafe(32)
        self._by_key[hash_of(key)] = Session(person, role, token_hash)
        return key

    def find(self, key: str) -> Session | None:
        self._drop_old()
        found = self._by_key.get(hash_of(key))
        if found is not None:
            found.used_at = time.monotonic()
        return found

    def of_person(self, person: str, role: Role) -> Session:
        """Return the session of a person whom a proxy vouches for in each request."""
        session = self._by_key.setdefault(f"person {person}", Session(person, role))
        session.role, session.used_at = role, time.monotonic()
        return session

    def close(self, key: str) -> None:
        self._by_key.pop(hash_of(key), None)

    def _drop_old(self) -> None:
        oldest = time.monotonic() - _IDLE_SECONDS
        kept = {key: each for key, each in self._by_key.items() if each.used_at >= oldest}
        while len(kept) >= _MOST_SESSIONS:
            del kept[min(kept, key=lambda key: kept[key].used_at)]
        self._by_key = kept


class LoginLimit:
    """Counts failed logins by address. Guessing is hopeless anyway: this keeps it from being noise."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[str, deque[float]] = {}

    def is_reached(self, address: str) -> bool:
        failed = self._failed.get(address, deque())
        while failed and failed[0] < self._clock() - _LOGIN_SECONDS:
            failed.popleft()
        return len(failed) >= _LOGINS

    def failed(self, address: str) -> None:
        if len(self._failed) >= _MOST_ADDRESSES:
            self._failed.clear()
        self._failed.setdefault(address, deque(maxlen=_LOGINS)).append(self._clock())


# Finds the person of a token's hash, or the role of a person's name; None: there is nobody.
ByToken = Callable[[str], tuple[str, Role] | None]
ByName = Callable[[str], Role | None]


class Guard:
    """Lets through what may pass, with the visitor's session in ``request.state``."""

    def __init__(
        self, inner: ASGIApp, access: Access, sessions: Sessions, by_token: ByToken, by_name: ByName
    ) -> None:
        self._inner = inner
        self._access = access
        self._sessions = sessions
        self._by_token = by_token
        self._by_name = by_name
        self._limit = LoginLimit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._inner(scope, receive, send)
            return
        request, began = Request(scope, receive), time.monotonic()

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._seal(message)
                _log(request, message["status"], time.monotonic() - began)
            await send(message)

        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            return
        if answer is not None:
            await answer(scope, receive, send_guarded)
        else:
            await self._inner(scope, receive, send_guarded)

    async def _answer(self, request: Request) -> Response | None:
        """The response to what does not pass, or to a login; None lets it through."""
        access, path = self._access, request.url.path
        if request.headers.get("host", "").lower() not in access.hosts:
            return bare(421, "unknown host name: open the address that `runner web` printed")
        if request.method not in (*_READS, "POST"):
            return bare(405, "only GET, HEAD and POST are possible")
        if path.startswith("/static/"):
            return None
        form: dict[str, str] = {}
        if request.method == "POST":
            if not self._is_own(request.headers):
                return bare(403, "this form was not sent by a page of Runner: nothing was changed")
            body = await _body(request)
            if body is None:
                return bare(413, f"more than {MOST_BYTES:,} bytes: nothing was changed")
            form = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        request.state.form = form
        if path == "/login" and access.auth != "proxy":
            return await self._login(request, form)
        session = await self._session(request)
        if session is None:
            return self._stranger(request)
        if request.method == "POST" and not hmac.compare_digest(
            form.pop("csrf", "").encode(), session.csrf.encode()
        ):
            return bare(403, "the form is out of date: go back, load it again, and try again")
        request.state.session = session
        if path == "/logout":
            return self._logout(request)
        return None

    def _is_own(self, headers: Mapping[str, str]) -> bool:
        """True if a write came from a page of ours. Browsers that support neither are no longer there."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None and site is None:
            return False
        return origin in (None, *self._access.origins) and site in (None, "same-origin")

    async def _session(self, request: Request) -> Session | None:
        access = self._access
        if access.auth == "proxy":
            given = request.headers.get("x-runner-proxy-secret", "")
            name = request.headers.get(access.proxy_header, "").strip()
            is_proxy = hmac.compare_digest(given.encode(), access.proxy_secret.encode())
            role = await run_in_threadpool(self._by_name, name) if is_proxy and name else None
            return None if role is None else self._sessions.of_person(name, role)
        key = request.cookies.get(access.cookie, "")
        session = self._sessions.find(key)
        if session is not None and access.auth == "users":
            # Who was removed is out at once, and stays so when somebody is added by the same name.
            person = await run_in_threadpool(self._by_token, session.token_hash)
            if person is None:
                self._sessions.close(key)
                return None
            session.role = person[1]
        return session

    def _stranger(self, request: Request) -> Response:
        auth = self._access.auth
        if auth == "users" and request.method in _READS and request.url.path != "/live":
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"/login?next={quote(request.url.path + query)}", 303)
        how = {
            "local": "open the link that `runner web` printed; it works once, and a page that is "
            "open gives another one",
            "users": "log in first",
            "proxy": "the proxy did not say who you are, or `runner users` does not know you",
        }
        return bare(401, how[auth])

    async def _login(self, request: Request, form: Mapping[str, str]) -> Response | None:
        """Open a session for a token: of ``local`` in the link, of ``users`` in the form."""
        is_local = self._access.auth == "local"
        address = request.client.host if request.client else ""
        token = request.query_params.get("token") if is_local else form.get("token")
        if token is None or request.method == "HEAD":
            return self._stranger(request) if is_local else None  # the form
        found: tuple[str, Role] | None = None
        if is_local:
            if self._sessions.take_link(token):
                found = self._access.person, "operate"
        else:
            found = await run_in_threadpool(self._by_token, hash_of(token))
        if found is None:
            if self._limit.is_reached(address):
                log_event(logger, "too many failed logins", address=address)
                return bare(429, "too many failed logins: wait five minutes")
            self._limit.failed(address)
            log_event(logger, "a login failed", address=address)
            if is_local:
                return bare(403, "this link was used or is old: open the one that was printed last")
            return RedirectResponse("/login?failed=1", 303)
        log_event(logger, "logged in", person=found[0], address=address)
        then = (form if form else request.query_params).get("next", "/")
        response = RedirectResponse(own_path(then), 303, {"referrer-policy": "no-referrer"})
        response.set_cookie(
            self._access.cookie,
            self._sessions.open(*found, hash_of(token)),
            path="/",
            httponly=True,
            samesite="lax",
            secure=self._access.is_secure,
        )
        return response

    def _logout(self, request: Request) -> Response:
        self._sessions.close(request.cookies.get(self._access.cookie, ""))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(self._access.cookie, path="/")
        return response

    def _seal(self, message: Message) -> None:
        """Add the headers that are on every response, and keep pages out of caches."""
        own = {name for name, _ in message["headers"]}
        added = {"cache-control": "no-store", **HEADERS}
        if self._access.is_secure:
            added["strict-transport-security"] = "max-age=31536000"
        message["headers"] = [
            *message["headers"],
            *((n.encode(), v.encode()) for n, v in added.items() if n.encode() not in own),
        ]


def own_path(text: str) -> str:
    """Return a path on this site that a link or a form names; the first page for anything else."""
    is_own = text.startswith("/") and not text.startswith("//") and "\\" not in text
    return text if is_own and text.isprintable() else "/"


async def _body(request: Request) -> bytes | None:
    """The body of a request; None if it is too long."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MOST_BYTES:
            return None
    return bytes(found)


def _log(request: Request, status: int, seconds: float) -> None:
    """Log writes and refusals, without what follows the ``?``: a token may be there."""
    if request.method in _READS and status < 400:
        return
    session = cast("Session | None", getattr(request.state, "session", None))
    fields = {"method": request.method, "path": request.url.path, "status": status}
    by = {} if session is None else {"person": session.person}
    log_event(logger, "request", **fields, **by, seconds=round(seconds, 3))
