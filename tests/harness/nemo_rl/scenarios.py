"""Scenarios on two ranks: NeMo-RL's worker alone, and with the plug-in on the same batches."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from nemo_rl.algorithms.loss.loss_functions import NLLLossFn
from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.policy import utils as policy_utils
from nemo_rl.models.policy.workers import megatron_policy_worker as policy_worker

from harness import tiny_qwen3_moe
from harness.nemo_rl import driver, rollouts, workers
from harness.plugin_contract import Contract, Plugin, Rank, check_planned, named, refused
from harness.tiny_qwen3_moe import NUM_EXPERTS, NUM_LAYERS, TOP_K
from harness.trained import NUM_EXPORTED, ROUNDING, Trained
from relibra.errors import Unsupported
from relibra.plugins.nemo_rl import worker as plugin
from relibra.plugins.nemo_rl.batch import rank_batch
from relibra.routing import ModelLayers
from relibra.routing.sequence_name import name_sequence

NUM_UPDATES = 2
PASSES_PER_UPDATE = 2 + workers.NUM_GLOBAL_BATCHES
"""Log-probabilities of policy and reference, and global batches."""
MODEL_HOMES = torch.arange(NUM_EXPERTS).div(NUM_EXPERTS // workers.RANKS, rounding_mode="floor").numpy()


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    tiny_qwen3_moe.save(folder / "model")


def build(at: Rank, *, balanced: bool, mode: str = "packed", replays: bool = True, **options: Any) -> Any:
    """Build a worker."""
    workers.initialize_parallel_state()
    worker = plugin.BalancedWorker if balanced else policy_worker.MegatronPolicyWorkerImpl

    def initialise(self: Any, config: Any, **kwargs: Any) -> None:
        workers.build(self, config, **kwargs)

    with mock.patch.object(policy_worker.MegatronPolicyWorkerImpl, "__init__", initialise):
        return worker(workers.configuration(at.folder / "model", mode, replays=replays), **options)


def train(
    at: Rank, worker: Any, mode: str = "packed", num_updates: int = NUM_UPDATES, *, has_routes: bool = True
) -> Trained:
    """Run steps of GRPO: log-probabilities, those of the reference, updates and a refit, with offloads.

    Outputs are log-probabilities of the policy and of the reference, in turn.
    """
    trained = Trained()
    for step in range(num_updates):
        data = workers.rollout(step)
        if not has_routes:
            del data["routed_experts"]
        shard = workers.shards(data, mode, None)[at.number]
        worker.prepare_for_lp_inference()
        trained.outputs.append(worker.get_logprobs(data=shard)["logprobs"])
        trained.outputs.append(worker.get_reference_policy_logprobs(data=shard)["reference_logprobs"])
        worker.prepare_for_training()
        update = worker.train(workers.shards(data, mode, workers.GLOBAL_BATCH)[at.number], NLLLossFn())
        trained.numbers.append((float(update["global_loss"].sum()), float(update["grad_norm"])))
        worker.offload_before_refit()
        trained.exports.append(streamed(worker))
        worker.offload_after_refit()
    return trained


def streamed(worker: Any) -> dict[str, torch.Tensor]:
    """Return the weights that `stream_weights_via_ipc_zmq` sends, unpacked as vLLM's worker unpacks them.

    As in a job, the worker tells names, shapes and types only once.
    """
    worker.model = worker.move_model(worker.model, "cuda", move_grads=False)
    info = worker.told_refit_info = getattr(worker, "told_refit_info", None) or worker.prepare_refit_info()
    sent: dict[str, torch.Tensor] = {}

    def receive(message: Any) -> None:
        if not isinstance(message, tuple):
            return
        buffer, names, _ = message
        offset = 0
        for name in names:
            shape, dtype = info[name]
            num_bytes = dtype.itemsize * shape.numel()
            sent[name] = buffer[offset : offset + num_bytes].view(dtype).reshape(shape)
            offset += policy_utils.calculate_aligned_size(num_bytes)

    worker.zmq_socket = SimpleNamespace(send_pyobj=receive, recv=lambda: b"")
    with mock.patch.object(policy_utils, "get_handle_from_tensor", lambda tensor: tensor.clone()):
        worker.stream_weights_via_ipc_zmq(buffer_size_bytes=1 << 15)
    assert sent.keys() == info.keys()
    return sent


def broadcast(worker: Any) -> list[torch.Tensor]:
    """Return the buffers that `broadcast_weights_for_collective` sends, whose order alone says what they hold."""
    sent: list[torch.Tensor] = []
    worker.model = worker.move_model(worker.model, "cuda", move_grads=False)
    worker.model_update_group = SimpleNamespace(broadcast=lambda tensor, src: sent.append(tensor.clone()))
    send = worker.broadcast_weights_for_collective
    sizes = {"buffer_size_bytes": 1 << 14, "num_buffers": 2}  # which 0.7.0 takes from the memory of the GPU
    send(**{name: size for name, size in sizes.items() if name in inspect.signature(send).parameters})
    return [each.view(torch.float32) for each in sent]


def _close(worker: Any) -> None:
    worker.prepare_for_training()
    worker.passes.close()


CONTRACT = Contract(
    Plugin(
        build=build,
        train=train,
        exported=streamed,
        stores_by_expert=lambda worker: worker.mcore_state.cfg.checkpoint.dist_ckpt_optim_fully_reshardable,
        num_passes=NUM_UPDATES * PASSES_PER_UPDATE,
        steps_per_update=workers.NUM_GLOBAL_BATCHES,
        close=_close,
    )
)


def S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass(at: Rank) -> None:
    """So are the buffers of the collective refit, whose order alone says what they hold."""
    CONTRACT.S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass(at)
    worker = CONTRACT.moved
    buffers = list(zip(broadcast(worker), broadcast(CONTRACT.own), strict=True))
    assert len(buffers) > 2
    assert all(torch.allclose(got, expected, rtol=1e-4, atol=1e-6) for got, expected in buffers)
    assert not (worker.passes.agent.home_rank_LE == MODEL_HOMES).all()
    assert worker.mcore_state.cfg.checkpoint.dist_ckpt_optim_fully_reshardable


def a_reference_that_is_swapped_in_by_place_is_seen(at: Rank) -> None:
    """The comparison of log-probabilities of the reference sees experts at wrong places."""
    worker, own = CONTRACT.moved, policy_worker.MegatronPolicyWorkerImpl._apply_state_dict_to_model
    agent = worker.passes.agent

    def by_place(self: Any, source: Any, **kwargs: Any) -> None:
        with agent.copying():
            own(self, source, **kwargs)
        agent._guard.note_visiting()

    shard = workers.shards(workers.rollout(0), "packed", None)[at.number]
    with mock.patch.object(plugin.BalancedWorker, "_apply_state_dict_to_model", by_place):
        reference = worker.get_reference_policy_logprobs(data=shard)["reference_logprobs"]
    assert float((reference - CONTRACT.alone.outputs[1]).abs().max()) > 100 * ROUNDING


def S9_what_nemo_rl_alone_does_by_place_is_refused_after_a_reorder(at: Rank) -> None:
    """Its own `use_reference_model` and its single controller are refused by name."""
    worker, own = CONTRACT.moved, policy_worker.MegatronPolicyWorkerImpl
    shard = workers.shards(workers.rollout(0), "packed", None)[at.number]
    with (
        mock.patch.object(plugin.BalancedWorker, "use_reference_model", own.use_reference_model),
        refused(Unsupported, "names experts by place, and they are not at their original places"),
    ):
        worker.get_reference_policy_logprobs(data=shard)
    with refused(Unsupported, "does not support NeMo-RL's single controller"):
        worker.begin_train_step(NLLLossFn())


def _check_planned(at: Rank, mode: str) -> None:
    """Check that a real planner plans every pass: those of the policy for their micro-batches, the reference's before.

    The pass of the reference takes the newest plan from the passes before it, or keeps that of the last one.
    """
    outcomes = CONTRACT.trained(at, f"nemo-rl-{mode}", of_build={"mode": mode}, mode=mode, num_updates=1)
    reference = outcomes.pop(1)
    assert reference.applied or reference.kept, reference.reason
    check_planned(outcomes, PASSES_PER_UPDATE - 1)


def a_planner_plans_packed_sequences(at: Rank) -> None:
    """A real planner plans every pass."""
    _check_planned(at, "packed")


def a_planner_plans_batches_of_dynamic_size(at: Rank) -> None:
    """A real planner plans every pass."""
    _check_planned(at, "dynamic")


def a_planner_plans_padded_batches(at: Rank) -> None:
    """A real planner plans every pass."""
    _check_planned(at, "padded")


def S5_a_job_that_replays_nothing_is_planned_from_history(at: Rank) -> None:
    """A real planner plans it from the passes before."""
    CONTRACT.check_planned_from_history(at, "nemo-rl-history", of_build={"replays": False}, has_routes=False)


def a_worker_without_optimizer_gets_no_agent(at: Rank) -> None:
    """It exports as NeMo-RL does."""
    worker = build(at, balanced=True, init_optimizer=False)
    assert worker.passes.agent is None
    assert len(streamed(worker)) == NUM_EXPORTED


def a_script_that_is_run_through_the_plug_in_starts_its_workers_in_the_environment_of_nemo_rls(at: Rank) -> None:
    """NeMo-RL's own `Policy` starts them, with Ray's actors stood in for."""
    if at.number == 0:
        result = driver.started_workers(at.folder)
        assert result["started"] == ["relibra.integrations.nemo_rl.Worker"] * 2
        assert result["environment"] == "/venvs/megatron/bin/python"
        assert result["built"] == ["nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"]
        assert result["arguments"] == ["--config", "recipe.yaml"]


def the_driver_reports_each_sample_of_an_asynchronous_rollout_as_training_reads_it(at: Rank) -> None:
    """NeMo-RL's own rollout: a sample has the tokens and the routes of its messages; a validation reports nothing."""
    if at.number:
        return
    reports, logs = rollouts.streamed(workers.rollout(0))
    assert len(reports) == len(logs) == 3
    flat, lengths = batched_message_log_to_flat_message(logs, pad_value_dict={"token_ids": 0})
    trained = BatchedDataDict(input_ids=flat["token_ids"], input_lengths=lengths, routed_experts=flat["routed_experts"])
    trained.micro_batch_indices = [[[0, len(logs)]]]
    layers = ModelLayers.uniform(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, top_k=TOP_K)
    batch = rank_batch(trained, layers)
    assert {name_sequence(tokens) for tokens, _, _ in reports} == set(batch.names)
    for tokens, routed, read in reports:
        expected = batch.routings[batch.names.index(name_sequence(tokens))]
        assert (read(routed, layers, num_tokens=len(tokens)).counts() == expected.counts()).all()


SCENARIOS = named(
    CONTRACT.the_framework_alone_trains,
    S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass,
    CONTRACT.no_expert_moves_for_an_export_and_permuted_and_stale_weights_are_seen,
    a_reference_that_is_swapped_in_by_place_is_seen,
    S9_what_nemo_rl_alone_does_by_place_is_refused_after_a_reorder,
    a_planner_plans_packed_sequences,
    a_planner_plans_batches_of_dynamic_size,
    a_planner_plans_padded_batches,
    S5_a_job_that_replays_nothing_is_planned_from_history,
    CONTRACT.S5_a_job_that_observes_trains_as_the_framework_alone_and_reports_its_loads,
    CONTRACT.checkpoints_are_the_frameworks_own_unless_experts_may_move,
    CONTRACT.L1_a_job_whose_planner_is_away_trains_as_without_the_plug_in,
    a_worker_without_optimizer_gets_no_agent,
    a_script_that_is_run_through_the_plug_in_starts_its_workers_in_the_environment_of_nemo_rls,
    the_driver_reports_each_sample_of_an_asynchronous_rollout_as_training_reads_it,
)
