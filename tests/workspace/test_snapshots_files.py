from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.workspace.restore import Hand
from runner.workspace.survey import Sight

from .places import contents, write


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work tree with a link to a folder beside it, in which there is something to lose."""
    write(tmp_path, {"outside/dear": "1", "work/a": "2", "work/folder/b": "3"})
    (tmp_path / "work/link").symlink_to("../outside")
    return tmp_path / "work"


@pytest.fixture
def hand(work: Path) -> Hand:
    return Hand(os.fsencode(work))


def test_nothing_behind_a_link_is_removed(hand: Hand, work: Path) -> None:
    for path in (b"link/dear", b"link/new/deeper"):
        with pytest.raises(OSError, match="Not a directory"):
            hand.remove(path)
    hand.remove_empty([b"link/dear", b"link"])
    assert (work.parent / "outside/dear").exists()
    hand.remove(b"link")
    hand.remove(b"not/there")
    assert (work.parent / "outside/dear").exists()
    assert not os.path.lexists(work / "link")


def test_a_folder_is_made_in_the_place_of_a_link(hand: Hand, work: Path) -> None:
    hand.make_folder(b"link/new")
    assert not (work / "link").is_symlink()
    assert contents(work.parent / "outside") == {b"dear": ("file", b"1")}


def test_the_right_to_run_is_not_given_through_a_link(hand: Hand, work: Path) -> None:
    (work / "to").symlink_to("a")
    for path in (b"to", b"link/dear"):
        with pytest.raises(OSError, match=r"Too many levels|Not a directory"):
            hand.set_executable(path, True)
    hand.set_executable(b"a", True)
    assert os.access(work / "a", os.X_OK)


def test_what_lies_behind_a_link_is_nothing(work: Path) -> None:
    sight = Sight(os.fsencode(work))
    assert sight.look(b"link/dear") == ("nothing", None)
    assert sight.look(b"link") == ("link", None)
    assert sight.look(b"folder/b")[0] == "file"
    assert sight.look(b"folder") == ("folder", None)
    assert sight.look(b"a/b") == ("nothing", None)
