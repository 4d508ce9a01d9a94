from dataclasses import replace

from relibra.planning.plan import Prediction
from relibra.planning.summary import sentence


def test_bytes_follow_from_the_sizes_of_the_model(random_problem):
    problem = random_problem.random(0, num_ep_groups=2, num_sequences=30)
    model = replace(problem.model, expert_weight_size_bytes=10, expert_state_size_bytes=70)
    numbers = replace(problem, model=model).solve().prediction
    assert numbers.num_moved_experts > 0
    assert numbers.num_replicas > 0
    assert numbers.reorder_size_bytes == numbers.num_moved_experts * 2 * 70
    assert numbers.replica_size_bytes == numbers.num_replicas * 10


def test_the_sentence_gives_numbers_and_reasons(random_problem):
    numbers = replace(
        random_problem.random(0).solve().prediction,
        imbalance_before=2.0,
        imbalance_after=1.01,
        imbalance_bound=1.0,
        imbalance_floor=1.0,
    )
    text = sentence(numbers, ["this", "that"])
    assert text == (
        "imbalance falls from 2.000 to 1.010, 1.00% above the lower bound of this placement, "
        "and no placement gets below 1.000: this; that"
    )
    assert "to 1.000, the lower bound of this placement, and" in sentence(
        replace(numbers, imbalance_after=1.0), ["this"]
    )
    assert sentence(replace(numbers, imbalance_before=1.01), ["this"]).startswith("imbalance stays at 1.010, ")


def test_S9_unknown_sizes_of_experts_are_unknown_and_not_zero() -> None:
    known = Prediction(
        imbalance_before=2.0,
        imbalance_after=1.0,
        imbalance_bound=1.0,
        num_moved_experts=3,
        num_replicas=0,
        reorder_size_bytes=0,
        replica_size_bytes=0,
    )
    assert known.reorder_size_bytes is None
    assert known.replica_size_bytes == 0, "no replica takes no bytes, whatever its size"
    assert Prediction(**known.to_dict()) == known
    assert known.to_dict()["reorder_size_bytes"] == 0
