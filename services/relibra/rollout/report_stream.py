"""`ReportStream`: sends what an outbox holds to a planner, from a thread of its own, until it is closed."""

import logging
import threading

import grpc

from relibra.errors import ERRORS, RelibraError, StaleEpoch, TooManyCalls
from relibra.rollout.outbox import CountedSequence, Outbox
from relibra.v1 import routing_pb2
from relibra.wire.channel import open_channel
from relibra.wire.credentials import Credentials
from relibra.wire.launch import this_launch
from relibra.wire.routing import encode_sequence, join_attempt, open_stream
from relibra.wire.status import from_rpc_error

logger = logging.getLogger(__name__)

_MIN_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 1.0
_CLOSE_TIMEOUT_S = 2.0
_JOIN_TIMEOUT_S = 10.0


class ReportStream:
    """Joins the attempt of a launch and sends its sequences; opens the stream again whenever it breaks.

    Args:
        address: the planner's address, `host:port`.
        job_id: the job of the sequences.
        outbox: the sequences to send; the stream tells it what the planner answered.
        credentials: how to authenticate; by default read from the environment.
        attempt: the token of the launch; by default that of this process.
    """

    def __init__(
        self, address: str, job_id: str, outbox: Outbox, *, credentials: Credentials | None, attempt: str | None
    ) -> None:
        self._address = address
        self._job_id = job_id
        self._outbox = outbox
        self._credentials = credentials
        self._token = this_launch(attempt).token
        self._starting = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._thread: threading.Thread | None = None
        self._over: StaleEpoch | None = None
        """Why the launch has no attempt, if another launch registered the job before this stream joined."""
        self.epoch = 0
        """The attempt of the next sequence; 0 until the planner names it."""
        self.trouble: RelibraError | None = None
        """Why the last stream broke; None again once the planner answers a sequence."""

    def follow(self, epoch: int) -> None:
        """Let later sequences belong to this attempt; an earlier attempt changes nothing."""
        # Epochs only rise. An answer that was already on its way may name the previous attempt.
        if epoch <= self.epoch:
            return
        if self.epoch:
            logger.info(
                "another attempt of job %s began, epoch %016x: later sequences belong to it", self._job_id, epoch
            )
        self.epoch = epoch

    def start(self) -> None:
        """Start the thread, if it does not run yet.

        Raises:
            RelibraError: the address or the credentials cannot be used.
        """
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                self._channel = open_channel(self._address, self._credentials)
                self._thread = threading.Thread(target=self._send_until_closed, name="relibra-reporter", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread within a few seconds, once the outbox is closed."""
        with self._starting:
            thread = self._thread
        if thread is None:
            return
        thread.join(_CLOSE_TIMEOUT_S)
        with self._starting:  # the thread opens no other channel once the outbox is closed
            if self._channel is not None:
                self._channel.close()
        thread.join()

    def _send_until_closed(self) -> None:
        backoff_s = _MIN_BACKOFF_S
        # Once joined, the stream stays open without work: it tells which attempt comes next.
        while self.epoch or self._outbox.wait_for_work():
            if isinstance(self.trouble, TooManyCalls):
                self._replace_channel()
            channel = self._channel
            assert channel is not None
            try:
                self._join(channel)
                requests = (
                    routing_pb2.ReportRoutingRequest(ordinal=ordinal, job_id=self._job_id, sequences=sequences)
                    for ordinal, sequences in self._outbox.send(self._encode)
                )
                for response in open_stream(channel, requests, self._job_id, self.epoch):
                    self._outbox.answer(
                        response.answered_through,
                        {
                            refusal.ordinal: ERRORS.get(refusal.error, RelibraError)(refusal.message)
                            for refusal in response.refused
                        },
                    )
                    self._outbox.grant(response.credit_through)
                    self.follow(response.epoch)
                    if response.answered_through:
                        self.trouble, backoff_s = None, _MIN_BACKOFF_S
            except grpc.RpcError as error:
                self._note(from_rpc_error(error))
            finally:
                self._outbox.end_stream()
            if self._outbox.wait_until_closed(backoff_s):
                return
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    def _replace_channel(self) -> None:
        """Replace the channel: an open channel keeps its planner, and a new one may reach another planner."""
        with self._starting:
            if self._channel is None or self._outbox.wait_until_closed(0):
                return
            try:
                channel = open_channel(self._address, self._credentials)
            except RelibraError as error:  # for example, somebody is replacing a credentials file
                self._note(error)
                return
            self._channel.close()
            self._channel = channel

    def _join(self, channel: grpc.Channel) -> None:
        """Learn the attempt of the launch."""
        try:
            epoch = join_attempt(channel, self._job_id, self._token, timeout_s=_JOIN_TIMEOUT_S)
        except grpc.RpcError as error:
            refusal = from_rpc_error(error)
            if not isinstance(refusal, StaleEpoch):
                raise
            self._over = refusal  # the stream opens all the same, so that flush names each sequence that it refuses
        else:
            self._over = None
            self.follow(epoch)

    def _encode(self, sequence: CountedSequence) -> routing_pb2.SequenceRouting:
        epoch = sequence.epoch or self.epoch
        if not epoch:
            assert self._over is not None
            raise type(self._over)(str(self._over))
        return encode_sequence(
            sequence.step,
            sequence.sequence_id,
            sequence.num_rows,
            sequence.counts_LE,
            sequence.policy_versions,
            epoch=epoch,
        )

    def _note(self, trouble: RelibraError) -> None:
        if self.trouble is None and not self._outbox.wait_until_closed(0):
            logger.warning("the stream to the planner broke; reconnecting: %s", trouble)
        self.trouble = trouble
