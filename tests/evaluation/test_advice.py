import pytest

from relibra.evaluation.advice import Answer, Gain, decide, fewest_slots

_OTHERS = {"eplb-oracle": Gain(mean=0.05, margin=0.01), "ultraep": Gain(mean=0.03, margin=0.01)}


def test_a_margin_of_few_seeds_is_that_of_students_t():
    gain = Gain.of([0.1, 0.2, 0.3])
    assert gain.mean == pytest.approx(0.2)
    assert gain.margin == pytest.approx(4.30 * 0.1 / 3**0.5)
    assert str(gain) == "+20.0% ± 24.8%"


@pytest.mark.parametrize(
    ("mean", "margin", "answer", "because"),
    [
        (0.10, 0.02, Answer.TURN_ON, "the best of the others, eplb-oracle, is at"),
        (0.055, 0.02, Answer.TURN_ON, "the best of the others, eplb-oracle, may do as well with +5.0% ± 1.0%"),
        (0.10, 0.09, Answer.NOT_ENOUGH_DATA, "may be above or below 2%"),
        (0.01, 0.005, Answer.WILL_NOT_PAY, "less than the 2%"),
        (0.05, 0.001, Answer.WILL_NOT_PAY, "eplb-oracle does as well"),
        (-0.05, 0.001, Answer.WILL_NOT_PAY, "less than the 2%"),
    ],
)
def test_advice_is_to_turn_on_where_the_gain_is_certain_and_nothing_else_gains_as_much(mean, margin, answer, because):
    given, reason = decide(Gain(mean=mean, margin=margin), _OTHERS, num_sequences=100)
    assert given is answer
    assert because in reason


def test_few_sequences_decide_nothing():
    assert decide(Gain(mean=0.5, margin=0.0), _OTHERS, num_sequences=31)[0] is Answer.NOT_ENOUGH_DATA


def test_S9_a_trace_of_another_model_gives_figures_but_no_recommendation():
    given, reason = decide(Gain(mean=0.5, margin=0.01), _OTHERS, num_sequences=100, other_model="it has 2 x 16")
    assert given is Answer.NOT_ENOUGH_DATA
    assert "it has 2 x 16. Record this model" in reason
    assert "+50.0%" in reason


def test_slots_that_gain_next_to_nothing_are_not_worth_their_memory():
    assert fewest_slots({0: 0.10, 1: 0.197, 2: 0.201, 4: 0.2}) == 1
    assert fewest_slots({0: 0.10, 1: 0.15, 2: 0.201, 4: 0.2}) == 2
