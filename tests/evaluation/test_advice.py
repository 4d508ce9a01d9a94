import pytest

from relibra.evaluation.advice import Answer, Gain, Saving, decide, fewest_slots
from relibra.evaluation.uncertainty import Interval


def _gain(mean, margin, low=None, high=None):
    return Gain(mean=mean, margin=margin, low=mean - margin if low is None else low, high=high or mean + margin)


_OTHERS = {"eplb-oracle": _gain(0.05, 0.01), "ultraep": _gain(0.03, 0.01)}


def test_a_margin_of_few_seeds_is_that_of_students_t():
    gains = [0.1, 0.2, 0.3]
    gain = Gain.of(gains, [Interval(each - 0.05, each + 0.1) for each in gains])
    margin = 4.30 * 0.1 / 3**0.5
    assert gain.mean == pytest.approx(0.2)
    assert gain.margin == pytest.approx(margin)
    assert (gain.low, gain.high) == (pytest.approx(0.15 - margin), pytest.approx(0.3 + margin))
    assert str(gain) == "+20.0% (-9.8% to +54.8%)"


@pytest.mark.parametrize(
    ("gain", "answer", "because"),
    [
        (_gain(0.10, 0.02), Answer.TURN_ON, "the best of the others, eplb-oracle, is at"),
        (_gain(0.055, 0.02), Answer.TURN_ON, "the best of the others, eplb-oracle, may do as well with +5.0%"),
        (_gain(0.10, 0.09), Answer.NOT_ENOUGH_DATA, "may be above or below 2%: record more sequences"),
        (_gain(0.10, 0.01, low=0.015), Answer.NOT_ENOUGH_DATA, "may be above or below 2%: measure your machines"),
        (_gain(0.01, 0.005), Answer.WILL_NOT_PAY, "less than the 2%"),
        (_gain(0.05, 0.001), Answer.WILL_NOT_PAY, "eplb-oracle does as well"),
        (_gain(-0.05, 0.001), Answer.WILL_NOT_PAY, "less than the 2%"),
    ],
)
def test_advice_is_to_turn_on_where_the_low_end_pays_and_nothing_else_gains_as_much(gain, answer, because):
    given, reason = decide(gain, _OTHERS, num_sequences=100)
    assert given is answer
    assert because in reason


def test_few_sequences_decide_nothing():
    assert decide(_gain(0.5, 0.0), _OTHERS, num_sequences=31)[0] is Answer.NOT_ENOUGH_DATA


def test_S9_a_trace_of_another_model_gives_figures_but_no_recommendation():
    given, reason = decide(_gain(0.5, 0.01), _OTHERS, num_sequences=100, other_model="it has 2 x 16")
    assert given is Answer.NOT_ENOUGH_DATA
    assert "it has 2 x 16. Record this model" in reason
    assert "+50.0%" in reason


def test_a_step_that_mostly_rolls_out_saves_little_of_its_gpu_hours():
    alone, shared = (Saving.of(_gain(0.25, 0.05), share) for share in (0.0, 0.75))
    assert alone.mean == pytest.approx(0.2)  # a quarter faster is a fifth shorter
    assert shared.mean == pytest.approx(0.05)
    assert shared.low == pytest.approx(0.25 * 0.2 / 1.2)
    assert str(shared) == "5.0% (4.2% to 5.8%)"


def test_slots_that_gain_next_to_nothing_are_not_worth_their_memory():
    assert fewest_slots({0: 0.10, 1: 0.197, 2: 0.201, 4: 0.2}) == 1
    assert fewest_slots({0: 0.10, 1: 0.15, 2: 0.201, 4: 0.2}) == 2
