"""One trainer rank. It runs RECOMPUTE and UPDATE of every step on its share of the batch, plain or with an agent.

B sequences, T rows of a sequence, M micro-batches, L MoE layers.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from relibra.agent import Agent, AgentConfig, Phase, attach
from relibra.demo import model as gpt
from relibra.demo.batch import Batch, Weights
from relibra.demo.shape import CLUSTER, LEARNING_RATE, MODEL, NUM_MICRO_BATCHES, Registration
from relibra.demo.task import LENGTH

CLIP = 0.2
ENTROPY_WEIGHT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The results of one rank in one step."""

    loss: float
    """The mean over this rank's tokens. The mean over ranks is the loss of the step."""
    grad_norm: float
    load_ML: NDArray[np.int64]
    """Token copies that this rank computed in UPDATE, counted at the input of the experts."""
    applied: tuple[str, str]
    """Plan ids of RECOMPUTE and UPDATE, empty for the plain run."""
    reason: str
    """The agent's reason for applying a plan in UPDATE, or for applying none."""
    weights: Weights
    """This rank's parameters under their logical names."""


def main(pipe: Connection, seed: int, rendezvous: Path, registration: Registration | None, rank: int) -> None:
    """Serve commands until the pipe closes.

    Commands and answers:
        ("weights",)            -> Weights
        ("step", step, batches) -> StepResult
        ("finish",)             -> None, once experts are back at their identity homes and all reports are delivered
    """
    gpt.start(rendezvous, rank=rank, world_size=CLUSTER.num_ranks, seed=seed)
    trainer = Trainer(registration)
    while True:
        try:
            command, *arguments = pipe.recv()
        except EOFError:
            return
        match command:
            case "weights":
                pipe.send(trainer.weights())
            case "step":
                pipe.send(trainer.step(*arguments))
            case "finish":
                trainer.finish()
                pipe.send(None)


class Trainer:
    """The model, its optimizer and, in a balanced run, the agent."""

    def __init__(self, registration: Registration | None) -> None:
        self._model, self._optimizer = gpt.wrap(gpt.build(), LEARNING_RATE)
        self._agent: Agent | None = None
        if registration is not None:
            config = AgentConfig(
                planner_address=registration.planner_address,
                job_id=registration.job_id,
                attempt=registration.attempt,
                model=MODEL,
                cluster=CLUSTER,
                # A busy machine may take its time: without its plan a step could not be compared.
                plan_timeout_s=600.0,
                collective_timeout_s=1800.0,
                guard=False,
            )
            self._agent = attach(self._model, self._optimizer, config)
        self._load_L = np.zeros(MODEL.num_layers, dtype=np.int64)
        for layer, module in enumerate(gpt.moe_layers(self._model)):
            module.experts.register_forward_pre_hook(self._count(layer))

    def _count(self, layer: int) -> Callable[..., None]:
        def hook(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            self._load_L[layer] += len(inputs[0])

        return hook

    def weights(self) -> Weights:
        """Return the parameters of this rank under the names of an EP 1 model."""
        if self._agent is not None:
            named = self._agent.logical_named_parameters()
        else:
            named = gpt.named_parameters_in_identity_order(self._model)
        return {name: tensor.detach().float().numpy().copy() for name, tensor in named}

    def step(self, step: int, micro_batches: list[Batch]) -> StepResult:
        """Train one step on this rank's sequences, given as one batch per micro-batch."""
        applied_recompute, _ = self._begin(step, Phase.RECOMPUTE)
        self._model.eval()
        with torch.no_grad():
            old_log_probs = [self._log_probs(index, batch)[0] for index, batch in enumerate(micro_batches)]

        applied_update, reason = self._begin(step, Phase.UPDATE)
        self._model.train()
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        losses, load_ML = [], np.zeros((NUM_MICRO_BATCHES, MODEL.num_layers), dtype=np.int64)
        for index, batch in enumerate(micro_batches):
            self._load_L[:] = 0
            last = index == len(micro_batches) - 1
            with nullcontext() if last else self._model.no_sync():
                loss = self._loss(index, batch, old_log_probs[index]) / len(micro_batches)
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            load_ML[index] = self._load_L
        self._model.finish_grad_sync()
        _, grad_norm, _ = self._optimizer.step()
        if self._agent is not None:
            self._agent.end_step()
        return StepResult(
            loss=sum(losses),
            grad_norm=float(grad_norm),
            load_ML=load_ML,
            applied=(applied_recompute, applied_update),
            reason=reason,
            weights=self.weights(),
        )

    def finish(self) -> None:
        """Detach the agent, which returns every expert to its home rank under plain expert parallelism."""
        if self._agent is not None:
            self._agent.detach()

    def _begin(self, step: int, phase: Phase) -> tuple[str, str]:
        if self._agent is None:
            return "", "plain run"
        outcome = self._agent.begin_step(step, phase)
        return str(outcome.applied or ""), outcome.reason

    def _micro_batch(self, index: int) -> AbstractContextManager[None]:
        return nullcontext() if self._agent is None else self._agent.micro_batch(index)

    def _log_probs(self, index: int, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability and the entropy of every response token, `[B, LENGTH]` each."""
        tokens_BT = torch.from_numpy(batch.tokens)
        with gpt.replaying(torch.from_numpy(batch.routed_experts)), self._micro_batch(index):
            logits = gpt.logits(self._model, tokens_BT[:, :-1])[:, -LENGTH:]
        distribution = torch.log_softmax(logits.float(), dim=-1)
        chosen = distribution.gather(-1, tokens_BT[:, -LENGTH:, None]).squeeze(-1)
        return chosen, -(distribution.exp() * distribution).sum(-1)

    def _loss(self, index: int, batch: Batch, old_log_prob: torch.Tensor) -> torch.Tensor:
        """Return the clipped GRPO loss, with an entropy bonus that keeps the policy from collapsing."""
        log_prob, entropy = self._log_probs(index, batch)
        advantage = torch.from_numpy(batch.advantages).float()[:, None]
        ratio = torch.exp(log_prob - old_log_prob)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        return -(gain + ENTROPY_WEIGHT * entropy).mean()
