"""Attempts that have lost their run and don't know it yet: nothing that they note counts."""

from __future__ import annotations

import pytest

from runner.errors import Interrupted, WorkspaceError
from runner.ports import Interrupt
from runner.store.database import Database
from runner.workspace.notes import Made, MadeNotes

from .conftest import Claim, Host, claim_again


@pytest.mark.slow
def test_a_stale_restore_leaves_what_a_person_mended(
    host: Host, begin: Claim, store: Database
) -> None:
    stale = begin()
    tree = host.prepare(stale).snapshot
    assert tree is not None
    lease = claim_again(store, stale)
    host.prepare(lease, tree)
    with pytest.raises((Interrupted, WorkspaceError)):
        host.workspaces.restore(stale, tree, Interrupt(lambda: False))
    (host.path(lease) / "a.py").write_text("mended\n")
    prepared = host.prepare(claim_again(store, lease), tree)
    assert prepared.cause == "changed"
    assert (host.path(lease) / "a.py").read_text() == "mended\n"


@pytest.mark.slow
def test_a_stale_attempt_that_wakes_up_while_it_makes_the_workspace_unsays_nothing(
    host: Host, begin: Claim, store: Database
) -> None:
    stale = begin(setup=("test -e ready || { touch ready; exit 0; }",))
    interrupt = Interrupt()
    run = host.tools.command
    leases = [stale]

    def sleeps(command: object, given: Interrupt) -> object:
        host.tools.command = run  # type: ignore[method-assign]
        leases.append(claim_again(store, stale))
        host.prepare(leases[1])
        interrupt.set("dropped")
        return run(command, given)  # type: ignore[arg-type]

    host.tools.command = sleeps  # type: ignore[method-assign,assignment]
    with pytest.raises(Interrupted):
        host.prepare(stale, interrupt=interrupt)
    (host.path(stale) / "a.py").write_text("worked\n")
    assert host.record(leases[1])
    MadeNotes.beside(host.path(stale), stale.attempt).write(None)
    assert host.record(leases[1])


def test_the_newest_attempt_up_to_the_one_that_asks_has_the_word(host: Host) -> None:
    workspace = host.home / "workspaces" / "run_x"
    notes = [MadeNotes.beside(workspace, attempt) for attempt in range(12)]
    assert notes[9].read() is None
    notes[9].write(Made("nine"))
    notes[10].write(Made("ten"))
    notes[9].write(None)
    assert (notes[9].read(), notes[10].read(), notes[11].read()) == (None, Made("ten"), Made("ten"))
    notes[11].write(None)
    assert notes[11].read() is None
    assert [path.name for path in notes[11].folder.iterdir()] == ["11"], "the others are of no use"
