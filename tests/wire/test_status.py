import grpc
import pytest

from relibra.errors import ERRORS, LimitExceeded, RelibraError, TooManyCalls, Unavailable
from relibra.wire.status import from_rpc_error, to_status


class Failed(grpc.RpcError):
    """A failed call as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._answer = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._answer[0]

    def details(self) -> str:
        return self._answer[1]

    def trailing_metadata(self) -> list[object]:
        item = type("Item", (), {"__init__": lambda self, key, value: self.__dict__.update(key=key, value=value)})
        return [item(*each) for each in self._answer[2]]


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_a_client_raises_what_the_server_raised(name: str) -> None:
    raised = from_rpc_error(Failed(*to_status(ERRORS[name]("what to do"))))
    assert type(raised) is ERRORS[name]
    assert str(raised) == "what to do"


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_retryable_errors_have_codes_that_clients_retry(name: str) -> None:
    retryable = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION}
    assert ERRORS[name].retryable == (to_status(ERRORS[name](""))[0] in retryable)


def test_S6_clients_that_do_not_know_that_a_planner_is_full_try_again() -> None:
    code, details, _ = to_status(TooManyCalls("full"))
    assert from_rpc_error(Failed(code, details, (("relibra-error", "NoSuchError"),))).retryable


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_a_lost_connection_is_unavailable(code: grpc.StatusCode) -> None:
    raised = from_rpc_error(Failed(code, "no route"))
    assert isinstance(raised, Unavailable)
    assert "no route" in str(raised)


def test_S7_a_message_that_grpc_refuses_for_its_size_is_beyond_a_limit() -> None:
    raised = from_rpc_error(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max (2 vs. 1)"))
    assert isinstance(raised, LimitExceeded)
    assert "takes no message of this size: larger than max (2 vs. 1)" in str(raised)


def test_an_unknown_failure_keeps_its_words() -> None:
    raised = from_rpc_error(Failed(grpc.StatusCode.INTERNAL, "oops", (("relibra-error", "NoSuchError"),)))
    assert type(raised) is RelibraError
    assert "INTERNAL: oops" in str(raised)


@pytest.mark.parametrize("letter", ["a", "%", "\n", "é", "🜁", "\ud800"])
def test_S7_the_text_of_an_error_fits_a_trailer_in_any_script(letter: str) -> None:
    _, details, _ = to_status(RelibraError(letter * 100_000))
    sent_bytes = sum(
        1 if " " <= each <= "~" and each != "%" else 3 * len(each.encode(errors="replace")) for each in details
    )
    assert sent_bytes <= 4096
    assert len(details) == 2000 or sent_bytes > 4000
    assert set(details) == {letter}
