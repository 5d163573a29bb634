"""What names a job, a run or a tool call, and what is said of a text that names none of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from runner.core.commands import Target
from runner.errors import NotFoundError
from runner.queries.names import Found, Kind, find
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.retry import retry
from runner.store.tables import runs
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC, submission


def test_whole_ids_are_found(database: Database) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    assert find(database, run_id, "job", "run", "call") == Found("run", run_id)
    assert find(database, job_id, "job", "run", "call") == Found("job", job_id)


def test_beginnings_and_endings_are_found(database: Database) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    assert find(database, "run_", "job", "run") == Found("run", run_id)
    assert find(database, "job_0", "job", "run") == Found("job", job_id)
    assert find(database, run_id[-6:], "job", "run") == Found("run", run_id)
    assert find(database, run_id[-12:].upper(), "job", "run") == Found("run", run_id)


def test_endings_under_six_characters_are_not_enough(database: Database) -> None:
    run_id = submit_one(database)
    with pytest.raises(NotFoundError, match="no job or run"):
        find(database, run_id[-5:], "job", "run")


def test_what_could_be_several_is_listed(database: Database) -> None:
    found = [submit_one(database, key) for key in ("a", "b")]
    with pytest.raises(NotFoundError) as refused:
        find(database, "run_", "run")
    assert all(run_id in str(refused.value) for run_id in found)
    for number in range(5):
        submit_one(database, str(number))
    with pytest.raises(NotFoundError, match="and more"):
        find(database, "run_", "run")


def test_only_the_kinds_that_are_asked_for_are_found(database: Database) -> None:
    run_id = submit_one(database)
    with pytest.raises(NotFoundError, match="no job is named"):
        find(database, run_id, "job")


def test_tool_calls_are_found_by_their_id_shortened_and_by_the_api_s(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(tool_use(7), tool_use(8), stop="tool_use")
    name = f"call_{run_id.removeprefix('run_')}_1_2"
    for part in (name, name.removeprefix("call_")[-10:], name[:-4] + "_1_2", "toolu_8"):
        assert find(database, part, "job", "run", "call") == Found("call", name)
    with pytest.raises(NotFoundError, match=r"could be call_.*_1_1, call_.*_1_2"):
        find(database, name[:-2], "call")
    for wrong in (name[:-1] + "3", name + "0", name[:-1] + "99999999999999999999", "call_x_²_1"):
        with pytest.raises(NotFoundError):
            find(database, wrong, "call")


def test_runs_and_calls_are_told_apart(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(tool_use(1), stop="tool_use")
    assert find(database, run_id[-8:], "job", "run", "call") == Found("run", run_id)


@pytest.mark.parametrize(
    "text",
    ["", "%", "______", "run%", "' OR 1=1 --", "\0\0\0\0\0\0", "\udce9" * 6, "é" * 6, "9" * 99],
)
def test_text_that_names_nothing_finds_nothing(database: Database, text: str) -> None:
    submit_one(database)
    with pytest.raises(NotFoundError):
        find(database, text, "job", "run", "call")


def test_error_shows_no_control_characters(database: Database) -> None:
    with pytest.raises(NotFoundError) as refused:
        find(database, "\x1b[2J\u202e", "run")
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


def submit(database: Database, name: str, *items: str, key: str | None = None) -> str:
    spec = replace(SPEC, name=name)
    return jobs_store.submit(database, submission(*items, spec=spec), NOW, key)


def run_of(database: Database, job_id: str, item: str) -> str:
    query = select(func.max(runs.c.id)).where(runs.c.job_id == job_id, runs.c.item_key == item)
    return str(database.rows(query)[0][0])


def refusal(database: Database, text: str, *kinds: Kind) -> str:
    with pytest.raises(NotFoundError) as refused:
        find(database, text, *kinds)
    return str(refused.value)


@pytest.mark.dialect
def test_a_job_is_found_by_last_by_its_name_and_by_its_key(database: Database) -> None:
    older = submit(database, "nightly", "a", key="monday")
    newer = submit(database, "nightly", "a")
    newest = submit(database, "größe, other", "a", key="50% off")
    names = {
        "last": newest,
        "größe, other": newest,
        "50% off": newest,
        "nightly": newer,
        "nigh": newer,
        "monday": older,
    }
    for named, job_id in names.items():
        assert find(database, named, "job", "run", "call") == Found("job", job_id)
    for nothing in ("50", "%", "monda", "Nightly"):
        assert refusal(database, nothing, "job").startswith("no job is named")


def test_a_name_of_several_jobs_lists_them(database: Database) -> None:
    first = submit(database, "nightly-1", "a", key="nightly-2")
    second = submit(database, "nightly-2", "a")
    both = f"could be {first} (nightly-1), {second} (nightly-2): give more of the name"
    assert refusal(database, "nightly", "job") == f"'nightly' {both}"
    assert refusal(database, "nightly-2", "job") == f"'nightly-2' {both}"


def test_a_job_named_like_the_short_id_of_something_else_hides_nothing(database: Database) -> None:
    run_id = submit_one(database)
    for meant in (run_id, run_row(database, run_id).job_id):
        submit(database, meant[-8:], "a", key=f"{meant[-8:]}x")
        assert meant in refusal(database, meant[-8:], "job", "run")


def test_last_is_the_newest_job_whatever_jobs_are_called(database: Database) -> None:
    submit(database, "last", "a", key="x")
    newest = submit(database, "other", "a", key="y")
    assert find(database, "last", "job") == Found("job", newest)


@pytest.mark.dialect
def test_a_run_is_found_by_its_job_and_item(database: Database) -> None:
    job_id = submit(database, "mend", "src/a.py", "src/b.py", "docs/a.py.md", "a", key="one/two")
    a, b = (run_of(database, job_id, f"src/{name}.py") for name in "ab")
    for job in (job_id, job_id[-6:], "last", "mend", "one/two"):
        for item, run_id in (("src/a.py", a), ("src/b", b), ("b.py", b), ("docs", None)):
            found = find(database, f"{job}/{item}", "job", "run")
            assert found == Found("run", run_id or run_of(database, job_id, "docs/a.py.md"))
    assert find(database, "last/a", "run") == Found("run", run_of(database, job_id, "a"))
    assert refusal(database, "last/src", "run").startswith(
        f"'last/src' could be {a} (src/a.py), {b}"
    )


@pytest.mark.dialect
def test_the_nearest_part_of_an_items_key_names_it(database: Database) -> None:
    keys = ("shop/eta.py", "shop/beta.py", "shop/iota.py", "docs/eta_notes.md")
    job_id = submit(database, "night", *keys)
    for part, key in (
        (
            "eta",
            "shop/eta.py",
        ),  # not beta.py: a whole name in the path is nearer than a part of one
        ("eta.py", "shop/eta.py"),
        ("docs", "docs/eta_notes.md"),
        ("iot", "shop/iota.py"),
        ("notes", "docs/eta_notes.md"),
    ):
        assert find(database, f"last/{part}", "run") == Found("run", run_of(database, job_id, key))
    assert "could be" in refusal(database, "last/ta", "run")


@pytest.mark.dialect
def test_to_change_a_run_takes_whole_parts_of_its_items_key(database: Database) -> None:
    keys = ("pre-production-db", "shop/iota.py", "docs/notes.md")
    job_id = submit(database, "night", *keys)
    for part, key in (
        ("pre-production-db", "pre-production-db"),
        ("shop/iota.py", "shop/iota.py"),
        ("iota.py", "shop/iota.py"),
        ("shop/iota", "shop/iota.py"),
        ("docs", "docs/notes.md"),
    ):
        found = find(database, f"last/{part}", "job", "run", to_change=True)
        assert found == Found("run", run_of(database, job_id, key))
    for part, key in (("prod", keys[0]), ("pre", keys[0]), ("db", keys[0]), ("ota.py", keys[1])):
        assert find(database, f"last/{part}", "run").kind == "run"
        with pytest.raises(NotFoundError, match=f"is named 'last/{part}': did you mean last/{key}"):
            find(database, f"last/{part}", "job", "run", to_change=True)


def test_a_job_with_one_item_stands_for_its_run_where_only_a_run_will_do(
    database: Database,
) -> None:
    job_id = submit(database, "nine", "nine")
    run_id = run_of(database, job_id, "nine")
    for name in ("last", "nine", "ni", job_id):
        assert find(database, name, "run") == Found("run", run_id)
        assert find(database, name, "job", "run") == Found("job", job_id)
    submit(database, "two", "a", "b")
    assert "that is a job" in refusal(database, "two", "run")


def test_an_item_that_was_begun_afresh_means_its_newest_run(database: Database) -> None:
    old = submit_one(database, "slugs")
    claim(database, old).reply(text("Done."))
    (change,) = retry(database, Target("run", old), NOW + 1, fresh=True)
    assert find(database, "last/slugs", "run") == Found("run", change.id) != Found("run", old)


@pytest.mark.dialect
def test_a_name_of_the_wrong_kind_is_explained(database: Database) -> None:
    job_id = submit(database, "mend", "src/a b.py", "two", *"3456")
    run_id = run_of(database, job_id, "two")
    claim(database, run_id).reply(tool_use(1), stop="tool_use")
    call_id = f"call_{run_id.removeprefix('run_')}_1_1"
    of_run = f"the tool call {call_id} of the run {run_id}: name a job or run"
    runs_of = "'mend/src/a b.py', mend/two, mend/3, mend/4, mend/5 and 1 more (`runner list mend`)"
    explained: dict[tuple[str, tuple[Kind, ...]], str] = {
        ("mend", ("run",)): f"no run is named 'mend': that is a job; its runs: {runs_of}",
        ("mend/two", ("job",)): "no job is named 'mend/two': that is the run "
        f"{run_id} of the job {job_id}: name a job",
        (call_id, ("job", "run")): f"no job or run is named '{call_id}': that is {of_run}",
        (
            "last",
            ("schedule",),
        ): f"no schedule is named 'last': that is the job {job_id}: name a schedule",
    }
    for (name, kinds), said in explained.items():
        assert refusal(database, name, *kinds) == said


def test_what_is_nearly_a_name_is_proposed(database: Database) -> None:
    submit(database, "quickstart", "slugs", "money", key="monday")
    nothing: dict[tuple[str, Kind], str] = {
        ("quikstart", "job"): "no job is named 'quikstart': did you mean quickstart?",
        ("mondy", "job"): "no job is named 'mondy': did you mean monday?",
        ("slugs", "run"): "no run is named 'slugs': did you mean last/slugs?",
        ("zzz", "run"): "no run is named 'zzz': look with `runner list`",
        ("last/mony", "run"): "no run is named 'last/mony': that job has last/money and 1 more "
        "(`runner list last`)",
        ("last/x", "run"): "no run is named 'last/x': that job has last/slugs, last/money",
    }
    for (name, kind), said in nothing.items():
        assert refusal(database, name, kind) == said
