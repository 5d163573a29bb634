"""The seccomp filter of a sandbox: a program for the kernel that refuses system calls which no build
needs and which attackers do. All others are allowed.

The program is classic BPF, https://www.kernel.org/doc/html/latest/userspace-api/seccomp_filter.html.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

# Numbers of system calls on (x86_64, aarch64); None where there is no such call.
_REFUSED: dict[str, tuple[int | None, int]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_IOCTL = (16, 29)
_SOCKET = (41, 198)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # type into the terminal
_AF_VSOCK = 40  # the host of a virtual machine: no network namespace holds it
_AF_UNIX, _AF_NETLINK = 1, 16  # the families that stay on this machine
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_…
_X32 = 0x40000000  # calls of x86_64's other ABI have numbers from here on

# https://github.com/torvalds/linux/blob/master/include/uapi/linux/bpf_common.h
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_NO_SUCH_FAMILY = 0x00050000 | errno.EAFNOSUPPORT
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24  # offsets in struct seccomp_data


def seccomp_program(machine: str, *, network: bool = True) -> bytes | None:
    """Return the filter for a machine (``platform.machine()``), None if there is none for it. Without
    ``network`` there are no sockets of a family that could leave the machine."""
    if machine not in _ARCHITECTURES:
        return None
    at = 0 if machine == "x86_64" else 1
    numbers = [number for each in _REFUSED.values() if (number := each[at]) is not None]
    # (code, value, how many to skip if true, if false). A 32-bit program has other numbers: refused.
    start = [
        (_LOAD, _ARCHITECTURE, 0, 0),
        (_EQUAL, _ARCHITECTURES[machine], 1, 0),
        (_RETURN, _REFUSE, 0, 0),
        (_LOAD, _NUMBER, 0, 0),
    ]
    if machine == "x86_64":
        start += [(_AT_LEAST, _X32, 0, 1), (_RETURN, _REFUSE, 0, 0)]
    refused = [
        line for number in numbers for line in ((_EQUAL, number, 0, 1), (_RETURN, _REFUSE, 0, 0))
    ]
    # The kernel reads the lower half of the arguments, so that alone is compared.
    by_argument = _if_argument(_IOCTL[at], _ARGUMENT_1, (_TIOCSTI, _TIOCLINUX))
    if network:
        by_argument += _if_argument(_SOCKET[at], _ARGUMENT_0, (_AF_VSOCK,))
    else:
        families = (_AF_UNIX, _AF_NETLINK)
        by_argument += _if_argument(
            _SOCKET[at], _ARGUMENT_0, families, found=_ALLOW, otherwise=_NO_SUCH_FAMILY
        )
    lines = [*start, *refused, *by_argument, (_RETURN, _ALLOW, 0, 0)]
    return b"".join(struct.pack("=HBBI", code, yes, no, value) for code, value, yes, no in lines)


def _if_argument(
    number: int, offset: int, values: Sequence[int], found: int = _REFUSE, otherwise: int = _ALLOW
) -> list[tuple[int, int, int, int]]:
    """Return the lines that end a call in one of two ways, by whether an argument is one of the values."""
    checks = [line for value in values for line in ((_EQUAL, value, 0, 1), (_RETURN, found, 0, 0))]
    body = [(_LOAD, offset, 0, 0), *checks, (_RETURN, otherwise, 0, 0)]
    return [(_EQUAL, number, 0, len(body)), *body]
