"""Channels to servers that start and stop."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from harness.name_server import black_hole, name_server
from harness.services import eventually
from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.channel import OPTIONS, open_channel

CALL_AFTER_CLOSE = """
from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.channel import open_channel
channel = open_channel("127.0.0.1:1")
jobs = job_pb2_grpc.JobServiceStub(channel)
channel.close()
try:
    jobs.RegisterJob(job_pb2.RegisterJobRequest())
except ValueError as error:
    print(error)
"""
NUM_CLIENTS = 24
"""With this many clients, all of them draw the same planner once in 2**23 runs."""


class Jobs(job_pb2_grpc.JobServiceServicer):
    """A service that answers with its number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def RegisterJob(self, request: job_pb2.RegisterJobRequest, context: Any) -> job_pb2.RegisterJobResponse:
        return job_pb2.RegisterJobResponse(epoch=self._number)


@contextmanager
def planner(number: int, port: int = 0, host: str = "127.0.0.1") -> Iterator[int]:
    """Run a server that answers with `number`; yield its port."""
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    job_pb2_grpc.add_JobServiceServicer_to_server(Jobs(number), server)
    bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    try:
        yield bound
    finally:
        server.stop(None).wait()


def ask(channel: grpc.Channel, timeout_s: float = 60) -> int:
    """Return the number of the planner that answered."""
    request = job_pb2.RegisterJobRequest(job_id="job")
    return int(job_pb2_grpc.JobServiceStub(channel).RegisterJob(request, timeout=timeout_s, wait_for_ready=True).epoch)


def test_L2_clients_are_spread_over_planners_and_go_to_those_that_are_there() -> None:
    with planner(1) as first, ExitStack() as second_planner, ExitStack() as stack:
        second = second_planner.enter_context(planner(2))
        # Channels of one process share connections; those of different processes do not.
        options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        address = f"ipv4:127.0.0.1:{first},127.0.0.1:{second}"
        channels = [stack.enter_context(grpc.insecure_channel(address, options)) for _ in range(NUM_CLIENTS)]
        answers = [ask(channel) for channel in channels]
        assert set(answers) == {1, 2}
        assert [ask(channel) for channel in channels] == answers
        second_planner.close()
        assert [ask(channel) for channel in channels] == [1] * NUM_CLIENTS


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_L2_the_only_planner_of_a_name_is_found_again(host: str) -> None:
    with planner(1) as port, open_channel(f"{host}:{port}") as channel:
        assert ask(channel) == 1
    with open_channel(f"{host}:{port}") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            job_pb2_grpc.JobServiceStub(channel).RegisterJob(job_pb2.RegisterJobRequest(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with planner(2, port):
            assert ask(channel) == 2


def test_L2_a_planner_that_comes_back_with_another_address_is_found() -> None:
    """As when the only pod of a headless Service is replaced. With gRPC's own settings this takes up to 30 s."""
    with name_server() as names, ExitStack() as first_planner:
        names.addresses = ["127.0.0.2"]
        port = first_planner.enter_context(planner(1, host="127.0.0.2"))
        with open_channel(f"dns://127.0.0.1:{names.port}/planner.test:{port}") as channel:
            assert ask(channel) == 1
            first_planner.close()
            # Nobody says that the machine of the first planner is gone, and the name keeps the address for a while.
            with black_hole("127.0.0.2", port), planner(2, port, host="127.0.0.3"):
                with pytest.raises(grpc.RpcError):
                    ask(channel, timeout_s=1.5)
                eventually(lambda: names.num_asked > 1)
                names.addresses = ["127.0.0.3"]
                began_at = time.monotonic()
                assert ask(channel) == 2
                print(f"the new planner was found after {time.monotonic() - began_at:.1f} s; L2 allows 3 s")


def test_L1_a_call_on_a_closed_channel_raises_instead_of_ending_the_process():
    """A session closes its channel beside the thread that calls. gRPC's own stubs end in a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", CALL_AFTER_CLOSE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Cannot invoke RPC on closed channel!\n"), done.stderr
