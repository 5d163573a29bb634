"""MCP servers: those that a worker's runs use, calls of their tools, and what tools they have."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.core.conversation import Tool, ToolOutcome, ToolResult
from runner.core.mcp import McpServer, Usable, source_parts, usable
from runner.core.media import Media, shown_text
from runner.core.run import Lease, Outcome
from runner.core.text import plain
from runner.errors import HostFaultError, HostLacks
from runner.ports import Claimed, Interrupt, NoOutcome, Observer, ToolCall
from runner.settings import tool_environment
from runner.tools.file_access import ToolFailure
from runner.tools.host import MOST_OUTPUT_BYTES, Ended, Start, Starter, ToolHost, boot_needs
from runner.tools.media import MOST_SHOWN, Opener, decoded_image
from runner.tools.output import present

if TYPE_CHECKING:
    from runner.tools.mcp_session import Session
    from runner.tools.sandbox import Contained

logger = logging.getLogger(__name__)

MISSING = "the extra mcp is not installed here: `pip install '.[mcp]'` in Runner's folder"
IDLE_SECONDS = 30.0  # that a job's server outlives its last run here
_LONGEST_PAUSE = 60.0
_LOOK_SECONDS = 0.1
_SHORTEST_SECRET = 6  # characters of a variable's value that is looked for in texts
_LAST_WORDS = 2_000  # characters of a server's stderr in an error


class McpServers(Observer):
    """The MCP servers that the runs of this worker use, each started at its first call.

    Args:
        environment: returns the variables that servers' texts may name.
        path: of the tools, where a server's command is looked for.
        job_of: returns the id of a run's job.
        schema_problem: returns why the API takes no such ``input_schema``, or None.
    """

    def __init__(
        self,
        environment: Callable[[], Mapping[str, str]],
        path: str,
        job_of: Callable[[str], str],
        schema_problem: Callable[[Any], str | None],
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._environment = environment
        self._path = path
        self._job_of = job_of
        self._schema_problem = schema_problem
        self.idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._held: dict[str, str] = {}  # runs in hand, with their jobs
        self._servers: dict[tuple[str, str], _Server] = {}  # by job or run, and name

    def call(
        self, call: ToolCall, inside: Contained, host: Starter, interrupt: Interrupt
    ) -> ToolResult:
        """Call a tool of a server. ``inside`` starts the server's process if there is none; ``host`` starts
        the processes that open its images. Raises ``ToolFailure``, ``HostFaultError`` and
        ``Interrupted``."""
        server, parts = call.server, source_parts(call.tool.source)
        if server is None or parts is None:
            raise ToolFailure(f"{call.tool.name} is of an MCP server that its job does not have")
        owner = call.run_id
        if server.scope == "job":
            owner = self._held.get(call.run_id) or self._job_of(call.run_id)
        with self._lock:
            found = self._servers.get((owner, server.name))
            if found is None:
                found = _Server(server, owner, self._environment(), self._path)
                self._servers[owner, server.name] = found
        return found.call(call, parts[1], inside, host, interrupt)

    def listed(self, run_id: str, *, again: bool) -> dict[str, Usable]:
        """Return the tools of a run's servers that have changed theirs; see ``runner.ports.Tools``."""
        owners = run_id, self._held.get(run_id)
        with self._lock:
            mine = [server for (owner, _), server in self._servers.items() if owner in owners]
        found = {server.name: server.listed(self._schema_problem, again=again) for server in mine}
        return {name: listed for name, listed in found.items() if listed is not None}

    def claimed(self, claimed: Claimed) -> None:
        with self._lock:
            self._held[claimed.lease.run_id] = claimed.job_id

    def released(self, lease: Lease, outcome: Outcome | NoOutcome) -> None:
        """End the run's own servers; and those of its job if no run of it is in hand for a while."""
        with self._lock:
            job_id = self._held.pop(lease.run_id, None)
            is_last = job_id not in self._held.values()
            is_served = any(owner == job_id for owner, _ in self._servers)
            own = self._taken(lease.run_id)  # the next attempt opens its own
        if own:
            threading.Thread(target=_end, args=(own,), daemon=True).start()
        if is_last and is_served:
            timer = threading.Timer(self.idle_seconds, self._close, (job_id, True))
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        """End all servers."""
        for owner in {owner for owner, _ in list(self._servers)}:
            self._close(owner)

    def _close(self, owner: str, only_idle: bool = False) -> None:
        with self._lock:
            if only_idle and owner in self._held.values():
                return
            servers = self._taken(owner)
        _end(servers)

    def _taken(self, owner: str) -> list[_Server]:
        """Take an owner's servers out of those that calls find. The lock is held."""
        keys = [key for key in self._servers if key[0] == owner]
        return [self._servers.pop(key) for key in keys]


def _end(servers: Sequence[_Server]) -> None:
    for server in servers:
        server.close()


class _Server:
    """One server. Its session is replaced when it was lost, after growing pauses."""

    def __init__(
        self, server: McpServer, owner: str, environment: Mapping[str, str], path: str
    ) -> None:
        self._written = server
        self._owner = owner
        self._environment = environment
        self._path = path
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._losses = 0  # in a row, without a result between them
        self._not_before = 0.0  # by the monotonic clock
        self._found: dict[str, str] = {}  # values of variables, by name
        self._containment: str | None = None
        self._listed: tuple[Sequence[Any], Usable] = (), ((), {})  # the SDK's list and ours

    def call(
        self, call: ToolCall, tool: str, inside: Contained, host: Starter, interrupt: Interrupt
    ) -> ToolResult:
        from runner.tools.mcp_session import CallFailed, CallTimedOut, SessionForgotten, SessionLost

        name, copy = call.tool.name, call.surroundings.outputs / f"{call.id}.txt"
        until = time.monotonic() + call.timeout
        refused = False
        while True:
            session = self._open_session(call, inside, until, interrupt)
            inside.containment = self._containment
            try:
                left = max(_LOOK_SECONDS, until - time.monotonic())
                result = session.call(tool, call.input, left, interrupt)
            except SessionLost as lost:
                self._lose(session)
                again = call.tool.read_only
                if isinstance(lost, SessionForgotten):
                    again, refused = again or not refused, True
                if again and time.monotonic() < until:
                    continue
                why = self._told(str(lost))
                return _unknown(f"The MCP server {self._written.name} was lost in this call: {why}")
            except CallTimedOut:
                raise ToolFailure(
                    f"{name} did not answer in {call.timeout:g} s and was cancelled. It may have "
                    "taken effect in part or in whole; check before doing it again.",
                    "timed_out",
                ) from None
            except CallFailed as error:
                raise ToolFailure(f"{name}: {self._told(str(error))}") from error
            self._losses = 0
            rendered, media = _rendered(result, tool, Opener.of(call, host, interrupt))
            printed = self._told(rendered).encode("utf-8", "replace")
            kept = printed[:MOST_OUTPUT_BYTES]
            content, output = present(kept, copy, cut=len(printed) > len(kept))
            outcome: ToolOutcome = "failed" if result.is_error else "succeeded"
            return ToolResult(content, outcome, output, media=media)

    @property
    def name(self) -> str:
        return self._written.name

    def listed(self, schema_problem: Callable[[Any], str | None], *, again: bool) -> Usable | None:
        """Return the tools; None without a session, or if they have not changed, unless ``again``."""
        if (session := self._session) is None or not (session.has_changed() or again):
            return None
        given, found = self._listed
        if given is not session.tools:
            given = session.tools
            found = usable(_described(self._written, given, self._found), schema_problem)
            self._listed = given, found
            for name, wrong in found[1].items():
                logger.warning("left out of the MCP server %s: %s %s", self.name, name, wrong)
        return found

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _open_session(
        self, call: ToolCall, inside: Contained, until: float, interrupt: Interrupt
    ) -> Session:
        """Return the session, opened if there is none. Runs that want it meanwhile wait."""
        while not self._lock.acquire(timeout=_LOOK_SECONDS):
            interrupt.check()
            if time.monotonic() > until:
                raise self._not_ready(call)
        try:
            if self._session is not None and not self._session.is_alive:
                self._drop(self._session)
            if self._session is None:
                self._pause(until, interrupt)
                self._session = self._open(call, inside, until, interrupt)
            return self._session
        finally:
            self._lock.release()

    def _pause(self, until: float, interrupt: Interrupt) -> None:
        pause = self._not_before - time.monotonic()
        if pause <= 0:
            return
        if time.monotonic() + pause > until:
            raise ToolFailure(
                f"the MCP server {self._written.name} was lost {self._losses} times in a row; it is "
                f"started again in {pause:.0f} s. Do something else first."
            )
        if interrupt.wait(pause):
            interrupt.check()

    def _open(
        self, call: ToolCall, inside: Contained, until: float, interrupt: Interrupt
    ) -> Session:
        from runner.tools.mcp_session import CallTimedOut, SessionLost

        try:
            server, self._found = self._written.expanded(self._environment)
        except LookupError as error:
            raise ToolFailure(f"the MCP server {self._written.name}: {error.args[0]}") from error
        run_id = call.run_id if server.scope == "run" else f"mcp {self._owner}"
        folder = Path(server.folder)
        if server.scope == "run":
            folder = call.surroundings.workspace or folder
        in_image = server.scope == "run" and call.sandbox is not None and call.sandbox.image
        path = None if in_image else self._path
        session = _session(server, folder, run_id, path, inside)
        try:
            session.wait_open(interrupt, until - time.monotonic())
        except CallTimedOut as error:
            session.close()
            raise self._not_ready(call) from error
        except SessionLost as lost:
            self._drop(session)
            raise ToolFailure(
                f"the MCP server {server.name} cannot be used: {self._told(str(lost))}"
            ) from lost
        except BaseException:
            session.close()
            raise
        self._containment = inside.containment
        return session

    def _lose(self, session: Session) -> None:
        if self._session is session:  # else another run has dropped it, and may open a new one
            with self._lock:
                if self._session is session:
                    self._drop(session)

    def _drop(self, session: Session) -> None:
        self._session = None
        self._losses += 1
        pause = min(_LONGEST_PAUSE, 2.0 ** (self._losses - 2)) if self._losses > 1 else 0.0
        self._not_before = time.monotonic() + pause
        session.close()

    def _not_ready(self, call: ToolCall) -> ToolFailure:
        return ToolFailure(
            f"the MCP server {self._written.name} was not ready in {call.timeout:g} s; "
            f"{call.tool.name} was not called"
        )

    def _told(self, text: str) -> str:
        return told(text, self._found)


def list_tools(servers: Sequence[McpServer]) -> dict[str, tuple[Tool, ...] | str]:
    """Return by name the tools of each server, sorted by name, or why they cannot be told. Servers
    with a command are started on this host, and ended."""
    if importlib.util.find_spec("mcp") is None:
        return {server.name: MISSING for server in servers}
    environment = tool_environment(os.environ)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(servers)) as pool:
        host = ToolHost(environment, Path(folder), watchdog_seconds=3_600.0)
        try:
            look = partial(_tools_of, host=host, path=environment.get("PATH", os.defpath))
            return dict(zip((each.name for each in servers), pool.map(look, servers), strict=True))
        finally:
            host.close()


def _tools_of(written: McpServer, host: ToolHost, path: str) -> tuple[Tool, ...] | str:
    from runner.tools.mcp_session import SessionLost

    found: dict[str, str] = {}
    try:
        server, found = written.expanded(os.environ)
        session = _session(server, Path(server.folder), "", path, host)
        try:
            session.wait_open(Interrupt())
        finally:
            session.close()
    except (ToolFailure, HostFaultError, SessionLost) as error:
        return told(str(error), found)
    except LookupError as error:
        return str(error.args[0])
    return _described(server, session.tools, found)


def _described(
    server: McpServer, listed: Iterable[Any], found: Mapping[str, str]
) -> tuple[Tool, ...]:
    """Return tools of a server as a job stores them, sorted by name; ``found`` are values of variables."""
    described = (
        Tool(
            name=server.tool_name(tool.name),
            description=plain(told(tool.description or tool.title or tool.name, found)),
            input_schema=_hidden(tool.input_schema, found),
            read_only=bool(
                server.trust_hints and tool.annotations and tool.annotations.read_only_hint
            ),
            source=server.source(tool.name),
        )
        for tool in listed
    )
    return tuple(sorted(described, key=lambda tool: tool.name))


def _session(
    server: McpServer, folder: Path, run_id: str, path: str | None, starter: Starter
) -> Session:
    """Return a new session with a server, its variables looked up.

    Args:
        path: where its command is looked for; None: in the image that it runs in.

    Raises:
        ToolFailure: its command is not on this host. HostLacks: the extra is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise HostLacks(MISSING)
    from runner.tools.mcp_session import Session

    if server.command is None:
        return Session(server)
    home = Path(server.folder)
    named = str(home / server.command) if "/" in server.command else server.command
    program = named if path is None else shutil.which(named, path=path)
    if program is None:
        raise ToolFailure(f"its command {server.command} is not on this host")
    if not folder.is_dir():
        raise ToolFailure(f"the folder that it is to run in does not exist: {folder}")
    start = Start(
        [program, *server.args],
        folder,
        run_id,
        timeout=float("inf"),
        needs=[home, *([] if path is None else [Path(program).parent, *boot_needs()])],
        variables=dict(server.env),
    )

    def begin(channel: int, interrupt: Interrupt) -> Ended:
        return starter.call(replace(start, channel=channel), interrupt)

    return Session(server, begin)


def told(text: str, found: Mapping[str, str]) -> str:
    """Return what a server said, each value of a variable replaced by its name."""
    for name, value in found.items():
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, f"${{{name}}}")
    return text


def _hidden(data: Any, found: Mapping[str, str]) -> Any:
    """Return JSON data, the texts in it as ``told`` returns them."""
    match data:
        case str():
            return told(data, found)
        case dict():
            return {told(key, found): _hidden(value, found) for key, value in data.items()}
        case list():
            return [_hidden(value, found) for value in data]
    return data


def _unknown(why: str) -> ToolResult:
    if len(why) > _LAST_WORDS:
        why = f"{why[:_LAST_WORDS]}…"
    text = f"{plain(why)}\nWhether the call took effect is not known; check before doing it again."
    return ToolResult(text, "unknown")


def _rendered(result: Any, tool: str, opener: Opener) -> tuple[str, tuple[Media, ...]]:
    """Return a result of the SDK as text (its blocks in order, then its structured content unless a block
    repeats it) and its images."""
    texts, media, opened = list[str](), list[Media](), 0
    for block in result.content:
        if block.type != "image" or opened == MOST_SHOWN:
            texts.append(_block_text(block))
            continue
        opened += 1
        image = decoded_image(block.data, f"image {opened} of {tool}", opener)
        if isinstance(image, Media):
            media.append(image)
        texts.append(shown_text([image.block()] if isinstance(image, Media) else image))
    if (structured := result.structured_content) is not None and not any(
        _is_same(text, structured) for text in texts
    ):
        texts.append(json.dumps(structured, ensure_ascii=False))
    return "\n".join(texts), tuple(media)


def _block_text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return (
                f"[{block.type}, {block.mime_type}: {len(block.data) * 3 // 4:,} bytes, not shown]"
            )
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource":
            resource = block.resource
            if (text := getattr(resource, "text", None)) is not None:
                return f"[resource {resource.uri}]\n{text}"
            return f"[resource {resource.uri}, {resource.mime_type}: not shown]"
        case other:
            return f"[{other}: not shown]"


def _is_same(text: str, structured: Any) -> bool:
    """True if a text is structured content, or the one result that the SDK's servers wrap."""
    if isinstance(structured, dict) and [*structured] == ["result"]:
        structured = structured["result"]
    try:
        return text == structured or bool(json.loads(text) == structured)
    except ValueError:
        return False
