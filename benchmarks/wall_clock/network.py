"""A network between ranks that is slower than the memory of this machine."""

import os
import shlex
import sys

_RATE = "RELIBRA_BENCHMARK_NETWORK_MBIT"
"""The rate of the network that this process runs in, if `run_in_network_of` started it."""


def run_in_network_of(rate_mbit: int) -> None:
    """Run this command again in a network of its own, unless it already runs there; needs root and tc.

    The network consists of a loopback device that sends at the rate. Two ranks that send to each other share it, so
    each gets half of it in each direction.
    """
    if os.environ.get(_RATE) == str(rate_mbit):
        return
    os.environ[_RATE] = str(rate_mbit)
    shape = f"tc qdisc add dev lo root tbf rate {rate_mbit}mbit burst 1mb latency 50ms"
    again = shlex.join([sys.executable, "-m", "benchmarks.wall_clock", *sys.argv[1:]])
    os.execvp("unshare", ["unshare", "--net", "sh", "-ec", f"ip link set lo up; {shape}; exec {again}"])
