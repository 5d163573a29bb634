"""Hosts that a job may reach, addresses that it may not, and connections that its calls made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal

DEFAULT_PORTS = frozenset({80, 443})

_LONGEST_NAME = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Resolvers take such a last label for a part of an address: 127.1, 0x7f000001, 2130706433.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        # https://www.iana.org/assignments/iana-ipv4-special-registry, and multicast
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # Azure's host of a virtual machine, at a public address
        # https://www.iana.org/assignments/iana-ipv6-special-registry, within 2000::/3
        *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
)
_GLOBAL_UNICAST = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")  # the last 32 bits are an IPv4 address


ConnectionOutcome = Literal[
    "allowed",
    "refused",  # by the job's list, or because of its address
    "failed",  # allowed, and not reached
]


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection that a call made or asked for; many alike are one."""

    host: str  # as asked for if it is no name; empty if a call asked for too many
    port: int  # 0: not a number of a port
    at: float  # seconds since the epoch; of many, the first
    outcome: ConnectionOutcome = "allowed"
    why: str = ""  # … it was refused or failed
    sent: int = 0  # bytes that the host was sent
    received: int = 0
    count: int = 1

    def __add__(self, other: Connection) -> Connection:
        """Two that are alike as one."""
        sent, received = self.sent + other.sent, self.received + other.received
        return replace(self, sent=sent, received=received, count=self.count + other.count)


# Messages of programs without a network, or of ones that did not ask the proxy.
_UNREACHED = re.compile(
    r"could not resolve|couldn't resolve|name resolution|name or service not known|getaddrinfo"
    r"|ENOTFOUND|EAI_AGAIN|network is unreachable|no such host|unable to resolve|dns error"
    r"|address family not supported|EAFNOSUPPORT",
    re.IGNORECASE,
)
_MOST_NAMED = 3


def hint(
    hosts: Sequence[str] | None,
    connections: Sequence[Connection],
    said: str,
    *,
    loopback: bool = True,
) -> str:
    """Return a line that tells the model why a failed call did not reach a host; empty if it has said
    nothing of a network.

    Args:
        hosts: those that the job may reach, as in ``Sandbox.network``.
        said: what the call has written.
        loopback: the call has a network of its own.
    """
    refused = {
        f"{each.host}:{each.port}": each.why for each in connections if each.outcome == "refused"
    }
    named = "; ".join(f"{where}: {why}" for where, why in [*refused.items()][:_MOST_NAMED])
    more = f"; and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
    if refused:
        return f"[sandbox] network of this job refused connections: {named}{more}."
    if hosts is None or not _UNREACHED.search(said):
        return ""
    if not hosts:
        but = "nothing but localhost" if loopback else "nothing on this host, localhost neither"
        return f"This job has no network ([sandbox] network): commands reach {but}."
    return "Hosts are reached only by the HTTP proxy that the variable HTTPS_PROXY names."


@dataclass(frozen=True, slots=True)
class HostPattern:
    """A host that may be reached, or all names below one."""

    name: str  # as ``host_name`` returns it
    below: bool  # the names below it, and not it itself
    ports: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Parse ``name``, ``*.name``, ``name:port`` or ``*.name:port``. Raises ``ValueError``."""
        written, colon, port = text.partition(":")
        ports = frozenset({port_number(port)}) if colon else DEFAULT_PORTS
        below = written.startswith("*.")
        return cls(host_name(written[2:] if below else written), below, ports)

    def covers(self, name: str) -> bool:
        """True if it stands for a name, which is as ``host_name`` returns it."""
        return name.endswith(f".{self.name}") if self.below else name == self.name


def host_name(text: str) -> str:
    """Return the name of a host in lower case, in ASCII (IDNA) and without the dot at its end. Raises
    ``ValueError`` if it is no name: an address is none, however it is written."""
    name = text.removesuffix(".").lower()
    if not name.isascii():
        import idna  # here, because every command would load its tables

        try:
            name = idna.encode(name, uts46=True).decode()
        except idna.IDNAError as error:
            raise ValueError(f"{text!r} is not a name of a host: {error}") from error
    labels = name.split(".")
    if "[" in name or ":" in name or _NUMBER.fullmatch(labels[-1]):
        raise ValueError(f"{text!r} is an IP address: name a host")
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{text!r} is not a name of a host")
    return name


def port_number(text: str) -> int:
    """Return the number of a port. Raises ``ValueError``."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 1 << 16:
        raise ValueError(f"{text!r} is not a port: ports go from 1 to 65535")
    return int(text)


def refusal(patterns: Sequence[HostPattern], name: str, port: int) -> str:
    """Return why a host's port is not to be reached, in a few words; empty if it may be."""
    covering = [pattern for pattern in patterns if pattern.covers(name)]
    if any(port in pattern.ports for pattern in covering):
        return ""
    part = "its port" if covering else "it"
    return f"{part} is not on the job's list of hosts"


def is_public(address: str) -> bool:
    """True if an IP address is one of the public internet: not private, loopback, link-local,
    multicast or reserved, nor another spelling of such an IPv4 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        elif parsed in _NAT64:
            parsed = IPv4Address(int(parsed) & 0xFFFFFFFF)
        elif parsed.scope_id is not None or parsed not in _GLOBAL_UNICAST:
            return False
    return not any(parsed in network for network in _NOT_PUBLIC)
