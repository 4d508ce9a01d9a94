"""verl's own Megatron engine with the plug-in, beside the engine alone."""

from typing import Any

import numpy as np
import pytest

from harness.framework_runs import NUM_EXPORTED, ROUNDING, check_equal, check_nothing_moves, relative


def test_verl_alone_trains_in_this_environment(verl_engines: Any) -> None:
    for result in verl_engines.of("plain"):
        losses = [loss for loss, _ in result["numbers"]]
        assert len(set(losses)) == 3
        assert all(norm > 0.1 for _, norm in result["numbers"])
        assert result["num_exported"] == NUM_EXPORTED


def test_S5_losses_weights_and_exports_are_those_of_verl_alone_when_experts_move_before_every_pass(
    verl_engines: Any,
) -> None:
    for result in verl_engines.of("scripted"):
        assert result["engine"] == "BalancedEngine"
        assert len(result["outcomes"]) == 6
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        assert all(each["num_replicas"] for each in result["outcomes"])
        check_equal(result["difference"])


def test_no_expert_moves_for_an_export_and_the_comparison_sees_permuted_and_stale_weights(verl_engines: Any) -> None:
    for result in verl_engines.of("mutants"):
        check_nothing_moves(result["compared"])
        assert len(result["stale"]) > 60


def test_verl_alone_continues_from_a_checkpoint_after_reorders_as_from_its_own(verl_engines: Any) -> None:
    for result in verl_engines.of("checkpoint"):
        assert result["loaded"] == []
        assert result["trained_on"] == []  # beside the checkpoint of verl alone, so optimizer state is the same
        balanced, alone, _ = result["numbers"]
        assert relative(balanced, alone) < ROUNDING


def test_S5_training_resumes_with_the_plug_in_from_a_checkpoint_after_reorders(verl_engines: Any) -> None:
    for result in verl_engines.of("checkpoint"):
        assert result["loaded_again"] == result["loaded_without_optimizer"] == []
        assert result["resumed"] == []  # beside the checkpoint of verl alone
        _, alone, resumed = result["numbers"]
        assert relative(resumed, alone) < ROUNDING


def test_S5_a_planner_plans_every_pass_of_batches_of_dynamic_size(verl_engines: Any) -> None:
    for result in verl_engines.of("planned"):
        assert len(result["outcomes"]) == 4
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        assert any(each["num_moved"] or each["num_replicas"] for each in result["outcomes"])
        check_equal(result["difference"])
    # In so small a batch, the tokens that verl leaves to the router are many. All others must be those of the plan.
    assert "sequences that are masked out" in verl_engines.log
    assert "routing is not replayed" not in verl_engines.log
    assert "micro-batches have other sequences" not in verl_engines.log


def test_recorded_routing_is_planned_for_the_update(verl_engines: Any) -> None:
    for result in verl_engines.of("recorded"):
        assert len(result["outcomes"]) == 2
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        check_equal(result["difference"])


def test_L1_a_job_whose_planner_is_away_trains_on_and_says_so_once(verl_engines: Any) -> None:
    for result in verl_engines.of("away"):
        assert result["outcomes"] == []
        check_equal(result["difference"])
    assert verl_engines.log.count("job away trains without plans") == 1


def test_S5_training_is_that_of_verl_alone_when_verl_offloads_everything(verl_engines: Any) -> None:
    for result in verl_engines.of("offloaded"):
        assert len(result["outcomes"]) == 5
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        check_equal(result["difference"])


def test_a_critic_and_a_reference_in_the_same_process_stay_as_they_are(verl_engines: Any) -> None:
    for result in verl_engines.of("colocated"):
        assert result["agents"] == [True, False]
        assert "BalancedEngine" not in result["critics"]
        assert len(result["outcomes"]) == 4
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        check_equal(result["difference"]["actor"])
        assert result["difference"]["reference"]["outputs"] == 0
        assert result["difference"]["reference"]["exports"] == [[], []]
        assert result["difference"]["critic"]["numbers"] == result["difference"]["critic"]["outputs"] == 0
        assert result["num_exported"] == NUM_EXPORTED


def test_S5_mbridge_exports_and_saves_every_expert_under_its_name_after_reorders(verl_engines: Any) -> None:
    for result in verl_engines.of("mbridge"):
        assert result["converter"] == "mbridge.models.qwen3moe"
        assert result["num_exported"] == NUM_EXPORTED
        assert result["outcomes"]
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        assert result["untrained"] == []  # beside the file of the model
        check_nothing_moves(result["compared"])
        check_equal(result["difference"])
        assert result["saved"] == result["loaded"] == []


@pytest.mark.parametrize("layout", ["pipeline", "tensor", "context"])
def test_S5_a_planner_plans_every_pass_of_a_parallel_layout(verl_engines: Any, layout: str) -> None:
    results = verl_engines.of(layout)
    assert len(results) == 4
    for result in results:
        assert len(result["outcomes"]) == 4
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        assert any(each["num_moved"] or each["num_replicas"] for each in result["outcomes"])
        assert result["difference"]["exports"] == [[], []]
    for number in ("numbers", "outputs"):
        on_ranks_with_output = [
            each["difference"][number] for each in results if each["difference"][number] is not None
        ]
        assert len(on_ranks_with_output) >= 2
        assert max(on_ranks_with_output) < ROUNDING


MINI_BATCH = 16


def parts(order: list[int], num_ranks: int = 4) -> list[list[list[int]]]:
    """Return the sequences of every optimizer step and rank, as verl cuts them out of the order of a batch."""
    of_step_DSB = np.array(order).reshape(num_ranks, -1, MINI_BATCH // num_ranks).swapaxes(0, 1)
    found: list[list[list[int]]] = of_step_DSB.tolist()
    return found


def test_with_pack_sequences_start_on_the_machine_of_their_experts(verl_engines: Any) -> None:
    results = verl_engines.of("packed")
    planned, packed = (sum(each["crossing"][name] for each in results) for name in ("planned", "packed"))
    assert packed < 0.6 * planned
    assert results[0]["orders"]["planned"] == results[0]["orders"]["verl"]
    assert "relibra chooses the data-parallel ranks of sequences of job verl-packed" in verl_engines.log


@pytest.mark.parametrize("batch", [0, 1])
def test_with_pack_every_sequence_keeps_its_mini_batch_and_lengths_stay_balanced(verl_engines: Any, batch: int) -> None:
    result = verl_engines.of("packed")[0]
    length_S = np.array(result["lengths"][batch])
    verls, packed = (parts(result["orders"][name][batch]) for name in ("verl", "packed"))
    assert packed != verls
    for of_step, of_verl in zip(packed, verls, strict=True):
        assert sorted(np.ravel(of_step)) == sorted(np.ravel(of_verl))
        largest, of_verls = (max(int(length_S[each].sum()) for each in ranks) for ranks in (of_step, of_verl))
        assert largest <= 1.1 * of_verls


def test_S5_updates_with_pack_are_those_of_verl_alone(verl_engines: Any) -> None:
    for result in verl_engines.of("packed"):
        assert len(result["outcomes"]) == 4
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        assert result["difference"]["numbers"] < ROUNDING
        assert result["difference"]["exports"] == [[], []]


def test_L1_verls_own_deal_stays_while_the_planner_is_away_and_the_log_says_so_once(verl_engines: Any) -> None:
    assert verl_engines.of("unpacked")[0]["kept"] == [True] * 4
    # Each of verl's two trainers says so.
    assert verl_engines.log.count("verl chose: the planner is away, or has lost the job") == 2
