"""A strict Messages API on this machine, over real HTTP: the only fake that Runner's tests have.

It refuses what the real API refuses (``rules``), plays replies that a test or a script gives
(``replies``, ``script``), and breaks in every way that a network, a proxy or the API can
(``Break``). In a test: ``with MessagesServer(handler) as server: …``; as a process of its own, which
outlives its client: ``python -m tests.messages_api --script FILE``.
"""

from tests.messages_api.rate_limits import RateLimits
from tests.messages_api.replies import Break, Reply, text, thinking, tool_use
from tests.messages_api.script import Script, echo_tools
from tests.messages_api.server import API_KEY, MessagesServer, Received

__all__ = [
    "API_KEY",
    "Break",
    "MessagesServer",
    "RateLimits",
    "Received",
    "Reply",
    "Script",
    "echo_tools",
    "text",
    "thinking",
    "tool_use",
]
