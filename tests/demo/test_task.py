import numpy as np
import pytest

from relibra.demo import task


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ("copy", [3, 1, 2, 7, 0, 0]),
        ("reverse", [0, 0, 7, 2, 1, 3]),
        ("sort", [0, 0, 1, 2, 3, 7]),
        ("successor", [4, 2, 3, 0, 1, 1]),
    ],
)
def test_answer_follows_the_operator(domain: str, expected: list[int]) -> None:
    number = task.DOMAINS.index(domain)
    first = number * task.ALPHABET
    prompt = np.array([32 + number, *(first + np.array([3, 1, 2, 7, 0, 0])), task.SEPARATOR])
    assert (task.answer(prompt) == first + np.array(expected)).all()


def test_reward_is_one_for_the_answer_and_small_for_the_right_alphabet() -> None:
    prompts = task.draw_prompts(seed=0, step=0, num_micro_batches=4, prompts_per_micro_batch=4)
    for prompt in prompts.tokens:
        right = task.answer(prompt)
        wrong = np.where(right % task.ALPHABET == 0, right + 1, right - 1)
        assert task.reward(prompt, right) == 1.0
        assert task.reward(prompt, wrong) == pytest.approx(0.2)
        assert task.reward(prompt, np.full_like(right, task.SEPARATOR)) == 0.0


def test_prompts_depend_on_seed_and_step_alone() -> None:
    first, again, other = (
        task.draw_prompts(seed=3, step=step, num_micro_batches=2, prompts_per_micro_batch=3) for step in (1, 1, 2)
    )
    assert (first.tokens == again.tokens).all()
    assert (first.tokens != other.tokens).any()


def test_advantages_are_relative_to_the_group() -> None:
    advantages = task.group_advantages(np.array([1.0, 0.0, 0.5, 0.5]), group_size=2)
    assert advantages[:2] == pytest.approx([1.0, -1.0], abs=1e-3)
    assert advantages[2:] == pytest.approx([0.0, 0.0])
