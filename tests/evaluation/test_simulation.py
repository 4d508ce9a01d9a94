from dataclasses import replace

import pytest

from relibra.errors import InvalidInput
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.policies import POLICIES, PUBLISHED
from relibra.evaluation.routing_statistics import RoutingStatistics
from relibra.evaluation.simulation import simulate
from relibra.evaluation.training import Training
from relibra.evaluation.workload import drawn
from relibra.planning import Cluster
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import HARDWARE
from relibra.planning.plan import Level

_MODEL = replace(MODELS["qwen3-30b-a3b"], num_layers=2)
_CLUSTER = Cluster(num_nodes=2, gpus_per_node=8, redundant_slots=2)
_STATISTICS = RoutingStatistics(popularity_variance=0.6, domain_variance=0.1, sequence_variance=0.3)
_TRAINING = Training.of(_MODEL, HARDWARE["h100"], _CLUSTER, Dispatcher.DEEPEP)


@pytest.fixture(scope="module")
def steps():
    return [drawn(_STATISTICS, _MODEL, _CLUSTER, 4, 8192, seed=2, step=step) for step in (0, 1)]


@pytest.fixture(scope="module")
def outcomes(steps):
    before, now = steps
    heard = []
    found = simulate(now, before, _TRAINING, on_policy=heard.append)
    assert heard == list(POLICIES) == [each.policy for each in found]
    return {each.policy: each for each in found}


@pytest.mark.long
def test_nothing_is_faster_than_balance_and_relibra_comes_closest(outcomes):
    assert all(each.of_balanced.mid <= 1.01 for each in outcomes.values())  # 1 % for tokens that stay on their node
    on_the_gpu = {"ultraep", "moonep"}
    published = set(outcomes) - {"reorder-only", "replicate-only", "relibra", "relibra-packed", *on_the_gpu}
    assert outcomes["relibra"].of_balanced.mid > max(outcomes[name].of_balanced.mid for name in published)
    for name in on_the_gpu:
        assert outcomes["relibra"].of_balanced.mid > outcomes[name].of_balanced.mid
    assert outcomes["relibra"].of_balanced.mid > 0.97


@pytest.mark.long
def test_every_figure_has_a_range_around_it(outcomes):
    for each in outcomes.values():
        assert each.of_balanced.low <= each.of_balanced.mid <= each.of_balanced.high
        assert each.over_plain.low <= each.over_plain.mid <= each.over_plain.high
    ours, ultraep = outcomes["relibra"], outcomes["ultraep"]
    assert set(ours.over_rivals) == set(PUBLISHED)
    over = ours.over_rivals["ultraep"]
    assert over.low < ours.of_balanced.mid / ultraep.of_balanced.mid < over.high
    assert outcomes["plain"].over_plain.low == outcomes["plain"].over_plain.high == 1
    ours = outcomes["relibra"].of_balanced
    assert 0.01 < ours.high - ours.low < 0.15


@pytest.mark.long
def test_an_all_to_all_makes_imbalance_dearer_and_balance_harder_to_reach(steps, outcomes):
    before, now = steps
    every_copy = replace(_TRAINING, dispatcher=Dispatcher.ALLTOALL)
    (ours,) = simulate(now, before, every_copy, ["relibra"])
    assert ours.over_plain.mid > outcomes["relibra"].over_plain.mid


def test_both_halves_help_and_together_most(outcomes):
    parts = [outcomes[each].of_balanced.mid for each in ("plain", "reorder-only", "replicate-only", "relibra")]
    assert parts[0] < min(parts[1:3])
    assert max(parts[1:3]) <= parts[3] + 0.001
    assert outcomes["plain"].imbalance > 1.1 * outcomes["relibra"].imbalance


def test_where_hosts_cost_nothing_both_halves_together_have_the_least_imbalance(steps):
    # Otherwise a cell gets no replicas if they save less than the host's time for them.
    before, now = steps
    free = replace(_TRAINING, constants=replace(_TRAINING.constants, operation_us=0.0, driver_call_us=0.0))
    found = simulate(now, before, free, ["plain", "reorder-only", "replicate-only", "relibra"])
    assert min(found, key=lambda each: each.imbalance).policy == "relibra"
    # Plans are made before the step, but tokens are split when the router has run.
    assert 0 < found[-1].step.decision_s < 0.001 * found[-1].step.total_s + 0.1


@pytest.mark.long
def test_without_replay_relibra_is_still_better_than_placements_that_know_the_step(steps, outcomes):
    before, now = steps
    (history,) = simulate(now, before, _TRAINING, ["relibra"], level=Level.HISTORY)
    (step,) = simulate(now, before, _TRAINING, ["relibra"], level=Level.STEP)
    for foreseen in (history, step):
        assert foreseen.of_balanced.mid > outcomes["eplb-oracle"].of_balanced.mid
        assert foreseen.of_balanced.mid < outcomes["relibra"].of_balanced.mid + 0.002


def test_foresight_is_worth_something(outcomes):
    assert outcomes["eplb-oracle"].imbalance < outcomes["eplb-history"].imbalance
    assert outcomes["relibra"].of_balanced.mid > outcomes["eplb-oracle"].of_balanced.mid


def test_policies_that_decide_late_wait_for_their_decisions(outcomes):
    # Policies that know ahead pay for mapping tokens to copies alone, with UltraEP's kernel.
    assert outcomes["ultraep"].step.decision_s > outcomes["eplb-oracle"].step.decision_s > 0
    assert outcomes["relibra"].step.decision_s > 0
    assert outcomes["plain"].step.decision_s == 0


def test_copies_that_stay_balance_as_well_and_travel_once_a_step(outcomes):
    stays, travels = outcomes["eplb-async"], outcomes["eplb-history"]
    assert stays.imbalance == travels.imbalance
    assert stays.sent_bytes < travels.sent_bytes / 3  # a step has 4 micro-batches
    assert stays.step.transfer_s < travels.step.transfer_s / 3
    assert stays.of_balanced.mid > travels.of_balanced.mid


def test_an_unknown_policy_is_refused_with_the_known_ones():
    workload = drawn(_STATISTICS, _MODEL, _CLUSTER, 1, 64, seed=0)
    with pytest.raises(InvalidInput, match=r"policy: expected one of plain, .*, got magic"):
        simulate(workload, workload, _TRAINING, ["magic"])
