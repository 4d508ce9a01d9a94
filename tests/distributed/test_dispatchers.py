"""A GPT trains under random plans through every dispatcher as under plain megatron-core with the same one (S5).

DeepEP, HybridEP and the fused permutations of Transformer Engine need GPUs. Here megatron's code for them runs over
stand-ins (`harness.deep_ep_on_gloo`, `harness.te_permutation`).
"""

import pytest

pytestmark = pytest.mark.distributed

TOLERANCE = 1e-5


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep", "allgather", "fused_permutation", "fused_router"])
def test_S5_any_dispatcher_trains_as_plain_megatron(layout_run, dispatcher):
    """The router of DeepEP has fp64 and gives some copies probability 0; that of allgather has the model's dtype."""
    run = layout_run("gpt_dispatchers")
    assert_active(run.of(dispatcher), copies={2 * 16 * 4})
    worst = run.worst(dispatcher)
    assert worst.keys() == {"loss", "grad", "grad_norm", "moments", "weights", "expert_bias"}
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_what_runs_in_production_differs_from_plain_megatron_as_two_plain_runs_do(layout_run):
    """DeepEP with bf16, grouped experts, fused permutation, full recomputation and the distributed optimizer."""
    run = layout_run("gpt_dispatchers")
    assert_active(run.of("deepep_as_in_production"), copies={2 * 16 * 4})
    worst, rounding = run.worst("deepep_as_in_production"), run.worst("deepep_rounding")
    for kind in ("grad", "grad_norm", "moments", "weights"):
        assert 0 < worst[kind] <= rounding[kind] / 4, (kind, worst[kind], rounding[kind])


@pytest.mark.parametrize("scenario", ["capacity", "deepep_capacity"])
def test_S5_dropped_tokens_train_as_plain_megatron(layout_run, scenario):
    run = layout_run("gpt_dispatchers")
    results = run.of(scenario)
    assert_active(results, copies=range(2 * 16 * 4))  # fewer than all: some were dropped
    worst = run.worst(scenario)
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_the_comparison_sees_a_copy_that_deepep_is_not_told(layout_run):
    assert layout_run("gpt_dispatchers").worst("deepep_copy_lost")["grad"] > 0.1


def test_deepep_is_told_the_copies_of_the_routing_map(layout_run):
    """Megatron takes the slots with the largest probabilities, which finds slots that no token was routed to."""
    for result in layout_run("gpt_dispatchers").of("slots_of_copies"):
        assert result["handed over"] == {"outside": 0, "missing": 0, "is_sum_kept": True}
        assert result["largest"]["outside"] > 0


def test_hybridep_makes_room_for_redundant_slots(layout_run):
    """Ranks have four experts and two redundant slots."""
    results = layout_run("gpt_dispatchers").of("hybridep")
    assert [result["num_experts_of_buffer"] for result in results] == [6] * 4


def test_the_stand_in_for_deepep_does_what_the_package_promises(layout_run):
    for result in layout_run("gpt_dispatchers").of("contract"):
        assert set(result.values()) == {True}, result


def assert_active(results, *, copies):
    """Assert that every step applied its plan, moved experts, sent replicas, and computed so many token copies."""
    for result in results:
        assert "None" not in result["applied"]
        assert min(result["moved_experts"]) > 0
    for step in range(2):
        assert sum(result["replica_sent_bytes"][step] for result in results) > 0
        assert sum(result["reorder_sent_bytes"][step] for result in results) > 0
        for micro_batch in zip(*(result["realised_load"][step] for result in results), strict=True):
            assert {sum(layer) for layer in zip(*micro_batch, strict=True)} <= set(copies)
