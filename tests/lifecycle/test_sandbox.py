"""Jobs and hosts with and without a sandbox, from the job file to the record."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runner.tools.sandbox import Sandboxes
from tests.lifecycle.site import Site, bash, done, wait_until
from tests.tools.test_sandbox import HERE, with_sandbox

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


def test_a_host_without_bubblewrap_leaves_jobs_that_require_one_and_works_the_others(
    site: Site,
) -> None:
    required = site.submit(sandboxed(site, "strict", 'mode = "required"', "echo x > made"))
    auto = site.submit(sandboxed(site, "easy", 'mode = "auto"\nmemory = "4G"', "echo x > easily"))
    bare = path_without_bwrap(site.folder / "bin")
    kind = Sandboxes(Path("/nowhere"), {"PATH": bare}).probe().kind
    worker = site.start("worker", PATH=bare)
    assert site.wait_for(auto, "a", "succeeded", "failed")["state"] == "succeeded"

    def refused() -> bool:
        run = site.runs(required)["a"]
        return (run["state"], run["reason"]) == ("queued", "host_fault")

    wait_until(refused, "the run to be given back")
    assert not (site.workspace / "made").exists()
    assert "bwrap is not on the PATH" in site.runs(required)["a"]["detail"]
    [(had, _)] = site.json("show", auto)["containment"].items()
    assert had in (f"{kind}; Runner enforces memory", f"{kind}; the kernel enforces memory")
    words = had.replace("none", "not contained") if kind == "none" else f"in {had}"
    assert f"auto: 1 call {words}" in site.run("show", auto)
    run = site.runs(auto)["a"]
    assert words in site.run("transcript", run["id"])
    assert f"sandbox: `1 call {words}`" in site.run("report", auto)
    (row,) = site.json("audit", "sql", "SELECT call_id, containment FROM v_tool_calls")
    assert row["containment"] == site.json("show", row["call_id"])["containment"] == had
    worker.terminate()
    _, err = worker.communicate()
    assert err.count("are left to other hosts: the job requires a sandbox") == 1
    assert "takes no runs" not in err


def test_what_contained_a_call_is_said_wherever_the_call_is(site: Site) -> None:
    path = site.job({"a": [bash(f"touch made {site.folder}/beside"), done()]})
    job = site.submit(path)
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert (site.workspace / "made").exists()
    assert (site.folder / "beside").exists() == (HERE.kind == "none")
    words = "not contained" if HERE.kind == "none" else f"in {HERE.kind}"
    assert words in site.run("transcript", run["id"])
    assert f"auto: 1 call {words}" in site.run("show", job)
    assert f"sandbox: `1 call {words}`" in site.run("report", job)
    (row,) = site.json("audit", "sql", "SELECT call_id, containment FROM v_tool_calls")
    assert row["containment"] == HERE.kind
    assert site.json("show", row["call_id"])["containment"] == HERE.kind
    assert site.json("audit", "commands")[0]["containment"] == HERE.kind


@with_sandbox
def test_a_job_that_trusts_its_sandbox_says_which_commands_it_let_run(site: Site) -> None:
    script = {"a": [bash("touch made"), bash("touch other && rm made"), done()]}
    path = site.job(script, allow=["Read"], deny=["Bash(rm *)"], trust="contained")
    path.write_text(path.read_text() + '\n[sandbox]\nmode = "required"')
    job = site.submit(path)
    site.run("worker", "--burst")
    assert (site.workspace / "made").exists()
    assert not (site.workspace / "other").exists()
    rows = site.json("audit", "sql", "SELECT decision, rule, decision_reason FROM v_decisions")
    assert [(row["decision"], row["rule"]) for row in rows] == [
        ("allow", None),
        ("deny", "Bash(rm *)"),
    ]
    assert "it runs in a sandbox (trust)" in rows[0]["decision_reason"]
    assert site.runs(job)["a"]["state"] == "succeeded"
