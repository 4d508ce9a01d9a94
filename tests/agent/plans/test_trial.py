"""Whether planned steps are faster, decided from step times: against every order of times, and in simulated jobs."""

import random
from collections.abc import Callable
from itertools import accumulate, combinations, pairwise
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.agent.plans.trial import DRIFT, FIRST_PAUSE, LONGEST_PAUSE, NUM_EACH, Mode, Trial

PLAIN, PLANNED = Mode.PLAIN, Mode.PLANNED
NOISE = 0.01
"""The largest deviation of a step in simulated jobs."""
FEW = settings(max_examples=20)
"""Each example is a job of many steps."""


def run(trial: Trial, time_of: Callable[[int, Mode], float], num_steps: int) -> list[tuple[Trial, Mode]]:
    """Run steps as the trial says; return what was known before each, and how it ran."""
    ran = []
    for step in range(num_steps):
        ran.append((trial, trial.mode))
        trial = trial.after(trial.mode, time_of(step, trial.mode))
    return ran


def noisy(planned: float, seed: int) -> Callable[[int, Mode], float]:
    """Return the times of a job whose plain steps take 1, and whose planned ones take `planned`."""
    of_step = random.Random(seed)
    return lambda _, mode: (planned if mode is PLANNED else 1.0) * (1 + of_step.uniform(-NOISE, NOISE))


def ended(trial: Trial, time_of: Callable[[int, Mode], float]) -> Trial:
    """Return what is known at the end of the present trial."""
    step = 0
    while trial.is_running:
        trial = trial.after(trial.mode, time_of(step, trial.mode))
        step += 1
    return trial


def num_trials(ran: list[tuple[Trial, Mode]]) -> int:
    states = [trial.is_running for trial, _ in ran]
    return sum(now and not before for before, now in zip([False, *states], states, strict=False))


def test_N1_the_first_trial_takes_few_steps_in_turns_and_drops_the_first_of_each_mode() -> None:
    times = {PLAIN: 1.0, PLANNED: 0.8}
    ran = run(Trial(), lambda _, mode: times[mode], 2 * NUM_EACH + 2)
    modes = [mode for _, mode in ran]
    assert modes.count(PLAIN) == modes.count(PLANNED) == NUM_EACH + 1
    assert not any(modes[i] is modes[i + 1] is modes[i + 2] is modes[i + 3] for i in range(len(modes) - 3))
    trial, mode = ran[-1]
    assert trial.after(mode, times[mode]).verdict is PLANNED
    slow_start = ended(Trial(), lambda step, mode: times[mode] if step else 90.0)
    assert slow_start.verdict is PLANNED, "the first step compiles"


def test_N1_equal_modes_pass_in_12_of_252_orders_of_their_times() -> None:
    passed = 0
    for ranks_of_planned in combinations(range(2 * NUM_EACH), NUM_EACH):
        left = {PLANNED: list(ranks_of_planned)}
        left[PLAIN] = [rank for rank in range(2 * NUM_EACH) if rank not in ranks_of_planned]
        trial = Trial(warming=frozenset())
        while trial.is_running:
            trial = trial.after(trial.mode, 1.0 + left[trial.mode].pop())
        passed += trial.verdict is PLANNED
    assert (passed, comb(2 * NUM_EACH, NUM_EACH)) == (12, 252)


@FEW
@given(slower=st.floats(1 + 2 * NOISE + 1e-3, 3.0), seed=st.integers(0, 10**6))
def test_N1_a_mode_that_is_slower_beyond_noise_is_never_kept_and_tried_ever_less(slower: float, seed: int) -> None:
    ran = run(Trial(), noisy(slower, seed), 2000)
    assert {trial.verdict for trial, _ in ran} == {None, PLAIN}
    assert all(mode is PLAIN for trial, mode in ran if not trial.is_running)
    assert num_trials(ran) == 1 + 4 + (2000 - 750) // LONGEST_PAUSE, "after 50, 100, 200, 400, 400, ... steps"
    assert sum(mode is PLANNED for _, mode in ran) <= 5 * num_trials(ran)


@FEW
@given(faster=st.floats(0.3, 1 - 2 * NOISE - 1e-3), seed=st.integers(0, 10**6))
def test_N1_a_mode_that_is_faster_beyond_noise_is_kept_and_hardly_interrupted(faster: float, seed: int) -> None:
    ran = run(Trial(), noisy(faster, seed), 2000)
    assert {trial.verdict for trial, _ in ran} == {None, PLANNED}
    assert sum(mode is PLAIN for _, mode in ran) <= (NUM_EACH + 1) * num_trials(ran) <= 2000 // 20


@FEW
@given(planned=st.floats(0.9, 1.01) | st.floats(1 + 2 * NOISE + 1e-3, 1.2), seed=st.integers(0, 10**6))
def test_N1_no_window_of_5_steps_outside_trials_is_1_percent_slower_than_plain(planned: float, seed: int) -> None:
    plain = random.Random(seed)
    times = [1 + plain.uniform(-NOISE, NOISE) for _ in range(1000)]
    ran = run(Trial(), lambda step, mode: times[step] * (planned if mode is PLANNED else 1.0), len(times))
    spent = [(planned if mode is PLANNED and not trial.is_running else 1.0) for trial, mode in ran]
    took = list(accumulate((time * factor for time, factor in zip(times, spent, strict=True)), initial=0.0))
    plainly = list(accumulate(times, initial=0.0))
    for begin in range(len(times) - 5):
        assert took[begin + 5] - took[begin] <= 1.01 * (plainly[begin + 5] - plainly[begin]) + 1e-9


@FEW
@given(seed=st.integers(0, 10**6))
def test_N1_modes_that_take_the_same_time_do_not_flap(seed: int) -> None:
    verdicts = [trial.verdict for trial, _ in run(Trial(), noisy(1.0, seed), 2000)]
    changes = sum(a is not b for a, b in pairwise(verdicts))
    assert changes <= 2000 // FIRST_PAUSE


@pytest.mark.parametrize(("before", "after"), [(1.2, 0.8), (0.8, 1.2)])
def test_N1_a_verdict_follows_when_the_faster_mode_changes(before: float, after: float) -> None:
    trial = ended(Trial(), noisy(before, 1))
    ran = run(trial, noisy(after, 2), FIRST_PAUSE + 2 * NUM_EACH + 3)
    changed = next(mode for known, mode in ran if known.verdict is not trial.verdict)
    assert changed is (PLANNED if after < 1 else PLAIN)


def test_N1_planned_steps_that_become_slower_than_plain_ones_were_are_tried_at_once() -> None:
    trial = ended(Trial(), noisy(0.95, 1))
    ran = run(trial, noisy(1.06, 2), 3 * NUM_EACH)
    assert [trial.is_running for trial, _ in ran].index(True) == NUM_EACH
    assert run(ran[-1][0], noisy(1.06, 3), 3)[-1][0].verdict is PLAIN


@pytest.mark.parametrize("longer", [DRIFT * 1.05, 1 / DRIFT / 1.05])
def test_N1_a_drift_of_step_times_begins_a_trial_and_less_does_not(longer: float) -> None:
    trial = ended(Trial(), noisy(0.5, 1))
    drifted = run(trial, noisy(0.5 * longer, 2), 2 * NUM_EACH)
    assert [trial.is_running for trial, _ in drifted].index(True) == NUM_EACH
    nearly = run(trial, noisy(0.5 * longer**0.5, 2), 2 * NUM_EACH)
    assert not any(trial.is_running for trial, _ in nearly)


def test_N1_steps_that_have_no_plan_do_not_end_a_trial() -> None:
    trial = Trial()
    for _ in range(50):
        trial = trial.after(PLAIN, 1.0)
    assert trial.is_running
    assert trial.mode is PLANNED, "plans are still wanted"
    assert ended(trial, noisy(0.8, 1)).verdict is PLANNED


def test_N1_the_reason_has_the_figures() -> None:
    assert "take turns" in Trial().reason
    slower = ended(Trial(), lambda _, mode: 1.2 if mode is PLANNED else 1.0)
    assert slower.reason == (
        "planned steps took 1.200 times as long per token as plain ones (medians of 3 and 2 steps; the planned one "
        "was slower in 6 of 6 pairs)"
    )
