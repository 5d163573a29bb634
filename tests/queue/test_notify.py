from __future__ import annotations

import socket
import subprocess
import sys
import threading
import traceback

import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from runner.core.agents import DEEPEST
from runner.errors import UnreachableError, UsageError
from runner.queue.connection import connect
from runner.queue.live import RedisLive
from runner.queue.notify import RqNotifier, read_run_id
from runner.queue.worker import QueueWorker
from tests.queue.conftest import QUEUE_KEY, RUN_IDS, Handler, Server, until


@pytest.mark.parametrize("run_id", [RUN_IDS[0], RUN_IDS[0] + ".1000" * DEEPEST])
def test_a_notification_makes_an_rq_job_that_holds_only_the_run_id(
    connection: redis.Redis, notifier: RqNotifier, run_id: str
) -> None:
    notifier.notify([run_id])
    [job] = Queue("runner", connection=connection, serializer=JSONSerializer).jobs
    assert list(job.args) == [run_id]
    assert job.kwargs == {}
    assert read_run_id(connection.hget(job.key, "data")) == run_id
    assert (job.timeout, job.result_ttl, job.failure_ttl) == (-1, 0, 600)
    assert job.retries_left is None
    assert 0 < connection.ttl(job.key) <= 3600


def test_a_run_may_be_notified_of_as_often_as_it_is_due(
    connection: redis.Redis, notifier: RqNotifier
) -> None:
    notifier.notify([RUN_IDS[0], RUN_IDS[0]])
    notifier.notify([RUN_IDS[0]])
    assert len(set(connection.lrange(QUEUE_KEY, 0, -1))) == 3


def test_notifying_nobody_touches_nothing(server: Server, notifier: RqNotifier) -> None:
    server.kill()
    notifier.notify([])


def test_a_notifier_without_redis_says_what_to_do(server: Server, notifier: RqNotifier) -> None:
    server.kill()
    with pytest.raises(UnreachableError, match="RUNNER_REDIS_URL") as caught:
        notifier.notify([RUN_IDS[0]])
    assert "\n" not in str(caught.value)


def test_a_notifier_that_redis_refuses_is_unreachable(
    connection: redis.Redis, notifier: RqNotifier
) -> None:
    connection.set(QUEUE_KEY, "not a list")
    with pytest.raises(UnreachableError, match="WRONGTYPE"):
        notifier.notify([RUN_IDS[0]])


def test_a_notifier_notifies_again_after_redis_restarted(
    server: Server, connection: redis.Redis, notifier: RqNotifier
) -> None:
    notifier.notify([RUN_IDS[0]])
    server.kill()
    server.start()
    notifier.notify([RUN_IDS[1]])
    assert connection.llen(QUEUE_KEY) == 1


def test_what_is_closed_leaves_no_connection_to_redis(
    connection: redis.Redis, notifier: RqNotifier
) -> None:
    live, handled = RedisLive(connection), Handler()
    worker = QueueWorker(connection, name="a", slots=1, handle=handled)
    thread = threading.Thread(target=worker.run)
    thread.start()
    notifier.notify([RUN_IDS[0]])
    live.publish(RUN_IDS[0], "text")
    until(lambda: bool(handled.ended) and len(connection.client_list()) > 2)
    worker.stop()
    thread.join()
    live.close()
    notifier.close()
    until(lambda: len(connection.client_list()) == 1)


def test_a_wrong_url_is_refused_without_repeating_its_password() -> None:
    with pytest.raises(UsageError, match="redis://") as caught:
        connect("http://user:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["redis://:hunter2/more@host:6379", "redis://:hunter2#@host:x", "redis://:hunter2@h:1/0?odd=3"],
)
def test_nothing_of_a_url_that_cannot_be_read_is_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="%2F") as caught:
        connect(url)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.slow
def test_a_notification_is_tried_once_so_that_a_redis_that_hangs_holds_nobody_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        notifier = RqNotifier(connect(f"redis://127.0.0.1:{hanging.getsockname()[1]}"))
        with pytest.raises(UnreachableError, match="RUNNER_REDIS_URL"):
            notifier.notify([RUN_IDS[0]])
        hanging.setblocking(False)
        hanging.accept()[0].close()
        with pytest.raises(BlockingIOError):
            hanging.accept()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["connection", "live", "embedded"])
def test_modules_without_a_queue_never_import_rq(module: str) -> None:
    script = f"import sys, runner.queue.{module}; sys.exit('rq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
