"""``[notify]``: what people are told of, without addresses and keys."""

from __future__ import annotations

import pytest

from runner.core.notices import EVENTS, Notify
from runner.core.spec import JobSpec
from tests.jobfile.conftest import Load, Problems

LEAST = 'model = "priced"\nprompt = "Go."\n'
NAME = (
    "must be the name of an environment variable that begins with RUNNER_, which tools do not see: an "
    "address or key itself would be stored with the job"
)


@pytest.mark.parametrize(
    ("written", "notify"),
    [
        ("", None),
        ('[notify]\ncommand = "mail lena"', Notify(EVENTS, command="mail lena")),
        (
            '[notify]\non = ["done"]\nwebhook = "RUNNER_HOOK"\nsecret = "RUNNER_KEY"\nformat = "slack"',
            Notify(("done",), webhook="RUNNER_HOOK", secret="RUNNER_KEY", format="slack"),
        ),
        ("[notify]\ndesktop = true", Notify(EVENTS, desktop=True)),
    ],
)
def test_notify_is_read_and_stored(load_text: Load, written: str, notify: Notify | None) -> None:
    spec = load_text(LEAST + written).spec
    assert spec.notify == notify
    assert JobSpec.from_json(spec.to_json()).notify == notify


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("", "notify: tells nobody: give command, webhook or desktop"),
        ('webhook = "https://hooks.example.com/T0/B0"', f"notify.webhook: {NAME}"),
        ('webhook = "SLACK_URL"', f"notify.webhook: {NAME}"),
        (
            'command = "x"\nsecret = "RUNNER_KEY"',
            "notify.secret: does nothing without webhook; give that too",
        ),
    ],
)
def test_what_would_tell_nobody_or_store_a_secret_is_refused(
    problems_of: Problems, written: str, problem: str
) -> None:
    found = problems_of(f"{LEAST}[notify]\n{written}")
    assert [each.partition(": ")[2] for each in found] == [problem]
