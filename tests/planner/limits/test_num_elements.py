import pytest
from google.protobuf.message import Message

from relibra.errors import InvalidInput
from relibra.planner.limits.num_elements import MAX_OTHERS, check_num_elements
from relibra.v1 import execution_pb2, plan_pb2, routing_pb2

REPORT, SUBMIT = routing_pb2.ReportRoutingRequest, plan_pb2.SubmitScheduleRequest
EXECUTION = execution_pb2.ReportExecutionRequest
SHAPE_1 = bytes((6 << 3 | 2, 2, 2 << 3, 1))
"""A field `counts` whose array has one extent."""


def shape(num_extents: int) -> bytes:
    report = REPORT(job_id="job", sequence_id="seq")
    report.counts.shape.extend([1] * num_extents)
    return report.SerializeToString()


@pytest.mark.parametrize(
    ("data", "message", "name"),
    [
        (shape(5000), REPORT, "Array.shape"),
        (SHAPE_1 * 5000, REPORT, "ReportRoutingRequest.counts|Array.shape"),
        (bytes((15 << 3, 1)) * 5000, REPORT, "unknown fields"),
        (EXECUTION(causes=[1] * 5000).SerializeToString(), EXECUTION, r"ReportExecutionRequest\.causes"),
        (SUBMIT(schedule=plan_pb2.Schedule(sequence_ids=["s"] * 5000)).SerializeToString(), SUBMIT, "sequence_ids"),
    ],
    ids=["in one list", "in a message each", "unknown", "enums", "texts"],
)
def test_S7_millions_of_elements_are_refused_by_name_before_they_are_parsed(
    data: bytes, message: type[Message], name: str
) -> None:
    check_num_elements(data, message.DESCRIPTOR, 2 * 5000)
    with pytest.raises(InvalidInput, match=rf"({name}).*at most {MAX_OTHERS + 10} elements"):
        check_num_elements(data, message.DESCRIPTOR, 10)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 20, b"\x0a\xff\xff\xff\x7f", b"\x1a\x05\x0a", b"\x0b"])
def test_S7_malformed_messages_are_left_to_the_parser(data: bytes) -> None:
    check_num_elements(data, SUBMIT.DESCRIPTOR, 10)
