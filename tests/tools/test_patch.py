"""The patch that hooks are told of a change to a file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from runner.tools.files import MOST_PATCHED_BYTES, change_of

CHANGES = {
    "a line": (b"a\nb\nc\n", b"a\nB\nc\n"),
    "far apart": (b"".join(b"%d\n" % n for n in range(40)), b"x\n" + b"7\n" * 5 + b"y\n"),
    "added at the end": (b"a\n", b"a\nb\nc\n"),
    "removed at the start": (b"a\nb\nc\nd\ne\n", b"c\nd\ne\n"),
    "no newline any more": (b"a\nb\n", b"a\nb"),
    "a newline now": (b"a\nb", b"a\nb\n"),
    "same lines twice": (b"a\na\na\n", b"a\na\n"),
    "form feeds": (b"a\x0cb\r\nc\n", b"a\x0cB\r\nc\n"),
    "emptied": (b"a\nb\n", b""),
    "filled": (b"", b"a\nb\n"),
}


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_the_patch_makes_one_file_of_the_other(before: bytes, after: bytes, tmp_path: Path) -> None:
    change = change_of(before, after)
    assert change["type"] == "update"
    (hunk,) = change["structuredPatch"]
    old, new = (
        f"{hunk[f'{side}Start'] if hunk[f'{side}Lines'] else 0},{hunk[f'{side}Lines']}"
        for side in ("old", "new")
    )
    lines = ["--- f", "+++ f", f"@@ -{old} +{new} @@", *hunk["lines"]]
    (tmp_path / "f").write_bytes(before)
    (tmp_path / "p").write_text("\n".join(lines) + "\n", newline="")
    subprocess.run(
        ["patch", "--binary", "--no-backup-if-mismatch", "f", "p"], cwd=tmp_path, check=True
    )
    made = tmp_path / "f"
    assert (made.read_bytes() if made.exists() else b"") == after


def test_a_patch_has_three_lines_around_the_change() -> None:
    before = "".join(f"{n}\n" for n in range(1, 11)).encode()
    (hunk,) = change_of(before, before.replace(b"6\n", b"six\n"))["structuredPatch"]
    assert hunk == {
        "oldStart": 3,
        "oldLines": 7,
        "newStart": 3,
        "newLines": 7,
        "lines": [" 3", " 4", " 5", "-6", "+six", " 7", " 8", " 9"],
    }


@pytest.mark.parametrize(
    ("before", "after", "made", "kind"),
    [
        (None, b"a", True, "create"),
        (None, b"a", False, "update"),
        (b"a", b"a", False, "update"),
        (b"a\n", b"x" * 200_000, False, "update"),
        (b"a" * (MOST_PATCHED_BYTES + 1), b"b", False, "update"),
    ],
    ids=["new file", "unknown before", "unchanged", "long change", "large file"],
)
def test_no_patch_is_made_of_what_is_unknown_or_large(
    before: bytes | None, after: bytes, made: bool, kind: str
) -> None:
    assert change_of(before, after, made=made) == {"type": kind}
