from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import zlib
from collections import Counter
from pathlib import Path

import pytest
import redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from runner.queue.notify import RqNotifier
from runner.queue.worker import QueueWorker
from tests.queue.conftest import QUEUE_KEY, RUN_IDS, Handler, Server, until, working


@pytest.mark.slow
def test_every_notified_run_is_handled_once(connection: redis.Redis, notifier: RqNotifier) -> None:
    handler = Handler()
    with working(connection, handler):
        notifier.notify(RUN_IDS[:100])
        notifier.notify(RUN_IDS[100:200])
        until(lambda: len(handler.ended) == 200)
    assert Counter(handler.ended) == Counter(RUN_IDS[:200])


@pytest.mark.slow
def test_all_slots_work_at_once_and_no_more(connection: redis.Redis, notifier: RqNotifier) -> None:
    handler = Handler(held=True)
    notifier.notify(RUN_IDS[:100])
    with working(connection, handler, slots=64) as worker:
        until(lambda: handler.at_once == 64)
        assert worker.free_slots == 0
        handler.let_go()
        until(lambda: len(handler.ended) == 100)
    assert handler.most_at_once == 64


@pytest.mark.slow
@pytest.mark.usefixtures("quick_heartbeat")
def test_nothing_is_popped_without_a_free_slot(
    connection: redis.Redis, notifier: RqNotifier
) -> None:
    handler = Handler(held=True)
    notifier.notify(RUN_IDS[:10])
    with working(connection, handler, slots=3) as worker:
        until(lambda: handler.at_once == 3)
        until(lambda: connection.hget("rq:worker:tested", "state") == b"busy")
        assert worker.free_slots == 0
        assert connection.llen(QUEUE_KEY) == 7
    assert connection.llen(QUEUE_KEY) == 7
    assert sorted(handler.ended) == sorted(handler.begun)


@pytest.mark.slow
def test_nothing_is_left_in_redis_of_a_queue_message_that_ended(
    connection: redis.Redis, notifier: RqNotifier
) -> None:
    handler = Handler()
    with working(connection, handler):
        notifier.notify(RUN_IDS[:20])
        until(lambda: len(handler.ended) == 20)
    assert connection.keys() == [b"rq:queues"]


@pytest.mark.slow
def test_a_queue_message_taken_by_an_offer_in_between_goes_back_to_the_queue(
    connection: redis.Redis, notifier: RqNotifier
) -> None:
    handler = Handler(held=True)
    with working(connection, handler, slots=1) as worker:
        until(lambda: bool(connection.client_list(_type="normal")))
        until(lambda: blocked_clients(connection) == 1)
        assert worker.offer(RUN_IDS[0])
        notifier.notify([RUN_IDS[1]])
        assert not worker.offer(RUN_IDS[2])
        until(lambda: blocked_clients(connection) == 0)
        until(lambda: connection.llen(QUEUE_KEY) == 1)
        until(lambda: handler.begun == [RUN_IDS[0]])
        handler.let_go()
        until(lambda: handler.ended == RUN_IDS[:2])


def blocked_clients(connection: redis.Redis) -> int:
    return int(connection.info("clients")["blocked_clients"])


def test_an_offer_needs_no_redis(server: Server, connection: redis.Redis) -> None:
    handler = Handler()
    server.kill()
    with working(connection, handler) as worker:
        assert worker.offer(RUN_IDS[0])
        until(lambda: handler.ended == [RUN_IDS[0]])
        worker.stop()
        assert not worker.offer(RUN_IDS[1])
        assert worker.free_slots == 0


@pytest.mark.slow
def test_the_listener_hears_of_a_slot_when_it_is_free(
    connection: redis.Redis, notifier: RqNotifier
) -> None:
    seen: list[int] = []

    def listen() -> None:
        seen.append(worker.free_slots)
        raise RuntimeError("the listener is broken")

    with working(connection, Handler(), slots=1, on_slot_free=listen) as worker:
        for number in range(3):  # the next one would take the slot before the listener looks
            notifier.notify([RUN_IDS[number]])
            until(lambda: len(seen) > number)  # noqa: B023
    assert seen == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("failure", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_a_handler_that_fails_costs_neither_the_worker_nor_a_slot(
    connection: redis.Redis,
    notifier: RqNotifier,
    failure: BaseException,
    caplog: pytest.LogCaptureFixture,
) -> None:
    handled: list[str] = []

    def handle(run_id: str) -> None:
        handled.append(run_id)
        if len(handled) < 4:
            raise failure

    with working(connection, handle, slots=1):
        notifier.notify(RUN_IDS[:5])
        until(lambda: len(handled) == 5)
    assert handled == RUN_IDS[:5]
    assert f"the queue message of {RUN_IDS[0]} failed" in caplog.text
    assert connection.keys() == [b"rq:queues"]


@pytest.mark.slow
def test_stop_ends_a_worker_that_waits_in_the_queue(connection: redis.Redis) -> None:
    with working(connection, Handler()):
        until(lambda: blocked_clients(connection) == 1)


def test_stop_takes_nothing_new_and_waits_for_what_is_in_hand(
    connection: redis.Redis, notifier: RqNotifier
) -> None:
    handler = Handler(held=True)
    worker = QueueWorker(connection, name="tested", slots=2, handle=handler)
    thread = threading.Thread(target=worker.run)
    thread.start()
    notifier.notify([RUN_IDS[0]])
    until(lambda: handler.begun == [RUN_IDS[0]])
    worker.stop()
    notifier.notify([RUN_IDS[1]])
    until(lambda: blocked_clients(connection) == 0)
    assert thread.is_alive()
    handler.let_go()
    thread.join(60)
    assert not thread.is_alive()
    assert handler.ended == [RUN_IDS[0]]
    assert connection.llen(QUEUE_KEY) == 1


IN_MAIN_THREAD = """
import signal, sys
from runner.queue import worker as module
from runner.queue.connection import connect
module.ANSWER_SECONDS = module.FAREWELL_SECONDS = 60.0
worker = module.QueueWorker(connect(sys.argv[1]), name="main", slots=1, handle=print)
signal.signal(signal.SIGTERM, lambda *_: worker.stop())
print("ready", flush=True)
worker.run()
"""


@pytest.mark.slow
def test_stop_may_be_called_by_a_signal_handler_of_the_thread_that_runs(
    server: Server, connection: redis.Redis
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", IN_MAIN_THREAD, server.url], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    until(lambda: blocked_clients(connection) == 1)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert worker_names(connection) == []


@pytest.mark.slow
def test_dead_workers_are_forgotten_and_their_jobs_are_not_rerun(connection: redis.Redis) -> None:
    connection.sadd("rq:workers", "rq:worker:dead")
    connection.sadd("rq:workers:runner", "rq:worker:dead")
    connection.hset(
        "rq:job:abandoned",
        mapping={"status": "started", "data": b"", "retries_left": 3, "failure_callback_name": "f"},
    )
    connection.zadd("rq:wip:runner", {"abandoned:execution": 1.0})
    handler = Handler()
    with working(connection, handler):
        until(lambda: connection.smembers("rq:workers") == {b"rq:worker:tested"})
        assert connection.llen(QUEUE_KEY) == 0
    assert handler.begun == []


def test_stop_works_while_redis_is_away(server: Server, connection: redis.Redis) -> None:
    with working(connection, Handler()):
        until(lambda: blocked_clients(connection) == 1)
        server.kill()


@pytest.fixture
def impatient(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker soon gives up a server that hangs."""
    monkeypatch.setattr("runner.queue.worker.ANSWER_SECONDS", 1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_stop_works_while_redis_hangs(server: Server, connection: redis.Redis) -> None:
    with working(connection, Handler()):
        until(lambda: blocked_clients(connection) == 1)
        server.freeze()


@pytest.mark.slow
def test_a_worker_started_while_redis_is_away_works_when_it_comes(
    server: Server, connection: redis.Redis, notifier: RqNotifier
) -> None:
    server.kill()
    handler = Handler()
    with working(connection, handler):
        server.start()
        notifier.notify(RUN_IDS[:2])
        until(lambda: len(handler.ended) == 2)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_heartbeat")
def test_work_goes_on_when_redis_was_killed_and_came_back(
    server: Server, connection: redis.Redis, notifier: RqNotifier
) -> None:
    handler = Handler(held=True)
    with working(connection, handler, slots=4) as worker:
        notifier.notify(RUN_IDS[:2])
        until(lambda: handler.at_once == 2)
        server.kill()
        server.start()
        notifier.notify(RUN_IDS[2:4])
        until(lambda: handler.at_once == 4)
        handler.let_go()
        until(lambda: len(handler.ended) == 4)
        until(lambda: worker.free_slots == 4)
        until(lambda: worker_names(connection) == ["tested"])


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_work_goes_on_when_redis_hung_for_longer_than_its_answer_may_take(
    server: Server, connection: redis.Redis, notifier: RqNotifier, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    with working(connection, handler):
        until(lambda: blocked_clients(connection) == 1)
        server.freeze()
        until(lambda: "Redis is away" in caplog.text)
        server.thaw()

        def is_handled() -> bool:
            # Again and again, as the dispatcher does: a pop that was given up may take the message.
            notifier.notify([RUN_IDS[0]])
            return bool(handler.ended)

        until(is_handled)


@pytest.fixture
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.queue.worker.HEARTBEAT_SECONDS", 0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_heartbeat")
def test_a_worker_registers_again_after_flushall(
    connection: redis.Redis, notifier: RqNotifier
) -> None:
    handler = Handler(held=True)
    with working(connection, handler, slots=2):
        notifier.notify([RUN_IDS[0]])
        until(lambda: connection.exists("rq:workers") == 1 and handler.at_once == 1)
        connection.flushall()
        until(lambda: worker_names(connection) == ["tested"])
        notifier.notify([RUN_IDS[1]])
        until(lambda: handler.at_once == 2)
        handler.let_go()
        until(lambda: len(handler.ended) == 2)


def worker_names(connection: redis.Redis) -> list[str]:
    return [worker.name for worker in Worker.all(connection=connection)]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_heartbeat")
def test_rq_sees_the_worker_and_if_it_works(connection: redis.Redis, notifier: RqNotifier) -> None:
    handler = Handler(held=True)
    with working(connection, handler, slots=2):
        notifier.notify(RUN_IDS[:2])
        until(lambda: connection.hget("rq:worker:tested", "state") == b"busy")
        [seen] = Worker.all(connection=connection)
        assert seen.get_state() == "busy"
        assert seen.queue_names() == ["runner"]
        handler.let_go()
        until(lambda: connection.hget("rq:worker:tested", "state") == b"idle")
    assert worker_names(connection) == []


def poison(connection: redis.Redis, job_id: str, data: bytes) -> None:
    connection.hset(f"rq:job:{job_id}", mapping={"data": data, "status": "queued"})
    connection.rpush(QUEUE_KEY, job_id)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self._path,)


@pytest.mark.slow
def test_poisoned_jobs_are_dropped_and_nothing_in_them_runs(
    connection: redis.Redis, notifier: RqNotifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    stock = Queue("runner", connection=connection)
    stock.enqueue("os.mkdir", str(traces / "pickled-arguments"))
    Queue("runner", connection=connection, serializer=JSONSerializer).enqueue(
        "os.mkdir", str(traces / "named-function")
    )
    poison(connection, "pickle", zlib.compress(pickle.dumps(Bomb(traces / "unpickled"))))
    poison(
        connection, "plain", b'["runner.notify_run", null, ["' + RUN_IDS[9].encode() + b'"], {}]'
    )
    poison(connection, "inflating", zlib.compress(b" " * 50_000_000))
    poison(connection, "deep", zlib.compress(b"[" * 4000))
    poison(connection, "short", zlib.compress(b'["runner.notify_run", null, [], {}]'))
    poison(connection, "number", zlib.compress(b'["runner.notify_run", null, [1], {}]'))
    poison(
        connection, "path", zlib.compress(b'["f", null, ["run_../../../../../../../etc/pw"], {}]')
    )
    poison(connection, "newline", zlib.compress(f'["f", null, ["{RUN_IDS[9]}\\n"], {{}}]'.encode()))
    connection.set("rq:job:string", "not a hash")
    connection.rpush(QUEUE_KEY, "string", "gone", "a:b", "x" * 10_000, b"\xff\xfe")
    handler = Handler()
    with working(connection, handler, slots=1):
        notifier.notify([RUN_IDS[0]])
        until(lambda: handler.ended == [RUN_IDS[0]])
    assert handler.begun == [RUN_IDS[0]]
    assert list(traces.iterdir()) == []
    assert connection.keys("rq:job:*") == []
    assert caplog.text.count("dropped RQ job") == 14


@pytest.mark.slow
def test_what_a_queue_message_names_is_never_called(
    connection: redis.Redis, tmp_path: Path
) -> None:
    handler = Handler()
    queue = Queue("runner", connection=connection, serializer=JSONSerializer)
    queue.enqueue("os.system", RUN_IDS[0])
    with working(connection, handler):
        until(lambda: handler.ended == [RUN_IDS[0]])


@pytest.mark.slow
def test_a_queue_key_of_the_wrong_type_does_not_end_the_worker(
    connection: redis.Redis, notifier: RqNotifier, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    connection.set(QUEUE_KEY, "not a list")
    with working(connection, handler):
        until(lambda: "Redis is away" in caplog.text)
        connection.delete(QUEUE_KEY)
        notifier.notify([RUN_IDS[0]])
        until(lambda: handler.ended == [RUN_IDS[0]])
