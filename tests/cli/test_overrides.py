"""Options of ``run`` and ``submit`` change a job file for one submission; ``--dry-run`` stores nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

Command = Callable[..., Result]

JOB = """
name = "mend"
model = "claude-sonnet-5-5"
tools = ["Bash"]
prompt = "Mend {{ item.file }} with care {{ item.care }}."
[workspace]
path = "."
[permissions]
allow = [{ rule = "Bash(git diff *)", match = ["git diff a"], not_match = ["git push"] }]
deny = [{ rule = "Bash(git diff c*)", match = ["Bash(git diff c)"] }]
[limits]
max_turns = 7
[items]
list = [
  { key = "a", file = "a.py", care = 1 },
  { key = "b", file = "b.py", care = 2 },
  { key = "c", file = "c.py", care = 3 },
  { key = "d", file = "d.py", care = 4 },
]
"""


@pytest.fixture(autouse=True)
def job(folder: Path) -> str:
    (folder / "job.toml").write_text(JOB)
    return "job.toml"


def plan(command: Command, *options: str) -> Result:
    return command("run", "job.toml", "--dry-run", "--json", *options)


def keys(command: Command, *options: str) -> list[str]:
    return [run["key"] for run in plan(command, *options).json["runs"]]


def test_items_are_chosen_by_key_from_the_front_or_as_a_sample(command: Command) -> None:
    assert keys(command, "--only", "d", "--only", "b") == ["b", "d"]
    assert keys(command, "--first", "3") == ["a", "b", "c"]
    assert keys(command, "--first", "9") == ["a", "b", "c", "d"]
    drawn = keys(command, "--sample", "2")
    assert len(drawn) == 2
    assert keys(command, "--sample", "2") == drawn
    assert set(drawn) < set(keys(command, "--sample", "3"))


def test_the_model_limits_and_fields_of_items_are_set(command: Command) -> None:
    options = ("--model", "claude-haiku-4-5", "--limits", "max_turns=5", "--limits", "deadline=8h")
    found = plan(command, *options, "--set", "item.care=9", "--set", "item.file=x y").json
    assert found["spec"]["model"] == "claude-haiku-4-5"
    assert (found["spec"]["limits"]["max_turns"], found["spec"]["limits"]["deadline"]) == (
        5,
        28_800,
    )
    assert {run["prompt"] for run in found["runs"]} == {"Mend x y with care 9."}
    assert found["runs"][0]["item"] == {"key": "a", "file": "x y", "care": 9}


def test_the_job_keeps_and_shows_the_options(command: Command) -> None:
    options = ("--first", "1", "--limits", "max_turns=5", "--set", "item.file=x y")
    job_id = command("submit", "job.toml", "--key", "k", *options).out.strip()
    assert "options    --first 1 --limits max_turns=5 --set 'item.file=x y'" in (
        command("show", job_id).out
    )
    assert command("show", job_id, "--json").json["spec"]["limits"]["max_turns"] == 5
    assert command("submit", "job.toml", "--key", "k", *options).out.strip() == job_id
    refused = command("submit", "job.toml", "--key", "k", "--first", "1")
    assert refused.code == 2
    assert "options: --first 1 --limits max_turns=5" in refused.err
    assert "now --first 1" in refused.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "aa"], "--only: no item has the key 'aa'; did you mean a?"),
        (["--only", "x"], "--only: no item has the key 'x'; there are a, b, c, d"),
        (["--only", "a", "--first", "1"], "--only, --first and --sample each choose the items"),
        (["--budget", "3"], "No such option '--budget'. Did you mean '--limits budget_usd=3'"),
        (["--max-turns", "9"], "No such option '--max-turns'. Did you mean '--limits max_turns=9'"),
        (["--limit", "9"], "No such option '--limit'. Did you mean '--first 9'"),
        (["--limits", "max_turn=5"], "--limits max_turn=5: unknown key 'max_turn'; did you mean"),
        (["--limits", "max_turns=0"], "--limits max_turns=0: must be at least 1, not 0"),
        (["--limits", "max_turns"], "--limits: 'max_turns' is not NAME=VALUE, such as max_turns=5"),
        (
            ["--set", "item.fil=x"],
            "--set: no item and no template has the field 'fil'; did you mean",
        ),
        (["--set", "file=x"], "--set: 'file' is not a field of an item: write item.NAME=VALUE"),
        (["--set", "item.key=x"], "--set: item.key names the run and stays as it is"),
        (["--model", " "], "--model  : is empty"),
    ],
)
def test_a_wrong_option_is_named(command: Command, options: list[str], said: str) -> None:
    refused = plan(command, *options)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err


def test_options_of_a_new_job_do_not_go_with_resume(command: Command) -> None:
    refused = command("run", "--resume", "j", "--limits", "max_turns=5")
    assert (refused.code, refused.err) == (
        2,
        "runner: --limits is for a new job: leave it out with --resume\n",
    )


def test_a_dry_run_says_what_would_be_done_and_stores_nothing(
    command: Command, folder: Path
) -> None:
    found = command("run", "job.toml", "--dry-run", "--limits", "budget_usd=3")
    assert found.code == 0
    assert "warning: provider: no API key is in the environment" in found.err
    for part in (
        "items      4: a, b, c, d",
        "prompt of a:\n  Mend a.py with care 1.",
        "at most    $3.00 for 4 runs by limits.budget_usd (",
        "limits     7 turns, ",
    ):
        assert part in found.out
    verdicts = [line.split(maxsplit=1) for line in found.out.splitlines()[-3:]]
    assert [(verdict, rest.split(")")[0]) for verdict, rest in verdicts] == [
        ("deny", "Bash(git diff c"),
        ("allow", "Bash(git diff a"),
        ("deny", "Bash(git push"),
    ]
    assert [path.name for path in folder.iterdir()] == ["job.toml"]


def test_the_worst_case_is_every_token_at_the_dearest_rate(command: Command) -> None:
    found = plan(command, "--limits", "token_ceiling=1_000_000").json
    assert (found["run_usd"], found["job_usd"], found["limited_by"]) == (
        10.0,
        40.0,
        "token_ceiling",
    )
    capped = plan(command, "--limits", "cost_ceiling_usd=0.5", "--first", "2").json
    assert (capped["run_usd"], capped["job_usd"]) == (0.5, 1.0)
    unpriced = command("submit", "job.toml", "--dry-run", "--model", "house-model-7")
    assert "at most    unknown: a model of the job has no price" in unpriced.out
