"""The rollout worker: a process that holds the whole model (EP 1), generates, records routing and reports it."""

from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from relibra.demo import model as gpt
from relibra.demo.batch import Batch, Weights, sequence_ids
from relibra.demo.shape import MODEL, NUM_MICRO_BATCHES, NUM_SEQUENCES, SEQUENCES_PER_RANK, Registration
from relibra.demo.task import LENGTH, draw_prompts, group_advantages, reward
from relibra.rollout import RolloutReporter


def main(pipe: Connection, seed: int, rendezvous: Path, registration: Registration) -> None:
    """Serve commands until the pipe closes.

    Commands and answers:
        ("load", weights)     -> None
        ("generate", step)    -> Batch
        ("report", step, batch) -> None, once the planner has stored every sequence
    """
    gpt.start(rendezvous, rank=0, world_size=1, seed=seed)
    model = gpt.build().eval()
    with RolloutReporter(
        registration.planner_address,
        registration.job_id,
        num_experts=MODEL.num_experts,
        attempt=registration.attempt,
    ) as reporter:
        while True:
            try:
                command, *arguments = pipe.recv()
            except EOFError:
                return
            match command:
                case "load":
                    _load(model, *arguments)
                    pipe.send(None)
                case "generate":
                    pipe.send(generate(model, seed, *arguments))
                case "report":
                    _report(reporter, *arguments)
                    pipe.send(None)


def _load(model: torch.nn.Module, weights: Weights) -> None:
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=False)


def _report(reporter: RolloutReporter, step: int, batch: Batch) -> None:
    for sequence_id, routed_TLK in zip(sequence_ids(len(batch.tokens)), batch.routed_experts, strict=True):
        reporter.report(step, sequence_id, routed_TLK)
    reporter.flush(timeout_s=30.0)


@torch.no_grad()
def generate(model: torch.nn.Module, seed: int, step: int) -> Batch:
    """Sample `SEQUENCES_PER_RANK` responses to every prompt of the step and score them."""
    prompts = draw_prompts(seed, step, NUM_MICRO_BATCHES, NUM_SEQUENCES // NUM_MICRO_BATCHES // SEQUENCES_PER_RANK)
    tokens = torch.from_numpy(prompts.tokens).repeat_interleave(SEQUENCES_PER_RANK, dim=0)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    with gpt.recording():
        for _ in range(LENGTH):
            logits = gpt.logits(model, tokens)[:, -1]
            # The Gumbel noise does not depend on the logits, so a tiny change of weights only changes near ties.
            noise = -torch.log(-torch.log(torch.rand(logits.shape, generator=generator)))
            tokens = torch.cat([tokens, (logits + noise).argmax(dim=-1, keepdim=True)], dim=1)
        routed = gpt.read_recording(len(tokens))
    sequences = tokens.numpy()
    rewards = np.array([reward(sequence[:-LENGTH], sequence[-LENGTH:]) for sequence in sequences])
    return Batch(
        tokens=sequences,
        routed_experts=routed.numpy().astype(np.uint8),
        rewards=rewards,
        advantages=group_advantages(rewards, SEQUENCES_PER_RANK),
    )
