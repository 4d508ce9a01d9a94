"""The decision table of the agreement."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.agent.plans import agreement
from relibra.agent.plans.agreement import Decision, Offer, decide
from relibra.planning import Cause, PlanId

ID = PlanId(epoch=7, version=3)
OTHER_VERSION = PlanId(epoch=7, version=4)
OTHER_EPOCH = PlanId(epoch=8, version=3)


def holds(plan_id: PlanId = ID, step: int = 1, digest: bytes = b"content1") -> Offer:
    return Offer(step=step, plan_id=plan_id, digest=digest)


def lacks(cause: Cause, step: int = 1) -> Offer:
    return Offer(step=step, plan_id=None, lack=cause)


def test_S1_all_ranks_hold_the_same_plan() -> None:
    assert decide([holds()] * 4) == Decision(plan_id=ID, causes=(), reason=f"all 4 ranks hold plan {ID}")


LATE, STALE, INVALID, DISAGREED = Cause.LATE, Cause.STALE, Cause.INVALID, Cause.DISAGREED


@pytest.mark.parametrize(
    ("offers", "causes", "reason"),
    [
        ([holds(), lacks(LATE), holds(), lacks(LATE)], [LATE], "ranks 1, 3 without a plan in time"),
        ([lacks(LATE)] * 2, [LATE], "ranks 0, 1 without a plan in time"),
        ([holds(), lacks(STALE)], [STALE], "rank 1 offered an older epoch than was applied before"),
        ([lacks(INVALID), holds()], [INVALID], "rank 0 offered an invalid plan"),
        (
            [lacks(STALE), lacks(LATE), holds()],
            [LATE, STALE],
            "rank 1 without a plan in time; rank 0 offered an older epoch than was applied before",
        ),
        ([holds(step=1), holds(step=2)], [DISAGREED], "ranks are at different steps: 1, 2"),
        (
            [lacks(LATE, step=1), holds(step=2)],
            [LATE, DISAGREED],
            "rank 0 without a plan in time; ranks are at different steps: 1, 2",
        ),
        (
            [lacks(LATE), holds(), holds(OTHER_VERSION)],
            [LATE, DISAGREED],
            f"rank 0 without a plan in time; ranks hold different plans: rank 1 plan {ID} ({b'content1'.hex()}); "
            f"rank 2 plan {OTHER_VERSION} ({b'content1'.hex()})",
        ),
    ],
)
def test_L1_without_a_common_plan_nothing_is_applied(offers: list[Offer], causes: list[Cause], reason: str) -> None:
    assert decide(offers) == Decision(plan_id=None, causes=tuple(causes), reason=reason)


@pytest.mark.parametrize("other", [holds(OTHER_VERSION), holds(OTHER_EPOCH), holds(digest=b"content2")])
def test_S1_different_plans_are_not_mixed(other: Offer) -> None:
    decision = decide([holds(), other, holds()])
    assert decision.plan_id is None
    assert decision.causes == (DISAGREED,)
    assert "ranks 0, 2 plan" in decision.reason
    assert "rank 1 plan" in decision.reason


def test_causes_do_not_depend_on_words(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = [lacks(LATE), lacks(STALE), lacks(INVALID), holds(), holds(OTHER_VERSION)]
    before = decide(offers)
    for cause in (LATE, STALE, INVALID):
        monkeypatch.setitem(agreement._LACKS, cause, "ranks hold different plans")
    reworded = decide(offers)
    assert reworded.reason != before.reason
    assert reworded.causes == before.causes == (LATE, STALE, INVALID, DISAGREED)


def test_reason_stays_readable_with_many_ranks() -> None:
    assert decide([lacks(LATE)] * 64).reason == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ... without a plan in time"


_WORDS_OF_64_BITS = st.integers(0, 2**64 - 1)


@given(
    st.integers(0, 2**62),
    st.builds(PlanId, epoch=_WORDS_OF_64_BITS, version=_WORDS_OF_64_BITS) | st.sampled_from([LATE, STALE, INVALID]),
    st.binary(max_size=32),
)
def test_an_offer_survives_the_collective(step: int, brought: PlanId | Cause, digest: bytes) -> None:
    plan_id, lack = (brought, None) if isinstance(brought, PlanId) else (None, brought)
    got = Offer.from_tensor(Offer(step=step, plan_id=plan_id, digest=digest, lack=lack).to_tensor())
    assert (got.step, got.plan_id, got.lack) == (step, plan_id, lack)
    assert got.digest == digest[:8].ljust(8, b"\0")
