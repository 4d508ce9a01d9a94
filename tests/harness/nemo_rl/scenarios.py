"""Scenarios on two ranks: NeMo-RL's worker alone, and with the plug-in on the same batches."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from nemo_rl.algorithms.loss.loss_functions import NLLLossFn
from nemo_rl.models.policy import utils as policy_utils
from nemo_rl.models.policy.workers import megatron_policy_worker as policy_worker

from harness import exports, tiny_qwen3_moe
from harness.distributed.plans import ScriptedPlans, random_plans
from harness.nemo_rl import driver, rows, workers
from harness.tiny_qwen3_moe import NUM_EXPERTS, NUM_LAYERS, TOP_K
from harness.trained import Result, Trained, differing
from relibra.errors import RelibraError
from relibra.planning import Cluster, Model
from relibra.plugins.nemo_rl import worker as plugin

AWAY = "127.0.0.1:1"
NUM_UPDATES = 2
PASSES_PER_UPDATE = 1 + workers.NUM_GLOBAL_BATCHES
MODEL = Model(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, top_k=TOP_K)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=workers.RANKS, redundant_slots=1)


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    tiny_qwen3_moe.save(folder / "model")


def built(of_class: type[Any], folder: Path, mode: str = "packed", **options: Any) -> Any:
    """Build a worker."""
    workers.initialize_parallel_state()

    def initialise(self: Any, config: Any, **kwargs: Any) -> None:
        workers.build(self, config, **kwargs)

    with mock.patch.object(policy_worker.MegatronPolicyWorkerImpl, "__init__", initialise):
        return of_class(workers.configuration(folder / "model", mode), **options)


class TrainedWorker(Trained):
    """What a worker computed. Outputs are log-probabilities of the policy and of the reference, in turn."""

    def step(self, worker: Any, rank: int, step: int, mode: str) -> None:
        """Run a step of GRPO: log-probabilities, those of the reference, updates and a refit, with offloads."""
        data = workers.rollout(step)
        with self.noting(worker):
            shard = workers.shards(data, mode, None)[rank]
            worker.prepare_for_lp_inference()
            self.outputs.append(worker.get_logprobs(data=shard)["logprobs"])
            self.outputs.append(worker.get_reference_policy_logprobs(data=shard)["reference_logprobs"])
            worker.prepare_for_training()
            update = worker.train(workers.shards(data, mode, workers.GLOBAL_BATCH)[rank], NLLLossFn())
        self.numbers.append((float(update["global_loss"].sum()), float(update["grad_norm"])))
        worker.offload_before_refit()
        self.exports.append(streamed(worker))
        worker.offload_after_refit()

    def noting(self, worker: Any) -> Any:
        """Keep the outcome of every pass in the body."""
        if getattr(worker, "job", None) is None:
            return nullcontext()
        begin = worker._begin

        def begin_and_note(*args: Any) -> Any:
            is_planned = begin(*args)
            self.note(worker.outcome if is_planned else None)
            return is_planned

        return mock.patch.object(worker, "_begin", begin_and_note)


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
    worker.broadcast_weights_for_collective(buffer_size_bytes=1 << 14, num_buffers=2)
    return [each.view(torch.float32) for each in sent]


_trained: dict[str, TrainedWorker] = {}
_workers: dict[str, Any] = {}


def plain(rank: int, folder: Path, planner: str) -> Result:
    """NeMo-RL's own worker."""
    worker = _workers["plain"] = built(policy_worker.MegatronPolicyWorkerImpl, folder)
    trained = _trained["plain"] = TrainedWorker()
    for step in range(NUM_UPDATES):
        trained.step(worker, rank, step, "packed")
    return {"numbers": trained.numbers, "num_exported": len(trained.exports[0])}


def scripted(rank: int, folder: Path, planner: str) -> Result:
    """The worker of the plug-in, under plans that move experts and make replicas before every pass that replays."""
    workers.environment(AWAY, "scripted")
    num_passes = NUM_UPDATES * PASSES_PER_UPDATE
    plans = {
        index: random_plans(index + 1, index, MODEL, CLUSTER, num_micro_batches=8)[rank] for index in range(num_passes)
    }
    with mock.patch.object(plugin.BalancedWorker, "plan_source", ScriptedPlans(plans)):
        worker = _workers["scripted"] = built(plugin.BalancedWorker, folder)
        trained = _trained["scripted"] = TrainedWorker()
        for step in range(NUM_UPDATES):
            trained.step(worker, rank, step, "packed")
    collective = zip(broadcast(worker), broadcast(_workers["plain"]), strict=True)
    return {
        "difference": trained.differences(_trained["plain"]),
        "outcomes": trained.outcomes,
        "collective": [bool(torch.allclose(a, b, rtol=1e-4, atol=1e-6)) for a, b in collective],
        "is_away_from_home": not (worker.job.agent.home_rank_LE == MODEL_HOMES).all(),
        "is_fully_reshardable": worker.mcore_state.cfg.checkpoint.dist_ckpt_optim_fully_reshardable,
    }


MODEL_HOMES = torch.arange(NUM_EXPERTS).div(NUM_EXPERTS // workers.RANKS, rounding_mode="floor").numpy()


def mutants(rank: int, folder: Path, planner: str) -> Result:
    """Show that the comparison sees an export by place, stale weights, and a reference that is swapped in by place."""
    worker, plain_run = _workers["scripted"], _trained["plain"]
    agent = worker.job.agent
    own = policy_worker.MegatronPolicyWorkerImpl._apply_state_dict_to_model

    def by_place(self: Any, source: Any, **kwargs: Any) -> None:
        with agent.copying():
            own(self, source, **kwargs)
        agent._guard.note_visiting()

    shard = workers.shards(workers.rollout(0), "packed", None)[rank]
    with mock.patch.object(plugin.BalancedWorker, "_apply_state_dict_to_model", by_place):
        reference = worker.get_reference_policy_logprobs(data=shard)["reference_logprobs"]
    return {
        "compared": exports.compared(lambda: streamed(worker)),
        "stale": differing(streamed(worker), plain_run.exports[-2]),
        "reference": float((reference - plain_run.outputs[1]).abs().max()),
    }


def unchanged_worker(rank: int, folder: Path, planner: str) -> Result:
    """NeMo-RL's own `use_reference_model` and its single controller are refused after a reorder."""
    worker, own = _workers["scripted"], policy_worker.MegatronPolicyWorkerImpl
    shard = workers.shards(workers.rollout(0), "packed", None)[rank]

    def refusal(call: Callable[[], Any]) -> str:
        try:
            call()
        except RelibraError as error:
            return str(error)
        return ""

    with mock.patch.object(plugin.BalancedWorker, "use_reference_model", own.use_reference_model):
        reference = refusal(lambda: worker.get_reference_policy_logprobs(data=shard))
    return {"use_reference_model": reference, "begin_train_step": refusal(lambda: worker.begin_train_step(NLLLossFn()))}


def _planned(rank: int, folder: Path, planner: str, mode: str) -> Result:
    workers.environment(planner, f"nemo-rl-{mode}")
    worker = built(plugin.BalancedWorker, folder, mode)
    trained, alone = TrainedWorker(), TrainedWorker()
    trained.step(worker, rank, 0, mode)
    worker.prepare_for_training()
    worker.job.agent.detach()
    worker = built(policy_worker.MegatronPolicyWorkerImpl, folder, mode)
    alone.step(worker, rank, 0, mode)
    return {"difference": trained.differences(alone), "outcomes": trained.outcomes}


def packed(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans packed sequences."""
    return _planned(rank, folder, planner, "packed")


def dynamic(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans batches of dynamic size."""
    return _planned(rank, folder, planner, "dynamic")


def padded(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans padded batches."""
    return _planned(rank, folder, planner, "padded")


def away(rank: int, folder: Path, planner: str) -> Result:
    """The planner is away: the job trains as without the plug-in."""
    workers.environment(AWAY, "away")
    worker = built(plugin.BalancedWorker, folder)
    trained = TrainedWorker()
    for step in range(NUM_UPDATES):
        trained.step(worker, rank, step, "packed")
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def teacher(rank: int, folder: Path, planner: str) -> Result:
    """A worker without an optimizer gets no agent."""
    worker = built(plugin.BalancedWorker, folder, init_optimizer=False)
    return {"has_agent": worker.job is not None, "num_exported": len(streamed(worker))}


def planned_rows(rank: int, folder: Path, planner: str) -> Result:
    """The rows that the adapter plans and those that NeMo-RL's own code hands to the routers, over several layouts."""
    return {name: rows.difference(layout) for name, layout in rows.LAYOUTS.items()} if rank == 0 else {}


def launched(rank: int, folder: Path, planner: str) -> Result:
    """A script that is run through the plug-in starts the plug-in's workers."""
    return driver.started_workers(folder) if rank == 0 else {}


SCENARIOS: dict[str, Callable[[int, Path, str], Result]] = {
    each.__name__: each
    for each in (
        planned_rows,
        plain,
        scripted,
        mutants,
        unchanged_worker,
        packed,
        dynamic,
        padded,
        away,
        teacher,
        launched,
    )
}
