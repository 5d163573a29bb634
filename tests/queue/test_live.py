from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from runner.queue.live import RedisLive, channel_of, follow
from tests.queue.conftest import RUN_IDS, Server, until

RUN = RUN_IDS[0]


@pytest.fixture(autouse=True)
def patient_live_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text is lost because a starved server answers late."""
    monkeypatch.setattr("runner.queue.live.ANSWER_SECONDS", 60.0)


@pytest.fixture
def live(connection: redis.Redis) -> Iterator[RedisLive]:
    live = RedisLive(connection)
    yield live
    live.close()


class Follower:
    """Collects what ``follow`` yields, in a thread."""

    def __init__(self, url: str, run_id: str = RUN) -> None:
        self.texts: list[str] = []
        self.idle = 0
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._collect, args=(url, run_id))

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gone.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def _collect(self, url: str, run_id: str) -> None:
        stream = follow(url, run_id)
        for text in stream:
            if text is None:
                self.idle += 1
            else:
                self.texts.append(text)
            if self._gone.is_set():
                break
        stream.close()


def has_followers(connection: redis.Redis, run_id: str = RUN) -> bool:
    return connection.pubsub_numsub(channel_of(run_id))[0][1] > 0


def publish_until_seen(live: RedisLive, follower: Follower, text: str) -> None:
    def seen() -> bool:
        live.publish(RUN, text)
        return text in follower.text

    until(seen)


def calls(connection: redis.Redis, command: str) -> int:
    statistics = connection.info("commandstats").get(f"cmdstat_{command}")
    return int(statistics["calls"]) if statistics else 0


@pytest.mark.slow
def test_a_follower_gets_text_whole_and_in_order(
    server: Server, connection: redis.Redis, live: RedisLive
) -> None:
    with Follower(server.url) as follower:
        publish_until_seen(live, follower, "begin")
        for number in range(1000):
            live.publish(RUN, f"{number},")
        live.publish(RUN, "end")
        until(lambda: follower.text.endswith("end"))
    assert follower.text.endswith("".join(f"{number}," for number in range(1000)) + "end")


@pytest.mark.slow
def test_text_goes_in_batches(server: Server, connection: redis.Redis, live: RedisLive) -> None:
    with Follower(server.url) as follower:
        publish_until_seen(live, follower, "begin")
        before = calls(connection, "publish")
        for _ in range(1000):
            live.publish(RUN, ".")
        live.publish(RUN, "end")
        until(lambda: follower.text.endswith("end"))
        assert calls(connection, "publish") - before < 500


def test_publishing_to_nobody_costs_no_call_per_delta(
    connection: redis.Redis, live: RedisLive
) -> None:
    for number in range(20_000):
        live.publish(RUN_IDS[number % 500], "delta")
    until(lambda: calls(connection, "pubsub|channels") > 0)
    assert calls(connection, "publish") == 0
    assert calls(connection, "pubsub|channels") < 1000


def test_a_process_that_streams_nothing_asks_nothing(
    connection: redis.Redis, live: RedisLive
) -> None:
    live.close()
    # One look at most, on the way out.
    assert calls(connection, "pubsub|channels") <= 1


@pytest.mark.slow
def test_a_follower_gets_only_its_own_run(
    server: Server, connection: redis.Redis, live: RedisLive
) -> None:
    with Follower(server.url) as follower, Follower(server.url, RUN_IDS[1]) as other:
        until(lambda: has_followers(connection, RUN_IDS[1]))
        publish_until_seen(live, follower, "mine")
    assert other.texts == []


@pytest.mark.slow
def test_closing_sends_the_last_words(server: Server, live: RedisLive) -> None:
    with Follower(server.url) as follower:
        publish_until_seen(live, follower, "begin")
        live.publish(RUN, "last words")
        live.close()
        until(lambda: follower.text.endswith("last words"))


@pytest.mark.slow
def test_lone_surrogates_cost_only_themselves(server: Server, live: RedisLive) -> None:
    with Follower(server.url) as follower:
        publish_until_seen(live, follower, "begin")
        live.publish(RUN, "a\ud800b\0é")
        until(lambda: follower.text.endswith("a?b\0é"))


@pytest.mark.slow
def test_text_that_nobody_fetches_is_bounded(
    server: Server, connection: redis.Redis, live: RedisLive
) -> None:
    with Follower(server.url) as follower:
        publish_until_seen(live, follower, "begin")
        server.freeze()
        for _ in range(100):
            live.publish(RUN, "x" * 100_000)
        server.thaw()
        publish_until_seen(live, follower, "still here")
        assert len(follower.text) <= 3_000_000


@pytest.mark.slow
def test_publishing_never_raises_while_redis_is_away_and_goes_on_after(
    server: Server, live: RedisLive
) -> None:
    with Follower(server.url) as follower:
        publish_until_seen(live, follower, "before")
        server.kill()
        idle = follower.idle
        for _ in range(1000):
            live.publish(RUN, "lost")
        until(lambda: follower.idle > idle)
        server.start()
        publish_until_seen(live, follower, "after")


@pytest.mark.slow
def test_a_quiet_run_yields_none_so_that_the_caller_can_look_elsewhere(server: Server) -> None:
    with Follower(server.url) as follower:
        until(lambda: follower.idle > 1)
    assert follower.texts == []
