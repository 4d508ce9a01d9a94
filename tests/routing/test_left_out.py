from relibra.errors import InvalidInput, LimitExceeded
from relibra.routing.left_out import LeftOut


def test_errors_that_differ_in_numbers_are_one_cause_with_the_first_as_its_example():
    left_out = LeftOut()
    left_out.add(LimitExceeded("line 1: too large"))
    for line in (3, 40, 500):
        left_out.add(InvalidInput(f"line {line}: choices[{line % 7}]: expected routed experts, got null"))
    assert left_out.count == 4
    assert [(cause.count, cause.example) for cause in left_out.causes] == [
        (3, "line 3: choices[3]: expected routed experts, got null"),
        (1, "line 1: too large"),
    ]
