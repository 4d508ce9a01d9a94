"""The gRPC channel of every client: its settings, and the reason for each."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import grpc

from relibra.wire.credentials import Credentials

MAX_MESSAGE_SIZE_BYTES = 64 << 20
"""Far above the plan of one rank."""
MAX_PART_SIZE_BYTES = 1 << 20
"""The largest message that a planner receives; it is above the counts of one sequence. A larger one goes in parts."""
METHODS_IN_PARTS = frozenset({"SubmitSchedule"})
"""Methods whose message may come in several parts, which the planner joins."""

_SERVICE_CONFIG = {
    # A host name may stand for several planners, and each of them serves any job. A channel draws one by lot and stays
    # with it. With round_robin, calls would fail at once while all planners are away; pick_first connects for them.
    "loadBalancingConfig": [{"pick_first": {"shuffleAddressList": True}}],
    # Every call of these services is idempotent. `relibra.rollout` repeats reports of routing itself.
    "methodConfig": [
        {
            "name": [{"service": f"relibra.v1.{name}"} for name in ("JobService", "PlanService", "ExecutionService")],
            "retryPolicy": {
                # One retry, and soon: a caller that must not wait long, such as an agent, retries by itself.
                "maxAttempts": 2,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.05s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    # A planner that was down for everyone must not get twice the load when it comes back.
    "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
}

# gRPC's default backoff grows to two minutes. After a planner outage of 30 s, a client was measured to need 16 s more
# to notice that the planner was back; with these settings it needs 0.8 s.
OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name, this is how long one attempt to connect may take. It leaves a busy planner time for TLS, and it
    # ends soon where the machine of a planner is gone and nothing says so.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # A planner that is replaced comes back with another address. By default gRPC asks for addresses every 30 s at most.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_SIZE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_SIZE_BYTES),
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
)


def open_channel(address: str, credentials: Credentials | None = None) -> grpc.Channel:
    """Open a channel to the planner at `host:port`; connecting happens with the first call.

    Args:
        address: the planner's address; if the host has several IP addresses, the channel draws one by lot.
        credentials: by default those in the environment, see `Credentials.from_env`.

    Raises:
        InvalidInput: a file of the credentials cannot be read or used.
    """
    credentials = credentials or Credentials.from_env()
    tls = credentials.to_grpc()
    channel = (
        grpc.insecure_channel(address, options=OPTIONS)
        if tls is None
        else grpc.secure_channel(address, tls, options=OPTIONS)
    )
    return _ByName(grpc.intercept_channel(channel, _CallMetadata(credentials)))


class _ByName(grpc.Channel):
    """A channel whose calls name their method, so that a call on a closed channel raises `ValueError`.

    Generated stubs ask for the handle that gRPC has registered for a method, and an intercepted channel asks for it in
    every call. Once the channel is closed, perhaps by another thread, that is a segmentation fault (grpcio 1.85).
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *serializers: Any, _registered_method: bool = False, **named: Any) -> Any:
        return self._channel.unary_unary(method, *serializers, **named)

    def unary_stream(self, method: str, *serializers: Any, _registered_method: bool = False, **named: Any) -> Any:
        return self._channel.unary_stream(method, *serializers, **named)

    def stream_unary(self, method: str, *serializers: Any, _registered_method: bool = False, **named: Any) -> Any:
        return self._channel.stream_unary(method, *serializers, **named)

    def stream_stream(self, method: str, *serializers: Any, _registered_method: bool = False, **named: Any) -> Any:
        return self._channel.stream_stream(method, *serializers, **named)

    def subscribe(self, callback: Callable[[Any], None], try_to_connect: bool = False) -> None:
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[Any], None]) -> None:
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _CallMetadata(
    grpc.UnaryUnaryClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to every call."""

    def __init__(self, credentials: Credentials) -> None:
        self._metadata = credentials.metadata

    def _continue(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), *self._metadata)
        wait_for_ready = getattr(details, "wait_for_ready", None)
        return continuation(
            _CallDetails(details.method, details.timeout, metadata, details.credentials, wait_for_ready, None), request
        )

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self._continue(continuation, client_call_details, request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return self._continue(continuation, client_call_details, request_iterator)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return self._continue(continuation, client_call_details, request_iterator)
