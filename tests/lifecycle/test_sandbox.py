"""Jobs and hosts with and without a sandbox, from the job file to the record."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lifecycle.site import Site, bash, done, wait_until

pytestmark = [pytest.mark.slow]


def sandboxed(site: Site, name: str, keys: str, *commands: str) -> Path:
    path = site.job({"a": [*map(bash, commands), done()]}, name)
    path.write_text(f"{path.read_text()}\n[sandbox]\n{keys}")
    return path


def path_without_bwrap(folder: Path) -> str:
    folder.mkdir()
    for program in ("bash", "git", "env", "cat"):
        found = shutil.which(program)
        assert found is not None
        (folder / program).symlink_to(found)
    return str(folder)


def test_a_host_without_a_sandbox_leaves_jobs_that_require_one_and_works_the_others(
    site: Site,
) -> None:
    required = site.submit(sandboxed(site, "strict", 'mode = "required"', "echo x > made"))
    auto = site.submit(sandboxed(site, "easy", 'mode = "auto"', "echo x > easily"))
    bare = path_without_bwrap(site.folder / "bin")
    worker = site.start("worker", PATH=bare)
    assert site.wait_for(auto, "a", "succeeded", "failed")["state"] == "succeeded"

    def refused() -> bool:
        run = site.runs(required)["a"]
        return (run["state"], run["reason"]) == ("queued", "host_fault")

    wait_until(refused, "the run to be given back")
    assert not (site.workspace / "made").exists()
    assert "bwrap is not on the PATH" in site.runs(required)["a"]["detail"]
    assert site.json("show", auto)["containment"] == {"none": 1}
    assert "auto: 1 call not contained" in site.run("show", auto)
    worker.terminate()
    _, err = worker.communicate()
    assert err.count("are left to other hosts: the job requires a sandbox") == 1
    assert "takes no runs" not in err
