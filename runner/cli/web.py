"""``web`` and ``users``: the pages in a browser, and who may log in to them."""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from runner.app import handle, people
from runner.app.humanize import cell, moment
from runner.cli.log import log_to_stderr
from runner.cli.options import (
    changing,
    json_option,
    log_format_option,
    name_of,
    open_app,
    with_app,
    with_settings,
)
from runner.cli.terminal import note, say, say_json, say_listing
from runner.core.run import LONGEST_NAME, Author
from runner.errors import UsageError
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.web.safety import Access

_PORT = 8484
_SECRET = "RUNNER_WEB_PROXY_SECRET"
_SHORTEST_SECRET = 32


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDR", help="Address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=_PORT,
    show_default=True,
    help="Port to listen on; 0: any free one.",
)
@click.option(
    "--as",
    "person",
    metavar="NAME",
    help="Who acts in the browser, for the record (default: the user of the operating system).",
)
@click.option(
    "--auth",
    type=click.Choice(["users", "proxy"]),
    help="How people of `runner users` log in: by token, or through a proxy.",
)
@click.option(
    "--url",
    metavar="URL",
    help="The address that browsers use (default: RUNNER_WEB_URL, else http://ADDR:PORT).",
)
@click.option(
    "--proxy-header",
    default="X-Forwarded-User",
    show_default=True,
    metavar="NAME",
    help="The header in which the proxy of --auth proxy names the person.",
)
@log_format_option
@with_settings
def web(
    settings: Settings,
    host: str,
    port: int,
    person: str | None,
    auth: str | None,
    url: str | None,
    proxy_header: str,
) -> None:
    """Show jobs, runs and waiting questions in a browser.

    Prints a link that works once, for one browser on this machine. Whoever opens it may do all that
    you may. To let other people in, use --auth users (see `runner users add`), or --auth proxy
    behind a proxy that sends RUNNER_WEB_PROXY_SECRET as X-Runner-Proxy-Secret. Needs `pip install
    '.[web]'` in Runner's folder.

    \b
    Example:
      runner web
      runner web --host 0.0.0.0 --auth users --url https://runner.example.com
    """
    server = _server()
    url = url or settings.web_url
    log_to_stderr(settings, logging.INFO)
    name = name_of(person)
    if auth is None and not _is_loopback(host):
        raise UsageError(
            f"{host} can be reached by others, and approving runs code: let people log in with "
            "--auth users or --auth proxy"
        )
    listener = server.listen(host, port)
    with listener, open_app(settings, create=True) as app:
        access = _access(host, listener.getsockname()[1], name, auth, url, proxy_header)
        if auth is not None and not people.list_people(app, removed=False):
            raise UsageError("nobody can log in yet: add a person with `runner users add NAME`")
        server.serve(app, access, listener, _say_link)


def _say_link(link: str) -> None:
    say(f"open {link}")
    sys.stdout.flush()


def _server() -> Any:
    try:
        from runner.web import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise UsageError(
            f"{error.name} is not installed: run `pip install '.[web]'` in Runner's folder"
        ) from error
    return server


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _access(
    host: str, port: int, person: str, auth: str | None, url: str | None, proxy_header: str
) -> Access:
    from runner.web.safety import Access

    given = urlsplit(url or f"http://{_in_url(host)}:{port}")
    if given.scheme not in ("http", "https") or not given.hostname or given.path.strip("/"):
        raise UsageError(f"--url {url!a} is not an address such as https://runner.example.com")
    origin, hosts = f"{given.scheme}://{given.netloc}".lower(), {given.netloc.lower()}
    if url is None and _is_loopback(host):
        hosts |= {f"{each}:{port}" for each in ("localhost", "127.0.0.1", "[::1]")}
    elif url is None:
        raise UsageError("give --url, the address that browsers use")
    secret = os.environ.get(_SECRET, "")
    if auth == "proxy" and len(secret) < _SHORTEST_SECRET:
        raise UsageError(
            f"{_SECRET} must be a secret of {_SHORTEST_SECRET} or more characters, which the proxy "
            "sends as X-Runner-Proxy-Secret"
        )
    return Access(
        hosts=frozenset(hosts),
        origins=frozenset({origin} if url else {f"http://{each}" for each in hosts}),
        home=origin,
        auth="local" if auth is None else "proxy" if auth == "proxy" else "users",
        person=person,
        cookie=f"{'__Host-' if given.scheme == 'https' else ''}runner-{port}",
        is_secure=given.scheme == "https",
        proxy_header=proxy_header.lower(),
        proxy_secret=secret,
    )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@click.group()
def users() -> None:
    """Let people log in to `runner web --auth`, each with a role.

    Role `look` may read everything; `answer` may also approve and deny; `operate` may also cancel
    and retry runs and send them messages.

    \b
    Example:
      runner users add lena --role answer
    """


@users.command("add")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(people.ROLES),
    default="look",
    show_default=True,
    help="What the person may do.",
)
@click.option(
    "--no-token", is_flag=True, help="Make no token: a proxy logs the person in (--auth proxy)."
)
@changing
def add(
    app: handle.App, name: str, role: Any, no_token: bool, author: Author, as_json: bool
) -> None:
    """Let a person log in, and print a token. Runner stores only the token's hash.

    \b
    Example:
      runner users add lena --role answer
    """
    if len(name) > LONGEST_NAME:
        raise UsageError(f"the name is longer than {LONGEST_NAME} characters")
    token = people.add(app, name_of(name), role, author, with_token=not no_token)
    if as_json:
        say_json({"name": name, "role": role, "token": token})
    elif token is not None:
        say(token)
        note(f"{cell(name)} logs in with it; it is not stored and not shown again")


@users.command("list")
@click.option("--all", "removed", is_flag=True, help="Include removed people.")
@json_option
@with_app
def list_(app: handle.App, removed: bool, as_json: bool) -> None:
    """List who can log in. The JSON of each person includes who changed the entry, and how.

    \b
    Example:
      runner users list
    """
    heads = ("name", "role", "since", "removed")[: 4 if removed else 3]

    def row(each: Mapping[str, Any]) -> Sequence[str]:
        times = (moment(each[name]) for name in ("created_at", "removed_at"))
        return (each["name"], each["role"], *times)[: len(heads)]

    say_listing(people.list_people(app, removed=removed), as_json, heads, row)


@users.command("remove")
@click.argument("name")
@changing
def remove(app: handle.App, name: str, author: Author, as_json: bool) -> None:
    """End a person's access at once.

    \b
    Example:
      runner users remove lena
    """
    people.remove(app, name, author)
    if as_json:
        say_json({"name": name})
