import pytest

from relibra.evaluation.advice import Answer, decide, fewest_slots
from relibra.evaluation.estimate import Estimate

_MARGINS = {"eplb-oracle": Estimate(0.05, 0.04, 0.06), "ultraep": Estimate(0.03, 0.01, 0.05)}


@pytest.mark.parametrize(
    ("gain", "margin", "answer", "because"),
    [
        (Estimate(0.10, 0.08, 0.12), 0.03, Answer.TURN_ON, "and by +3.0% (+2.0% to +4.0%) over ultraep, the best of"),
        (Estimate(0.21, 0.19, 0.23), 0.012, Answer.UNLESS_BALANCED, "but by +1.2% (+0.2% to +2.2%) over ultraep"),
        (Estimate(0.21, 0.19, 0.23), -0.001, Answer.WILL_NOT_PAY, "but by -0.1% (-1.1% to +0.9%) over ultraep"),
        (Estimate(0.10, 0.015, 0.12), 0.03, Answer.NOT_ENOUGH_DATA, "may be above or below 2%: record more sequences"),
        (Estimate(0.01, 0.005, 0.015), 0.03, Answer.WILL_NOT_PAY, "less than the 2%"),
        (Estimate(-0.05, -0.06, -0.04), 0.03, Answer.WILL_NOT_PAY, "less than the 2%"),
    ],
)
def test_advice_is_to_turn_on_where_the_low_end_pays_and_nothing_else_gains_as_much(gain, margin, answer, because):
    margins = _MARGINS | {"ultraep": Estimate(margin, margin - 0.01, margin + 0.01)}
    given, reason = decide(gain, margins, num_sequences=100)
    assert given is answer
    assert because in reason


def test_few_sequences_decide_nothing():
    assert decide(Estimate(0.5, 0.5, 0.5), _MARGINS, num_sequences=31)[0] is Answer.NOT_ENOUGH_DATA


def test_S9_a_trace_of_another_model_gives_figures_but_no_recommendation():
    given, reason = decide(Estimate(0.5, 0.5, 0.5), _MARGINS, num_sequences=100, other_model="it has 2 x 16")
    assert given is Answer.NOT_ENOUGH_DATA
    assert "it has 2 x 16. Record this model" in reason
    assert "+50.0%" in reason


def test_slots_that_gain_next_to_nothing_are_not_worth_their_memory():
    def fewest(*gains):
        return fewest_slots({slots: Estimate(gain, 0, 1) for slots, gain in zip((0, 1, 2, 4), gains, strict=True)})

    assert fewest(0.10, 0.197, 0.201, 0.2) == 1
    assert fewest(0.10, 0.15, 0.201, 0.2) == 2
