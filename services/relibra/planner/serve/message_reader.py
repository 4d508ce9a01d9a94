"""Reads the messages of calls: for some time only, a few of an account at a time, and beside other calls (S6, S7).

gRPC reads the message of a unary call before it asks anybody. So all methods are served as streams, which is the same
on the wire, and a message is read here: after the caller is known and its call is admitted.
"""

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from relibra.errors import InvalidInput, Unavailable
from relibra.planner.limits.admission import Admission
from relibra.planner.limits.large_messages import LARGE_SIZE_BYTES, check_num_elements
from relibra.wire.channel import METHODS_IN_PARTS

MESSAGE_TIMEOUT_S = 10.0
"""The shortest time for a call, from its headers to the end of its message. A call gets up to twice this time, at
random, so that thousands of calls that began together neither end together nor come back together."""


class MessageTimeout(Unavailable):
    """The message of a call took too long. The cause may be the planner or the network, so the caller may try again."""

    limit = "message_timeout"


class MessageReader:
    """Reads and parses the messages of one planner, within the limits of its admission."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def read(self, context: Any, method: str, handler: Any, account: str, stack: AsyncExitStack) -> Any:
        """Read the one message of a call, which a client may have cut into parts if it is large.

        A large message has the turn of its account until `stack` ends.

        Raises:
            MessageTimeout: the message did not arrive in time.
            InvalidInput: there is no message, or it is malformed.
            LimitExceeded: it is too large.
        """
        is_in_parts = method in METHODS_IN_PARTS
        limiter = self._admission.messages_in_parts if is_in_parts else self._admission.messages
        timeout_s, parts, size_bytes = MESSAGE_TIMEOUT_S * random.uniform(1, 2), [], 0
        try:
            # Until a call asks for its message, flow control keeps all but the beginning of it at the sender.
            async with asyncio.timeout(timeout_s) as deadline, limiter.turn(account):
                while (part := await context.read()) is not grpc.aio.EOF:
                    parts.append(part)
                    size_bytes += len(part)
                    self._admission.check_size(method, size_bytes)
                    if not is_in_parts:
                        break
                deadline.reschedule(None)
                if not parts:
                    raise InvalidInput.of("message", expected=f"the message of {method}", got="none")
                await stack.enter_async_context(self._admission.large.turn(account, size_bytes))
        except TimeoutError:
            raise MessageTimeout(
                f"the message of the call did not arrive within {timeout_s:.3g} s; send it with the call, and try again"
            ) from None
        return await self.parse(b"".join(parts), method, handler)

    async def parse(self, data: bytes, method: str, handler: Any) -> Any:
        """Parse the message of a method, in a thread if it is large; raises as `read`."""
        self._admission.check_size(method, len(data))

        def parse() -> Any:
            if len(data) > LARGE_SIZE_BYTES:
                check_num_elements(data, _descriptor(handler), self._admission.settings.max_sequences)
            return handler.request_deserializer(data)

        try:
            return await self._admission.large.work(len(data), parse)
        except DecodeError as error:
            raise InvalidInput.of("message", expected=f"the protobuf message of {method}", got=error) from error


def _descriptor(handler: Any) -> Descriptor:
    """Return the descriptor of a method's request; the deserializer is `FromString` of its class."""
    descriptor: Descriptor = handler.request_deserializer.__self__.DESCRIPTOR
    return descriptor
