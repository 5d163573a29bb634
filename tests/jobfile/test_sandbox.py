"""The section [sandbox] of a job file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.sandbox import Sandbox
from runner.core.spec import JobSpec, Submission

from .conftest import Load, Problems


def job(rest: str = "") -> str:
    top = 'model = "m"\nprompt = "p"\ntools = ["Bash"]'
    return f'{top}\n{rest}\n[workspace]\npath = "."'


def sandbox_of(submission: Submission) -> Sandbox:
    assert submission.spec.sandbox is not None
    return replace(submission.spec.sandbox, file=None)


def test_a_job_file_without_the_section_gets_a_sandbox_where_the_host_has_one(
    load_text: Load,
) -> None:
    assert sandbox_of(load_text(job())) == Sandbox(mode="auto", network=())


def test_what_it_says_is_stored_with_the_job(load_text: Load) -> None:
    section = """[sandbox]
mode = "required"
network = ["example.com", "*.example.org"]
memory = "4G"
processes = 512
cpu = 1.5
disk = 2_000_000
hooks = true
caches = ["pip", "npm"]
writable_caches = ["go"]
"""
    submission = load_text(job(section))
    spec = submission.spec
    assert sandbox_of(submission) == Sandbox(
        *("required", ("example.com", "*.example.org"), 4 * 2**30, 512, 1.5, 2_000_000),
        *(True, ("pip", "npm"), ("go",)),
    )
    assert JobSpec.from_json(spec.to_json()) == spec
    assert JobSpec.from_json({**spec.to_json(), "sandbox": None}).sandbox is None
    on = load_text(job('[sandbox]\nnetwork = "on"'))
    assert sandbox_of(on) == Sandbox(network=None)
    assert JobSpec.from_json(on.spec.to_json()) == on.spec
    inside = sandbox_of(load_text(job('[sandbox]\nimage = "registry.example.org:5000/a/b:1"')))
    assert (inside.image, inside.is_required) == ("registry.example.org:5000/a/b:1", True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('mode = "on"', 'sandbox.mode: must be "auto" or "required" or "off", not'),
        ("network = true", "sandbox.network: must be"),
        ('network = ["http://example.com/x"]', "sandbox.network[0]: "),
        ('memory = "4 apples"', 'a string such as "512M", "4G", not'),
        ("memory = 10", "sandbox.memory: must be from 1,048,576 to"),
        ("processes = 0", "sandbox.processes: must be at least 1"),
        ('caches = ["chrome"]', "sandbox.caches[0]: must be"),
        ('writable_caches = ["go", "go"]', "sandbox.writable_caches"),
        (
            'image = "--privileged"',
            "sandbox.image: is not an image; give one such as 'python:3.12'",
        ),
        ('image = "a"\nmode = "off"', "sandbox.mode: does not go with image"),
        ('image = "a"\ncaches = ["pip"]', "sandbox.caches: does not go with image"),
        ('image = "a"\nwritable_caches = ["go"]', "sandbox.writable_caches: does not go with"),
    ],
)
def test_mistakes_are_told(problems_of: Problems, line: str, said: str) -> None:
    (problem,) = problems_of(job(f"[sandbox]\n{line}"))
    assert said in problem


def test_commands_are_trusted_only_in_a_sandbox_that_is_required(
    load_text: Load, problems_of: Problems
) -> None:
    trusting = '[permissions]\ntrust = "contained"\n'
    (problem,) = problems_of(job(trusting))
    assert 'permissions.trust: needs the sandbox: give mode = "required"' in problem
    spec = load_text(job(trusting + '[sandbox]\nmode = "required"')).spec
    assert spec.trusts_contained
    assert not load_text(job()).spec.trusts_contained


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ('verify = ["npm ci", "npm test"]', "'npm ci' may need it"),
        ('verify = ["cd app && python3 -m pip install -e ."]', "may need it"),
        ('[permissions]\nallow = ["Bash(curl *)"]', "'curl *' may need it"),
        ('[permissions]\nallow = ["Bash(git push *)"]', "'git push *' may need it"),
        ('verify = ["make test"]', None),
        ('[permissions]\ndeny = ["Bash(curl *)"]\nallow = ["Bash(git diff *)"]', None),
        ('verify = ["npm ci"]\n[sandbox]\nnetwork = ["registry.example.org"]', None),
        ('verify = ["npm ci"]\n[sandbox]\nmode = "off"', None),
    ],
)
def test_a_job_that_seems_to_need_the_network_and_does_not_say_so_is_warned(
    load_text: Load, keys: str, named: str | None
) -> None:
    notes = load_text(job(keys)).notes
    assert len(notes) == (named is not None)
    assert named is None or named in notes[0]
