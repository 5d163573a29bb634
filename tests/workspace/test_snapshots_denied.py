"""Snapshots of what may not be read or written, and on a disk without room."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from .places import Place, contents, git, make_place, write

FILES = {"a.py": "one\n", "folder/b.py": "two\n"}


AS_OWNER = """
import os, sys
sys.path[:0] = [{code!r}]
from pathlib import Path
from runner.workspace.snapshots import Snapshots
snapshots = Snapshots(Path({store!r}), Path({work!r}), "run_1", 1, environment=os.environ)
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path, FILES)


@pytest.mark.slow
def test_what_cannot_be_read_is_named_and_the_rest_recorded(place: Place) -> None:
    write(place.work, {"secret": "x", "locked/inside": "y"})
    script = (
        AS_OWNER
        + """
os.chmod({work!r} + "/secret", 0)
os.chmod({work!r} + "/locked", 0)
os.chmod({work!r} + "/folder", 0)
first = snapshots.take()
assert snapshots.take() == first
print(first)
os.chmod({work!r} + "/folder", 0o755)
os.mkdir({work!r} + "/empty")
second = snapshots.take()
for name in ("a.py", "folder", "empty"):
    os.chmod({work!r} + "/" + name, 0)
snapshots.restore(second)
print(second)
"""
    )
    first, second = as_owner(place, script).split()
    assert place.listed(first) == [".runner-snapshot", "a.py", "folder/b.py"], "as it was"
    assert place.listed(second) == [".runner-snapshot", "a.py", "folder/b.py"]
    manifest = git(place.work, "show", f"{first}:.runner-snapshot", GIT_DIR=str(place.store))
    assert json.loads(manifest)["unrecorded"] == ["folder", "locked", "secret"]
    assert stat.S_IMODE((place.work / "folder").stat().st_mode) == 0o700
    assert stat.S_IMODE((place.work / "empty").stat().st_mode) == 0o700
    assert (place.work / "a.py").read_text() == "one\n"


@pytest.mark.slow
def test_a_tracked_file_that_cannot_be_read_keeps_its_recorded_content(place: Place) -> None:
    script = (
        AS_OWNER
        + """
before = snapshots.take()
os.chmod({work!r} + "/a.py", 0)
os.chmod({work!r} + "/folder", 0)
os.utime({work!r} + "/a.py", (1, 1))
closed = snapshots.take()
print(before)
print(closed)
print(snapshots.restore(before))
print(snapshots.restore(closed))
"""
    )
    before, closed, opened, again = as_owner(place, script).split()
    assert closed != before, "it is named"
    assert place.diff(before, closed) == b""
    assert opened == again == before, "what can be read again is all there"
    assert contents(place.work) == contents(place.source)


def test_a_folder_that_may_not_be_written_is_removed_all_the_same(place: Place) -> None:
    script = (
        AS_OWNER
        + """
tree = snapshots.take()
work = Path({work!r})
(work / "new/deep").mkdir(parents=True)
(work / "new/deep/file").touch()
(work / "new/deep").chmod(0o555)
(work / "new").chmod(0o555)
(work / "folder/b.py").unlink()
(work / "folder").chmod(0o555)
snapshots.restore(tree)
print(tree)
"""
    )
    assert as_owner(place, script)
    assert contents(place.work) == contents(place.source)


@pytest.mark.slow
def test_a_full_disk_is_an_error_of_one_line(place: Place) -> None:
    snapshots = place.snapshots()
    snapshots.take()
    write(place.work, {"much": os.urandom(3_000_000)})
    script = f"""
import os, resource, sys
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
from pathlib import Path
from runner.workspace.git import GitError
from runner.workspace.snapshots import Snapshots
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
place = Path({str(place.store)!r}), Path({str(place.work)!r})
try:
    Snapshots(*place, "run_1", 2, environment=os.environ).take()
except GitError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "git update-index failed: " in done.stdout
    assert len(done.stdout.splitlines()) == 1


def as_owner(place: Place, script: str) -> str:
    """What a program says that has no more rights to the files than their owner, which root has."""
    place.snapshots()
    values = {
        "code": str(Path(__file__).parents[2]),
        "store": str(place.store),
        "work": str(place.work),
    }
    program = [sys.executable, "-c", script.format(**values)]
    if os.geteuid() == 0:
        program = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--", *program]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
