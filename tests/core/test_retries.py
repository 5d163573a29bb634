import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.retries import FIRST_DELAY, LONGEST_DELAY, delay, is_retried, retry_at
from runner.core.spec import Patience
from runner.errors import ModelCallError

JITTER = st.floats(0, 1)


def failed(kind="api_error", status=None, retry_after=None):
    return ModelCallError(kind, "no", status=status, retry_after=retry_after)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_busy_and_broken_servers_are_tried_again(status):
    assert is_retried(failed("whatever", status))


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_what_will_not_change_is_fatal(status):
    assert not is_retried(failed("api_error", status))


@pytest.mark.parametrize(
    "kind", ["connection", "stream_cut", "stream_stalled", "stream_broken", "call_deadline"]
)
def test_lost_connections_and_bad_streams_are_tried_again(kind):
    assert is_retried(failed(kind))


@pytest.mark.parametrize("kind", ["overloaded_error", "rate_limit_error", "api_error"])
@pytest.mark.parametrize("status", [None, 200])
def test_an_error_inside_a_stream_is_judged_by_its_type(kind, status):
    assert is_retried(failed(kind, status))
    assert not is_retried(failed("invalid_request_error", status))


def test_back_off_doubles_from_one_second_to_ten_minutes():
    waits = [delay(failures, None, jitter=1.0) for failures in range(1, 14)]
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST_DELAY == 600.0


@given(st.integers(1, 10_000), JITTER)
def test_wait_stays_between_half_of_the_exponential_and_all_of_it(failures, jitter):
    whole = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures - 1, 20))
    assert whole / 2 <= delay(failures, None, jitter) <= whole


@pytest.mark.slow
@given(st.integers(1, 10_000), st.floats(0, 100_000), JITTER)
def test_wait_is_never_shorter_than_the_api_asked(failures, asked, jitter):
    assert delay(failures, asked, jitter) >= asked


def again(error, failures=1, first=0.0, now=0.0, patience=None):
    return retry_at(
        error,
        failures=failures,
        first_failure_at=first,
        now=now,
        jitter=1.0,
        patience=patience or Patience(),
    )


def test_retry_is_due_after_the_wait():
    assert again(failed(), failures=3, now=50.0) == 54.0


def test_fatal_error_has_no_retry():
    assert again(failed("invalid_request_error", 400)) is None


@pytest.mark.parametrize("status", [None, 400, 413])
def test_prompt_that_was_too_long_is_tried_again_at_once(status):
    assert again(failed("prompt_too_long", status), failures=9, now=50.0) == 50.0


def test_patience_lasts_six_hours_by_default():
    assert Patience().max_seconds == 6 * 3600
    assert again(failed(), now=6 * 3600 - 1.0) == 6 * 3600
    assert again(failed(), now=6 * 3600.0) is None


def test_a_wait_that_outlasts_patience_is_not_begun():
    assert again(failed("rate_limit_error", 429, retry_after=7 * 3600)) is None


def test_tries_in_a_row_are_limited():
    patience = Patience(max_attempts=3)
    assert again(failed(), failures=2, patience=patience) is not None
    assert again(failed(), failures=3, patience=patience) is None


@pytest.mark.slow
@given(
    failures=st.integers(1, 2_000),
    now=st.floats(0, 100_000),
    asked=st.none() | st.floats(0, 50_000),
    jitter=JITTER,
)
def test_retry_is_in_the_future_and_within_patience(failures, now, asked, jitter):
    patience = Patience()
    at = retry_at(
        failed("overloaded_error", 529, asked),
        failures=failures,
        first_failure_at=0.0,
        now=now,
        jitter=jitter,
        patience=patience,
    )
    if at is not None:
        assert now < at <= patience.max_seconds
        assert failures < patience.max_attempts
        assert at >= now + (asked or 0)


def test_a_spend_limit_wears_out_no_patience():
    refused = failed("spend_limit", 429)
    assert again(refused, failures=5_000, first=0.0, now=1e9) == 1e9
