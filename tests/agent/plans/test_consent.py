"""What each rank raises when some of them found something wrong."""

import pytest

from relibra.agent.plans.consent import Concern, objection
from relibra.errors import RelibraError, Unsupported

WEIGHTS = Concern(what="checking weights", error=RelibraError, advice="somebody wrote them")
ROUTING = Concern(what="checking routing", error=Unsupported, advice="another replay is installed")


def test_without_an_error_all_ranks_go_on() -> None:
    assert objection({WEIGHTS: None, ROUTING: None}, "before the step", [[0, 0], [0, 0]]) is None


@pytest.mark.parametrize(
    ("own", "flags", "kind", "text"),
    [
        pytest.param(
            Unsupported("layer 3"),
            [[0, 0], [0, 1]],
            Unsupported,
            "checking routing before the step failed on rank 1 (this rank: layer 3)",
            id="own",
        ),
        pytest.param(
            None,
            [[0, 1], [0, 0], [0, 1]],
            Unsupported,
            "checking routing before the step failed on ranks 0, 2, whose logs say why. Usually, another replay is "
            "installed",
            id="others",
        ),
        pytest.param(
            Unsupported("layer 3"),
            [[1, 0], [0, 1]],
            RelibraError,
            "checking weights before the step failed on rank 0, whose logs say why. Usually, somebody wrote them",
            id="the first concern",
        ),
    ],
)
def test_S9_what_one_rank_finds_all_raise(
    own: RelibraError | None, flags: list[list[int]], kind: type[RelibraError], text: str
) -> None:
    error = objection({WEIGHTS: None, ROUTING: own}, "before the step", flags)
    assert type(error) is kind
    assert str(error) == text
