"""Patterns of hosts, names of hosts, and public addresses."""

from __future__ import annotations

import pytest

from runner.core.network import Connection, HostPattern, hint, host_name, is_public, refusal

PATTERNS = tuple(
    map(
        HostPattern.parse,
        (
            "packages.example.org",
            "*.Example.com",
            "db.internal.test:5433",
            "bücher.test",
            "api.test.:8443",
        ),
    )
)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("packages.example.org", 443),
        ("packages.example.org", 80),
        ("Packages.Example.org.", 443),
        ("a.example.com", 443),
        ("a.b.EXAMPLE.com", 80),
        ("db.internal.test", 5433),
        ("xn--bcher-kva.test", 443),
        ("BÜCHER.test", 443),
        ("api.test", 8443),
    ],
)
def test_a_host_on_the_list_may_be_reached(host: str, port: int) -> None:
    assert refusal(PATTERNS, host_name(host), port) == ""


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("example.com", 443, "list"),  # a wildcard does not cover the name itself
        ("badexample.com", 443, "list"),
        ("packages.example.org.evil.test", 443, "list"),
        ("evilpackages.example.org", 443, "list"),
        ("sub.packages.example.org", 443, "list"),
        ("packages.example.org", 22, "port"),
        ("db.internal.test", 443, "port"),
        ("api.test", 443, "port"),
    ],
)
def test_any_other_host_or_port_is_refused(host: str, port: int, words: str) -> None:
    assert words in refusal(PATTERNS, host_name(host), port)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "[::1]",
        "::1",
        "[::ffff:169.254.169.254]",
        "169.254.169.254.",
        "1.2.3.0x4",
        "",
        ".",
        "a..b",
        ".a",
        "-a.test",
        "a-.test",
        "a b",
        "a/b",
        "a\x00.test",
        "a%00.test",
        "*.test",
        "a" * 64 + ".test",
        "a." * 127 + "test",
        "u@h.test",
        "h.test\r\nX: y",
        "\u2488.test",
        "a\u3002\u3002b",
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is an IP address|is not a name"):
        host_name(text)


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "*.",
        "a.*",
        "*.*.test",
        "*a.test",
        "**.test",
        "a.test:",
        "a.test:0",
        "a.test:65536",
        "a.test:http",
        "a.test:443:443",
        "10.0.0.1",
        "*.0.0.1",
        "[::1]:443",
        "http://a.test",
        "a.test/x",
        "a.test:+80",
        "a.test:８０",
    ],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is an IP address|is not a (name|port)"):
        HostPattern.parse(text)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.9.9.9",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "192.0.0.192",
        "198.18.0.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "fe80::1",
        "fe80::1%eth0",
        "2600::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "2001::1",
        "2002:7f00:1::",
        "100::1",
        "packages.example.org",
        "1.2.3",
    ],
)
def test_an_address_that_is_not_public_is_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "151.101.0.223",
        "100.128.0.1",
        "172.32.0.1",
        "2606:4700::1111",
        "64:ff9b::808:808",
    ],
)
def test_a_public_address_is_known(address: str) -> None:
    assert is_public(address)


NOT_LISTED = "it is not on the job's list of hosts"


@pytest.mark.parametrize(
    ("hosts", "refused", "said", "words"),
    [
        (
            (),
            0,
            "curl: (6) Could not resolve host: packages.example.org",
            "This job has no network",
        ),
        ((), 0, "getaddrinfo EAI_AGAIN packages.example.org", "This job has no network"),
        ((), 0, "2 failed, 3 passed", ""),
        (
            ("packages.example.org",),
            0,
            "Temporary failure in name resolution",
            "only by the HTTP proxy",
        ),
        (("packages.example.org",), 0, "2 failed, 3 passed", ""),
        (("packages.example.org",), 1, "error", f"refused connections: n0.test:443: {NOT_LISTED}."),
        (("packages.example.org",), 5, "error", f"n2.test:443: {NOT_LISTED}; and 2 more."),
        (None, 0, "Could not resolve host: packages.example.org", ""),
    ],
)
def test_a_failed_call_is_told_why_it_reached_no_host(hosts, refused, said, words):
    made = [Connection("packages.example.org", 443, 1.0)]
    made += [Connection(f"n{n}.test", 443, 2.0, "refused", NOT_LISTED) for n in range(refused)] * 2
    told = hint(hosts, made, said)
    assert words in told
    assert bool(words) == bool(told)


def test_connections_that_are_alike_are_one_with_their_sums():
    one = Connection("packages.example.org", 443, 1.0, sent=2, received=3)
    assert one + Connection(
        "packages.example.org", 443, 9.0, sent=20, received=30, count=4
    ) == Connection("packages.example.org", 443, 1.0, sent=22, received=33, count=5)
