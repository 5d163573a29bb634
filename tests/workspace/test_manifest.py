from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.workspace.git import GitError
from runner.workspace.snapshot_store import Large, Manifest, ancestors

FORBIDDEN = (b"", b".", b"..", b".git")
parts = st.binary(min_size=1, max_size=6).filter(
    lambda part: part not in FORBIDDEN and not {0, 47} & set(part)
)
paths = st.lists(parts, min_size=1, max_size=3).map(b"/".join)
large = st.builds(Large, paths, st.integers(0, 1 << 50), st.text("0123456789abcdef"), st.booleans())
manifests = st.builds(
    Manifest, st.frozensets(paths), st.frozensets(large), st.frozensets(paths), st.text()
)


@pytest.mark.slow
@given(manifests)
def test_what_is_written_is_read_again(manifest: Manifest) -> None:
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


@pytest.mark.slow
@given(manifests)
def test_the_same_manifest_is_the_same_bytes(manifest: Manifest) -> None:
    again = Manifest(
        frozenset(sorted(manifest.directories, reverse=True)),
        frozenset(list(manifest.large)[::-1]),
        manifest.unrecorded,
        manifest.note,
    )
    assert again.to_bytes() == manifest.to_bytes()


def test_nothing_to_say_is_no_file() -> None:
    assert Manifest().to_bytes() == b""
    assert Manifest(note="x").to_bytes() != b""


@pytest.mark.parametrize(
    "path", ["../out", "/etc", "a//b", "a/./b", "a/.git", ".git/hooks/x", "", "a\0b", "a/"]
)
def test_a_path_that_leads_out_is_refused(path: str) -> None:
    for key, value in (
        ("directories", [path]),
        ("unrecorded", [path]),
        ("large", [{"path": path, "size": 1, "sha256": "", "executable": False}]),
    ):
        with pytest.raises(GitError, match="is not the manifest of a snapshot"):
            Manifest.from_bytes(json.dumps({**written(), key: value}).encode())


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"\xff", b"{}", b"null", b'{"version": 1}', b'{"version": 1, "directories": 3}'],
)
def test_another_file_of_that_name_is_no_manifest(content: bytes) -> None:
    with pytest.raises(GitError, match="the tree was not recorded by Runner"):
        Manifest.from_bytes(content)


def test_a_newer_manifest_is_refused() -> None:
    with pytest.raises(GitError, match="made by a newer Runner"):
        Manifest.from_bytes(json.dumps({**written(), "version": 2}).encode())


def test_ancestors_are_all_folders_above() -> None:
    assert ancestors([b"a/b/c", b"a/d", b"e"]) == {b"a", b"a/b"}


def written() -> dict[str, object]:
    content = Manifest(note="x").to_bytes()
    found: dict[str, object] = json.loads(content)
    return found
