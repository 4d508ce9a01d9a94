"""A verifiable task in four domains. Each domain has its own alphabet, so that domains prefer different experts.

A prompt is an operator, a string of `LENGTH` symbols and a separator. The answer is the string that results from
applying the operator.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTH = 6
ALPHABET = 8
DOMAINS = ("copy", "reverse", "sort", "successor")
_SYMBOLS = ALPHABET * len(DOMAINS)
SEPARATOR = _SYMBOLS + len(DOMAINS)
VOCABULARY = 64
PROMPT_LENGTH = LENGTH + 2
SEQUENCE_LENGTH = PROMPT_LENGTH + LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The prompts of one step: `tokens` int64 `[P, PROMPT_LENGTH]`, `domain` int64 `[P]`."""

    tokens: NDArray[np.int64]
    domain: NDArray[np.int64]


def draw_prompts(seed: int, step: int, num_micro_batches: int, prompts_per_micro_batch: int) -> Prompts:
    """Draw the prompts of a step in data-set order; each micro-batch prefers other domains, as curricula do."""
    rng = np.random.default_rng([seed, step])
    domain = np.concatenate(
        [
            rng.choice(len(DOMAINS), size=prompts_per_micro_batch, p=rng.dirichlet(np.full(len(DOMAINS), 0.3)))
            for _ in range(num_micro_batches)
        ]
    )
    symbols = rng.integers(ALPHABET, size=(len(domain), LENGTH)) + domain[:, None] * ALPHABET
    operator = (_SYMBOLS + domain)[:, None]
    separator = np.full((len(domain), 1), SEPARATOR)
    return Prompts(tokens=np.concatenate([operator, symbols, separator], axis=1), domain=domain)


def answer(prompt: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the right answer `[LENGTH]` to one prompt."""
    domain, symbols = int(prompt[0]) - _SYMBOLS, prompt[1 : 1 + LENGTH]
    match DOMAINS[domain]:
        case "copy":
            return symbols
        case "reverse":
            return symbols[::-1]
        case "sort":
            return np.sort(symbols)
        case _:
            return (symbols + 1 - domain * ALPHABET) % ALPHABET + domain * ALPHABET


def reward(prompt: NDArray[np.int64], response: NDArray[np.int64]) -> float:
    """Score a response from 0 to 1: a right symbol counts fully, a wrong one of the right alphabet a little."""
    domain = int(prompt[0]) - _SYMBOLS
    right = np.mean(response == answer(prompt))
    in_alphabet = np.mean(response // ALPHABET == domain)
    return float(0.8 * right + 0.2 * in_alphabet)


def group_advantages(rewards: NDArray[np.float64], group_size: int) -> NDArray[np.float64]:
    """Return GRPO advantages: each reward minus the mean of its prompt's rewards, in standard deviations."""
    grouped = rewards.reshape(-1, group_size)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    advantages: NDArray[np.float64] = centred / (grouped.std(axis=1, keepdims=True) + 1e-4)
    return advantages.reshape(-1)
