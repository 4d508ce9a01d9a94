"""Channels against servers that are there, come and go."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.channel import open_channel

pytestmark = pytest.mark.timeout(60)


class Jobs(job_pb2_grpc.JobServiceServicer):
    """Answers with its number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def RegisterJob(self, request: job_pb2.RegisterJobRequest, context: Any) -> job_pb2.RegisterJobResponse:
        return job_pb2.RegisterJobResponse(epoch=self._number)


@contextmanager
def planner(number: int, port: int = 0) -> Iterator[int]:
    """A server that answers with `number`; yields its port."""
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    job_pb2_grpc.add_JobServiceServicer_to_server(Jobs(number), server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield bound
    finally:
        server.stop(None).wait()


def ask(channel: grpc.Channel) -> int:
    """Return the number of who answered."""
    request = job_pb2.RegisterJobRequest(job_id="job")
    return int(job_pb2_grpc.JobServiceStub(channel).RegisterJob(request, timeout=20, wait_for_ready=True).epoch)


def ask_until_answered_by(channel: grpc.Channel, *numbers: int) -> None:
    seen: set[int] = set()
    while not seen.issuperset(numbers):
        seen.add(ask(channel))


def test_L2_calls_take_turns_between_planners_and_go_to_those_that_are_there() -> None:
    with planner(1) as first, ExitStack() as stack:
        second = stack.enter_context(planner(2))
        with open_channel(f"ipv4:127.0.0.1:{first},127.0.0.1:{second}") as channel:
            ask_until_answered_by(channel, 1, 2)
            stack.close()
            ask_until_answered_by(channel, 1)
            with planner(3, second):
                ask_until_answered_by(channel, 1, 3)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_L2_the_only_planner_of_a_name_is_found_again(host: str) -> None:
    with planner(1) as port, open_channel(f"{host}:{port}") as channel:
        assert ask(channel) == 1
    with open_channel(f"{host}:{port}") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            job_pb2_grpc.JobServiceStub(channel).RegisterJob(job_pb2.RegisterJobRequest(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with planner(2, port):
            assert ask(channel) == 2
