"""The first process in a sandbox that has a proxy: opens the proxy's port there, hands it to the worker
(``runner.tools.proxy``) and becomes the command.

It is run as a file, for each call, with builtin modules only: that takes a third of the time that
``import socket`` would.
"""

from __future__ import annotations

import _socket
import posix
import sys

_MOST_WAITING = 128
_HERE = "localhost,127.0.0.1,::1"


def main() -> None:
    """The arguments are the path of the worker's socket, and a command that begins with a path."""
    path, *command = sys.argv[1:]
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(_MOST_WAITING)
    worker = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    worker.connect(path)
    descriptor = listener.fileno().to_bytes(4, sys.byteorder)
    worker.sendmsg([b"l"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor)])
    told = variables(listener.getsockname()[1])
    environment = posix.environ | {name.encode(): each.encode() for name, each in told.items()}
    posix.execve(command[0], command, environment)


def variables(port: int) -> dict[str, str]:
    """Return the environment that leads programs to a proxy at a port."""
    proxy = f"http://127.0.0.1:{port}"
    told = {"NO_PROXY": _HERE, "no_proxy": _HERE, "NODE_USE_ENV_PROXY": "1"}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        told |= {name: proxy, name.lower(): proxy}
    return told


if __name__ == "__main__":
    main()
