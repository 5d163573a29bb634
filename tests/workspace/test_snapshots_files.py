from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.workspace.restore import WorkTreeWriter
from runner.workspace.survey import WorkTreeView

from .places import contents, write


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work tree with a link to a folder beside it, in which there is something to lose."""
    write(tmp_path, {"outside/dear": "1", "work/a": "2", "work/folder/b": "3"})
    (tmp_path / "work/link").symlink_to("../outside")
    return tmp_path / "work"


@pytest.fixture
def writer(work: Path) -> WorkTreeWriter:
    return WorkTreeWriter(os.fsencode(work))


def test_nothing_behind_a_link_is_removed(writer: WorkTreeWriter, work: Path) -> None:
    for path in (b"link/dear", b"link/new/deeper"):
        with pytest.raises(OSError, match="Not a directory"):
            writer.remove(path)
    writer.remove_empty([b"link/dear", b"link"])
    assert (work.parent / "outside/dear").exists()
    writer.remove(b"link")
    writer.remove(b"not/there")
    assert (work.parent / "outside/dear").exists()
    assert not os.path.lexists(work / "link")


def test_a_folder_is_made_in_the_place_of_a_link(writer: WorkTreeWriter, work: Path) -> None:
    writer.make_folder(b"link/new")
    assert not (work / "link").is_symlink()
    assert contents(work.parent / "outside") == {b"dear": ("file", b"1")}


def test_the_right_to_run_is_not_given_through_a_link(writer: WorkTreeWriter, work: Path) -> None:
    (work / "to").symlink_to("a")
    for path in (b"to", b"link/dear"):
        with pytest.raises(OSError, match=r"Too many levels|Not a directory"):
            writer.set_executable(path, True)
    writer.set_executable(b"a", True)
    assert os.access(work / "a", os.X_OK)


def test_what_lies_behind_a_link_is_nothing(work: Path) -> None:
    view = WorkTreeView(os.fsencode(work))
    assert view.look(b"link/dear") == ("nothing", None)
    assert view.look(b"link") == ("link", None)
    assert view.look(b"folder/b")[0] == "file"
    assert view.look(b"folder") == ("folder", None)
    assert view.look(b"a/b") == ("nothing", None)
