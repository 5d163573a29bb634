"""What keeps a job from running is found before anything is stored, all of it at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.store.database import Database
from tests.cli.conftest import Result

Command = Callable[..., Result]

JOB = """
model = "{model}"
prompt = "Do {{{{ item }}}}."
[items]
list = ["a", "b", "c"]
{more}
"""


def write(folder: Path, more: str = "", model: str = "claude-sonnet-5-5") -> str:
    (folder / "job.toml").write_text(JOB.format(model=model, more=more))
    return "job.toml"


def test_run_refuses_a_job_without_a_key_and_submit_warns(command: Command, folder: Path) -> None:
    refused = command("run", write(folder))
    assert (refused.code, refused.out) == (2, "")
    assert "provider: no API key is in the environment: set ANTHROPIC_API_KEY" in refused.err
    assert not (folder / ".runner").exists()
    submitted = command("submit", "job.toml")
    assert (submitted.code, submitted.out[:4]) == (0, "job_")
    assert submitted.err.startswith("warning: provider: no API key is in the environment")
    assert command("rules", "check", "job.toml").err == ""


def test_doctor_warns_of_a_missing_key_until_a_job_needs_it(
    command: Command, folder: Path, database: Database
) -> None:
    def key() -> dict[str, Any]:
        return next(each for each in command("doctor", "--json").json if each["name"] == "key")

    assert (key()["ok"], key()["mend"].partition(" (")[0]) == (
        True,
        "set the credentials of your provider",
    )
    assert "warn  key " in command("doctor").out
    job_id = command("submit", write(folder)).out.strip()
    assert key()["mend"] == "set those of anthropic: a job that has not ended needs them"
    assert not key()["ok"]
    command("cancel", job_id)
    assert key()["ok"]


def test_a_key_of_postgres_is_no_key_of_the_api(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "secret")
    assert "no API key" in command("run", write(folder)).err
    (key,) = [each for each in command("doctor", "--json").json if each["name"] == "key"]
    assert "no API key" in key["detail"]


def test_every_reason_not_to_begin_is_a_line(command: Command, folder: Path) -> None:
    limits = "[limits]\nmax_turn = 3\nbudget_usd = 0.01\nbudget_tokens = 9"
    lines = command("run", write(folder, limits)).err
    for part in (
        "no API key is in the environment",
        "unknown key 'max_turn'; did you mean max_turns?",
        "limits.budget_usd: one call of a run may cost $",
        "limits.budget_tokens: one call of a run may take ",
    ):
        assert part in lines
    assert not (folder / ".runner").exists()


@pytest.mark.parametrize("limit", ["token_ceiling = 100", "cost_ceiling_usd = 0.0001"])
def test_a_ceiling_below_the_first_call_is_refused(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a key")
    refused = command("run", write(folder, f"[limits]\n{limit}"))
    assert refused.code == 2
    assert f"limits.{limit.split()[0]}: leaves no room for the first call of a run" in refused.err


def test_a_misspelled_model_is_refused_and_an_unknown_one_is_told(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a key")
    refused = command("run", write(folder, model="claude-sonet-5-5"))
    assert refused.code == 2
    assert "line 2: model: 'claude-sonet-5-5' is not a known model; did you mean" in refused.err
    told = command("submit", write(folder, model="house-model-7")).err
    assert told.startswith("warning: 'house-model-7' is not in the price list")


def test_problems_of_a_job_file_name_it_once_and_mark_the_values(
    command: Callable[..., Result], folder: Path
) -> None:
    lines = ['model = "m"', 'prompt = "x"', "[limits]", 'max_turns = "9"']
    (folder / "job.toml").write_text("\n".join(lines))
    refused = command("submit", "job.toml")
    assert refused.err.splitlines()[0].startswith(f"runner: {folder / 'job.toml'}: line ")
    (folder / "job.toml").write_text("\n".join([*lines, "[permissions]", 'allow = ["Bsh(ls)"]']))
    refused = command("submit", "job.toml")
    assert refused.code == 2
    assert refused.err.count("job.toml") == 1
    assert refused.err.splitlines()[-6:] == [
        "  line 4: limits.max_turns: must be an integer, not a string",
        '      max_turns = "9"',
        "                  ^^^",
        "  line 6: permissions.allow[0]: the rule 'Bsh(ls)' has brackets, which mean nothing for Bsh: "
        "did you mean Bash(ls)?",
        """      allow = ["Bsh(ls)"]""",
        "               ^^^^^^^^^",
    ]
