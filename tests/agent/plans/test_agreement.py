"""The decision table of the agreement."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relibra.agent.plans.agreement import Lack, Offer, decide
from relibra.planning import PlanId

ID = PlanId(epoch=7, version=3)
OTHER_VERSION = PlanId(epoch=7, version=4)
OTHER_EPOCH = PlanId(epoch=8, version=3)


def holds(plan_id: PlanId = ID, step: int = 1, digest: bytes = b"content1") -> Offer:
    return Offer(step=step, plan_id=plan_id, digest=digest)


def lacks(lack: Lack, step: int = 1) -> Offer:
    return Offer(step=step, plan_id=None, lack=lack)


def test_S1_all_ranks_hold_the_same_plan() -> None:
    assert decide([holds()] * 4) == (ID, f"all 4 ranks hold plan {ID}")


@pytest.mark.parametrize(
    ("offers", "reason"),
    [
        ([holds(), lacks(Lack.LATE), holds(), lacks(Lack.LATE)], "ranks 1, 3 without a plan in time"),
        ([lacks(Lack.LATE)] * 2, "ranks 0, 1 without a plan in time"),
        ([holds(), lacks(Lack.STALE)], "rank 1 offered an older epoch than was applied before"),
        ([lacks(Lack.INVALID), holds()], "rank 0 offered an invalid plan"),
        (
            [lacks(Lack.LATE), lacks(Lack.STALE), holds()],
            "rank 0 without a plan in time; rank 1 offered an older epoch than was applied before",
        ),
        ([holds(step=1), holds(step=2)], "ranks are at different steps: 1, 2"),
    ],
)
def test_L1_without_a_common_plan_nothing_is_applied(offers: list[Offer], reason: str) -> None:
    assert decide(offers) == (None, reason)


@pytest.mark.parametrize("other", [holds(OTHER_VERSION), holds(OTHER_EPOCH), holds(digest=b"content2")])
def test_S1_different_plans_are_not_mixed(other: Offer) -> None:
    plan_id, reason = decide([holds(), other, holds()])
    assert plan_id is None
    assert "ranks 0, 2 plan" in reason
    assert "rank 1 plan" in reason


def test_reason_stays_readable_with_many_ranks() -> None:
    assert decide([lacks(Lack.LATE)] * 64)[1] == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ... without a plan in time"


_WORDS = st.integers(0, 2**64 - 1)


@given(st.integers(0, 2**62), st.none() | st.builds(PlanId, epoch=_WORDS, version=_WORDS), st.binary(max_size=32))
def test_an_offer_survives_the_collective(step: int, plan_id: PlanId | None, digest: bytes) -> None:
    offer = Offer(step=step, plan_id=plan_id, digest=digest, lack=Lack.NOTHING if plan_id else Lack.LATE)
    got = Offer.from_tensor(offer.to_tensor(torch.device("cpu")))
    assert (got.step, got.plan_id, got.lack) == (offer.step, offer.plan_id, offer.lack)
    assert got.digest == digest[:8].ljust(8, b"\0")
