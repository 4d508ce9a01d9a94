"""Scenarios on two ranks: SkyRL's policy worker alone, and with the plug-in on the same batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from skyrl.backends.skyrl_train.workers.megatron.megatron_worker import MegatronPolicyWorkerBase, MegatronRefWorkerBase

from harness import tiny_qwen3_moe
from harness.plugin_contract import (
    Contract,
    Plugin,
    Rank,
    check_moved,
    check_planned_beside,
    moving,
    named,
    noted_outcomes,
    set_environment,
)
from harness.skyrl import workers
from harness.trained import ROUNDING, Trained, differing, relative
from relibra.plugins.skyrl.reference import BalancedReferenceWorker
from relibra.plugins.skyrl.worker import BalancedPolicyWorker

NUM_UPDATES = 3


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    tiny_qwen3_moe.save_with_tokenizer(folder / "model")


def build(at: Rank, *, balanced: bool, **options: Any) -> Any:
    """Build a worker."""
    worker = BalancedPolicyWorker if balanced else MegatronPolicyWorkerBase
    return workers.build(worker, at.number, at.folder / "model", **options)


def train(at: Rank, worker: Any, num_updates: int = NUM_UPDATES, **of_batches: Any) -> Trained:
    """Do what SkyRL's trainer does in the steps of a colocated job."""
    trained = Trained()
    for step in range(num_updates):
        data = workers.batch(at.number, step, **of_batches)
        trained.outputs.append(workers.infer(worker, data))
        trained.numbers.append(workers.update(worker, data))
        trained.exports.append(workers.sent(worker))
        workers.offload_and_back(worker)
    return trained


CONTRACT = Contract(
    Plugin(
        build=build,
        train=train,
        exported=workers.sent,
        stores_by_expert=lambda worker: bool(worker.strategy.megatron_config.dist_ckpt_optim_fully_reshardable),
        num_passes=2 * NUM_UPDATES,
    )
)


def the_framework_alone_trains(at: Rank) -> None:
    """SkyRL's own worker learns in this environment, and saves a checkpoint."""
    CONTRACT.the_framework_alone_trains(at)
    CONTRACT.own.strategy.megatron_config.dist_ckpt_optim_fully_reshardable = True
    CONTRACT.own.save_checkpoint(str(at.folder / "checkpoint of plain"), CONTRACT.own.tokenizer)


def skyrl_alone_continues_from_a_checkpoint_after_reorders(at: Rank) -> None:
    """Weights and optimizer state are those of SkyRL alone, in both formats of a checkpoint."""
    worker = CONTRACT.moved
    saved = workers.sent(worker)
    worker.save_checkpoint(str(at.folder / "checkpoint"), worker.tokenizer)
    worker.save_hf_model(str(at.folder / "huggingface"), worker.tokenizer)
    assert differing(tiny_qwen3_moe.written(at.folder / "huggingface"), saved) == []
    numbers = workers.update(worker, workers.batch(at.number, 50))
    loaded, numbers_of_loaded, trained_on = _continued(at, "checkpoint")
    _, _, trained_on_alone = _continued(at, "checkpoint of plain")
    assert differing(loaded, saved) == []
    assert differing(trained_on, trained_on_alone) == []
    assert relative(numbers, numbers_of_loaded) < ROUNDING


def _continued(at: Rank, name: str) -> tuple[dict[str, torch.Tensor], Sequence[float], dict[str, torch.Tensor]]:
    """Load a checkpoint in SkyRL alone; return its weights, the numbers of one update, and the weights after it."""
    worker = build(at, balanced=False)
    worker.strategy.megatron_config.dist_ckpt_optim_fully_reshardable = True
    workers.update(worker, workers.batch(at.number, 40))  # before its first step, torch's Adam has no state
    worker.load_checkpoint(str(at.folder / name))
    loaded = workers.sent(worker)
    return loaded, workers.update(worker, workers.batch(at.number, 50)), workers.sent(worker)


def a_planner_plans_micro_batches_of_equal_size(at: Rank) -> None:
    """A real planner plans every pass."""
    CONTRACT.check_planned(at, "skyrl-planned", 4, num_updates=2)


def a_planner_plans_micro_batches_by_tokens(at: Rank) -> None:
    """SkyRL fills these up with dummies, and a real planner plans the rows of the dummies, too."""
    CONTRACT.check_planned(at, "skyrl-tokens", 4, of_build={"max_tokens": 24}, num_updates=2)


def S5_a_job_that_replays_nothing_is_planned_from_history(at: Rank) -> None:
    """A real planner plans it from the passes before."""
    CONTRACT.check_planned_from_history(at, "skyrl-history", of_build={"replays": False}, has_routes=False)


def S5_the_reference_is_a_job_of_its_own_that_is_planned_from_history(at: Rank) -> None:
    """A real planner plans its passes from those before; log-probabilities are those of SkyRL's own worker."""
    set_environment(at.planner, "skyrl")
    alone, balanced = (
        workers.build_reference(worker, at.number, at.folder / "model")
        for worker in (MegatronRefWorkerBase, BalancedReferenceWorker)
    )
    assert balanced.passes.planned.settings.job == "skyrl-reference"
    with noted_outcomes(awaits_history=True) as outcomes:
        for step in range(NUM_UPDATES):
            data = workers.batch(at.number, step, has_routes=False)
            want, got = (logprobs_of(worker, data) for worker in (alone, balanced))
            assert float((got - want).abs().max()) < ROUNDING
    check_planned_beside(outcomes, NUM_UPDATES)
    balanced.passes.close()


def logprobs_of(worker: Any, data: Any) -> torch.Tensor:
    """Return the log-probabilities that a worker computes of a batch; those of padding are 0."""
    return torch.tensor([each["logprobs"] for each in worker.forward(data).loss_fn_outputs])


def experts_stay_while_gradients_accumulate(at: Rank) -> None:
    """Two batches make one update, as with Tinker: experts stay where the first batch put them."""
    set_environment("127.0.0.1:1", "accumulated")
    numbers: list[list[Sequence[float]]] = []
    weights = []
    with moving(at, 2) as outcomes:
        for balanced in (False, True):
            worker = build(at, balanced=balanced)
            numbers.append([])
            for step in (0, 2):
                worker.forward_backward(workers.batch(at.number, step))
                numbers[-1].append(workers.update(worker, workers.batch(at.number, step + 1)))
            weights.append(workers.sent(worker))
    check_moved(outcomes)
    assert [outcome.step for outcome in outcomes] == [0, 1]
    alone, of_balanced = numbers
    assert max(relative(a, b) for a, b in zip(of_balanced, alone, strict=True)) < ROUNDING
    assert differing(weights[1], weights[0]) == []


def the_entry_point_trains_with_the_worker_of_the_plug_in(at: Rank) -> None:
    """The experiment hands SkyRL's trainer the plug-in's worker, as an actor of Ray with settings."""
    from skyrl.backends.skyrl_train.workers.megatron import megatron_worker
    from skyrl.train.entrypoints import main_base
    from skyrl.train.trainer import RayPPOTrainer

    from relibra.plugins.skyrl.arguments import split, variables
    from relibra.plugins.skyrl.entrypoint import balanced

    arguments, section = split(["trainer.strategy=megatron", "trainer.run_name=r1", "relibra.planner=planner:7420"])
    config = main_base.SkyRLTrainConfig.from_cli_overrides(arguments)
    experiment = balanced(main_base.BasePPOExp, variables(config.trainer, section, {}))
    made = object.__new__(experiment)  # a whole experiment loads data and starts a rollout
    made.cfg = config
    handed: list[Any] = []
    with (
        mock.patch.object(RayPPOTrainer, "__init__", return_value=None),
        mock.patch.object(RayPPOTrainer, "build_models", lambda self, *of_models: handed.extend(of_models)),
    ):
        trainer = made.get_trainer(*[None] * 8)
        trainer.build_models(megatron_worker.PolicyWorker, megatron_worker.CriticWorker, megatron_worker.RefWorker)
    policy, critic, reference = handed
    assert issubclass(policy.__ray_metadata__.modified_class, BalancedPolicyWorker)
    assert issubclass(reference.__ray_metadata__.modified_class, BalancedReferenceWorker)
    assert critic is megatron_worker.CriticWorker
    for model in (policy, reference):
        environment = model._default_options["runtime_env"]["env_vars"]
        assert (environment["RELIBRA_PLANNER"], environment["RELIBRA_JOB"]) == ("planner:7420", "skyrl-r1")


SCENARIOS = named(
    the_framework_alone_trains,
    CONTRACT.S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass,
    CONTRACT.no_expert_moves_for_an_export_and_permuted_and_stale_weights_are_seen,
    skyrl_alone_continues_from_a_checkpoint_after_reorders,
    a_planner_plans_micro_batches_of_equal_size,
    a_planner_plans_micro_batches_by_tokens,
    S5_a_job_that_replays_nothing_is_planned_from_history,
    S5_the_reference_is_a_job_of_its_own_that_is_planned_from_history,
    experts_stay_while_gradients_accumulate,
    CONTRACT.S5_a_job_that_observes_trains_as_the_framework_alone_and_reports_its_loads,
    CONTRACT.checkpoints_are_the_frameworks_own_unless_experts_may_move,
    CONTRACT.L1_a_job_whose_planner_is_away_trains_as_without_the_plug_in,
    the_entry_point_trains_with_the_worker_of_the_plug_in,
    CONTRACT.S5_lora_is_that_of_the_framework_alone_when_experts_move_before_every_pass,
)
