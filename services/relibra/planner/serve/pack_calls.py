"""Calls that ask for a better schedule: what is checked before a solver works on it."""

from relibra.errors import InvalidInput
from relibra.planner.limits.admission import Admission
from relibra.planner.solve.packing import PackTask
from relibra.planning import Schedule
from relibra.store import JobRecord
from relibra.v1 import plan_pb2
from relibra.wire.packing import decode_pack_request


def pack_task(admission: Admission, job: JobRecord, step: int, request: plan_pb2.PackRequest) -> PackTask:
    """Decode and check a request to pack; the caller has checked the number of sequences.

    Raises:
        InvalidInput: a field is malformed or out of range.
        LimitExceeded: packing would need too much memory or time.
    """
    sequence_ids, length_S, start, rules = decode_pack_request(request, job.cluster)
    check_schedule(admission, job, start)
    admission.check_pack_size(len(sequence_ids), start.num_micro_batches, job.model, job.cluster, job.params)
    return PackTask(job=job, step=step, sequence_ids=sequence_ids, length_S=length_S, start=start, rules=rules)


def check_schedule(admission: Admission, job: JobRecord, schedule: Schedule) -> None:
    """Refuse a schedule that is too large to be solved, or that has more micro-batches than sequences.

    Raises:
        InvalidInput: the schedule has more micro-batches than sequences.
        LimitExceeded: names the limit.
    """
    num_sequences, num_micro_batches = schedule.num_sequences, schedule.num_micro_batches
    if num_micro_batches > num_sequences:
        raise InvalidInput.of(
            "schedule.micro_batch",
            expected=f"below {num_sequences}, the number of sequences",
            got=num_micro_batches - 1,
        )
    admission.check_num_cells(schedule.num_rows(job.cluster), job.model)
    admission.check_solve_size(num_sequences, num_micro_batches, job.model, job.cluster, job.params)
