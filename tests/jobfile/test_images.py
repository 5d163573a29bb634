"""Files that items carry."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.budget import Reservation
from runner.core.model_calls import first_call
from tests.jobfile.conftest import PRICES, Load, Problems
from tests.media import image, opened, pdf

JOB = """
model = "claude-test"
prompt = "Look at {{ item.key }}."
images = ["{{ item.shot }}", "logo.gif"]
[[items.list]]
key = "a"
shot = "shots/a.png"
[[items.list]]
key = "b"
shot = "shots/b.pdf"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots/a.png").write_bytes(image())
    (tmp_path / "shots/b.pdf").write_bytes(pdf(2))
    (tmp_path / "logo.gif").write_bytes(image("GIF"))
    return tmp_path


def test_files_follow_the_prompt_of_their_item(load_text: Load, folder: Path) -> None:
    found = load_text(JOB)
    kinds = [[block["source"]["media_type"] for block in run.attached] for run in found.runs]
    assert kinds == [["image/png", "image/gif"], ["application/pdf", "image/gif"]]
    assert sorted(media.data for media in found.media) == sorted([image(), pdf(2), image("GIF")])


def test_a_large_image_is_scaled_down_at_the_submission(load_text: Load, folder: Path) -> None:
    (folder / "logo.gif").write_bytes(image("PNG", (3_840, 2_160)))
    logo = load_text(JOB).media[2]
    assert opened(logo.data).size == (1_568, 882)


def test_a_missing_file_or_another_kind_is_a_problem_of_the_key(
    problems_of: Problems, folder: Path
) -> None:
    (folder / "shots/a.png").unlink()
    (folder / "shots/b.pdf").write_text("words")
    first, second = problems_of(JOB)
    assert "images" in first
    assert "does not exist" in first
    assert "is not a PNG, JPEG, GIF, WebP or PDF" in second


def test_the_bound_of_a_first_call_counts_what_the_item_carries(
    load_text: Load, folder: Path
) -> None:
    found = load_text(JOB)
    alone = [replace(run, attached=()) for run in found.runs]
    counted, bare = (first_call(found.spec, runs, PRICES) for runs in (found.runs, alone))
    assert isinstance(counted, Reservation)
    assert isinstance(bare, Reservation)
    assert counted.worst_case - bare.worst_case > 2 * 6_000  # two pages of a PDF


def test_a_named_pipe_is_a_problem_and_blocks_nothing(problems_of: Problems, folder: Path) -> None:
    (folder / "logo.gif").unlink()
    os.mkfifo(folder / "logo.gif")
    (problem,) = problems_of(JOB)
    assert "logo.gif" in problem


@pytest.mark.parametrize(
    ("template", "shot"),
    [
        ("{{ item.shot }}", "{}/private.png"),
        ("{{ item.shot }}", "../private.png"),
        ("shots/{{ item.shot }}", "../../private.png"),
        ("shots/{{ item.shot }}", "../logo.gif"),
    ],
)
def test_an_item_cannot_name_a_file_outside_the_folder_of_its_template(
    problems_of: Problems, folder: Path, template: str, shot: str
) -> None:
    (folder.parent / "private.png").write_bytes(image())
    shot = shot.format(folder.parent)
    items = f'[[items.list]]\nkey = "a"\nshot = "{shot}"'
    (problem,) = problems_of(f'model = "m"\nprompt = "Look."\nimages = ["{template}"]\n{items}')
    assert "leads out of" in problem


def test_a_template_may_name_any_folder(load_text: Load, folder: Path) -> None:
    job = JOB.replace('"logo.gif"', f'"../{{{{ item.key }}}}.png", "{folder}/logo.gif"')
    for key in "ab":
        (folder.parent / f"{key}.png").write_bytes(image())
    assert [len(run.attached) for run in load_text(job).runs] == [3, 3]
