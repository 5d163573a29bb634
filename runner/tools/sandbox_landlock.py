"""Landlock, where bubblewrap may make no namespaces: a process restricts itself before it becomes the
command, and with it all that it starts.

Landlock only allows, by folder with all that is in it. So a hidden path is held by allowing everything
beside it, and nothing can be denied in a folder that is writable: a file that is made there is in it.
https://docs.kernel.org/userspace-api/landlock.html

Keepers are forked with this module in them: it imports little, and only the standard library.
"""

from __future__ import annotations

import os
import struct
from functools import cache

from runner.tools.sandbox_seccomp import seccomp_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterable, Iterator, Mapping

LEAST_ABI = 3  # Linux 6.2; before it, any file could be truncated
SCOPES_ABI = 6  # Linux 6.12: signals and abstract sockets
_NETWORK_ABI, _DEVICES_ABI = 4, 5

# <linux/landlock.h>
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every machine
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_FILES, _IOCTL_DEVICES = (1 << 15) - 1, 1 << 15
_MAKE_DEVICES = 1 << 6 | 1 << 11
_TRUNCATE = 1 << 14
_TCP = 1 | 2  # bind, connect
_SCOPES = 1 | 2  # abstract sockets, signals
# <linux/prctl.h>, <linux/capability.h>
_SECCOMP, _FILTER, _BOUND, _DROP_BOUND, _NO_NEW_PRIVILEGES = 22, 2, 23, 24, 38
_CAPABILITIES_VERSION = 0x20080522

_READ = _EXECUTE | _READ_FILE
_WRITE = _ALL_FILES & ~_MAKE_DEVICES
_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
HIDDEN = ("private", "hide", "deny")  # kinds of a plan


def grants(plan: Mapping[str, str], tmp: str) -> list[tuple[int, str]]:
    """Return what Landlock has to allow for a plan of ``runner.tools.sandbox_mounts``: access and path.
    Names of files can be listed everywhere.

    Args:
        plan: kinds by path; what is in a writable folder is writable.
        tmp: the folder for the process's temporary files.
    """
    writable = [path for path, kind in plan.items() if kind in ("write", "pin")]
    hidden = {path for path, kind in plan.items() if kind in HIDDEN}
    hidden = {path for path in hidden if {path, *folders_above(path)}.isdisjoint(writable)}
    parents = {folder for path in hidden for folder in folders_above(path)}
    readable = ["/", *(path for path, kind in plan.items() if kind == "read")]
    found = [(_READ_DIR, "/"), *((_WRITE, path) for path in (*writable, tmp))]
    found += [(_READ_FILE | _WRITE_FILE | _TRUNCATE, path) for path in _DEVICES]
    return found + [(_READ, path) for top in readable for path in _beside(top, hidden, parents)]


def _beside(top: str, hidden: set[str], parents: set[str]) -> Iterator[str]:
    """Yield paths that together are all of a folder but the hidden ones, links left out."""
    if top not in parents:
        yield top
        return
    try:
        entries = [entry.path for entry in os.scandir(top) if not entry.is_symlink()]
    except OSError:  # it is gone, or not for us
        return
    for path in entries:
        if path not in hidden:
            yield from _beside(path, hidden, parents)


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders above an absolute path, the nearest first."""
    while path != "/":
        path = path[: path.rindex("/")] or "/"  # takes a fifth of the time of dirname
        yield path


def abi() -> int:
    """Return the version of Landlock. Raises ``OSError`` if the kernel has none."""
    return _call(_CREATE_RULESET, None, 0, 1)


def restrict(version: int, network: bool, allowed: Iterable[tuple[int, str]]) -> None:
    """Restrict this thread and all that it starts, for ever. Raises ``OSError`` if that cannot be done.

    Args:
        version: of Landlock, 3 or higher.
        network: without it, there are only sockets that do not leave this machine.
        allowed: access to paths; see ``grants``.
    """
    program = seccomp_program(os.uname().machine, network=network)
    if program is None or version < LEAST_ABI:
        raise OSError("Landlock is too old, or there is no filter of system calls for this machine")
    files = _ALL_FILES | (_IOCTL_DEVICES if version >= _DEVICES_ABI else 0)
    tcp = _TCP if not network and version >= _NETWORK_ABI else 0
    scopes = _SCOPES if version >= SCOPES_ABI else 0
    ruleset = _call(_CREATE_RULESET, struct.pack("=QQQ", files, tcp, scopes), 24, 0)
    for access, path in allowed:
        try:
            folder = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access & files, folder), 0)
        os.close(folder)
    _prctl(_NO_NEW_PRIVILEGES, 1)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    _drop_capabilities()
    _filter(program)


def _drop_capabilities() -> None:
    """Drop all capabilities, and for root those that a program would get back."""
    number = 0
    while os.geteuid() == 0 and (is_kept := _libc().prctl(_BOUND, number, 0, 0, 0)) >= 0:
        if is_kept:
            _prctl(_DROP_BOUND, number)
        number += 1
    none = struct.pack("=Ii", _CAPABILITIES_VERSION, 0), bytes(24)
    _checked(_libc().capset(*none), "capset()")


def _filter(program: bytes) -> None:
    import ctypes

    lines = ctypes.create_string_buffer(program, len(program))
    _prctl(_SECCOMP, _FILTER, struct.pack("@HP", len(program) // 8, ctypes.addressof(lines)))


def _prctl(option: int, first: int, second: int | bytes = 0) -> None:
    _checked(_libc().prctl(option, *_words(first, second, 0, 0)), f"prctl({option})")


def _call(number: int, *arguments: int | bytes | None) -> int:
    return _checked(_libc().syscall(*_words(number, *arguments)), "Landlock")


def _words(*arguments: int | bytes | None) -> list[object]:
    import ctypes

    return [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]


def _checked(result: int, name: str) -> int:
    import ctypes

    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name} cannot be used: {os.strerror(code)}")
    return result


@cache
def _libc() -> ctypes.CDLL:
    import ctypes  # here, because workers load this module and need none of it

    return ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Print the version of Landlock, if a process can restrict itself here."""
    version = abi()
    restrict(version, False, [(_READ_DIR, "/")])
    os.write(1, b"%d" % version)
