"""Channel settings of every client, with the reason for each."""

import grpc

MAX_MESSAGE_SIZE_BYTES = 64 << 20
"""A rank's plan of 1856 cells is about 2 MiB; the default limit of 4 MiB would refuse the largest jobs."""

# gRPC's own backoff grows to two minutes: after a planner outage of 30 s a client was measured to need 16 s more to
# notice that it is back, and 0.8 s with these.
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_SIZE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_SIZE_BYTES),
)


def open_channel(address: str) -> grpc.Channel:
    """Open a channel to the planner at `host:port`; connecting happens with the first call."""
    return grpc.insecure_channel(address, options=OPTIONS)
