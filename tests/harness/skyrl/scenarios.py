"""Scenarios on two ranks: SkyRL's policy worker alone, and with the plug-in on the same batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from skyrl.backends.skyrl_train.workers.megatron.megatron_worker import MegatronPolicyWorkerBase

from harness.distributed.plans import ScriptedPlans, random_plans
from harness.skyrl import workers
from relibra.planning import Cluster, Model
from relibra.plugins.skyrl.worker import BalancedPolicyWorker

Result = dict[str, Any]

AWAY = "127.0.0.1:1"
NUM_UPDATES = 3
MAX_TOKENS = 24
MODEL = Model(num_layers=workers.NUM_LAYERS, num_experts=workers.NUM_EXPERTS, top_k=workers.TOP_K)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=workers.RANKS, redundant_slots=1)


class Trained:
    """What a worker computed: losses and norms of gradients, log-probabilities, and weights sent after every update."""

    def __init__(self) -> None:
        self.numbers: list[tuple[float, float]] = []
        self.log_probs: list[torch.Tensor] = []
        self.sent: list[dict[str, torch.Tensor]] = []
        self.outcomes: list[Result] = []

    def step(self, worker: Any, data: Any) -> None:
        """Do what SkyRL's trainer does in a step of a colocated job."""
        self.log_probs.append(workers.infer(worker, data))
        self._note(worker)
        self.numbers.append(workers.update(worker, data))
        self._note(worker)
        self.sent.append(workers.sent(worker))
        workers.offload_and_back(worker)

    def differences(self, other: "Trained") -> Result:
        """Return the largest differences, and the names of weights that differ by more than rounding."""
        return {
            "numbers": max(
                abs(a - b) / abs(b)
                for of_a, of_b in zip(self.numbers, other.numbers, strict=True)
                for a, b in zip(of_a, of_b, strict=True)
            ),
            "log_probs": max(float((a - b).abs().max()) for a, b in zip(self.log_probs, other.log_probs, strict=True)),
            "sent": [differing(a, b) for a, b in zip(self.sent, other.sent, strict=True)],
        }

    def _note(self, worker: Any) -> None:
        outcome = getattr(worker, "outcome", None)
        if outcome is not None:
            self.outcomes.append(
                {
                    "is_applied": outcome.applied is not None,
                    "num_moved": outcome.num_moved_experts,
                    "num_replicas": outcome.num_replicas,
                    "reason": outcome.reason,
                }
            )


def differing(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that differ by more than rounding."""
    assert got.keys() == expected.keys(), sorted(got.keys() ^ expected.keys())
    return [name for name, tensor in expected.items() if not torch.allclose(got[name], tensor, rtol=1e-4, atol=1e-6)]


_trained: dict[str, Trained] = {}
_workers: dict[str, Any] = {}


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    workers.save_model(folder / "model")


def plain(rank: int, folder: Path, planner: str) -> Result:
    """SkyRL's own worker, without the plug-in."""
    worker = workers.build(MegatronPolicyWorkerBase, rank, folder / "model")
    trained = _trained["plain"] = Trained()
    for step in range(NUM_UPDATES):
        trained.step(worker, workers.batch(rank, step))
    worker.strategy.megatron_config.dist_ckpt_optim_fully_reshardable = True
    worker.save_checkpoint(str(folder / "checkpoint of plain"), worker.tokenizer)
    return {"numbers": trained.numbers, "num_sent": len(trained.sent[0])}


def scripted(rank: int, folder: Path, planner: str) -> Result:
    """The plug-in's worker, under plans that move experts and make replicas before every pass."""
    workers.environment(AWAY, "scripted")
    plans = {
        index: random_plans(index + 1, index, MODEL, CLUSTER, num_micro_batches=4)[rank]
        for index in range(2 * NUM_UPDATES + 1)
    }
    with mock.patch.object(BalancedPolicyWorker, "plan_source", ScriptedPlans(plans)):
        worker = workers.build(BalancedPolicyWorker, rank, folder / "model")
        trained = Trained()
        for step in range(NUM_UPDATES):
            trained.step(worker, workers.batch(rank, step))
    _workers["scripted"] = worker
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def mutants(rank: int, folder: Path, planner: str) -> Result:
    """Show that the comparison sees weights that are sent by place, and weights of another update."""
    worker, before = _workers["scripted"], _trained["plain"].sent
    with mock.patch.object(BalancedPolicyWorker, "_at_original_places", lambda self: self._job.agent.copying()):
        permuted = workers.sent(worker)
    return {"permuted": differing(permuted, before[-1]), "stale": differing(workers.sent(worker), before[-2])}


def checkpoint(rank: int, folder: Path, planner: str) -> Result:
    """Save from a worker whose experts have moved, in both formats, and train on; go on from it in SkyRL alone."""
    worker = _workers.pop("scripted")
    saved = workers.sent(worker)
    worker.save_checkpoint(str(folder / "checkpoint"), worker.tokenizer)
    worker.save_hf_model(str(folder / "huggingface"), worker.tokenizer)
    numbers = [workers.update(worker, workers.batch(rank, 50))]
    loaded, of_loaded, trained_on = _continued(rank, folder, "checkpoint")
    numbers.append(of_loaded)
    _, _, trained_on_alone = _continued(rank, folder, "checkpoint of plain")
    return {
        "loaded": differing(loaded, saved),
        "huggingface": differing(_read(folder / "huggingface"), saved),
        "numbers": numbers,
        "trained_on": differing(trained_on, trained_on_alone),
    }


def _continued(rank: int, folder: Path, name: str) -> tuple[dict[str, torch.Tensor], tuple[float, float], Any]:
    """Load a checkpoint in SkyRL alone; return its weights, the numbers of one update, and the weights after it."""
    worker = workers.build(MegatronPolicyWorkerBase, rank, folder / "model")
    worker.strategy.megatron_config.dist_ckpt_optim_fully_reshardable = True
    workers.update(worker, workers.batch(rank, 40))  # before its first step, torch's Adam has no state to load into
    worker.load_checkpoint(str(folder / name))
    loaded = workers.sent(worker)
    return loaded, workers.update(worker, workers.batch(rank, 50)), workers.sent(worker)


def _read(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def planned(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans micro-batches of equal size."""
    return _planned(rank, folder, planner, "skyrl-planned", max_tokens=-1)


def planned_by_tokens(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans micro-batches by tokens, which SkyRL fills up with dummies."""
    return _planned(rank, folder, planner, "skyrl-tokens", max_tokens=MAX_TOKENS)


def _planned(rank: int, folder: Path, planner: str, job: str, *, max_tokens: int) -> Result:
    workers.environment(planner, job)
    results = []
    for of_class in (MegatronPolicyWorkerBase, BalancedPolicyWorker):
        worker = workers.build(of_class, rank, folder / "model", max_tokens=max_tokens)
        trained = Trained()
        for step in range(2):
            trained.step(worker, workers.batch(rank, step))
        results.append(trained)
    alone, balanced = results
    return {"difference": balanced.differences(alone), "outcomes": balanced.outcomes}


def accumulated(rank: int, folder: Path, planner: str) -> Result:
    """Two batches make one update, as with Tinker: experts stay where the first batch put them."""
    workers.environment(AWAY, "accumulated")
    numbers, weights, outcomes = [], [], []
    plans = {index: random_plans(index + 1, index, MODEL, CLUSTER, num_micro_batches=2)[rank] for index in range(2)}
    for of_class in (MegatronPolicyWorkerBase, BalancedPolicyWorker):
        with mock.patch.object(BalancedPolicyWorker, "plan_source", ScriptedPlans(plans)):
            worker = workers.build(of_class, rank, folder / "model")
            for step in (0, 2):
                worker.forward_backward(workers.batch(rank, step))
                numbers.append(workers.update(worker, workers.batch(rank, step + 1)))
                outcomes.append(getattr(worker, "outcome", None))
            weights.append(workers.sent(worker))
    return {
        "numbers": [numbers[:2], numbers[2:]],
        "sent": differing(weights[1], weights[0]),
        "steps": [each.step for each in outcomes[2:]],
        "num_moved": [each.num_moved_experts for each in outcomes[2:]],
    }


def away(rank: int, folder: Path, planner: str) -> Result:
    """The planner is away: the job trains as without the plug-in."""
    workers.environment(AWAY, "away")
    worker = workers.build(BalancedPolicyWorker, rank, folder / "model")
    trained = Trained()
    for step in range(NUM_UPDATES):
        trained.step(worker, workers.batch(rank, step))
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


SCENARIOS: dict[str, Callable[[int, Path, str], Result]] = {
    each.__name__: each
    for each in (plain, scripted, mutants, checkpoint, planned, planned_by_tokens, accumulated, away)
}
