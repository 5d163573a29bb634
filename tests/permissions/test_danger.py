"""The worst of several calls is found, for a person who reads denials."""

from __future__ import annotations

from itertools import pairwise

from runner.permissions.danger import danger_of

WORST_FIRST = (
    ("find . -delete", "it deletes"),
    ("ssh host", "it reaches beyond the workspace into the system"),
    ("sudo ls", "it changes permissions, or runs as another user"),
    ("git -C x push -f", "it publishes, or changes what others see"),
    ("git reset --hard HEAD~3", "it rewrites history, or drops work that is not committed"),
    ("$x", "it hides what it runs, or where it writes"),
    ("cat ~/.ssh/id_rsa", "it is about secrets"),
    ("ls", ""),
)


def test_commands_are_ordered_by_what_they_do() -> None:
    found = [danger_of("Bash", {"command": command}) for command, _ in WORST_FIRST]
    assert [words for _, words in found] == [words for _, words in WORST_FIRST]
    assert all(worse[0] > better[0] for worse, better in pairwise(found))


def test_one_part_of_a_command_is_enough() -> None:
    assert danger_of("Bash", {"command": "cd src && make; rm -rf ."})[1] == "it deletes"


def test_other_tools_and_odd_input_have_a_level() -> None:
    write, read = danger_of("Write", {"file_path": "a"}), danger_of("Read", {"file_path": "a"})
    assert write > read
    assert danger_of("Read", {"file_path": "deploy/.env"})[1] == "it is about secrets"
    assert danger_of("Bash", {"command": 3}) == danger_of("Bash", {"command": "ls"})
