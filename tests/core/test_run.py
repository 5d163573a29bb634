from runner.core.run import ENDED, STATES, TRANSITIONS


def reachable(state):
    seen, todo = set(), [state]
    while todo:
        if (here := todo.pop()) not in seen:
            seen.add(here)
            todo += TRANSITIONS[here]
    return seen


def test_table_names_every_state_and_no_other():
    assert set(TRANSITIONS) == set(STATES)
    assert set().union(*TRANSITIONS.values()) == set(STATES)
    assert len(STATES) == len(set(STATES))


def test_no_state_leads_to_itself():
    assert not [state for state, ways in TRANSITIONS.items() if state in ways]


def test_every_state_can_be_reached_from_queued():
    assert reachable("queued") == set(STATES)


def test_no_state_is_a_dead_end():
    assert all(ENDED & reachable(state) for state in STATES)


def test_only_a_queued_run_starts():
    assert [state for state, ways in TRANSITIONS.items() if "running" in ways] == ["queued"]


def test_an_ended_run_can_only_be_queued_again():
    assert all(TRANSITIONS[state] == {"queued"} for state in ENDED)


def test_a_run_can_be_cancelled_at_any_moment_before_its_end():
    assert all("cancelled" in TRANSITIONS[state] for state in STATES if state not in ENDED)


def test_success_comes_only_from_running():
    assert [state for state, ways in TRANSITIONS.items() if "succeeded" in ways] == ["running"]


def test_every_outcome_of_an_attempt_is_a_legal_way_from_running():
    assert TRANSITIONS["running"] == ENDED | {"queued", "waiting"}
