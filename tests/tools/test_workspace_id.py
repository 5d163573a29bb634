"""The file that says which workspace is which is not the model's to change."""

from __future__ import annotations

import pytest

from runner.tools import file_access
from runner.workspace import folders

from .conftest import Workbench
from .test_file_tools import EVERY_FILE_TOOL, touch_with


@pytest.mark.parametrize("tool", ["Write", "Edit"])
def test_id_of_a_workspace_is_not_the_models_to_change(bench: Workbench, tool: str) -> None:
    own = bench.workspace / folders.MARKER
    (bench.workspace / "src").mkdir()
    nested = bench.workspace / "src" / folders.MARKER
    (bench.workspace / "link").symlink_to(folders.MARKER)
    (bench.workspace / "folder").symlink_to("src")
    for path in (own, nested):
        path.write_text("secret\n")
    for place in (own, own.name, "link", f"src/../{own.name}", nested, f"folder/{own.name}"):
        result = touch_with(bench, tool, dict(EVERY_FILE_TOOL)[tool], place)
        assert (result.outcome, "which workspace this is" in result.content) == ("failed", True)
    assert own.read_text() == nested.read_text() == "secret\n"
    assert bench.run("Read", file_path=own.name).content == "     1\tsecret"


@pytest.mark.parametrize("tool", ["Write", "Edit"])
def test_no_folder_is_made_in_the_place_of_the_id(bench: Workbench, tool: str) -> None:
    given = dict(EVERY_FILE_TOOL)[tool]
    assert touch_with(bench, tool, given, f"{folders.MARKER}/a").outcome == "failed"
    assert not (bench.workspace / folders.MARKER).exists()


def test_file_tools_and_workspaces_name_the_id_alike() -> None:
    assert file_access.WORKSPACE_MARKER == folders.MARKER
