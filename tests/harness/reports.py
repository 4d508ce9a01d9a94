"""Messages of rollout workers that report one sequence each."""

import numpy as np
from numpy.typing import NDArray

from relibra.v1 import routing_pb2
from relibra.wire.routing import encode_sequence


def report_one(
    ordinal: int,
    job_id: str,
    step: int | None,
    sequence_id: str,
    num_rows: int,
    counts_LE: NDArray[np.unsignedinteger],
    *,
    epoch: int = 0,
) -> routing_pb2.ReportRoutingRequest:
    """Return the message that reports one sequence."""
    sequence = encode_sequence(step, sequence_id, num_rows, counts_LE, epoch=epoch)
    return routing_pb2.ReportRoutingRequest(ordinal=ordinal, job_id=job_id, sequences=[sequence])
