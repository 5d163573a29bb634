"""``rules check``: what a job file's rules would make of calls."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.store.database import Database
from tests.cli.conftest import Result
from tests.workspace.repository.made import Made

Command = Callable[..., Result]

JOB = """\
model = "m"
prompt = "Do it."
tools = ["Bash", "Read", "Edit"]
workspace = { path = "tree" }

[permissions]
allow = ["Bash(git *)", "Bash(ls *)", "Read(src/**)"]
ask = ["Bash(git commit *)"]

[[permissions.deny]]
rule = "Bash(git push *)"
why = "pushed by hand"
"""


@pytest.fixture
def job(folder: Path) -> Callable[..., str]:
    """Writes a job file with more after it; its path."""
    (folder / "tree" / "src").mkdir(parents=True)
    (folder / "tree" / "src" / "a.py").touch()

    def write(more: str = "", text: str = JOB) -> str:
        (folder / "job.toml").write_text(text + more)
        return "job.toml"

    return write


def checked(command: Command, job: str, *calls: str) -> list[dict[str, Any]]:
    result = command("rules", "check", job, *calls, "--json")
    assert result.code == 0, result.err
    found: list[dict[str, Any]] = result.json
    return found


def test_each_call_has_its_decision_and_what_decided(
    command: Command, job: Callable[..., str]
) -> None:
    calls = ("Bash(git push -f)", "Bash(git commit -m x)", "Bash(git status)", "Bash(rm x)")
    denied, asked, allowed, unmatched = checked(command, job(), *calls)
    assert denied == {
        "call": "Bash(git push -f)",
        "tool": "Bash",
        "decision": "deny",
        "rule": "Bash(git push *)",
        "origin": "job",
        "matched": "git push -f",
        "reason": "denied by the rule deny 'Bash(git push *)' (pushed by hand)",
        "parts": [],
    }
    assert (asked["decision"], asked["rule"]) == ("ask", "Bash(git commit *)")
    assert (allowed["decision"], allowed["rule"]) == ("allow", "Bash(git *)")
    assert (unmatched["decision"], unmatched["rule"]) == ("deny", None)
    assert unmatched["reason"].startswith("denied: ")


def test_what_no_rule_matches_is_what_the_default_says(
    command: Command, job: Callable[..., str]
) -> None:
    text = JOB.replace("[permissions]", '[permissions]\ndefault = "ask"')
    (one,) = checked(command, job(text=text), "Bash(rm x)")
    assert (one["decision"], one["rule"]) == ("ask", None)


def test_each_part_of_a_compound_command_is_said(command: Command, job: Callable[..., str]) -> None:
    (one,) = checked(command, job(), "Bash(git status && git push -f; ls > x)")
    assert one["decision"] == "deny"
    assert [(part["part"], part["decision"], part["rule"]) for part in one["parts"]] == [
        ("git status", "allow", "Bash(git *)"),
        ("git push -f", "deny", "Bash(git push *)"),
        ("ls", "allow", "Bash(ls *)"),
        ("> x", "deny", None),
    ]


def test_a_command_that_is_there_twice_is_said_once(
    command: Command, job: Callable[..., str]
) -> None:
    twice, thrice = checked(command, job(), "Bash(ls && ls)", "Bash(ls; git push; ls)")
    assert (twice["decision"], twice["parts"]) == ("allow", [])
    assert [part["part"] for part in thrice["parts"]] == ["ls", "git push"]


def test_paths_are_looked_at_where_they_lead_in_the_workspace(
    command: Command, job: Callable[..., str], folder: Path
) -> None:
    path = job()
    (folder / "tree" / "src" / "link").symlink_to("/etc/hostname")
    calls = ("Read(src/a.py)", "Read(src/../../x)", "Read(src/link)", "Read(/etc/hostname)")
    decisions = [one["decision"] for one in checked(command, path, *calls)]
    assert decisions == ["allow", "deny", "deny", "deny"]
    (absolute,) = checked(command, path, f"Read({folder / 'tree' / 'src' / 'a.py'})")
    assert absolute["decision"] == "allow"


def test_what_a_file_tool_refuses_whatever_the_rules_say_is_said(
    command: Command, job: Callable[..., str], folder: Path
) -> None:
    text = JOB.replace('"Read(src/**)"', '"Read", "Edit", "Bash(cat *)"')
    path = job(text=text)
    (folder / "tree" / "src" / "link").symlink_to("/etc/hostname")
    calls = ("Read(/etc/hostname)", "Read(src/link)", "Edit(../x)", "Read(~/x)")
    for one in checked(command, path, *calls):
        assert (one["decision"], one["rule"]) == ("deny", None)
        assert f"whatever the rules say, {one['tool']} refuses: " in one["reason"]
    inside, redirected = checked(command, path, "Read(src/a.py)", "Bash(cat < /etc/hostname)")
    assert (inside["decision"], redirected["decision"]) == ("allow", "allow")


@pytest.fixture
def repository(folder: Path) -> str:
    """Has the workspace be a repository with a commit; its URL."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    made = Made(folder / "tree", environment)
    made.commit(src__x="1")
    return f"file://{made.path}"


@pytest.mark.slow
@pytest.mark.usefixtures("repository")
def test_files_that_are_not_committed_are_no_matter_of_rules(
    command: Command, job: Callable[..., str], folder: Path
) -> None:
    text = JOB.replace('path = "tree"', 'repo = "tree", mode = "git"')
    (folder / "tree" / "new.py").touch()
    assert command("rules", "check", job(text=text)).err == ""
    assert "changed in the repository and not committed" in command("submit", "job.toml").err


@pytest.mark.slow
@pytest.mark.parametrize("mode", ['path = "tree", mode = "copy"', 'repo = "tree", mode = "git"'])
@pytest.mark.usefixtures("repository")
def test_calls_are_checked_as_in_a_copy_of_the_workspace(
    command: Command, job: Callable[..., str], folder: Path, mode: str
) -> None:
    tree = folder.resolve() / "tree"
    text = (
        JOB.replace('path = "tree"', mode)
        .replace('"Read(src/**)"', f'"Read(/{tree}/src/**)", "Edit"')
        .replace("ask = [", f'ask = ["Edit(/{tree}/deny/**)", ')
    )
    (tree / "src" / "up").symlink_to("../deny")
    path = job(text=text)
    calls = (
        "Read(src/a.py)",
        "Read(deny/x)",
        "Edit(deny/x)",
        "Edit(src/up/x)",
        "Bash(ls > deny/x)",
    )
    decided = [(one["decision"], one["rule"]) for one in checked(command, path, *calls)]
    assert decided == [
        ("allow", "Read(/src/**)"),
        ("deny", None),
        ("ask", "Edit(/deny/**)"),
        ("ask", "Edit(/deny/**)"),
        ("ask", "Edit(/deny/**)"),
    ]
    (original,) = checked(command, path, f"Read({tree}/src/a.py)")
    assert original["reason"].endswith("is not in the run's own copy of the workspace")


def test_calls_are_checked_as_in_a_worktree_of_what_is_elsewhere(
    command: Command, job: Callable[..., str], repository: str, folder: Path
) -> None:
    path = job(text=JOB.replace('path = "tree"', f'repo = "{repository}", mode = "git"'))
    calls = ("Read(src/a.py)", "Read(docs/a.md)", "Bash(git push)", "Read(../x)")
    decided = [(one["decision"], one["rule"]) for one in checked(command, path, *calls)]
    assert decided == [
        ("allow", "Read(src/**)"),
        ("deny", None),
        ("deny", "Bash(git push *)"),
        ("deny", None),
    ]
    assert not (folder / ".runner").exists()


def test_people_get_a_line_for_each_call_and_each_part(
    command: Command, job: Callable[..., str]
) -> None:
    result = command("rules", "check", job(), "Bash(git push -f)", "Bash(ls && git status)")
    assert result.code == 0
    denied, allowed, first, second = result.out.splitlines()
    assert denied == (
        "deny   Bash(git push -f): denied by the rule deny 'Bash(git push *)' (pushed by hand)"
    )
    assert allowed.startswith("allow  Bash(ls && git status): allowed by the rule allow ")
    assert first == "  allow  ls: allowed by the rule allow 'Bash(ls *)'"
    assert second == "  allow  git status: allowed by the rule allow 'Bash(git *)'"


def test_a_rule_that_the_job_file_does_not_hold_says_where_it_is_from(
    command: Command, job: Callable[..., str], folder: Path
) -> None:
    (folder / "settings.json").write_text('{"permissions": {"deny": ["Bash(ls *)"]}}')
    text = JOB.replace("[permissions]", '[permissions]\nfrom = "settings.json"')
    result = command("rules", "check", job(text=text), "Bash(ls)")
    assert result.out.rstrip().endswith(f"'Bash(ls *)', from {folder / 'settings.json'}")


def test_standing_rules_count_as_the_job_file_lets_them(
    command: Command, job: Callable[..., str], database: Database
) -> None:
    for rule in (("allow", "Bash(git commit *)"), ("deny", "Bash(git status)")):
        assert command("rules", "standing", "add", *rule).code == 0
    calls = ("Bash(git commit -m x)", "Bash(git status)")
    allowed, denied = checked(command, job(), *calls)
    assert (allowed["decision"], allowed["origin"]) == ("allow", "standing")
    assert (denied["decision"], denied["origin"]) == ("deny", "standing")
    text = JOB.replace("[permissions]", "[permissions]\nstanding = false")
    asked, denied = checked(command, job(text=text), *calls)
    assert (asked["decision"], denied["decision"]) == ("ask", "deny")
    plan = command("run", "job.toml", "--dry-run", "--json").json
    assert [rule["text"] for rule in plan["standing_rules"]] == ["Bash(git status)"]
    shown = command("run", "job.toml", "--dry-run").out
    assert "standing rules  deny Bash(git status)" in shown


def test_what_a_settings_file_loses_is_said_on_stderr(
    command: Command, job: Callable[..., str], folder: Path
) -> None:
    (folder / "settings.json").write_text(
        json.dumps({"permissions": {"allow": ["WebFetch(domain:example.com)"]}})
    )
    text = JOB.replace("[permissions]", '[permissions]\nfrom = "settings.json"')
    result = command("rules", "check", job(text=text), "--json")
    assert result.code == 0
    assert "WebFetch" in result.err
    assert result.err.startswith("warning: left out: ")
    assert "WebFetch" not in result.out


@pytest.mark.slow
def test_whoever_submits_a_job_is_told_what_a_settings_file_lost(
    command: Command, job: Callable[..., str], folder: Path
) -> None:
    (folder / "settings.json").write_text('{"permissions": {"defaultMode": "plan"}}')
    text = JOB.replace("[permissions]", '[permissions]\nfrom = "settings.json"')
    result = command("submit", job(text=text))
    assert result.code == 0, result.err
    assert result.out.startswith("job_")
    assert "warning: left out: " in result.err
    assert "defaultMode" in result.err


def test_without_calls_all_rules_are_listed_in_order(
    command: Command, job: Callable[..., str]
) -> None:
    listed = checked(command, job())
    assert listed[:2] == [
        {
            "position": 0,
            "effect": "deny",
            "rule": "Bash(git push *)",
            "origin": "job",
            "why": "pushed by hand",
        },
        {"position": 1, "effect": "ask", "rule": "Bash(git commit *)", "origin": "job", "why": ""},
    ]
    assert [rule["position"] for rule in listed] == list(range(5))
    result = command("rules", "check", "job.toml")
    header, first, *_, last = result.out.splitlines()
    assert header.split() == ["position", "effect", "rule", "from", "why"]
    assert first.split() == ["0", "deny", "Bash(git", "push", "*)", "job", "pushed", "by", "hand"]
    assert last == "calls that no rule matches: deny"


def test_a_mode_is_listed_as_the_rules_that_it_stands_for(
    command: Command, job: Callable[..., str]
) -> None:
    text = JOB.replace("[permissions]", '[permissions]\nmode = "full_access"')
    assert {rule["origin"] for rule in checked(command, job(text=text))} == {"job", "mode"}


def test_a_tool_that_the_job_does_not_have_is_denied(
    command: Command, job: Callable[..., str]
) -> None:
    (one,) = checked(command, job(), "WebFetch(domain:example.com)")
    assert one["decision"] == "deny"
    assert one["reason"].endswith("the job has no tool 'WebFetch'; it has Bash, Read, Edit")


@pytest.mark.parametrize("call", ["", "(((", "Bash(ls", "Bash ls"])
def test_a_call_that_cannot_be_read_is_refused(
    call: str, command: Command, job: Callable[..., str]
) -> None:
    result = command("rules", "check", job(), "Bash(ls)", call)
    assert result.code == 2
    assert result.out == ""
    assert len(result.err.splitlines()) == 1


def test_a_bad_job_file_is_refused_with_every_problem(
    command: Command, job: Callable[..., str]
) -> None:
    result = command("rules", "check", job("\n[[permissions.deny]]\nrule = 'Grep('\nwy = 1\n"))
    assert result.code == 2
    assert result.err.splitlines()[0].endswith(": 2 problems")
    assert all(each in result.err for each in ("the rule 'Grep('", "[1].wy: "))


def test_nothing_that_is_printed_steers_the_terminal(
    command: Command, job: Callable[..., str], folder: Path
) -> None:
    (folder / "\x1b[2J.json").write_text('{"permissions": {"deny": ["Bash(\\u001b[2J)"], "a": 1}}')
    path = job()
    for arguments in (("Bash(\x1b[2J)",), ("Bash(ls; \x1b[2J)",), ("Read(\x1b[2J)",), ("\x1b[2J",)):
        for option in ((), ("--json",)):
            result = command("rules", "check", path, *arguments, *option)
            assert "\x1b" not in result.out + result.err
    text = JOB.replace("[permissions]", '[permissions]\nfrom = "\\u001b[2J.json"')
    result = command("rules", "check", job(text=text), "Bash(ls)")
    assert "\x1b" not in result.out + result.err


def test_checking_creates_nothing(command: Command, job: Callable[..., str], folder: Path) -> None:
    path = job()
    before = sorted(folder.rglob("*"))
    command("rules", "check", path, "Read(src/a.py)", "Bash(ls > x)")
    assert sorted(folder.rglob("*")) == before


AGENTS = """
[agents.reviewer]
description = "Reviews."
tools = ["Bash", "Read"]
permissions = { allow = ["Bash(git diff *)", "Bash(git push *)"] }
"""


def test_a_call_is_checked_as_a_sub_agent_s(command: Command, job: Callable[..., str]) -> None:
    calls = ("Bash(git diff)", "Bash(git status)", "Bash(git push)", "Edit(src/a.py)")
    path = job(AGENTS, JOB.replace('"Edit"]', '"Edit", "Agent"]'))
    result = command("rules", "check", path, "--agent", "reviewer", *calls, "--json")
    assert result.code == 0, result.err
    assert [one["decision"] for one in result.json] == ["allow", "deny", "deny", "deny"]
    assert "reviewer has no tool 'Edit'" in result.json[-1]["reason"]
    listed = command("rules", "check", path, "--agent", "reviewer")
    assert "agents.reviewer" in listed.out
    assert "calls that no rule of reviewer allows: deny" in listed.out


def test_a_type_of_sub_agent_that_is_not_there_is_refused(
    command: Command, job: Callable[..., str]
) -> None:
    refused = command("rules", "check", job(), "--agent", "nobody", "Bash(ls)")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "runner: the job has no agent type 'nobody'; it has none\n"
